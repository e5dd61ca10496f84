//! `leasehold bench`: what this machine and this disk can do, and how close the engine comes.
//!
//! ```text
//!   Place (directory, file system) ──▶ disk (fdatasync) ──▶ load ──▶ disk again ──▶ report, plot
//!                                  ├─▶ held  (memory, restart)
//!                                  └─▶ lapse (a million ends in one moment)
//!   book (decisions in memory, no disk)
//! ```
//!
//! The disk is measured in the same run, half before the load and half after, because a figure without
//! its bound says nothing: a durable acquire cannot be faster than the sync it waits for.

mod book;
mod disk;
mod held;
mod lapse;
mod load;
mod many;
mod place;
mod plot;
mod progress;
mod report;
mod stats;
mod stop;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use leasehold::Leasehold;

use self::disk::Probe;
use self::load::Measured;
use self::place::Place;
use self::report::Report;
use self::stop::Stop;
use super::exit::{self, Failure};
use super::{duration, output};

const EXAMPLE: &str = "\
Example:
  leasehold bench
  leasehold bench --url embedded:/mnt/nvme/x --clients 1 --for 10s --plot latency.svg
  leasehold bench --held 1000000 --json
  leasehold bench --lapse 1000000
  leasehold bench --book 10000000

Without --url it runs in a fresh directory ./leasehold-bench-XXXX, which is removed afterwards;
LEASEHOLD_URL is not looked at. A file system in memory is refused: nothing is durable there.";

/// The exit code of a bench that was interrupted, as shells count it.
const INTERRUPTED: u8 = 130;

/// Measures pairs of acquire and release, beside the pace of the disk.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
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
    #[arg(long, value_name = "FILE.svg", conflicts_with_all = ["held", "lapse"])]
    plot: Option<PathBuf>,
    /// Instead: take N leases, and say what they cost in memory and at a restart.
    #[arg(long, value_name = "N", conflicts_with = "lapse", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    held: Option<u64>,
    /// Instead: let N leases lapse in the same moment, and say how others fare meanwhile.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    lapse: Option<u64>,
    /// Instead: what a decision costs in memory alone, with a thousand and with up to N leases held.
    #[arg(long, value_name = "N", conflicts_with_all = ["held", "lapse", "plot"], value_parser = clap::value_parser!(u64).range(1_000..=10_000_000))]
    book: Option<u64>,
}

impl Bench {
    /// Measures each target in turn.
    pub fn execute(self, urls: &[String]) -> anyhow::Result<u8> {
        if self.time.is_zero() {
            return Err(Failure::usage("--for is not zero: say e.g. --for 5s"));
        }
        if let Some(most) = self.book {
            let report = book::run(most)?;
            if self.json {
                output::json(&report)?
            } else {
                book::print(&report)?
            }
            return Ok(exit::DONE);
        }
        let places = if urls.is_empty() {
            vec![Place::fresh()?]
        } else {
            urls.iter().map(|url| Place::named(url)).collect::<anyhow::Result<_>>()?
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")?;
        runtime.block_on(self.measure(&places))
    }

    async fn measure(&self, places: &[Place]) -> anyhow::Result<u8> {
        let stop = Stop::listen()?;
        if let Some(count) = self.held {
            for place in places {
                let report = held::run(place, count, &stop).await?;
                if self.json { output::json(&report)? } else { held::print(&report)? }
            }
        } else if let Some(count) = self.lapse {
            for place in places {
                let report = lapse::run(place, count, &stop).await?;
                if self.json { output::json(&report)? } else { lapse::print(&report)? }
            }
        } else {
            self.pairs(places, &stop).await?;
        }
        Ok(if stop.is_asked() { INTERRUPTED } else { exit::DONE })
    }

    async fn pairs(&self, places: &[Place], stop: &Stop) -> anyhow::Result<()> {
        let mut reports = Vec::new();
        let mut measurements = Vec::new();
        for place in places {
            if stop.is_asked() {
                break;
            }
            let (report, measured) = self.pairs_at(place, stop).await?;
            if self.json {
                output::json(&report)?;
            }
            reports.push(report);
            measurements.push(measured);
        }
        if !self.json {
            report::print(&reports)?;
        }
        self.draw(&reports, &measurements)
    }

    async fn pairs_at(&self, place: &Place, stop: &Stop) -> anyhow::Result<(Report, Measured)> {
        let client = Leasehold::open(&place.url()).await?;
        let clients = self.clients as usize;
        let bar = progress::time(self.time, "measuring the disk");
        let mut probe = Probe::new(place.probe_dir())?;
        probe.measure()?;
        bar.set_message("pairs of acquire and release");
        let measured = load::run(&client, clients, self.time, stop, &bar).await;
        bar.set_message("measuring the disk again");
        let measured = measured?;
        probe.measure()?;
        bar.finish_and_clear();
        client.close().await?;
        let report = Report::new(place.url(), clients, &measured, probe.found()?, place.fs.clone());
        if !report.fdatasync_us.is_steady() {
            output::say("the disk changed its pace while we measured: the ratios mean little, try again");
        }
        Ok((report, measured))
    }

    fn draw(&self, reports: &[Report], measurements: &[Measured]) -> anyhow::Result<()> {
        let Some(path) = &self.plot else { return Ok(()) };
        let lines: Vec<plot::Line<'_>> = reports
            .iter()
            .zip(measurements)
            .flat_map(|(report, measured)| {
                let line = |what: &str, stats| plot::Line { label: format!("{what}, {}", report.url), stats };
                [line("acquire", &measured.acquire), line("acquire + release", &measured.pair)]
            })
            .collect();
        std::fs::write(path, plot::svg(&lines)).with_context(|| format!("write the plot to {}", path.display()))
    }
}
