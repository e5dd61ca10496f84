//! The cache that flights guard: a trait for yours, and one in the memory of this process.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::Time;

use crate::clock::{Clock, SystemClock};

/// Expired values are removed when there are this many, or twice as many as were left the last time.
const FIRST_SWEEP: usize = 1024;

/// Where values are kept: Redis, memcached, a table, memory. Errors of the cache are its own affair: no value is `None`.
pub trait Cache: Send + Sync + 'static {
    /// What is cached.
    type Value: Clone + Send + Sync + 'static;

    /// The value of a key, with its age.
    fn get(&self, key: &str) -> impl Future<Output = Option<CachedValue<Self::Value>>> + Send;

    /// Keeps a value for at least this long; later it may be forgotten.
    fn put(&self, key: &str, value: CachedValue<Self::Value>, keep: Duration) -> impl Future<Output = ()> + Send;
}

/// A value, and what a flight must know of it.
///
/// It has an age, not a moment of expiry: moments of two machines cannot be compared. A cache on Redis stores with
/// `PX keep`, and the age is `keep - PTTL`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedValue<V> {
    /// The value.
    pub value: V,
    /// How long its computation took: slow values are refreshed earlier.
    pub computed_in: Duration,
    /// How long ago it was put.
    pub age: Duration,
}

/// A cache in the memory of this process. Clones are the same cache.
pub struct MemoryCache<V> {
    clock: Arc<dyn Clock>,
    kept: Arc<Mutex<Kept<V>>>,
}

struct Kept<V> {
    values: HashMap<String, KeptValue<V>>,
    sweep_at: usize,
}

struct KeptValue<V> {
    value: V,
    computed_in: Duration,
    put_at: Time,
    keep_until: Time,
}

impl<V> MemoryCache<V> {
    /// An empty cache, by the machine's clock.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(SystemClock::shared())
    }

    /// An empty cache, by this clock.
    #[must_use]
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self { clock, kept: Arc::new(Mutex::new(Kept { values: HashMap::new(), sweep_at: FIRST_SWEEP })) }
    }

    fn lock(&self) -> MutexGuard<'_, Kept<V>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<V> Default for MemoryCache<V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<V> Clone for MemoryCache<V> {
    fn clone(&self) -> Self {
        Self { clock: self.clock.clone(), kept: self.kept.clone() }
    }
}

impl<V> fmt::Debug for MemoryCache<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryCache").field("values", &self.lock().values.len()).finish_non_exhaustive()
    }
}

impl<V: Clone + Send + Sync + 'static> Cache for MemoryCache<V> {
    type Value = V;

    async fn get(&self, key: &str) -> Option<CachedValue<V>> {
        let now = self.clock.now();
        let kept = self.lock();
        let found = kept.values.get(key).filter(|found| now < found.keep_until)?;
        Some(CachedValue { value: found.value.clone(), computed_in: found.computed_in, age: now.since(found.put_at) })
    }

    async fn put(&self, key: &str, value: CachedValue<V>, keep: Duration) {
        let now = self.clock.now();
        let CachedValue { value, computed_in, .. } = value;
        let kept_value = KeptValue { value, computed_in, put_at: now, keep_until: now.plus(keep) };
        let mut kept = self.lock();
        kept.values.insert(key.to_owned(), kept_value);
        if kept.values.len() >= kept.sweep_at {
            kept.values.retain(|_, value| now < value.keep_until);
            kept.sweep_at = FIRST_SWEEP.max(kept.values.len().saturating_mul(2));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::ManualClock;

    /// Goal: a cache that lives long does not keep what expired long ago.
    /// Method: thousands of keys that are asked for once, each for a second.
    #[tokio::test]
    async fn expired_values_are_swept() {
        let clock = ManualClock::new();
        let cache = MemoryCache::with_clock(clock.shared());
        for number in 0..10_000_u32 {
            let value = CachedValue { value: number, computed_in: Duration::ZERO, age: Duration::ZERO };
            cache.put(&number.to_string(), value, Duration::from_secs(1)).await;
            clock.advance(Duration::from_millis(10));
        }
        assert!(cache.lock().values.len() <= 2 * FIRST_SWEEP, "{cache:?}");
        assert_eq!(
            cache.get("9999").await.map(|found| (found.value, found.age)),
            Some((9999, Duration::from_millis(10)))
        );
        assert_eq!(cache.get("9000").await, None);
    }
}
