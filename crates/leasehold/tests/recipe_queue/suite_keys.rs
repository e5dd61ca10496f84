//! What a queue by key does, on both stores.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::recipe::queue::{Delivery, Nack};
use leasehold::recipe::{RecipeError, Store};

use crate::support::{quick, wait_for};

pub async fn run_suite(store: &Store) {
    keys_are_served_in_order_by_one(store).await;
    a_failed_job_holds_its_key(store).await;
    without_order_others_pass(store).await;
    hot_keys_are_shown(store).await;
}

/// Goal: jobs of a key come in the order of their pushes, one at a time; keys run side by side.
async fn keys_are_served_in_order_by_one(store: &Store) {
    let queue = quick(store, "keyed").by_key().open().await.unwrap();
    for number in 0..60 {
        queue.push(&number).key(&format!("key-{}", number % 6)).await.unwrap();
    }
    assert!(matches!(queue.push(&1).await, Err(RecipeError::Invalid(_))));
    let seen: Mutex<BTreeMap<String, Vec<i64>>> = Mutex::default();
    let inside: Mutex<BTreeSet<String>> = Mutex::default();
    let most = AtomicUsize::new(0);
    let handler = async |job: Delivery<i64>| {
        let key = job.key().unwrap().to_owned();
        assert!(inside.lock().unwrap().insert(key.clone()), "two handlers of one key");
        let at_once = inside.lock().unwrap().len();
        most.fetch_max(at_once, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(2)).await;
        seen.lock().unwrap().entry(key.clone()).or_default().push(*job.body());
        inside.lock().unwrap().remove(&key);
        Ok::<(), Nack>(())
    };
    let count = || seen.lock().unwrap().values().map(Vec::len).sum::<usize>();
    let done = || wait_for("the keyed jobs", || count() == 60);
    let one = queue.work(2, &handler).jobs_per_key(3).until(done());
    let (one, other) = tokio::join!(one, queue.work(2, &handler).jobs_per_key(3).until(done()));
    assert_eq!(one.unwrap().acked + other.unwrap().acked, 60);
    for (key, numbers) in seen.lock().unwrap().iter() {
        assert!(numbers.is_sorted() && numbers.len() == 10, "{key}: {numbers:?}");
    }
    assert!(most.load(Ordering::SeqCst) > 1, "keys never ran side by side");
    let status = queue.status().await.unwrap();
    assert_eq!((status.ready, status.taken), (0, 0));
}

/// The jobs of one key whose first fails once.
async fn order_after_a_failure(store: &Store, name: &str, in_order: bool) -> Vec<i64> {
    let queue = quick(store, name).backoff(Duration::from_millis(300)).backoff_cap(Duration::from_millis(300));
    let queue = queue.by_key().in_order(in_order).open().await.unwrap();
    for number in 0..4 {
        queue.push(&number).key("one").await.unwrap();
    }
    let seen: Mutex<Vec<i64>> = Mutex::default();
    let failed = Mutex::new(false);
    let handler = async |job: Delivery<i64>| {
        if *job.body() == 0 && !std::mem::replace(&mut *failed.lock().unwrap(), true) {
            return Err(Nack::later("once"));
        }
        seen.lock().unwrap().push(*job.body());
        Ok(())
    };
    let done = wait_for("four jobs", || seen.lock().unwrap().len() == 4);
    let report = queue.work(2, handler).poll(Duration::from_secs(600)).until(done).await.unwrap();
    assert_eq!((report.retried, report.acked), (1, 4));
    seen.into_inner().unwrap()
}

async fn a_failed_job_holds_its_key(store: &Store) {
    assert_eq!(order_after_a_failure(store, "ordered", true).await, [0, 1, 2, 3]);
}

async fn without_order_others_pass(store: &Store) {
    assert_eq!(order_after_a_failure(store, "unordered", false).await, [1, 2, 3, 0]);
}

async fn hot_keys_are_shown(store: &Store) {
    let queue = quick(store, "hot").by_key().open().await.unwrap();
    for (key, jobs) in [("cold", 1), ("hot", 5), ("warm", 3)] {
        for number in 0..jobs {
            queue.push(&number).key(key).await.unwrap();
        }
    }
    let keys = queue.hot_keys(2).await.unwrap();
    let shown: Vec<_> = keys.iter().map(|key| (key.key.as_str(), key.jobs)).collect();
    assert_eq!(shown, [("hot", 5), ("warm", 3)]);
    let status = queue.status().await.unwrap();
    assert!(status.by_key && status.ready == 9, "{status:?}");
}
