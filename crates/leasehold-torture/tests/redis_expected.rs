//! What Redis cannot keep, as the history checker sees it: the same failures as `redis_expected_failures` of the crate
//! `leasehold`, told as histories of two clients. Exclusion breaks in all of them, and the order of tokens in none; a planted
//! counter that only counts breaks the order too.
#![allow(clippy::disallowed_methods, reason = "a real server lives in real time")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use leasehold::engine::redis::{RedisEngine, RedisOptions};
use leasehold::engine::{Claim, Engine, Grant, Want};
use leasehold_core::Token;
use leasehold_harness::frozen_clock::FrozenClock;
use leasehold_harness::proxy::Proxy;
use leasehold_harness::redis::{DURABLE, RedisServer};
use leasehold_torture::history::{History, OpKind, OpOutcome};
use leasehold_torture::invariant::{believed, token_order, token_unique};
use support::recorder::{Recorder, sleep_millis};

const TTL: Duration = Duration::from_secs(60);

async fn open(url: &str) -> Arc<RedisEngine> {
    RedisEngine::open(RedisOptions::from_url(url).expect("a url")).await.expect("it opens")
}

/// The server's counter: the last token, also where none is shown because fencing is not promised.
fn counter(server: &RedisServer, key: &str) -> Token {
    server.command(&["GET", key]).trim().parse().ok().and_then(Token::new).expect("a counter")
}

/// Acquires the seat. The token is as `read` finds it after the grant.
async fn acquire_seat(recorder: &Recorder, engine: &RedisEngine, client: u64, read: impl FnOnce(&Grant) -> Token) {
    let claim = Claim::new(vec![Want::exclusive("seat")], TTL, "");
    recorder.acquire_numbered(engine, client, claim, read).await;
    // The next one is asked for later than this one was told, by the clock of the history.
    sleep_millis(5).await;
}

fn take_history(recorder: &Recorder) -> History {
    History { ops: recorder.take_ops(), ..History::default() }
}

fn assert_exclusion_breaks(history: &History) {
    assert_eq!(history.ops.len(), 2);
    believed::check(history).expect_err("two clients believe in the seat");
}

fn assert_order_holds(history: &History) {
    assert_eq!(token_order::check(history), Ok(()));
    assert_eq!(token_unique::check(history), Ok(()));
}

fn shown(grant: &Grant) -> Token {
    grant.token.expect("fencing is promised")
}

/// Goal: the checker is not blind: it finds nothing where the lease had been revoked.
#[tokio::test]
async fn the_checker_passes_what_is_right() {
    let server = RedisServer::start(DURABLE);
    let engine = open(&server.url()).await;
    let recorder = Recorder::new();
    acquire_seat(&recorder, &engine, 1, shown).await;
    let revoked = recorder.invoke(3, OpKind::Revoke { name: "seat".into() });
    let count = engine.revoke("seat", "a drill").await.expect("revoked");
    recorder.answer(revoked, OpOutcome::Revoked(count));
    acquire_seat(&recorder, &engine, 2, shown).await;
    let history = take_history(&recorder);
    assert_eq!((history.ops.len(), believed::check(&history)), (3, Ok(())));
    assert_order_holds(&history);
}

/// Goal: FLUSHALL: exclusion breaks, the order of tokens does not.
#[tokio::test]
async fn flushall_breaks_exclusion_and_not_the_order() {
    let server = RedisServer::start(DURABLE);
    let engine = open(&server.url()).await;
    let recorder = Recorder::new();
    acquire_seat(&recorder, &engine, 1, shown).await;
    server.command(&["FLUSHALL"]);
    acquire_seat(&recorder, &engine, 2, shown).await;
    let history = take_history(&recorder);
    assert_exclusion_breaks(&history);
    assert_order_holds(&history);
}

/// Goal: a wall clock that steps forward: exclusion breaks, the order of tokens does not.
#[tokio::test]
async fn a_stepped_clock_breaks_exclusion_and_not_the_order() {
    let base = 1_794_900_000_000_000;
    let clock = FrozenClock::new(base);
    let server = RedisServer::start_frozen(DURABLE, clock.clone());
    let engine = open(&server.url()).await;
    let recorder = Recorder::new();
    acquire_seat(&recorder, &engine, 1, shown).await;
    clock.set_micros(base + 61_000_000);
    acquire_seat(&recorder, &engine, 2, shown).await;
    let history = take_history(&recorder);
    assert_exclusion_breaks(&history);
    assert_order_holds(&history);
}

/// Goal: an append-only file without its tail: exclusion breaks, the order of tokens does not.
#[tokio::test]
async fn a_truncated_file_breaks_exclusion_and_not_the_order() {
    let server = RedisServer::start(&["--appendonly yes", "--appendfsync always", "--aof-load-truncated yes"]);
    let engine = open(&server.url()).await;
    let recorder = Recorder::new();
    acquire_seat(&recorder, &engine, 1, |_| counter(&server, "leasehold:t")).await;
    server.kill();
    let files = std::fs::read_dir(server.dir().join("appendonlydir")).expect("the files");
    let tail = files.flatten().map(|file| file.path()).find(|path| path.to_string_lossy().ends_with(".incr.aof"));
    let tail = std::fs::OpenOptions::new().write(true).open(tail.expect("the last file")).expect("it opens");
    let length = tail.metadata().expect("its length").len();
    tail.set_len(length - 40).expect("cut");
    server.start_server();
    acquire_seat(&recorder, &engine, 2, |_| counter(&server, "leasehold:t")).await;
    let history = take_history(&recorder);
    assert_exclusion_breaks(&history);
    assert_order_holds(&history);
}

/// Goal: a failover to a replica without the last writes: exclusion breaks, the order of tokens does not. A plain INCR, as a
/// fence is usually made with Redis, gives a token twice.
#[tokio::test]
async fn a_failover_breaks_exclusion_and_the_order_of_a_plain_counter() {
    let master = RedisServer::start(&[]);
    let proxy = Proxy::start(master.port());
    let replica = RedisServer::start(&[&format!("--replicaof 127.0.0.1 {}", proxy.port())]);
    let engine = open(&master.url()).await;
    master.command(&["SET", "plain", "7"]);
    while !replica.command(&["EXISTS", "plain", "leasehold:t"]).contains('2') {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    proxy.black_hole(true);
    let (ours, planted) = (Recorder::new(), Recorder::new());
    acquire_seat(&ours, &engine, 1, |_| counter(&master, "leasehold:t")).await;
    engine.revoke("seat", "for the planted counter").await.expect("revoked");
    let plain = |server: &RedisServer| {
        server.command(&["INCR", "plain"]);
        counter(server, "plain")
    };
    acquire_seat(&planted, &engine, 1, |_| plain(&master)).await;
    master.kill();
    proxy.cut_all();
    replica.command(&["REPLICAOF", "NO", "ONE"]);
    let promoted = open(&replica.url()).await;
    acquire_seat(&ours, &promoted, 2, |_| counter(&replica, "leasehold:t")).await;
    promoted.revoke("seat", "for the planted counter").await.expect("revoked");
    acquire_seat(&planted, &promoted, 2, |_| plain(&replica)).await;
    let (ours, planted) = (take_history(&ours), take_history(&planted));
    assert_exclusion_breaks(&ours);
    assert_order_holds(&ours);
    token_unique::check(&planted).expect_err("the planted counter gave a token twice");
    token_order::check(&planted).expect_err("the planted counter did not rise");
}

/// Goal: the planted counter under FLUSHALL: the checker finds the token that came twice.
#[tokio::test]
async fn a_plain_counter_repeats_after_flushall() {
    let server = RedisServer::start(DURABLE);
    let engine = open(&server.url()).await;
    let recorder = Recorder::new();
    let plain = || {
        server.command(&["INCR", "plain"]);
        counter(&server, "plain")
    };
    acquire_seat(&recorder, &engine, 1, |_| plain()).await;
    server.command(&["FLUSHALL"]);
    acquire_seat(&recorder, &engine, 2, |_| plain()).await;
    let history = take_history(&recorder);
    token_unique::check(&history).expect_err("the planted counter gave a token twice");
    token_order::check(&history).expect_err("the planted counter did not rise");
}
