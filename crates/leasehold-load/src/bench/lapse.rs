//! `bench --lapse N`: N leases that lapse at the same moment, and the latency of other clients meanwhile.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use leasehold::Leasehold;
use leasehold::clock::SystemClock;
use leasehold::engine::embedded::{Embedded, Options};
use serde::Serialize;

use super::engine_dir::EngineDir;
use super::latency::{LatencySummary, ratio};
use super::pairs_report::format_micros;
use super::stop_signal::StopSignal;
use super::{bulk_acquire, engine_client, pair_load, progress};
use leasehold_support::{output, time};

/// Duration of the trial load that estimates how fast leases can be acquired.
const TRIAL_TIME: Duration = Duration::from_secs(1);

/// How long before the common end the busy clients start.
const BUSY_CLIENTS_HEAD_START: Duration = Duration::from_millis(500);

/// Clients that acquire and release while the leases lapse.
const BUSY_CLIENTS: usize = 8;

/// How often the engine's number of leases is read.
const LEASE_COUNT_POLL_EVERY: Duration = Duration::from_millis(5);

/// Fails if collecting the leases takes longer.
const MAX_COLLECT_TIME: Duration = Duration::from_secs(60);

/// Figures of `--lapse`.
#[derive(Debug, Serialize)]
pub struct LapseReport {
    url: String,
    fs: String,
    lapsed: u64,
    /// From the common end until the engine had collected the last lease.
    lapse_ms: f64,
    /// Acquires by the busy clients.
    others: u64,
    /// Latency of those acquires.
    others_acquire_us: LatencySummary,
}

/// Acquires the leases, waits for their common end, and times how long the engine takes to collect them.
pub async fn run(engine_dir: &EngineDir, count: u64, stop: &StopSignal) -> anyhow::Result<LapseReport> {
    let engine = Embedded::open(engine_dir.dir(), Options::default()).await?;
    let client = Leasehold::with_engine(engine.clone(), SystemClock::shared());
    let spinner = progress::spinner("trying how fast leases can be taken");
    let trial = pair_load::run(
        engine_client::new_clients(&client, bulk_acquire::CONCURRENT_CLIENTS, false),
        TRIAL_TIME,
        stop,
        &spinner,
    )
    .await?;
    spinner.finish_and_clear();
    // A pair is two operations and a lease only one, so this is about twice the time needed.
    let needed = Duration::from_secs_f64(2.0 + as_f64(count) / trial.pairs_per_s().max(1.0));
    let end = time::stopwatch() + needed;

    let bar = progress::count_bar(count, "leases taken");
    let left = move || end.checked_duration_since(time::stopwatch()).filter(|left| !left.is_zero());
    let taken = bulk_acquire::acquire_all(&client, count, left, stop, &bar).await?;
    bar.finish_and_clear();
    ensure!(time::stopwatch() < end, bulk_acquire::TOO_LATE_MESSAGE);
    let spinner = progress::spinner("waiting for their common end");
    stop.sleep_or_stop(end.saturating_duration_since(time::stopwatch()).saturating_sub(BUSY_CLIENTS_HEAD_START)).await;

    // The busy clients start before the common end, so that they are at full speed when it comes.
    let watching = tokio::spawn(wait_until_collected(engine, end, stop.clone()));
    let others = pair_load::run_beside(engine_client::new_clients(&client, BUSY_CLIENTS, false), watching).await;
    spinner.finish_and_clear();
    let (lapsed_in, others) = others?;
    client.close().await?;
    Ok(LapseReport {
        url: engine_dir.url(),
        fs: engine_dir.fs.clone(),
        lapsed: taken,
        lapse_ms: ratio(lapsed_in.as_secs_f64() * 1e3, 1.0),
        others: others.acquire.count(),
        others_acquire_us: others.acquire.summary(),
    })
}

/// Waits for the common end, then until the engine has collected every lease. Returns the time since the end.
async fn wait_until_collected(engine: Arc<Embedded>, end: Instant, stop: StopSignal) -> anyhow::Result<Duration> {
    stop.sleep_or_stop(end.saturating_duration_since(time::stopwatch())).await;
    loop {
        // Each busy client holds at most one lease.
        if engine.counts().await?.leases <= BUSY_CLIENTS {
            return Ok(end.elapsed());
        }
        if end.elapsed() > MAX_COLLECT_TIME {
            bail!("the engine had not collected the leases a minute after their end");
        }
        if stop.is_requested() {
            bail!("interrupted");
        }
        stop.sleep_or_stop(LEASE_COUNT_POLL_EVERY).await;
    }
}

/// Prints the figures as text.
pub fn print(report: &LapseReport) -> anyhow::Result<()> {
    output::line(format!("{} on {}", output::plain(&report.url), report.fs))?;
    output::line(format!("lapsed     {} leases in {:.0} ms after their common end", report.lapsed, report.lapse_ms))?;
    let LatencySummary { p50, p99, max } = report.others_acquire_us;
    let [p50, p99, max] = [p50, p99, max].map(format_micros);
    output::line(format!("meanwhile  {} acquires by others: p50 {p50}, p99 {p99}, max {max}", report.others))
}

#[allow(clippy::cast_precision_loss, reason = "a count of leases is far below 2^53")]
fn as_f64(count: u64) -> f64 {
    count as f64
}
