//! Pairs of one uncontended acquire and its release, by many clients at once.
//!
//! The same loop for the embedded engine and for every peer: what differs is the [`LockClient`]. Our own server is
//! driven by `server::pairs`, which costs less of the cores that it shares with the server.

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

/// How long pairs are done before they count.
pub const WARM_UP_TIME: Duration = Duration::from_millis(500);

/// How long the lease of a pair would live; it never does.
pub const LEASE_TTL: Duration = Duration::from_secs(60);

/// Somebody who acquires and releases, one at a time.
pub trait LockClient: Send + 'static {
    /// Takes the resource of this name, which nobody else wants. A refusal is an error here.
    fn acquire(&mut self, name: &str) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Gives back what was acquired last.
    fn release(&mut self) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Cleans up what only this client knows of, when the load is over.
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

/// What every name of this run begins with: it collides with no real work and no other bench.
pub fn resource_prefix() -> String {
    format!("leasehold-bench/{}", std::process::id())
}

/// What a load measured.
#[derive(Debug)]
pub struct PairMeasurement {
    /// How long it was measured.
    pub elapsed: Duration,
    /// CPU time of this process meanwhile: what the load took from the cores that it shares with a server.
    pub cpu: Duration,
    /// Latency of each acquire.
    pub acquire: LatencyHistogram,
    /// Latency of each acquire with its release.
    pub pair: LatencyHistogram,
}

impl PairMeasurement {
    /// Pairs in each second.
    #[allow(clippy::cast_precision_loss, reason = "pairs are far below 2^53")]
    pub fn pairs_per_s(&self) -> f64 {
        self.pair.count() as f64 / self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// What all clients of a load look at.
struct LoadFlags {
    prefix: String,
    counting: AtomicBool,
    ended: AtomicBool,
}

/// Clients at work.
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

    /// From now on it counts: the moment, and the CPU time at it.
    fn start_counting(&self) -> (Instant, Duration) {
        self.flags.counting.store(true, Ordering::Relaxed);
        (time::stopwatch(), cpu_time())
    }

    /// Ends the work and adds up what was measured since.
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

/// Lets the clients work for `time` after the warm-up, or until somebody stops it.
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

/// Lets the clients work beside some other work, as long as that takes. Everything counts.
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

/// Lets the clients work until the time is over. A client that ends before has failed.
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

/// One client: pairs, one after the other, each under a new name.
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
