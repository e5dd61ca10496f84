//! What a plain queue does, on every store. The tests of the server run it on a store behind a server.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use leasehold::recipe::queue::{Delivery, Nack};
use leasehold::recipe::{RecipeError, RecipeRefusal, Store};

use crate::support::{Seen, quick, wait_for, work_off};
use crate::{suite_edges, suite_keys};

pub async fn run_suite(store: &Store) {
    jobs_are_delivered_once_and_gone(store).await;
    failures_are_tried_again_then_dead(store).await;
    a_panic_is_a_failure(store).await;
    a_job_that_nobody_takes_is_dead(store).await;
    a_delayed_job_comes_at_its_moment(store).await;
    levels_are_served_in_order_and_none_starves(store).await;
    a_dedupe_id_is_one_job(store).await;
    a_long_job_is_extended(store).await;
    a_dropped_worker_gives_its_jobs_back(store).await;
    a_sleeping_worker_is_woken(store).await;
    a_paused_queue_hands_out_nothing(store).await;
    what_cannot_be_is_refused(store).await;
    suite_keys::run_suite(store).await;
    suite_edges::run_suite(store).await;
}

/// Goal: every job is delivered to one handler, and nothing is left.
async fn jobs_are_delivered_once_and_gone(store: &Store) {
    let queue = quick(store, "plain").open().await.unwrap();
    for number in 0..50 {
        assert!(queue.push(&number).await.unwrap().fresh);
    }
    let (report, mut seen) = work_off(&queue, 8, 50).await;
    seen.sort_unstable();
    assert_eq!(seen, (0..50).collect::<Vec<_>>());
    assert_eq!((report.acked, report.stale, report.lost), (50, 0, 0));
    let status = queue.status().await.unwrap();
    assert_eq!((status.ready, status.delayed, status.taken, status.dead), (0, 0, 0, 0));
}

/// Goal: a job is tried as often as the queue says, then it is a dead letter with its reason; an operator revives or drops it.
async fn failures_are_tried_again_then_dead(store: &Store) {
    let queue = quick(store, "failing").max_attempts(3).open().await.unwrap();
    let job = queue.push(&1).await.unwrap().job_id;
    let tries = AtomicU32::new(0);
    let fail = async |job: Delivery<i64>| {
        let number = tries.fetch_add(1, Ordering::SeqCst) + 1;
        assert_eq!(u32::from(job.attempt()), number);
        Err::<(), _>(Nack::later(format!("no {number}")))
    };
    let report =
        queue.work(2, fail).until(wait_for("three tries", || tries.load(Ordering::SeqCst) == 3)).await.unwrap();
    assert_eq!((report.retried, report.dead), (2, 1));
    let letters = queue.dead(10).await.unwrap();
    assert_eq!((letters.len(), letters[0].job_id, letters[0].attempt), (1, job, 3));
    assert_eq!(letters[0].error.as_deref(), Some("no 3"));
    assert_eq!(queue.retry(&[job, 999_999]).await.unwrap(), 1);
    let (report, seen) = work_off(&queue, 1, 1).await;
    assert_eq!((report.acked, seen), (1, vec![1]));

    let job = queue.push(&2).await.unwrap().job_id;
    let kill = async |_: Delivery<i64>| Err::<(), _>(Nack::dead("never"));
    let seen = || async { queue.dead(10).await.unwrap().len() };
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let watch = async {
        while seen().await == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let _ = stop.send(());
    };
    let (report, ()) = tokio::join!(queue.work(1, kill).until(async { drop(stopped.await) }), watch);
    assert_eq!(report.unwrap().dead, 1);
    assert_eq!(queue.drop_dead(&[job]).await.unwrap(), 1);
    assert!(queue.dead(10).await.unwrap().is_empty());
}

async fn a_panic_is_a_failure(store: &Store) {
    let queue = quick(store, "panics").open().await.unwrap();
    queue.push(&1).await.unwrap();
    let tries = AtomicU32::new(0);
    let handler = async |_: Delivery<i64>| {
        assert!(tries.fetch_add(1, Ordering::SeqCst) > 0, "a panic of a handler: it belongs to the test");
        Ok::<(), Nack>(())
    };
    let report =
        queue.work(1, handler).until(wait_for("two tries", || tries.load(Ordering::SeqCst) == 2)).await.unwrap();
    assert_eq!((report.retried, report.acked), (1, 1));
}

async fn a_job_that_nobody_takes_is_dead(store: &Store) {
    let queue = quick(store, "strange").open().await.unwrap();
    queue.push(&"text").await.unwrap();
    queue.push(&7).await.unwrap();
    let (report, seen) = work_off(&queue, 1, 1).await;
    assert_eq!((report.acked, report.dead, seen), (1, 1, vec![7]));
    assert!(queue.dead(1).await.unwrap()[0].error.as_ref().unwrap().contains("does not take this job"));
}

/// Goal: a delayed job is not early, and a worker that sleeps does not wait for its poll.
async fn a_delayed_job_comes_at_its_moment(store: &Store) {
    let queue = quick(store, "delayed").open().await.unwrap();
    let pushed = Instant::now();
    queue.push(&1).delay(Duration::from_millis(700)).await.unwrap();
    let seen = Seen::default();
    let handler = async |job: Delivery<i64>| {
        seen.note(*job.body());
        assert!(pushed.elapsed() >= Duration::from_millis(690), "early: {:?}", pushed.elapsed());
        Ok::<(), Nack>(())
    };
    let work = queue.work(1, handler).poll(Duration::from_secs(600));
    work.until(wait_for("the delayed job", || seen.count() == 1)).await.unwrap();
    assert!(queue.dead(1).await.unwrap().is_empty() && pushed.elapsed() < Duration::from_secs(10));
}

/// Goal: the first level goes first, and the last one is served even while the first is never empty.
async fn levels_are_served_in_order_and_none_starves(store: &Store) {
    let queue = quick(store, "levels").levels(&[1, 9]).open().await.unwrap();
    for number in 0..4 {
        queue.push(&(100 + number)).priority(9).await.unwrap();
    }
    for number in 0..40 {
        queue.push(&number).priority(1).await.unwrap();
    }
    let (_, seen) = work_off(&queue, 1, 44).await;
    assert!(seen[0] < 100, "{seen:?}");
    let first_low = seen.iter().position(|number| *number >= 100).unwrap();
    assert!(first_low < 10, "the last level starved until {first_low}: {seen:?}");
    assert!(matches!(queue.push(&1).priority(5).await, Err(RecipeError::Invalid(_))));
    let narrowed = store.queue("levels").levels(&[1]).open().await;
    assert!(narrowed.is_ok(), "no job is on the other level any more: {narrowed:?}");
}

/// Goal: a push finds the job that waits; a push that meets a running one makes it run once more.
async fn a_dedupe_id_is_one_job(store: &Store) {
    let queue = quick(store, "dedupe").open().await.unwrap();
    let first = queue.push(&1).dedupe("a").await.unwrap();
    let second = queue.push(&2).dedupe("a").await.unwrap();
    assert_eq!((first.fresh, second.fresh, first.job_id), (true, false, second.job_id));
    let seen = Seen::default();
    let handler = async |job: Delivery<i64>| {
        seen.note(*job.body());
        if seen.count() == 1 {
            assert!(!queue.push(&3).dedupe("a").await.unwrap().fresh);
        }
        Ok::<(), Nack>(())
    };
    queue.work(1, handler).until(wait_for("two runs", || seen.count() == 2)).await.unwrap();
    assert_eq!(seen.all(), [1, 1]);
    let status = queue.status().await.unwrap();
    assert_eq!((status.ready, status.taken), (0, 0));
}

/// Goal: a job that takes longer than the time of a delivery is kept, and another worker does not get it.
async fn a_long_job_is_extended(store: &Store) {
    let queue = store.queue("long").visible(Duration::from_millis(900)).open().await.unwrap();
    queue.push(&1).await.unwrap();
    let calls = AtomicU32::new(0);
    let ended = AtomicU32::new(0);
    let slow = async |_: Delivery<i64>| {
        calls.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(2500)).await;
        ended.fetch_add(1, Ordering::SeqCst);
        Ok::<(), Nack>(())
    };
    let done = || wait_for("the slow job", || ended.load(Ordering::SeqCst) == 1);
    let (one, other) = tokio::join!(queue.work(1, &slow).until(done()), queue.work(1, &slow).until(done()));
    let (one, other) = (one.unwrap(), other.unwrap());
    assert_eq!((calls.load(Ordering::SeqCst), one.acked + other.acked, one.lost + other.lost), (1, 1, 0));
}

/// Goal: a worker whose future is dropped gives its jobs back at once, not after the time of the delivery.
async fn a_dropped_worker_gives_its_jobs_back(store: &Store) {
    let queue = quick(store, "dropped").open().await.unwrap();
    queue.push(&1).await.unwrap();
    let started = AtomicU32::new(0);
    let hang = async |_: Delivery<i64>| {
        started.fetch_add(1, Ordering::SeqCst);
        std::future::pending::<Result<(), Nack>>().await
    };
    tokio::select! {
        _ = queue.work(1, hang).until(std::future::pending()) => unreachable!("nobody stops it"),
        () = wait_for("the first worker", || started.load(Ordering::SeqCst) == 1) => {}
    }
    let since = Instant::now();
    let (report, _) = work_off(&queue, 1, 1).await;
    assert_eq!(report.acked, 1);
    assert!(since.elapsed() < Duration::from_secs(15), "it waited for the delivery to lapse");
}

/// Goal: a push wakes a worker that sleeps, long before its poll.
pub async fn a_sleeping_worker_is_woken(store: &Store) {
    let queue = quick(store, "sleepy").open().await.unwrap();
    let seen = Seen::default();
    let handler = async |job: Delivery<i64>| {
        seen.note(*job.body());
        Ok::<(), Nack>(())
    };
    let work = queue.work(2, handler).poll(Duration::from_secs(600));
    let push = async {
        for number in 0..5 {
            // Long enough to be asleep again.
            tokio::time::sleep(Duration::from_millis(400)).await;
            let pushed = Instant::now();
            queue.push(&number).await.unwrap();
            wait_for("the ring", || seen.count() as i64 == number + 1 || pushed.elapsed() > Duration::from_secs(8))
                .await;
            assert_eq!(seen.count() as i64, number + 1, "a push did not wake the worker");
        }
    };
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let push = async {
        push.await;
        let _ = stop.send(());
    };
    let (report, ()) = tokio::join!(work.until(async { drop(stopped.await) }), push);
    assert_eq!(report.unwrap().acked, 5);
}

async fn a_paused_queue_hands_out_nothing(store: &Store) {
    let queue = quick(store, "paused").open().await.unwrap();
    queue.pause().await.unwrap();
    queue.push(&1).await.unwrap();
    let seen = Seen::default();
    let handler = async |job: Delivery<i64>| {
        seen.note(*job.body());
        Ok::<(), Nack>(())
    };
    let work = queue.work(1, handler).poll(Duration::from_millis(50));
    work.until(tokio::time::sleep(Duration::from_millis(400))).await.unwrap();
    assert_eq!((seen.count(), queue.status().await.unwrap().paused), (0, true));
    queue.resume().await.unwrap();
    assert_eq!(work_off(&queue, 1, 1).await.0.acked, 1);
}

async fn what_cannot_be_is_refused(store: &Store) {
    let missing = store.queue("missing").open_existing().await.unwrap_err();
    assert!(matches!(missing.refusal(), Some(RecipeRefusal::NoQueue { name }) if name == "missing"), "{missing:?}");
    let queue = quick(store, "plain").open().await.unwrap();
    let invalid = |error: RecipeError| assert!(matches!(error, RecipeError::Invalid(_)), "{error:?}");
    invalid(queue.push(&1).key("k").await.unwrap_err());
    invalid(queue.push(&"x".repeat(1 << 20)).await.unwrap_err());
    invalid(queue.push_json("{").await.unwrap_err());
    invalid(store.queue("plain").by_key().open().await.unwrap_err());
    invalid(store.queue("").open().await.unwrap_err());
    let handler = async |_: Delivery<i64>| Ok::<(), Nack>(());
    invalid(queue.work(0, handler).until(async {}).await.unwrap_err());
}
