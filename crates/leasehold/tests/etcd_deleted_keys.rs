//! Keys of the etcd engine that somebody deletes: a lease or a place in the queues is whole or over, and watches tell it.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)] // a real server lives in real time

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use leasehold::engine::etcd::{EtcdEngine, EtcdEngineOptions};
use leasehold::engine::{Claim, Engine, EventKind, Grant, Seen, Want};
use leasehold::{Error, Refusal};
use leasehold_harness::etcd::EtcdCluster;
use leasehold_harness::proxy::Proxy;
use tokio::time::timeout;

const MINUTE: Duration = Duration::from_secs(60);
/// Longer than anything here should take, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

async fn open(url: &str) -> Arc<EtcdEngine> {
    EtcdEngine::open(EtcdEngineOptions::from_url(url).unwrap()).await.expect("it opens")
}

fn claim(who: &str, names: &[&str]) -> Claim {
    Claim::new(names.iter().map(|name| Want::exclusive(*name)).collect(), MINUTE, who)
}

async fn take(engine: &EtcdEngine, who: &str, names: &[&str]) -> Grant {
    engine.acquire(claim(who, names)).await.unwrap_or_else(|error| panic!("{who} takes {names:?}: {error:?}"))
}

fn count_keys(cluster: &EtcdCluster, name: &str) -> usize {
    let keys = cluster.etcdctl(&["get", "--prefix", "--keys-only", &format!("{name}/")]);
    keys.lines().filter(|line| !line.is_empty()).count()
}

fn delete_key(cluster: &EtcdCluster, name: &str) {
    assert_eq!(cluster.etcdctl(&["del", "--prefix", &format!("{name}/")]).trim(), "1", "one key of {name}");
}

/// Goal: a lease of which any key is gone is over: its renewal is refused, by its own process and by another, nothing of it
/// keeps others out, and who came meanwhile is alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_with_a_deleted_key_is_over() {
    let cluster = EtcdCluster::start(1);
    let (engine, other) = (open(&cluster.url()).await, open(&cluster.url()).await);
    for (deleted, left) in [("r2", "r1"), ("r1", "r2")] {
        for renewer in [&engine, &other] {
            let ada = take(&engine, "ada", &["r1", "r2"]).await;
            delete_key(&cluster, deleted);
            let bob = take(&other, "bob", &[deleted]).await;
            let refused = renewer.renew(&ada.lease_id, None).await.expect_err("it is over");
            assert!(matches!(refused, Error::Refused(Refusal::Stale | Refusal::NotHeld)), "{deleted}: {refused:?}");
            let again = engine.renew(&ada.lease_id, None).await;
            assert!(matches!(again, Err(Error::Refused(_))), "{deleted}: {again:?}");
            let holders = other.inspect(deleted).await.unwrap().expect("bob has it").holders;
            assert_eq!(holders.len(), 1, "{deleted}: {holders:?}");
            other.renew(&bob.lease_id, None).await.expect("bob's is live");
            other.release(&bob.lease_id).await.expect("released");
            if deleted == "r1" && Arc::ptr_eq(renewer, &other) {
                // Another process knows a lease by its first key only. The rest goes by its owner, or with its time.
                continue;
            }
            let cy = take(&other, "cy", &[left]).await;
            other.release(&cy.lease_id).await.expect("released");
        }
    }
}

/// Goal: what is left of a lease whose first key is gone goes with a release, with a revoke through another process, and at the
/// latest with its time.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_of_a_lease_goes() {
    let cluster = EtcdCluster::start(1);
    let (engine, other) = (open(&cluster.url()).await, open(&cluster.url()).await);
    let asked = Claim { request: Some("once".into()), ..claim("ada", &["s1", "s2"]) };
    let ada = engine.acquire(asked.clone()).await.expect("free");
    delete_key(&cluster, "s1");
    let released = engine.release(&ada.lease_id).await;
    assert!(matches!(released, Err(Error::Refused(_))), "{released:?}");
    assert_eq!(count_keys(&cluster, "s2"), 0, "after a release");
    // A request has one effect, whatever became of its lease.
    let repeat = other.acquire(asked).await.expect("the same answer");
    assert_eq!((repeat.lease_id.expose(), repeat.remaining), (ada.lease_id.expose(), Duration::ZERO));

    take(&engine, "ada", &["s1", "s2"]).await;
    delete_key(&cluster, "s1");
    assert_eq!(other.revoke("s2", "to be free").await.expect("revoked"), 1);
    assert_eq!(count_keys(&cluster, "s2"), 0, "after a revoke");

    let gone = open(&cluster.url()).await;
    let short = Claim { ttl: Duration::from_secs(2), ..claim("ada", &["s1", "s2"]) };
    gone.acquire(short).await.expect("free");
    gone.close().await.expect("closed");
    delete_key(&cluster, "s1");
    let patient = Claim { wait: Duration::from_secs(6), ..claim("bob", &["s2"]) };
    other.acquire(patient).await.expect("its time is over");
}

/// Goal: a lapse with a delay closes only what the lease still had: a resource that is another holder's by then stays so.
#[tokio::test(flavor = "multi_thread")]
async fn a_lapse_does_not_close_what_another_holds() {
    let cluster = EtcdCluster::start(1);
    let engine = open(&cluster.url()).await;
    let short = Claim { ttl: Duration::from_millis(1500), delay: MINUTE, ..claim("ada", &["t1", "t2"]) };
    engine.acquire(short).await.expect("free");
    delete_key(&cluster, "t2");
    let bob = take(&engine, "bob", &["t2"]).await;
    let lapsed = async {
        while count_keys(&cluster, "t1") > 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(PATIENCE, lapsed).await.expect("a lease that is not whole is ended, not closed");
    engine.release(&bob.lease_id).await.expect("released");
    assert_eq!(count_keys(&cluster, "t2"), 0, "nothing is in the way");
}

/// Goal: a renewal through another process, after the longest hold is over, is refused at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_cap_that_is_over_refuses_at_once() {
    let cluster = EtcdCluster::start(1);
    let (engine, other) = (open(&cluster.url()).await, open(&cluster.url()).await);
    let capped = Claim { ttl: Duration::from_secs(2), max_hold: Some(Duration::from_secs(2)), ..claim("ada", &["cc"]) };
    let grant = engine.acquire(capped).await.expect("free");
    engine.close().await.expect("closed");
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let began = tokio::time::Instant::now();
        match other.renew(&grant.lease_id, None).await {
            Err(Error::Refused(Refusal::NotHeld)) => return,
            Ok(_) | Err(Error::Refused(_)) => {}
            Err(error) => panic!("{error:?}"),
        }
        assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    }
}

/// Goal: a place in the queues of which any key is gone is lost: its caller is told at once, and nothing of it stands in the
/// way of others.
#[tokio::test(flavor = "multi_thread")]
async fn a_place_with_a_deleted_key_is_lost() {
    let cluster = EtcdCluster::start(1);
    let engine = open(&cluster.url()).await;
    for (deleted, request) in [("q2", None), ("q1", None), ("q2", Some("r1")), ("q1", Some("r2"))] {
        let holder = take(&engine, "holder", &["q1", "q3"]).await;
        let waiting = {
            let claim = Claim { wait: MINUTE, request: request.map(Into::into), ..claim("ada", &["q1", "q2", "q3"]) };
            let engine = engine.clone();
            tokio::spawn(async move { engine.acquire(claim).await })
        };
        let is_in_line = async {
            while count_keys(&cluster, "q2") == 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(PATIENCE, is_in_line).await.expect("it waits");
        if deleted == "q1" {
            // The holder's key is there as well: only the one that waits.
            let keys = cluster.etcdctl(&["get", "--prefix", "--keys-only", "--sort-by=CREATE", "q1/"]);
            let key = keys.lines().rfind(|line| !line.is_empty()).unwrap();
            assert_eq!(cluster.etcdctl(&["del", key]).trim(), "1");
        } else {
            delete_key(&cluster, deleted);
        }
        engine.release(&holder.lease_id).await.expect("released");
        let lost = timeout(PATIENCE, waiting).await.expect("it is told").unwrap().expect_err("its place is lost");
        assert!(matches!(lost, Error::Unavailable { .. }), "{deleted}: {lost:?}");
        for name in ["q1", "q2", "q3"] {
            assert_eq!(count_keys(&cluster, name), 0, "{deleted} was deleted: {name}");
        }
        let again = Claim { request: request.map(Into::into), ..claim("ada", &["q1", "q2", "q3"]) };
        let again = engine.acquire(again).await.expect("the same request again, with nobody in the way");
        engine.release(&again.lease_id).await.expect("released");
    }
}

/// Goal: a watch loses nothing, however often its caller gives up waiting for the next event and comes again.
/// Method: leases whose keys are deleted, which has etcd asked about their time, over a slow connection; a caller that gives
/// up sooner than so many questions would take.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_is_dropped_again_and_again_loses_nothing() {
    const LEASES: usize = 120;
    let cluster = EtcdCluster::start(1);
    let proxy = Proxy::start(cluster.client_ports()[0]);
    let engine = open(&cluster.url()).await;
    let slow = open(&format!("etcd://127.0.0.1:{}", proxy.port())).await;
    let mut watch = slow.watch(None).await.expect("it watches");
    assert!(matches!(timeout(PATIENCE, watch.next()).await.unwrap().unwrap(), Seen::Reset(_)));
    proxy.delay(Duration::from_millis(20));
    let mut held = HashSet::new();
    for number in 0..LEASES {
        held.insert(take(&engine, "ada", &[&format!("w{number}")]).await.token.unwrap());
    }
    assert_eq!(cluster.etcdctl(&["del", "--prefix", "w"]).trim(), LEASES.to_string());
    let (mut granted, mut ended) = (HashSet::new(), HashSet::new());
    let until = tokio::time::Instant::now() + PATIENCE;
    while (granted.len(), ended.len()) != (LEASES, LEASES) {
        assert!(tokio::time::Instant::now() < until, "{} granted and {} ended were told", granted.len(), ended.len());
        let Ok(seen) = timeout(Duration::from_millis(300), watch.next()).await else { continue };
        match seen.expect("etcd answers") {
            Seen::Events(events) => {
                for event in events {
                    let told = if event.kind == EventKind::Granted { &mut granted } else { &mut ended };
                    assert!(told.insert(event.token.unwrap()), "told once: {event:?}");
                }
            }
            Seen::Reset(_) => panic!("nothing was lost, so there is no reset"),
        }
    }
    assert_eq!((&granted, &ended), (&held, &held));
}
