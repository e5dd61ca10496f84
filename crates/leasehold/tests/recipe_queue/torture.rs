//! Queues on PostgreSQL under faults: worker processes are killed, stopped past their deliveries and woken, their connections
//! are ended, the server is restarted without warning. The judge reads what happened.
//!
//! `LEASEHOLD_QUEUE_JOBS` (jobs in each of the two queues) and `LEASEHOLD_QUEUE_SEED` change the run:
//! `LEASEHOLD_QUEUE_JOBS=5000 cargo test -p leasehold --all-features --test recipe_queue -- torture --nocapture`.

use std::process::Child;
use std::time::{Duration, Instant};

use leasehold::recipe::Store;
use leasehold_harness::postgres::Cluster;
use leasehold_harness::{Signal, send_signal};

use crate::judge::{INSTALL, judge};
use crate::worker::{Chance, VISIBLE, connect, start};

/// Jobs in each queue, where nobody says otherwise.
const DEFAULT_JOBS: i64 = 100;
/// Runs until one has a late end.
const MAX_RUNS: u64 = 4;
const KEYS: i64 = 9;
/// Workers, by what they are.
const KINDS: [&str; 6] = ["library", "library-keyed", "library-deduped", "hand", "hand-keyed", "hand-deduped"];
/// Dedupe ids, each with a state that changes.
const STATES: i64 = 3;

pub fn read_number(variable: &str, default: i64) -> i64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// What was done to the workers.
#[derive(Debug, Default)]
pub struct Faults {
    pub killed: u32,
    pub stopped: u32,
    pub cut: u32,
    pub restarts: u32,
}

/// The worker processes. Dropping this ends them.
pub struct Workers {
    pub url: String,
    pub running: Vec<(Child, String)>,
    pub kinds: Vec<&'static str>,
    stopped: Vec<(Instant, usize, u32)>,
    pub seed: u64,
}

impl Workers {
    pub fn start(url: &str, kinds: &[&'static str], seed: u64) -> Self {
        let mut workers =
            Self { url: url.to_owned(), running: Vec::new(), kinds: kinds.to_vec(), stopped: Vec::new(), seed };
        for at in 0..kinds.len() {
            let (child, name) = workers.start_one(at);
            workers.running.push((child, name));
        }
        workers
    }

    fn start_one(&mut self, at: usize) -> (Child, String) {
        self.seed += 1;
        let name = format!("w{at}");
        let url = if self.url.starts_with("sqlite:") {
            self.url.clone()
        } else {
            format!("{}?application_name={name}", self.url)
        };
        (start(self.kinds[at], &url, &name, self.seed), name)
    }

    pub fn kill(&mut self, at: usize) {
        let _ = self.running[at].0.kill();
        let _ = self.running[at].0.wait();
        self.stopped.retain(|(_, who, _)| *who != at);
        self.running[at] = self.start_one(at);
    }

    pub fn stop(&mut self, at: usize, span: Duration) {
        if self.stopped.iter().any(|(_, who, _)| *who == at) {
            return;
        }
        let pid = self.running[at].0.id();
        send_signal(pid, Signal::STOP);
        self.stopped.push((Instant::now() + span, at, pid));
    }

    /// Wakes those whose time has come.
    pub fn wake(&mut self, all: bool) {
        let now = Instant::now();
        let (due, later): (Vec<_>, Vec<_>) = self.stopped.drain(..).partition(|(until, ..)| all || *until <= now);
        self.stopped = later;
        due.into_iter().for_each(|(.., pid)| send_signal(pid, Signal::CONT));
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for (child, _) in &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Pushes jobs, each in a transaction with a row of the user's; every third is rolled back.
async fn push_jobs(url: String, jobs: i64, pace: Duration) {
    let mut number = 0;
    while number < 2 * jobs {
        let Ok(mut client) = connect(&url).await else {
            tokio::time::sleep(Duration::from_millis(30)).await;
            continue;
        };
        while number < 2 * jobs {
            let pushed = async {
                let tx = client.transaction().await?;
                tx.execute("INSERT INTO judge.pushed VALUES ($1)", &[&number]).await?;
                let (queue, key) =
                    if number % 2 == 0 { ("plain", None) } else { ("keyed", Some(format!("k{}", number % KEYS))) };
                let push = "SELECT leasehold.queue_push($1, to_jsonb($2::bigint), key => $3)";
                tx.execute(push, &[&queue, &number, &key]).await?;
                if number % 3 == 0 { tx.rollback().await } else { tx.commit().await }
            };
            let failed = pushed.await.is_err();
            // Without an answer nobody knows whether it was committed: the number is not used again.
            number += 1;
            tokio::time::sleep(pace).await;
            if failed && client.is_closed() {
                break;
            }
        }
    }
}

/// Changes states, and asks for a job that must see it in the same transaction; every third is rolled back. The transactions
/// are open for a while, so that they meet jobs that wait, run and end.
async fn push_changes(url: String, changes: i64, pace: Duration, seed: u64) {
    let mut chance = Chance::from_seed(seed);
    let mut number = 0;
    while number < changes {
        if let Ok(mut client) = connect(&url).await {
            while number < changes && !client.is_closed() {
                number += 1;
                let id = number % STATES;
                let open_for = Duration::from_millis(chance.below(60));
                let changed = async {
                    let tx = client.transaction().await?;
                    tx.execute("UPDATE judge.state SET version = version + 1 WHERE id = $1", &[&id]).await?;
                    let push = "SELECT leasehold.queue_push('deduped', to_jsonb(-1 - $1::bigint), dedupe => 'd' || $1)";
                    tx.execute(push, &[&id]).await?;
                    tokio::time::sleep(open_for).await;
                    if chance.below(3) == 0 { tx.rollback().await } else { tx.commit().await }
                };
                // One without an answer may have been committed: the row of the state knows.
                let _: Result<(), tokio_postgres::Error> = changed.await;
                tokio::time::sleep(pace).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
}

/// Runs the queues under faults, lets the judge decide, and returns how many late ends were refused.
async fn run_torture(jobs: i64, seed: u64) -> i64 {
    let cluster = Cluster::start(&["max_connections=100", "shared_buffers=64MB"]);
    let database = cluster.database().await;
    let url = cluster.url(&database);
    let store = Store::open(&url).await.unwrap();
    store.queue("plain").max_attempts(1000).visible(VISIBLE).open().await.unwrap();
    store.queue("keyed").by_key().max_attempts(1000).visible(VISIBLE).open().await.unwrap();
    store.queue("deduped").max_attempts(1000).visible(VISIBLE).open().await.unwrap();
    store.close().await;
    cluster.execute(&database, INSTALL).await;
    let states = format!("INSERT INTO judge.state SELECT i, 0 FROM generate_series(0, {}) i", STATES - 1);
    cluster.execute(&database, &states).await;
    let mut chance = Chance::from_seed(seed);
    let mut workers = Workers::start(&url, &KINDS, seed * 1000);
    let mut faults = Faults::default();
    let start = Instant::now();
    let faults_for = Duration::from_millis(4000 + 30 * jobs.unsigned_abs());
    // Pushed while there are faults, and not before them.
    let pace = faults_for.mul_f64(0.7) / u32::try_from(2 * jobs).unwrap_or(u32::MAX);
    let producer = tokio::spawn(push_jobs(url.clone(), jobs, pace));
    let changer = tokio::spawn(push_changes(url.clone(), jobs, pace, seed));
    let give_up = faults_for + Duration::from_secs(60);
    loop {
        tokio::time::sleep(Duration::from_millis(20 + chance.below(80))).await;
        workers.wake(false);
        let at = chance.below(KINDS.len() as u64) as usize;
        match chance.below(40) {
            _ if start.elapsed() > faults_for => {
                workers.wake(true);
                if producer.is_finished() && changer.is_finished() && is_drained(&url).await {
                    break;
                }
            }
            0..12 => {
                workers.kill(at);
                faults.killed += 1;
            }
            12..26 => {
                workers.stop(at, VISIBLE.mul_f64(0.2 + chance.below(20) as f64 / 10.0));
                faults.stopped += 1;
            }
            26..38 => {
                faults.cut += u32::try_from(cluster.terminate_backends(&database, &format!("w{at}")).await).unwrap_or(0)
            }
            _ => {
                cluster.crash();
                cluster.start_server();
                faults.restarts += 1;
            }
        }
        assert!(start.elapsed() < give_up, "seed {seed}: the queues did not drain, {faults:?}");
    }
    drop(workers);
    let seen = "SELECT count(*), count(DISTINCT version) FROM judge.seen";
    let seen = cluster.client(&database).await.query_one(seen, &[]).await.unwrap();
    println!("seed {seed}: {} runs saw {} changes", seen.get::<_, i64>(0), seen.get::<_, i64>(1));
    let verdict = judge(&cluster.client(&database).await, true).await;
    println!(
        "seed {seed}: {faults:?}, {} pushed, {} claims, {} lapsed, {} refused",
        verdict.pushed, verdict.claims, verdict.lapsed, verdict.refused
    );
    assert_eq!(verdict.violations, Vec::<String>::new(), "seed {seed}");
    // Faults that did nothing would prove nothing.
    assert!(verdict.lapsed > 0 && faults.killed > 0, "seed {seed}: {verdict:?}");
    verdict.refused
}

async fn is_drained(url: &str) -> bool {
    let Ok(client) = connect(url).await else { return false };
    let left = client.query_one("SELECT count(*) FROM leasehold.job", &[]).await;
    left.is_ok_and(|row| row.get::<_, i64>(0) == 0)
}

/// Goal: the laws of the queue hold while workers, connections and the server fail, and late ends are refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_laws_hold_under_faults_on_postgres() {
    let seed = read_number("LEASEHOLD_QUEUE_SEED", 1).unsigned_abs();
    let jobs = read_number("LEASEHOLD_QUEUE_JOBS", DEFAULT_JOBS);
    // Whether a late end meets a newer delivery is a matter of pace. A small run may have none: then there is another one.
    for run in 0..MAX_RUNS {
        if run_torture(jobs, seed + run).await > 0 {
            return;
        }
    }
    panic!("seed {seed}: no late end in {MAX_RUNS} runs");
}
