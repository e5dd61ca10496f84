//! `leasehold cron ls`: every schedule, its last run and its next tick.

use std::time::{Duration, SystemTime};

use clap::Args;
use leasehold::recipe::cron::{CronRun, CronSchedule, next_tick, rfc3339};
use leasehold_support::duration::millis;
use leasehold_support::output::Table;
use leasehold_support::{exit, output};
use serde::Serialize;

use super::{CronPlace, wall_now};

/// How many schedules are shown.
const MAX_SHOWN: u32 = 10_000;

const EXAMPLE: &str = "\
Example:
  leasehold cron ls
  leasehold cron ls --json --store postgres://app@db/shop

STATE is that of the last row: ok, failed, running, lost, missed or skipped; overdue: a tick came that nobody began, and it
is too late to begin it (half of the time to the next tick, at most 1h). The schedule ends with its time zone; times
are in UTC. A schedule is known once its first tick was begun.";

/// Lists schedules, their last runs and their next ticks
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub struct CronLsArgs {
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: CronPlace,
}

#[derive(Serialize)]
struct ScheduleJson<'a> {
    name: &'a str,
    schedule: &'a str,
    last_tick: String,
    state: Option<&'static str>,
    machine: Option<&'a str>,
    code: Option<i32>,
    token: String,
    next: Option<String>,
    overdue_ms: Option<u64>,
}

impl CronLsArgs {
    pub async fn execute(self, engine_url: &str) -> anyhow::Result<u8> {
        let store = self.place.open(engine_url).await?;
        let now = wall_now();
        let mut table = Table::new(&["NAME", "SCHEDULE", "LAST TICK", "STATE", "MACHINE", "NEXT"]);
        for schedule in store.cron_schedules(MAX_SHOWN).await? {
            let last = store.cron_runs(&schedule.name, 1).await?.into_iter().next();
            if self.json {
                output::json(&as_json(&schedule, last.as_ref(), now))?;
            } else {
                table.row(as_row(&schedule, last.as_ref(), now));
            }
        }
        store.close().await;
        if !self.json {
            table.print()?;
        }
        Ok(exit::DONE)
    }
}

/// None: the text is of a version that we do not know.
fn next_text(schedule: &CronSchedule, now: SystemTime) -> Option<String> {
    next_tick(&schedule.spec, now).ok().flatten().map(rfc3339)
}

fn overdue(schedule: &CronSchedule, last: Option<&CronRun>, now: SystemTime) -> Option<Duration> {
    schedule.overdue(last, now).ok().flatten()
}

fn as_json<'a>(schedule: &'a CronSchedule, last: Option<&'a CronRun>, now: SystemTime) -> ScheduleJson<'a> {
    ScheduleJson {
        name: &schedule.name,
        schedule: &schedule.spec,
        last_tick: rfc3339(schedule.last_tick),
        state: last.map(|run| run.state.as_str()),
        machine: last.and_then(|run| run.machine.as_deref()),
        code: last.and_then(|run| run.code),
        token: schedule.token.to_string(),
        next: next_text(schedule, now),
        overdue_ms: overdue(schedule, last, now).map(millis),
    }
}

fn as_row(schedule: &CronSchedule, last: Option<&CronRun>, now: SystemTime) -> [String; 6] {
    let dash = || "-".to_owned();
    let mut state = match last {
        Some(CronRun { state, code: Some(code), .. }) if *code != 0 => format!("{} ({code})", state.as_str()),
        Some(run) => run.state.as_str().to_owned(),
        None => dash(),
    };
    if overdue(schedule, last, now).is_some() {
        state.push_str(", overdue");
    }
    let machine = last.and_then(|run| run.machine.clone()).unwrap_or_else(dash);
    let next = next_text(schedule, now).unwrap_or_else(dash);
    [schedule.name.clone(), schedule.spec.clone(), rfc3339(schedule.last_tick), state, machine, next]
}
