//! What a lease that nobody else wants costs on the wire: one round trip, on each engine with a server elsewhere.
//!
//! The server is behind a proxy that holds every message back. The delay is much longer than anything else that happens,
//! so the least of several spans divided by it is the number of round trips. A busy machine makes single spans longer,
//! never shorter.
#![cfg(all(feature = "redis", feature = "postgres"))]
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test, with real servers in real time")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::engine::postgres::{PostgresEngine, PostgresEngineOptions};
use leasehold::engine::redis::{RedisEngine, RedisOptions};
use leasehold::engine::redlock::{Redlock, RedlockOptions};
use leasehold::engine::{Claim, Engine, Want};
use leasehold_harness::postgres::Cluster;
use leasehold_harness::proxy::Proxy;
use leasehold_harness::redis::{DURABLE, RedisServer};
use leasehold_harness::redlock::RedisNodes;

/// The delay in each direction.
const DELAY: Duration = Duration::from_millis(60);
const TRIES: usize = 5;

/// How many round trips an acquire and a release took, each the least of several.
async fn count_round_trips(engine: &dyn Engine) -> (u128, u128) {
    let mut least = (Duration::MAX, Duration::MAX);
    for n in 0..TRIES {
        let claim = Claim::new(vec![Want::exclusive(format!("seat {n}"))], Duration::from_secs(60), "ada");
        let began = Instant::now();
        let grant = engine.acquire(claim).await.expect("it is free");
        least.0 = least.0.min(began.elapsed());
        let began = Instant::now();
        engine.release(&grant.lease_id).await.expect("it is held");
        least.1 = least.1.min(began.elapsed());
    }
    let trip = DELAY.as_micros() * 2;
    (least.0.as_micros() / trip, least.1.as_micros() / trip)
}

async fn assert_one_each(engine: Arc<dyn Engine>, slow_down: impl FnOnce()) {
    // What the first call prepares is not counted.
    let claim = Claim::new(vec![Want::exclusive("warm")], Duration::from_secs(60), "ada");
    let grant = engine.acquire(claim).await.expect("it is free");
    engine.release(&grant.lease_id).await.expect("it is held");
    slow_down();
    assert_eq!(count_round_trips(&*engine).await, (1, 1), "round trips of an acquire and of a release");
}

/// Goal: an acquire that finds its name free, and the release of it, are one round trip each on Redis.
/// Method: least of five spans behind a proxy.
#[tokio::test(flavor = "multi_thread")]
async fn redis_takes_one() {
    let server = RedisServer::start(DURABLE);
    let proxy = Proxy::start(server.port());
    let url = format!("redis://127.0.0.1:{}", proxy.port());
    let engine = RedisEngine::open(RedisOptions::from_url(&url).unwrap()).await.expect("it opens");
    assert_one_each(engine, || proxy.delay(DELAY)).await;
}

/// Goal: the same over three nodes: they are asked side by side.
/// Method: as above, every node behind a proxy of its own.
#[tokio::test(flavor = "multi_thread")]
async fn redlock_takes_one() {
    let nodes = RedisNodes::start_behind_proxies(3, DURABLE);
    let options = RedlockOptions::from_url(&nodes.url("")).unwrap();
    let engine = Redlock::open(options).await.expect("it opens");
    assert_one_each(engine, || nodes.proxies.iter().for_each(|proxy| proxy.delay(DELAY))).await;
}

/// Goal: the same on PostgreSQL: no BEGIN, no COMMIT, no statement beside the one.
/// Method: as above.
#[tokio::test(flavor = "multi_thread")]
async fn postgres_takes_one() {
    let cluster = Cluster::start(&[]);
    let proxy = Proxy::start(cluster.port());
    let url = cluster.url_through(proxy.port(), "postgres", "postgres");
    let engine = PostgresEngine::open(PostgresEngineOptions::from_url(&url).unwrap()).await.expect("it opens");
    assert_one_each(engine, || proxy.delay(DELAY)).await;
}
