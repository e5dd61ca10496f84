//! `bench --held N`: memory per held lease, and the time of a restart with N of them.

use std::time::Duration;

use anyhow::Context;
use leasehold::Leasehold;
use serde::Serialize;

use super::bulk_acquire;
use super::engine_dir::EngineDir;
use super::latency::ratio;
use super::progress;
use super::stop_signal::StopSignal;
use leasehold_support::{output, time};

/// Long enough that no lease lapses during the measurement.
const HELD_LEASE_TTL: Duration = Duration::from_secs(3600);

/// Figures of `--held`.
#[derive(Debug, Serialize)]
pub struct HeldLeasesReport {
    url: String,
    fs: String,
    held: u64,
    /// Time to acquire all leases.
    seconds: f64,
    leases_per_s: f64,
    /// Growth of this process's resident memory, per lease.
    resident_bytes_per_lease: f64,
    /// From opening the engine until the first acquire is answered.
    restart_ms: f64,
    close_ms: f64,
}

/// Acquires the leases, measures memory, then closes and reopens the engine.
#[allow(clippy::cast_precision_loss, reason = "counts and bytes are far below 2^53")]
pub async fn run(engine_dir: &EngineDir, count: u64, stop: &StopSignal) -> anyhow::Result<HeldLeasesReport> {
    let client = Leasehold::open(&engine_dir.url()).await?;
    // Acquire one lease first: what the engine allocates for its first reply is not the cost of a lease.
    let first = client.acquire("bench-first").grant().await?;
    client.release(&first.lease_id).await?;
    let bar = progress::count_bar(count, "leases taken");
    let before = resident_bytes()?;
    let began = time::stopwatch();
    let taken = bulk_acquire::acquire_all(&client, count, || Some(HELD_LEASE_TTL), stop, &bar).await?;
    let seconds = began.elapsed().as_secs_f64();
    let grown = resident_bytes()?.saturating_sub(before);
    bar.finish_and_clear();

    let closing = time::stopwatch();
    client.close().await?;
    drop(client);
    let closed = closing.elapsed();

    let opening = time::stopwatch();
    let client = Leasehold::open(&engine_dir.url()).await?;
    let probe = client.acquire("bench-after-restart").grant().await?;
    let restart = opening.elapsed();
    client.release(&probe.lease_id).await?;
    client.close().await?;
    Ok(HeldLeasesReport {
        url: engine_dir.url(),
        fs: engine_dir.fs.clone(),
        held: taken,
        seconds: ratio(seconds, 1.0),
        leases_per_s: (taken as f64 / seconds).round(),
        resident_bytes_per_lease: ratio(grown as f64, taken as f64),
        restart_ms: ratio(restart.as_secs_f64() * 1e3, 1.0),
        close_ms: ratio(closed.as_secs_f64() * 1e3, 1.0),
    })
}

/// Prints the figures as text.
pub fn print(report: &HeldLeasesReport) -> anyhow::Result<()> {
    output::line(format!("{} on {}", output::plain(&report.url), report.fs))?;
    output::line(format!("held       {} leases, taken at {:.0} per second", report.held, report.leases_per_s))?;
    output::line(format!("resident   {:.1} bytes per lease", report.resident_bytes_per_lease))?;
    output::line(format!("restart    {:.0} ms until the first acquire was answered", report.restart_ms))
}

/// Resident memory of this process.
fn resident_bytes() -> anyhow::Result<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").context("read /proc/self/statm")?;
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    let page_bytes = u64::try_from(rustix::param::page_size()).unwrap_or(4096);
    pages.map(|pages| pages * page_bytes).context("find the resident pages in /proc/self/statm")
}
