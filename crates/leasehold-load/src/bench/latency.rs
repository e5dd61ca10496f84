//! Latency histograms, in microseconds.
//!
//! Every load is a closed loop: a client waits for its reply before it sends again. So there is no schedule to fall
//! behind, and no correction for coordinated omission.

use std::time::Duration;

use anyhow::Context;
use hdrhistogram::Histogram;
use serde::Serialize;

/// A histogram of latencies. It uses 32-bit counters, because every client has two histograms.
#[derive(Clone, Debug)]
pub struct LatencyHistogram(Histogram<u32>);

/// The percentiles of the JSON output.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LatencySummary {
    pub p50: f64,
    pub p99: f64,
    pub max: f64,
}

impl LatencyHistogram {
    /// An empty histogram with three significant digits.
    pub fn new() -> anyhow::Result<Self> {
        Histogram::new(3).map(Self).context("make a histogram")
    }

    pub fn record(&mut self, latency: Duration) {
        // Cannot fail: the histogram resizes itself, and no latency is near 2^63 nanoseconds.
        let _ = self.0.record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX >> 2));
    }

    /// Adds the latencies of another histogram.
    pub fn merge(&mut self, other: &Self) -> anyhow::Result<()> {
        self.0.add(&other.0).context("join histograms")
    }

    /// The number of recorded latencies.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The latency at a quantile (0 to 1), in microseconds.
    pub fn quantile_us(&self, quantile: f64) -> f64 {
        nanos_to_micros(self.0.value_at_quantile(quantile))
    }

    /// The highest latency, in microseconds.
    pub fn max_us(&self) -> f64 {
        nanos_to_micros(self.0.max())
    }

    pub fn summary(&self) -> LatencySummary {
        LatencySummary { p50: self.quantile_us(0.5), p99: self.quantile_us(0.99), max: self.max_us() }
    }
}

/// Microseconds, rounded to one decimal digit.
#[allow(clippy::cast_precision_loss, reason = "latencies are far below 2^53 ns")]
fn nanos_to_micros(nanos: u64) -> f64 {
    (nanos as f64 / 100.0).round() / 10.0
}

/// A ratio, rounded to three decimal digits. Zero if the divisor is not positive.
pub fn ratio(of: f64, to: f64) -> f64 {
    if to > 0.0 { (of / to * 1000.0).round() / 1000.0 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_in_microseconds() {
        let mut histogram = LatencyHistogram::new().unwrap();
        for us in 1..=1000 {
            histogram.record(Duration::from_micros(us));
        }
        let summary = histogram.summary();
        assert_eq!(histogram.count(), 1000);
        assert!((summary.p50 - 500.0).abs() < 1.0, "{summary:?}");
        assert!((summary.p99 - 990.0).abs() < 1.0, "{summary:?}");
        assert!((summary.max - 1000.0).abs() < 1.0, "{summary:?}");
    }
}
