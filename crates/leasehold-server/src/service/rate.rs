//! How often: a bucket that fills by itself, in one word of memory.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::clock::Time;

/// So many at once, and so many a second after that.
#[derive(Debug)]
pub struct Rate {
    /// One takes so long to come back.
    every: u64,
    /// This much may be owed.
    burst: u64,
    /// When everything taken so far will have come back, in nanoseconds.
    full_at: AtomicU64,
}

impl Rate {
    /// `per_second` on average, `burst` at once. Both at least one.
    pub fn new(per_second: u32, burst: u32) -> Self {
        let every = 1_000_000_000 / u64::from(per_second.max(1));
        Self { every, burst: every.saturating_mul(burst.max(1).into()), full_at: AtomicU64::new(0) }
    }

    /// Takes one. `false`: there is none.
    pub fn take(&self, now: Time) -> bool {
        let now = now.as_nanos();
        self.full_at
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |full_at| {
                let next = full_at.max(now).saturating_add(self.every);
                (next - now <= self.burst).then_some(next)
            })
            .is_ok()
    }

    /// How long until there is one.
    pub fn wait(&self, now: Time) -> Duration {
        let full_at = self.full_at.load(Ordering::Relaxed);
        Duration::from_nanos((full_at + self.every).saturating_sub(now.as_nanos().saturating_add(self.burst)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the burst is had at once, then as many a second as were promised, and waiting long saves up no more.
    #[test]
    fn a_burst_then_a_steady_rate() {
        let rate = Rate::new(10, 5);
        let at = |ms: u64| Time::ZERO.plus_millis(1_000_000 + ms);
        assert_eq!((0..9).filter(|_| rate.take(at(0))).count(), 5);
        assert_eq!((0..1000).filter(|ms| rate.take(at(*ms))).count(), 9);
        assert_eq!((0..9).filter(|_| rate.take(at(60_000))).count(), 5);
    }
}
