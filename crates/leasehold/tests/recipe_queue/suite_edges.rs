//! The edges of queues: each of these went wrong once, or could.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use leasehold::recipe::Store;
use leasehold::recipe::queue::calls::{SINCE_EVER, TurnAsk};
use leasehold::recipe::queue::{Delivery, Nack};

use crate::support::{PATIENCE, Seen, quick, wait_for, work_off};

/// On every store.
pub async fn run_suite(store: &Store) {
    a_job_that_dies_while_it_is_asked_for_again_runs_again(store).await;
    a_dead_letter_whose_dedupe_id_is_in_use_stays(store).await;
    a_dead_letter_of_a_removed_level_is_served(store).await;
    whatever_a_handler_says_is_stored(store).await;
    what_is_given_back_untried_does_not_die(store).await;
    by_key_every_failure_counts(store).await;
    without_order_many_that_wait_hold_up_nobody(store).await;
    a_worker_keeps_the_time_that_it_counts_from(store).await;
    a_delayed_push_wakes_a_sleeper_in_time(store).await;
    what_a_queue_does_not_take_is_named(store).await;
    what_lapsed_together_comes_back_apart(store).await;
}

/// Goal: jobs of one claim whose worker died are ready at different moments: they are not taken together again and again.
async fn what_lapsed_together_comes_back_apart(store: &Store) {
    let queue = quick(store, "apart").open().await.unwrap();
    for number in 0..10 {
        queue.push(&number).await.unwrap();
    }
    let calls = store.queue_calls("apart").unwrap();
    let ask = TurnAsk {
        jobs: 10,
        done: Vec::new(),
        done_token: 0,
        visible: Some(Duration::from_millis(100)),
        worker: "ada".into(),
        since: SINCE_EVER,
        levels: None,
    };
    assert_eq!(calls.turn(ask.clone()).await.unwrap().jobs.len(), 10);
    let mut moments = BTreeSet::new();
    let began = Instant::now();
    let mut seen = 0;
    while seen < 10 {
        assert!(began.elapsed() < PATIENCE, "{seen} came back");
        calls.sweep().await.unwrap();
        let again = calls.turn(TurnAsk { visible: Some(Duration::from_secs(60)), ..ask.clone() }).await.unwrap().jobs;
        seen += again.len();
        moments.extend(again.into_iter().filter_map(|job| job.ready_at));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(moments.len() > 5, "{moments:?}");
}

/// Goal: a worker that sleeps runs a delayed job when it is ready, and not when it polls.
/// Method: the worker sleeps first, and would look for itself after ten minutes. At a server it may wait for half a minute.
async fn a_delayed_push_wakes_a_sleeper_in_time(store: &Store) {
    let queue = quick(store, "later").open().await.unwrap();
    let seen = Seen::default();
    let handler = async |job: Delivery<i64>| {
        seen.note(*job.body());
        Ok::<(), Nack>(())
    };
    let push = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        queue.push(&7).delay(Duration::from_secs(1)).await.unwrap();
        wait_for("the delayed job", || seen.count() == 1).await;
    };
    let report = queue.work(1, handler).poll(Duration::from_secs(600)).until(push).await.unwrap();
    assert_eq!((report.acked, seen.all()), (1, vec![7]));
}

/// Goal: what is refused about a job names what is wrong with it, and that alone.
async fn what_a_queue_does_not_take_is_named(store: &Store) {
    let plain = quick(store, "named-plain").levels(&[1, 3]).open().await.unwrap();
    let keyed = quick(store, "named-keyed").by_key().open().await.unwrap();
    let level = plain.push(&1).priority(2).await.unwrap_err().to_string();
    assert!(level.contains("has no level 2: its levels are 1, 3") && !level.contains("key"), "{level}");
    let key = plain.push(&1).key("ada").await.unwrap_err().to_string();
    assert!(key.contains("takes no key") && !key.contains("level"), "{key}");
    let missing = keyed.push(&1).await.unwrap_err().to_string();
    assert!(missing.contains("needs a key") && !missing.contains("level"), "{missing}");
    let dedupe = keyed.push(&1).key("ada").dedupe("d").await.unwrap_err().to_string();
    assert!(dedupe.contains("takes no dedupe id") && !dedupe.contains("level"), "{dedupe}");
}

/// Goal: a push that meets a running job makes it run once more, even if that job becomes a dead letter.
async fn a_job_that_dies_while_it_is_asked_for_again_runs_again(store: &Store) {
    let queue = quick(store, "again").max_attempts(1).open().await.unwrap();
    queue.push(&7).dedupe("d").await.unwrap();
    let tries = AtomicU32::new(0);
    let handler = async |_: Delivery<i64>| {
        if tries.fetch_add(1, Ordering::SeqCst) > 0 {
            return Ok(());
        }
        assert!(!queue.push(&7).dedupe("d").await.unwrap().fresh, "it meets the running one");
        Err(Nack::later("no"))
    };
    let both = wait_for("the second run", || tries.load(Ordering::SeqCst) == 2);
    let report = queue.work(1, handler).until(both).await.unwrap();
    assert_eq!((report.dead, report.acked), (1, 1));
}

/// Goal: a dead letter is revived or kept, never lost.
async fn a_dead_letter_whose_dedupe_id_is_in_use_stays(store: &Store) {
    let queue = quick(store, "twins").max_attempts(1).open().await.unwrap();
    let first = queue.push(&1).dedupe("d").await.unwrap().job_id;
    let tries = AtomicU32::new(0);
    let fail = async |_: Delivery<i64>| {
        tries.fetch_add(1, Ordering::SeqCst);
        Err::<(), _>(Nack::later("no"))
    };
    queue.work(1, fail).until(wait_for("the failure", || tries.load(Ordering::SeqCst) == 1)).await.unwrap();
    assert!(queue.push(&2).dedupe("d").await.unwrap().fresh);
    assert_eq!(queue.retry(&[first]).await.unwrap(), 0);
    assert_eq!(queue.dead(10).await.unwrap()[0].body, "1", "it is still there");
    assert_eq!(work_off(&queue, 1, 1).await.1, [2]);
    assert_eq!(queue.retry(&[first]).await.unwrap(), 1);
    assert_eq!(work_off(&queue, 1, 1).await.1, [1]);
    assert!(queue.dead(10).await.unwrap().is_empty());
}

/// Goal: a dead letter of a level that is not served any more comes back on one that is.
async fn a_dead_letter_of_a_removed_level_is_served(store: &Store) {
    let queue = quick(store, "shrinks").levels(&[1, 2]).max_attempts(1).open().await.unwrap();
    let job = queue.push(&5).priority(2).await.unwrap().job_id;
    let tries = AtomicU32::new(0);
    let fail = async |_: Delivery<i64>| {
        tries.fetch_add(1, Ordering::SeqCst);
        Err::<(), _>(Nack::later("no"))
    };
    queue.work(1, fail).until(wait_for("the failure", || tries.load(Ordering::SeqCst) == 1)).await.unwrap();
    let queue = quick(store, "shrinks").levels(&[1]).open().await.unwrap();
    assert_eq!(queue.retry(&[job]).await.unwrap(), 1);
    assert_eq!(queue.status().await.unwrap().ready, 1, "it is shown");
    assert_eq!(work_off(&queue, 1, 1).await.1, [5]);
}

/// Goal: no reason and no span that a handler gives ends the worker.
async fn whatever_a_handler_says_is_stored(store: &Store) {
    let queue = quick(store, "says").backoff(Duration::from_secs(3 * 3600)).backoff_cap(Duration::from_secs(3 * 3600));
    let queue = queue.max_attempts(1000).open().await.unwrap();
    for number in 0..3 {
        queue.push(&number).await.unwrap();
    }
    let tries = AtomicU32::new(0);
    let handler = async |job: Delivery<i64>| {
        tries.fetch_add(1, Ordering::SeqCst);
        Err::<(), _>(match *job.body() {
            0 => Nack::later("a \0 in it"),
            1 => Nack::after(Duration::MAX, "for ever"),
            _ => Nack::later("x".repeat(100_000)),
        })
    };
    let report = queue.work(3, handler).until(wait_for("all", || tries.load(Ordering::SeqCst) == 3)).await.unwrap();
    assert_eq!((report.retried, report.lost), (3, 0));
    assert_eq!(queue.status().await.unwrap().delayed, 3);
}

/// Goal: a job that a stopping worker gives back is not a dead letter, even on its last try.
async fn what_is_given_back_untried_does_not_die(store: &Store) {
    for by_key in [false, true] {
        let queue = quick(store, if by_key { "back-keyed" } else { "back" }).max_attempts(1);
        let queue = if by_key { queue.by_key() } else { queue }.open().await.unwrap();
        let push = queue.push(&1);
        if by_key { push.key("k") } else { push }.await.unwrap();
        let tries = AtomicU32::new(0);
        let handler = async |job: Delivery<i64>| {
            assert_eq!(job.attempt(), 1, "the first time was no try");
            if tries.fetch_add(1, Ordering::SeqCst) == 0 { Err(Nack::untried("stopped")) } else { Ok(()) }
        };
        let both = wait_for("both", || tries.load(Ordering::SeqCst) == 2);
        let report = queue.work(1, handler).until(both).await.unwrap();
        assert_eq!((report.acked, report.dead), (1, 0));
    }
}

/// Goal: a job behind the first of its key that fails has been tried.
async fn by_key_every_failure_counts(store: &Store) {
    let queue = quick(store, "counts").max_attempts(1).by_key().open().await.unwrap();
    for number in 0..2 {
        queue.push(&number).key("k").await.unwrap();
    }
    let seen = Seen::default();
    let handler = async |job: Delivery<i64>| {
        seen.note(*job.body());
        if *job.body() == 0 { Ok(()) } else { Err(Nack::later("no")) }
    };
    let report = queue.work(1, handler).until(wait_for("both", || seen.count() == 2)).await.unwrap();
    assert_eq!((report.acked, report.dead, report.retried), (1, 1, 0));
}

/// Goal: without order, jobs that are not ready do not hide one behind them that is.
async fn without_order_many_that_wait_hold_up_nobody(store: &Store) {
    let queue = quick(store, "passes").by_key().in_order(false).open().await.unwrap();
    for number in 0..45 {
        queue.push(&number).key("k").delay(Duration::from_secs(3600)).await.unwrap();
    }
    queue.push(&100).key("k").await.unwrap();
    assert_eq!(work_off(&queue, 1, 1).await.1, [100]);
}

/// Goal: a worker counts from the time that it asked for, whatever somebody makes of the queue meanwhile.
async fn a_worker_keeps_the_time_that_it_counts_from(store: &Store) {
    let queue = quick(store, "resized").visible(Duration::from_secs(20)).open().await.unwrap();
    let taken = AtomicU32::new(0);
    queue.push(&1).await.unwrap();
    let handler = async |job: Delivery<i64>| {
        taken.fetch_add(1, Ordering::SeqCst);
        if *job.body() == 1 {
            // From now on the queue gives a moment only, and this worker does not know.
            quick(store, "resized").visible(Duration::from_millis(100)).open().await.unwrap();
            queue.push(&2).await.unwrap();
        } else {
            assert!(job.remaining() > Duration::from_secs(5), "{:?}", job.remaining());
            tokio::time::sleep(Duration::from_millis(1_500)).await;
        }
        Ok::<(), Nack>(())
    };
    // A second worker would be given what lapses.
    let both = wait_for("both", || taken.load(Ordering::SeqCst) >= 2);
    let report = queue.work(1, handler).until(both).await.unwrap();
    assert_eq!((report.acked, report.stale, report.lost), (2, 0, 0));
}
