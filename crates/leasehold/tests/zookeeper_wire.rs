//! What the ZooKeeper engine costs: requests and round trips of a lease, and wakes of those who wait.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stderr)] // real servers live in real time

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leasehold::engine::zookeeper::{ZookeeperEngine, ZookeeperEngineOptions};
use leasehold::engine::{Claim, Engine, Want};
use leasehold_harness::proxy::Proxy;
use leasehold_harness::zookeeper::ZookeeperEnsemble;

const DELAY: Duration = Duration::from_millis(60);
const WAITERS: usize = 64;

fn claim(name: &str) -> Claim {
    Claim::new(vec![Want::exclusive(name)], Duration::from_secs(20), "ada")
}

fn packets(ensemble: &ZookeeperEnsemble) -> u64 {
    let text = ensemble.four_letter_word(0, "mntr");
    let line = text.lines().find_map(|line| line.strip_prefix("zk_packets_received\t"));
    line.and_then(|count| count.trim().parse().ok()).expect("a count")
}

/// Goal: a lease that nobody else wants is one round trip to take, to renew and to release: two requests, one and one. So it
/// is on a name that nobody took before: its directory is made with the node.
/// Method: the least of several spans behind a slow proxy, and the server's own count of requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_verb_is_one_round_trip() {
    let ensemble = ZookeeperEnsemble::start(1);
    for query in ["lease=minded", "lease=session", "lease=minded&layout=kazoo"] {
        let proxy = Proxy::start(ensemble.client_ports()[0]);
        let url = format!("zk://127.0.0.1:{}/wire?{query}", proxy.port());
        let engine = ZookeeperEngine::open(ZookeeperEngineOptions::from_url(&url).unwrap()).await.expect("it opens");
        let name = format!("seat {query}");
        let warm = engine.acquire(claim(&name)).await.expect("granted");
        engine.release(&warm.lease_id).await.expect("released");
        let before = packets(&ensemble);
        for _ in 0..50 {
            let grant = engine.acquire(claim(&name)).await.expect("granted");
            engine.renew(&grant.lease_id, None).await.expect("renewed");
            engine.release(&grant.lease_id).await.expect("released");
        }
        let asked = packets(&ensemble) - before;
        // Pings of sessions may come between, more of them on a slow machine. A request more for each lease would be 250.
        assert!((200..240).contains(&asked), "{query}: {asked} requests for 50 leases");
        let before = packets(&ensemble);
        for number in 0..50 {
            let grant = engine.acquire(claim(&format!("fresh {number} {query}"))).await.expect("granted");
            engine.release(&grant.lease_id).await.expect("released");
        }
        let asked = packets(&ensemble) - before;
        assert!((150..190).contains(&asked), "{query}: {asked} requests for 50 leases on new names");
        proxy.delay(DELAY);
        let began = Instant::now();
        engine.acquire(claim(&format!("slow {query}"))).await.expect("granted");
        let trips = began.elapsed().as_micros() / (DELAY.as_micros() * 2);
        assert_eq!(trips, 1, "{query}: round trips for a new name");
        let mut least = [Duration::MAX; 3];
        for _ in 0..5 {
            let began = Instant::now();
            let grant = engine.acquire(claim(&name)).await.expect("granted");
            least[0] = least[0].min(began.elapsed());
            let began = Instant::now();
            engine.renew(&grant.lease_id, None).await.expect("renewed");
            least[1] = least[1].min(began.elapsed());
            let began = Instant::now();
            engine.release(&grant.lease_id).await.expect("released");
            least[2] = least[2].min(began.elapsed());
        }
        let trips = least.map(|span| span.as_micros() / (DELAY.as_micros() * 2));
        assert_eq!(trips, [1, 1, 1], "{query}: {least:?}");
    }
}

/// Goal: 64 waiters get the name one after the other, in order of arrival; each release wakes one of them.
/// Method: one engine; no look but those that a watch asks for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_wakes_one() {
    let ensemble = ZookeeperEnsemble::start(1);
    for query in ["lease=minded", "lease=session", "lease=minded&layout=both"] {
        let url = format!("{}?{query}", ensemble.url("hand-over"));
        let mut options = ZookeeperEngineOptions::from_url(&url).unwrap();
        options.look_every = Duration::from_secs(3600);
        let engine = ZookeeperEngine::open(options).await.expect("it opens");
        let name = format!("seat {query}");
        let first = engine.acquire(claim(&name)).await.expect("granted");
        let log: Arc<Mutex<Vec<(usize, Instant, Instant)>>> = Arc::default();
        let mut waiters = Vec::new();
        for number in 0..WAITERS {
            let (engine, log) = (engine.clone(), log.clone());
            let asked = Claim { wait: Duration::from_secs(60), ..claim(&name) };
            let seen = engine.clone();
            waiters.push(tokio::spawn(async move {
                let grant = engine.acquire(asked).await.expect("granted");
                let granted = Instant::now();
                tokio::time::sleep(Duration::from_millis(2)).await;
                log.lock().unwrap().push((number, granted, Instant::now()));
                assert!(engine.release(&grant.lease_id).await.expect("released"));
            }));
            while seen.inspect(&name).await.unwrap().map_or(0, |seen| seen.queue_len) <= number {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        let before = engine.watch_wakes();
        assert!(engine.release(&first.lease_id).await.expect("released"));
        for waiter in waiters {
            waiter.await.unwrap();
        }
        let wakes = engine.watch_wakes() - before;
        let log = log.lock().unwrap();
        let order: Vec<usize> = log.iter().map(|(number, ..)| *number).collect();
        assert_eq!(order, (0..WAITERS).collect::<Vec<_>>(), "in order of arrival");
        let mut gaps: Vec<Duration> = log.windows(2).map(|pair| pair[1].1 - pair[0].2).collect();
        gaps.sort();
        eprintln!("{query}: hand-over p50 {:?}, worst {:?}, {wakes} wakes", gaps[gaps.len() / 2], gaps[gaps.len() - 1]);
        // One that came so soon that nothing was watched yet needs none.
        let expected = WAITERS as u64 / 2..=WAITERS as u64;
        assert!(expected.contains(&wakes), "{wakes} wakes for {WAITERS} releases with a waiter behind");
    }
}

/// How many pairs of acquire and release a second, for whoever asks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a figure, not a test"]
async fn pairs_per_second() {
    let ensemble = ZookeeperEnsemble::start(1);
    for query in ["lease=minded", "lease=session", "lease=minded&layout=both"] {
        let url = format!("{}?{query}", ensemble.url("figure"));
        let engine = ZookeeperEngine::open(ZookeeperEngineOptions::from_url(&url).unwrap()).await.expect("it opens");
        for (round, span) in [(0, 3), (1, 5)] {
            let (began, span) = (Instant::now(), Duration::from_secs(span));
            let workers: Vec<_> = (0..64)
                .map(|worker| {
                    let engine = engine.clone();
                    tokio::spawn(async move {
                        let mut pairs = 0_u64;
                        while began.elapsed() < span {
                            let grant = engine.acquire(claim(&format!("seat-{worker}"))).await.expect("granted");
                            assert!(engine.release(&grant.lease_id).await.expect("released"));
                            pairs += 1;
                        }
                        pairs
                    })
                })
                .collect();
            let mut pairs = 0;
            for worker in workers {
                pairs += worker.await.unwrap();
            }
            eprintln!("{query} round {round}: {:.0} pairs/s", pairs as f64 / span.as_secs_f64());
        }
    }
}
