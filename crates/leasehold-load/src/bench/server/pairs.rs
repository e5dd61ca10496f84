//! The pair load against a Leasehold server: each connection acquires, releases, and starts again.

use std::fmt::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use indicatif::ProgressBar;

use super::ServerAddress;
use super::connection_set::ConnectionSet;
use super::resp_codec::RespReply;
use crate::bench::latency::LatencyHistogram;
use crate::bench::pair_load::{self, PairMeasurement};
use crate::bench::stop_signal::StopSignal;
use leasehold_support::time;

const LEASE_TTL_MS: &str = "30000";

/// How often the progress bar moves and the stop signal is read.
pub const TICK_INTERVAL: Duration = Duration::from_millis(100);

/// Ticks without any reply before the load fails: ten seconds. Ticks are counted, because a clock would include time in
/// which this process was stopped.
pub const MAX_SILENT_TICKS: u32 = 100;

/// Runs `clients` connections for `time` after the warm-up, or until the stop signal. Blocks the thread.
pub fn run(
    address: &ServerAddress,
    clients: usize,
    time: Duration,
    stop: &StopSignal,
    bar: &ProgressBar,
) -> anyhow::Result<PairMeasurement> {
    ServerPairLoad::start(ConnectionSet::connect(address, clients)?)?.run(time, stop, bar)
}

/// The progress of a connection in its pair.
#[derive(Clone, Copy)]
enum PairState {
    Acquiring { since: Instant },
    Releasing { since: Instant },
    Done,
}

struct ServerPairLoad {
    connections: ConnectionSet,
    states: Vec<PairState>,
    rounds: Vec<u64>,
    prefix: String,
    name: String,
    lease_id: String,
    acquire: LatencyHistogram,
    pair: LatencyHistogram,
    /// Pairs that start after this moment are counted.
    began: Instant,
    ended: bool,
    unfinished: usize,
}

impl ServerPairLoad {
    fn start(connections: ConnectionSet) -> anyhow::Result<Self> {
        let clients = connections.len();
        let now = time::stopwatch();
        let mut load = Self {
            connections,
            states: vec![PairState::Done; clients],
            rounds: vec![0; clients],
            prefix: pair_load::resource_prefix(),
            name: String::new(),
            lease_id: String::new(),
            acquire: LatencyHistogram::new()?,
            pair: LatencyHistogram::new()?,
            began: now + pair_load::WARM_UP_TIME,
            ended: false,
            unfinished: clients,
        };
        (0..clients).try_for_each(|client| load.start_pair(client))?;
        Ok(load)
    }

    fn run(mut self, time: Duration, stop: &StopSignal, bar: &ProgressBar) -> anyhow::Result<PairMeasurement> {
        let end = self.began + time;
        let mut next_tick = time::stopwatch();
        let mut silent_ticks = 0;
        let (mut elapsed, mut cpu) = (Duration::ZERO, Duration::ZERO);
        let mut cpu_before = None;
        while self.unfinished > 0 {
            let ready = self.connections.wait_readable(TICK_INTERVAL)?;
            silent_ticks = if ready > 0 { 0 } else { silent_ticks + 1 };
            if silent_ticks >= MAX_SILENT_TICKS {
                bail!("the server left {} clients without an answer for ten seconds", self.unfinished);
            }
            let now = time::stopwatch();
            if now >= next_tick {
                next_tick = now + TICK_INTERVAL;
                bar.set_position(u64::try_from(now.saturating_duration_since(self.began).as_millis())?);
            }
            if cpu_before.is_none() && now >= self.began {
                cpu_before = Some(pair_load::cpu_time());
            }
            if !self.ended && (now >= end || stop.is_requested()) {
                self.ended = true;
                elapsed = now.saturating_duration_since(self.began);
                cpu = cpu_before.map_or(Duration::ZERO, |before| pair_load::cpu_time().saturating_sub(before));
            }
            for nth in 0..ready {
                self.handle_reply(self.connections.ready_at(nth))?;
            }
        }
        Ok(PairMeasurement { elapsed, cpu, acquire: self.acquire, pair: self.pair })
    }

    /// Starts a pair under a new name.
    fn start_pair(&mut self, client: usize) -> anyhow::Result<()> {
        self.rounds[client] += 1;
        self.name.clear();
        write!(self.name, "{}/{client}/{}", self.prefix, self.rounds[client])?;
        self.states[client] = PairState::Acquiring { since: time::stopwatch() };
        self.connections.send_command(client, &["LEASE", "ACQUIRE", LEASE_TTL_MS, "RESOURCES", &self.name])
    }

    /// Reads the reply on a connection and sends the next command.
    fn handle_reply(&mut self, client: usize) -> anyhow::Result<()> {
        self.connections.read_available(client)?;
        let Some(reply) = self.connections.next_reply(client)? else { return Ok(()) };
        let now = time::stopwatch();
        match (self.states[client], reply) {
            (PairState::Acquiring { since }, RespReply::Array(lease_id)) => {
                self.lease_id.clear();
                self.lease_id.push_str(lease_id);
                self.states[client] = PairState::Releasing { since };
                if since >= self.began {
                    self.acquire.record(now.duration_since(since));
                }
                self.connections.send_command(client, &["LEASE", "RELEASE", &self.lease_id])
            }
            (PairState::Releasing { since }, RespReply::Integer(1)) => {
                if since >= self.began {
                    self.pair.record(now.duration_since(since));
                }
                if self.ended {
                    self.states[client] = PairState::Done;
                    self.unfinished -= 1;
                    return Ok(());
                }
                self.start_pair(client)
            }
            (_, RespReply::Error(sentence)) => Err(anyhow::anyhow!(sentence.to_owned())).context("the server refused"),
            // The reply is not quoted: it may contain a lease_id.
            _ => bail!("the server answered something else than was asked for"),
        }
    }
}
