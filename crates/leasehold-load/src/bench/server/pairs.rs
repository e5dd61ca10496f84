//! The load of pairs against our server: each connection acquires, releases, and begins again.

use std::fmt::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use indicatif::ProgressBar;

use super::Address;
use super::crowd::Crowd;
use super::wire::Answer;
use crate::bench::load::{self, Measured};
use crate::bench::stats::Stats;
use crate::bench::stop::Stop;
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
    address: &Address,
    clients: usize,
    time: Duration,
    stop: &Stop,
    bar: &ProgressBar,
) -> anyhow::Result<Measured> {
    Load::start(Crowd::connect(address, clients)?)?.run(time, stop, bar)
}

/// Where a connection is in its pair.
#[derive(Clone, Copy)]
enum Stage {
    Acquiring { since: Instant },
    Releasing { since: Instant },
    Done,
}

struct Load {
    crowd: Crowd,
    stages: Vec<Stage>,
    turns: Vec<u64>,
    prefix: String,
    name: String,
    lease_id: String,
    acquire: Stats,
    pair: Stats,
    /// From when on it counts.
    began: Instant,
    ended: bool,
    at_work: usize,
}

impl Load {
    fn start(crowd: Crowd) -> anyhow::Result<Self> {
        let clients = crowd.len();
        let now = time::stopwatch();
        let mut load = Self {
            crowd,
            stages: vec![Stage::Done; clients],
            turns: vec![0; clients],
            prefix: load::prefix(),
            name: String::new(),
            lease_id: String::new(),
            acquire: Stats::new()?,
            pair: Stats::new()?,
            began: now + load::WARM_UP,
            ended: false,
            at_work: clients,
        };
        (0..clients).try_for_each(|client| load.ask(client))?;
        Ok(load)
    }

    fn run(mut self, time: Duration, stop: &Stop, bar: &ProgressBar) -> anyhow::Result<Measured> {
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
                cpu_before = Some(load::cpu_time());
            }
            if !self.ended && (now >= end || stop.is_asked()) {
                self.ended = true;
                elapsed = now.saturating_duration_since(self.began);
                cpu = cpu_before.map_or(Duration::ZERO, |before| load::cpu_time().saturating_sub(before));
            }
            for place in 0..found {
                self.hear(self.crowd.found(place))?;
            }
        }
        Ok(Measured { elapsed, cpu, acquire: self.acquire, pair: self.pair })
    }

    /// Begins a pair, under a new name.
    fn ask(&mut self, client: usize) -> anyhow::Result<()> {
        self.turns[client] += 1;
        self.name.clear();
        write!(self.name, "{}/{client}/{}", self.prefix, self.turns[client])?;
        self.stages[client] = Stage::Acquiring { since: time::stopwatch() };
        self.crowd.send(client, &["LEASE", "ACQUIRE", TTL_MS, "RESOURCES", &self.name])
    }

    /// Takes what came for a connection, and goes on from there.
    fn hear(&mut self, client: usize) -> anyhow::Result<()> {
        self.crowd.receive(client)?;
        let Some(answer) = self.crowd.answer(client)? else { return Ok(()) };
        let now = time::stopwatch();
        match (self.stages[client], answer) {
            (Stage::Acquiring { since }, Answer::Array(lease_id)) => {
                self.lease_id.clear();
                self.lease_id.push_str(lease_id);
                self.stages[client] = Stage::Releasing { since };
                if since >= self.began {
                    self.acquire.record(now.duration_since(since));
                }
                self.crowd.send(client, &["LEASE", "RELEASE", &self.lease_id])
            }
            (Stage::Releasing { since }, Answer::Integer(1)) => {
                if since >= self.began {
                    self.pair.record(now.duration_since(since));
                }
                if self.ended {
                    self.stages[client] = Stage::Done;
                    self.at_work -= 1;
                    return Ok(());
                }
                self.ask(client)
            }
            (_, Answer::Error(sentence)) => Err(anyhow::anyhow!(sentence.to_owned())).context("the server refused"),
            // Nothing of the answer is repeated: it may carry a lease_id.
            _ => bail!("the server answered something else than was asked for"),
        }
    }
}
