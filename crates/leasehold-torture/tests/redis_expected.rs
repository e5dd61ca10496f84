//! What Redis cannot keep, as the history checker sees it: the same failures as `redis_expected_failures` of the crate
//! `leasehold`, told as histories of two clients. Exclusion breaks in all of them, and the order of tokens in none; a planted
//! counter that only counts breaks the order too.
#![allow(clippy::disallowed_methods, reason = "a real server lives in real time")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::engine::redis::{RedisEngine, RedisOptions};
use leasehold::engine::{Claim, Engine, Grant, Want};
use leasehold_core::{Mode, Secret, Token};
use leasehold_harness::frozen_clock::FrozenClock;
use leasehold_harness::proxy::Proxy;
use leasehold_harness::redis::{DURABLE, RedisServer};
use leasehold_torture::history::{AcquireRequest, History, Op, OpKind, OpOutcome};
use leasehold_torture::invariant::{believed, token_order, token_unique};

const TTL: Duration = Duration::from_secs(60);

async fn open(url: &str) -> Arc<RedisEngine> {
    RedisEngine::open(RedisOptions::from_url(url).expect("a url")).await.expect("it opens")
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).expect("a short run")
}

/// The server's counter: the last token, also where none is shown because fencing is not promised.
fn counter(server: &RedisServer, key: &str) -> Token {
    server.command(&["GET", key]).trim().parse().ok().and_then(Token::new).expect("a counter")
}

/// Writes down what clients are told of one seat.
struct Recorder {
    began: Instant,
    history: History,
}

impl Recorder {
    fn new() -> Self {
        Self { began: Instant::now(), history: History::default() }
    }

    /// Acquires the seat. The token is as `read` finds it after the grant.
    async fn acquire(&mut self, engine: &RedisEngine, holder: &str, read: impl FnOnce(&Grant) -> Token) {
        let invoke = self.began.elapsed();
        let claim = Claim::new(vec![Want::exclusive("seat")], TTL, holder);
        let grant = engine.acquire(claim).await.expect("granted");
        let (ret, token) = (self.began.elapsed(), read(&grant));
        let request = AcquireRequest {
            wants: vec![("seat".into(), Mode::Exclusive)],
            ttl: TTL,
            wait: Duration::ZERO,
            max_hold: None,
            delay: Duration::ZERO,
            request: None,
            principal: String::new(),
            value: None,
        };
        self.history.ops.push(Op {
            client: self.history.ops.len() as u64,
            kind: OpKind::Acquire(request),
            invoke: nanos(invoke),
            ret: Some(nanos(ret)),
            outcome: OpOutcome::Granted {
                token,
                secret: Secret::new([0; 16]),
                remaining: grant.remaining,
                repeated: false,
            },
            epoch: 0,
            untouched: true,
            full: false,
        });
        // The next one is asked for later than this one was told, by the clock of the history.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }

    fn assert_exclusion_breaks(&self) {
        assert_eq!(self.history.ops.len(), 2);
        believed::check(&self.history).expect_err("two clients believe in the seat");
    }

    fn assert_order_holds(&self) {
        assert_eq!(token_order::check(&self.history), Ok(()));
        assert_eq!(token_unique::check(&self.history), Ok(()));
    }
}

fn shown(grant: &Grant) -> Token {
    grant.token.expect("fencing is promised")
}

/// Goal: the checker is not blind: it finds nothing where the seat was released, or had ended.
#[tokio::test]
async fn the_checker_passes_what_is_right() {
    let server = RedisServer::start(DURABLE);
    let engine = open(&server.url()).await;
    let mut recorder = Recorder::new();
    recorder.acquire(&engine, "ada", shown).await;
    let OpOutcome::Granted { token, .. } = recorder.history.ops[0].outcome else { panic!("not granted") };
    let released = Op { kind: OpKind::Release { token }, ..recorder.history.ops[0].clone() };
    let asked = nanos(recorder.began.elapsed());
    engine.revoke("seat", "a drill").await.expect("revoked");
    recorder.acquire(&engine, "bob", shown).await;
    recorder.history.ops.push(Op { invoke: asked, outcome: OpOutcome::Released(true), ..released });
    assert_eq!(believed::check(&recorder.history), Ok(()));
    recorder.assert_order_holds();
}

/// Goal: FLUSHALL: exclusion breaks, the order of tokens does not.
#[tokio::test]
async fn flushall_breaks_exclusion_and_not_the_order() {
    let server = RedisServer::start(DURABLE);
    let engine = open(&server.url()).await;
    let mut recorder = Recorder::new();
    recorder.acquire(&engine, "ada", shown).await;
    server.command(&["FLUSHALL"]);
    recorder.acquire(&engine, "bob", shown).await;
    recorder.assert_exclusion_breaks();
    recorder.assert_order_holds();
}

/// Goal: a wall clock that steps forward: exclusion breaks, the order of tokens does not.
#[tokio::test]
async fn a_stepped_clock_breaks_exclusion_and_not_the_order() {
    let base = 1_794_900_000_000_000;
    let clock = FrozenClock::new(base);
    let server = RedisServer::start_frozen(DURABLE, clock.clone());
    let engine = open(&server.url()).await;
    let mut recorder = Recorder::new();
    recorder.acquire(&engine, "ada", shown).await;
    clock.set_micros(base + 61_000_000);
    recorder.acquire(&engine, "bob", shown).await;
    recorder.assert_exclusion_breaks();
    recorder.assert_order_holds();
}

/// Goal: an append-only file without its tail: exclusion breaks, the order of tokens does not.
#[tokio::test]
async fn a_truncated_file_breaks_exclusion_and_not_the_order() {
    let server = RedisServer::start(&["--appendonly yes", "--appendfsync always", "--aof-load-truncated yes"]);
    let engine = open(&server.url()).await;
    let mut recorder = Recorder::new();
    recorder.acquire(&engine, "ada", |_| counter(&server, "leasehold:t")).await;
    server.kill();
    let files = std::fs::read_dir(server.dir().join("appendonlydir")).expect("the files");
    let tail = files.flatten().map(|file| file.path()).find(|path| path.to_string_lossy().ends_with(".incr.aof"));
    let tail = std::fs::OpenOptions::new().write(true).open(tail.expect("the last file")).expect("it opens");
    let length = tail.metadata().expect("its length").len();
    tail.set_len(length - 40).expect("cut");
    server.start_server();
    recorder.acquire(&engine, "bob", |_| counter(&server, "leasehold:t")).await;
    recorder.assert_exclusion_breaks();
    recorder.assert_order_holds();
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
    let (mut ours, mut planted) = (Recorder::new(), Recorder::new());
    ours.acquire(&engine, "ada", |_| counter(&master, "leasehold:t")).await;
    engine.revoke("seat", "for the planted counter").await.expect("revoked");
    let plain = |server: &RedisServer| {
        server.command(&["INCR", "plain"]);
        counter(server, "plain")
    };
    planted.acquire(&engine, "ada", |_| plain(&master)).await;
    master.kill();
    proxy.cut_all();
    replica.command(&["REPLICAOF", "NO", "ONE"]);
    let promoted = open(&replica.url()).await;
    ours.acquire(&promoted, "bob", |_| counter(&replica, "leasehold:t")).await;
    promoted.revoke("seat", "for the planted counter").await.expect("revoked");
    planted.acquire(&promoted, "bob", |_| plain(&replica)).await;
    ours.assert_exclusion_breaks();
    ours.assert_order_holds();
    token_unique::check(&planted.history).expect_err("the planted counter gave a token twice");
    token_order::check(&planted.history).expect_err("the planted counter did not rise");
}

/// Goal: the planted counter under FLUSHALL: the checker finds the token that came twice.
#[tokio::test]
async fn a_plain_counter_repeats_after_flushall() {
    let server = RedisServer::start(DURABLE);
    let engine = open(&server.url()).await;
    let mut recorder = Recorder::new();
    let plain = || {
        server.command(&["INCR", "plain"]);
        counter(&server, "plain")
    };
    recorder.acquire(&engine, "ada", |_| plain()).await;
    server.command(&["FLUSHALL"]);
    recorder.acquire(&engine, "bob", |_| plain()).await;
    token_unique::check(&recorder.history).expect_err("the planted counter gave a token twice");
    token_order::check(&recorder.history).expect_err("the planted counter did not rise");
}
