//! The only place that asks the machine what time it is.
//!
//! Everything else takes a [`Clock`] and can be run under a clock that is set by hand
//! ([`ManualClock`](crate::testkit::ManualClock), feature `testkit`).
//!
//! The machine's clock is `CLOCK_BOOTTIME`: it never steps with the wall clock, and it **counts
//! suspend**. A laptop that slept through its ttl must wake up knowing that the lease is gone, and
//! `CLOCK_MONOTONIC` (which is what `std::time::Instant` and every tokio timer use) would not know.
#![allow(clippy::disallowed_methods)] // clocks, sleeps and chance are banned elsewhere, so that they are here

use std::fs;
use std::future::Future;
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub use leasehold_core::Time;
use rustix::time::{ClockId, clock_gettime};

mod alarm;
pub(crate) mod sleepers;

/// Reads the time, and wakes sleeping tasks.
pub trait Clock: Send + Sync + 'static {
    /// The moment it is: rises, counts suspend, starts anew with each boot.
    fn now(&self) -> Time;

    /// Identity of this boot. Moments of two boots must not be compared.
    fn boot(&self) -> [u8; 16];

    /// Completes at `at`, never before. Dropping it costs nothing and leaves nothing behind.
    fn sleep_until(&self, at: Time) -> Pin<Box<dyn Future<Output = ()> + Send>>;

    /// Registers a function to call when time moves other than by itself, as a clock set by hand does.
    /// An engine with its own timer thread wakes that thread. The machine's clock never calls it.
    fn on_step(&self, wake: Box<dyn Fn() + Send + Sync>);
}

/// The machine's clock: `CLOCK_BOOTTIME`.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use leasehold::clock::SystemClock;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let clock = SystemClock::shared();
/// let until = clock.now().plus(Duration::from_millis(5));
/// clock.sleep_until(until).await;
/// assert!(clock.now() >= until);
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl SystemClock {
    /// The clock as engines and clients take it.
    #[must_use]
    pub fn shared() -> Arc<dyn Clock> {
        Arc::new(Self)
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Time {
        boottime()
    }

    fn boot(&self) -> [u8; 16] {
        static BOOT: OnceLock<[u8; 16]> = OnceLock::new();
        *BOOT.get_or_init(read_boot)
    }

    fn sleep_until(&self, at: Time) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(alarm::sleep_until(at))
    }

    fn on_step(&self, _wake: Box<dyn Fn() + Send + Sync>) {}
}

fn boottime() -> Time {
    let at = clock_gettime(ClockId::Boottime);
    // Boottime is never negative; if it were, zero would be the moment that grants nobody more time.
    let seconds = u64::try_from(at.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(at.tv_nsec).unwrap_or(0);
    Time::from_nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

/// The wall clock, in microseconds since 1970. Nothing is decided by it: it is compared with the clocks of other machines.
#[cfg(any(feature = "etcd", feature = "postgres", feature = "redis", feature = "remote", feature = "zookeeper"))]
pub(crate) fn wall_micros() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

/// The time of day: schedules are about nothing else. Whether a tick has come is judged by the clock of the store.
#[cfg(all(feature = "cron", any(feature = "postgres", feature = "sqlite")))]
pub(crate) fn wall_time() -> std::time::SystemTime {
    std::time::SystemTime::now()
}

fn read_boot() -> [u8; 16] {
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
    let offsets = fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    boot_id.as_deref().and_then(|text| boot_identity(text, &offsets)).unwrap_or_else(unknown_boot)
}

/// What `work` answers, if it answers before `at`.
pub(crate) async fn until<T>(clock: &dyn Clock, at: Time, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        done = work => Some(done),
        () = clock.sleep_until(at) => None,
    }
}

/// From half of a span to all of it, drawn from `seed`: tasks with different seeds do not act in step, and a run under a
/// clock set by hand can be repeated.
pub(crate) fn spread_upper_half(whole: Duration, seed: &impl Hash) -> Duration {
    let mut hasher = DefaultHasher::new();
    seed.hash(&mut hasher);
    let half = whole / 2;
    half + Duration::from_nanos(hasher.finish() % u64::try_from(half.as_nanos()).unwrap_or(u64::MAX).max(1))
}

/// A number in `(0, 1]`, drawn by chance. For jitter, never for secrets.
pub(crate) fn random_fraction() -> f64 {
    // Each state has keys of its own.
    let bits = RandomState::new().hash_one("jitter") >> 11;
    (bits + 1) as f64 / (1u64 << 53) as f64
}

/// The boot id, mixed with the offsets of this time namespace: two containers on one kernel share the
/// boot id, but with different offsets their clocks must not be compared.
fn boot_identity(boot_id: &str, offsets: &str) -> Option<[u8; 16]> {
    let hex: String = boot_id.trim().chars().filter(|c| *c != '-').collect();
    if hex.len() != 32 {
        return None;
    }
    let bits = u128::from_str_radix(&hex, 16).ok()?;
    Some((bits ^ fnv1a(offsets.as_bytes())).to_be_bytes())
}

/// FNV-1a, 128 bits: the identity is stored on disk, so the mix must be the same in every build.
fn fnv1a(bytes: &[u8]) -> u128 {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    bytes.iter().fold(BASIS, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME))
}

/// Without a boot id we cannot prove that it is the same boot. A fresh identity per process makes every
/// restart count as another boot: leases live longer than they must, and never shorter.
fn unknown_boot() -> [u8; 16] {
    let draw = || u128::from(RandomState::new().hash_one("boot"));
    ((draw() << 64) | draw()).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const BOOT: &str = "c7ed7d2b-aef1-4fb7-ab22-39bc66f2df86\n";
    const NO_OFFSETS: &str = "monotonic           0         0\nboottime            0         0\n";

    /// Goal: a container with another time offset counts as another boot.
    /// Method: the same boot id beside two texts of offsets, and beside the same text twice.
    #[test]
    fn another_time_namespace_is_another_boot() {
        let shifted = NO_OFFSETS.replace("boottime            0", "boottime         3600");
        assert_eq!(boot_identity(BOOT, NO_OFFSETS), boot_identity(BOOT, NO_OFFSETS));
        assert_ne!(boot_identity(BOOT, NO_OFFSETS), boot_identity(BOOT, &shifted));
        assert!(boot_identity(BOOT, "").is_some(), "a kernel without time namespaces has a boot too");
    }

    /// Goal: the identity stored in journals means the same in every build.
    /// Method: one value, written down.
    #[test]
    fn the_boot_identity_is_the_same_in_every_build() {
        // With no offsets at all the mix is the basis of FNV-1a, which can be checked by hand.
        let by_hand = 0xc7ed_7d2b_aef1_4fb7_ab22_39bc_66f2_df86 ^ 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128;
        assert_eq!(boot_identity(BOOT, ""), Some(by_hand.to_be_bytes()));
        assert_eq!(fnv1a(b"a"), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964, "published vector");
    }

    #[test]
    fn text_that_is_no_boot_id_gives_no_identity() {
        assert_eq!(boot_identity("", ""), None);
        assert_eq!(boot_identity("c7ed7d2b", ""), None);
        assert_eq!(boot_identity("z7ed7d2b-aef1-4fb7-ab22-39bc66f2df86", ""), None);
        assert_ne!(unknown_boot(), unknown_boot());
    }

    /// Goal: a real sleep ends at its moment: not before, and not with a later sleeper's.
    /// Method: the machine's clock. A sleep of an hour is asked for first, so that the alarm must be set
    /// anew for the short ones; the last of them has passed already.
    #[tokio::test]
    async fn a_sleep_on_the_machines_clock_ends_at_its_moment() {
        let clock = SystemClock;
        let start = clock.now();
        let hour = tokio::spawn(clock.sleep_until(start.plus(Duration::from_secs(3600))));
        tokio::task::yield_now().await;
        for millis in [10, 20, 0] {
            let at = start.plus(Duration::from_millis(millis));
            // The timeout only keeps a broken alarm from hanging the test; the sleep looks at the clock
            // whenever it is polled, so a late end must be told from a good one by the time.
            let _ = tokio::time::timeout(Duration::from_secs(20), clock.sleep_until(at)).await;
            assert!(clock.now() >= at && clock.now() < at.plus(Duration::from_secs(20)));
        }
        assert!(!hour.is_finished());
        hour.abort();
    }
}
