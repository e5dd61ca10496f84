//! kill -9 of the server at random moments during rehearsals: whatever it had said yes to is there afterwards.
//!
//! The rehearsal is the checker: it asks again for answers that were lost, and compares what its buyers were told with
//! the event's own report, audit and invariants. Here the server is killed and started again beside it.
//!
//! `LEASEHOLD_REHEARSE_KILLS` says how often (3); `scripts/rehearse-kill` does it 50 times and more.

mod common;

use std::process::{Child, Stdio};
use std::time::Duration;

use common::server::Server;
use common::{Answer, PATIENCE, Site, now, pause, text};
use rustix::process::Signal;
use serde_json::Value;

/// Buyers of one rehearsal, and how long they take to arrive. A server lives for up to two seconds.
const BUYERS: &str = "250";
const OVER: &str = "12s";
const LONGEST_LIFE_MS: u64 = 2_000;

/// A server that comes back where it was.
struct Phoenix<'a> {
    site: &'a Site,
    ports: [String; 2],
    server: Option<Server>,
    kills: u64,
    chance: u64,
}

fn free_port() -> String {
    format!("127.0.0.1:{}", leasehold_harness::free_port())
}

impl<'a> Phoenix<'a> {
    fn new(site: &'a Site, seed: u64) -> Self {
        let mut phoenix = Self { site, ports: [free_port(), free_port()], server: None, kills: 0, chance: seed };
        phoenix.rise();
        phoenix
    }

    fn rise(&mut self) {
        let mut command = self.site.command(&["serve", "--http", &self.ports[0], "--resp", &self.ports[1]]);
        command.env("LEASEHOLD_DATA", self.site.path("data")).stdout(Stdio::null());
        command.stderr(std::fs::File::create(self.site.path("stderr")).expect("a file for stderr"));
        self.server = Some(Server::spawn(self.site, &mut command));
    }

    fn server(&self) -> &Server {
        self.server.as_ref().expect("it runs")
    }

    /// A number below `end`, from the seed.
    fn below(&mut self, end: u64) -> u64 {
        self.chance = self.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.chance >> 33) % end
    }

    /// Lets it live for a random while, kills it, and starts it again. Says whether it did: not when nobody needs it.
    fn die_and_rise(&mut self, needed: impl Fn() -> bool) -> bool {
        let end = now() + Duration::from_millis(50 + self.below(LONGEST_LIFE_MS));
        while now() < end {
            if !needed() {
                return false;
            }
            pause(Duration::from_millis(5));
        }
        let server = self.server.take().expect("it runs");
        server.signal(Signal::KILL);
        server.end();
        self.kills += 1;
        self.rise();
        true
    }

    fn get(&self, path: &str) -> String {
        let (status, answer) = self.server().ask("GET", path, None, "");
        assert_eq!(status, 200, "{path}: {answer}");
        answer.split_once("\r\n\r\n").expect("a body").1.to_owned()
    }
}

fn rehearsal(site: &Site, url: &str, seed: u64) -> Child {
    let seed = seed.to_string();
    let mut command = site.command(&[
        "rehearse", "--http", url, "--buyers", BUYERS, "--seats", "400", "--over", OVER, "--think", "300ms", "--ttl",
        "3s", "--pay", "2s", "--late", "0.1", "--seed", &seed, "--json",
    ]);
    command.env_remove("LEASEHOLD_API_KEY").env_remove("LEASEHOLD_PROVIDER_SECRET");
    site.start(&mut command)
}

/// Waits for the end of a rehearsal, which has patience of its own.
fn end_of(mut child: Child) -> Answer {
    let end = now() + PATIENCE * 6;
    while child.try_wait().expect("it is ours").is_none() {
        assert!(now() < end, "the rehearsal does not end");
        pause(Duration::from_millis(20));
    }
    common::end_of(child)
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// Goal: every confirmed order is there, no seat is sold twice, holds end on time and not before, the invariants hold:
/// after any kill -9.
#[test]
fn killed_servers_keep_their_word() {
    let kills = number("LEASEHOLD_REHEARSE_KILLS", 3);
    let seed = number("LEASEHOLD_SEED", u64::from(std::process::id()));
    println!("{kills} kills, LEASEHOLD_SEED={seed}");
    let site = Site::new();
    let mut phoenix = Phoenix::new(&site, seed);
    let url = format!("http://{}", phoenix.ports[0]);
    let mut sums = [0_u64; 5];
    for round in 0.. {
        let child = std::cell::RefCell::new(Some(rehearsal(&site, &url, seed + round)));
        let runs = || child.borrow_mut().as_mut().is_some_and(|child| child.try_wait().expect("it is ours").is_none());
        while phoenix.kills < kills && phoenix.die_and_rise(runs) {}
        let answer = end_of(child.into_inner().expect("it is ours"));
        assert_eq!(answer.code, 0, "round {round}: {answer:?}\nserver: {}", phoenix.server().said());
        let report = answer.json();
        assert_eq!(report["proof"]["ok"], true, "{report}");
        for (sum, field) in sums.iter_mut().zip(["holds", "refusals", "sold", "abandoned", "lost_answers"]) {
            *sum += report[field].as_u64().expect("a count");
        }
        once_more(&mut phoenix, &report);
        if phoenix.kills >= kills {
            break;
        }
    }
    let [holds, refusals, sold, abandoned, lost] = sums;
    println!(
        "{} kills: {holds} holds, {refusals} refusals, {sold} orders, {abandoned} abandoned, {lost} answers lost",
        phoenix.kills
    );
    assert!(holds > 0 && sold > 0 && refusals > 0, "an empty run proves nothing");
    assert!(lost > 0, "no kill hit anybody: nothing was proven");
}

/// Kills the server when all is quiet: what the rehearsal had proven is there also then.
fn once_more(phoenix: &mut Phoenix<'_>, report: &Value) {
    phoenix.die_and_rise(|| true);
    let event = text(report, "event_id").to_owned();
    let lines = phoenix.get(&format!("/v1/events/{event}/report?format=csv"));
    let orders: std::collections::BTreeSet<&str> =
        lines.lines().skip(1).filter_map(|line| line.split(',').next()).collect();
    assert_eq!(orders.len() as u64, report["proof"]["confirmed_orders"].as_u64().expect("a count"), "{report}");
    let invariants: Value =
        serde_json::from_str(&phoenix.get(&format!("/v1/events/{event}/invariants"))).expect("JSON");
    assert_eq!(invariants["ok"], true, "{invariants}");
}
