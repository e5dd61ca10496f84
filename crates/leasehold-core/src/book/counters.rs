//! Counters and histograms for metrics. In memory only: they begin at zero with each engine.

use std::time::Duration;

/// How often each thing happened since the engine was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Claims granted.
    pub granted: u64,
    /// Claims granted after they had waited.
    pub waited: u64,
    /// Leases ended by their owners.
    pub released: u64,
    /// Leases ended by time.
    pub lapsed: u64,
    /// Leases ended by an operator.
    pub revoked: u64,
    /// How long leases were held.
    pub held: Histogram,
}

/// How many spans were how long, by powers of two of a microsecond: enough to see where they lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// Spans up to 2^n microseconds and longer than the bucket before; the last one has the rest.
    pub buckets: [u64; Self::BUCKETS],
    /// All of them together, in nanoseconds.
    pub sum_nanos: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: [0; Self::BUCKETS], sum_nanos: 0 }
    }
}

impl Histogram {
    /// Up to 2^37 microseconds, a day and a half: longer than any ttl.
    pub const BUCKETS: usize = 38;

    /// One more span.
    pub fn add(&mut self, span: Duration) {
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        self.add_value(nanos.div_ceil(1000), nanos);
    }

    /// One more value in the units of the buckets, which adds `sum` to the sum.
    pub fn add_value(&mut self, value: u64, sum: u64) {
        let bucket = 64 - value.saturating_sub(1).leading_zeros() as usize;
        self.buckets[bucket.min(Self::BUCKETS - 1)] += 1;
        self.sum_nanos = self.sum_nanos.saturating_add(sum);
    }

    /// How many.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a span at the edge of a bucket is in it, one nanosecond more is in the next.
    #[test]
    fn spans_fall_into_the_bucket_that_bounds_them() {
        let bucket = |span| {
            let mut spread = Histogram::default();
            spread.add(span);
            spread.buckets.iter().position(|count| *count == 1).unwrap()
        };
        assert_eq!(bucket(Duration::ZERO), 0);
        assert_eq!(bucket(Duration::from_micros(1)), 0);
        assert_eq!(bucket(Duration::from_nanos(1001)), 1);
        assert_eq!(bucket(Duration::from_micros(1024)), 10);
        assert_eq!(bucket(Duration::from_nanos(1_024_001)), 11);
        assert_eq!(bucket(Duration::MAX), Histogram::BUCKETS - 1);
    }
}
