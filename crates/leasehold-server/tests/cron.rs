//! `leasehold cron`: ticks, codes, policies and the ledger, by the real binary on the embedded engine and SQLite.

mod common;

use std::process::Child;

use common::{Answer, Site, end_of, is_alive, pause, signal, text, wait_until};
use rustix::process::Signal;
use serde_json::Value;

/// A tick that stands still: the last new year, which is never too late.
const NEW_YEAR: [&str; 4] = ["--schedule", "0 0 1 1 *", "--late", "9000h"];
const EVERY_SECOND: [&str; 4] = ["--schedule", "* * * * * *", "--late", "30s"];
/// Times that leave a busy machine room.
const SHORT: [&str; 6] = ["--ttl", "6s", "--grace", "300ms", "--jitter", "0s"];

/// `cron NAME` with these options and a script.
fn words<'a>(name: &'a str, options: &[&[&'a str]], script: &'a str) -> Vec<&'a str> {
    [&["cron", name], &options.concat()[..], &["--", "sh", "-c", script]].concat()
}

fn tick(site: &Site, name: &str, options: &[&str], script: &str) -> Answer {
    site.ask(&words(name, &[&NEW_YEAR, &["--tick"], options], script))
}

fn start(site: &Site, name: &str, options: &[&[&str]], script: &str) -> Child {
    site.start(&mut site.command(&words(name, &[&SHORT, &options.concat()], script)))
}

/// The rows of the ledger, oldest first; none before the first tick.
fn history(site: &Site, name: &str) -> Vec<Value> {
    let answer = site.ask(&["cron", "history", name, "--limit", "1000", "--json"]);
    let mut rows: Vec<Value> = answer.out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    rows.reverse();
    rows
}

fn count(rows: &[Value], state: &str) -> usize {
    rows.iter().filter(|row| row["state"] == state).count()
}

fn stop(child: Child) -> Answer {
    signal(child.id(), Signal::TERM);
    end_of(child)
}

/// Goal: a tick runs once, with everything in its environment, its output here and in the ledger.
#[test]
fn a_tick_is_run_once_and_kept() {
    let site = Site::new();
    let script = "echo $LEASEHOLD_TICK $LEASEHOLD_RESOURCE $LEASEHOLD_TOKEN; echo \"$LEASEHOLD_FENCE\"; \
                  echo key=$LEASEHOLD_API_KEY $(cat); echo trouble >&2";
    let answer = {
        let words = words("report", &[&NEW_YEAR, &["--tick"]], script);
        let output = site.command(&words).env("LEASEHOLD_API_KEY", "hunter2").output().expect("the binary starts");
        Answer::of(&output).with_code(0)
    };
    let lines: Vec<&str> = answer.out.lines().collect();
    let [first, fence, key] = lines[..] else { panic!("{answer:?}") };
    let [new_year, resource, token] = first.split(' ').collect::<Vec<_>>()[..] else { panic!("{first}") };
    assert!(new_year.ends_with("-01-01T00:00:00Z") && resource == "cron/report", "{first}");
    assert!(fence.starts_with(&format!("{token}:")) && fence.ends_with("\tcron/report"), "{fence}");
    assert_eq!(key, "key=", "the key is not passed on, and stdin is empty");
    assert_eq!(answer.err, "trouble\n");

    let again = tick(&site, "report", &[], "echo twice").with_code(3);
    again.says_one_sentence();
    let [row] = &history(&site, "report")[..] else { panic!("one run") };
    assert_eq!((text(row, "tick"), text(row, "state"), row["code"].as_i64()), (new_year, "ok", Some(0)));
    assert_eq!(text(row, "token"), token);
    assert!(text(row, "tail").contains("trouble") && text(row, "tail").contains("cron/report"), "{row}");
    assert!(!site.is_held("cron/report"), "it was released");
}

/// Goal: a schedule that was given up is forgotten. A server says where to do that.
#[test]
fn a_schedule_that_was_given_up_is_removed() {
    let site = Site::new();
    tick(&site, "report", &[], "true").with_code(0);
    site.ask(&["cron", "rm", "report"]).with_code(0);
    assert_eq!(site.ask(&["cron", "ls", "--json"]).with_code(0).out, "");
    site.ask(&["cron", "rm", "report"]).with_code(2).says_one_sentence();
    let server = common::server::Server::start(&site, &[]);
    let url = format!("leasehold://{}", server.resp);
    let refused = site.ask(&["cron", "rm", "report", "--store", &url]).with_code(2);
    refused.says_one_sentence();
    assert!(refused.err.contains("open the store of the server itself"), "{refused:?}");
}

/// Goal: the codes of the contract.
#[test]
fn codes_are_those_of_the_contract() {
    let site = Site::new();
    tick(&site, "report", &[], "exit 33").with_code(33);
    let rows = history(&site, "report");
    assert_eq!((text(&rows[0], "state"), rows[0]["code"].as_i64()), ("failed", Some(33)));

    let other = ["--schedule", "0 1 1 1 *", "--late", "9000h", "--tick"];
    let refused = site.ask(&words("report", &[&other], "echo no")).with_code(2);
    refused.says_one_sentence();
    assert!(refused.err.contains("0 0 1 1 * UTC") && refused.err.contains("--change"), "{refused:?}");
    let changed = site.ask(&words("report", &[&other, &["--change"]], "echo yes")).with_code(0);
    assert_eq!(changed.out, "yes\n");
    site.ask(&words("report", &[&NEW_YEAR, &["--tick"]], "echo old")).with_code(2);

    let bad: [&[&str]; 5] = [
        &["--schedule", "0 3 30 2 *"],
        &["--schedule", "0 3 * *"],
        &["--schedule", "0 3 * * *", "--tz", "Mars/Olympus"],
        &["--schedule", "* * * * * *", "--overlap", "replace"],
        &["--schedule", "0 3 * * *", "--at-most-once", "--late", "24h"],
    ];
    for options in bad {
        site.ask(&words("bad", &[options], "echo no")).with_code(2).says_one_sentence();
    }
    site.ask(&["cron", "none", "--schedule", "0 3 * * *", "--", "no-such-command"]).with_code(127).says_one_sentence();
    site.ask(&["cron", "history", "unknown"]).with_code(2).says_one_sentence();
    site.ask(&["cron", "next", "unknown"]).with_code(2).says_one_sentence();
    let away = ["--store", "postgres://postgres@127.0.0.1:1/none"];
    site.ask(&words("away", &[&NEW_YEAR, &["--tick"], &away], "echo no")).with_code(4).says_one_sentence();
    // A tick that is not due is nobody's fault.
    let later = ["--schedule", "0 0 1 1 *", "--late", "1ms", "--tick"];
    let answer = site.ask(&words("later", &[&later], "echo no")).with_code(0);
    assert!(answer.out.is_empty() && answer.err.contains("no tick of later is due"), "{answer:?}");
}

/// Goal: a command whose lease is lost is ended, with code 6, and its run has failed.
#[test]
fn a_lost_lease_ends_the_command() {
    let site = Site::new();
    let words =
        words("report", &[&NEW_YEAR, &["--tick", "--ttl", "3s", "--grace", "300ms"]], "echo $$ > pid; sleep 60");
    let child = site.start(&mut site.command(&words));
    let pid = site.number_in("pid");
    site.ask(&["revoke", "cron/report", "--reason", "test"]).with_code(0);
    end_of(child).with_code(6);
    assert!(!is_alive(pid));
    let rows = history(&site, "report");
    assert_eq!(text(&rows[0], "state"), "failed", "{rows:?}");
}

/// Goal: TERM reaches the command, its run is finished as failed, and the runner ends well.
#[test]
fn a_stop_ends_command_and_run() {
    let site = Site::new();
    let script = "trap 'echo stopped; exit 0' TERM; echo $$ > pid.new; mv pid.new pid; while :; do sleep 0.05; done";
    let runner = start(&site, "report", &[&EVERY_SECOND], script);
    let pid = site.number_in("pid");
    let answer = stop(runner).with_code(0);
    assert!(answer.out.contains("stopped") && !is_alive(pid), "{answer:?}");
    let rows = history(&site, "report");
    let last = rows.last().expect("a run");
    assert_eq!((text(last, "state"), last["code"].as_i64()), ("failed", Some(143)), "{rows:?}");
    assert!(!site.is_held("cron/report"));
    // One that waits for its tick ends at once.
    let waiting = start(&site, "yearly", &[&["--schedule", "0 0 1 1 *"]], "echo no");
    pause(std::time::Duration::from_millis(500));
    stop(waiting).with_code(0);
    assert_eq!(history(&site, "yearly").len(), 0, "a new schedule starts with its next tick");
}

/// Goal: three machines share the ticks: none twice, and none left out.
#[test]
fn machines_share_the_ticks() {
    let site = Site::new();
    let machines: Vec<Child> =
        (0..3).map(|_| start(&site, "tidy", &[&EVERY_SECOND], "echo $LEASEHOLD_TICK >> runs")).collect();
    wait_until("five ticks have run", || count(&history(&site, "tidy"), "ok") >= 5);
    for machine in machines {
        stop(machine).with_code(0);
    }
    let runs = std::fs::read_to_string(site.path("runs")).expect("it has run");
    let runs: Vec<&str> = runs.lines().collect();
    assert!(runs.is_sorted_by(|a, b| a < b), "{runs:?}");
    let rows = history(&site, "tidy");
    for pair in rows.windows(2) {
        let second = |value: &Value| text(value, "started_at").to_owned();
        assert!(second(&pair[0]) <= second(&pair[1]), "{rows:?}");
    }
    assert_eq!(rows.iter().filter(|row| row["state"] == "ok").count(), runs.len(), "{rows:?} {runs:?}");
}

/// Goal: a run whose machine died is lost: told, and not repeated.
#[test]
fn a_dead_machine_loses_its_run() {
    let site = Site::new();
    let script = "echo $$ > pid.new; mv pid.new pid; while :; do sleep 0.05; done";
    let mut ada = start(&site, "report", &[&EVERY_SECOND], script);
    let pid = site.number_in("pid");
    ada.kill().expect("it is ours");
    let _ = ada.wait();
    wait_until("its command is dead too", || !is_alive(pid));
    let lost = text(&history(&site, "report")[0], "tick").to_owned();
    let bob = start(&site, "report", &[&EVERY_SECOND], "echo $LEASEHOLD_TICK >> runs");
    wait_until("bob has run", || site.path("runs").exists());
    let told = stop(bob).with_code(0);
    assert!(told.err.contains(&format!("tick {lost} was lost")), "{told:?}");
    let rows = history(&site, "report");
    assert_eq!((text(&rows[0], "tick"), text(&rows[0], "state")), (lost.as_str(), "lost"));
    let runs = std::fs::read_to_string(site.path("runs")).expect("it has run");
    assert!(!runs.contains(&lost), "it was not repeated");
}

/// Goal: the three ways with a tick that comes while a run is at work.
#[test]
fn a_tick_during_a_run_is_skipped_waits_or_replaces() {
    let site = Site::new();
    let slow = "echo $LEASEHOLD_TICK >> $LEASEHOLD_RESOURCE.runs; sleep 2.2";
    std::fs::create_dir(site.path("cron")).expect("a directory");
    let machines = [
        start(&site, "skip", &[&EVERY_SECOND], slow),
        start(&site, "wait", &[&EVERY_SECOND, &["--overlap", "wait"]], "sleep 1.3"),
        start(&site, "wait", &[&EVERY_SECOND, &["--overlap", "wait"]], "sleep 1.3"),
        start(&site, "replace", &[&["--schedule", "*/4 * * * * *", "--overlap", "replace"]], "sleep 60"),
    ];
    wait_until("each has run", || {
        count(&history(&site, "skip"), "skipped") >= 2
            && count(&history(&site, "wait"), "ok") >= 3
            && count(&history(&site, "replace"), "failed") >= 2
    });
    for machine in machines {
        stop(machine).with_code(0);
    }
    let skipped = history(&site, "skip");
    let ticks: u64 =
        skipped.iter().filter(|row| row["state"] == "skipped").filter_map(|row| row["ticks"].as_u64()).sum();
    assert!(ticks >= 4, "two ticks at least come during each run: {skipped:?}");
    let replaced = history(&site, "replace");
    assert!(count(&replaced, "ok") == 0, "each was ended before the next: {replaced:?}");
}

/// Goal: without a store a tick is run at most once, and its lease stays.
#[test]
fn at_most_once_needs_no_store() {
    let site = Site::new();
    let options = ["--schedule", "0 */6 * * *", "--late", "23h", "--tick", "--at-most-once"];
    let run = || site.ask(&words("report", &[&options], "echo $LEASEHOLD_RESOURCE"));
    let (first, mut again) = (run().with_code(0), run());
    let resource = first.out.trim();
    assert!(resource.starts_with("cron/report@") && resource.ends_with(":00:00Z"), "{resource}");
    assert!(site.is_held(resource), "it is never released");
    if again.code == 0 {
        again = run(); // The next tick came between the two.
    }
    again.with_code(3).says_one_sentence();
    assert!(!site.path("data/recipes.db").exists(), "there is no store");
    site.ask(&words("report", &[&options, &["--store", "sqlite:x"]], "echo no")).with_code(2);
}

/// Goal: a run that takes too long is ended.
#[test]
fn a_run_has_a_longest_time() {
    let site = Site::new();
    tick(&site, "report", &["--max-run", "2s", "--grace", "200ms"], "sleep 60").with_code(6);
    assert_eq!(text(&history(&site, "report")[0], "state"), "failed");
}

/// Goal: what people and scripts see.
#[test]
fn lists_are_for_people_and_for_scripts() {
    let site = Site::new();
    tick(&site, "report", &[], "exit 4").with_code(4);
    let listed = site.ask(&["cron", "ls", "--json"]).with_code(0).json();
    assert_eq!((text(&listed, "name"), text(&listed, "schedule")), ("report", "0 0 1 1 * UTC"));
    assert_eq!((text(&listed, "state"), listed["code"].as_i64()), ("failed", Some(4)));
    assert!(text(&listed, "next").ends_with("-01-01T00:00:00Z"));
    let table = site.ask(&["cron", "ls"]).with_code(0).out;
    assert!(table.starts_with("NAME") && table.contains("failed (4)"), "{table}");
    let table = site.ask(&["cron", "history", "report"]).with_code(0).out;
    assert!(table.starts_with("TICK") && table.lines().count() == 2, "{table}");
    let next = site.ask(&["cron", "next", "report", "--count", "2", "--json"]).with_code(0).json();
    assert_eq!(next["next"].as_array().map(Vec::len), Some(2), "{next}");
    let berlin = ["cron", "next", "--schedule", "*/20 2 * * *", "--tz", "Europe/Berlin"];
    let shown = site.ask(&berlin).with_code(0).out;
    assert!(shown.contains("will not run") && shown.contains("will run twice"), "{shown}");
    let shown = site.ask(&[&berlin[..], &["--json"]].concat()).with_code(0).json();
    let effects: Vec<&str> =
        shown["clock_changes"].as_array().expect("a list").iter().map(|change| text(change, "effect")).collect();
    assert!(effects.contains(&"not_run") && effects.contains(&"twice"), "{effects:?}");
}
