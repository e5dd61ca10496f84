//! `leasehold bench`: measures an engine or a server beside its disk, and peers for comparison.
//!
//! ```text
//!   options, URLs ──▶ BenchMode (what) and BenchTarget (where)
//!     embedded:DIR    EngineDir ──▶ disk (fdatasync) ──▶ pair_load ──▶ disk again ──▶ pairs_report, plot
//!                               ├─▶ held_leases (memory, restart)
//!                               └─▶ lapse       (many leases end at one moment)
//!     leasehold://    server/ ──▶ the same pairs over RESP, handoff, idle
//!     redis:// …      engine_client ──▶ the same pairs through the library; engine_handoff
//!     bare+redis:// … peers/  ──▶ the same pairs through the peer's own client (feature "peers")
//!     book (decisions in memory, no disk)
//! ```
//!
//! The disk is measured in the same run, half before the load and half after. A durable acquire cannot be faster than
//! the sync that it waits for, so the sync latency is the bound that the figures are compared with.

mod book;
mod bulk_acquire;
mod disk;
mod engine_client;
mod engine_dir;
mod engine_handoff;
mod handoff_report;
mod held_leases;
mod lapse;
pub(super) mod latency;
mod mode;
pub(super) mod pair_load;
pub(super) mod pairs_report;
mod peers;
pub(super) mod plot;
pub(super) mod progress;
mod server;
pub(super) mod stop_signal;
mod target;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use indicatif::ProgressBar;
use leasehold::Leasehold;
use serde::Serialize;

use self::disk::Disk;
use self::engine_dir::EngineDir;
use self::handoff_report::HandoffReport;
use self::mode::BenchMode;
use self::pair_load::PairMeasurement;
use self::pairs_report::PairsReport;
use self::server::{ServerAddress, handoff, idle};
use self::stop_signal::StopSignal;
use self::target::{BenchEngine, BenchTarget};
use leasehold_support::exit;
use leasehold_support::{duration, output};

const HELP_EXAMPLES: &str = "\
Example:
  leasehold bench
  leasehold bench --url embedded:/mnt/nvme/x --clients 1 --for 10s --plot latency.svg
  leasehold bench --held 1000000 --json
  leasehold bench --lapse 1000000
  leasehold bench --book 10000000
  leasehold bench --url redis://127.0.0.1:6379 --url bare+redis://127.0.0.1:6379 --dir /mnt/nvme
  leasehold bench --url leasehold://127.0.0.1:7401 --handoff 64
  leasehold bench --url leasehold://127.0.0.1:7401 --idle 10000 --pid \"$(pidof leasehold)\"

Without --url it runs in a fresh directory ./leasehold-bench-XXXX, which is removed afterwards;
LEASEHOLD_URL is not looked at. A file system in memory is refused: nothing is durable there.
Servers and engines: leasehold://, redis://, redlock://, postgres://, etcd://, zk://. In a build with the feature peers also
bare+redis://, bare+etcd://, bare+zk:// and bare+postgres://: the same load by the peer's own client, to compare with.
The key of a leasehold:// server is taken from its URL or from LEASEHOLD_API_KEY.";

/// The exit code after an interrupt: 128 + SIGINT, as shells report it.
pub(super) const EXIT_INTERRUPTED: u8 = 130;

/// Measures pairs of acquire and release, beside the pace of the disk.
#[derive(Debug, Args)]
#[command(after_help = HELP_EXAMPLES)]
pub struct Bench {
    /// How many acquire and release at once.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    clients: u32,
    /// How long to measure, after a warm-up of half a second.
    #[arg(long = "for", value_name = "D", default_value = "5s", value_parser = duration::parse, allow_hyphen_values = true)]
    time: Duration,
    /// Print one JSON object per target.
    #[arg(long)]
    json: bool,
    /// Draw the distribution of latencies.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Beside a server: measure the disk of this directory [default: the current one].
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// With bare+postgres://: hold two seats of a hall and release them, as `rehearse --holds` does, on a bare table.
    #[arg(long)]
    seats: bool,
    /// On an engine: each client takes one name again and again, as bare+zk:// does, instead of a new one for each pair.
    #[arg(long)]
    same_name: bool,
    /// Instead: take N leases, and say what they cost in memory and at a restart.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    held: Option<u64>,
    /// Instead: let N leases lapse in the same moment, and say how others fare meanwhile.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    lapse: Option<u64>,
    /// Instead: what a decision costs in memory alone, with a thousand and with up to N leases held.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1_000..=10_000_000))]
    book: Option<u64>,
    /// Instead: N in line for one name at a server, and the time from a release to the next grant.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(2..=10_000))]
    handoff: Option<u64>,
    /// Instead: N idle connections to a server, their memory there, and how others fare beside them.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    idle: Option<u64>,
    /// With --idle: the process of the server.
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pid: Option<u32>,
}

impl Bench {
    /// Runs the measurement on each target and returns the exit code.
    pub fn execute(self, urls: &[String]) -> anyhow::Result<u8> {
        let mode = BenchMode::from_options(&self, urls)?;
        if let BenchMode::Book(most) = mode {
            self.print_report(&book::run(most)?, book::print)?;
            return Ok(exit::DONE);
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")?;
        runtime.block_on(self.measure(mode))
    }

    async fn measure(&self, mode: BenchMode) -> anyhow::Result<u8> {
        let stop = StopSignal::listen("the bench")?;
        match mode {
            BenchMode::Pairs(targets) => self.measure_pairs(&targets, &stop).await?,
            BenchMode::Held(count, targets) => {
                for engine_dir in engine_dirs(&targets)? {
                    self.print_report(&held_leases::run(&engine_dir, count, &stop).await?, held_leases::print)?;
                }
            }
            BenchMode::Lapse(count, targets) => {
                for engine_dir in engine_dirs(&targets)? {
                    self.print_report(&lapse::run(&engine_dir, count, &stop).await?, lapse::print)?;
                }
            }
            BenchMode::Book(_) => {}
            BenchMode::Handoff(waiters, targets) => {
                let disk = Disk::for_server(self.dir.as_deref())?;
                for target in targets {
                    let report = self.measure_handoff(target, waiters, &disk, &stop).await?;
                    self.print_report(&report, handoff_report::print)?;
                }
            }
            BenchMode::Idle(count, pid, server) => {
                let (time, stop) = (self.time, stop.clone());
                let report = run_blocking(move || idle::run(&server, count, pid, time, &stop)).await?;
                self.print_report(&report, idle::print)?;
            }
        }
        Ok(if stop.is_requested() { EXIT_INTERRUPTED } else { exit::DONE })
    }

    fn print_report<R: Serialize>(&self, report: &R, print: impl Fn(&R) -> anyhow::Result<()>) -> anyhow::Result<()> {
        if self.json { output::json(report) } else { print(report) }
    }

    async fn measure_handoff(
        &self,
        target: BenchTarget,
        waiters: usize,
        disk: &Disk,
        stop: &StopSignal,
    ) -> anyhow::Result<HandoffReport> {
        let time = self.time;
        match target {
            BenchTarget::Server(server) => {
                let (disk, stop) = (disk.clone(), stop.clone());
                run_blocking(move || handoff::run(&server, waiters, &disk, time, &stop)).await
            }
            BenchTarget::Engine(BenchEngine { url, display_url }) => {
                let engine = Leasehold::open(&url).await?;
                let report = engine_handoff::run((&engine, display_url), waiters, disk, time, stop).await;
                engine.close().await?;
                report
            }
            BenchTarget::Embedded(_) | BenchTarget::Peer(_) => unreachable!("refused with the options"),
        }
    }

    async fn measure_pairs(&self, targets: &[BenchTarget], stop: &StopSignal) -> anyhow::Result<()> {
        let prepared = if targets.is_empty() {
            vec![PreparedTarget::Embedded(EngineDir::temporary()?)]
        } else {
            targets.iter().map(|target| self.prepare(target)).collect::<anyhow::Result<_>>()?
        };
        let mut reports = Vec::new();
        let mut measurements = Vec::new();
        for target in &prepared {
            if stop.is_requested() {
                break;
            }
            let (report, measured) = self.measure_pairs_at(target, stop).await?;
            if self.json {
                output::json(&report)?;
            }
            reports.push(report);
            measurements.push(measured);
        }
        if !self.json {
            pairs_report::print(&reports)?;
        }
        self.draw_plot(&reports, &measurements)
    }

    fn prepare<'a>(&self, target: &'a BenchTarget) -> anyhow::Result<PreparedTarget<'a>> {
        match target {
            BenchTarget::Embedded(dir) => EngineDir::at(dir.clone()).map(PreparedTarget::Embedded),
            BenchTarget::Server(server) => Ok(PreparedTarget::Server(server, Disk::for_server(self.dir.as_deref())?)),
            BenchTarget::Engine(engine) => Ok(PreparedTarget::Engine(engine, Disk::for_server(self.dir.as_deref())?)),
            BenchTarget::Peer(peer) => Ok(PreparedTarget::Peer(peer, Disk::for_server(self.dir.as_deref())?)),
        }
    }

    async fn measure_pairs_at(
        &self,
        target: &PreparedTarget<'_>,
        stop: &StopSignal,
    ) -> anyhow::Result<(PairsReport, PairMeasurement)> {
        let clients = self.clients as usize;
        let bar = progress::time_bar(self.time, "measuring the disk");
        // Open the target first: it creates the directory in which the probe file is synced.
        let opened = target.open().await?;
        let disk = target.disk();
        let mut probe = disk.probe()?;
        probe.measure()?;
        bar.set_message("pairs of acquire and release");
        let measured = opened.run_pairs(clients, self.same_name, self.time, stop, &bar).await;
        bar.set_message("measuring the disk again");
        let measured = measured?;
        probe.measure()?;
        bar.finish_and_clear();
        opened.close().await?;
        let report = PairsReport::new(target.url(), clients, &measured, probe.latency()?, disk.fs);
        report.fdatasync_us.warn_if_unsteady();
        Ok((report, measured))
    }

    fn draw_plot(&self, reports: &[PairsReport], measurements: &[PairMeasurement]) -> anyhow::Result<()> {
        let Some(path) = &self.plot else { return Ok(()) };
        let lines: Vec<plot::PlotLine<'_>> = reports
            .iter()
            .zip(measurements)
            .flat_map(|(report, measured)| {
                let line =
                    |what: &str, histogram| plot::PlotLine { label: format!("{what}, {}", report.url), histogram };
                [line("acquire", &measured.acquire), line("acquire + release", &measured.pair)]
            })
            .collect();
        std::fs::write(path, plot::render_svg("leasehold bench: latency by percentile", &lines))
            .with_context(|| format!("write the plot to {}", path.display()))
    }
}

/// A target that was checked, with the disk that is measured beside it.
enum PreparedTarget<'a> {
    Embedded(EngineDir),
    Server(&'a ServerAddress, Disk),
    Engine(&'a BenchEngine, Disk),
    Peer(&'a peers::PeerServer, Disk),
}

impl<'a> PreparedTarget<'a> {
    async fn open(&self) -> anyhow::Result<OpenTarget<'a>> {
        Ok(match self {
            Self::Embedded(engine_dir) => OpenTarget::Engine(Leasehold::open(&engine_dir.url()).await?),
            Self::Server(server, _) => OpenTarget::Server(server),
            Self::Engine(engine, _) => OpenTarget::Engine(Leasehold::open(&engine.url).await?),
            Self::Peer(peer, _) => OpenTarget::Peer(peer),
        })
    }

    fn url(&self) -> String {
        match self {
            Self::Embedded(engine_dir) => engine_dir.url(),
            Self::Server(server, _) => server.display_url.clone(),
            Self::Engine(engine, _) => engine.display_url.clone(),
            Self::Peer(peer, _) => peer.display_url.clone(),
        }
    }

    fn disk(&self) -> Disk {
        match self {
            Self::Embedded(engine_dir) => engine_dir.disk(),
            Self::Server(_, disk) | Self::Engine(_, disk) | Self::Peer(_, disk) => disk.clone(),
        }
    }
}

/// An opened target that a load can run on.
enum OpenTarget<'a> {
    Engine(Leasehold),
    Server(&'a ServerAddress),
    Peer(&'a peers::PeerServer),
}

impl OpenTarget<'_> {
    async fn run_pairs(
        &self,
        clients: usize,
        same_name: bool,
        time: Duration,
        stop: &StopSignal,
        bar: &ProgressBar,
    ) -> anyhow::Result<PairMeasurement> {
        match self {
            Self::Engine(engine) => {
                let clients = engine_client::new_clients(engine, clients, same_name);
                pair_load::run(clients, time, stop, bar).await
            }
            Self::Server(server) => {
                let (server, stop, bar) = ((*server).clone(), stop.clone(), bar.clone());
                run_blocking(move || server::pairs::run(&server, clients, time, &stop, &bar)).await
            }
            Self::Peer(peer) => peers::run(peer, clients, time, stop, bar).await,
        }
    }

    async fn close(self) -> anyhow::Result<()> {
        match self {
            Self::Engine(engine) => engine.close().await.map_err(Into::into),
            Self::Server(_) | Self::Peer(_) => Ok(()),
        }
    }
}

/// The engine directories of embedded targets. Without a target: one temporary directory.
fn engine_dirs(targets: &[BenchTarget]) -> anyhow::Result<Vec<EngineDir>> {
    if targets.is_empty() {
        return Ok(vec![EngineDir::temporary()?]);
    }
    let dirs = targets.iter().filter_map(|target| match target {
        BenchTarget::Embedded(dir) => Some(dir.clone()),
        BenchTarget::Server(_) | BenchTarget::Engine(_) | BenchTarget::Peer(_) => None,
    });
    dirs.map(EngineDir::at).collect()
}

/// Runs blocking work on a thread of the blocking pool.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    tokio::task::spawn_blocking(work).await.context("run the load")?
}
