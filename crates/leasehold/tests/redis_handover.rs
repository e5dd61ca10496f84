//! How a name goes from one waiter to the next: in order, at once, and without waking the others.
#![cfg(feature = "redis")]
#![allow(clippy::disallowed_methods, clippy::print_stderr, reason = "a real server lives in real time")]

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leasehold::engine::redis::{RedisEngine, RedisOptions};
use leasehold::engine::{Claim, Engine, Want};
use leasehold_harness::redis::RedisServer;

const WAITERS: usize = 64;

fn calls(server: &RedisServer, command: &str) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]);
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.and_then(|line| line.split(',').next()).and_then(|calls| calls.parse().ok()).unwrap_or(0)
}

/// Goal: 64 waiters get the name one after the other, in order of arrival, each at once; a release wakes one.
/// Method: three processes' worth of engines; each holder releases as soon as it is granted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_are_served_in_order_and_at_once() {
    let server = RedisServer::start(&[]);
    let mut engines = Vec::new();
    for _ in 0..3 {
        engines.push(RedisEngine::open(RedisOptions::from_url(&server.url()).expect("a url")).await.expect("it opens"));
    }
    let claim = |wait| Claim { wait, ..Claim::new(vec![Want::exclusive("seat")], Duration::from_secs(30), "ada") };
    let first = engines[0].acquire(claim(Duration::ZERO)).await.expect("granted");
    let log: Arc<Mutex<Vec<(usize, Instant, Instant)>>> = Arc::default();
    let mut waiters = Vec::new();
    for number in 0..WAITERS {
        let (engine, log, claim) = (engines[number % 3].clone(), log.clone(), claim(Duration::from_secs(60)));
        waiters.push(tokio::spawn(async move {
            let grant = engine.acquire(claim).await.expect("granted");
            let granted = Instant::now();
            tokio::time::sleep(Duration::from_millis(2)).await;
            log.lock().expect("nobody panics with it").push((number, granted, Instant::now()));
            assert!(engine.release(&grant.lease_id).await.expect("released"));
        }));
        // One after the other, so that the order of arrival is known.
        while engines[0].inspect("seat").await.expect("seen").map_or(0, |seen| seen.queue_len) <= number {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    let before = calls(&server, "publish");
    assert!(engines[0].release(&first.lease_id).await.expect("released"));
    for waiter in waiters {
        waiter.await.expect("no panic");
    }
    let published = calls(&server, "publish") - before;
    let log = log.lock().expect("nobody panics with it");
    let order: Vec<usize> = log.iter().map(|(number, ..)| *number).collect();
    assert_eq!(order, (0..WAITERS).collect::<Vec<_>>(), "in order of arrival");
    let mut gaps: Vec<Duration> = log.windows(2).map(|pair| pair[1].1 - pair[0].2).collect();
    gaps.sort();
    let (median, worst) = (gaps[gaps.len() / 2], gaps[gaps.len() - 1]);
    eprintln!("hand-over p50 {median:?}, worst {worst:?}, {published} messages for {} releases", WAITERS + 1);
    assert!(median < Duration::from_millis(5), "{median:?}");
    assert!(published <= 2 * (WAITERS as u64 + 1) + 16, "{published} messages");
}

/// How many pairs of acquire and release a second, for whoever asks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a figure, not a test"]
async fn pairs_per_second() {
    let server = RedisServer::start(&[]);
    let engine = RedisEngine::open(RedisOptions::from_url(&server.url()).expect("a url")).await.expect("it opens");
    let (began, span) = (Instant::now(), Duration::from_secs(3));
    let workers: Vec<_> = (0..64)
        .map(|worker| {
            let engine = engine.clone();
            tokio::spawn(async move {
                let mut pairs = 0_u64;
                while began.elapsed() < span {
                    let want = vec![Want::exclusive(format!("seat-{worker}-{}", pairs % 64))];
                    let grant =
                        engine.acquire(Claim::new(want, Duration::from_secs(30), "ada")).await.expect("granted");
                    assert!(engine.release(&grant.lease_id).await.expect("released"));
                    pairs += 1;
                }
                pairs
            })
        })
        .collect();
    let mut pairs = 0;
    for worker in workers {
        pairs += worker.await.expect("no panic");
    }
    eprintln!("{} pairs a second", pairs / span.as_secs());
}
