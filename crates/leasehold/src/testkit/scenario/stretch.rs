//! From a script's time to the time of an engine that plays it.

use std::time::Duration;

/// How a script is played in real time.
#[derive(Clone, Copy, Debug)]
pub struct RealTimePace {
    /// How long a second of the script takes.
    pub second: Duration,
    /// No line comes closer than this to a moment at which something is due, and spans may differ by twice as much. The
    /// engine has so long for all that one moment sets off.
    pub tolerance: Duration,
    /// Claims that are let in at the same moment, since none excludes another, may get their tokens in any order. The book
    /// goes by their arrival; an engine that grants each by a write of its own need not.
    pub any_order_together: bool,
    /// No span is longer: for an engine whose leases have a longest ttl. Scripts use longer ones only for "very long".
    pub longest: Duration,
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeStretch {
    second: Duration,
    longest: Duration,
    /// How far a span may be from the expected one.
    slack: Duration,
    /// See [`RealTimePace::any_order_together`].
    pub any_order_together: bool,
    /// How long the engine has for what one line sets off, in real time; nothing where time is virtual.
    pub settle: Option<Duration>,
}

impl TimeStretch {
    /// Under a clock that is set by hand.
    pub const NONE: Self = Self {
        second: Duration::from_secs(1),
        longest: Duration::MAX,
        slack: Duration::ZERO,
        any_order_together: false,
        settle: None,
    };

    pub fn real_time(pace: RealTimePace) -> Self {
        Self {
            second: pace.second,
            longest: pace.longest,
            slack: pace.tolerance * 2,
            any_order_together: pace.any_order_together,
            settle: Some(pace.tolerance / 4),
        }
    }

    /// A span of the script, as the engine is asked for it.
    pub fn real(self, span: Duration) -> Duration {
        let nanos = span.as_nanos() * self.second.as_nanos() / Duration::from_secs(1).as_nanos();
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)).min(self.longest)
    }

    /// Whether a span that an engine told is the expected one of the script.
    pub fn is_about(self, seen: Duration, expected: Duration) -> bool {
        seen.abs_diff(self.real(expected)) <= self.slack
    }
}
