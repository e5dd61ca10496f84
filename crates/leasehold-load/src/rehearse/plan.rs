//! Reads the options of a rehearsal together: how many buyers, how they behave, and at which event.
//!
//! Combinations are checked here and not by clap, so that each bad combination gets an error of its own.

use std::time::Duration;

use leasehold_boxoffice::sign::Secrets;
use serde::Serialize;

use super::Rehearse;
use super::rehearsal_event::EventSpec;
use leasehold_support::exit::Failure;
use leasehold_support::time;

/// The environment variable with the secret of the payment provider.
const PROVIDER_SECRET_VARIABLE: &str = "LEASEHOLD_PROVIDER_SECRET";

/// The kind of a rehearsal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RehearsalMode {
    /// Buyers with all kinds of behaviour.
    Sale,
    /// Very many buyers at once for few seats. All of them pay.
    Flash,
    /// Holds of two seats and their release, as fast as the server answers.
    Holds,
    /// Requests for seats that are taken, as fast as the server refuses.
    Losers,
}

/// The checked options of a rehearsal.
pub struct RehearsalPlan {
    pub mode: RehearsalMode,
    pub buyers: usize,
    /// All buyers arrive within this time.
    pub over: Duration,
    /// Length of the measurement of a load.
    pub time: Duration,
    pub think: Duration,
    pub abandon: f64,
    pub decline: f64,
    pub late: f64,
    pub never: f64,
    pub hot: f64,
    /// Seats per buyer, at most.
    pub party: usize,
    pub tries: u32,
    pub seed: u64,
    /// Whether loads send an Idempotency-Key.
    pub keyed: bool,
    /// A prefix for all names of this run. No other run has the same.
    pub run: String,
    /// With it, declines and captures are sent as signed callbacks of a provider.
    pub provider: Option<Secrets>,
    /// The event to create, if `--event` names none.
    pub event_spec: EventSpec,
}

impl RehearsalPlan {
    /// Reads the options together.
    ///
    /// # Errors
    ///
    /// Bad usage.
    pub fn from_options(options: &Rehearse) -> anyhow::Result<Self> {
        let mode = chosen_mode(options)?;
        check_options(options, mode)?;
        let seed = options.seed.unwrap_or_else(|| time::wall_ms() % 1_000_000);
        let run = format!("r{:x}{:x}", time::wall_ms(), std::process::id());
        let (buyers, seats) = match mode {
            RehearsalMode::Sale => (200, 500),
            RehearsalMode::Flash => (5_000, 500),
            RehearsalMode::Holds | RehearsalMode::Losers => (64, 20_000),
        };
        let (buyers, seats) = (options.buyers.unwrap_or(buyers), options.seats.unwrap_or(seats));
        if mode == RehearsalMode::Holds && seats < buyers * 4 {
            return Err(Failure::usage("--holds needs at least four seats for each buyer: they shall not meet"));
        }
        let is_sale = mode == RehearsalMode::Sale;
        let share = |share: f64| if is_sale { share } else { 0.0 };
        let load = matches!(mode, RehearsalMode::Holds | RehearsalMode::Losers);
        let (ttl, pay) =
            if load { (Duration::from_mins(5), Duration::from_mins(5)) } else { (options.ttl, options.pay) };
        let event_spec = EventSpec {
            name: format!("Rehearsal {run}, seed {seed}"),
            seats,
            floor: if is_sale { u32::try_from(seats / 5).unwrap_or(u32::MAX) } else { 0 },
            ttl,
            pay,
            per_buyer: if mode == RehearsalMode::Losers { 1_000_000 } else { 8 },
        };
        Ok(Self {
            mode,
            buyers,
            over: if is_sale { options.over } else { Duration::ZERO },
            time: options.time.unwrap_or(Duration::from_secs(30)),
            think: if is_sale { options.think } else { Duration::ZERO },
            abandon: share(options.abandon),
            decline: share(options.decline),
            late: share(options.late),
            never: share(options.never),
            hot: share(options.hot),
            party: if mode == RehearsalMode::Flash { 1 } else { options.party },
            tries: if mode == RehearsalMode::Flash { 1_000 } else { options.tries },
            seed,
            keyed: options.keyed,
            run,
            provider: provider_secrets()?,
            event_spec,
        })
    }
}

fn chosen_mode(options: &Rehearse) -> anyhow::Result<RehearsalMode> {
    match (options.holds, options.losers, options.flash) {
        (false, false, false) => Ok(RehearsalMode::Sale),
        (true, false, false) => Ok(RehearsalMode::Holds),
        (false, true, false) => Ok(RehearsalMode::Losers),
        (false, false, true) => Ok(RehearsalMode::Flash),
        _ => Err(Failure::usage("give only one of --holds, --losers and --flash")),
    }
}

fn check_options(options: &Rehearse, mode: RehearsalMode) -> anyhow::Result<()> {
    let load = matches!(mode, RehearsalMode::Holds | RehearsalMode::Losers);
    let usage_error = |sentence: &str| Err(Failure::usage(sentence));
    if !load && (options.time.is_some() || options.keyed) {
        return usage_error(
            "--for and --keyed belong to --holds and --losers: buyers come --over a time, and are done when they are",
        );
    }
    if options.time.is_some_and(|time| time.is_zero()) {
        return usage_error("--for is not zero: say e.g. --for 30s");
    }
    if options.event.is_some() && mode != RehearsalMode::Sale {
        return usage_error("--holds, --losers and --flash make an event of their own: give them without --event");
    }
    if options.event.is_some() && options.seats.is_some() {
        return usage_error("--seats is for an event of our own: give it without --event");
    }
    if options.really && options.event.is_none() {
        return usage_error("--really is about a real event: give it with --event ID");
    }
    let shares = [
        ("--abandon", options.abandon),
        ("--decline", options.decline),
        ("--late", options.late),
        ("--never", options.never),
        ("--hot", options.hot),
    ];
    for (name, share) in shares {
        if !(0.0..=1.0).contains(&share) {
            return usage_error(&format!("{name} is a share from 0 to 1, for example 0.2"));
        }
    }
    if options.decline + options.late + options.never > 1.0 {
        return usage_error("--decline, --late and --never are shares of all payments: together at most 1");
    }
    let span = Duration::from_millis(100)..=Duration::from_hours(1);
    if !span.contains(&options.ttl) || !span.contains(&options.pay) {
        return usage_error("--ttl and --pay are from 100ms to 1h");
    }
    Ok(())
}

fn provider_secrets() -> anyhow::Result<Option<Secrets>> {
    let Some(secret) = std::env::var(PROVIDER_SECRET_VARIABLE).ok().filter(|secret| !secret.is_empty()) else {
        return Ok(None);
    };
    let secrets = Secrets::new(&[&secret]);
    secrets.map(Some).map_err(|unfit| Failure::usage(format!("{PROVIDER_SECRET_VARIABLE}: {unfit}")))
}
