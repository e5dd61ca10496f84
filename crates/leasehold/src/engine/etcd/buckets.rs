//! Buckets: etcd leases that many keys share, granted once and never prolonged.
//!
//! A lease of ours moves to a later bucket with each renewal. So nothing that was granted depends on a keepalive: an etcd
//! lease that is kept alive may be revoked early by a leader that was stopped (etcd issue 15247).
//!
//! # Laws
//!
//! 1. `end` is counted from before the request was sent: the real end is never sooner.
//! 2. `latest_end` is never before the real end while etcd has the leader of `term`: a new leader gives each lease its whole
//!    time anew. The term was known before the lease was asked for, so no election is missed.
//! 3. A bucket has at most [`MAX_KEYS`] keys: etcd deletes them in one step, and every write waits for it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::Time;

use super::failure::EtcdFailure;
use super::members::CallKind;
use super::messages::{LeaseGrantCall, term_of};
use super::session::EtcdSession;
use super::shared::EtcdShared;
use super::values::StoredCap;
use crate::clock::{Clock as _, until};

/// Keys that one bucket takes.
const MAX_KEYS: usize = 1000;
/// From here on the next bucket is opened before it is needed.
const HALF_FULL: usize = MAX_KEYS / 2;
/// The shortest span within which bucket ends are alike.
const MIN_WINDOW: Duration = Duration::from_secs(1);

/// How long a call waits for others that open a bucket before it.
const MAX_WAIT_TO_OPEN: Duration = Duration::from_secs(4);
const TOO_SLOW: &str = "etcd is too slow to grant a lease";

/// One bucket, as a key is put into it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TakenBucket {
    pub lease: i64,
    /// Never after the real end.
    pub end: Time,
    pub latest_end: Time,
    pub term: u64,
}

impl TakenBucket {
    /// As a clock for other processes: what ends at this moment ends there a little before it at most, and never later.
    pub fn as_clock(self, at: Time) -> StoredCap {
        let early = u64::try_from(self.latest_end.since(at).as_millis()).unwrap_or(u64::MAX);
        StoredCap { lease: self.lease, early: early.saturating_add(1), term: self.term }
    }
}

struct OpenBucket {
    taken: TakenBucket,
    keys: usize,
}

/// The open buckets of one session.
#[derive(Default)]
pub(super) struct BucketPool {
    open: Mutex<Vec<OpenBucket>>,
    opening: tokio::sync::Mutex<()>,
    opens_ahead: AtomicBool,
}

/// How far apart the ends of neighbouring buckets are, for keys that live so long.
fn window(life: Duration) -> Duration {
    (life / 16).max(MIN_WINDOW)
}

impl BucketPool {
    fn lock(&self) -> MutexGuard<'_, Vec<OpenBucket>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bucket that ends first and late enough. The second value: whether it is time to open the next one.
    fn pick(&self, life: Duration, keys: usize, now: Time) -> Option<(TakenBucket, bool)> {
        let (need, window) = (now.plus(life), window(life));
        let mut open = self.lock();
        open.retain(|bucket| bucket.taken.end > now);
        let fits = |bucket: &&mut OpenBucket| {
            let end = bucket.taken.end;
            end >= need && end <= need.plus(window * 2) && bucket.keys + keys <= MAX_KEYS
        };
        let later = need.plus(window / 2);
        let has_next = open.iter().any(|bucket| {
            let end = bucket.taken.end;
            end >= later && end <= need.plus(window * 2) && bucket.keys < HALF_FULL
        });
        let best = open.iter_mut().filter(fits).min_by_key(|bucket| bucket.taken.end)?;
        best.keys += keys;
        Some((best.taken, !has_next))
    }

    /// So many keys that were put into it are gone.
    pub fn give_back(&self, lease: i64, keys: usize) {
        if let Some(bucket) = self.lock().iter_mut().find(|bucket| bucket.taken.lease == lease) {
            bucket.keys = bucket.keys.saturating_sub(keys);
        }
    }

    /// etcd does not know it any more.
    pub fn forget(&self, lease: i64) {
        self.lock().retain(|bucket| bucket.taken.lease != lease);
    }
}

impl EtcdSession {
    /// A bucket for so many keys that live so long from now on.
    pub async fn take_bucket(
        self: &Arc<Self>,
        shared: &Arc<EtcdShared>,
        life: Duration,
        keys: usize,
    ) -> Result<TakenBucket, EtcdFailure> {
        let clock = shared.clock;
        if let Some((taken, open_next)) = self.buckets.pick(life, keys, clock.now()) {
            if open_next && !self.buckets.opens_ahead.swap(true, Ordering::SeqCst) {
                let (session, shared_too) = (self.clone(), shared.clone());
                shared.spawn_background(async move {
                    // Failed: whoever needs it opens it, and learns why it cannot.
                    let _ = session.open_bucket(&shared_too, life).await;
                    session.buckets.opens_ahead.store(false, Ordering::SeqCst);
                });
            }
            return Ok(taken);
        }
        // Where etcd is silent, each of those before it takes seconds: nobody waits for all of them.
        let turn = until(&clock, clock.now().plus(MAX_WAIT_TO_OPEN), self.buckets.opening.lock()).await;
        let Some(_one_at_a_time) = turn else { return Err(EtcdFailure::NoEffect(TOO_SLOW.into())) };
        for _ in 0..3 {
            if let Some((taken, _)) = self.buckets.pick(life, keys, clock.now()) {
                return Ok(taken);
            }
            self.open_bucket(shared, life).await?;
        }
        Err(EtcdFailure::NoEffect(TOO_SLOW.into()))
    }

    async fn open_bucket(&self, shared: &EtcdShared, life: Duration) -> Result<(), EtcdFailure> {
        let whole = life + window(life);
        let seconds = whole.as_secs() + u64::from(whole.subsec_nanos() > 0);
        let ttl = i64::try_from(seconds).unwrap_or(i64::MAX);
        let term = self.term.load(Ordering::SeqCst);
        let sent = shared.clock.now();
        // Not answered: etcd ends a bucket that nobody uses by itself.
        let reply = shared.members.call(LeaseGrantCall { ttl }, CallKind::Read).await?;
        let granted = Duration::from_secs(u64::try_from(reply.ttl).unwrap_or(0));
        self.term.fetch_max(term_of(reply.header.as_ref()), Ordering::SeqCst);
        let latest_end = shared.lease_clocks.record_granted(reply.id, sent, shared.clock.now(), granted);
        let taken = TakenBucket { lease: reply.id, end: sent.plus(granted), latest_end, term };
        self.buckets.lock().push(OpenBucket { taken, keys: 0 });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(ends: &[(i64, u64, usize)]) -> BucketPool {
        let pool = BucketPool::default();
        for (lease, end, keys) in ends {
            let end = Time::from_millis(*end);
            let taken = TakenBucket { lease: *lease, end, latest_end: end, term: 1 };
            pool.lock().push(OpenBucket { taken, keys: *keys });
        }
        pool
    }

    fn picked(pool: &BucketPool, life_ms: u64, now_ms: u64) -> Option<(i64, bool)> {
        let picked = pool.pick(Duration::from_millis(life_ms), 1, Time::from_millis(now_ms));
        picked.map(|(taken, open_next)| (taken.lease, open_next))
    }

    /// Goal: a key never goes into a bucket that ends too soon, is much too late, or is full.
    #[test]
    fn a_bucket_is_late_enough_and_not_full() {
        let pool = pool(&[(1, 9_999, 0), (2, 10_000, MAX_KEYS), (3, 10_900, 0), (4, 10_200, 0), (5, 12_001, 0)]);
        assert_eq!(picked(&pool, 10_000, 0), Some((4, false)));
        assert_eq!(picked(&pool, 10_000, 250), Some((3, false)), "the next one is open already");
        assert_eq!(picked(&pool, 10_000, 2_001), Some((5, true)), "it is used up soon, and there is no other");
        assert_eq!(picked(&pool, 10_000, 3_000), None);
        assert_eq!(picked(&pool, 5_000, 0), None, "all end much later than needed");
    }

    #[test]
    fn a_full_bucket_takes_another_key_when_one_is_given_back() {
        let pool = pool(&[(1, 10_500, MAX_KEYS - 1)]);
        assert_eq!(picked(&pool, 10_000, 0), Some((1, true)));
        assert_eq!(picked(&pool, 10_000, 0), None);
        pool.give_back(1, 1);
        assert_eq!(picked(&pool, 10_000, 0), Some((1, true)));
        pool.forget(1);
        assert_eq!(picked(&pool, 10_000, 0), None);
    }

    #[test]
    fn windows_grow_with_the_life_of_keys() {
        assert_eq!(window(Duration::from_secs(2)), MIN_WINDOW);
        assert_eq!(window(Duration::from_secs(160)), Duration::from_secs(10));
    }
}
