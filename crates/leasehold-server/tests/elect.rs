//! `leasehold elect`: of several processes one runs the command, and another takes over.

mod common;

use std::process::Child;
use std::time::Duration;

use common::{Answer, Site, end_of, is_alive, pause, signal, wait_until};
use rustix::process::Signal;

/// Times that leave a busy machine room.
const SHORT: [&str; 4] = ["--ttl", "5s", "--grace", "500ms"];

/// A leader that says who it is, by a file with its pid, and works until it is ended.
fn work(name: &str) -> String {
    format!("echo $$ > {name}.tmp; mv {name}.tmp {name}; while :; do sleep 0.05; done")
}

/// A candidate beside the test.
struct Candidate {
    name: &'static str,
    process: Child,
}

impl Candidate {
    fn stand(site: &Site, name: &'static str, options: &[&str]) -> Self {
        let script = work(name);
        let words = [&["elect", "e", "--value", name], options, &["--", "sh", "-c", &script]].concat();
        Self { name, process: site.start(&mut site.command(&words)) }
    }

    /// The pid of its command, once it leads.
    fn leading(&self, site: &Site) -> i32 {
        site.number_in(self.name)
    }

    fn leads(&self, site: &Site) -> bool {
        site.path(self.name).exists()
    }

    fn send(&self, by: Signal) {
        signal(i32::try_from(self.process.id()).expect("a pid"), by);
    }

    #[track_caller]
    fn end(self) -> Answer {
        end_of(self.process)
    }
}

/// Who leads, by what everybody can see.
fn published(site: &Site) -> Option<String> {
    let seen = site.ask(&["inspect", "--json", "election/e"]).with_code(0).json();
    seen["holders"][0]["holder"].as_str().map(str::to_owned)
}

#[test]
fn the_command_finds_its_term_in_the_environment() {
    let site = Site::new();
    let script = "echo $LEASEHOLD_RESOURCE; echo $LEASEHOLD_TOKEN; echo $LEASEHOLD_MARK; echo \"$LEASEHOLD_FENCE\"";
    let answer = site.ask(&["elect", "e", "--", "sh", "-c", script]).with_code(0);
    let lines: Vec<&str> = answer.out.lines().collect();
    let [resource, token, mark, fence] = lines[..] else { panic!("{answer:?}") };
    assert_eq!(resource, "election/e");
    assert!(token.parse::<u64>().is_ok_and(|token| token > 0), "{token}");
    assert_eq!(fence, format!("{token}:{mark}\telection/e"));
    assert_eq!(answer.err, "");
    assert!(!site.is_held("election/e"), "it resigned");
}

#[test]
fn the_commands_own_code_is_passed_on() {
    let site = Site::new();
    for (script, code) in [("exit 0", 0), ("exit 6", 6), ("exit 33", 33), ("kill -KILL $$", 137)] {
        site.ask(&["elect", "e", "--again", "--", "sh", "-c", script]).with_code(code);
        assert!(!site.is_held("election/e"), "{script}");
    }
    site.ask(&["elect", "e", "--", "no-such-command"]).with_code(127).says_one_sentence();
    assert!(!site.is_held("election/e"));
}

#[test]
fn bad_usage_is_one_sentence() {
    let site = Site::new();
    site.ask(&["elect", "e", "--ttl", "6s", "--", "true"]).with_code(2).says_one_sentence();
    site.ask(&["elect", "", "--", "true"]).with_code(2).says_one_sentence();
    let long = "x".repeat(300);
    site.ask(&["elect", "e", "--value", &long, "--", "true"]).with_code(2).says_one_sentence();
    let away = ["elect", "e", "--url", "leasehold://127.0.0.1:1", "--", "true"];
    site.ask(&away).with_code(4).says_one_sentence();
}

/// Goal: one leads and is published; killed by -9, its command dies with it, and another leads within a term.
#[test]
fn another_leads_when_the_leader_is_killed() {
    let site = Site::new();
    let mut ada = Candidate::stand(&site, "ada", &SHORT);
    let child = ada.leading(&site);
    let bob = Candidate::stand(&site, "bob", &SHORT);
    pause(Duration::from_secs(1));
    assert!(!bob.leads(&site));
    assert_eq!(published(&site).as_deref(), Some("ada"));
    ada.send(Signal::KILL);
    wait_until("ada's command is dead", || !is_alive(child));
    assert!(!bob.leads(&site), "ada's term is not over");
    wait_until("bob leads", || bob.leads(&site));
    assert_eq!(published(&site).as_deref(), Some("bob"));
    ada.process.wait().expect("it is ours");
    bob.send(Signal::TERM);
    bob.end().with_code(143);
    assert!(!site.is_held("election/e"));
}

/// Goal: SIGTERM is passed on to the command, the leader resigns, and the next leads long before the term would lapse.
#[test]
fn sigterm_resigns_and_the_next_leads() {
    let site = Site::new();
    let ada = Candidate::stand(&site, "ada", &["--ttl", "1h"]);
    let child = ada.leading(&site);
    let bob = Candidate::stand(&site, "bob", &["--ttl", "1h", "--again"]);
    ada.send(Signal::TERM);
    ada.end().with_code(143);
    assert!(!is_alive(child));
    wait_until("bob leads", || bob.leads(&site));
    bob.send(Signal::INT);
    bob.end().with_code(130);
    assert!(!site.is_held("election/e"));
}

/// Goal: a candidate that only stands in line ends at a signal, and holds nothing.
#[test]
fn a_candidate_in_line_can_be_ended() {
    let site = Site::new();
    site.acquire(&["election/e", "--ttl", "1h", "--holder", "ada"]);
    let bob = Candidate::stand(&site, "bob", &SHORT);
    pause(Duration::from_millis(500));
    bob.send(Signal::TERM);
    let answer = bob.end().with_code(143);
    assert!(answer.err.contains("nothing is held"), "{answer:?}");
    assert_eq!(published(&site).as_deref(), Some("ada"));
}

/// Goal: a term that is lost ends the command, with code 6; with --again it stands in line once more.
/// Method: an operator's revoke, twice for the second one.
#[test]
fn a_lost_term_ends_the_command_or_campaigns_again() {
    let site = Site::new();
    let ada = Candidate::stand(&site, "ada", &SHORT);
    let child = ada.leading(&site);
    site.ask(&["revoke", "election/e", "--reason", "a drill"]).with_code(0);
    ada.end().with_code(6);
    assert!(!is_alive(child));

    let options = [&SHORT[..], &["--again"]].concat();
    let bob = Candidate::stand(&site, "bob", &options);
    let first = bob.leading(&site);
    std::fs::remove_file(site.path("bob")).expect("it is there");
    site.ask(&["revoke", "election/e", "--reason", "a drill"]).with_code(0);
    wait_until("the first command is dead", || !is_alive(first));
    let second = bob.leading(&site);
    assert_ne!(first, second);
    bob.send(Signal::TERM);
    let answer = bob.end().with_code(143);
    assert!(answer.err.contains("campaigning again"), "{answer:?}");
}

/// Goal: a stopped leader cannot keep its command running into another's term.
#[test]
fn a_stopped_leader_is_dead_before_another_leads() {
    let site = Site::new();
    let ada = Candidate::stand(&site, "ada", &SHORT);
    let child = ada.leading(&site);
    let bob = Candidate::stand(&site, "bob", &SHORT);
    ada.send(Signal::STOP);
    wait_until("bob leads", || bob.leads(&site));
    assert!(!is_alive(child), "bob leads while ada's command runs");
    ada.send(Signal::CONT);
    ada.end().with_code(6);
    bob.send(Signal::TERM);
    bob.end().with_code(143);
}
