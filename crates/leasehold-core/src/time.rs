//! Time as the core sees it: an argument, never a question asked of the machine.

use core::fmt;
use core::time::Duration;

/// A moment on the engine's own clock, in nanoseconds. It never goes back, and the shell says what it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(u64);

impl Time {
    /// The beginning.
    pub const ZERO: Self = Self(0);
    /// No end at all.
    pub const NEVER: Self = Self(u64::MAX);

    /// The moment this many nanoseconds after the beginning.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The moment this many milliseconds after the beginning.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Nanoseconds since the beginning.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// This moment plus a span; the end of time if that is past it.
    #[must_use]
    pub fn plus(self, span: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// This moment plus milliseconds; the end of time if that is past it.
    #[must_use]
    pub const fn plus_millis(self, millis: u64) -> Self {
        Self(self.0.saturating_add(millis.saturating_mul(1_000_000)))
    }

    /// How long from `earlier` to this moment; zero if it is not earlier.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::NEVER {
            return f.write_str("never");
        }
        write!(f, "{:?}", Duration::from_nanos(self.0))
    }
}
