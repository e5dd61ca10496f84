//! Several processes, one directory.

mod common;

use std::time::Duration;

use common::{Site, end_of, fight, is_alive, now, pause, signal, text, wait_until};
use rustix::process::Signal;

/// Goal: of two processes that fight for one name, one at a time has it, and every token is new.
/// Method: each runs a command that fails loudly if it is not alone.
#[test]
fn two_processes_fight_for_one_name() {
    let site = Site::new();
    fight::for_one_name(&site, |arguments| drop(site.ask(arguments).with_code(0)));
}

#[test]
fn many_processes_take_different_names_at_once() {
    let site = Site::new();
    let names: Vec<String> = (0..6).map(|n| format!("seat-{n:02}")).collect();
    let children: Vec<_> = names.iter().map(|name| site.start(&mut site.command(&["acquire", name]))).collect();
    for child in children {
        end_of(child).with_code(0);
    }
    assert_eq!(site.ask(&["ls", "--json"]).with_code(0).out.lines().count(), names.len());
}

#[test]
fn a_waiting_process_gets_its_turn_when_the_holder_releases() {
    let site = Site::new();
    let first = site.acquire(&["seat-14", "--ttl", "1h"]);
    let waiting = site.start(&mut site.command(&["acquire", "seat-14", "--wait", "30s", "--json"]));
    // It has come at least once and was refused, or is about to: both must end well.
    pause(Duration::from_millis(50));
    site.ask(&["release", text(&first, "lease_id")]).with_code(0);
    let second = end_of(waiting).with_code(0).json();
    assert_ne!(first["token"], second["token"]);
}

#[test]
fn a_wait_that_runs_out_is_a_refusal() {
    let site = Site::new();
    site.acquire(&["seat-14", "--ttl", "1h"]);
    let began = now();
    site.ask(&["acquire", "seat-14", "--wait", "200ms"]).with_code(3).says_one_sentence();
    assert!(began.elapsed() >= Duration::from_millis(200));
}

/// Goal: a wait that is interrupted ends with the shell's code and leaves nothing behind.
#[test]
fn an_interrupted_wait_leaves_nothing_behind() {
    let site = Site::new();
    let first = site.acquire(&["seat-14", "--ttl", "1h"]);
    for command in [&["acquire", "seat-14", "--wait", "1h"][..], &["run", "seat-14", "--wait", "1h", "--", "true"]] {
        let waiting = site.start(&mut site.command(command));
        let status = std::path::PathBuf::from(format!("/proc/{}/status", waiting.id()));
        // Until it listens for the signal, the signal would end it by itself.
        let caught = |status: &str| {
            let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or_default();
            u64::from_str_radix(mask.trim(), 16).unwrap_or(0) & (1 << (Signal::TERM.as_raw() - 1)) != 0
        };
        wait_until("it listens", || caught(&std::fs::read_to_string(&status).unwrap_or_default()));
        signal(i32::try_from(waiting.id()).expect("a pid"), Signal::TERM);
        let answer = end_of(waiting).with_code(128 + 15);
        answer.says_one_sentence();
    }
    site.ask(&["release", text(&first, "lease_id")]).with_code(0);
    assert!(!site.is_held("seat-14"));
}

/// Goal: an acquire that is interrupted at whatever moment either prints its lease or leaves none.
/// Method: measure one, then interrupt others at every twentieth of that time.
#[test]
fn an_interrupted_acquire_prints_its_lease_or_leaves_none() {
    let site = Site::new();
    site.acquire(&["first"]);
    let began = now();
    site.acquire(&["second"]);
    let one = began.elapsed();
    for part in 0..24 {
        let name = format!("seat-{part}");
        let acquire = site.start(&mut site.command(&["acquire", &name, "--ttl", "1h"]));
        pause(one * part / 20);
        let pid = i32::try_from(acquire.id()).expect("a pid");
        if is_alive(pid) {
            signal(pid, Signal::TERM);
        }
        let answer = end_of(acquire);
        assert_eq!(site.is_held(&name), answer.code == 0, "interrupted at {part}/20: {answer:?}");
    }
}
