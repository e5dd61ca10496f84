//! What a lease on etcd costs on the wire, and what a refusal costs etcd.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stderr)] // a real server lives in real time

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::engine::etcd::{EtcdEngine, EtcdEngineOptions};
use leasehold::engine::{Claim, Engine, Want};
use leasehold::{Error, Refusal};
use leasehold_harness::etcd::EtcdCluster;
use leasehold_harness::proxy::Proxy;

/// The delay in each direction.
const DELAY: Duration = Duration::from_millis(60);
const TRIES: usize = 5;
const MINUTE: Duration = Duration::from_secs(60);

async fn open(url: &str) -> Arc<EtcdEngine> {
    EtcdEngine::open(EtcdEngineOptions::from_url(url).unwrap()).await.expect("it opens")
}

fn claim(name: &str) -> Claim {
    Claim::new(vec![Want::exclusive(name)], MINUTE, "ada")
}

/// Counts in round trips, the least of several: a busy machine makes spans longer, never shorter.
fn trips(least: Duration) -> u128 {
    least.as_micros() / (DELAY.as_micros() * 2)
}

/// Goal: an acquire that finds its name free, a renewal, and a release are one round trip each: of one resource and of
/// three, with patience and without. Through another process a release of one resource is one, too.
/// Method: the least of five spans behind a proxy that holds every message back.
#[tokio::test(flavor = "multi_thread")]
async fn each_verb_takes_one_round_trip() {
    let cluster = EtcdCluster::start(1);
    let proxies = [Proxy::start(cluster.client_ports()[0]), Proxy::start(cluster.client_ports()[0])];
    let at = |proxy: &Proxy| format!("etcd://127.0.0.1:{}", proxy.port());
    let (engine, other) = (open(&at(&proxies[0])).await, open(&at(&proxies[1])).await);
    for engine in [&engine, &other] {
        // What the first call prepares is not counted.
        let grant = engine.acquire(claim("warm")).await.expect("it is free");
        engine.renew(&grant.lease_id, None).await.expect("renewed");
        engine.release(&grant.lease_id).await.expect("it is held");
    }
    proxies.iter().for_each(|proxy| proxy.delay(DELAY));
    let several = |n: usize| ["a", "b", "c"].map(|part| Want::exclusive(format!("{part} {n}"))).to_vec();
    for (what, wants, wait) in [
        ("one", None, Duration::ZERO),
        ("one with patience", None, MINUTE),
        ("three", Some(3), Duration::ZERO),
        ("three with patience", Some(3), MINUTE),
    ] {
        let mut least = [Duration::MAX; 4];
        for n in 0..TRIES {
            let wants = wants.map_or_else(|| vec![Want::exclusive(format!("seat {n}"))], |_| several(n));
            let claim = Claim { wants: wants.clone(), wait, ..claim("") };
            let began = Instant::now();
            let grant = engine.acquire(claim.clone()).await.expect("it is free");
            least[0] = least[0].min(began.elapsed());
            let began = Instant::now();
            engine.renew(&grant.lease_id, None).await.expect("it is held");
            least[1] = least[1].min(began.elapsed());
            let began = Instant::now();
            assert!(engine.release(&grant.lease_id).await.expect("it is held"));
            least[2] = least[2].min(began.elapsed());
            let grant = engine.acquire(claim).await.expect("it is free");
            let began = Instant::now();
            assert!(other.release(&grant.lease_id).await.expect("it is held"));
            least[3] = least[3].min(began.elapsed());
        }
        let [acquire, renew, release, by_other] = least.map(trips);
        assert_eq!([acquire, renew, release], [1, 1, 1], "{what}: acquire, renew, release");
        // Of several resources, another process has to read which ones. A reply may come in two parts, each of which is held
        // back: two such replies look like one round trip more.
        let expected = if wants.is_some() { 2..=3 } else { 1..=1 };
        assert!(expected.contains(&by_other), "{what}: {by_other} for a release by another");
    }
}

/// Goal: a try that is refused costs etcd no write when the name was seen held a moment ago.
/// Method: etcd's own count of proposals while one name is asked for again and again.
#[tokio::test(flavor = "multi_thread")]
async fn refusals_are_reads() {
    let cluster = EtcdCluster::start(1);
    let (holder, engine) = (open(&cluster.url()).await, open(&cluster.url()).await);
    holder.acquire(claim("seat")).await.expect("it is free");
    let refuse = async || match engine.acquire(claim("seat")).await {
        Err(Error::Refused(Refusal::Held { holder, queue_len, .. })) => {
            assert_eq!((holder.as_deref(), queue_len), (Some("ada"), 0))
        }
        other => panic!("{other:?}"),
    };
    refuse().await;
    let proposals = || cluster.metric(0, "etcd_server_proposals_applied_total");
    let before = proposals();
    for _ in 0..200 {
        refuse().await;
    }
    let written = proposals() - before;
    // Sessions are kept alive meanwhile, and buckets opened.
    assert!(written < 20.0, "{written} proposals for 200 refusals");
}
