//! What only PostgreSQL has: the user's transactions, NOTIFY, sessions that can be looked at.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::recipe::Store;
use leasehold::recipe::queue::{Delivery, Nack};
use tokio_postgres::Client;

use crate::support::{cluster, quick, wait_for, work_off};
use crate::worker::connect;

/// Goal: a push is an outbox: it commits or rolls back with the user's rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_push_belongs_to_its_transaction() {
    let database = cluster().database().await;
    let store = Store::open(&cluster().url(&database)).await.unwrap();
    let queue = quick(&store, "outbox").open().await.unwrap();
    let mut client = cluster().client(&database).await;
    for (number, kept) in [(1, false), (2, true)] {
        let tx = client.transaction().await.unwrap();
        assert!(queue.push(&number).within(&tx).await.unwrap().fresh);
        if kept { tx.commit().await.unwrap() } else { tx.rollback().await.unwrap() }
    }
    assert_eq!(work_off(&queue, 2, 1).await.1, [2]);
}

/// Goal: the effects and the end of a job are one: both are there, or neither is.
/// Method: the first delivery lapses while its handler still works; another worker finishes the job; then the first one tries.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_finish_leaves_no_effect() {
    let database = cluster().database().await;
    let url = cluster().url(&database);
    let store = Store::open(&url).await.unwrap();
    cluster().execute(&database, "CREATE TABLE effect (token bigint)").await;
    let queue = quick(&store, "effects").open().await.unwrap();
    queue.push(&1).await.unwrap();
    let late: std::sync::Mutex<Option<Delivery<i64>>> = std::sync::Mutex::default();
    let calls = AtomicU32::new(0);
    let handler = async |job: Delivery<i64>| {
        if calls.fetch_add(1, Ordering::SeqCst) == 0 {
            *late.lock().unwrap() = Some(job);
            return Err(Nack::after(Duration::ZERO, "kept for later"));
        }
        let mut client = connect(&url).await.unwrap();
        let tx = client.transaction().await.unwrap();
        tx.execute("INSERT INTO effect VALUES ($1)", &[&job.token()]).await.unwrap();
        job.finish(tx).await.map_err(Nack::later)
    };
    let report =
        queue.work(1, handler).until(wait_for("two tries", || calls.load(Ordering::SeqCst) == 2)).await.unwrap();
    assert_eq!((report.acked, report.retried), (1, 1));
    let late = late.lock().unwrap().take().unwrap();
    let mut client = connect(&url).await.unwrap();
    let tx = client.transaction().await.unwrap();
    tx.execute("INSERT INTO effect VALUES ($1)", &[&late.token()]).await.unwrap();
    let refused = late.finish(tx).await.unwrap_err();
    assert!(refused.refusal().is_some(), "{refused:?}");
    let effects: i64 = client.query_one("SELECT count(*) FROM effect", &[]).await.unwrap().get(0);
    assert_eq!(effects, 1);
}

/// Sessions whose transaction is open and has done nothing for a while.
async fn idle_transactions(client: &Client) -> i64 {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
               AND state = 'idle in transaction' AND state_change < clock_timestamp() - interval '100 ms'";
    client.query_one(sql, &[]).await.unwrap().get(0)
}

/// Goal: law 5. No transaction is open while a job is worked on, however long.
/// Planted: a worker by hand that keeps its claim in a transaction is seen by the same look.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_transaction_is_open_while_a_job_is_worked_on() {
    let database = cluster().database().await;
    let url = cluster().url(&database);
    let store = Store::open(&url).await.unwrap();
    let watcher = cluster().client(&database).await;
    for by_key in [false, true] {
        let queue = if by_key { quick(&store, "k").by_key() } else { quick(&store, "p") };
        let queue = queue.open().await.unwrap();
        let push = queue.push(&1);
        let push = if by_key { push.key("one") } else { push };
        push.await.unwrap();
        let (started, ended) = (AtomicU32::new(0), AtomicU32::new(0));
        let handler = async |_: Delivery<i64>| {
            started.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(700)).await;
            ended.fetch_add(1, Ordering::SeqCst);
            Ok::<(), Nack>(())
        };
        let look = async {
            wait_for("the handler", || started.load(Ordering::SeqCst) == 1).await;
            tokio::time::sleep(Duration::from_millis(300)).await;
            assert_eq!(idle_transactions(&watcher).await, 0);
            assert_eq!(ended.load(Ordering::SeqCst), 0, "the look came too late");
        };
        let done = wait_for("the end", || ended.load(Ordering::SeqCst) == 1);
        let (report, ()) = tokio::join!(queue.work(1, handler).until(done), look);
        assert_eq!(report.unwrap().acked, 1);
    }
    let queue = quick(&store, "p").open().await.unwrap();
    queue.push(&2).await.unwrap();
    let mut client = connect(&url).await.unwrap();
    let tx = client.transaction().await.unwrap();
    tx.query("SELECT * FROM leasehold.queue_turn('p', 1)", &[]).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(idle_transactions(&watcher).await, 1, "a claim in a transaction was not seen");
}

/// Goal: no NOTIFY while nobody sleeps, and one for each push while somebody does.
/// Method: the session that pushes finds another `pg_notify` first in its search path, which counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_notified_while_nobody_sleeps() {
    let database = cluster().database().await;
    let store = Store::open(&cluster().url(&database)).await.unwrap();
    let queue = quick(&store, "quiet").open().await.unwrap();
    let spy = "CREATE SCHEMA spy; CREATE TABLE spy.rings (channel text);
        CREATE FUNCTION spy.pg_notify(channel text, payload text) RETURNS void LANGUAGE sql AS $$ INSERT INTO spy.rings VALUES (channel) $$;
        SET search_path = spy, pg_catalog, public";
    let client = cluster().client(&database).await;
    client.batch_execute(spy).await.unwrap();
    let rings = async || client.query_one("SELECT count(*) FROM spy.rings", &[]).await.unwrap().get::<_, i64>(0);
    for _ in 0..20 {
        client.execute("SELECT leasehold.queue_push('quiet', '1')", &[]).await.unwrap();
    }
    assert_eq!(rings().await, 0);
    assert_eq!(work_off(&queue, 4, 20).await.0.acked, 20);
    let handler = async |_: Delivery<i64>| Ok::<(), Nack>(());
    let push = async {
        while queue.status().await.unwrap().sleepers == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        client.execute("SELECT leasehold.queue_push('quiet', '1')", &[]).await.unwrap();
    };
    queue.work(1, handler).until(push).await.unwrap();
    assert_eq!(rings().await, 1);
}

/// Goal: a push that finds its twin waiting is not lost, however long its transaction takes: the job runs after it.
/// Method: the twin waits; a transaction changes its rows and pushes; a worker works meanwhile; the transaction commits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_push_that_finds_its_twin_waiting_is_seen_by_it() {
    let database = cluster().database().await;
    let store = Store::open(&cluster().url(&database)).await.unwrap();
    cluster().execute(&database, "CREATE TABLE state (version int); INSERT INTO state VALUES (1)").await;
    let queue = quick(&store, "outbox").open().await.unwrap();
    queue.push(&1).dedupe("d").await.unwrap();
    let mut client = cluster().client(&database).await;
    let tx = client.transaction().await.unwrap();
    tx.execute("UPDATE state SET version = 2", &[]).await.unwrap();
    assert!(!queue.push(&1).dedupe("d").within(&tx).await.unwrap().fresh);
    let reader = cluster().client(&database).await;
    let (newest, runs) = (std::sync::atomic::AtomicI32::new(0), AtomicU32::new(0));
    let handler = async |_: Delivery<i64>| {
        let version: i32 = reader.query_one("SELECT version FROM state", &[]).await.unwrap().get(0);
        newest.store(version, Ordering::SeqCst);
        runs.fetch_add(1, Ordering::SeqCst);
        Ok::<(), Nack>(())
    };
    let commit = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        tx.commit().await.unwrap();
        wait_for("a run", || runs.load(Ordering::SeqCst) > 0).await;
    };
    queue.work(1, handler).poll(Duration::from_millis(200)).until(commit).await.unwrap();
    assert_eq!(newest.load(Ordering::SeqCst), 2, "a worker saw what the push was for");
}

/// Goal: a transaction that is open on one job holds up the end of that job, and no other.
/// Method: while job 0 runs, a transaction asks for it again and stays open; the worker still works off 19 others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_is_open_on_a_job_holds_up_no_other() {
    let database = cluster().database().await;
    let store = Store::open(&cluster().url(&database)).await.unwrap();
    let queue = quick(&store, "plain").open().await.unwrap();
    queue.push(&0).dedupe("d").await.unwrap();
    let client = cluster().client(&database).await;
    client.batch_execute("BEGIN").await.unwrap();
    let (runs, others) = (AtomicU32::new(0), AtomicU32::new(0));
    let handler = async |job: Delivery<i64>| {
        if *job.body() > 0 {
            others.fetch_add(1, Ordering::SeqCst);
        } else if runs.fetch_add(1, Ordering::SeqCst) == 0 {
            client.batch_execute("SELECT leasehold.queue_push('plain', '0', dedupe => 'd')").await.unwrap();
            for number in 1..20 {
                queue.push(&number).await.unwrap();
            }
        }
        Ok::<(), Nack>(())
    };
    let all = async {
        wait_for("the others", || others.load(Ordering::SeqCst) == 19).await;
        client.batch_execute("COMMIT").await.unwrap();
        wait_for("the run that was asked for", || runs.load(Ordering::SeqCst) == 2).await;
    };
    let report = queue.work(2, handler).until(all).await.unwrap();
    assert_eq!((report.acked, report.stale, report.lost), (21, 0, 0));
}

/// Goal: a transaction that is open on one key holds up that key alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_is_open_on_a_key_holds_up_no_other() {
    let database = cluster().database().await;
    let store = Store::open(&cluster().url(&database)).await.unwrap();
    let queue = quick(&store, "keyed").by_key().open().await.unwrap();
    for key in ["a", "b"] {
        queue.push(&1).key(key).await.unwrap();
    }
    let (holder, other) = (cluster().client(&database).await, cluster().client(&database).await);
    let claim = "SELECT key, token FROM leasehold.lane_claim('keyed', 1, 1, '100 ms')";
    let claimed = holder.query_one(claim, &[]).await.unwrap();
    assert_eq!(claimed.get::<_, String>(0), "a");
    let hold = format!("BEGIN; SELECT leasehold.lane_ack('keyed', 'a', {}, '{{}}', false)", claimed.get::<_, i64>(1));
    holder.batch_execute(&hold).await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    other.batch_execute("SET lock_timeout = '2s'").await.unwrap();
    let claim = "SELECT key FROM leasehold.lane_claim('keyed', 2, 1)";
    let keys: Vec<String> = other.query(claim, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(keys, ["b"]);
}

/// Goal: keys are walked round in the order of their bytes, whatever language the database sorts by.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_go_round_in_a_database_with_a_language() {
    let create = "CREATE DATABASE in_english TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en'";
    cluster().execute("postgres", create).await;
    let store = Store::open(&cluster().url("in_english")).await.unwrap();
    let queue = quick(&store, "keyed").by_key().open().await.unwrap();
    queue.push(&1).key("Zed").await.unwrap();
    let client = cluster().client("in_english").await;
    let claim = "SELECT key FROM leasehold.lane_claim('keyed', 1, 1, after => 'customer-1')";
    assert_eq!(client.query_one(claim, &[]).await.unwrap().get::<_, String>(0), "Zed");
}

/// Goal: many jobs that wait for their moment do not hide that one is ready.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delayed_jobs_do_not_hide_a_ready_one() {
    let database = cluster().database().await;
    let store = Store::open(&cluster().url(&database)).await.unwrap();
    let queue = quick(&store, "many").open().await.unwrap();
    let many = "INSERT INTO leasehold.job (queue_id, ready_at, max_attempts, body)
        SELECT queue_id, now() + interval '1 day', 3, '1' FROM leasehold.queue, generate_series(1, 12000); \
        ANALYZE leasehold.job";
    cluster().execute(&database, many).await;
    queue.push(&2).await.unwrap();
    let status = queue.status().await.unwrap();
    assert_eq!((status.ready, status.delayed), (1, 10_000), "{status:?}");
}

/// Goal: whoever calls by SQL meets the limits of the library, as LH400 with a sentence. What is within them is taken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_hold_for_callers_by_sql() {
    let database = cluster().database().await;
    let store = Store::open(&cluster().url(&database)).await.unwrap();
    quick(&store, "plain").open().await.unwrap();
    quick(&store, "keyed").by_key().open().await.unwrap();
    let client = cluster().client(&database).await;
    for (call, sentence) in [
        ("queue_push('plain', '1', max_attempts => 0)", "tried 1 to 1000 times, not 0"),
        ("queue_push('plain', '1', max_attempts => -5)", "tried 1 to 1000 times, not -5"),
        ("queue_push('plain', '1', max_attempts => 99999)", "tried 1 to 1000 times, not 99999"),
        ("queue_push('plain', '1', delay => '100 years')", "delayed by 0 to 366 days, not by 100 years"),
        ("queue_push('plain', '1', delay => '-1 s')", "delayed by 0 to 366 days"),
        ("queue_push('plain', '1', delay => NULL)", "delayed by 0 to 366 days, not by null"),
        ("queue_push('plain', '1', dedupe => repeat('x', 513))", "a dedupe id has 1 to 512 bytes, and this has 513"),
        ("queue_push('plain', '1', dedupe => '')", "a dedupe id has 1 to 512 bytes"),
        ("queue_push('keyed', '1', key => repeat('x', 513))", "a key has 1 to 512 bytes, and this has 513"),
        ("queue_push('keyed', '1', key => '')", "a key has 1 to 512 bytes"),
        ("queue_push('plain', '1', priority => 9)", "has no level 9: its levels are 1"),
        ("queue_push('plain', '1', priority => NULL)", "has no level null"),
        ("queue_push('plain', '1', key => 'k')", "is not by key: a job takes no key"),
        ("queue_push('keyed', '1')", "a job needs a key"),
        ("queue_push('plain', NULL)", "a job has a body"),
        (
            "queue_push('plain', to_jsonb(repeat('x', 1048575)))",
            "at most 1 MiB when it is written out, and this has 1048577",
        ),
        ("queue_turn('plain', 1, worker => repeat('x', 257))", "at most 256 bytes, and this has 257"),
        ("lane_claim('keyed', 1, 1, worker => repeat('x', 257))", "at most 256 bytes, and this has 257"),
        ("queue_nack(1, 1, after => '-1 s')", "delayed by 0 to 366 days, not by -00:00:01"),
        ("queue_nack(1, 1, after => '100 years')", "delayed by 0 to 366 days"),
        ("queue_nack(1, 1, tries => 2)", "a delivery adds -1, 0 or 1 to the tries of its job, not 2"),
        ("queue_nack(1, 1, tries => -20)", "a delivery adds -1, 0 or 1 to the tries"),
        ("queue_nack(1, 1, tries => NULL)", "a delivery adds -1, 0 or 1 to the tries of its job, not null"),
        ("lane_nack('keyed', 'k', 1, 1, after => '-1 s')", "delayed by 0 to 366 days"),
        ("lane_nack('keyed', 'k', 1, 1, tries => 2)", "a delivery adds -1, 0 or 1 to the tries"),
        ("queue_turn('plain', 1, visible => '-30 s')", "a delivery lasts 1 ms to 12 h, not -00:00:30"),
        ("queue_turn('plain', 1, visible => '0')", "a delivery lasts 1 ms to 12 h"),
        ("queue_turn('plain', 1, visible => '13 h')", "a delivery lasts 1 ms to 12 h"),
        ("queue_turn('plain', 1001)", "1000 jobs at most"),
        ("queue_turn('plain', NULL)", "1000 jobs at most"),
        ("queue_extend('{1}', 1, '-30 s')", "a delivery lasts 1 ms to 12 h"),
        ("queue_extend('{1}', 1, NULL)", "a delivery lasts 1 ms to 12 h, not null"),
        ("lane_claim('keyed', 1, 1, visible => '-30 s')", "a claim on a key lasts 1 ms to 12 h"),
        ("lane_claim('keyed', 1001, 1)", "1000 keys at most"),
        ("lane_claim('keyed', 1, 0)", "1 to 1000 jobs of each"),
        ("lane_extend('keyed', 'k', 1, '13 h')", "a claim on a key lasts 1 ms to 12 h"),
    ] {
        let refused = client.query(&format!("SELECT * FROM leasehold.{call}"), &[]).await;
        let refused = refused.err().unwrap_or_else(|| panic!("{call} was taken"));
        let answer = refused.as_db_error().unwrap();
        assert_eq!(answer.code().code(), "LH400", "{call}: {answer}");
        assert!(answer.message().contains(sentence), "{call}: {answer}");
    }
    for call in [
        "queue_push('plain', '1', max_attempts => 1, delay => '366 days', dedupe => repeat('x', 512))",
        "queue_push('plain', 'null', max_attempts => 1000, delay => '1 year')",
        "queue_push('keyed', '1', key => repeat('x', 512))",
        "queue_push('plain', to_jsonb(repeat('x', 1048574)))",
        "queue_turn('plain', 1000, visible => '12 h', worker => repeat('x', 256))",
        "queue_nack(1, 1, after => '366 days', tries => 1)",
        "queue_nack(1, 1, after => '0', tries => -1)",
        "lane_nack('keyed', 'k', 1, 1, 'no', '366 days', false, 1)",
        "queue_turn('plain', 0, visible => '1 ms')",
        "queue_extend('{1}', 1, '12 h')",
        "lane_claim('keyed', 1000, 1000, visible => '12 h')",
        "lane_extend('keyed', 'k', 1, '1 ms')",
    ] {
        client.query(&format!("SELECT * FROM leasehold.{call}"), &[]).await.unwrap_or_else(|no| panic!("{call}: {no}"));
    }
}
