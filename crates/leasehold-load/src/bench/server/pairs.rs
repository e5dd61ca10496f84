//! The load of pairs against our server: each connection acquires, releases, and begins again.

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

/// The ttl of each lease, in milliseconds.
const TTL_MS: &str = "30000";

/// How often the bar moves and a stop is noticed.
pub const TICK: Duration = Duration::from_millis(100);

/// So many ticks in which nobody is answered are ten seconds. Counted, since a clock would also count the time in
/// which this process was stopped.
pub const SILENT_TICKS: u32 = 100;

/// Lets `clients` connections work for `time` after the warm-up, or until somebody stops it.
///
/// Blocks: it is the whole work of one thread.
pub fn run(
    address: &ServerAddress,
    clients: usize,
    time: Duration,
    stop: &StopSignal,
    bar: &ProgressBar,
) -> anyhow::Result<PairMeasurement> {
    ServerPairLoad::start(ConnectionSet::connect(address, clients)?)?.run(time, stop, bar)
}

/// Where a connection is in its pair.
#[derive(Clone, Copy)]
enum PairState {
    Acquiring { since: Instant },
    Releasing { since: Instant },
    Done,
}

struct ServerPairLoad {
    crowd: ConnectionSet,
    stages: Vec<PairState>,
    turns: Vec<u64>,
    prefix: String,
    name: String,
    lease_id: String,
    acquire: LatencyHistogram,
    pair: LatencyHistogram,
    /// From when on it counts.
    began: Instant,
    ended: bool,
    at_work: usize,
}

impl ServerPairLoad {
    fn start(crowd: ConnectionSet) -> anyhow::Result<Self> {
        let clients = crowd.len();
        let now = time::stopwatch();
        let mut load = Self {
            crowd,
            stages: vec![PairState::Done; clients],
            turns: vec![0; clients],
            prefix: pair_load::prefix(),
            name: String::new(),
            lease_id: String::new(),
            acquire: LatencyHistogram::new()?,
            pair: LatencyHistogram::new()?,
            began: now + pair_load::WARM_UP,
            ended: false,
            at_work: clients,
        };
        (0..clients).try_for_each(|client| load.ask(client))?;
        Ok(load)
    }

    fn run(mut self, time: Duration, stop: &StopSignal, bar: &ProgressBar) -> anyhow::Result<PairMeasurement> {
        let end = self.began + time;
        let mut tick = time::stopwatch();
        let mut silent = 0;
        let (mut elapsed, mut cpu) = (Duration::ZERO, Duration::ZERO);
        let mut cpu_before = None;
        while self.at_work > 0 {
            let found = self.crowd.look(TICK)?;
            silent = if found > 0 { 0 } else { silent + 1 };
            if silent >= SILENT_TICKS {
                bail!("the server left {} clients without an answer for ten seconds", self.at_work);
            }
            let now = time::stopwatch();
            if now >= tick {
                tick = now + TICK;
                bar.set_position(u64::try_from(now.saturating_duration_since(self.began).as_millis())?);
            }
            if cpu_before.is_none() && now >= self.began {
                cpu_before = Some(pair_load::cpu_time());
            }
            if !self.ended && (now >= end || stop.is_asked()) {
                self.ended = true;
                elapsed = now.saturating_duration_since(self.began);
                cpu = cpu_before.map_or(Duration::ZERO, |before| pair_load::cpu_time().saturating_sub(before));
            }
            for place in 0..found {
                self.hear(self.crowd.found(place))?;
            }
        }
        Ok(PairMeasurement { elapsed, cpu, acquire: self.acquire, pair: self.pair })
    }

    /// Begins a pair, under a new name.
    fn ask(&mut self, client: usize) -> anyhow::Result<()> {
        self.turns[client] += 1;
        self.name.clear();
        write!(self.name, "{}/{client}/{}", self.prefix, self.turns[client])?;
        self.stages[client] = PairState::Acquiring { since: time::stopwatch() };
        self.crowd.send(client, &["LEASE", "ACQUIRE", TTL_MS, "RESOURCES", &self.name])
    }

    /// Takes what came for a connection, and goes on from there.
    fn hear(&mut self, client: usize) -> anyhow::Result<()> {
        self.crowd.receive(client)?;
        let Some(answer) = self.crowd.answer(client)? else { return Ok(()) };
        let now = time::stopwatch();
        match (self.stages[client], answer) {
            (PairState::Acquiring { since }, RespReply::Array(lease_id)) => {
                self.lease_id.clear();
                self.lease_id.push_str(lease_id);
                self.stages[client] = PairState::Releasing { since };
                if since >= self.began {
                    self.acquire.record(now.duration_since(since));
                }
                self.crowd.send(client, &["LEASE", "RELEASE", &self.lease_id])
            }
            (PairState::Releasing { since }, RespReply::Integer(1)) => {
                if since >= self.began {
                    self.pair.record(now.duration_since(since));
                }
                if self.ended {
                    self.stages[client] = PairState::Done;
                    self.at_work -= 1;
                    return Ok(());
                }
                self.ask(client)
            }
            (_, RespReply::Error(sentence)) => Err(anyhow::anyhow!(sentence.to_owned())).context("the server refused"),
            // Nothing of the answer is repeated: it may carry a lease_id.
            _ => bail!("the server answered something else than was asked for"),
        }
    }
}
