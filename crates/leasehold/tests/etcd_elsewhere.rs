//! What a process of the etcd engine promises of a lease that another process granted: never more than there is, whatever
//! etcd says of the time that is left.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)] // a real server lives in real time

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::engine::etcd::{EtcdEngine, EtcdEngineOptions};
use leasehold::engine::{Claim, Engine, Grant, Want};
use leasehold::{Error, Refusal};
use leasehold_harness::etcd::EtcdCluster;
use tokio::time::sleep;

const SECOND: Duration = Duration::from_secs(1);
/// How much earlier than `max_hold` another process may stop.
const CAP_SLACK: Duration = Duration::from_millis(1600);

async fn open(cluster: &EtcdCluster) -> Arc<EtcdEngine> {
    EtcdEngine::open(EtcdEngineOptions::from_url(&cluster.url()).unwrap()).await.expect("it opens")
}

fn claim(who: &str, name: &str, ttl: Duration) -> Claim {
    Claim::new(vec![Want::exclusive(name)], ttl, who)
}

/// Repeats a request until etcd answers; the second value is a moment before the repeat was sent.
async fn repeat(engine: &EtcdEngine, asked: &Claim) -> (Grant, Instant) {
    for _ in 0..20 {
        let sent = Instant::now();
        match engine.acquire(asked.clone()).await {
            Ok(grant) => return (grant, sent),
            Err(Error::Unavailable { .. } | Error::Indeterminate { .. }) => sleep(SECOND / 10).await,
            Err(other) => panic!("{other:?}"),
        }
    }
    panic!("etcd does not answer");
}

/// Takes it when it is free, and checks that it was not before this moment, nor much later.
async fn assert_free_after(engine: &EtcdEngine, name: &str, safe_until: Instant) {
    let patient = Claim { wait: SECOND * 30, ..claim("bob", name, SECOND) };
    engine.acquire(patient).await.expect("it becomes free");
    let now = Instant::now();
    assert!(now >= safe_until, "{name} is bob's {:?} before ada's time is over", safe_until - now);
    assert!(now < safe_until + SECOND * 3, "{name} is bob's {:?} after ada's time is over", now - safe_until);
}

/// Goal: a request that is repeated through another process, after etcd gave its leases their whole time anew, is promised no
/// more than there is: nobody else is granted before. It is of use too, and the end is within a ttl.
/// Method: the only member starts again; a third process had asked etcd about the lease before.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_elsewhere_is_promised_no_more_than_there_is() {
    let cluster = EtcdCluster::start(1);
    let (first, other, third) = (open(&cluster).await, open(&cluster).await, open(&cluster).await);
    let ttl = SECOND * 9;
    let asked = Claim { request: Some("r1".into()), ..claim("ada", "seat", ttl) };
    let grant = first.acquire(asked.clone()).await.expect("granted");
    assert!(matches!(third.acquire(claim("bob", "seat", ttl)).await, Err(Error::Refused(Refusal::Held { .. }))));
    sleep(SECOND * 4).await;
    cluster.restart(0);
    let (repeated, sent) = repeat(&other, &asked).await;
    assert_eq!((&repeated.lease_id, repeated.token), (&grant.lease_id, grant.token));
    assert!(repeated.remaining > SECOND && repeated.remaining <= ttl, "{repeated:?}");
    // Again, through the process that knows it now, and through the first one, which does not any more.
    let (again, sent_again) = repeat(&other, &asked).await;
    let (back, sent_back) = repeat(&first, &asked).await;
    assert!(back.remaining > SECOND && back.remaining <= ttl, "{back:?}");
    let ends = [sent + repeated.remaining, sent_again + again.remaining, sent_back + back.remaining];
    assert_free_after(&third, "seat", ends.into_iter().max().unwrap()).await;
    let (over, _) = repeat(&other, &asked).await;
    assert_eq!((&over.lease_id, over.remaining), (&grant.lease_id, Duration::ZERO), "a repeat does not revive it");
}

/// Goal: a new label through another process keeps the end, and a repeat there is promised no more than that.
/// Method: four leases, whose labels are changed at different parts of a second, each by a process that knows nothing yet; a
/// process that knows their ends well waits for them.
#[tokio::test(flavor = "multi_thread")]
async fn a_label_from_elsewhere_lengthens_no_promise() {
    let cluster = EtcdCluster::start(1);
    let (first, third) = (open(&cluster).await, open(&cluster).await);
    let others = [open(&cluster).await, open(&cluster).await, open(&cluster).await, open(&cluster).await];
    let ttl = SECOND * 9;
    let asked = |n: usize| Claim { request: Some(format!("r{n}")), ..claim("ada", &format!("seat/{n}"), ttl) };
    let mut leases = Vec::new();
    for n in 0..others.len() {
        leases.push(first.acquire(asked(n)).await.expect("granted").lease_id);
        // From here on it asks until it knows the end well.
        assert!(third.acquire(claim("bob", &format!("seat/{n}"), ttl)).await.is_err());
    }
    let mut waits = tokio::task::JoinSet::new();
    for (n, other) in others.iter().enumerate() {
        other.relabel(&leases[n], "ada, elsewhere").await.expect("it is live");
        let (repeated, sent) = repeat(other, &asked(n)).await;
        assert!(repeated.remaining <= ttl, "{repeated:?}");
        let third = third.clone();
        waits.spawn(async move { assert_free_after(&third, &format!("seat/{n}"), sent + repeated.remaining).await });
        sleep(SECOND / 4).await;
    }
    while let Some(done) = waits.join_next().await {
        done.unwrap();
    }
}

/// Goal: renewals through other processes never pass `max_hold`, and stop a little before it at most. After an election, only
/// the process that wrote the lease last goes on; to others the lease is Unavailable, and a repeat has nothing left.
/// Method: the only member starts again.
#[tokio::test(flavor = "multi_thread")]
async fn a_longest_hold_is_never_passed_elsewhere() {
    let cluster = EtcdCluster::start(1);
    let (first, other, third) = (open(&cluster).await, open(&cluster).await, open(&cluster).await);
    let (ttl, longest) = (SECOND * 8, SECOND * 12);
    let asked = Claim { request: Some("r1".into()), max_hold: Some(longest), ..claim("ada", "seat", ttl) };
    let began = Instant::now();
    let ada = first.acquire(asked.clone()).await.expect("granted").lease_id;
    let (earliest, latest) = (began + longest - CAP_SLACK, Instant::now() + longest);
    for engine in [&other, &third] {
        sleep(SECOND * 3).await;
        let sent = Instant::now();
        let renewal = engine.renew(&ada, Some(SECOND * 60)).await.expect("it is live");
        let renewable = renewal.renewable.expect("there is a longest hold");
        for end in [sent + renewal.remaining, sent + renewable] {
            assert!(earliest <= end && end <= latest, "{renewal:?}");
        }
    }
    cluster.restart(0);
    let (nothing, _) = repeat(&other, &asked).await;
    assert_eq!((&nothing.lease_id, nothing.remaining), (&ada, Duration::ZERO), "it cannot be told");
    for engine in [&first, &other] {
        let refused = engine.renew(&ada, None).await.expect_err("it cannot be told how long it was held");
        let Error::Unavailable { source, .. } = &refused else { panic!("{refused:?}") };
        assert!(source.to_string().contains("longest hold"), "{source}");
    }
    let sent = Instant::now();
    let renewal = third.renew(&ada, None).await.expect("it wrote the lease last");
    assert!(sent + renewal.remaining <= latest, "{renewal:?}");
    other.acquire(Claim { wait: SECOND * 30, ..claim("bob", "seat", SECOND) }).await.expect("it becomes free");
    let now = Instant::now();
    assert!(earliest <= now && now < latest + SECOND * 2, "{:?} after the grant", now - began);
}
