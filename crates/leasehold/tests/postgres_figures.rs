//! How fast the PostgreSQL engine is beside a bare client, on this machine, now. Run by hand:
//! `cargo test --release -p leasehold --features postgres --test postgres_figures -- --ignored --nocapture`.
//! `LEASEHOLD_POSTGRES_SETTINGS="fsync=off commit_delay=2000"` are settings of the server, to see what a disk changes.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stdout)] // a real server lives in real time

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold::engine::postgres::{PostgresEngine, PostgresEngineOptions};
use leasehold::engine::{Claim, Engine, Want};
use leasehold_harness::postgres::Cluster;
use tokio_postgres::Client;

const CALLERS: [usize; 2] = [64, 180];
const WAITERS: usize = 64;
const RUN: Duration = Duration::from_millis(700);
const ROUNDS: usize = 5;

/// Pairs of one run: every caller takes and frees its own name.
async fn run_callers<C: Clone + Send + 'static, F: Future<Output = ()> + Send>(
    callers: Vec<C>,
    pair: impl Fn(C, usize) -> F + Copy + Send + 'static,
) -> f64 {
    let (stop, pairs) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let began = Instant::now();
    let tasks: Vec<_> = callers
        .into_iter()
        .enumerate()
        .map(|(at, caller)| {
            let (stop, pairs) = (stop.clone(), pairs.clone());
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    pair(caller.clone(), at).await;
                    pairs.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    tokio::time::sleep(RUN).await;
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    pairs.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64()
}

/// CPU of this process so far, in seconds.
fn own_cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    ticks as f64 / 100.0
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

async fn engine_pair(engine: Arc<PostgresEngine>, at: usize) {
    let claim = Claim::new(vec![Want::exclusive(format!("seat-{at}"))], Duration::from_secs(30), "bench");
    let grant = engine.acquire(claim).await.expect("free");
    engine.release(&grant.lease_id).await.expect("live");
}

#[derive(Clone)]
struct Bare(Arc<(Client, tokio_postgres::Statement, tokio_postgres::Statement)>);

async fn bare_pair(bare: Bare, at: usize) {
    let (client, take, free) = &*bare.0;
    let name = format!("seat-{at}");
    client.query(take, &[&name, &"bench"]).await.expect("free");
    client.execute(free, &[&name, &"bench"]).await.expect("held");
}

async fn bare_clients(cluster: &Cluster, database: &str, callers: usize) -> Vec<Bare> {
    let table = "CREATE TABLE bare (name text PRIMARY KEY, owner text, ends timestamptz, token bigint); CREATE SEQUENCE bare_token";
    cluster.execute(database, table).await;
    let mut all = Vec::new();
    for _ in 0..callers {
        let client = cluster.client(database).await;
        let take = "INSERT INTO bare AS b VALUES ($1, $2, clock_timestamp() + interval '30 s', nextval('bare_token')) \
                    ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, ends = excluded.ends, token = excluded.token \
                    WHERE b.ends < clock_timestamp() RETURNING token";
        let take = client.prepare(take).await.unwrap();
        let free = client.prepare("DELETE FROM bare WHERE name = $1 AND owner = $2").await.unwrap();
        all.push(Bare(Arc::new((client, take, free))));
    }
    all
}

/// Pairs and CPU beside a bare client, and how long a hand-over takes with 64 waiters.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "figures, not a check"]
async fn figures() {
    let asked = std::env::var("LEASEHOLD_POSTGRES_SETTINGS").unwrap_or_default();
    let settings: Vec<&str> = ["max_connections=300"].into_iter().chain(asked.split_whitespace()).collect();
    let cluster = Cluster::start_on_disk(&settings);
    for callers in CALLERS {
        compare_pairs(&cluster, callers).await;
    }
    let options = PostgresEngineOptions::from_url(&cluster.url(&cluster.database().await)).unwrap();
    hand_over(&PostgresEngine::open(options).await.unwrap()).await;
}

/// Medians of interleaved runs: the bare clients, and engines with their own choice of connections, one and two.
async fn compare_pairs(cluster: &Cluster, callers: usize) {
    let database = cluster.database().await;
    let bare = bare_clients(cluster, &database, callers).await;
    let mut engines = Vec::new();
    for connections in ["", "?connections=1", "?connections=2"] {
        let options = PostgresEngineOptions::from_url(&format!("{}{connections}", cluster.url(&database))).unwrap();
        engines.push((connections, PostgresEngine::open(options).await.unwrap(), Vec::new()));
    }
    let mut bare_runs = Vec::new();
    let cpu = || cluster.cpu_time().as_secs_f64() + own_cpu();
    for _ in 0..ROUNDS {
        let before = cpu();
        let rate = run_callers(bare.clone(), bare_pair).await;
        bare_runs.push((rate, (cpu() - before) / (rate * RUN.as_secs_f64())));
        for (_, engine, runs) in &mut engines {
            let before = cpu();
            let rate = run_callers(vec![engine.clone(); callers], engine_pair).await;
            runs.push((rate, (cpu() - before) / (rate * RUN.as_secs_f64())));
        }
    }
    let medians = |runs: &[(f64, f64)]| {
        (median(runs.iter().map(|run| run.0).collect()), median(runs.iter().map(|run| run.1 * 1e6).collect()))
    };
    let (bare_rate, bare_cpu) = medians(&bare_runs);
    println!("bare, {callers} callers, a connection each: {bare_rate:.0} pairs/s, {bare_cpu:.0} us of CPU a pair");
    for (connections, _, runs) in &engines {
        let (rate, cpu) = medians(runs);
        println!(
            "  engine {connections}: {rate:.0} pairs/s ({:.2}), {cpu:.0} us of CPU (1/{:.2})",
            rate / bare_rate,
            bare_cpu / cpu
        );
    }
}

async fn hand_over(engine: &Arc<PostgresEngine>) {
    let claim = |wait| Claim { wait, ..Claim::new(vec![Want::exclusive("one")], Duration::from_secs(60), "bench") };
    let first = engine.acquire(claim(Duration::ZERO)).await.unwrap();
    let last = Arc::new(std::sync::Mutex::new(None::<Instant>));
    let tasks: Vec<_> = (0..WAITERS)
        .map(|_| {
            let (engine, last, claim) = (engine.clone(), last.clone(), claim(Duration::from_secs(60)));
            tokio::spawn(async move {
                let grant = engine.acquire(claim).await.unwrap();
                let waited = last.lock().unwrap().map(|released| released.elapsed());
                *last.lock().unwrap() = Some(Instant::now());
                engine.release(&grant.lease_id).await.unwrap();
                waited.map_or(0.0, |waited| waited.as_secs_f64() * 1000.0)
            })
        })
        .collect();
    while engine.inspect("one").await.unwrap().is_none_or(|one| one.queue_len < WAITERS) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    *last.lock().unwrap() = Some(Instant::now());
    engine.release(&first.lease_id).await.unwrap();
    let mut spans = Vec::new();
    for task in tasks {
        spans.push(task.await.unwrap());
    }
    spans.sort_by(f64::total_cmp);
    println!("hand-over with {WAITERS} waiters: p50 {:.2} ms, p99 {:.2} ms", spans[WAITERS / 2], spans[WAITERS - 1]);
}
