//! The report of the pair load, as a table and as JSON.

use serde::Serialize;

use super::disk::FdatasyncLatency;
use super::latency::{LatencySummary, ratio};
use super::pair_load::PairMeasurement;
use leasehold_support::output::{self, Table};

/// Figures of one target: the JSON object of `--json`.
#[derive(Debug, Serialize)]
pub struct PairsReport {
    pub url: String,
    /// Concurrent clients.
    pub clients: usize,
    pub seconds: f64,
    /// Pairs of acquire and release.
    pub pairs: u64,
    pub pairs_per_s: f64,
    pub acquire_us: LatencySummary,
    pub pair_us: LatencySummary,
    /// Latency of fdatasync, measured in the same run.
    pub fdatasync_us: FdatasyncLatency,
    /// The file system of the measured disk.
    pub fs: String,
    /// `pairs_per_s`, divided by `clients / (2 x p50 of one fdatasync)`.
    pub ratio_pairs_to_bound: f64,
    /// The p50 of an acquire, divided by the p50 of one fdatasync.
    pub ratio_acquire_to_fdatasync: f64,
    /// CPU time of this process per pair. Beside a server on the same machine, it is the cost of the load itself.
    pub cpu_us_per_pair: f64,
}

impl PairsReport {
    /// Combines the figures of the load and of the disk.
    #[allow(clippy::cast_precision_loss, reason = "pairs are far below 2^53")]
    pub fn new(
        url: String,
        clients: usize,
        measured: &PairMeasurement,
        fdatasync: FdatasyncLatency,
        fs: String,
    ) -> Self {
        let sync_us = fdatasync.p50;
        let acquire_us = measured.acquire.summary();
        let pairs_per_s = measured.pairs_per_s();
        Self {
            url,
            clients,
            seconds: ratio(measured.elapsed.as_secs_f64(), 1.0),
            pairs: measured.pair.count(),
            pairs_per_s: pairs_per_s.round(),
            acquire_us,
            pair_us: measured.pair.summary(),
            fdatasync_us: fdatasync,
            fs,
            ratio_pairs_to_bound: ratio(pairs_per_s, pairs_per_s_bound(clients, sync_us)),
            ratio_acquire_to_fdatasync: ratio(acquire_us.p50, sync_us),
            cpu_us_per_pair: ratio(measured.cpu.as_secs_f64() * 1e6, measured.pair.count() as f64),
        }
    }
}

/// Pairs per second that the disk allows: each pair waits for two syncs, and all clients share each sync.
#[allow(clippy::cast_precision_loss, reason = "a count of clients is far below 2^53")]
fn pairs_per_s_bound(clients: usize, sync_us: f64) -> f64 {
    if sync_us > 0.0 { clients as f64 / (2.0 * sync_us / 1e6) } else { 0.0 }
}

/// Prints the figures as a table, and the two ratios as text.
pub fn print(reports: &[PairsReport]) -> anyhow::Result<()> {
    let mut table = Table::new(&[
        "URL",
        "FS",
        "CLIENTS",
        "PAIRS/S",
        "ACQUIRE P50",
        "P99",
        "MAX",
        "PAIR P50",
        "P99",
        "MAX",
        "FDATASYNC P50",
        "CPU/PAIR",
    ]);
    for report in reports {
        let latencies = [report.acquire_us, report.pair_us];
        let latencies = latencies.iter().flat_map(|summary| [summary.p50, summary.p99, summary.max]).map(format_micros);
        let head =
            [report.url.clone(), report.fs.clone(), report.clients.to_string(), format!("{:.0}", report.pairs_per_s)];
        table.row(
            head.into_iter()
                .chain(latencies)
                .chain([format_micros(report.fdatasync_us.p50), format_micros(report.cpu_us_per_pair)]),
        );
    }
    table.print()?;
    for report in reports {
        output::line(format!(
            "{}: {:.2} of the pairs that one sync per commit would allow ({} clients / 2 x fdatasync p50), \
             acquire p50 is {:.2} x one fdatasync",
            output::plain(&report.url),
            report.ratio_pairs_to_bound,
            report.clients,
            report.ratio_acquire_to_fdatasync,
        ))?;
    }
    Ok(())
}

/// Formats a latency as microseconds or milliseconds.
pub fn format_micros(us: f64) -> String {
    if us >= 10_000.0 { format!("{:.1} ms", us / 1_000.0) } else { format!("{us:.0} us") }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::latency::LatencyHistogram;
    use super::*;

    fn histogram(us: &[u64]) -> LatencyHistogram {
        let mut histogram = LatencyHistogram::new().unwrap();
        us.iter().for_each(|us| histogram.record(Duration::from_micros(*us)));
        histogram
    }

    /// Goal: the ratios are what the issue defines them to be.
    /// Method: figures small enough to work out by hand.
    #[test]
    fn ratios_are_those_of_the_issue() {
        let measured = PairMeasurement {
            elapsed: Duration::from_secs(2),
            cpu: Duration::from_micros(75),
            acquire: histogram(&[150, 150, 150]),
            pair: histogram(&[300, 300, 300]),
        };
        let disk = FdatasyncLatency { p50: 100.0, p99: 300.0, p50_before: 90.0, p50_after: 190.0 };
        assert!(!disk.is_steady() && FdatasyncLatency { p50_after: 180.0, ..disk }.is_steady());
        let report = PairsReport::new("embedded:x".into(), 10, &measured, disk, "ext4".into());
        assert_eq!(report.pairs, 3);
        assert!((report.cpu_us_per_pair - 25.0).abs() < 1e-6, "{report:?}");
        // 1.5 pairs/s of 10 / (2 x 100 us) = 50,000 pairs/s.
        assert!((report.ratio_pairs_to_bound - 0.0).abs() < 0.001);
        assert!((report.ratio_acquire_to_fdatasync - 1.5).abs() < 0.01, "{report:?}");
        assert!((pairs_per_s_bound(10, 100.0) - 50_000.0).abs() < 1e-6);
    }
}
