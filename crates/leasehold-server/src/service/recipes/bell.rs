//! Bells: a push through this server wakes one request that waits at the same queue.
//!
//! A bell has a number that changes with every push. A worker that falls asleep asks for the number, looks once more for jobs,
//! and then waits for another number: so a push in between is not missed. Pushes that come another way (in a transaction of
//! the user's, through another server) ring nothing here: the poll of the worker finds them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::clock::{Clock, Time};
use leasehold_support::sync::lock;
use leasehold_support::time::wall_micros;
use tokio::sync::Notify;

/// How often the lapsed deliveries of a queue are collected.
pub const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// The bells of the queues that were used since the start.
#[derive(Debug, Default)]
pub struct QueueBells {
    bells: Mutex<HashMap<String, Arc<QueueBell>>>,
}

/// The bell of one queue.
#[derive(Debug)]
pub struct QueueBell {
    /// Begins with the time of day: a number of an earlier run of the server is another one.
    rings: AtomicU64,
    pushed: Notify,
    waiters: AtomicUsize,
    swept_at: Mutex<Option<Time>>,
}

impl QueueBells {
    /// The bell of a queue. Ask for those only that are known to exist: it stays.
    pub fn of_queue(&self, name: &str) -> Arc<QueueBell> {
        let mut bells = lock(&self.bells);
        if let Some(bell) = bells.get(name) {
            return bell.clone();
        }
        let bell = Arc::new(QueueBell {
            rings: AtomicU64::new(wall_micros()),
            pushed: Notify::new(),
            waiters: AtomicUsize::new(0),
            swept_at: Mutex::default(),
        });
        bells.insert(name.to_owned(), bell.clone());
        bell
    }

    /// How many requests wait at a queue.
    pub fn waiters(&self, name: &str) -> u64 {
        lock(&self.bells).get(name).map_or(0, |bell| bell.waiters.load(Ordering::Relaxed) as u64)
    }
}

impl QueueBell {
    /// The number.
    pub fn rings(&self) -> u64 {
        self.rings.load(Ordering::SeqCst)
    }

    /// Changes the number, and wakes one who waits. Whether there was one.
    pub fn ring(&self) -> bool {
        self.rings.fetch_add(1, Ordering::SeqCst);
        self.pushed.notify_one();
        self.waiters.load(Ordering::Relaxed) > 0
    }

    /// Waits until something rings for this request, or `at` is over. False: it is over.
    ///
    /// One push wakes one request: the others stay, although the number is another one.
    pub async fn wait(&self, clock: &dyn Clock, at: Time) -> bool {
        let _counted = CountedWaiter::new(&self.waiters);
        tokio::select! {
            () = self.pushed.notified() => true,
            () = clock.sleep_until(at) => false,
        }
    }

    /// Whether this caller is to sweep now.
    pub fn is_sweep_due(&self, now: Time) -> bool {
        let mut swept_at = lock(&self.swept_at);
        let due = swept_at.is_none_or(|at| now.since(at) >= SWEEP_EVERY);
        if due {
            *swept_at = Some(now);
        }
        due
    }
}

struct CountedWaiter<'a>(&'a AtomicUsize);

impl<'a> CountedWaiter<'a> {
    fn new(waiters: &'a AtomicUsize) -> Self {
        waiters.fetch_add(1, Ordering::Relaxed);
        Self(waiters)
    }
}

impl Drop for CountedWaiter<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use leasehold::clock::SystemClock;

    use super::*;

    /// Goal: a push between the question for the number and the wait shows in the number, and one that comes later wakes.
    #[tokio::test]
    async fn a_push_is_not_missed() {
        let (bells, clock) = (QueueBells::default(), SystemClock::shared());
        let bell = bells.of_queue("mail");
        let late = || clock.now().plus(Duration::from_secs(60));
        let seen = bell.rings();
        assert!(!bell.ring(), "nobody waits");
        assert_ne!(bells.of_queue("mail").rings(), seen);
        assert!(bell.wait(&*clock, late()).await);
        let waits = tokio::spawn({
            let (bell, clock, at) = (bell.clone(), clock.clone(), late());
            async move { bell.wait(&*clock, at).await }
        });
        while bells.waiters("mail") == 0 {
            tokio::task::yield_now().await;
        }
        assert!(bell.ring());
        assert!(waits.await.unwrap());
        assert_eq!(bells.waiters("mail"), 0);
        assert!(!bell.wait(&*clock, clock.now()).await, "its time is over");
        assert_eq!(bells.waiters("another"), 0);
    }
}
