//! The Redis engine behind sentinels: a master dies, its replica is promoted, and the engine goes on there.
#![cfg(feature = "redis")]
#![allow(clippy::disallowed_methods, reason = "a real failover takes real time")]

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::Error;
use leasehold::engine::redis::{RedisEngine, RedisOptions};
use leasehold::engine::{Claim, Engine, Want};
use leasehold_harness::free_port;
use leasehold_harness::redis::RedisServer;
use tempfile::TempDir;

struct Sentinel {
    process: Child,
    port: u16,
    _files: TempDir,
}

impl Sentinel {
    fn start(master: &RedisServer) -> Self {
        let (files, port) = (tempfile::tempdir().expect("a place"), free_port());
        let file = files.path().join("sentinel.conf");
        let text = format!(
            "port {port}\ndir {}\nsentinel monitor main 127.0.0.1 {} 1\nsentinel down-after-milliseconds main 700\n\
             sentinel failover-timeout main 4000\n",
            files.path().display(),
            master.port()
        );
        std::fs::write(&file, text).expect("written");
        let mut command = Command::new("redis-server");
        let command = command.arg(&file).arg("--sentinel").stdout(Stdio::null());
        Self { process: command.spawn().expect("a sentinel"), port, _files: files }
    }

    fn ask(&self, words: &[&str]) -> String {
        let ran = Command::new("redis-cli").args(["-p", &self.port.to_string()]).args(words).output();
        String::from_utf8_lossy(&ran.expect("redis-cli runs").stdout).into_owned()
    }

    async fn wait_until(&self, what: &str, words: &[&str], shows: &str) {
        for _ in 0..400 {
            if self.ask(words).contains(shows) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("the sentinel did not {what}: {}", self.ask(words));
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn claim(name: &str, holder: &str, wait_seconds: u64) -> Claim {
    let wait = Duration::from_secs(wait_seconds);
    Claim { wait, ..Claim::new(vec![Want::exclusive(name)], Duration::from_secs(60), holder) }
}

fn last_token(server: &RedisServer) -> u64 {
    server.command(&["GET", "leasehold:t"]).trim().parse().expect("a token")
}

/// Goal: after a failover the engine finds the new master within its callers' patience, promises neither durable nor
/// fencing, and no token comes twice.
/// Method: one master with a replica and one sentinel; the master is killed while one caller waits in a queue and another
/// one comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_is_waited_for() {
    let master = RedisServer::start(&[]);
    let replica = RedisServer::start_replica(&master);
    let sentinel = Sentinel::start(&master);
    let replica_port = replica.port().to_string();
    sentinel.wait_until("find the replica", &["SENTINEL", "replicas", "main"], &replica_port).await;
    let url = format!("redis://127.0.0.1:{}/main?sentinel=1", sentinel.port);
    let engine: Arc<RedisEngine> =
        RedisEngine::open(RedisOptions::from_url(&url).expect("a url")).await.expect("it opens");
    let promises = engine.promises();
    assert!(!promises.durable && !promises.fencing && promises.fair, "{promises:?}");

    let ada = engine.acquire(claim("seat", "ada", 0)).await.expect("granted");
    let asked = engine.clone();
    let bob = tokio::spawn(async move { asked.acquire(claim("seat", "bob", 40)).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(master.command(&["WAIT", "1", "5000"]).trim(), "1", "the replica has it all");
    let before = last_token(&master);
    master.kill();
    let began = Instant::now();
    match engine.acquire(claim("aisle", "dan", 0)).await {
        Err(Error::Unavailable { .. } | Error::Indeterminate { .. }) => {}
        // The failover was over before the call's patience was.
        Ok(_) => assert!(replica.command(&["INFO", "replication"]).contains("role:master"), "by the new master only"),
        Err(other) => panic!("{other:?}"),
    }
    let cy = engine.acquire(claim("row", "cy", 40)).await.expect("granted by the new master");
    assert!(began.elapsed() < Duration::from_secs(35), "{:?}", began.elapsed());
    assert!(replica.command(&["INFO", "replication"]).contains("role:master"));
    assert!(last_token(&replica) > before, "{} after {before}", last_token(&replica));
    assert_eq!(cy.token, None, "no token is shown");
    // The lease of before was copied, and its waiter is served.
    engine.renew(&ada.lease_id, None).await.expect("renewed");
    assert!(engine.release(&ada.lease_id).await.expect("released"));
    let bob = bob.await.expect("no panic").expect("granted");
    assert!(engine.release(&bob.lease_id).await.expect("released"));
}
