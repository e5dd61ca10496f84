//! Races with ZooKeeper's lock clients: one name on one ensemble, ours and theirs at once, no two inside, and tokens rise.
//!
//! Run by `scripts/test-clients races`, which installs the clients: they are not asked for by a plain `cargo test`.
#![cfg(feature = "zookeeper")]
#![allow(clippy::disallowed_methods, clippy::print_stderr, reason = "other processes live in real time")]

#[path = "support/race.rs"]
mod race;

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use leasehold::Error;
use leasehold::engine::zookeeper::{ZookeeperEngine, ZookeeperEngineOptions};
use leasehold::engine::{Claim, Engine, Want};
use leasehold_harness::zookeeper::ZookeeperEnsemble;
use race::{Contender, NAME, Witness, from_env, repository};

/// Each process has so many threads.
const THREADS: u64 = 2;

fn kazoo() -> Command {
    let mut command = Command::new(from_env("LEASEHOLD_PYTHON"));
    command.arg(repository().join("tests/clients/python/contender_kazoo.py"));
    command
}

fn curator() -> Command {
    let mut command = Command::new("java");
    command.args(["-XX:+UseSerialGC", "-cp", &from_env("LEASEHOLD_CURATOR"), "CuratorContender"]);
    command
}

fn start(mut command: Command, ensemble: &ZookeeperEnsemble, witness: &Witness, rounds: u64) -> Contender {
    command.arg(ensemble.hosts().join(",")).arg(format!("/locks/{NAME}")).arg(&witness.0);
    command.arg(rounds.to_string()).arg(THREADS.to_string());
    Contender::start(command)
}

async fn open(ensemble: &ZookeeperEnsemble, query: &str) -> Arc<dyn Engine> {
    let url = format!("{}{query}", ensemble.url("/locks"));
    let options = ZookeeperEngineOptions::from_url(&url).expect("a url");
    ZookeeperEngine::open(options).await.expect("it opens")
}

/// Ours, and for each of theirs a process, so many rounds each. A minded lease is released by any server; a session's by its own.
async fn race(servers: usize, query: &str, theirs: &[fn() -> Command]) {
    let rounds = race::rounds();
    let ensemble = ZookeeperEnsemble::start(servers);
    let dir = tempfile::tempdir().expect("a place");
    let witness = Witness::new(dir.path());
    let engines = [open(&ensemble, query).await, open(&ensemble, query).await];
    let each = rounds / (THREADS * u64::try_from(theirs.len()).expect("few"));
    let foreign = theirs.iter().map(|command| start(command(), &ensemble, &witness, each)).collect();
    let grants = race::race_ours(engines.clone(), &witness, rounds, query.contains("minded")).await;
    race::join(foreign).await;
    let expected = rounds.div_ceil(6) * 6 + each * THREADS * u64::try_from(theirs.len()).expect("few");
    assert_eq!(witness.count(), expected, "no increment is lost");
    assert_eq!(engines[0].inspect(NAME).await.expect("a look"), None, "nothing is left behind");
    for engine in engines {
        engine.close().await.expect("closed");
    }
    eprintln!("{} rounds, {query}, {servers} server(s), no overlap; {grants:?}", witness.count());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "wants Curator: scripts/test-clients races"]
async fn curator_and_ours_exclude_each_other() {
    race(1, "?layout=curator&lease=minded", &[curator]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "wants Curator: scripts/test-clients races"]
async fn curator_and_our_sessions_exclude_each_other() {
    race(1, "?layout=curator&lease=session", &[curator]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "wants kazoo: scripts/test-clients races"]
async fn kazoo_and_ours_exclude_each_other() {
    race(1, "?layout=kazoo&lease=minded", &[kazoo]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "wants kazoo: scripts/test-clients races"]
async fn kazoo_and_our_sessions_exclude_each_other() {
    race(1, "?layout=kazoo&lease=session", &[kazoo]).await;
}

/// Goal: ours in both layouts exclude the clients of either. One kind in each race: among themselves they do not exclude
/// each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "wants kazoo: scripts/test-clients races"]
async fn both_layouts_exclude_kazoo_on_three_servers() {
    race(3, "?layout=both&lease=minded", &[kazoo]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "wants Curator: scripts/test-clients races"]
async fn both_layouts_exclude_curator_on_three_servers() {
    race(3, "?layout=both&lease=minded", &[curator]).await;
}

/// Goal: ours never enter where a client would not see them: the directory is refused, with the option that helps.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "wants kazoo: scripts/test-clients races"]
async fn a_directory_of_kazoo_is_refused_in_the_layout_of_curator() {
    let ensemble = ZookeeperEnsemble::start(1);
    let dir = tempfile::tempdir().expect("a place");
    let witness = Witness::new(dir.path());
    let engine = open(&ensemble, "?layout=curator&lease=minded").await;
    let mut foreign = start(kazoo(), &ensemble, &witness, 2_000);
    let mut refused = 0;
    while foreign.0.try_wait().expect("it is ours").is_none() {
        let claim = Claim::new(vec![Want::exclusive(NAME)], Duration::from_secs(5), "ours");
        match engine.acquire(claim).await {
            // Between two rounds of kazoo there may be nobody.
            Ok(grant) => drop(engine.release(&grant.lease_id).await.expect("released")),
            Err(Error::Invalid(sentence)) => {
                assert!(sentence.contains("layout=both"), "{sentence}");
                refused += 1;
            }
            Err(Error::Refused(_)) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
    assert!(refused > 0, "the directory of kazoo was never refused");
    eprintln!("refused {refused} times");
}

/// Goal: the witness sees an overlap when there is one.
/// Method: planted: kazoo in a directory of another name, so that nobody excludes anybody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "wants kazoo: scripts/test-clients races"]
#[should_panic(expected = "never inside with another")]
async fn another_directory_excludes_nobody_and_is_caught() {
    let ensemble = ZookeeperEnsemble::start(1);
    let dir = tempfile::tempdir().expect("a place");
    let witness = Witness::new(dir.path());
    let engines = [open(&ensemble, "?lease=minded").await, open(&ensemble, "?lease=minded").await];
    let mut command = kazoo();
    command.arg(ensemble.hosts().join(",")).arg("/locks/another").arg(&witness.0).args(["2000", "2"]);
    let foreign = Contender::start(command);
    race::race_ours(engines, &witness, 2_000, true).await;
    race::join(vec![foreign]).await;
}
