//! How much slower three of five are than the third fastest of them alone.
//!
//! ```text
//! cargo test --workspace --all-features --test redlock_figure -- --ignored --nocapture
//! ```
#![cfg(feature = "redis")]
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test, with real servers in real time"
)]

use std::time::{Duration, Instant};

use leasehold::engine::redis::{RedisEngine, RedisOptions};
use leasehold::engine::redlock::{Redlock, RedlockOptions};
use leasehold::engine::{Claim, Engine, Want};
use leasehold_harness::redis::DURABLE;
use leasehold_harness::redlock::RedisNodes;

const BLOCKS: usize = 15;
const ROUNDS_PER_BLOCK: usize = 20;

async fn time_acquire(engine: &dyn Engine, round: usize) -> Duration {
    let claim = Claim::new(vec![Want::exclusive(format!("seat {round}"))], Duration::from_secs(30), "ada");
    let began = Instant::now();
    let grant = engine.acquire(claim).await.expect("it is free");
    let took = began.elapsed();
    engine.release(&grant.lease_id).await.expect("it is released");
    took
}

fn median(mut all: Vec<Duration>) -> Duration {
    all.sort_unstable();
    all[all.len() / 2]
}

/// Prints the p50 of acquires over five nodes behind proxies of 2 ms, and that of the third fastest node alone.
/// The servers sync nothing, so that five of them on one disk do not measure the disk.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a figure, not a law"]
async fn three_of_five_against_the_third_fastest() {
    let nodes = RedisNodes::start_behind_proxies(5, &DURABLE[..0]);
    let options = RedlockOptions::from_url(&nodes.url("?quarantine=30s")).unwrap();
    tokio::time::sleep(Duration::from_secs(32)).await; // new nodes do not vote yet
    let redlock = Redlock::open(options).await.expect("it opens");
    let mut singles = Vec::new();
    for port in nodes.ports() {
        let url = format!("redis://127.0.0.1:{port}");
        singles.push(RedisEngine::open(RedisOptions::from_url(&url).unwrap()).await.expect("it opens"));
    }
    nodes.proxies.iter().for_each(|proxy| proxy.delay(Duration::from_millis(1)));
    let (mut of_five, mut alone) = (Vec::new(), vec![Vec::new(); singles.len()]);
    for block in 0..BLOCKS {
        for round in 0..ROUNDS_PER_BLOCK {
            of_five.push(time_acquire(&*redlock, block * ROUNDS_PER_BLOCK + round).await);
        }
        for (single, times) in singles.iter().zip(&mut alone) {
            for round in 0..ROUNDS_PER_BLOCK {
                times.push(time_acquire(&**single, block * ROUNDS_PER_BLOCK + round).await);
            }
        }
    }
    let mut alone: Vec<Duration> = alone.into_iter().map(median).collect();
    alone.sort_unstable();
    let of_five = median(of_five);
    let ratio = of_five.as_secs_f64() / alone[2].as_secs_f64();
    println!("p50 of 3 of 5: {of_five:?}; each node alone: {alone:?}; ratio to the third fastest: {ratio:.2}");
}
