//! `leasehold rehearse`: an on-sale with simulated buyers against a running deployment, and the proof that nothing was
//! sold twice.
//!
//! ```text
//!   options ──▶ RehearsalPlan ──▶ RehearsalEvent ──▶ buyers: many Buyer tasks ──▶ BuyerLog (what they were told)
//!                                               └▶ hold_loads (--holds, --losers)     │
//!              Evidence (report, audit, invariants of the event) ──▶ proof_checks ◀───┘ ──▶ report, plot, exit code
//! ```
//!
//! # Laws
//!
//! 1. It creates an event of its own, marked as a rehearsal, and takes it off sale at the end. It uses another event
//!    only if `--event` names one that is marked, too, or `--really` is given.
//! 2. What buyers were told is compared with what the event says of itself. The server's own invariants are only one of
//!    the checks.
//! 3. A request without a response is retried with the same key. What stays unknown is reported as unknown.
//!
//! # Not here
//!
//! Loads on leases alone (`bench`).

mod api_types;
mod buyer;
mod buyer_log;
mod buyer_requests;
mod buyers;
mod context;
mod counters;
mod deployment;
mod evidence;
mod hold_loads;
mod http_client;
mod http_connection;
mod plan;
mod proof;
mod proof_checks;
mod random;
mod rehearsal_event;
mod report;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;

use self::context::RehearsalContext;
use self::counters::SharedCounters;
use self::deployment::Deployment;
use self::http_client::HttpClient;
use self::plan::{RehearsalMode, RehearsalPlan};
use self::proof::RehearsalProof;
use self::rehearsal_event::RehearsalEvent;
use self::report::RehearsalReport;
use super::bench::{EXIT_INTERRUPTED, plot, stop_signal::StopSignal};
use leasehold_support::{duration, exit, output};

const HELP_EXAMPLES: &str = "\
Example:
  leasehold rehearse
  leasehold rehearse --http https://tickets.example --buyers 2000 --over 60s --plot sale.svg
  leasehold rehearse --seed 42 --json
  leasehold rehearse --flash
  leasehold rehearse --holds --for 30s
  leasehold rehearse --losers --for 10s

It makes an event of its own, marked as a rehearsal, and takes it off sale at the end; it touches no other.
The key of a box office is taken from LEASEHOLD_API_KEY. With LEASEHOLD_PROVIDER_SECRET, declines and captures
are told as a payment provider tells them, signed; without it, who is declined goes away while paying.
Exit code 8: what the buyers were told and what the event says of itself do not agree, or break a law.";

/// Rehearses an on-sale with simulated buyers, and proves that no seat was sold twice.
#[derive(Debug, Args)]
#[command(after_help = HELP_EXAMPLES)]
pub struct Rehearse {
    /// The deployment, http://HOST:PORT or https://HOST.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:7400")]
    http: String,
    /// Rehearse at this event, which must be marked as a rehearsal, instead of making one.
    #[arg(long, value_name = "ID")]
    event: Option<String>,
    /// With --event: also at an event that is not marked. Its seats are sold.
    #[arg(long)]
    really: bool,
    /// How many buyers come [default: 200; --flash: 5000; --holds, --losers: 64].
    #[arg(long, value_name = "N", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=15_000))]
    buyers: Option<usize>,
    /// Seats of the event it makes [default: 500; --holds, --losers: 20000].
    #[arg(long, value_name = "N", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(10..=100_000))]
    seats: Option<usize>,
    /// The buyers arrive within this time.
    #[arg(long, value_name = "D", default_value = "10s", value_parser = duration::parse, allow_hyphen_values = true)]
    over: Duration,
    /// How long a buyer thinks, on average.
    #[arg(long, value_name = "D", default_value = "500ms", value_parser = duration::parse, allow_hyphen_values = true)]
    think: Duration,
    /// The share of buyers who hold seats and go away: half give them back, half just leave.
    #[arg(long, value_name = "SHARE", default_value_t = 0.2, allow_hyphen_values = true)]
    abandon: f64,
    /// The share of payments that are declined.
    #[arg(long, value_name = "SHARE", default_value_t = 0.1, allow_hyphen_values = true)]
    decline: f64,
    /// The share of payments that come after the deadline.
    #[arg(long, value_name = "SHARE", default_value_t = 0.05, allow_hyphen_values = true)]
    late: f64,
    /// The share of payments that never come.
    #[arg(long, value_name = "SHARE", default_value_t = 0.05, allow_hyphen_values = true)]
    never: f64,
    /// The share of wishes for the front tenth of the hall.
    #[arg(long, value_name = "SHARE", default_value_t = 0.5, allow_hyphen_values = true)]
    hot: f64,
    /// Seats that one buyer wants, at most.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=8))]
    party: usize,
    /// How often a buyer who was refused tries other seats.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    tries: u32,
    /// How long a hold lives, at the event it makes.
    #[arg(long, value_name = "D", default_value = "5s", value_parser = duration::parse, allow_hyphen_values = true)]
    ttl: Duration,
    /// How long paying may take, at the event it makes.
    #[arg(long, value_name = "D", default_value = "3s", value_parser = duration::parse, allow_hyphen_values = true)]
    pay: Duration,
    /// Chance: the same number, the same buyers [default: another one each time].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// How long to ask again for an answer that does not come.
    #[arg(long, value_name = "D", default_value = "30s", value_parser = duration::parse, allow_hyphen_values = true)]
    patience: Duration,
    /// Instead: hold two seats and release them, again and again, and say how many holds that is in a second.
    #[arg(long)]
    holds: bool,
    /// Instead: ask for seats that are held or sold, and say how many refusals that is in a second.
    #[arg(long)]
    losers: bool,
    /// Instead: a crowd at once, each for one seat, and everybody pays.
    #[arg(long)]
    flash: bool,
    /// With --holds and --losers: how long to measure, after a warm-up of half a second [default: 30s].
    #[arg(long = "for", value_name = "D", value_parser = duration::parse, allow_hyphen_values = true)]
    time: Option<Duration>,
    /// With --holds and --losers: send an Idempotency-Key with every request.
    #[arg(long)]
    keyed: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Draw the distribution of latencies.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

impl Rehearse {
    /// Runs the rehearsal, prints the report, and returns the exit code.
    pub fn execute(self) -> anyhow::Result<u8> {
        let plan = Arc::new(RehearsalPlan::from_options(&self)?);
        let deployment = Deployment::parse(&self.http)?;
        buyers::raise_file_limit(plan.buyers)?;
        // One thread: the load shares the cores with the server, and one thread is enough for thousands of buyers.
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().context("start the runtime")?;
        runtime.block_on(self.run(plan, deployment))
    }

    async fn run(&self, plan: Arc<RehearsalPlan>, deployment: Deployment) -> anyhow::Result<u8> {
        let stop = StopSignal::listen("the rehearsal")?;
        let deployment = deployment.resolve_host().await?;
        let context = RehearsalContext {
            deployment,
            counters: SharedCounters::new()?,
            stop: stop.clone(),
            patience: self.patience,
        };
        let mut client = HttpClient::new(context.clone());
        let event = match &self.event {
            Some(id) => RehearsalEvent::open(&mut client, id, self.really).await?,
            None => RehearsalEvent::create(&mut client, &plan.event_spec, &plan.run).await?,
        };
        let event = Arc::new(event);
        let done = self.run_and_prove(&plan, &event, &context).await;
        // The event goes off sale even after Ctrl-C: the stop signal ends retries, not the first try.
        event.close(&mut client).await;
        let (report, proof) = done?;
        if self.json {
            output::json(&report)?
        } else {
            report.print()?
        }
        self.draw_plot(&context.counters)?;
        Ok(match proof.exit_code() {
            exit::DONE if stop.is_requested() => EXIT_INTERRUPTED,
            exit::DONE if report.failed() => exit::UNEXPECTED,
            code => code,
        })
    }

    async fn run_and_prove(
        &self,
        plan: &Arc<RehearsalPlan>,
        event: &Arc<RehearsalEvent>,
        context: &RehearsalContext,
    ) -> anyhow::Result<(RehearsalReport, RehearsalProof)> {
        let timer = buyers::start_timer(context);
        let log = match plan.mode {
            RehearsalMode::Sale | RehearsalMode::Flash => buyers::run(plan, event, context).await?,
            RehearsalMode::Holds => hold_loads::run_holds(plan, event, context).await?,
            RehearsalMode::Losers => hold_loads::run_losers(plan, event, context).await?,
        };
        let measured = timer.stop(plan, context);
        let proof = proof::prove(plan, event, context, log).await?;
        Ok((RehearsalReport::new(plan, event, context, &measured, &proof), proof))
    }

    fn draw_plot(&self, counters: &SharedCounters) -> anyhow::Result<()> {
        let Some(path) = &self.plot else { return Ok(()) };
        let picture = counters.update(|counters| {
            let all = [
                ("hold", &counters.hold),
                ("refusal", &counters.refusal),
                ("confirm", &counters.confirm),
                ("release", &counters.release),
            ];
            let lines: Vec<plot::PlotLine<'_>> = all
                .into_iter()
                .filter(|(_, histogram)| histogram.count() > 0)
                .map(|(what, histogram)| plot::PlotLine { label: format!("{what} ({})", histogram.count()), histogram })
                .collect();
            plot::render_svg("leasehold rehearse: latency by percentile", &lines)
        });
        std::fs::write(path, picture).with_context(|| format!("write the plot to {}", path.display()))
    }
}
