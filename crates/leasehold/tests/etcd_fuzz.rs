//! Random operations: the etcd engine on a real cluster against the book, answer by answer.
//!
//! `LEASEHOLD_FUZZ_SEED` repeats a run from that trial on, `LEASEHOLD_FUZZ_OPERATIONS` makes it longer.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

use std::sync::Arc;
use std::time::Duration;

use leasehold::conformance::Fleet;
use leasehold::engine::Engine;
use leasehold::engine::etcd::{EtcdEngine, EtcdEngineOptions};
use leasehold::testkit::differential::{DifferentialCounts, DifferentialSettings, compare_with_book};
use leasehold_harness::etcd::EtcdCluster;

const OPERATIONS_PER_TRIAL: u64 = 100;
/// Most of a trial is spent waiting for something to end.
const TRIALS_AT_ONCE: usize = 8;
/// Spans through another process are known in whole seconds at first.
const FLEET_SLACK: Duration = Duration::from_millis(1_400);
const SLACK: Duration = Duration::from_millis(400);

fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("a number"))
}

async fn open(cluster: &EtcdCluster, prefix: String) -> Arc<dyn Engine> {
    let mut options = EtcdEngineOptions::from_url(&cluster.url()).unwrap();
    options.prefix = prefix;
    EtcdEngine::open(options).await.expect("it opens")
}

async fn run_trial(cluster: Arc<EtcdCluster>, seed: u64, is_fleet: bool) -> Result<DifferentialCounts, String> {
    let mut engines = Vec::new();
    for _ in 0..if is_fleet { 3 } else { 1 } {
        engines.push(open(&cluster, format!("trial {seed}/")).await);
    }
    let engine: Arc<dyn Engine> = if is_fleet { Fleet::new(engines) } else { engines.remove(0) };
    let slack = if is_fleet { FLEET_SLACK } else { SLACK };
    let settings = DifferentialSettings { seed, operations: OPERATIONS_PER_TRIAL as usize, slack, is_fleet };
    let compared = compare_with_book(engine.clone(), settings).await;
    engine.close().await.expect("closed");
    compared
}

async fn fuzz(is_fleet: bool) {
    let cluster = Arc::new(EtcdCluster::start(1));
    let first = from_environment("LEASEHOLD_FUZZ_SEED", 1);
    let trials = from_environment("LEASEHOLD_FUZZ_OPERATIONS", 800).div_ceil(OPERATIONS_PER_TRIAL);
    let mut seeds = first..first + trials;
    let (mut running, mut counts) = (tokio::task::JoinSet::new(), DifferentialCounts::default());
    loop {
        while running.len() < TRIALS_AT_ONCE
            && let Some(seed) = seeds.next()
        {
            running.spawn(run_trial(cluster.clone(), seed, is_fleet));
        }
        match running.join_next().await {
            None => break,
            Some(Err(panic)) => panic!("{panic}"),
            Some(Ok(Ok(trial))) => counts.add(&trial),
            Some(Ok(Err(what))) => panic!("fleet {is_fleet}: {what}"),
        }
    }
    println!("{counts:?} in {trials} trials, fleet {is_fleet}: no difference");
    let DifferentialCounts { operations, grants, granted_late, repeats, held, stale, ends, .. } = counts;
    assert!(operations as u64 * 3 > trials * OPERATIONS_PER_TRIAL, "too slow a machine for this test");
    // One trial alone may have none of a kind.
    if trials >= 5 {
        let least = operations / 200;
        assert!(grants > least * 15, "only {grants} grants");
        assert!([granted_late, repeats, held, stale, ends].iter().all(|count| *count >= least), "too little of a kind");
    }
}

/// Goal: the engine decides as the book does, whatever is asked in whatever order.
/// Method: random claims, renewals, releases, revokes, relabels and cancels to both; every answer, every waiter and every
/// view is compared.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_engine_decides_as_the_book_does() {
    fuzz(false).await;
}

/// Goal: so do three engines on one prefix, each asked in turn.
/// Method: the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_decides_as_the_book_does() {
    fuzz(true).await;
}
