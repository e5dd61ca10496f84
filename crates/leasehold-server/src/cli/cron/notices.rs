//! What a runner of schedules tells the person at the terminal.

use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use leasehold::recipe::cron::{CronError, CronNotice, MissedTicks, Schedule, rfc3339};
use leasehold_support::sync::lock;
use leasehold_support::{exit, output};

use super::wall_now;

const YEAR: Duration = Duration::from_secs(366 * 86_400);

/// Says what a runner tells. Something that stays away is told once.
pub fn speaker() -> impl Fn(&CronNotice<'_>) + Send + Sync + 'static {
    let said = Mutex::new(String::new());
    move |notice| {
        let sentence = sentence(notice);
        let mut said = lock(&said);
        if matches!(notice, CronNotice::Trouble(_)) && *said == sentence {
            return;
        }
        output::say(&sentence);
        *said = sentence;
    }
}

/// What changes of the local clock do to the schedule in the coming year.
pub fn say_clock_changes(schedule: &Schedule) {
    let now = wall_now();
    for change in schedule.clock_changes(now, coming_year(now)) {
        output::say(format!("{} ({})", change, schedule.zone()));
    }
}

/// The end of the year that changes of the local clock are told for.
pub fn coming_year(now: SystemTime) -> SystemTime {
    now + YEAR
}

fn sentence(notice: &CronNotice<'_>) -> String {
    match notice {
        CronNotice::Trouble(error) => format!("the schedule goes on: {}", exit::causes(error)),
        CronNotice::NoTokens { engine } => format!(
            "the {engine} engine, as configured, has no tokens: each tick is still begun once, but a machine that was paused \
             is not told from another"
        ),
        CronNotice::ClockAhead { tick } => {
            format!(
                "tick {} has not come: the clock of this machine is more than 5 s ahead of the store's",
                rfc3339(*tick)
            )
        }
        CronNotice::Stale { tick } => format!(
            "tick {}: the ledger has a higher token than that of our lease, so another machine went on without us; if this \
             is said at every tick, another engine is asked than before",
            rfc3339(*tick)
        ),
        CronNotice::Lost(run) => {
            let machine = output::plain(run.machine.as_deref().unwrap_or("an unknown machine"));
            format!("tick {} was lost: {machine} did not finish it, and it is not repeated", rfc3339(run.tick))
        }
        CronNotice::Missed(missed) if missed.count == 1 => {
            format!("tick {} was missed: nobody began it", rfc3339(missed.from))
        }
        CronNotice::Missed(missed) => format!("{} were missed: nobody began them", range(missed)),
        CronNotice::Skipped(skipped) if skipped.count == 1 => {
            format!("tick {} was skipped: it came while a run was at work", rfc3339(skipped.from))
        }
        CronNotice::Skipped(skipped) => format!("{} were skipped: they came while a run was at work", range(skipped)),
        CronNotice::Unknown { tick } => {
            format!("tick {}: it is unknown whether the ledger has it, so it is not run", rfc3339(*tick))
        }
        _ => "the schedule goes on".to_owned(),
    }
}

fn range(ticks: &MissedTicks) -> String {
    format!("{} ticks from {} to {}", ticks.count, rfc3339(ticks.from), rfc3339(ticks.upto))
}

/// The error of a runner as the end of a command: with its exit code.
pub fn failure(error: CronError) -> anyhow::Error {
    match error {
        CronError::Lease(error) => error.into(),
        CronError::Ledger(error) => error.into(),
    }
}

/// The sentence of an error, for the ledger.
pub fn for_ledger(error: &anyhow::Error) -> (i32, String) {
    (i32::from(exit::code(error)), exit::sentence(error))
}
