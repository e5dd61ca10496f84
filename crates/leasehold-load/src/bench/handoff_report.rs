//! The figures of `bench --handoff`.

use std::time::Duration;

use serde::Serialize;

use super::disk::FdatasyncLatency;
use super::latency::{LatencyHistogram, LatencySummary, ratio};
use super::pairs_report::format_micros;
use leasehold_support::output::{self, Table};

/// Figures of `--handoff`.
#[derive(Debug, Serialize)]
pub struct HandoffReport {
    url: String,
    fs: String,
    waiters: usize,
    seconds: f64,
    handoffs: u64,
    /// From sending a release to receiving the next grant.
    handoff_us: LatencySummary,
    /// One request that changes nothing, before and after the load.
    round_trip_us: LatencySummary,
    fdatasync_us: FdatasyncLatency,
    /// The p50 of a handoff, divided by the sum of the p50 of one fdatasync and of one round trip.
    ratio_p50: f64,
    /// The same with p99.
    ratio_p99: f64,
}

impl HandoffReport {
    /// The report of a load of so many waiters, between two halves of the baseline.
    pub fn new(
        url: String,
        fs: String,
        waiters: usize,
        (handoffs, elapsed): (&LatencyHistogram, Duration),
        round_trips: &LatencyHistogram,
        fdatasync_us: FdatasyncLatency,
    ) -> Self {
        let (round_trip_us, handoff_us) = (round_trips.summary(), handoffs.summary());
        fdatasync_us.warn_if_unsteady();
        Self {
            url,
            fs,
            waiters,
            seconds: ratio(elapsed.as_secs_f64(), 1.0),
            handoffs: handoffs.count(),
            handoff_us,
            round_trip_us,
            fdatasync_us,
            ratio_p50: ratio(handoff_us.p50, fdatasync_us.p50 + round_trip_us.p50),
            ratio_p99: ratio(handoff_us.p99, fdatasync_us.p99 + round_trip_us.p99),
        }
    }
}

/// Prints the figures as text.
pub fn print(report: &HandoffReport) -> anyhow::Result<()> {
    output::line(format!("{} on {}", report.url, report.fs))?;
    output::line(format!("{} in line, {} handoffs in {} s", report.waiters, report.handoffs, report.seconds))?;
    let mut table = Table::new(&["", "P50", "P99"]);
    let mut row = |what: &str, p50: f64, p99: f64| table.row([what.to_owned(), format_micros(p50), format_micros(p99)]);
    row("release to next grant", report.handoff_us.p50, report.handoff_us.p99);
    row("one fdatasync", report.fdatasync_us.p50, report.fdatasync_us.p99);
    row("one round trip", report.round_trip_us.p50, report.round_trip_us.p99);
    table.row([
        "of fdatasync + round trip".to_owned(),
        format!("{:.2} x", report.ratio_p50),
        format!("{:.2} x", report.ratio_p99),
    ]);
    table.print()
}
