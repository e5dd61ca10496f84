//! Hand-over and refusals on etcd and ZooKeeper, beside what their own clients do in the same run.
//!
//! ```text
//! cargo test --workspace --all-features --test consensus_figures -- --ignored --nocapture --test-threads=1
//! ```
//!
//! The directory of the servers is `LEASEHOLD_FIGURES_DIR`, else `/var/tmp`: a real disk. `scripts/figures consensus` reads the lines
//! that begin with `figure`.
#![cfg(all(feature = "etcd", feature = "zookeeper"))]
#![allow(clippy::disallowed_methods, clippy::print_stdout, reason = "figures, with real servers in real time")]

#[path = "support/etcd_calls.rs"]
mod etcd_calls;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use etcd_calls::EtcdConnection;
use leasehold::engine::etcd::{EtcdEngine, EtcdEngineOptions};
use leasehold::engine::zookeeper::{ZookeeperEngine, ZookeeperEngineOptions};
use leasehold::engine::{Claim, Engine, Want};
use leasehold::{Error, Refusal};
use leasehold_harness::etcd::{EtcdCluster, EtcdSettings};
use leasehold_harness::zookeeper::{ZookeeperEnsemble, ZookeeperSettings};
use tokio::task::JoinSet;

const WAITERS: usize = 64;
const SLICES: usize = 10;
const SLICE: Duration = Duration::from_secs(1);

/// What those who hand something on share.
#[derive(Default)]
struct Baton {
    released: Mutex<Option<Instant>>,
    spans: Mutex<Vec<Duration>>,
    counting: AtomicBool,
    ended: AtomicBool,
}

impl Baton {
    /// Called with the grant: notes the span since the last release.
    fn granted(&self) {
        let now = Instant::now();
        let released = self.released.lock().expect("nobody panics with it").take();
        if let Some(released) = released.filter(|_| self.counting.load(Ordering::Relaxed)) {
            self.spans.lock().expect("nobody panics with it").push(now - released);
        }
    }

    fn releasing(&self) {
        *self.released.lock().expect("nobody panics with it") = Some(Instant::now());
    }

    /// Lets it run for a while, then counts for a slice. The tasks end by themselves.
    async fn measure(&self) -> Duration {
        tokio::time::sleep(SLICE / 4).await;
        self.counting.store(true, Ordering::Relaxed);
        tokio::time::sleep(SLICE).await;
        self.counting.store(false, Ordering::Relaxed);
        self.ended.store(true, Ordering::Relaxed);
        median(self.spans.lock().expect("nobody panics with it").clone())
    }
}

fn median<T: Ord + Copy>(mut all: Vec<T>) -> T {
    all.sort_unstable();
    all[all.len() / 2]
}

fn root() -> Option<PathBuf> {
    Some(std::env::var_os("LEASEHOLD_FIGURES_DIR").map_or_else(|| "/var/tmp".into(), PathBuf::from))
}

/// One slice of our hand-overs.
async fn ours(engine: &Arc<dyn Engine>, name: &str) -> Duration {
    let baton = Arc::new(Baton::default());
    let mut tasks = JoinSet::new();
    for _ in 0..WAITERS {
        let (engine, baton, name) = (engine.clone(), baton.clone(), name.to_owned());
        tasks.spawn(async move {
            while !baton.ended.load(Ordering::Relaxed) {
                let wait = Duration::from_secs(30);
                let claim = Claim { wait, ..Claim::new(vec![Want::exclusive(&name)], Duration::from_secs(20), "ours") };
                let grant = engine.acquire(claim).await.expect("its turn comes");
                baton.granted();
                baton.releasing();
                engine.release(&grant.lease_id).await.expect("released");
            }
        });
    }
    let found = baton.measure().await;
    tasks.join_all().await;
    found
}

/// One slice of hand-overs by Go's mutexes in the server.
async fn by_go(cluster: &EtcdCluster, name: &str) -> Duration {
    let baton = Arc::new(Baton::default());
    let mut tasks = JoinSet::new();
    for worker in 0..WAITERS {
        let endpoint = cluster.endpoints()[worker % cluster.endpoints().len()].clone();
        let (baton, name) = (baton.clone(), name.to_owned());
        tasks.spawn(async move {
            let mut etcd = EtcdConnection::new(&endpoint);
            let lease = etcd.grant_lease(60).await;
            while !baton.ended.load(Ordering::Relaxed) {
                let (key, _) = etcd.lock(&name, lease).await;
                baton.granted();
                baton.releasing();
                etcd.unlock(key).await;
            }
        });
    }
    let found = baton.measure().await;
    tasks.join_all().await;
    found
}

async fn open_etcd(cluster: &EtcdCluster) -> Arc<dyn Engine> {
    EtcdEngine::open(EtcdEngineOptions::from_url(&cluster.url()).expect("a url")).await.expect("it opens")
}

/// Prints the medians over slices taken in turn: of ours, of theirs, and of the ratios of neighbours.
fn print(figure: &str, pairs: &[(u128, u128)]) {
    let ratio = |(ours, theirs): &(u128, u128)| ours * 1000 / (*theirs).max(1);
    let (ours, theirs) = pairs.iter().copied().unzip::<_, _, Vec<_>, Vec<_>>();
    let ratio = median(pairs.iter().map(ratio).collect());
    let (ours, theirs) = (median(ours), median(theirs));
    println!("figure {figure} ours {ours} theirs {theirs} ratio {}.{:03}", ratio / 1000, ratio % 1000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a figure, not a law"]
async fn etcd_hands_over_beside_go() {
    for members in [1, 3] {
        let cluster = EtcdCluster::start_with(EtcdSettings { root: root(), ..EtcdSettings::new(members) });
        let engine = open_etcd(&cluster).await;
        let mut pairs = Vec::new();
        for slice in 0..SLICES {
            let theirs = by_go(&cluster, &format!("go-{slice}")).await;
            let ours = ours(&engine, &format!("ours-{slice}")).await;
            pairs.push((ours.as_micros(), theirs.as_micros()));
        }
        print(&format!("etcd-handover-us-{members}"), &pairs);
        engine.close().await.expect("closed");
    }
}

/// One slice of refusals: how many there were.
async fn count_in_slice<F: Future<Output = ()> + Send + 'static>(
    ask: impl Fn(usize, Arc<AtomicU64>, Arc<AtomicBool>) -> F,
) -> u128 {
    let (count, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let mut tasks = JoinSet::new();
    for worker in 0..WAITERS {
        tasks.spawn(ask(worker, count.clone(), ended.clone()));
    }
    tokio::time::sleep(SLICE / 4).await;
    let before = count.load(Ordering::Relaxed);
    tokio::time::sleep(SLICE).await;
    let found = count.load(Ordering::Relaxed) - before;
    ended.store(true, Ordering::Relaxed);
    tasks.join_all().await;
    u128::from(found)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a figure, not a law"]
async fn etcd_refuses_beside_failing_transactions() {
    for members in [1, 3] {
        let cluster = EtcdCluster::start_with(EtcdSettings { root: root(), ..EtcdSettings::new(members) });
        let engine = open_etcd(&cluster).await;
        let mut holder = EtcdConnection::new(&cluster.endpoints()[0]);
        let lease = holder.grant_lease(600).await;
        assert!(holder.put_if_absent("held-by-them", lease).await);
        let hour = Duration::from_secs(3600);
        engine.acquire(Claim::new(vec![Want::exclusive("held")], hour, "ours")).await.expect("it is free");
        let mut pairs = Vec::new();
        for _ in 0..SLICES {
            let endpoints = cluster.endpoints();
            let theirs = count_in_slice(|worker, count, ended| {
                let endpoint = endpoints[worker % endpoints.len()].clone();
                async move {
                    let mut etcd = EtcdConnection::new(&endpoint);
                    while !ended.load(Ordering::Relaxed) {
                        assert!(!etcd.put_if_absent("held-by-them", lease).await);
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
            let theirs = theirs.await;
            let ours = count_in_slice(|_, count, ended| {
                let engine = engine.clone();
                async move {
                    while !ended.load(Ordering::Relaxed) {
                        let claim = Claim::new(vec![Want::exclusive("held")], Duration::from_secs(20), "ours");
                        let refused = engine.acquire(claim).await.expect_err("it is held");
                        assert!(matches!(refused, Error::Refused(Refusal::Held { .. })), "{refused:?}");
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
            pairs.push((ours.await, theirs));
        }
        print(&format!("etcd-refusals-per-s-{members}"), &pairs);
        engine.close().await.expect("closed");
    }
}

/// One slice of hand-overs by kazoo, in a process of its own.
fn by_kazoo(ensemble: &ZookeeperEnsemble, name: &str) -> u128 {
    let python = std::env::var("LEASEHOLD_PYTHON").expect("LEASEHOLD_PYTHON names a Python with kazoo");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/clients/python/handoff_kazoo.py");
    let hosts = ensemble.hosts().join(",");
    let ran = std::process::Command::new(python)
        .args([script, &hosts, &format!("/kazoo/{name}"), &WAITERS.to_string(), &SLICE.as_secs().to_string()])
        .output()
        .expect("kazoo runs");
    let text = String::from_utf8_lossy(&ran.stdout);
    let found = text.split_whitespace().next().and_then(|number| number.parse().ok());
    found.unwrap_or_else(|| panic!("kazoo: {}", String::from_utf8_lossy(&ran.stderr)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a figure, not a law"]
async fn zookeeper_hands_over_beside_kazoo() {
    for servers in [1, 3] {
        let settings =
            ZookeeperSettings { root: root(), tick: Duration::from_secs(2), ..ZookeeperSettings::new(servers) };
        let ensemble = Arc::new(ZookeeperEnsemble::start_with(settings));
        for lease in ["minded", "session"] {
            let url = format!("{}?lease={lease}", ensemble.url("/ours"));
            let options = ZookeeperEngineOptions::from_url(&url).expect("a url");
            let engine: Arc<dyn Engine> = ZookeeperEngine::open(options).await.expect("it opens");
            let mut pairs = Vec::new();
            for slice in 0..SLICES {
                let (at, name) = (ensemble.clone(), format!("{lease}-{slice}"));
                let theirs = tokio::task::spawn_blocking(move || by_kazoo(&at, &name)).await.expect("kazoo runs");
                pairs.push((ours(&engine, &format!("ours-{slice}")).await.as_micros(), theirs));
            }
            print(&format!("zookeeper-handover-us-{lease}-{servers}"), &pairs);
            engine.close().await.expect("closed");
        }
    }
}
