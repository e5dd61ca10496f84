//! The Redis engine under faults, as the history checker sees it: clients of several engines write down what they ask and
//! learn. Redis keeps no record of the past, so the laws are those of what clients are told: nobody believes in a lease
//! beside another, tokens are unique, and rise.
//!
//! `LEASEHOLD_HISTORY_SECONDS` makes each run longer.
#![allow(clippy::disallowed_methods, clippy::print_stdout, reason = "a real server lives in real time")]

#[path = "support/recorder.rs"]
mod recorder;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use leasehold::engine::redis::{RedisEngine, RedisOptions};
use leasehold::engine::{Claim, Engine, Want};
use leasehold_harness::proxy::Proxy;
use leasehold_harness::redis::{DURABLE, RedisServer};
use leasehold_torture::history::{History, OpOutcome};
use leasehold_torture::invariant::{believed, token_order, token_unique};
use recorder::{Recorder, from_environment, sleep_millis};

/// Engines, and clients of each.
const ENGINES: u64 = 3;
const CLIENTS: u64 = 4;
/// A run goes on until so much happened, even on a slow machine, but not for ever.
const MIN_GRANTS: usize = 80;
const MAX_RUN: Duration = Duration::from_secs(60);

async fn open_engine(port: u16) -> Arc<RedisEngine> {
    let url = format!("redis://127.0.0.1:{port}");
    RedisEngine::open(RedisOptions::from_url(&url).expect("a url")).await.expect("it opens")
}

/// Clients race for as long as it is asked for, while `fault` runs again and again. Returns what they were told.
async fn run_clients(port: u16, fault: impl AsyncFn()) -> History {
    let recorder = Recorder::new();
    let (mut clients, mut engines) = (Vec::new(), Vec::new());
    for engine in 0..ENGINES {
        let opened = open_engine(port).await;
        for client in 0..CLIENTS {
            clients.push(tokio::spawn(recorder.clone().run_client(opened.clone(), engine * CLIENTS + client)));
        }
        engines.push(opened);
    }
    let (began, span) = (Instant::now(), Duration::from_secs(from_environment("LEASEHOLD_HISTORY_SECONDS", 4)));
    while began.elapsed() < span || (recorder.count_grants() < MIN_GRANTS && began.elapsed() < MAX_RUN) {
        fault().await;
    }
    recorder.stop();
    for client in clients {
        tokio::time::timeout(Duration::from_secs(60), client).await.expect("clients come to an end").expect("no panic");
    }
    for name in ["a", "b", "c"] {
        // Nothing is left in the way but leases that nobody released, and they end.
        let claim = Claim {
            wait: Duration::from_secs(30),
            ..Claim::new(vec![Want::exclusive(name)], Duration::from_secs(5), "last")
        };
        let grant = engines[0].acquire(claim).await.expect("every name can be had again");
        engines[0].release(&grant.lease_id).await.expect("it is live");
    }
    let history = History { ops: recorder.take_ops(), ..History::default() };
    let count = |test: fn(&OpOutcome) -> bool| history.ops.iter().filter(|operation| test(&operation.outcome)).count();
    let grants = count(|outcome| matches!(outcome, OpOutcome::Granted { .. }));
    let unknown = count(|outcome| matches!(outcome, OpOutcome::Unknown | OpOutcome::Failed));
    println!("{} operations, {grants} grants, {unknown} without an answer", history.ops.len());
    assert!(grants >= MIN_GRANTS, "only {grants} grants");
    history
}

fn assert_lawful(history: &History) {
    assert_eq!(believed::check(history), Ok(()));
    assert_eq!(token_unique::check(history), Ok(()));
    assert_eq!(token_order::check(history), Ok(()));
}

/// Goal: without a fault every law holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quiet_run_is_lawful() {
    let server = RedisServer::start(DURABLE);
    assert_lawful(&run_clients(server.port(), async || sleep_millis(100).await).await);
}

/// Goal: every law holds while a server that syncs every write is killed and started again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_break_no_law() {
    let server = RedisServer::start(DURABLE);
    let kills = AtomicUsize::new(0);
    let history = run_clients(server.port(), async || {
        sleep_millis(700).await;
        server.kill_and_restart();
        kills.fetch_add(1, Ordering::SeqCst);
    })
    .await;
    println!("{} kills", kills.load(Ordering::SeqCst));
    assert!(kills.load(Ordering::SeqCst) > 1);
    assert_lawful(&history);
}

/// Goal: every law holds while requests and replies are lost and connections are cut.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_replies_break_no_law() {
    let server = RedisServer::start(DURABLE);
    let proxy = Proxy::start(server.port());
    let turn = AtomicUsize::new(0);
    let history = run_clients(proxy.port(), async || {
        let swallow = |on| match turn.load(Ordering::SeqCst) % 2 {
            0 => proxy.swallow_replies(on),
            _ => proxy.swallow_requests(on),
        };
        sleep_millis(120).await;
        swallow(true);
        sleep_millis(40).await;
        swallow(false);
        proxy.cut_all();
        turn.fetch_add(1, Ordering::SeqCst);
    })
    .await;
    println!("{} losses", turn.load(Ordering::SeqCst));
    assert!(turn.load(Ordering::SeqCst) > 10);
    assert_lawful(&history);
}

/// Goal: every law holds while the server forgets scripts, pauses its clients, or stands still.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pauses_break_no_law() {
    let server = RedisServer::start(DURABLE);
    let history = run_clients(server.port(), async || {
        server.command(&["SCRIPT", "FLUSH"]);
        sleep_millis(100).await;
        server.command(&["CLIENT", "PAUSE", "150", "ALL"]);
        sleep_millis(200).await;
        // Longer than a lease that nobody releases lives.
        server.freeze();
        sleep_millis(200).await;
        server.thaw();
        sleep_millis(100).await;
    })
    .await;
    assert_lawful(&history);
}

/// Goal: the checker is not blind: what FLUSHALL does to leases that are held is seen, and tokens still rise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushall_is_seen() {
    let server = RedisServer::start(DURABLE);
    let history = run_clients(server.port(), async || {
        sleep_millis(20).await;
        server.command(&["FLUSHALL"]);
    })
    .await;
    believed::check(&history).expect_err("two clients believe in one lease");
    assert_eq!(token_unique::check(&history), Ok(()));
    assert_eq!(token_order::check(&history), Ok(()));
}
