//! Rate limits: a token bucket in one atomic word, and a fixed number of buckets for failed authentications.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::clock::Time;

use super::connection_limit::network_of;

/// A token bucket: a burst, then a steady rate.
#[derive(Debug)]
pub struct Rate {
    /// Nanoseconds until one token comes back.
    every: u64,
    /// Nanoseconds of debt that the burst allows.
    burst: u64,
    /// When all tokens taken so far have come back, in nanoseconds.
    full_at: AtomicU64,
}

impl Rate {
    /// `per_second` on average, `burst` at once. Both at least one.
    pub fn new(per_second: u32, burst: u32) -> Self {
        let every = 1_000_000_000 / u64::from(per_second.max(1));
        Self { every, burst: every.saturating_mul(burst.max(1).into()), full_at: AtomicU64::new(0) }
    }

    /// Takes one token. `false`: there is none.
    pub fn try_take(&self, now: Time) -> bool {
        let now = now.as_nanos();
        self.full_at
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |full_at| {
                let next = full_at.max(now).saturating_add(self.every);
                (next - now <= self.burst).then_some(next)
            })
            .is_ok()
    }

    /// How long until there is a token.
    pub fn time_until_free(&self, now: Time) -> Duration {
        let full_at = self.full_at.load(Ordering::Relaxed);
        Duration::from_nanos((full_at + self.every).saturating_sub(now.as_nanos().saturating_add(self.burst)))
    }
}

/// Limits failed authentications by address, in memory of a fixed size.
///
/// Each address is hashed into one of a fixed number of buckets, with a random seed. Two addresses may share a bucket,
/// so only failures are limited: a right key always passes.
#[derive(Debug)]
pub struct FailedAuthLimiter {
    buckets: Box<[Rate]>,
    seed: RandomState,
}

impl FailedAuthLimiter {
    const BUCKETS: usize = 4096;

    /// The rate and the burst of each bucket.
    pub fn new(per_second: u32, burst: u32) -> Self {
        let buckets = (0..Self::BUCKETS).map(|_| Rate::new(per_second, burst)).collect();
        Self { buckets, seed: RandomState::new() }
    }

    /// Counts one failure of this address. `false`: it had too many.
    pub fn try_take(&self, address: IpAddr, now: Time) -> bool {
        let at = usize::try_from(self.seed.hash_one(network_of(address)) % Self::BUCKETS as u64).unwrap_or(0);
        self.buckets[at].try_take(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: one stranger who tries on and on is stopped, and hardly anybody else; one network counts as one.
    #[test]
    fn a_stranger_is_stopped_alone() {
        let limiter = FailedAuthLimiter::new(1, 10);
        let now = Time::ZERO.plus_millis(1_000_000);
        let tries = |address: &str, times| {
            let address = address.parse().unwrap();
            (0..times).filter(|_| limiter.try_take(address, now)).count()
        };
        assert_eq!(tries("192.0.2.1", 1000), 10);
        assert_eq!(tries("::ffff:192.0.2.1", 1000), 0, "the same address");
        assert_eq!(tries("2001:db8:1:2::1", 1000) + tries("2001:db8:1:2:ffff::9", 1000), 10);
        let others = (0..100).filter(|n| tries(&format!("198.51.100.{n}"), 1) == 1).count();
        assert!(others >= 90, "{others} of 100 others could try");
        assert!(limiter.try_take("192.0.2.1".parse().unwrap(), now.plus_millis(1100)), "and it ends");
    }

    /// Goal: the burst is had at once, then as many a second as were promised, and waiting long saves up no more.
    #[test]
    fn a_burst_then_a_steady_rate() {
        let rate = Rate::new(10, 5);
        let at = |ms: u64| Time::ZERO.plus_millis(1_000_000 + ms);
        assert_eq!((0..9).filter(|_| rate.try_take(at(0))).count(), 5);
        assert_eq!((0..1000).filter(|ms| rate.try_take(at(*ms))).count(), 9);
        assert_eq!((0..9).filter(|_| rate.try_take(at(60_000))).count(), 5);
    }
}
