//! Races with lock clients that nobody here wrote: one name on one Redis, ours and theirs at once, and no two inside.
//!
//! Run by `scripts/test-clients races`, which installs the clients: they are not asked for by a plain `cargo test`.
#![cfg(feature = "redis")]
#![allow(clippy::disallowed_methods, clippy::print_stderr, reason = "other processes live in real time")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

use leasehold::engine::redis::{RedisEngine, RedisOptions};
use leasehold::engine::{Claim, Engine, Want};
use leasehold::{Error, Refusal};
use leasehold_harness::redis::{DURABLE, RedisServer};

const NAME: &str = "race";

/// The witness: a number in a file, and a file that must not be there twice.
#[derive(Clone)]
struct Witness(PathBuf);

impl Witness {
    fn new(dir: &Path) -> Self {
        let counter = dir.join("counter");
        std::fs::write(&counter, "0").expect("a file");
        Self(counter)
    }

    /// What everybody does inside.
    async fn enter(&self) {
        let inside = self.0.with_extension("inside");
        let made = std::fs::OpenOptions::new().write(true).create_new(true).open(&inside);
        made.expect("nobody else is inside");
        let number = self.count();
        tokio::time::sleep(Duration::from_micros(500)).await;
        std::fs::write(&self.0, (number + 1).to_string()).expect("written");
        std::fs::remove_file(&inside).expect("removed");
    }

    fn count(&self) -> u64 {
        std::fs::read_to_string(&self.0).expect("read").parse().expect("a number")
    }
}

/// One of ours, in order of arrival or by trying again and again.
async fn contend(engine: Arc<RedisEngine>, witness: Witness, rounds: u64, waits: bool) {
    let mut done = 0;
    while done < rounds {
        let wait = if waits { Duration::from_secs(60) } else { Duration::ZERO };
        let claim = Claim { wait, ..Claim::new(vec![Want::exclusive(NAME)], Duration::from_secs(60), "ours") };
        match engine.acquire(claim).await {
            Ok(grant) => {
                witness.enter().await;
                assert!(engine.release(&grant.lease_id).await.expect("released"));
                done += 1;
            }
            Err(Error::Refused(Refusal::Held { .. })) => tokio::time::sleep(Duration::from_millis(2)).await,
            Err(error) => panic!("{error:?}"),
        }
    }
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository")
}

/// A program of scripts/test-clients.
fn from_env(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is set by scripts/test-clients races"))
}

struct Contender(Child);

impl Drop for Contender {
    fn drop(&mut self) {
        let _ = self.0.kill();
    }
}

fn start(mut command: Command, server: &RedisServer, witness: &Witness, rounds: u64) -> Contender {
    command.arg(server.port().to_string()).arg(NAME).arg(&witness.0).arg(rounds.to_string());
    Contender(command.spawn().expect("the client runs"))
}

/// Ours and theirs, so many rounds each: two of ours that wait, two that try, two of theirs.
async fn race(query: &str, theirs: impl Fn() -> Command) {
    let rounds: u64 = std::env::var("LEASEHOLD_RACE_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(2_000);
    let server = RedisServer::start(DURABLE);
    // `always` would make this a race of the disk.
    server.command(&["CONFIG", "SET", "appendfsync", "no"]);
    let dir = tempfile::tempdir().expect("a place");
    let witness = Witness::new(dir.path());
    let mut foreign: Vec<Contender> = (0..2).map(|_| start(theirs(), &server, &witness, rounds / 2)).collect();
    let url = format!("{}{query}", server.url());
    // The first that panics ends the race: it holds the name until its ttl ends.
    let mut ours = tokio::task::JoinSet::new();
    for waits in [true, true, false, false] {
        let engine = RedisEngine::open(RedisOptions::from_url(&url).expect("a url")).await.expect("it opens");
        ours.spawn(contend(engine, witness.clone(), rounds / 4, waits));
    }
    while let Some(task) = ours.join_next().await {
        task.expect("ours are never inside with another");
    }
    for contender in &mut foreign {
        assert!(contender.0.wait().expect("it ends").success(), "theirs are never inside with another");
    }
    assert_eq!(witness.count(), rounds / 4 * 4 + rounds / 2 * 2, "no increment is lost");
    let left = server.command(&["KEYS", "*"]);
    let strange: Vec<&str> =
        left.lines().filter(|key| !key.contains("leasehold:") && !key.contains("signal")).collect();
    assert!(strange.is_empty(), "{strange:?}");
    eprintln!("{} rounds, no overlap", witness.count());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "wants redis-py: scripts/test-clients races"]
async fn redis_py_and_ours_exclude_each_other() {
    race("", || {
        let mut command = Command::new(from_env("LEASEHOLD_PYTHON"));
        command.arg(repository().join("tests/clients/python/contender.py"));
        command
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "wants python-redis-lock: scripts/test-clients races"]
async fn python_redis_lock_and_ours_exclude_each_other() {
    race("?preset=python-redis-lock", || {
        let mut command = Command::new(from_env("LEASEHOLD_PYTHON"));
        command.arg(repository().join("tests/clients/python/contender_redis_lock.py"));
        command
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "wants redlock from npm: scripts/test-clients races"]
async fn node_redlock_and_ours_exclude_each_other() {
    race("", || {
        let mut command = Command::new("node");
        // Node looks for packages beside the file that wants them.
        command.arg(Path::new(&from_env("LEASEHOLD_NODE_CLIENTS")).join("contender.mjs"));
        command
    })
    .await;
}

/// Goal: the witness sees an overlap when there is one.
/// Method: planted: ours use the keys of another client, so that nobody excludes anybody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "wants redis-py: scripts/test-clients races"]
#[should_panic(expected = "never inside with another")]
async fn another_key_excludes_nobody_and_is_caught() {
    race("?preset=redlock.net", || {
        let mut command = Command::new(from_env("LEASEHOLD_PYTHON"));
        command.arg(repository().join("tests/clients/python/contender.py"));
        command
    })
    .await;
}
