//! The Redis engine when something goes wrong: lost replies, a server that is busy, full, stopped, demoted or restarted.
#![cfg(feature = "redis")]
#![allow(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "a real server lives in real time, and how much was tried is worth a line"
)]

#[path = "support/redis.rs"]
mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::engine::redis::RedisEngine;
use leasehold::engine::{Claim, Engine, Grant, Query};
use leasehold::{Error, Refusal};
use leasehold_harness::proxy::Proxy;
use leasehold_harness::redis::{DURABLE, RedisServer};
use support::{claim, open, patient, pause};

async fn holders(engine: &RedisEngine, name: &str) -> Vec<String> {
    let seen = engine.inspect(name).await.expect("inspect answers");
    seen.map_or_else(Vec::new, |seen| seen.holders.into_iter().map(|holding| holding.holder).collect())
}

fn cause(error: &Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

fn is_unavailable(answer: &Result<Grant, Error>, word: &str) -> bool {
    matches!(answer, Err(error @ Error::Unavailable { .. }) if cause(error).contains(word))
}

/// Goal: an acquire whose reply is lost is granted once, and the caller gets that lease.
/// Method: a proxy throws replies away, then cuts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_has_one_effect() {
    let server = RedisServer::start(DURABLE);
    let proxy = Proxy::start(server.port());
    let engine = open(&format!("redis://127.0.0.1:{}", proxy.port())).await;
    let direct = open(&server.url()).await;
    for round in 0..8 {
        let name = format!("seat-{round}");
        // Over every connection: what is lost is a reply, and not a connection that is being opened.
        for _ in 0..32 {
            let before = engine.acquire(claim(&name, "warm")).await.expect("granted");
            assert!(engine.release(&before.lease_id).await.expect("released"));
        }
        proxy.swallow_replies(true);
        let (asked, wanted) = (engine.clone(), claim(&name, "ada"));
        let acquiring = tokio::spawn(async move { asked.acquire(wanted).await });
        pause(100).await;
        assert_eq!(holders(&direct, &name).await, ["ada"], "it was granted, and nobody was told");
        proxy.swallow_replies(false);
        proxy.cut_all();
        let grant = acquiring.await.expect("no panic").expect("the retry finds the lease");
        assert_eq!(direct.inspect(&name).await.expect("seen").expect("held").holders[0].token, grant.token);
        // The reply to the release is lost as well.
        proxy.swallow_replies(true);
        let (asked, lease) = (engine.clone(), grant.lease_id.clone());
        let releasing = tokio::spawn(async move { asked.release(&lease).await });
        pause(100).await;
        proxy.swallow_replies(false);
        proxy.cut_all();
        assert!(!releasing.await.expect("no panic").expect("released"), "the retry finds that it was released");
        assert!(holders(&direct, &name).await.is_empty());
    }
}

/// Goal: a request that lies in a socket buffer while its caller gives up takes nothing when it arrives.
/// Method: hold everything back, acquire, drop the acquire, let everything go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_that_was_given_up_leaves_no_lease() {
    let server = RedisServer::start(&[]);
    let proxy = Proxy::start(server.port());
    let engine = open(&format!("redis://127.0.0.1:{}", proxy.port())).await;
    let direct = open(&server.url()).await;
    for wait in [0, 20] {
        proxy.black_hole(true);
        let (asked, wanted) = (engine.clone(), patient("seat", "ada", Duration::from_secs(wait)));
        let acquiring = tokio::spawn(async move { asked.acquire(wanted).await });
        pause(200).await;
        acquiring.abort();
        pause(200).await;
        proxy.black_hole(false);
        let mut left = holders(&direct, "seat").await;
        for _ in 0..100 {
            pause(50).await;
            left = holders(&direct, "seat").await;
            if left.is_empty() && direct.inspect("seat").await.expect("seen").is_none() {
                break;
            }
        }
        assert!(left.is_empty(), "{left:?}");
    }
}

/// Goal: a server that forgets its scripts is given them again.
#[tokio::test]
async fn a_script_flush_is_survived() {
    let server = RedisServer::start(DURABLE);
    let engine = open(&server.url()).await;
    for round in 0..5 {
        server.command(&["SCRIPT", "FLUSH"]);
        let grant = engine.acquire(claim("seat", "ada")).await.expect("granted");
        server.command(&["SCRIPT", "FLUSH"]);
        engine.renew(&grant.lease_id, None).await.expect("renewed");
        server.command(&["SCRIPT", "FLUSH"]);
        assert!(engine.release(&grant.lease_id).await.expect("released"), "round {round}");
    }
}

/// Goal: a server that runs somebody's endless script is Unavailable within a moment, and never "held".
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_server_is_unavailable() {
    let server = Arc::new(RedisServer::start(&["--busy-reply-threshold 50"]));
    let engine = open(&server.url()).await;
    let slow = server.clone();
    let script = std::thread::spawn(move || slow.command(&["EVAL", "while true do end", "0"]));
    pause(300).await;
    let began = Instant::now();
    let answer = engine.acquire(claim("seat", "ada")).await;
    assert!(is_unavailable(&answer, "script"), "{answer:?}");
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    server.command(&["SCRIPT", "KILL"]);
    script.join().expect("it ends");
    engine.acquire(claim("seat", "ada")).await.expect("granted");
}

/// Goal: a full memory keeps nobody from giving back or renewing.
#[tokio::test]
async fn a_full_memory_takes_no_leases_and_lets_them_go() {
    let server = RedisServer::start(&[]);
    let engine = open(&server.url()).await;
    let grant = engine.acquire(claim("seat", "ada")).await.expect("granted");
    let other = engine.acquire(claim("row", "ada")).await.expect("granted");
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let answer = engine.acquire(claim("aisle", "bob")).await;
    assert!(is_unavailable(&answer, "maxmemory"), "{answer:?}");
    engine.renew(&grant.lease_id, None).await.expect("renewed");
    assert!(engine.release(&grant.lease_id).await.expect("released"));
    assert_eq!(engine.revoke("row", "a drill").await.expect("revoked"), 1);
    assert!(matches!(engine.renew(&other.lease_id, None).await, Err(Error::Refused(Refusal::Stale))));
}

/// Goal: a server that became a replica is not asked: its data are stale, and "held" would be a guess.
#[tokio::test]
async fn a_demoted_server_is_unavailable() {
    let (server, master) = (RedisServer::start(&[]), RedisServer::start(&[]));
    let engine = open(&server.url()).await;
    engine.acquire(claim("seat", "ada")).await.expect("granted");
    server.command(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    let answer = engine.acquire(claim("seat", "bob")).await;
    assert!(is_unavailable(&answer, "replica"), "{answer:?}");
    assert!(matches!(engine.inspect("seat").await, Err(Error::Unavailable { .. })));
    server.command(&["REPLICAOF", "NO", "ONE"]);
    let mut granted = engine.acquire(claim("row", "bob")).await;
    for _ in 0..50 {
        if granted.is_ok() {
            break;
        }
        pause(100).await;
        granted = engine.acquire(claim("row", "bob")).await;
    }
    granted.expect("it decides again");
}

/// Goal: a server that pauses its clients is waited for, and nothing is done twice.
#[tokio::test]
async fn a_paused_server_is_waited_for() {
    let server = RedisServer::start(DURABLE);
    let engine = open(&server.url()).await;
    server.command(&["CLIENT", "PAUSE", "1200", "ALL"]);
    let grant = engine.acquire(claim("seat", "ada")).await.expect("granted");
    assert_eq!(holders(&engine, "seat").await, ["ada"]);
    server.command(&["CLIENT", "PAUSE", "3000", "ALL"]);
    assert!(engine.release(&grant.lease_id).await.is_ok());
    assert!(holders(&engine, "seat").await.is_empty());
}

/// Goal: a server that stands still for longer than replies are waited for gets no orphan when it goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stood_still_keeps_no_orphan() {
    let server = RedisServer::start(DURABLE);
    let engine = open(&server.url()).await;
    let warm = engine.acquire(claim("seat", "warm")).await.expect("granted");
    engine.release(&warm.lease_id).await.expect("released");
    server.freeze();
    let answer = engine.acquire(claim("seat", "ada")).await;
    server.thaw();
    assert!(matches!(answer, Err(Error::Indeterminate { .. })), "{answer:?}");
    for _ in 0..100 {
        pause(50).await;
        if engine.inspect("seat").await.expect("seen").is_none() {
            return;
        }
    }
    panic!("a lease is left that nobody knows of");
}

/// Goal: a restart that forgets the queue does not forget those who wait: they come again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_comes_again_after_a_restart() {
    let server = RedisServer::start(&[]);
    let engine = open(&server.url()).await;
    engine.acquire(claim("seat", "ada")).await.expect("granted");
    let (asked, wanted) = (engine.clone(), patient("seat", "bob", Duration::from_secs(25)));
    let waiting = tokio::spawn(async move { asked.acquire(wanted).await });
    pause(200).await;
    server.kill();
    pause(300).await;
    server.start_server();
    waiting.await.expect("no panic").expect("granted after the restart");
    assert_eq!(holders(&engine, "seat").await, ["bob"]);
}

/// Goal: leases outlive a kill -9 of a durable server, and so does the order of tokens.
#[tokio::test]
async fn a_killed_server_remembers() {
    let server = RedisServer::start(DURABLE);
    let engine = open(&server.url()).await;
    let mut last = None;
    for round in 0..5 {
        let name = format!("seat-{round}");
        let grant = engine.acquire(claim(&name, "ada")).await.expect("granted");
        assert!(grant.token > last, "{:?} after {last:?}", grant.token);
        last = grant.token;
        server.kill_and_restart();
        assert_eq!(holders(&engine, &name).await, ["ada"]);
        engine.renew(&grant.lease_id, None).await.expect("renewed");
        assert!(engine.release(&grant.lease_id).await.expect("released"));
    }
}

/// Goal: a waiter whose process died is believed for ten seconds, and then the next one is served.
/// Method: the runtime of the first waiter's engine is dropped, so that nobody leaves the queue.
#[test]
fn a_dead_waiter_is_passed_over() {
    let server = RedisServer::start(&[]);
    let (dead, alive) =
        (tokio::runtime::Runtime::new().expect("a runtime"), tokio::runtime::Runtime::new().expect("a runtime"));
    let url = server.url();
    let holder = alive.block_on(open(&url));
    let ada = alive.block_on(holder.acquire(claim("seat", "ada"))).expect("granted");
    let doomed = dead.block_on(open(&url));
    dead.spawn(async move { doomed.acquire(patient("seat", "bob", Duration::from_secs(60))).await });
    alive.block_on(pause(300));
    let asked = holder.clone();
    let next = alive.spawn(async move { asked.acquire(patient("seat", "cy", Duration::from_secs(60))).await });
    alive.block_on(pause(300));
    dead.shutdown_background();
    let waiting = alive.block_on(async { holder.inspect("seat").await.expect("seen").expect("held").queue_len });
    assert_eq!(waiting, 2);
    // The dead one is believed for so long: the seat would be granted to it.
    alive.block_on(pause(11_000));
    assert!(alive.block_on(holder.release(&ada.lease_id)).expect("released"));
    let began = Instant::now();
    alive.block_on(next).expect("no panic").expect("granted");
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert_eq!(alive.block_on(holders(&holder, "seat")), ["cy"]);
    alive.block_on(holder.close()).expect("closed");
}

/// Goal: names that became free in silence leave the index of lists: those closed by a delay, and those of strangers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_index_of_lists_forgets_free_names() {
    let server = RedisServer::start(&[]);
    let engine = open(&server.url()).await;
    let all = || Query { prefix: String::new(), after: None, limit: 1000 };
    assert!(engine.list(all()).await.expect("listed").is_empty());
    for number in 0..20 {
        let (ttl, delay) = (Duration::from_millis(20), Duration::from_millis(400));
        engine.acquire(Claim { ttl, delay, ..claim(&format!("seat-{number}"), "ada") }).await.expect("granted");
    }
    server.command(&["SET", "row", "stranger", "PX", "600"]);
    let waiter = engine.acquire(patient("row", "bob", Duration::from_millis(100))).await;
    assert!(matches!(waiter, Err(Error::Refused(Refusal::Held { .. }))), "{waiter:?}");
    let held = engine.acquire(claim("aisle", "cy")).await.expect("granted");
    pause(100).await;
    engine.list(all()).await.expect("listed");
    pause(1000).await;
    assert_eq!(engine.list(all()).await.expect("listed").len(), 1);
    assert_eq!(server.command(&["ZRANGE", "leasehold:i", "0", "-1"]).trim(), "aisle");
    engine.release(&held.lease_id).await.expect("released");
    assert!(engine.list(all()).await.expect("listed").is_empty());
}
