//! `bench --handoff N` on an engine through the library: N tasks wait for one resource, and each releases it as soon as
//! it is granted.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use leasehold::Leasehold;
use leasehold_support::sync::lock;
use leasehold_support::time;
use tokio::task::JoinSet;

use super::disk::Disk;
use super::handoff_report::HandoffReport;
use super::latency::LatencyHistogram;
use super::pair_load::{self, LEASE_TTL, WARM_UP_TIME};
use super::progress;
use super::stop_signal::StopSignal;

/// How long a waiter waits: longer than the queue can take.
const ACQUIRE_WAIT: Duration = Duration::from_secs(60);

/// Looks measured before the load, and again after it.
const ROUND_TRIPS_PER_HALF: u32 = 500;

/// What all waiters share.
struct HandoffState {
    name: String,
    /// When the last release was sent; none while somebody holds it.
    released_at: Mutex<Option<Instant>>,
    handoffs: Mutex<LatencyHistogram>,
    holders: AtomicU64,
    counting: AtomicBool,
    ended: AtomicBool,
}

/// Measures the baseline, then handoffs for `time`, then the baseline again.
pub async fn run(
    (engine, url): (&Leasehold, String),
    waiters: usize,
    disk: &Disk,
    time: Duration,
    stop: &StopSignal,
) -> anyhow::Result<HandoffReport> {
    let bar = progress::time_bar(time, "measuring the disk and the round trip");
    let (mut probe, mut round_trips) = (disk.probe()?, LatencyHistogram::new()?);
    probe.measure()?;
    measure_round_trips(engine, &mut round_trips).await?;
    bar.set_message("handing on");
    let state = Arc::new(HandoffState {
        name: format!("{}/baton", pair_load::resource_prefix()),
        released_at: Mutex::default(),
        handoffs: Mutex::new(LatencyHistogram::new()?),
        holders: AtomicU64::new(0),
        counting: AtomicBool::new(false),
        ended: AtomicBool::new(false),
    });
    let mut tasks = JoinSet::new();
    for _ in 0..waiters {
        tasks.spawn(hand_on(engine.clone(), state.clone()));
    }
    stop.sleep_or_stop(WARM_UP_TIME).await;
    state.counting.store(true, Ordering::Relaxed);
    let began = time::stopwatch();
    while began.elapsed() < time && !stop.is_requested() && tasks.len() == waiters {
        bar.set_position(u64::try_from(began.elapsed().as_millis())?);
        stop.sleep_or_stop((time - began.elapsed().min(time)).min(Duration::from_millis(100))).await;
        if let Some(failed) = tasks.try_join_next() {
            failed.context("run a waiter of the bench")??;
        }
    }
    let elapsed = began.elapsed();
    state.counting.store(false, Ordering::Relaxed);
    state.ended.store(true, Ordering::Relaxed);
    while let Some(done) = tasks.join_next().await {
        done.context("run a waiter of the bench")??;
    }
    bar.set_message("measuring the disk and the round trip again");
    probe.measure()?;
    measure_round_trips(engine, &mut round_trips).await?;
    bar.finish_and_clear();
    let handoffs = lock(&state.handoffs).clone();
    Ok(HandoffReport::new(url, disk.fs.clone(), waiters, (&handoffs, elapsed), &round_trips, probe.latency()?))
}

/// One half of the baseline: looks at a name that nobody has.
async fn measure_round_trips(engine: &Leasehold, round_trips: &mut LatencyHistogram) -> anyhow::Result<()> {
    let name = format!("{}/nobody", pair_load::resource_prefix());
    for _ in 0..ROUND_TRIPS_PER_HALF {
        let asked = time::stopwatch();
        engine.inspect(&name).await?;
        round_trips.record(time::stopwatch().duration_since(asked));
    }
    Ok(())
}

/// One waiter: takes the resource, gives it back, and waits again.
async fn hand_on(engine: Leasehold, state: Arc<HandoffState>) -> anyhow::Result<()> {
    while !state.ended.load(Ordering::Relaxed) {
        let grant = engine.acquire(state.name.as_str()).ttl(LEASE_TTL).wait(ACQUIRE_WAIT).grant().await?;
        let now = time::stopwatch();
        ensure!(state.holders.fetch_add(1, Ordering::SeqCst) == 0, "two were granted at once");
        if let Some(released) = lock(&state.released_at).take()
            && state.counting.load(Ordering::Relaxed)
        {
            lock(&state.handoffs).record(now.duration_since(released));
        }
        state.holders.fetch_sub(1, Ordering::SeqCst);
        *lock(&state.released_at) = Some(time::stopwatch());
        engine.release(&grant.lease_id).await?;
    }
    Ok(())
}
