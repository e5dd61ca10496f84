//! The Redis engine when the server under it gets weaker, or its data become others: what was promised is kept, or refused.
#![cfg(feature = "redis")]
#![allow(clippy::disallowed_methods, reason = "a real server lives in real time")]

#[path = "support/redis.rs"]
mod support;

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use leasehold::Error;
use leasehold::engine::{Engine, Grant};
use leasehold_harness::redis::{DURABLE, RedisServer};
use support::{claim, open, patient, pause};

async fn wait_for_info(server: &RedisServer, section: &str, text: &str) {
    for _ in 0..500 {
        if server.command(&["INFO", section]).contains(text) {
            return;
        }
        pause(20).await;
    }
    panic!("{section} never shows {text}");
}

fn is_too_weak(answer: &Result<Grant, Error>) -> bool {
    let cause = |error: &Error| std::error::Error::source(error).map_or_else(String::new, ToString::to_string);
    matches!(answer, Err(error @ Error::Unavailable { .. }) if cause(error).contains("weaker"))
}

/// The data of a server are replaced by a copy of before three grants, while the engine is idle. The tokens of those three
/// grants, and of three more.
async fn replace_data(examined: bool) -> (Vec<u64>, Vec<u64>) {
    let server = RedisServer::start(DURABLE);
    let engine = open(&server.url()).await;
    assert!(engine.promises().fencing);
    let copy = RedisServer::start_replica(&server);
    copy.command(&["REPLICAOF", "NO", "ONE"]);
    let port = copy.port().to_string();
    wait_for_info(&server, "replication", "connected_slaves:0").await;
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for number in 0..3 {
        let grant = engine.acquire(claim(&format!("seat-{number}"), "ada")).await.expect("granted");
        before.push(grant.token.expect("a token").get());
    }
    server.command(&["REPLICAOF", "127.0.0.1", &port]);
    wait_for_info(&server, "replication", "master_link_status:up").await;
    server.command(&["REPLICAOF", "NO", "ONE"]);
    // A server that was given other data writes its append-only file anew.
    wait_for_info(&server, "persistence", "aof_rewrite_in_progress:0").await;
    pause(1200).await;
    wait_for_info(&server, "persistence", "aof_rewrite_in_progress:0").await;
    if examined {
        let counter = || server.command(&["GET", "leasehold:t"]).trim().parse::<u64>().expect("a counter");
        engine.examine().await.expect("examined");
        assert!(Some(&counter()) > before.iter().max(), "it was raised for the new history");
    }
    for number in 0..3 {
        let grant = engine.acquire(claim(&format!("seat-{number}"), "bob")).await.expect("granted again");
        after.push(grant.token.expect("a token").get());
    }
    (before, after)
}

/// Goal: tokens rise when the data are replaced by older ones under open connections, and that was noticed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replaced_data_repeat_no_token_once_it_is_noticed() {
    let (before, after) = replace_data(true).await;
    assert!(after.iter().min() > before.iter().max(), "{after:?} after {before:?}");
}

/// Goal: the same before anybody noticed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replaced_data_repeat_no_token_before_it_is_noticed() {
    let (before, after) = replace_data(false).await;
    assert!(after.iter().min() > before.iter().max(), "{after:?} after {before:?}");
}

/// Goal: a waiter gets nothing from a server that the engine knows is too weak.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_is_not_granted_on_a_weakened_server() {
    let server = RedisServer::start(DURABLE);
    let engine = open(&server.url()).await;
    let ada = engine.acquire(claim("seat", "ada")).await.expect("granted");
    let asked = engine.clone();
    let waiting = tokio::spawn(async move { asked.acquire(patient("seat", "bob", Duration::from_secs(25))).await });
    pause(300).await;
    server.command(&["CONFIG", "SET", "appendfsync", "no"]);
    engine.examine().await.expect("examined");
    assert!(is_too_weak(&engine.acquire(claim("row", "cy")).await));
    assert!(engine.release(&ada.lease_id).await.expect("leases that exist go on"));
    let answer = waiting.await.expect("no panic");
    assert!(is_too_weak(&answer), "{answer:?}");
    assert!(engine.inspect("seat").await.expect("seen").is_none(), "nothing is left of it");
    server.command(&["CONFIG", "SET", "appendfsync", "always"]);
    engine.examine().await.expect("examined");
    engine.acquire(claim("seat", "bob")).await.expect("granted by a server that is strong again");
}

struct OtherServer {
    server: Child,
    _dir: tempfile::TempDir,
}

impl Drop for OtherServer {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Goal: a waiter that comes again to an empty and weak server in the place of a strong one gets nothing there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_gets_nothing_from_a_weak_server_in_its_place() {
    let server = RedisServer::start(DURABLE);
    let engine = open(&server.url()).await;
    engine.acquire(claim("seat", "ada")).await.expect("granted");
    let asked = engine.clone();
    let waiting = tokio::spawn(async move { asked.acquire(patient("seat", "bob", Duration::from_secs(25))).await });
    pause(300).await;
    server.kill();
    let dir = tempfile::tempdir().expect("a directory");
    let mut weak = Command::new("redis-server");
    weak.args(["--port", &server.port().to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"]).arg(dir.path());
    let _weak = OtherServer { server: weak.stdout(Stdio::null()).spawn().expect("it starts"), _dir: dir };
    let answer = waiting.await.expect("no panic");
    assert!(is_too_weak(&answer), "{answer:?}");
    let answer = engine.acquire(claim("row", "cy")).await;
    assert!(is_too_weak(&answer), "{answer:?}");
    assert!(engine.inspect("seat").await.expect("seen").is_none(), "nothing is left of it");
}

/// Goal: durability is not promised while the append-only file is switched on and nothing is written to it yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_not_written_yet_is_not_durable() {
    // Every key delays a save, so that saves and rewrites last.
    let rest = ["--appendfsync always", "--aof-load-truncated no", "--rdb-key-save-delay 3000"];
    let server = RedisServer::start(&rest);
    server.command(&["EVAL", "for n = 1, 1000 do redis.call('SET', 'k' .. n, 'v') end", "0"]);
    // Switched on while a save runs: the first rewrite waits for it.
    server.command(&["BGSAVE"]);
    server.command(&["CONFIG", "SET", "appendonly", "yes"]);
    wait_for_info(&server, "persistence", "aof_rewrite_scheduled:1").await;
    assert!(!open(&server.url()).await.promises().durable, "the rewrite is scheduled");
    wait_for_info(&server, "persistence", "aof_rewrite_scheduled:0").await;
    wait_for_info(&server, "persistence", "aof_rewrite_in_progress:0").await;
    let engine = open(&server.url()).await;
    assert!(engine.promises().durable, "it is written now");
    // Off and on again: there is a base of before.
    server.command(&["CONFIG", "SET", "appendonly", "no"]);
    engine.examine().await.expect("examined");
    server.command(&["CONFIG", "SET", "appendonly", "yes"]);
    wait_for_info(&server, "persistence", "aof_rewrite_in_progress:1").await;
    assert!(!open(&server.url()).await.promises().durable, "the first rewrite is under way");
    engine.examine().await.expect("examined");
    let answer = engine.acquire(claim("seat", "ada")).await;
    assert!(is_too_weak(&answer), "{answer:?}");
    wait_for_info(&server, "persistence", "aof_rewrite_in_progress:0").await;
    // The engine finds out by itself, within seconds.
    pause(4000).await;
    engine.acquire(claim("seat", "ada")).await.expect("granted");
    // An ordinary rewrite changes nothing.
    server.command(&["BGREWRITEAOF"]);
    wait_for_info(&server, "persistence", "aof_rewrite_in_progress:1").await;
    engine.examine().await.expect("examined");
    engine.acquire(claim("row", "ada")).await.expect("granted");
}

/// Goal: the engine reads the settings again by itself, every half minute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_weakened_server_is_noticed_without_being_asked() {
    let server = RedisServer::start(DURABLE);
    let engine = open(&server.url()).await;
    server.command(&["CONFIG", "SET", "appendfsync", "everysec"]);
    pause(35_000).await;
    let answer = engine.acquire(claim("seat", "ada")).await;
    assert!(is_too_weak(&answer), "{answer:?}");
}
