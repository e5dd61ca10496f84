//! Races with etcd's own lock clients: one name on one cluster, ours and theirs at once, no two inside, and tokens rise
//! over all of them.
//!
//! Run by `scripts/test-clients races`: they take longer than a plain `cargo test` should.
#![cfg(feature = "etcd")]
#![allow(clippy::disallowed_methods, clippy::print_stderr, reason = "other processes live in real time")]

#[path = "support/etcd_calls.rs"]
mod etcd_calls;
#[path = "support/race.rs"]
mod race;

use std::sync::Arc;

use etcd_calls::EtcdConnection;
use leasehold::engine::Engine;
use leasehold::engine::etcd::{EtcdEngine, EtcdEngineOptions};
use leasehold_harness::etcd::EtcdCluster;
use race::{Contender, NAME, Witness, repository};

/// One of theirs: a Go mutex in the server.
async fn contend_by_go(endpoint: String, name: &'static str, witness: Witness, rounds: u64) {
    let mut etcd = EtcdConnection::new(&endpoint);
    let lease = etcd.grant_lease(120).await;
    for _ in 0..rounds {
        let (key, revision) = etcd.lock(name, lease).await;
        // The revision at which it saw that nobody is before it: what Go's clients use as a token.
        witness.enter(Some(revision)).await;
        etcd.unlock(key).await;
    }
}

/// Some of theirs: one etcdctl process for each round.
fn contend_by_etcdctl(cluster: &EtcdCluster, witness: &Witness, rounds: u64) -> Contender {
    let inside = repository().join("tests/clients/etcdctl/inside.sh");
    let script = "set -e; counter=$1; inside=$2; rounds=$3; shift 3; i=0; \
                  while [ $i -lt $rounds ]; do \"$@\" sh \"$inside\" \"$counter\"; i=$((i + 1)); done";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", script, "sh"]).arg(&witness.0).arg(inside).arg(rounds.to_string());
    let etcdctl = cluster.etcdctl_command(&["lock", "--ttl", "30", NAME]);
    command.arg(etcdctl.get_program()).args(etcdctl.get_args()).env("ETCDCTL_API", "3");
    Contender::start(command)
}

async fn open(cluster: &EtcdCluster) -> Arc<dyn Engine> {
    let options = EtcdEngineOptions::from_url(&cluster.url()).expect("a url");
    EtcdEngine::open(options).await.expect("it opens")
}

async fn race(members: usize, go_name: &'static str, with_etcdctl: bool) {
    let rounds = race::rounds();
    let cluster = EtcdCluster::start(members);
    let dir = tempfile::tempdir().expect("a place");
    let witness = Witness::new(dir.path());
    let engines = [open(&cluster).await, open(&cluster).await];
    // A process for each round is slow, and so there are fewer.
    let by_etcdctl = if with_etcdctl { (rounds / 8).max(10) } else { 0 };
    let processes = if with_etcdctl {
        (0..2).map(|_| contend_by_etcdctl(&cluster, &witness, by_etcdctl)).collect()
    } else {
        Vec::new()
    };
    let mut by_go = tokio::task::JoinSet::new();
    for worker in 0..4 {
        let endpoint = cluster.endpoints()[worker % members].clone();
        by_go.spawn(contend_by_go(endpoint, go_name, witness.clone(), rounds / 4));
    }
    let grants = race::race_ours(engines.clone(), &witness, rounds, true).await;
    while let Some(task) = by_go.join_next().await {
        task.expect("theirs are never inside with another");
    }
    race::join(processes).await;
    let expected = rounds.div_ceil(6) * 6 + rounds / 4 * 4 + by_etcdctl * 2;
    assert_eq!(witness.count(), expected, "no increment is lost");
    let left = cluster.etcdctl(&["get", "--prefix", &format!("{NAME}/"), "--keys-only"]);
    assert!(left.trim().is_empty(), "left behind: {left}");
    for engine in engines {
        engine.close().await.expect("closed");
    }
    eprintln!("{} rounds on {members} member(s), no overlap; {grants:?}", witness.count());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test-clients races"]
async fn go_mutexes_and_ours_exclude_each_other() {
    race(1, NAME, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test-clients races"]
async fn etcdctl_and_go_mutexes_and_ours_exclude_each_other() {
    race(1, NAME, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test-clients races"]
async fn three_members_exclude_as_one_does() {
    race(3, NAME, true).await;
}

/// Goal: the witness sees an overlap when there is one.
/// Method: planted: Go's mutexes lock another name, so that nobody excludes anybody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test-clients races"]
#[should_panic(expected = "never inside with another")]
async fn another_name_excludes_nobody_and_is_caught() {
    race(1, "another", false).await;
}
