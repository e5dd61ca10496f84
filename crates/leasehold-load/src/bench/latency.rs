//! Latencies as histograms: percentiles that do not lie, in microseconds.
//!
//! The load is a closed loop (each client waits for its answer before it asks again), so there is no
//! schedule to fall behind and nothing to correct for: what is recorded is what a caller waited.

use std::time::Duration;

use anyhow::Context;
use hdrhistogram::Histogram;
use serde::Serialize;

/// Latencies of one kind. Narrow counters that grow on demand: every client has two of these.
#[derive(Clone, Debug)]
pub struct LatencyHistogram(Histogram<u32>);

/// What the contract prints of latencies.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LatencySummary {
    /// Half were faster.
    pub p50: f64,
    /// All but one in a hundred were faster.
    pub p99: f64,
    /// The slowest.
    pub max: f64,
}

impl LatencyHistogram {
    /// No latency yet. Three digits are exact.
    pub fn new() -> anyhow::Result<Self> {
        Histogram::new(3).map(Self).context("make a histogram")
    }

    /// Records one latency.
    pub fn record(&mut self, latency: Duration) {
        // Cannot fail: the histogram grows, and no latency is near 2^63 nanoseconds.
        let _ = self.0.record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX >> 2));
    }

    /// Adds what another histogram recorded.
    pub fn merge(&mut self, other: &Self) -> anyhow::Result<()> {
        self.0.add(&other.0).context("join histograms")
    }

    /// How many were recorded.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The latency that this share of all did not exceed, in microseconds.
    pub fn quantile_us(&self, quantile: f64) -> f64 {
        nanos_to_micros(self.0.value_at_quantile(quantile))
    }

    /// The slowest, in microseconds.
    pub fn max_us(&self) -> f64 {
        nanos_to_micros(self.0.max())
    }

    /// The three figures of the contract.
    pub fn summary(&self) -> LatencySummary {
        LatencySummary { p50: self.quantile_us(0.5), p99: self.quantile_us(0.99), max: self.max_us() }
    }
}

/// Microseconds with one digit after the point: finer would be noise.
#[allow(clippy::cast_precision_loss, reason = "latencies are far below 2^53 ns")]
fn nanos_to_micros(nanos: u64) -> f64 {
    (nanos as f64 / 100.0).round() / 10.0
}

/// A ratio with three digits after the point.
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
