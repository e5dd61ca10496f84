//! Reads the options of the bench together: one kind of measurement, and the targets for it.
//!
//! Combinations are checked here and not by clap, so that each bad combination gets an error of its own.

use super::Bench;
use super::peers::{PeerKind, PeerServer};
use super::server::ServerAddress;
use super::target::BenchTarget;
use leasehold_support::exit::Failure;

/// The hint when a server is needed and no URL names one.
const SERVER_URL_HINT: &str = "say e.g. --url leasehold://127.0.0.1:7401";

/// What is measured, and where.
#[derive(Debug, PartialEq, Eq)]
pub enum BenchMode {
    /// Pairs of acquire and release. Without a target: a temporary directory.
    Pairs(Vec<BenchTarget>),
    /// Memory and restart with this many held leases.
    Held(u64, Vec<BenchTarget>),
    /// This many leases that lapse at one moment.
    Lapse(u64, Vec<BenchTarget>),
    /// Decisions of the book in memory, with up to this many leases.
    Book(u64),
    /// The time from a release to the next grant, with this many waiters.
    Handoff(usize, Vec<BenchTarget>),
    /// This many idle connections to a server, whose process id is given.
    Idle(usize, u32, ServerAddress),
}

impl BenchMode {
    /// Reads the options and the URLs together.
    ///
    /// # Errors
    ///
    /// Bad usage.
    pub fn from_options(bench: &Bench, urls: &[String]) -> anyhow::Result<Self> {
        if bench.time.is_zero() {
            return Err(Failure::usage("--for is not zero: say e.g. --for 5s"));
        }
        let kinds = [
            bench.held.is_some(),
            bench.lapse.is_some(),
            bench.book.is_some(),
            bench.handoff.is_some(),
            bench.idle.is_some(),
        ];
        let chosen = kinds.iter().filter(|chosen| **chosen).count();
        if chosen > 1 {
            return Err(Failure::usage("give only one of --held, --lapse, --book, --handoff and --idle"));
        }
        if bench.plot.is_some() && chosen > 0 {
            return Err(Failure::usage(
                "--plot draws pairs: give it without --held, --lapse, --book, --handoff or --idle",
            ));
        }
        if bench.same_name && chosen > 0 {
            return Err(Failure::usage("--same-name is for pairs: give it without another kind of measurement"));
        }
        if bench.pid.is_some() && bench.idle.is_none() {
            return Err(Failure::usage("--pid names the server whose memory --idle weighs: give it with --idle"));
        }
        let mut targets = urls.iter().map(|url| BenchTarget::parse(url)).collect::<anyhow::Result<Vec<_>>>()?;
        if bench.seats {
            targets = as_seat_targets(targets)?;
        }
        if bench.same_name && targets.iter().any(|target| matches!(target, BenchTarget::Server(_))) {
            return Err(Failure::usage(
                "--same-name is for engines: a leasehold:// server gets a new name for each pair",
            ));
        }
        let mode = Self::from_chosen_option(bench, targets)?;
        if bench.dir.is_some() && !mode.takes_dir() {
            return Err(Failure::usage(
                "--dir names the disk to measure beside a server: an embedded: target measures its own",
            ));
        }
        Ok(mode)
    }

    fn from_chosen_option(bench: &Bench, targets: Vec<BenchTarget>) -> anyhow::Result<Self> {
        if let Some(count) = bench.held {
            return Ok(Self::Held(count, require_embedded(targets, "--held")?));
        }
        if let Some(count) = bench.lapse {
            return Ok(Self::Lapse(count, require_embedded(targets, "--lapse")?));
        }
        if let Some(count) = bench.book {
            return match targets.as_slice() {
                [] => Ok(Self::Book(count)),
                _ => Err(Failure::usage("--book measures memory alone: give it without --url")),
            };
        }
        if let Some(count) = bench.handoff {
            return Ok(Self::Handoff(count.try_into()?, require_ours(targets, "--handoff")?));
        }
        if let Some(count) = bench.idle {
            let mut servers = require_servers(targets, "--idle")?;
            let Some(pid) = bench.pid else {
                return Err(Failure::usage("--idle weighs the server's process: say which with --pid"));
            };
            return match (servers.pop(), servers.is_empty()) {
                (Some(server), true) => Ok(Self::Idle(count.try_into()?, pid, server)),
                _ => Err(Failure::usage("--idle weighs one server: give --url once")),
            };
        }
        Ok(Self::Pairs(targets))
    }

    fn takes_dir(&self) -> bool {
        match self {
            Self::Pairs(targets) => targets.iter().any(|target| !matches!(target, BenchTarget::Embedded(_))),
            Self::Handoff(..) => true,
            Self::Held(..) | Self::Lapse(..) | Self::Book(_) | Self::Idle(..) => false,
        }
    }
}

/// Turns PostgreSQL targets into seat targets. Refuses all others.
fn as_seat_targets(targets: Vec<BenchTarget>) -> anyhow::Result<Vec<BenchTarget>> {
    let seats = |target| match target {
        BenchTarget::Peer(peer) if peer.kind == PeerKind::Postgres => {
            Some(BenchTarget::Peer(PeerServer { kind: PeerKind::Seats, ..peer }))
        }
        _ => None,
    };
    let found: Option<Vec<BenchTarget>> = targets.into_iter().map(seats).collect();
    found.filter(|targets| !targets.is_empty()).ok_or_else(|| {
        let how =
            "say e.g. --url bare+postgres://127.0.0.1/postgres; a box office of ours is measured by leasehold rehearse";
        Failure::usage(format!("--seats is measured on PostgreSQL: {how}"))
    })
}

fn require_embedded(targets: Vec<BenchTarget>, option: &str) -> anyhow::Result<Vec<BenchTarget>> {
    if targets.iter().all(|target| matches!(target, BenchTarget::Embedded(_))) {
        return Ok(targets);
    }
    Err(Failure::usage(format!("{option} looks into the engine itself: give it only --url embedded:DIR, or none")))
}

/// Servers of ours, and engines through the library: whoever has a queue.
fn require_ours(targets: Vec<BenchTarget>, option: &str) -> anyhow::Result<Vec<BenchTarget>> {
    let ours = |target: &BenchTarget| matches!(target, BenchTarget::Server(_) | BenchTarget::Engine(_));
    if !targets.is_empty() && targets.iter().all(ours) {
        return Ok(targets);
    }
    Err(Failure::usage(format!("{option} is measured on a server or an engine of ours: {SERVER_URL_HINT}")))
}

fn require_servers(targets: Vec<BenchTarget>, option: &str) -> anyhow::Result<Vec<ServerAddress>> {
    let server = |target| match target {
        BenchTarget::Server(address) => Some(address),
        BenchTarget::Embedded(_) | BenchTarget::Engine(_) | BenchTarget::Peer(_) => None,
    };
    let servers: Option<Vec<ServerAddress>> = targets.into_iter().map(server).collect();
    servers
        .filter(|servers| !servers.is_empty())
        .ok_or_else(|| Failure::usage(format!("{option} is measured on a server of ours: {SERVER_URL_HINT}")))
}
