//! `leasehold cron` under kills and stops: machines are processes of the real binary, the judge reads the ledger, a file that the
//! command appends to, and what the machines said.
//!
//! `LEASEHOLD_CRON_SECONDS` is how long the machines are disturbed (default 10), `LEASEHOLD_CRON_SEED` repeats a run.

#![allow(clippy::print_stdout, reason = "the long checks say how much they looked at")]

#[path = "../common/mod.rs"]
mod common;
mod judge;
mod machines;

use std::process::Command;
use std::time::Duration;

use common::{Site, now, pause, wait_until};
use judge::{judge, ledger_rows};
use leasehold::recipe::Store;
use leasehold::recipe::store::migration_sql;
use leasehold_harness::postgres::Cluster;
use machines::{Fleet, run_count};
use rustix::process::Signal;

/// xorshift64*: the same numbers for the same seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % bound
    }
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Kills and stops machines at random, then lets them settle. The judge finds nothing.
fn disturb(url: &str, options: &[&str], seconds: u64) {
    let site = Site::new();
    #[allow(clippy::disallowed_methods, reason = "a seed of its own for each run")]
    let entropy = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_nanos();
    let seed = number("LEASEHOLD_CRON_SEED", u64::try_from(entropy & 0xffff_ffff).expect("32 bits") | 1);
    println!("LEASEHOLD_CRON_SEED={seed}");
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut fleet = Fleet::new(&site, url, options);
    for _ in 0..4 {
        fleet.start();
    }
    let end = now() + Duration::from_secs(number("LEASEHOLD_CRON_SECONDS", seconds));
    while now() < end {
        pause(Duration::from_millis(200 + dice.below(900)));
        let victim = usize::try_from(dice.below(4)).expect("small");
        match dice.below(5) {
            0 | 1 => fleet.kill(victim),
            2 => fleet.kill_at_work(),
            3 => fleet.stop(victim),
            _ => fleet.wake(),
        }
        fleet.fill(4);
    }
    fleet.wake();
    let before = run_count(&site);
    wait_until("the fleet works again", || run_count(&site) >= before + 3);
    let said = fleet.end();
    let rows = ledger_rows(&site, url);
    let verdict = judge(&site, &rows, &said, &fleet.killed);
    let (kills, stops) = (fleet.killed.len(), fleet.stops);
    println!("{} ticks run, {:?}, {kills} kills, {stops} stops", verdict.ran, verdict.states);
    assert_eq!(verdict.violations, Vec::<String>::new(), "seed {seed}: {rows:#?}");
    assert!(verdict.ran > 0 && kills + stops > 0);
}

/// Goal: on PostgreSQL no tick is run twice, each is in the ledger, and a lost one is told.
#[test]
fn kills_and_stops_on_postgres() {
    let cluster = Cluster::start(&[]);
    disturb(&cluster.url("postgres"), &["--catch-up", "last"], 10);
}

/// Goal: the same where every tick waits for the one before, and each missed one is run.
#[test]
fn kills_and_stops_on_postgres_in_line() {
    let cluster = Cluster::start(&[]);
    disturb(&cluster.url("postgres"), &["--catch-up", "all", "--overlap", "wait"], 8);
}

/// Goal: the same on the embedded engine and SQLite.
#[test]
fn kills_and_stops_on_sqlite() {
    let site = Site::new();
    disturb(&site.url(), &["--catch-up", "last"], 6);
}

/// A database whose ledger has a function replaced by this text; none: the true text.
fn broken_ledger(cluster: &Cluster, bug: Option<&str>) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let database = cluster.database().await;
        let url = cluster.url(&database);
        Store::open(&url).await.expect("a store").close().await;
        if let Some(bug) = bug {
            cluster.execute(&database, bug).await;
        }
        url
    })
}

/// The text of a function of the store, with some words changed.
fn with_bug(function: &str, changes: &[(&str, &str)]) -> String {
    let all = migration_sql();
    let start = all.find(&format!("CREATE FUNCTION leasehold.{function}(")).expect("it is in the schema");
    let end = start + all[start..].find("END $$;").expect("it has an end") + "END $$;".len();
    let mut text = all[start..end].replacen("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION", 1);
    for (good, bad) in changes {
        assert!(text.contains(good), "{function} has no {good:?} to break");
        text = text.replace(good, bad);
    }
    text
}

/// Machines stand in line for the same tick, and each begins it when it is their turn. What the judge finds.
fn begin_in_line(bug: Option<&str>) -> Vec<String> {
    let cluster = Cluster::start(&[]);
    let (site, url) = (Site::new(), broken_ledger(&cluster, bug));
    let mut fleet = Fleet::new(&site, &url, &["--overlap", "wait"]);
    for _ in 0..3 {
        fleet.start();
    }
    wait_until("some ticks have run", || run_count(&site) >= 8);
    let said = fleet.end();
    judge(&site, &ledger_rows(&site, &url), &said, &fleet.killed).violations
}

/// Planted: begin without comparing the tick.
#[test]
fn a_begin_without_the_tick_is_caught() {
    assert_eq!(begin_in_line(None), Vec::<String>::new());
    let compare = "  WHERE x.token <= excluded.token AND x.last_tick < excluded.last_tick AND (seen = '-infinity' OR x.last_tick = seen);";
    let row = "VALUES (n, t, t, tok, 'running', who);";
    let again =
        "VALUES (n, t, t, tok, 'running', who) ON CONFLICT (name, tick) DO UPDATE SET token = tok, state = 'running';";
    let found = begin_in_line(Some(&with_bug("cron_begin", &[(compare, ";"), (row, again)])));
    assert!(found.iter().any(|found| found.contains("was run")), "{found:?}");
}

/// A machine sleeps through its lease; another goes on; the first wakes up and finishes its run. What the judge finds.
fn finish_late(bug: Option<&str>) -> Vec<String> {
    let cluster = Cluster::start(&[]);
    let (site, url) = (Site::new(), broken_ledger(&cluster, bug));
    let mut fleet = Fleet::new(&site, &url, &[]);
    fleet.start_with("echo $$ > pid.new; mv pid.new pid; sleep 60");
    site.number_in("pid");
    fleet.stop(0);
    fleet.start();
    wait_until("another machine says what was lost", || fleet.said(1).contains("was lost"));
    fleet.wake();
    wait_until("the first machine has finished its run", || {
        fleet.said(0).contains("the run was cut off") || fleet.said(0).contains("is not finished in the ledger")
    });
    let said = fleet.end();
    judge(&site, &ledger_rows(&site, &url), &said, &fleet.killed).violations
}

/// Planted: finish without the token.
#[test]
fn a_finish_without_the_token_is_caught() {
    assert_eq!(finish_late(None), Vec::<String>::new());
    let found = finish_late(Some(&with_bug("cron_finish", &[(" AND token = tok AND state = 'running'", "")])));
    assert!(found.iter().any(|found| found.contains("was told to be lost")), "{found:?}");
}

/// Goal: a store that is away for a while is told, and no tick is run twice when it is back.
#[test]
fn a_store_that_is_away_is_told_and_waited_for() {
    let cluster = Cluster::start(&[]);
    let (site, url) = (Site::new(), cluster.url("postgres"));
    let mut fleet = Fleet::new(&site, &url, &[]);
    for _ in 0..2 {
        fleet.start();
    }
    wait_until("ticks have run", || run_count(&site) >= 2);
    cluster.crash();
    wait_until("both say that it is away", || (0..2).all(|at| fleet.said(at).contains("the schedule goes on")));
    cluster.start_server();
    let before = run_count(&site);
    wait_until("ticks run again", || run_count(&site) >= before + 3);
    // Away for good while a command is at work: the run cannot be finished, and a stop is heeded all the same.
    let at_work = fleet.count();
    fleet.start_with("echo $LEASEHOLD_TICK >> runs; touch at-work; sleep 1");
    wait_until("the third machine is at work", || site.path("at-work").exists());
    cluster.crash();
    wait_until("it says that the store is away", || fleet.said(at_work).contains("the schedule goes on"));
    let said = fleet.end();
    cluster.start_server();
    let verdict = judge(&site, &ledger_rows(&site, &url), &said, &fleet.killed);
    assert_eq!(verdict.violations, Vec::<String>::new());
}

/// A signal to a process that may be gone.
fn send(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// The binary beside a site, without its engine.
fn leasehold(site: &Site, arguments: &[&str]) -> Command {
    let mut command = common::binary();
    command.current_dir(site.path("")).args(arguments);
    command
}
