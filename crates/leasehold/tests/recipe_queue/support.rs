//! What the tests of queues share.

use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use leasehold::recipe::Store;
use leasehold::recipe::queue::{Delivery, Nack, Queue, QueueBuilder, WorkReport};
use leasehold_harness::postgres::Cluster;

/// Longer than anything here should take, even on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(40);

/// One server for the tests of this process. It ends with it.
pub fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(|| Cluster::start(&["max_connections=200"]))
}

/// A queue whose jobs are tried again at once.
pub fn quick(store: &Store, name: &str) -> QueueBuilder {
    store
        .queue(name)
        .backoff(Duration::from_millis(1))
        .backoff_cap(Duration::from_millis(2))
        .visible(Duration::from_secs(20))
}

/// Completes when the condition holds.
pub async fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "{what} did not come");
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
}

/// What handlers saw.
#[derive(Default)]
pub struct Seen(Mutex<Vec<i64>>);

impl Seen {
    pub fn note(&self, number: i64) {
        self.0.lock().unwrap().push(number);
    }

    pub fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    pub fn all(&self) -> Vec<i64> {
        self.0.lock().unwrap().clone()
    }
}

/// Works until so many handlers were called, and returns what they saw.
pub async fn work_off(queue: &Queue, slots: usize, count: usize) -> (WorkReport, Vec<i64>) {
    let seen = Seen::default();
    let handler = async |job: Delivery<i64>| {
        seen.note(*job.body());
        Ok::<(), Nack>(())
    };
    let report = queue.work(slots, handler).until(wait_for("the jobs", || seen.count() >= count)).await.unwrap();
    (report, seen.all())
}
