//! A worker in a task of its own: what a server does that works beside its other tasks.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::recipe::Store;
use leasehold::recipe::queue::{Delivery, Nack};
use tokio::sync::Notify;

/// Goal: a worker whose handler owns what it uses can be spawned.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_runs_in_a_task_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&format!("sqlite:{}/recipes.db", dir.path().display())).await.unwrap();
    let queue = store.queue("mail").visible(Duration::from_secs(20)).open().await.unwrap();
    for number in 1..=10_u64 {
        queue.push(&number).await.unwrap();
    }
    let (sum, done) = (Arc::new(AtomicU64::new(0)), Arc::new(Notify::new()));
    let (worker, total, finished) = (queue.clone(), sum.clone(), done.clone());
    let task = tokio::spawn(async move {
        let handler = async move |job: Delivery<u64>| {
            if total.fetch_add(*job.body(), Ordering::SeqCst) + job.body() == 55 {
                finished.notify_one();
            }
            Ok::<(), Nack>(())
        };
        worker.work(4, handler).until(async move { done.notified().await }).await
    });
    assert_eq!(task.await.unwrap().unwrap().acked, 10);
    assert_eq!(sum.load(Ordering::SeqCst), 55);
}
