//! Redlock on real servers with users and permissions, and with settings on which processes must agree.
#![cfg(feature = "redis")]
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test, with real servers in real time")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::Error;
use leasehold::engine::redlock::{Redlock, RedlockOptions};
use leasehold::engine::{Claim, Engine as _, Query, Want};
use leasehold_harness::redis::DURABLE;
use leasehold_harness::redlock::RedisNodes;

const SECOND: Duration = Duration::from_secs(1);

async fn open(url: &str) -> Result<Arc<Redlock>, Error> {
    Redlock::open(RedlockOptions::from_url(url).unwrap()).await
}

fn claim(name: &str) -> Claim {
    Claim::new(vec![Want::exclusive(name)], 30 * SECOND, "ada")
}

/// Goal: the user that the documentation makes may do all that the engine does, and a wrong password is one sentence.
/// Method: its own line on three nodes; every verb, a request id, a lease that a node lost, doctor; nothing was denied.
#[tokio::test(flavor = "multi_thread")]
async fn the_documented_permissions_are_enough() {
    let page = include_str!("../../../docs/engines/redlock.md");
    let line = page.lines().find(|line| line.starts_with("ACL SETUSER app")).expect("the page has the line");
    let nodes = RedisNodes::start(3, DURABLE);
    let words: Vec<&str> = line.split(' ').map(|word| if word == ">PASSWORD" { ">s3cret" } else { word }).collect();
    for server in &nodes.servers {
        assert_eq!(server.command(&words).trim(), "OK");
    }
    let url = nodes.url("").replace("redlock://", "redlock://app:s3cret@");
    let engine = open(&url).await.expect("it opens");
    let seat = engine.acquire(Claim { request: Some("r1".into()), ..claim("seat") }).await.expect("granted");
    let again = engine.acquire(Claim { request: Some("r1".into()), ..claim("seat") }).await.expect("the same");
    assert_eq!(seat.lease_id, again.lease_id);
    assert!(engine.acquire(claim("seat")).await.is_err());
    nodes.servers[0].command(&["FLUSHALL"]);
    let began = Instant::now();
    while nodes.holding("seat") < 3 {
        assert!(began.elapsed() < 8 * SECOND, "a renewal repairs the node that lost it");
        engine.renew(&seat.lease_id, None).await.expect("renewed");
        tokio::time::sleep(SECOND / 10).await;
    }
    assert!(engine.inspect("seat").await.expect("seen").is_some());
    let all = Query { prefix: String::new(), after: None, limit: 9 };
    assert_eq!(engine.list(all).await.expect("listed").len(), 1);
    engine.release(&seat.lease_id).await.expect("released");
    engine.acquire(claim("row")).await.expect("granted");
    assert_eq!(engine.revoke("row", "a drill").await.expect("revoked"), 1);
    engine.examine().await.expect("examined");
    engine.close().await.expect("closed");
    for server in &nodes.servers {
        assert_eq!(server.command(&["ACL", "LOG"]).trim(), "", "something was denied");
    }
    let refused = open(&url.replace("s3cret", "hunter2")).await.expect_err("a wrong password");
    assert!(matches!(&refused, Error::Invalid(_)) && !format!("{refused:?}").contains("hunter2"), "{refused:?}");
}

/// Goal: processes with different quarantines do not use the same nodes, where a quarantine matters.
/// Method: two engines on nodes that keep nothing; then on nodes that keep everything.
#[tokio::test(flavor = "multi_thread")]
async fn processes_agree_on_the_quarantine() {
    let nodes = RedisNodes::start(3, &[]);
    let first = open(&nodes.url("?quarantine=2s")).await.expect("it opens");
    open(&nodes.url("?quarantine=2s")).await.expect("the same is fine");
    let refused = open(&nodes.url("?quarantine=3s")).await.expect_err("another one is not");
    let sentence = refused.to_string();
    assert!(matches!(refused, Error::Invalid(_)), "{refused:?}");
    assert!(sentence.contains("quarantine=2000ms") && sentence.contains("62 s"), "{sentence}");
    // It is kept while it is used, and a little longer than the longest lease afterwards.
    let left = nodes.servers[0].command(&["PTTL", "leasehold:quarantine"]).trim().parse::<u64>().unwrap();
    assert!((55_000..=62_000).contains(&left), "{left}");
    first.close().await.expect("closed");
    nodes.flush_all();
    open(&nodes.url("?quarantine=3s")).await.expect("nobody uses another one now");
    let durable = RedisNodes::start(3, DURABLE);
    for query in ["?quarantine=2s", "?quarantine=3s"] {
        open(&durable.url(query)).await.expect("nodes that forget nothing have none");
    }
}
