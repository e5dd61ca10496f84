//! `leasehold cron NAME`: waits for ticks, and runs the command for those that are this machine's.

use std::ffi::OsString;
use std::pin::pin;
use std::time::Duration;

use clap::{Args, ValueEnum};
use leasehold::Leasehold;
use leasehold::recipe::cron::{CatchUp, CronLook, CronRunner, CronTurn, Overlap, Schedule, rfc3339};
use leasehold::recipe::{LeaseKind as _, Store};
use rustix::process::Signal;
use tokio_util::sync::CancellationToken;

use super::notices::{failure, for_ledger, say_clock_changes, speaker};
use super::{CronPlace, wall_now};
use crate::cli::run::leased_command::{self, CommandEnd, LeasedCommand, RunOutcome, check_exists, passed_on};
use crate::cli::run::output_tail::OutputTail;
use crate::cli::run::plan::RunPlan;
use crate::cli::target::Target;
use leasehold_support::exit::{self, Failure};
use leasehold_support::signals::{self, Signals};
use leasehold_support::{duration, output};

/// How much longer than a tick may be late the lease of a tick lives, with --at-most-once.
const SLOT_MARGIN: Duration = Duration::from_secs(600);
/// What a ledger takes.
const MAX_NAME_BYTES: usize = 128;
/// The longest life of a lease.
const MAX_TTL: Duration = Duration::from_secs(24 * 3600);

/// What to do about ticks that nobody began.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum CatchUpWord {
    Last,
    None,
    All,
}

/// What to do about a tick that comes while a run is at work.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum OverlapWord {
    Skip,
    Wait,
    Replace,
}

#[derive(Debug, Args)]
pub struct CronRunArgs {
    /// The schedule's name: the same on every machine.
    #[arg(value_name = "NAME", required = true)]
    name: Option<String>,
    /// When: "minute hour day month weekday", or six fields with seconds first.
    #[arg(long, value_name = "FIELDS", required = true)]
    schedule: Option<String>,
    /// The time zone of the schedule, such as Europe/Berlin.
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    tz: String,
    /// Of ticks that nobody began: run the newest if it is not too late, none, or each (the newest 100).
    #[arg(long, value_enum, default_value = "last")]
    catch_up: CatchUpWord,
    /// How late a tick may be begun [default: half of the time to the next tick, at most 1h]
    #[arg(long, value_name = "D", value_parser = duration::parse, allow_hyphen_values = true)]
    late: Option<Duration>,
    /// A tick that comes while a run is at work: do not run it, run it afterwards, or end the run before it.
    #[arg(long, value_enum, default_value = "skip", conflicts_with = "at_most_once")]
    overlap: OverlapWord,
    /// End the command after this long.
    #[arg(long, value_name = "D", value_parser = duration::parse, allow_hyphen_values = true, conflicts_with = "at_most_once")]
    max_run: Option<Duration>,
    /// Machines look up to this long after a tick, each at a time of its own [default: a twentieth of the time to the next tick, at most 2s]
    #[arg(long, value_name = "D", value_parser = duration::parse, allow_hyphen_values = true)]
    jitter: Option<Duration>,
    /// Asked life of the lease, renewed every third of it: how long a dead machine is in the way of the next tick.
    #[arg(long, default_value = "30s", value_parser = duration::parse, allow_hyphen_values = true)]
    ttl: Duration,
    /// How long the command may take between TERM and KILL.
    #[arg(long, default_value = "5s", value_parser = duration::parse, allow_hyphen_values = true)]
    grace: Duration,
    /// Run the tick that is due, if no other machine has it, and end.
    #[arg(long)]
    tick: bool,
    /// Without a ledger: a lease for each tick, never released.
    #[arg(long, conflicts_with = "store")]
    at_most_once: bool,
    /// Replace the schedule that the ledger has under this name.
    #[arg(long, conflicts_with = "at_most_once")]
    change: bool,
    #[command(flatten)]
    place: CronPlace,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl CronRunArgs {
    /// Waits for ticks until it is told to end; with --tick asks once.
    pub async fn execute(self, engine_url: &str) -> anyhow::Result<u8> {
        let fields = self.schedule.as_deref().unwrap_or_default();
        let schedule = Schedule::parse(fields, &self.tz)?;
        let plan = self.plan(&schedule)?;
        check_exists(&self.command)?;
        // From here on a signal is ours to handle: a lease must not be left behind by Ctrl-C.
        let mut signals = Signals::listen()?;
        let client = Target::parse(engine_url)?.open().await?;
        let ledger = if self.at_most_once { None } else { Some(self.place.open(engine_url).await?) };
        let done = self.keep_schedule(&client, ledger.as_ref(), schedule, plan, &mut signals).await;
        if let Some(ledger) = &ledger {
            ledger.close().await;
        }
        // Best effort: what is still under way after the answer is known changes nothing about it.
        let _ = client.close().await;
        done
    }

    fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    /// The deadlines of the command, if the options leave it time.
    fn plan(&self, schedule: &Schedule) -> anyhow::Result<RunPlan> {
        let name = self.name();
        if name.is_empty() || name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control) {
            return Err(Failure::usage("the name of a schedule is 1 to 128 bytes without control characters"));
        }
        if self.max_run.is_some_and(|most| most <= self.grace) {
            return Err(Failure::usage(
                "--max-run must exceed --grace, or the command would be stopped as soon as it starts",
            ));
        }
        let next = schedule.next_after(wall_now());
        let period = next.map_or(Duration::MAX, |next| schedule.period_at(next));
        if matches!(self.overlap, OverlapWord::Replace) && period <= self.grace {
            return Err(Failure::usage(format!(
                "with --overlap replace a run ends before the next tick, which comes after {}: give a shorter --grace than {}",
                duration::human(period),
                duration::human(self.grace),
            )));
        }
        let ttl = if self.at_most_once { self.late.unwrap_or_default().saturating_add(SLOT_MARGIN) } else { self.ttl };
        if ttl > MAX_TTL {
            return Err(Failure::usage("a lease lives at most 24h: with --at-most-once, --late is at most 23h50m"));
        }
        RunPlan::new(ttl, self.grace, None).map_err(Failure::usage)
    }

    async fn keep_schedule(
        &self,
        client: &Leasehold,
        ledger: Option<&Store>,
        schedule: Schedule,
        plan: RunPlan,
        signals: &mut Signals,
    ) -> anyhow::Result<u8> {
        if self.at_most_once && !client.promises().outlives_process {
            return Err(Failure::usage(format!(
                "leases of the {} engine, as configured, end with the process: --at-most-once needs leases that stay, so \
                 give another --url, or a --store",
                client.promises().engine
            )));
        }
        say_clock_changes(&schedule);
        let mut runner = self.runner(client, ledger, schedule);
        let stop = CancellationToken::new();
        if self.tick {
            return self.run_once(&mut runner, plan, signals, &stop).await;
        }
        loop {
            let (turn, _) = heed_signals(signals, &stop, runner.next_run(&stop)).await;
            let turn = turn.map_err(failure)?;
            let Some(turn) = turn else { return Ok(exit::DONE) };
            let tick = rfc3339(turn.tick());
            match self.run_turn(&runner, turn, plan, signals, &stop).await {
                Ok(CommandEnd::Ended(0)) => {}
                Ok(CommandEnd::Ended(code)) => output::say(format!("tick {tick}: the command ended with code {code}")),
                Ok(CommandEnd::Lost { .. }) => output::say(format!("tick {tick}: the run was cut off")),
                Err(error) => output::say(format!("tick {tick}: {}", exit::sentence(&error))),
            }
        }
    }

    fn runner(&self, client: &Leasehold, ledger: Option<&Store>, schedule: Schedule) -> CronRunner {
        let runner = match ledger {
            Some(ledger) => CronRunner::new(client, ledger, self.name(), schedule),
            None => CronRunner::at_most_once(client, self.name(), schedule),
        };
        let mut runner = runner
            .catch_up(match self.catch_up {
                CatchUpWord::Last => CatchUp::Last,
                CatchUpWord::None => CatchUp::None,
                CatchUpWord::All => CatchUp::All,
            })
            .overlap(match self.overlap {
                OverlapWord::Skip => Overlap::Skip,
                OverlapWord::Wait => Overlap::Wait,
                OverlapWord::Replace => Overlap::Replace,
            })
            .ttl(self.ttl)
            // A run that would get its TERM as soon as it starts is not begun.
            .least_run(self.grace.saturating_add(Duration::from_millis(250)))
            .machine(leased_command::holder_label(&self.command))
            .change(self.change)
            .on_notice(speaker());
        if let Some(late) = self.late {
            runner = runner.late(late);
        }
        if let Some(max_run) = self.max_run {
            runner = runner.max_run(max_run);
        }
        if let Some(jitter) = self.jitter {
            runner = runner.jitter(jitter);
        }
        runner
    }

    /// Runs the tick that is due, if it is ours.
    async fn run_once(
        &self,
        runner: &mut CronRunner,
        plan: RunPlan,
        signals: &mut Signals,
        stop: &CancellationToken,
    ) -> anyhow::Result<u8> {
        let (looked, interrupted) = heed_signals(signals, stop, runner.run_now(stop)).await;
        let looked = looked.map_err(failure)?;
        match (looked, interrupted) {
            (CronLook::Turn(turn), _) => {
                let ended = self.run_turn(runner, *turn, plan, signals, stop).await?;
                Ok(ended.exit_code())
            }
            (_, Some(signal)) => Err(signals::interrupted(signal, signals::NOTHING_HELD)),
            (CronLook::Taken { .. }, None) => {
                Err(Failure::coded(exit::HELD, format!("another machine has the tick of {}", self.name())))
            }
            (CronLook::NotDue { until }, None) => {
                let next = until.map_or_else(String::new, |next| format!(": the next comes after {}", rfc3339(next)));
                output::say(format!("no tick of {} is due{next}", self.name()));
                Ok(exit::DONE)
            }
        }
    }

    /// Runs the command of one tick, finishes the run in the ledger, and gives the lease back: in this order, or another
    /// machine could find the run without an end.
    async fn run_turn(
        &self,
        runner: &CronRunner,
        turn: CronTurn,
        plan: RunPlan,
        signals: &mut Signals,
        stop: &CancellationToken,
    ) -> anyhow::Result<CommandEnd> {
        let resource = turn.lease().resources().join(",");
        let tail = OutputTail::new();
        let command = LeasedCommand::new(&resource, &self.command, plan)
            .run_by("cron")
            .variable("LEASEHOLD_TICK", Some(rfc3339(turn.tick())))
            .variable("LEASEHOLD_API_KEY", None)
            .keep_output(&tail);
        let watched = if stop.is_cancelled() {
            Err(Failure::coded(exit::UNEXPECTED, "it was begun and not run: this process was asked to end"))
        } else {
            command.watch(turn.lease(), signals).await
        };
        let ending = match watched {
            Ok(ending) => ending,
            Err(error) => {
                let (code, sentence) = for_ledger(&error);
                finish(runner, &turn, (code, &sentence), signals, stop).await?;
                if !turn.keeps_lease() {
                    // One that is not released lapses with its ttl.
                    let _ = turn.into_lease().end().await;
                }
                return Err(error);
            }
        };
        if ending.asked_to_end {
            stop.cancel();
        }
        // What cannot be killed has not ended: another machine will find it lost.
        if ending.gone {
            let text = tail.kept_text().await;
            finish(runner, &turn, (ledger_code(&ending), &text), signals, stop).await?;
        }
        if turn.keeps_lease() {
            return Ok(command.report(&ending, ending.lost));
        }
        command.release_and_report(turn.into_lease(), &ending).await
    }
}

/// Does the work to its end. A signal that comes meanwhile asks it to stop.
async fn heed_signals<T>(
    signals: &mut Signals,
    stop: &CancellationToken,
    work: impl Future<Output = T>,
) -> (T, Option<Signal>) {
    let mut work = pin!(work);
    let mut heard = None;
    loop {
        tokio::select! {
            biased;
            done = &mut work => return (done, heard),
            signal = signals.next(), if heard.is_none() => {
                heard = Some(signal);
                stop.cancel();
            }
        }
    }
}

/// Finishes a run in the ledger: its code, and the end of its output.
async fn finish(
    runner: &CronRunner,
    turn: &CronTurn,
    (code, tail): (i32, &str),
    signals: &mut Signals,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let (finished, _) = heed_signals(signals, stop, runner.finish(turn, code, tail, stop)).await;
    if !finished.map_err(failure)? {
        let tick = rfc3339(turn.tick());
        output::say(format!("tick {tick} is not finished in the ledger, which reports it as lost"));
    }
    Ok(())
}

/// The code that the ledger keeps. A command that was cut off has not done its work, whatever it says.
fn ledger_code(ending: &RunOutcome) -> i32 {
    let code = ending.status.map_or(exit::UNEXPECTED, passed_on);
    match code {
        0 if ending.lost => i32::from(exit::LOST),
        0 if ending.asked_to_end => 128 + Signal::TERM.as_raw(),
        code => i32::from(code),
    }
}
