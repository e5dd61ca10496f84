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
