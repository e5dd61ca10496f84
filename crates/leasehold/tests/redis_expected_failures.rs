//! What Redis cannot keep, as standing tests: a second lease inside the ttl of the first. The tokens rise in all of them,
//! so a fence refuses the first holder.
#![cfg(feature = "redis")]
#![allow(clippy::disallowed_methods, reason = "a real server lives in real time")]

use std::sync::Arc;
use std::time::Duration;

use leasehold::engine::redis::{RedisEngine, RedisOptions};
use leasehold::engine::{Claim, Engine, Grant, Want};
use leasehold::{Error, Refusal};
use leasehold_harness::frozen_clock::FrozenClock;
use leasehold_harness::proxy::Proxy;
use leasehold_harness::redis::{DURABLE, RedisServer};

async fn open(url: &str) -> Arc<RedisEngine> {
    RedisEngine::open(RedisOptions::from_url(url).expect("a url")).await.expect("it opens")
}

fn claim(holder: &str) -> Claim {
    Claim::new(vec![Want::exclusive("seat")], Duration::from_secs(60), holder)
}

/// Bob has the seat while ada's ttl runs: the failure that is expected. His token is higher, and ada learns that hers ended.
async fn assert_second_lease(engine: &RedisEngine, ada: &Grant, bob: &Grant) {
    assert!(bob.token > ada.token, "{:?} after {:?}", bob.token, ada.token);
    let late = engine.renew(&ada.lease_id, None).await;
    assert!(matches!(late, Err(Error::Refused(Refusal::Stale | Refusal::NotHeld))), "{late:?}");
    assert!(engine.renew(&bob.lease_id, None).await.is_ok(), "a late owner leaves the successor alone");
}

/// Goal: FLUSHALL ends every lease, and the tokens still rise.
#[tokio::test]
async fn flushall_hands_the_lease_out_again_with_a_higher_token() {
    let server = RedisServer::start(DURABLE);
    let engine = open(&server.url()).await;
    let ada = engine.acquire(claim("ada")).await.expect("granted");
    server.command(&["FLUSHALL"]);
    let bob = engine.acquire(claim("bob")).await.expect("granted a second time");
    assert_second_lease(&engine, &ada, &bob).await;
}

/// Goal: a wall clock that steps forward ends leases early, and the tokens rise through the step and back.
#[tokio::test]
async fn a_stepped_clock_hands_the_lease_out_again_with_a_higher_token() {
    let base = 1_794_900_000_000_000;
    let clock = FrozenClock::new(base);
    let server = RedisServer::start_frozen(DURABLE, clock.clone());
    let engine = open(&server.url()).await;
    let ada = engine.acquire(claim("ada")).await.expect("granted");
    clock.set_micros(base + 61_000_000);
    let bob = engine.acquire(claim("bob")).await.expect("granted a second time");
    assert_second_lease(&engine, &ada, &bob).await;
    let findings = engine.examine().await.expect("examined");
    assert!(
        findings.iter().any(|finding| finding.setting == "clock" && finding.found.contains("apart")),
        "{findings:?}"
    );
    clock.set_micros(base);
    let cy = engine.acquire(Claim { wants: vec![Want::exclusive("row")], ..claim("cy") }).await.expect("granted");
    assert!(cy.token > bob.token, "the counter goes on when the clock goes back");
}

/// Goal: an append-only file that lost its tail forgets the last lease. With `aof-load-truncated yes` nobody is told; with
/// `no` the server does not start, which is why fencing wants it.
#[tokio::test]
async fn a_truncated_file_hands_the_lease_out_again_with_a_higher_token() {
    let settings = ["--appendonly yes", "--appendfsync always", "--aof-load-truncated yes"];
    let server = RedisServer::start(&settings);
    let engine = open(&server.url()).await;
    assert!(!engine.promises().fencing);
    let ada = engine.acquire(claim("ada")).await.expect("granted");
    let before: u64 = server.command(&["GET", "leasehold:t"]).trim().parse().expect("a counter");
    server.kill();
    let files = std::fs::read_dir(server.dir().join("appendonlydir")).expect("the files");
    let tail = files.flatten().map(|file| file.path()).find(|path| path.to_string_lossy().ends_with(".incr.aof"));
    let tail = std::fs::OpenOptions::new().write(true).open(tail.expect("the last file")).expect("it opens");
    let length = tail.metadata().expect("its length").len();
    tail.set_len(length - 40).expect("cut");
    server.start_server();
    let bob = engine.acquire(claim("bob")).await.expect("granted a second time");
    let after: u64 = server.command(&["GET", "leasehold:t"]).trim().parse().expect("a counter");
    assert!(after > before, "{after} after {before}");
    assert!(engine.renew(&ada.lease_id, None).await.is_err());
    engine.renew(&bob.lease_id, None).await.expect("the second lease is the one that counts");
}

/// Goal: a failover to a replica that lacks the last writes forgets the last lease, and the tokens rise.
/// Method: nothing passes between master and replica while the lease is granted; the master dies; the replica is promoted.
#[tokio::test]
async fn a_failover_hands_the_lease_out_again_with_a_higher_token() {
    let master = RedisServer::start(&[]);
    let proxy = Proxy::start(master.port());
    let replica = RedisServer::start(&[&format!("--replicaof 127.0.0.1 {}", proxy.port())]);
    while !replica.command(&["INFO", "replication"]).contains("master_link_status:up") {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let engine = open(&master.url()).await;
    engine.acquire(Claim { wants: vec![Want::exclusive("row")], ..claim("cy") }).await.expect("granted");
    while !replica.command(&["EXISTS", "row"]).contains('1') {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    proxy.black_hole(true);
    engine.acquire(claim("ada")).await.expect("granted");
    let before: u64 = master.command(&["GET", "leasehold:t"]).trim().parse().expect("a counter");
    master.kill();
    proxy.cut_all();
    replica.command(&["REPLICAOF", "NO", "ONE"]);
    let promoted = open(&replica.url()).await;
    let row = promoted.inspect("row").await.expect("seen").expect("what was copied is held");
    assert_eq!(row.holders[0].holder, "cy");
    promoted.acquire(claim("bob")).await.expect("granted a second time");
    let after: u64 = replica.command(&["GET", "leasehold:t"]).trim().parse().expect("a counter");
    assert!(after > before, "{after} after {before}");
}

/// Goal: eviction ends a lease that is held: it is why fencing wants `noeviction`.
#[tokio::test]
async fn eviction_ends_a_lease_that_is_held() {
    let server = RedisServer::start(&["--maxmemory-policy volatile-lru"]);
    let engine = open(&server.url()).await;
    assert!(!engine.promises().fencing);
    let ada = engine.acquire(claim("ada")).await.expect("granted");
    // Room for nothing: every key with an end goes.
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    for number in 0..50 {
        server.command(&["SET", &format!("filler-{number}"), "x", "EX", "100"]);
    }
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    engine.acquire(claim("bob")).await.expect("granted a second time");
    assert!(engine.renew(&ada.lease_id, None).await.is_err());
}

/// Goal: the guard against all this is needed: a counter that only counts gives a token twice.
/// Method: planted: our counter is set back to what a plain INCR would have after FLUSHALL, and the clock is behind.
#[tokio::test]
async fn a_plain_counter_would_give_a_token_twice() {
    let server = RedisServer::start(DURABLE);
    server.command(&["INCR", "plain"]);
    let first = server.command(&["GET", "plain"]);
    server.command(&["FLUSHALL"]);
    server.command(&["INCR", "plain"]);
    assert_eq!(server.command(&["GET", "plain"]), first, "the planted counter repeats");
    let engine = open(&server.url()).await;
    let ada = engine.acquire(claim("ada")).await.expect("granted");
    server.command(&["FLUSHALL"]);
    let bob = engine.acquire(claim("bob")).await.expect("granted");
    assert!(bob.token > ada.token, "ours does not");
}
