//! `leasehold run`: the command under its lease, and dead before the lease could be granted again.

mod common;

use std::process::{Child, Stdio};
use std::time::Duration;

use common::{Answer, Site, end_of, is_alive, pause, signal, text, wait_until};
use rustix::process::Signal;

/// Writes the pid of the command and of something it started, and then does not care about TERM.
const STUBBORN: &str = "trap '' TERM; sleep 600 & echo $! > grandchild; echo $$ > child; wait; wait; sleep 600";

/// The same without the stubbornness.
const FORKING: &str = "sleep 600 & echo $! > grandchild; echo $$ > child; wait";

/// A command that runs under a lease, beside the test.
struct Running {
    run: Child,
    child: i32,
    grandchild: i32,
}

impl Running {
    fn start(site: &Site, options: &[&str], script: &str) -> Self {
        let arguments = [&["run", "job"], options, &["--", "sh", "-c", script]].concat();
        let run = site.start(&mut site.command(&arguments));
        let (child, grandchild) = (site.number_in("child"), site.number_in("grandchild"));
        assert!(is_alive(child) && is_alive(grandchild));
        Self { run, child, grandchild }
    }

    fn is_dead(&self) -> bool {
        !is_alive(self.child) && !is_alive(self.grandchild)
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.run.id()).expect("a pid")
    }

    #[track_caller]
    fn end(self) -> Answer {
        end_of(self.run)
    }
}

/// Times that leave a busy machine room: the margin before the end is 250 ms.
const SHORT: [&str; 4] = ["--ttl", "5s", "--grace", "500ms"];

#[test]
fn the_command_finds_its_lease_in_the_environment() {
    let site = Site::new();
    let script = "echo $LEASEHOLD_RESOURCE; echo $LEASEHOLD_TOKEN; echo $LEASEHOLD_LEASE_ID; echo $LEASEHOLD_MARK; \
                  echo \"$LEASEHOLD_FENCE\"";
    let answer = site.ask(&["run", "job", "--", "sh", "-c", script]).with_code(0);
    let lines: Vec<&str> = answer.out.lines().collect();
    let [resource, token, lease_id, mark, fence] = lines[..] else { panic!("{answer:?}") };
    assert_eq!(resource, "job");
    assert!(token.parse::<u64>().is_ok_and(|token| token > 0), "{token}");
    assert!(lease_id.len() > 32, "{lease_id}");
    assert_eq!(mark, leasehold::LeaseId::new(lease_id).mark());
    assert_eq!(fence, format!("{token}:{mark}\tjob"));
    assert_eq!(answer.err, "", "nothing to say when all is well");
    assert!(!site.is_held("job"), "it was released");
}

/// Goal: the command does not get the API key of this process, unless that is asked for.
#[test]
fn the_key_is_passed_on_only_if_asked_for() {
    let site = Site::new();
    let script = "echo key=$LEASEHOLD_API_KEY";
    for (words, shown) in [
        (vec!["run", "job"], "key=\n"),
        (vec!["run", "job", "--pass-key"], "key=lh_secret\n"),
        (vec!["elect", "job"], "key=\n"),
        (vec!["elect", "job", "--pass-key"], "key=lh_secret\n"),
        (vec!["once", "job"], "key=\n"),
    ] {
        let mut command = site.command(&[words.as_slice(), &["--", "sh", "-c", script]].concat());
        let answer = end_of(site.start(command.env("LEASEHOLD_API_KEY", "lh_secret"))).with_code(0);
        assert_eq!(answer.out, shown, "{words:?}");
    }
}

#[test]
fn the_command_can_renew_its_own_lease() {
    let site = Site::new();
    let script = format!("{} renew - <<END\n$LEASEHOLD_LEASE_ID\nEND", env!("CARGO_BIN_EXE_leasehold"));
    let answer = site.ask(&["run", "job", "--", "sh", "-c", &script]).with_code(0);
    assert_eq!(answer.out, "remaining  30s\n");
}

#[test]
fn the_commands_own_code_is_passed_on() {
    let site = Site::new();
    for (script, code) in
        [("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("kill -KILL $$", 137), ("kill -TERM $$", 143)]
    {
        site.ask(&["run", "job", "--", "sh", "-c", script]).with_code(code);
        assert!(!site.is_held("job"), "{script}");
    }
}

#[test]
fn a_command_that_cannot_start_leaves_no_lease() {
    let site = Site::new();
    std::fs::write(site.path("plain"), "no program").expect("the file is written");
    for (program, code) in [("no-such-command", 127), ("./no-such-file", 127), ("./plain", 126), ("/", 126)] {
        let answer = site.ask(&["run", "job", "--", program]).with_code(code);
        answer.says_one_sentence();
        assert!(!site.is_held("job"), "{program}");
    }
}

#[test]
fn a_held_name_does_not_start_the_command() {
    let site = Site::new();
    site.acquire(&["job", "--ttl", "1h"]);
    site.ask(&["run", "job", "--", "touch", "started"]).with_code(3).says_one_sentence();
    assert!(!site.path("started").exists());
}

/// Goal: the lease is renewed for as long as the command runs.
/// Method: a command that is told to end only after its first ttl is long over.
#[test]
fn the_lease_is_renewed_while_the_command_runs() {
    let site = Site::new();
    let script = "echo $$ > child; while ! [ -e finish ]; do sleep 0.02; done";
    let run =
        site.start(&mut site.command(&["run", "job", "--ttl", "6s", "--grace", "100ms", "--", "sh", "-c", script]));
    site.number_in("child");
    pause(Duration::from_millis(6500));
    site.ask(&["acquire", "job"]).with_code(3);
    std::fs::write(site.path("finish"), "").expect("the file is written");
    end_of(run).with_code(0);
    assert!(!site.is_held("job"));
}

/// Goal: nothing of the command runs when the lease is granted to another, although nobody can be asked
/// for a renewal and the command ignores TERM.
/// Method: this process takes the directory for itself, so that no renewal gets through, and waits in
/// line for the resource; the very moment it is granted, everything must be dead.
#[test]
fn a_stubborn_command_is_dead_before_the_lease_is_granted_again() {
    let site = Site::new();
    let running = Running::start(&site, &SHORT, STUBBORN);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let engine = loop {
            // The command line may have its moment in the directory just now.
            match leasehold::Leasehold::open(&site.url()).await {
                Ok(engine) => break engine,
                Err(leasehold::Error::Unavailable { .. }) => pause(Duration::from_millis(1)),
                Err(error) => panic!("{error}"),
            }
        };
        assert!(!running.is_dead());
        engine.acquire("job").wait(Duration::from_secs(60)).grant().await.expect("it lapses");
        assert!(running.is_dead(), "granted to another while the command still ran");
        engine.close().await.expect("it closes");
    });
    let answer = running.end().with_code(6);
    assert!(answer.err.contains("ending the command"), "{answer:?}");
}

/// Goal: an operator's revoke ends the command, TERM first, with exit code 6.
#[test]
fn a_revoked_lease_ends_the_command() {
    let site = Site::new();
    let script = "trap 'echo asked > asked; exit 0' TERM; sleep 600 & echo $! > grandchild; echo $$ > child; wait";
    // The grace is the command's to answer in, however busy the machine.
    let running = Running::start(&site, &["--ttl", "15s", "--grace", "8s"], script);
    site.ask(&["revoke", "job", "--reason", "test"]).with_code(0);
    wait_until("all of it is dead", || running.is_dead());
    running.end().with_code(6);
    assert!(site.path("asked").exists(), "it was asked before it was killed");
}

#[test]
fn a_revoked_lease_kills_a_stubborn_command() {
    let site = Site::new();
    let running = Running::start(&site, &SHORT, STUBBORN);
    site.ask(&["revoke", "job", "--reason", "test"]).with_code(0);
    wait_until("all of it is dead", || running.is_dead());
    running.end().with_code(6);
}

/// Goal: `run` killed by -9 takes the command and what it started with it.
#[test]
fn a_killed_run_takes_its_whole_group_along() {
    let site = Site::new();
    let mut running = Running::start(&site, &["--ttl", "1h"], STUBBORN);
    signal(running.pid(), Signal::KILL);
    wait_until("child and grandchild are dead", || running.is_dead());
    running.run.wait().expect("it is ours");
    assert!(site.is_held("job"), "nobody released it: it lapses by itself");
}

/// Goal: `run` that is merely stopped cannot keep the command running past the lease.
/// Method: SIGSTOP, and wait in line for the name from another process.
#[test]
fn a_stopped_run_does_not_keep_the_command_past_the_lease() {
    let site = Site::new();
    let running = Running::start(&site, &SHORT, STUBBORN);
    signal(running.pid(), Signal::STOP);
    let other = site.acquire(&["job", "--wait", "60s"]);
    assert!(running.is_dead(), "granted to another while the command still ran");
    signal(running.pid(), Signal::CONT);
    running.end().with_code(6);
    assert!(site.is_held("job"), "the other's lease is untouched");
    site.ask(&["release", text(&other, "lease_id")]).with_code(0);
}

/// Goal: no moment between the start of the command and the first look at it leaves the command without an end.
/// Method: the command itself stops `run` with its first act, several times at once, so that the moments differ.
#[test]
fn a_command_that_stops_its_run_at_once_ends_before_the_lease() {
    let script = format!("kill -STOP $PPID; {STUBBORN}");
    let sites: Vec<Site> = (0..8).map(|_| Site::new()).collect();
    let running: Vec<Running> = sites.iter().map(|site| Running::start(site, &SHORT, &script)).collect();
    for (site, running) in sites.iter().zip(running) {
        site.acquire(&["job", "--wait", "60s"]);
        assert!(running.is_dead(), "granted to another while the command still ran");
        signal(running.pid(), Signal::CONT);
        running.end().with_code(6);
    }
}

/// Goal: the longest time it may be held ends the command in time, whatever it does.
#[test]
fn the_cap_ends_the_command() {
    let site = Site::new();
    let options = [&SHORT[..], &["--max-hold", "3s"]].concat();
    let running = Running::start(&site, &options, STUBBORN);
    let other = site.acquire(&["job", "--wait", "60s"]);
    assert!(running.is_dead(), "granted to another while the command still ran");
    running.end().with_code(6);
    assert_ne!(text(&other, "token"), "");
}

/// Goal: the lease is not free while something the command started still runs.
#[test]
fn what_the_command_left_behind_is_ended_before_the_release() {
    let site = Site::new();
    let script = "(trap '' TERM; echo ready > ready; exec sleep 600) & echo $! > grandchild; \
                  while ! [ -e ready ]; do sleep 0.01; done; exit 5";
    let run = site.start(&mut site.command(&["run", "job", "--grace", "300ms", "--", "sh", "-c", script]));
    let grandchild = site.number_in("grandchild");
    let answer = end_of(run).with_code(5);
    assert!(!is_alive(grandchild));
    assert!(answer.err.contains("left processes behind"), "{answer:?}");
    assert!(!site.is_held("job"));
}

/// Goal: signals to `run` reach the whole group, and the command's own end is passed on.
#[test]
fn signals_are_passed_on_to_the_whole_group() {
    let site = Site::new();
    for (number, by) in [(15, Signal::TERM), (2, Signal::INT), (1, Signal::HUP)] {
        for file in ["child", "grandchild"] {
            let _ = std::fs::remove_file(site.path(file));
        }
        let running = Running::start(&site, &[], FORKING);
        signal(running.pid(), by);
        let (child, grandchild) = (running.child, running.grandchild);
        let answer = running.end();
        // Background jobs of a shell ignore INT: they are ended afterwards, as what was left behind.
        assert_eq!(answer.code, 128 + number, "{answer:?}");
        assert!(!is_alive(child) && !is_alive(grandchild));
        assert!(!site.is_held("job"));
    }
}

#[test]
fn a_command_that_handles_its_signal_decides_its_own_code() {
    let site = Site::new();
    let script = "trap 'exit 33' TERM; echo $$ > child; while :; do sleep 0.01; done";
    let run = site.start(&mut site.command(&["run", "job", "--", "sh", "-c", script]));
    site.number_in("child");
    signal(i32::try_from(run.id()).expect("a pid"), Signal::TERM);
    end_of(run).with_code(33);
}

/// Goal: the command inherits nothing of ours: not the guard's pipe, not the directory's files.
/// Method: the open files of a command under a lease, beside those of one without.
#[test]
fn the_command_inherits_nothing_of_ours() {
    let site = Site::new();
    let list = ["ls", "/proc/self/fd"];
    let plain = std::process::Command::new(list[0]).arg(list[1]).stdin(Stdio::null()).output().expect("ls runs");
    let answer = site.ask(&["run", "job", "--", list[0], list[1]]).with_code(0);
    assert_eq!(answer.out, String::from_utf8_lossy(&plain.stdout));
}
