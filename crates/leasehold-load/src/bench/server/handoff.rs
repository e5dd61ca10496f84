//! `bench --handoff N`: N clients wait for one resource. Each releases it as soon as it is granted.
//!
//! Measured is the time from sending a release to receiving the next waiter's grant. It takes at least one round trip
//! and one sync. Both are measured in the same run, half before and half after. The figure is compared with their sum,
//! at the same percentile.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use indicatif::ProgressBar;

use super::ServerAddress;
use super::connection_set::ConnectionSet;
use super::pairs::{MAX_SILENT_TICKS, TICK_INTERVAL};
use super::resp_codec::RespReply;
use crate::bench::disk::{Disk, DiskProbe};
use crate::bench::handoff_report::HandoffReport;
use crate::bench::latency::LatencyHistogram;
use crate::bench::pair_load;
use crate::bench::progress;
use crate::bench::stop_signal::StopSignal;
use leasehold_support::time;

/// The ttl of each lease and the wait of each acquire: longer than the queue can take.
const LEASE_TTL_MS: &str = "30000";
const ACQUIRE_WAIT_MS: &str = "60000";

/// How long the reply to a PING may take.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the first holder waits before it releases, so that all other clients are queued.
const QUEUE_UP_TIME: Duration = Duration::from_millis(200);

/// Round trips measured before the load, and again after it.
const ROUND_TRIPS_PER_HALF: u32 = 2_000;

/// Measures the baseline, then handoffs for `time`, then the baseline again. Blocks the thread.
pub fn run(
    address: &ServerAddress,
    waiters: usize,
    disk: &Disk,
    time: Duration,
    stop: &StopSignal,
) -> anyhow::Result<HandoffReport> {
    let bar = progress::time_bar(time, "measuring the disk and the round trip");
    let (mut probe, mut round_trips) = (disk.probe()?, LatencyHistogram::new()?);
    measure_baseline(&mut probe, address, &mut round_trips)?;
    bar.set_message("handing on");
    let (handoffs, elapsed) = HandoffLoad::new(ConnectionSet::connect(address, waiters)?)?.run(time, stop, &bar)?;
    bar.set_message("measuring the disk and the round trip again");
    measure_baseline(&mut probe, address, &mut round_trips)?;
    bar.finish_and_clear();
    let url = address.display_url.clone();
    Ok(HandoffReport::new(url, disk.fs.clone(), waiters, (&handoffs, elapsed), &round_trips, probe.latency()?))
}

/// One half of the baseline, fdatasync and round trip, while no client waits.
fn measure_baseline(
    probe: &mut DiskProbe,
    address: &ServerAddress,
    round_trips: &mut LatencyHistogram,
) -> anyhow::Result<()> {
    probe.measure()?;
    // Connect only now: a server may close a connection that sends nothing at first.
    let mut connections = ConnectionSet::connect(address, 1)?;
    for _ in 0..ROUND_TRIPS_PER_HALF {
        let sent = time::stopwatch();
        connections.send_command(0, &["PING"])?;
        ensure!(connections.wait_readable(PING_TIMEOUT)? > 0, "the server did not answer PING for ten seconds");
        connections.read_available(0)?;
        match connections.next_reply(0)? {
            Some(RespReply::Simple("PONG")) => round_trips.record(time::stopwatch().duration_since(sent)),
            _ => bail!("the server answered PING with something else than PONG"),
        }
    }
    Ok(())
}

/// The clients that wait for one resource.
struct HandoffLoad {
    connections: ConnectionSet,
    name: String,
    lease_id: String,
    /// Per client: it was granted, and the reply to its release is outstanding.
    releasing: Vec<bool>,
    /// When the last release was sent. `None` once the next client is granted.
    release_sent_at: Option<Instant>,
    handoffs: LatencyHistogram,
    grants: usize,
    /// Clients that still wait for a grant or for the reply to their release.
    unfinished: usize,
    ended: bool,
}

impl HandoffLoad {
    fn new(connections: ConnectionSet) -> anyhow::Result<Self> {
        let releasing = vec![false; connections.len()];
        let name = format!("{}/baton", pair_load::resource_prefix());
        let mut load = Self {
            connections,
            name,
            lease_id: String::new(),
            releasing,
            release_sent_at: None,
            handoffs: LatencyHistogram::new()?,
            grants: 0,
            unfinished: 0,
            ended: false,
        };
        load.unfinished = load.connections.len();
        (0..load.connections.len()).try_for_each(|client| load.send_acquire(client))?;
        Ok(load)
    }

    fn send_acquire(&mut self, client: usize) -> anyhow::Result<()> {
        let Self { connections, name, .. } = self;
        connections
            .send_command(client, &["LEASE", "ACQUIRE", LEASE_TTL_MS, "WAIT", ACQUIRE_WAIT_MS, "RESOURCES", name])
    }

    /// Warms up for two grants per client, measures for `time`, then lets every client finish.
    fn run(
        mut self,
        time: Duration,
        stop: &StopSignal,
        bar: &ProgressBar,
    ) -> anyhow::Result<(LatencyHistogram, Duration)> {
        let warm_up_grants = 2 * self.connections.len();
        let mut began = None;
        let mut result = None;
        let mut silent_ticks = 0;
        while self.unfinished > 0 {
            let ready = self.connections.wait_readable(TICK_INTERVAL)?;
            silent_ticks = if ready > 0 { 0 } else { silent_ticks + 1 };
            ensure!(silent_ticks < MAX_SILENT_TICKS, "the server granted nothing to those in line for ten seconds");
            ensure!(self.grants > 0 || ready <= 1, "two were granted at once");
            for nth in 0..ready {
                self.handle_reply(self.connections.ready_at(nth))?;
            }
            let now = time::stopwatch();
            if began.is_none() && self.grants >= warm_up_grants {
                (self.handoffs, began) = (LatencyHistogram::new()?, Some(now));
            }
            let elapsed = began.map_or(Duration::ZERO, |began| now.duration_since(began));
            bar.set_position(u64::try_from(elapsed.as_millis())?);
            if !self.ended && (elapsed >= time || stop.is_requested()) {
                self.ended = true;
                result = Some((self.handoffs.clone(), elapsed));
            }
        }
        result.context("the line ended before its time")
    }

    fn handle_reply(&mut self, client: usize) -> anyhow::Result<()> {
        self.connections.read_available(client)?;
        let Some(reply) = self.connections.next_reply(client)? else { return Ok(()) };
        let now = time::stopwatch();
        match reply {
            RespReply::Array(lease_id) => {
                self.lease_id.clear();
                self.lease_id.push_str(lease_id);
                match self.release_sent_at.take() {
                    Some(release_sent_at) => self.handoffs.record(now.duration_since(release_sent_at)),
                    None => self.wait_for_queue()?,
                }
                self.grants += 1;
                self.releasing[client] = true;
                self.release_sent_at = Some(time::stopwatch());
                self.connections.send_command(client, &["LEASE", "RELEASE", &self.lease_id])
            }
            // The client queues again, so that the queue keeps its length. After the end it does not: a waiter or a
            // lease left behind would block the next run.
            RespReply::Integer(1) if self.releasing[client] => {
                self.releasing[client] = false;
                if self.ended {
                    self.unfinished -= 1;
                    return Ok(());
                }
                self.send_acquire(client)
            }
            RespReply::Error(sentence) => bail!("the server refused: {sentence}"),
            // The reply is not quoted: it may contain a lease_id.
            _ => bail!("the server answered something else than was asked for"),
        }
    }

    /// The first holder keeps the resource until all other clients are queued. A second grant in that time means that
    /// the server's lock is broken.
    #[allow(clippy::disallowed_methods, reason = "a bench measures real time, and nobody can be asked who is in line")]
    fn wait_for_queue(&mut self) -> anyhow::Result<()> {
        std::thread::sleep(QUEUE_UP_TIME);
        ensure!(self.connections.wait_readable(Duration::ZERO)? == 0, "two were granted at once");
        Ok(())
    }
}
