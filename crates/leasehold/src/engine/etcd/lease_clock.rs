//! When etcd leases of other processes end, as far as can be told.
//!
//! The leases that hold ours are granted once and never prolonged, so their end is a fixed moment. `LeaseTimeToLive` tells
//! it in whole seconds, cut off. Each answer bounds it, and answers at the right moments halve what is unknown.
//!
//! # Laws
//!
//! 1. The upper bound is never before the end that was granted. A later leader only adds time, so the lowest upper bound
//!    that was ever seen stays valid.
//! 2. Bounds allow for clocks that differ in rate: by a part of the span that was told.
//! 3. An answer of zero says nothing about the lower side: negative remainders are cut to zero too.
//! 4. The lower bound is one of the real end, which a new leader or a slow grant moves away from the end that was granted. So
//!    nobody is promised time by it.
//! 5. That there is no such lease says nothing about its end: keys that are attached to it go with it, so where one is
//!    still there, the answer was wrong.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::Time;

/// Leases that are remembered. Beyond that, those that ended go.
const MAX_KNOWN: usize = 16_384;
/// Bounds closer than this are close enough.
const CLOSE_ENOUGH: Duration = Duration::from_millis(80);
const SECOND: Duration = Duration::from_secs(1);
/// Clocks of two machines differ in rate by up to this part of a span.
const RATE_PART: u32 = 2000;

/// The end of an etcd lease lies between these.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct EndBounds {
    pub lower: Time,
    pub upper: Time,
}

/// See the module.
#[derive(Default)]
pub(super) struct LeaseClocks {
    known: Mutex<HashMap<i64, EndBounds>>,
}

impl LeaseClocks {
    pub fn get(&self, lease: i64) -> Option<EndBounds> {
        self.lock().get(&lease).copied()
    }

    /// A lease that this process had granted. Returns its latest end under the leader that granted it.
    pub fn record_granted(&self, lease: i64, sent: Time, received: Time, ttl: Duration) -> Time {
        let (lower, upper) = (sent.plus(ttl - ttl / RATE_PART), received.plus(ttl + ttl / RATE_PART));
        self.put(lease, EndBounds { lower, upper }, received);
        upper
    }

    /// What etcd says of a lease: whole seconds. `true`: it was not known before.
    pub fn record_answer(&self, lease: i64, sent: Time, received: Time, seconds: u64) -> bool {
        let bounds = read_answer(sent, received, seconds);
        self.put(lease, bounds, received)
    }

    fn put(&self, lease: i64, bounds: EndBounds, now: Time) -> bool {
        let mut known = self.lock();
        let old = known.get(&lease).copied();
        let merged = old.map_or(bounds, |old| merge(old, bounds));
        if old.is_none() && known.len() >= MAX_KNOWN {
            known.retain(|_, bounds| bounds.upper > now);
        }
        if known.len() < MAX_KNOWN || old.is_some() {
            known.insert(lease, merged);
        }
        old.is_none()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<i64, EndBounds>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one answer says of the end as it was at that moment. A later leader may move it, and a granted end may be sooner.
pub(super) fn read_answer(sent: Time, received: Time, seconds: u64) -> EndBounds {
    let span = Duration::from_secs(seconds);
    let lower = if seconds == 0 { Time::ZERO } else { sent.plus(span - span / RATE_PART) };
    EndBounds { lower, upper: received.plus(span + span / RATE_PART + SECOND) }
}

fn merge(old: EndBounds, new: EndBounds) -> EndBounds {
    let upper = old.upper.min(new.upper);
    // After a change of leaders an answer may be later than the end that was granted.
    EndBounds { lower: old.lower.max(new.lower).min(upper), upper }
}

impl EndBounds {
    /// The moment at which an answer halves what is unknown; none when it is known well enough, or over.
    pub fn next_probe(self, now: Time) -> Option<Time> {
        let width = self.upper.since(self.lower);
        let close_enough = CLOSE_ENOUGH + self.upper.since(now) / (RATE_PART / 2);
        if width <= close_enough || self.lower == Time::ZERO || self.upper <= now {
            return None;
        }
        let middle = self.lower.plus(width / 2);
        let left = middle.since(now);
        // At this moment the middle is a whole number of seconds away.
        let part = Duration::from_nanos(u64::from(left.subsec_nanos()));
        (left > SECOND).then(|| now.plus(part))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(millis: u64) -> Time {
        Time::from_millis(millis)
    }

    /// What etcd answers when asked at this moment.
    fn answer(end: Time, asked: Time) -> u64 {
        end.since(asked).as_secs()
    }

    #[test]
    fn zero_says_nothing_about_the_lower_side() {
        let clocks = LeaseClocks::default();
        assert!(clocks.record_answer(1, at(1000), at(1010), 0));
        assert_eq!(clocks.get(1), Some(EndBounds { lower: Time::ZERO, upper: at(2010) }));
    }

    /// Goal: a clock that runs fast does not make the end of a long lease come early.
    /// Method: a day, told at its beginning, on a clock that is 400 parts in a million faster than etcd's.
    #[test]
    fn bounds_allow_for_clocks_of_other_rates() {
        let clocks = LeaseClocks::default();
        clocks.record_answer(7, at(0), at(1), 86_400);
        let real_end = at(86_400_500 + 86_400 * 4 / 10);
        assert!(clocks.get(7).expect("it was asked").upper >= real_end);
    }

    proptest! {
        /// Goal: whatever is asked and whenever, the end lies within the bounds; a later leader that starts the lease anew
        /// never moves the upper bound up.
        #[test]
        fn the_end_is_within_the_bounds(end in 5_000..60_000_u64, asked in prop::collection::vec((0..59_000_u64, 0..300_u64, 0..300_u64, 0..3_u64), 1..12)) {
            let clocks = LeaseClocks::default();
            let mut lowest = Time::NEVER;
            for (moment, there, back, late) in asked {
                // The member reads its clock between the two.
                let (sent, received) = (at(moment), at(moment + there + back));
                let said = answer(at(end + late * 4_000), at(moment + there));
                clocks.record_answer(7, sent, received, said);
                let bounds = clocks.get(7).expect("it was asked");
                prop_assert!(bounds.upper >= at(end).min(lowest) && bounds.upper <= lowest);
                prop_assert!(bounds.lower <= bounds.upper);
                lowest = bounds.upper;
                prop_assert!(bounds.upper >= at(end), "{:?} is before the end {}", bounds, end);
                if late == 0 && said > 0 && moment + there < end {
                    prop_assert!(sent.plus(Duration::from_secs(said)) <= at(end));
                }
            }
        }

        /// Goal: four answers at the moments that are chosen find the end well enough.
        #[test]
        fn probes_at_the_right_moments_find_the_end(end in 20_000..60_000_u64, first in 0..5_000_u64) {
            let clocks = LeaseClocks::default();
            let mut now = at(first);
            for _ in 0..5 {
                clocks.record_answer(7, now, now.plus_millis(1), answer(at(end), now));
                let Some(next) = clocks.get(7).expect("it was asked").next_probe(now) else { break };
                prop_assert!(next >= now && next.since(now) <= SECOND);
                now = next;
            }
            let bounds = clocks.get(7).expect("it was asked");
            prop_assert!(bounds.lower <= at(end) && at(end) <= bounds.upper);
            let by_rate = Duration::from_millis(end) / (RATE_PART / 2);
            prop_assert!(bounds.upper.since(bounds.lower) <= CLOSE_ENOUGH + by_rate, "{:?}", bounds);
        }
    }
}
