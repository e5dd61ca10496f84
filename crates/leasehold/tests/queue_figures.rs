//! What a queue does on PostgreSQL beside pgmq's statements written by hand, on this machine, now. Run by hand:
//! `cargo test --release -p leasehold --all-features --test queue_figures -- --ignored --nocapture`.
//!
//! Slices of the two take turns within a round, and a round compares only with itself. The statements
//! stand for pgmq's; they are written by hand, not taken from its source: SKIP LOCKED by id, an UPDATE of the visibility time, and a DELETE by id.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stdout)] // a real server lives in real time

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold::recipe::Store;
use leasehold_harness::postgres::Cluster;
use tokio_postgres::{Client, NoTls, Statement};

const WORKERS: usize = 16;
const BATCH: i32 = 10;
const SLICE: Duration = Duration::from_secs(3);
const ROUNDS: usize = 7;

/// pgmq's queue table, and its indexes.
const PGMQ: &str = "CREATE SCHEMA pgmq; CREATE TABLE pgmq.q_mail (msg_id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    read_ct int NOT NULL DEFAULT 0, enqueued_at timestamptz NOT NULL DEFAULT now(), vt timestamptz NOT NULL, message jsonb);
    CREATE INDEX q_mail_vt_idx ON pgmq.q_mail (vt ASC);
    ALTER TABLE pgmq.q_mail SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000)";
const PGMQ_READ: &str = "WITH cte AS (SELECT msg_id FROM pgmq.q_mail WHERE vt <= clock_timestamp() ORDER BY msg_id ASC
    LIMIT $1 FOR UPDATE SKIP LOCKED)
    UPDATE pgmq.q_mail m SET vt = clock_timestamp() + interval '30 s', read_ct = read_ct + 1 FROM cte
    WHERE m.msg_id = cte.msg_id RETURNING m.msg_id, m.read_ct, m.enqueued_at, m.vt, m.message";
const PGMQ_DELETE: &str = "DELETE FROM pgmq.q_mail WHERE msg_id = ANY ($1) RETURNING msg_id";
const TURN: &str = "SELECT job_id, token, attempt, ready_at, made_at, body
    FROM leasehold.queue_turn('mail', $1, $2, $3, '30 s', 'figures', coalesce($4, '-infinity'::timestamptz))";

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Design {
    Ours,
    Pgmq,
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    client
}

async fn fill(client: &Client, design: Design, jobs: i64) {
    let sql = match design {
        Design::Ours => {
            "INSERT INTO leasehold.job (queue_id, ready_at, max_attempts, body)
             SELECT (SELECT queue_id FROM leasehold.queue WHERE name = 'mail'), clock_timestamp(), 20, '{\"to\": \"ada\"}'
             FROM generate_series(1, $1::bigint)"
        }
        Design::Pgmq => {
            "INSERT INTO pgmq.q_mail (vt, message) SELECT clock_timestamp(), '{\"to\": \"ada\"}' FROM generate_series(1, $1::bigint)"
        }
    };
    client.execute(sql, &[&jobs]).await.unwrap();
}

/// One worker: claim, acknowledge, claim, as fast as it goes.
async fn work(client: Client, design: Design, stop: Arc<AtomicBool>, jobs: Arc<AtomicU64>) {
    let prepared: Vec<Statement> = match design {
        Design::Ours => vec![client.prepare(TURN).await.unwrap()],
        Design::Pgmq => vec![client.prepare(PGMQ_READ).await.unwrap(), client.prepare(PGMQ_DELETE).await.unwrap()],
    };
    let (mut done, mut token, mut since): (Vec<i64>, i64, Option<std::time::SystemTime>) = (Vec::new(), 0, None);
    let mut full_at = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        match design {
            Design::Ours => {
                let full = since.is_none() || Instant::now() >= full_at;
                let from = if full { None } else { since };
                let sent = Instant::now();
                let rows = client.query(&prepared[0], &[&BATCH, &done, &token, &from]).await.unwrap();
                if full {
                    full_at = Instant::now() + Duration::from_secs(1).max(sent.elapsed() * 10);
                }
                jobs.fetch_add(done.len() as u64, Ordering::Relaxed);
                done = rows.iter().map(|row| row.get(0)).collect();
                token = rows.first().map_or(0, |row| row.get(1));
                let first = rows.iter().map(|row| row.get::<_, std::time::SystemTime>(3)).min();
                since = if rows.len() < BATCH as usize { None } else { first };
            }
            Design::Pgmq => {
                let limit = i64::from(BATCH);
                let rows = client.query(&prepared[0], &[&limit]).await.unwrap();
                let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
                client.query(&prepared[1], &[&ids]).await.unwrap();
                jobs.fetch_add(ids.len() as u64, Ordering::Relaxed);
            }
        }
    }
    if !done.is_empty() {
        client.query("SELECT leasehold.queue_ack($1, $2)", &[&done, &token]).await.unwrap();
    }
}

/// Jobs per second of one slice.
async fn run_slice(url: &str, design: Design, slice: Duration) -> f64 {
    let (stop, jobs) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut workers = Vec::new();
    for _ in 0..WORKERS {
        workers.push(tokio::spawn(work(connect(url).await, design, stop.clone(), jobs.clone())));
    }
    let start = Instant::now();
    let before = jobs.load(Ordering::Relaxed);
    tokio::time::sleep(slice).await;
    let pace = (jobs.load(Ordering::Relaxed) - before) as f64 / start.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.await.unwrap();
    }
    pace
}

async fn prepare(cluster: &Cluster) -> (String, Client) {
    let database = cluster.database().await;
    let url = cluster.url(&database);
    let store = Store::open(&url).await.unwrap();
    store.queue("mail").open().await.unwrap();
    store.close().await;
    cluster.execute(&database, PGMQ).await;
    let client = connect(&url).await;
    (url, client)
}

fn start_server() -> Cluster {
    Cluster::start_on_disk(&["max_connections=60", "shared_buffers=512MB", "max_wal_size=4GB"])
}

fn print_ratios(what: &str, mut ratios: Vec<f64>) {
    ratios.sort_by(f64::total_cmp);
    println!("{what}: {:.2} ({:.2}..{:.2})", ratios[ratios.len() / 2], ratios[0], ratios[ratios.len() - 1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement for a quiet machine"]
async fn claim_and_ack_beside_pgmq() {
    let cluster = start_server();
    let (url, client) = prepare(&cluster).await;
    let mut ratios = Vec::new();
    for round in 0..ROUNDS {
        let mut pace = [0.0; 2];
        for step in 0..2 {
            let design = if (step + round) % 2 == 0 { Design::Ours } else { Design::Pgmq };
            client.batch_execute("TRUNCATE leasehold.job, pgmq.q_mail").await.unwrap();
            fill(&client, design, 120_000).await;
            client.batch_execute("ANALYZE").await.unwrap();
            pace[design as usize] = run_slice(&url, design, SLICE).await;
        }
        println!("round {round}: ours {:.0}, pgmq {:.0} jobs/s", pace[0], pace[1]);
        ratios.push(pace[0] / pace[1]);
    }
    print_ratios("claim + ack, 16 workers, batches of 10, ours : pgmq", ratios);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement for a quiet machine"]
async fn claim_and_ack_under_an_old_snapshot() {
    let cluster = start_server();
    let mut ratios = Vec::new();
    for round in 0..3 {
        let mut pace = [0.0; 2];
        for step in 0..2 {
            let (url, client) = prepare(&cluster).await;
            let design = if (step + round) % 2 == 0 { Design::Ours } else { Design::Pgmq };
            fill(&client, design, 300_000).await;
            client.batch_execute("ANALYZE").await.unwrap();
            let old = connect(&url).await;
            old.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM pg_class LIMIT 1").await.unwrap();
            pace[design as usize] = run_slice(&url, design, Duration::from_secs(8)).await;
            old.batch_execute("ROLLBACK").await.unwrap();
        }
        println!("round {round}: ours {:.0}, pgmq {:.0} jobs/s", pace[0], pace[1]);
        ratios.push(pace[0] / pace[1]);
    }
    print_ratios("the same for 8 s under an old snapshot, ours : pgmq", ratios);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement for a quiet machine"]
async fn turns_are_flat_in_the_number_of_jobs() {
    let cluster = start_server();
    let (url, client) = prepare(&cluster).await;
    for jobs in [10_000_i64, 100_000, 1_000_000] {
        client.batch_execute("TRUNCATE leasehold.job").await.unwrap();
        fill(&client, Design::Ours, jobs).await;
        client.batch_execute("ANALYZE; CHECKPOINT").await.unwrap();
        let worker = connect(&url).await;
        let turn = worker.prepare(TURN).await.unwrap();
        let pid: i32 = worker.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
        let (mut done, mut token): (Vec<i64>, i64) = (Vec::new(), 0);
        let turns = 900;
        let before = cpu_nanos(pid);
        for _ in 0..turns {
            let rows = worker.query(&turn, &[&BATCH, &done, &token, &None::<std::time::SystemTime>]).await.unwrap();
            done = rows.iter().map(|row| row.get(0)).collect();
            token = rows.first().map_or(0, |row| row.get(1));
        }
        let micros = (cpu_nanos(pid) - before) / 1000 / turns;
        println!("{jobs} jobs wait: a turn of {BATCH} takes {micros} us of CPU");
    }
}

/// CPU that a process has used so far: on a machine that does other things, more even than time.
fn cpu_nanos(pid: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap();
    text.split_whitespace().next().unwrap().parse().unwrap()
}
