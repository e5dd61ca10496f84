//! Redlock against npm's redlock on the same five servers: whoever has the lock is alone.
//!
//! Run by `scripts/test-clients races`, which installs the clients. `LEASEHOLD_RACE_ROUNDS` says how many rounds of ours there are.
#![cfg(feature = "redis")]
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test, with real servers in real time"
)]

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use leasehold::engine::redlock::{Redlock, RedlockOptions};
use leasehold::engine::{Claim, Engine as _, Want};
use leasehold::{Error, Refusal};
use leasehold_harness::redis::{DURABLE, RedisServer};
use leasehold_harness::redlock::RedisNodes;

const NAME: &str = "seat";
const TTL: Duration = Duration::from_secs(10);

fn rounds() -> usize {
    std::env::var("LEASEHOLD_RACE_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1_000)
}

fn start_contender(witness: &RedisServer, nodes: &RedisNodes) -> Child {
    let packages = std::env::var("LEASEHOLD_NODE_CLIENTS");
    let packages = packages.expect("LEASEHOLD_NODE_CLIENTS is set by scripts/test-clients races");
    let mut node = Command::new("node");
    node.current_dir(packages).arg("redlock-race.mjs").arg(NAME).arg(witness.port().to_string());
    node.args(nodes.ports().iter().map(u16::to_string));
    node.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("node is not installed, and this test needs it")
}

/// A number in a line of JSON.
fn number(line: &str, field: &str) -> usize {
    let after = line.split_once(&format!("\"{field}\":")).expect("the contender says what it did").1;
    after.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap()
}

/// Two contenders of theirs, four of ours (half of which wait), and a witness who counts those inside. How often there was
/// somebody inside already, by ours and by theirs.
async fn race(query: &str, rounds: usize) -> (usize, usize) {
    let nodes = RedisNodes::start(5, DURABLE);
    let witness = RedisServer::start(&[]);
    let mut theirs: Vec<Child> = (0..2).map(|_| start_contender(&witness, &nodes)).collect();
    let inside = redis::Client::open(witness.url()).unwrap().get_multiplexed_async_connection().await.unwrap();
    let (left, overlaps, refused) = (AtomicUsize::new(rounds), AtomicUsize::new(0), AtomicUsize::new(0));
    let counters = Arc::new((left, overlaps, refused));
    let began = Instant::now();
    let mut ours = Vec::new();
    for number in 0..4_u32 {
        let (counters, mut inside) = (counters.clone(), inside.clone());
        let options = RedlockOptions::from_url(&nodes.url(query)).unwrap();
        ours.push(tokio::spawn(async move {
            let engine = Redlock::open(options).await.expect("it opens");
            let (left, overlaps, refused) = &*counters;
            while left.load(Ordering::SeqCst) > 0 {
                let wait = if number % 2 == 0 { Duration::ZERO } else { Duration::from_secs(5) };
                let claim = Claim { wait, ..Claim::new(vec![Want::exclusive(NAME)], TTL, "ada") };
                let grant = match engine.acquire(claim).await {
                    Ok(grant) => grant,
                    Err(Error::Refused(Refusal::Held { .. })) => {
                        refused.fetch_add(1, Ordering::SeqCst);
                        tokio::time::sleep(Duration::from_millis(3)).await;
                        continue;
                    }
                    Err(other) => panic!("{other:?}"),
                };
                let count: i64 = redis::cmd("INCR").arg("inside").query_async(&mut inside).await.unwrap();
                overlaps.fetch_add(usize::from(count != 1), Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(1)).await;
                let _: i64 = redis::cmd("DECR").arg("inside").query_async(&mut inside).await.unwrap();
                assert!(engine.release(&grant.lease_id).await.expect("a majority answers"));
                left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).ok();
            }
            engine.close().await.unwrap();
        }));
    }
    for task in ours {
        task.await.unwrap();
    }
    let took = began.elapsed();
    theirs.iter_mut().for_each(|child| drop(child.stdin.take()));
    let (mut their_rounds, mut their_refused, mut their_overlaps) = (0, 0, 0);
    for child in theirs {
        let said = child.wait_with_output().unwrap();
        let line = String::from_utf8(said.stdout).unwrap();
        their_rounds += number(&line, "rounds");
        their_refused += number(&line, "refused");
        their_overlaps += number(&line, "overlaps");
    }
    let (overlaps, refused) = (counters.1.load(Ordering::SeqCst), counters.2.load(Ordering::SeqCst));
    println!(
        "ours: {} rounds, {refused} refused, {overlaps} overlaps; npm redlock: {their_rounds} rounds, {their_refused} refused, \
         {their_overlaps} overlaps; {took:?}",
        rounds
    );
    assert!(their_rounds > 0, "they had it too");
    (overlaps, their_overlaps)
}

/// Goal: our leases and their locks exclude each other, both ways, in every round.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "wants redlock from npm: scripts/test-clients races"]
async fn npm_redlock_and_ours_exclude_each_other() {
    assert_eq!(race("", rounds()).await, (0, 0));
}

/// Goal: the witness sees an overlap when there is one.
/// Method: planted: ours use the keys of another client, so that nobody excludes anybody.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "wants redlock from npm: scripts/test-clients races"]
async fn other_keys_exclude_nobody_and_are_caught() {
    let (ours, theirs) = race("?preset=redlock.net", 100).await;
    assert!(ours + theirs > 0, "two were inside at once, and nobody saw it");
}
