//! Transactions of the user's that are open on jobs which workers have: they hold up those jobs, and no others.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use leasehold::recipe::Store;
use leasehold::recipe::queue::{Delivery, Nack};
use tokio_postgres::Client;

use crate::support::{cluster, quick, wait_for};

/// Less than the time after which PostgreSQL gives up a lock for a session of a store.
const PROMPT: Duration = Duration::from_millis(4500);

/// A transaction that asks for this job again, and stays open.
async fn hold(client: &Client, dedupe: &str) {
    let push = format!("BEGIN; SELECT leasehold.queue_push('plain', '0', dedupe => '{dedupe}')");
    client.batch_execute(&push).await.unwrap();
}

/// Goal: a job that cannot be extended costs the others of its claim nothing, and no claim is held up by it.
/// Method: eight jobs of one claim run for longer than their deliveries last. A transaction is open on the first for all that
/// time. Another job is pushed meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_is_locked_costs_no_other_its_delivery() {
    let database = cluster().database().await;
    let store = Store::open(&cluster().url(&database)).await.unwrap();
    let queue = quick(&store, "plain").visible(Duration::from_secs(3)).open().await.unwrap();
    queue.push(&0).dedupe("d").await.unwrap();
    for number in 1..8 {
        queue.push(&number).await.unwrap();
    }
    let client = cluster().client(&database).await;
    let runs: Mutex<BTreeMap<i64, u32>> = Mutex::default();
    let ended = AtomicU32::new(0);
    let late_one = Mutex::new(None);
    let handler = async |job: Delivery<i64>| {
        let run = *runs.lock().unwrap().entry(*job.body()).and_modify(|runs| *runs += 1).or_insert(1);
        match *job.body() {
            0 if run == 1 => {
                hold(&client, "d").await;
                tokio::time::sleep(Duration::from_secs(60)).await;
            }
            99 => *late_one.lock().unwrap() = Some(Instant::now()),
            0 => {}
            _ => tokio::time::sleep(Duration::from_secs(7)).await,
        }
        ended.fetch_add(1, Ordering::SeqCst);
        Ok::<(), Nack>(())
    };
    let all = async {
        // The first extension, at a third of the time, has met the transaction.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let pushed = Instant::now();
        queue.push(&99).await.unwrap();
        wait_for("the others", || ended.load(Ordering::SeqCst) == 8).await;
        client.batch_execute("COMMIT").await.unwrap();
        wait_for("the job that was locked", || ended.load(Ordering::SeqCst) == 9).await;
        let waited = late_one.lock().unwrap().unwrap().duration_since(pushed);
        assert!(waited < Duration::from_secs(2), "a claim waited for the transaction: {waited:?}");
    };
    let report = queue.work(9, handler).until(all).await.unwrap();
    let runs = runs.into_inner().unwrap();
    assert_eq!(runs.get(&0), Some(&2), "{runs:?}");
    assert!((1..8).all(|number| runs.get(&number) == Some(&1)), "others were cut off: {runs:?}");
    assert_eq!((report.acked, report.lost, report.stale), (9, 1, 0));
}

/// Goal: one that cannot be acknowledged does not keep others of its claim from being acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_is_locked_keeps_no_other_from_its_end() {
    let database = cluster().database().await;
    let store = Store::open(&cluster().url(&database)).await.unwrap();
    let queue = quick(&store, "plain").open().await.unwrap();
    queue.push(&0).dedupe("d").await.unwrap();
    for number in 1..4 {
        queue.push(&number).await.unwrap();
    }
    let client = cluster().client(&database).await;
    let (runs, held) = (AtomicU32::new(0), AtomicBool::new(false));
    let handler = async |job: Delivery<i64>| {
        if *job.body() == 0 && !held.swap(true, Ordering::SeqCst) {
            hold(&client, "d").await;
        } else if *job.body() > 0 {
            wait_for("the transaction", || held.load(Ordering::SeqCst)).await;
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        runs.fetch_add(1, Ordering::SeqCst);
        Ok::<(), Nack>(())
    };
    let all = async {
        wait_for("all", || runs.load(Ordering::SeqCst) == 4).await;
        let began = Instant::now();
        while queue.status().await.unwrap().taken > 1 {
            assert!(began.elapsed() < PROMPT, "the others were not acknowledged");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        client.batch_execute("COMMIT").await.unwrap();
        wait_for("the run that was asked for", || runs.load(Ordering::SeqCst) == 5).await;
    };
    let report = queue.work(4, handler).until(all).await.unwrap();
    assert_eq!((report.acked, report.stale, report.lost), (5, 0, 0));
}

/// Goal: one that cannot be given back does not keep others from it, nor the worker from new jobs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_job_that_is_locked_keeps_no_other_from_its_next_try() {
    let database = cluster().database().await;
    let store = Store::open(&cluster().url(&database)).await.unwrap();
    let queue = quick(&store, "plain").open().await.unwrap();
    queue.push(&0).dedupe("d").await.unwrap();
    let client = cluster().client(&database).await;
    let (runs, others) = (AtomicU32::new(0), AtomicU32::new(0));
    let handler = async |job: Delivery<i64>| match *job.body() {
        0 if runs.fetch_add(1, Ordering::SeqCst) == 0 => {
            hold(&client, "d").await;
            for number in 1..6 {
                queue.push(&number).await.unwrap();
            }
            Err(Nack::after(Duration::ZERO, "once"))
        }
        0 => Ok(()),
        _ if job.attempt() == 1 => Err(Nack::after(Duration::ZERO, "once")),
        _ => {
            others.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }
    };
    let all = async {
        wait_for("the first", || runs.load(Ordering::SeqCst) == 1).await;
        let began = Instant::now();
        wait_for("the others", || others.load(Ordering::SeqCst) == 5).await;
        assert!(began.elapsed() < PROMPT, "they waited for the transaction: {:?}", began.elapsed());
        client.batch_execute("COMMIT").await.unwrap();
        wait_for("its second try", || runs.load(Ordering::SeqCst) == 2).await;
    };
    let report = queue.work(2, handler).until(all).await.unwrap();
    assert_eq!((report.acked, report.retried, report.stale, report.lost), (6, 6, 0, 0));
}

/// Goal: a worker that is stopped says so in time if a transaction keeps it from an end, and does not wait for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_stops_does_not_wait_for_a_transaction_for_ever() {
    let database = cluster().database().await;
    let store = Store::open(&cluster().url(&database)).await.unwrap();
    let queue = quick(&store, "plain").open().await.unwrap();
    queue.push(&0).dedupe("d").await.unwrap();
    let client = cluster().client(&database).await;
    let held = AtomicBool::new(false);
    let handler = async |_: Delivery<i64>| {
        hold(&client, "d").await;
        held.store(true, Ordering::SeqCst);
        Ok::<(), Nack>(())
    };
    let stop = wait_for("the run", || held.load(Ordering::SeqCst));
    let stopped = queue.work(1, handler).until(stop).await.unwrap_err();
    assert!(stopped.to_string().contains("end deliveries"), "{stopped:?}");
}

/// Goal: by SQL, too, what is locked is told apart from what is stale, and nobody waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_sql_locked_and_stale_are_two_answers() {
    let database = cluster().database().await;
    let store = Store::open(&cluster().url(&database)).await.unwrap();
    let queue = quick(&store, "plain").open().await.unwrap();
    let mut jobs = Vec::new();
    for id in ["free", "held", "gone"] {
        jobs.push(queue.push(&1).dedupe(id).await.unwrap().job_id);
    }
    let (client, holder) = (cluster().client(&database).await, cluster().client(&database).await);
    client.batch_execute("SET lock_timeout = '1s'").await.unwrap();
    let token: i64 = client.query("SELECT token FROM leasehold.queue_turn('plain', 3)", &[]).await.unwrap()[0].get(0);
    client.execute("SELECT leasehold.queue_ack(ARRAY[$1::bigint], $2)", &[&jobs[2], &token]).await.unwrap();
    hold(&holder, "held").await;
    let ask = async |sql: &str| -> Vec<(i64, bool)> {
        let rows = client.query(sql, &[&jobs, &token]).await.unwrap();
        let mut answer: Vec<_> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        answer.sort_unstable();
        answer
    };
    let extended = ask("SELECT job_id, locked FROM leasehold.queue_extend($1, $2, '30 s')").await;
    assert_eq!(extended, [(jobs[0], false), (jobs[1], true)], "the third is stale");
    let nack = "SELECT leasehold.queue_nack($1, $2, wait => false)";
    let refused = client.query(nack, &[&jobs[1], &token]).await.unwrap_err();
    assert_eq!(refused.code().unwrap().code(), "55P03");
    let turned = ask("SELECT job_id, token = -1 FROM leasehold.queue_turn('plain', 0, $1, $2)").await;
    assert_eq!(turned, [(jobs[1], true), (jobs[2], false)], "the first has ended");
    holder.batch_execute("COMMIT").await.unwrap();
    let acked = ask("SELECT job_id, locked FROM leasehold.queue_ack($1, $2, false)").await;
    assert_eq!(acked, [(jobs[0], false), (jobs[2], false)], "now the second has ended");
    assert_eq!(queue.status().await.unwrap().ready, 1, "it waits once more");
}

/// Goal: by key a claim on one key that is locked costs no other its time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_locked_costs_no_other_its_claim() {
    let database = cluster().database().await;
    let store = Store::open(&cluster().url(&database)).await.unwrap();
    let queue = quick(&store, "keyed").by_key().visible(Duration::from_secs(3)).open().await.unwrap();
    for key in ["a", "b", "c"] {
        queue.push(&1).key(key).await.unwrap();
    }
    let client = cluster().client(&database).await;
    let (runs, ended) = (AtomicU32::new(0), AtomicU32::new(0));
    let handler = async |job: Delivery<i64>| {
        runs.fetch_add(1, Ordering::SeqCst);
        if job.key() == Some("a") && job.attempt() == 1 {
            client.batch_execute("BEGIN; SELECT FROM leasehold.lane WHERE key = 'a' FOR UPDATE").await.unwrap();
        }
        tokio::time::sleep(Duration::from_secs(if job.attempt() == 1 { 5 } else { 0 })).await;
        ended.fetch_add(1, Ordering::SeqCst);
        Ok::<(), Nack>(())
    };
    let all = async {
        wait_for("the others", || ended.load(Ordering::SeqCst) == 2).await;
        client.batch_execute("COMMIT").await.unwrap();
        wait_for("the key that was locked", || ended.load(Ordering::SeqCst) == 3).await;
    };
    let report = queue.work(3, handler).until(all).await.unwrap();
    assert_eq!((runs.load(Ordering::SeqCst), report.acked, report.lost), (4, 3, 1));
}
