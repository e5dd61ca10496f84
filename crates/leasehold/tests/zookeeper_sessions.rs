//! The ZooKeeper engine with session leases: ZooKeeper does not end one before the time that was promised, though the leader
//! counts a session from what its followers tell it now and then.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stderr)] // real servers live in real time

use std::time::{Duration, Instant};

use leasehold::engine::zookeeper::{ZookeeperEngine, ZookeeperEngineOptions};
use leasehold::engine::{Claim, Engine, Want};
use leasehold_harness::zookeeper::{ZookeeperEnsemble, ZookeeperSettings};
use zookeeper_client::Client;

const LEASES: usize = 8;
/// Short of the time after which the client pings, so that nothing but the renewal is sent meanwhile.
const IDLE: Duration = Duration::from_millis(720);

/// Goal: a session lease is there for as long as a renewal promised, even if nobody but a follower knows of that renewal.
/// Method: clients of a follower renew once after a time in which they are silent. Then that follower is cut off, before it tells the
/// leader whom it has heard of. The leader's clients see when the leases end. Ticks are short, and so are the sessions: a tenth of
/// one is less than the client's pings are apart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_that_only_a_follower_knows_of_is_kept() {
    let settings = ZookeeperSettings {
        partitions: true,
        tick: Duration::from_millis(250),
        lines: vec!["maxSessionTimeout=5000".into()],
        ..ZookeeperSettings::new(3)
    };
    let ensemble = ZookeeperEnsemble::start_with(settings);
    let leader = ensemble.leader();
    let follower = (leader + 1) % 3;
    let observer = Client::connect(&ensemble.hosts()[leader]).await.unwrap();
    let mut early = Vec::new();
    for round in 0..4 {
        let mut held = Vec::new();
        for at in 0..LEASES {
            let url = format!("zk://{}/locks?lease=session", ensemble.hosts()[follower]);
            let options = ZookeeperEngineOptions::from_url(&url).expect("a url");
            let engine = ZookeeperEngine::open(options).await.expect("it opens");
            let name = format!("seat-{round}-{at}");
            held.push((engine, name));
        }
        let ttl = held[0].0.longest_ttl();
        let granted = held.iter().map(|(engine, name)| {
            let (engine, claim) = (engine.clone(), Claim::new(vec![Want::exclusive(name)], ttl, "ada"));
            tokio::spawn(async move { engine.acquire(claim).await.expect("free").lease_id })
        });
        let mut leases = Vec::new();
        for grant in granted.collect::<Vec<_>>() {
            leases.push(grant.await.unwrap());
        }
        tokio::time::sleep(IDLE).await;
        let renewed = held.iter().zip(&leases).map(|((engine, _), lease)| {
            let (engine, lease) = (engine.clone(), lease.clone());
            tokio::spawn(async move {
                let renewal = engine.renew(&lease, None).await.expect("live");
                Instant::now() + renewal.remaining
            })
        });
        let mut promised = Vec::new();
        for renewal in renewed.collect::<Vec<_>>() {
            promised.push(renewal.await.unwrap());
        }
        ensemble.isolate(follower, true);
        let mut left: Vec<usize> = (0..LEASES).collect();
        let began = Instant::now();
        while !left.is_empty() {
            assert!(began.elapsed() < Duration::from_secs(20), "sessions end");
            let mut there = Vec::new();
            for at in left {
                let nodes = observer.list_children(&format!("/locks/{}", held[at].1)).await.unwrap();
                let now = Instant::now();
                if nodes.is_empty() {
                    early.extend(promised[at].checked_duration_since(now).filter(|early| !early.is_zero()));
                } else {
                    there.push(at);
                }
            }
            left = there;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        eprintln!("round {round}: the last of {ttl:?} ended {:?} after the renewals", began.elapsed());
        ensemble.isolate(follower, false);
        drop(held);
        while !ensemble.serves(follower) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    assert!(early.is_empty(), "{} of {} ended before their time: {early:?}", early.len(), 4 * LEASES);
}
