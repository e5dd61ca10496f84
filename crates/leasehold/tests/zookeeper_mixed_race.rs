//! Ours, kazoo's and Curator's clients on one name at once, in both layouts: ours exclude each of them, and nobody hangs.
//!
//! Run by `scripts/test-clients races`, which installs the clients: it is not asked for by a plain `cargo test`.
#![allow(clippy::disallowed_methods, clippy::print_stderr, reason = "other processes live in real time")]

#[path = "support/race.rs"]
#[allow(dead_code, reason = "this race has two witnesses, and workers of its own")]
mod race;

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use leasehold::engine::zookeeper::{ZookeeperEngine, ZookeeperEngineOptions};
use leasehold::engine::{Claim, Engine, Want};
use leasehold::{Error, Refusal};
use leasehold_harness::zookeeper::ZookeeperEnsemble;
use race::{Contender, NAME, Witness, from_env, repository};

const THREADS: u64 = 2;
/// Longer than the whole race of a crowd on a busy machine: whoever waits so long hangs.
const PATIENCE: Duration = Duration::from_secs(120);

async fn open(ensemble: &ZookeeperEnsemble, query: &str) -> Arc<ZookeeperEngine> {
    let url = format!("{}{query}", ensemble.url("/locks"));
    let mut options = ZookeeperEngineOptions::from_url(&url).expect("a url");
    // Without the net of looks by time: what the watches miss would hang.
    options.look_every = Duration::from_secs(3600);
    ZookeeperEngine::open(options).await.expect("it opens")
}

/// One of ours. Inside, it is alone before both witnesses: kazoo's and Curator's. Those two do not see each other.
async fn contend(engines: [Arc<ZookeeperEngine>; 2], witnesses: [Witness; 2], rounds: u64, waits: bool, minded: bool) {
    let mut done = 0;
    while done < rounds {
        let wait = if waits { PATIENCE } else { Duration::ZERO };
        let claim = Claim { wait, ..Claim::new(vec![Want::exclusive(NAME)], Duration::from_secs(30), "ours") };
        match engines[0].acquire(claim).await {
            Ok(grant) => {
                let token = grant.token.expect("a token").get();
                tokio::join!(witnesses[0].enter(Some(token)), witnesses[1].enter(Some(token)));
                let other = minded && done % 2 == 1;
                assert!(engines[usize::from(other)].release(&grant.lease_id).await.expect("released"));
                done += 1;
            }
            Err(Error::Refused(Refusal::Held { .. })) if !waits => tokio::time::sleep(Duration::from_millis(2)).await,
            Err(error) => panic!("ours: {error:?}"),
        }
    }
}

fn start(mut command: Command, ensemble: &ZookeeperEnsemble, witness: &Witness, rounds: u64) -> Contender {
    command.arg(ensemble.hosts().join(",")).arg(format!("/locks/{NAME}")).arg(&witness.0);
    command.arg(rounds.to_string()).arg(THREADS.to_string());
    Contender::start(command)
}

async fn race_all(servers: usize, query: &str) {
    let rounds = race::rounds();
    let ensemble = ZookeeperEnsemble::start(servers);
    let dirs = [tempfile::tempdir().expect("a place"), tempfile::tempdir().expect("a place")];
    let witnesses = [Witness::new(dirs[0].path()), Witness::new(dirs[1].path())];
    let engines = [open(&ensemble, query).await, open(&ensemble, query).await];
    let mut kazoo = Command::new(from_env("LEASEHOLD_PYTHON"));
    kazoo.arg(repository().join("tests/clients/python/contender_kazoo.py"));
    let mut curator = Command::new("java");
    curator.args(["-XX:+UseSerialGC", "-cp", &from_env("LEASEHOLD_CURATOR"), "CuratorContender"]);
    let each = rounds / THREADS;
    let foreign = vec![start(kazoo, &ensemble, &witnesses[0], each), start(curator, &ensemble, &witnesses[1], each)];
    let (minded, mut ours) = (query.contains("minded"), tokio::task::JoinSet::new());
    for worker in 0..6 {
        let mut engines = engines.clone();
        engines.rotate_left(worker % 2);
        ours.spawn(contend(engines, witnesses.clone(), rounds.div_ceil(6), worker % 3 != 2, minded));
    }
    while let Some(task) = ours.join_next().await {
        task.expect("ours are never inside with another, and never wait for ever");
    }
    race::join(foreign).await;
    for witness in &witnesses {
        assert_eq!(witness.count(), rounds.div_ceil(6) * 6 + each * THREADS, "no increment is lost");
    }
    assert_eq!(engines[0].inspect(NAME).await.expect("a look"), None, "nothing is left behind");
    eprintln!("{} rounds, {query}, {servers} server(s), no overlap with ours", rounds * 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "wants kazoo and Curator: scripts/test-clients races"]
async fn ours_exclude_kazoo_and_curator_at_once() {
    race_all(1, "?layout=both&lease=minded").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "wants kazoo and Curator: scripts/test-clients races"]
async fn our_sessions_exclude_kazoo_and_curator_at_once() {
    race_all(1, "?layout=both&lease=session").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "wants kazoo and Curator: scripts/test-clients races"]
async fn ours_exclude_kazoo_and_curator_at_once_on_three_servers() {
    race_all(3, "?layout=both&lease=minded").await;
}
