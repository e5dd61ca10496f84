//! The pair load: many concurrent clients, each of which acquires and releases without contention.
//!
//! The embedded engine and all peers run this loop, each with its own [`LockClient`]. Leasehold's own server is driven
//! by `server::pairs`, which takes less CPU time from the cores that it shares with the server.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use indicatif::ProgressBar;
use tokio::task::{JoinHandle, JoinSet};

use super::latency::LatencyHistogram;
use super::stop_signal::StopSignal;
use leasehold_support::time;

/// How long pairs run before they are counted.
pub const WARM_UP_TIME: Duration = Duration::from_millis(500);

/// The ttl of each lease. Every lease is released long before.
pub const LEASE_TTL: Duration = Duration::from_secs(60);

/// A client that holds at most one lock at a time.
pub trait LockClient: Send + 'static {
    /// Acquires the resource of this name, which no other client wants. A refusal is an error.
    fn acquire(&mut self, name: &str) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Releases what was acquired last.
    fn release(&mut self) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Removes what this client created on the server. Called once, after the load.
    fn clean_up(self) -> impl Future<Output = anyhow::Result<()>> + Send
    where
        Self: Sized,
    {
        async { Ok(()) }
    }
}

/// CPU time of this process so far.
pub fn cpu_time() -> Duration {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(spent).unwrap_or_default()
}

/// The prefix of every resource name of this run. It differs from real work and from other benches.
pub fn resource_prefix() -> String {
    format!("leasehold-bench/{}", std::process::id())
}

/// Result of a pair load.
#[derive(Debug)]
pub struct PairMeasurement {
    /// Length of the measurement.
    pub elapsed: Duration,
    /// CPU time of this process in that time: what the load took from the cores that it shares with a server.
    pub cpu: Duration,
    pub acquire: LatencyHistogram,
    /// Latency of each acquire together with its release.
    pub pair: LatencyHistogram,
}

impl PairMeasurement {
    #[allow(clippy::cast_precision_loss, reason = "pairs are far below 2^53")]
    pub fn pairs_per_s(&self) -> f64 {
        self.pair.count() as f64 / self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// Flags that all client tasks read.
struct LoadFlags {
    prefix: String,
    counting: AtomicBool,
    ended: AtomicBool,
}

/// The tasks of all clients.
struct ClientTasks {
    flags: Arc<LoadFlags>,
    tasks: JoinSet<anyhow::Result<(LatencyHistogram, LatencyHistogram)>>,
}

impl ClientTasks {
    fn start(clients: Vec<impl LockClient>) -> Self {
        let flags = Arc::new(LoadFlags {
            prefix: resource_prefix(),
            counting: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        });
        let mut tasks = JoinSet::new();
        for (number, client) in clients.into_iter().enumerate() {
            tasks.spawn(run_client(flags.clone(), client, number));
        }
        Self { flags, tasks }
    }

    /// Starts the measurement. Returns the time and the CPU time at its start.
    fn start_counting(&self) -> (Instant, Duration) {
        self.flags.counting.store(true, Ordering::Relaxed);
        (time::stopwatch(), cpu_time())
    }

    /// Stops the tasks and merges their histograms.
    async fn finish(mut self, (began, cpu): (Instant, Duration)) -> anyhow::Result<PairMeasurement> {
        self.flags.ended.store(true, Ordering::Relaxed);
        let cpu = cpu_time().saturating_sub(cpu);
        let mut measured = PairMeasurement {
            elapsed: began.elapsed(),
            cpu,
            acquire: LatencyHistogram::new()?,
            pair: LatencyHistogram::new()?,
        };
        let mut failed = None;
        while let Some(done) = self.tasks.join_next().await {
            match done.context("run a client of the bench")? {
                Ok((acquire, pair)) => {
                    measured.acquire.merge(&acquire)?;
                    measured.pair.merge(&pair)?;
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(measured), Err)
    }
}

/// Runs the clients for `time` after the warm-up, or until the stop signal.
pub async fn run(
    clients: Vec<impl LockClient>,
    time: Duration,
    stop: &StopSignal,
    bar: &ProgressBar,
) -> anyhow::Result<PairMeasurement> {
    let mut running = ClientTasks::start(clients);
    stop.sleep_or_stop(WARM_UP_TIME).await;
    let began = running.start_counting();
    let waited = wait_until_end(&mut running.tasks, began.0, time, stop, bar).await;
    let measured = running.finish(began).await;
    waited?;
    measured
}

/// Runs the clients until `work` is done. There is no warm-up: every pair counts.
pub async fn run_beside<T>(
    clients: Vec<impl LockClient>,
    work: JoinHandle<anyhow::Result<T>>,
) -> anyhow::Result<(T, PairMeasurement)> {
    let running = ClientTasks::start(clients);
    let began = running.start_counting();
    let done = work.await.context("run the work beside the bench")?;
    let measured = running.finish(began).await?;
    Ok((done?, measured))
}

/// Waits until the time is over. A client task that ends before has failed.
async fn wait_until_end(
    tasks: &mut JoinSet<anyhow::Result<(LatencyHistogram, LatencyHistogram)>>,
    began: Instant,
    time: Duration,
    stop: &StopSignal,
    bar: &ProgressBar,
) -> anyhow::Result<()> {
    loop {
        let left = time.saturating_sub(began.elapsed());
        bar.set_position(u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX));
        if left.is_zero() || stop.is_requested() {
            return Ok(());
        }
        tokio::select! {
            ended = tasks.join_next() => match ended {
                Some(ended) => drop(ended.context("run a client of the bench")??),
                None => return Ok(()),
            },
            () = stop.sleep_or_stop(left.min(Duration::from_millis(100))) => {}
        }
    }
}

/// The task of one client: pairs one after the other, each under a new name.
async fn run_client(
    flags: Arc<LoadFlags>,
    mut client: impl LockClient,
    number: usize,
) -> anyhow::Result<(LatencyHistogram, LatencyHistogram)> {
    let (mut acquires, mut pairs) = (LatencyHistogram::new()?, LatencyHistogram::new()?);
    let mut round = 0_u64;
    while !flags.ended.load(Ordering::Relaxed) {
        round += 1;
        let counts = flags.counting.load(Ordering::Relaxed);
        let name = format!("{}/{number}/{round}", flags.prefix);
        let before = time::stopwatch();
        client.acquire(&name).await?;
        let granted = time::stopwatch();
        client.release().await?;
        let released = time::stopwatch();
        if counts {
            acquires.record(granted.duration_since(before));
            pairs.record(released.duration_since(before));
        }
    }
    client.clean_up().await?;
    Ok((acquires, pairs))
}
