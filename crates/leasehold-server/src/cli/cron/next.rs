//! `leasehold cron next`: the coming ticks of a schedule, and what changes of the local clock do to them.

use clap::Args;
use leasehold::recipe::cron::{ClockChange, Schedule, rfc3339};
use leasehold_support::{exit, output};
use serde::Serialize;

use super::history::unknown;
use super::notices::coming_year;
use super::{CronPlace, wall_now};

const EXAMPLE: &str = "\
Example:
  leasehold cron next report
  leasehold cron next --schedule \"30 2 * * *\" --tz Europe/Berlin --count 3

Ticks are printed in UTC. Changes of the local clock in the coming year that skip, move or repeat ticks are printed below
them. With --schedule nothing is asked: look at a schedule before it is used.";

/// Shows the coming ticks, and what summer time does to them
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub struct CronNextArgs {
    /// The schedule, as the ledger has it
    #[arg(value_name = "NAME", required_unless_present = "schedule")]
    name: Option<String>,
    /// These fields instead of a schedule of the ledger
    #[arg(long, value_name = "FIELDS", conflicts_with = "name")]
    schedule: Option<String>,
    /// The time zone of --schedule
    #[arg(long, value_name = "ZONE", default_value = "UTC", conflicts_with = "name")]
    tz: String,
    /// How many ticks
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    count: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: CronPlace,
}

#[derive(Serialize)]
struct NextJson<'a> {
    name: Option<&'a str>,
    schedule: &'a str,
    next: Vec<String>,
    clock_changes: Vec<ClockChangeJson>,
}

#[derive(Serialize)]
struct ClockChangeJson {
    at: String,
    effect: &'static str,
    count: usize,
    times: Vec<String>,
    text: String,
}

impl CronNextArgs {
    pub async fn execute(self, engine_url: &str) -> anyhow::Result<u8> {
        let schedule = self.find(engine_url).await?;
        let now = wall_now();
        let ticks = std::iter::successors(schedule.next_after(now), |tick| schedule.next_after(*tick));
        let next: Vec<String> = ticks.take(usize::try_from(self.count).unwrap_or(1)).map(rfc3339).collect();
        let changes = schedule.clock_changes(now, coming_year(now));
        if self.json {
            let clock_changes = changes.iter().map(as_json).collect();
            let (name, schedule) = (self.name.as_deref(), schedule.spec());
            output::json(&NextJson { name, schedule, next, clock_changes })?;
        } else {
            next.iter().try_for_each(output::line)?;
            for change in changes {
                output::line(format!("{} {change} ({})", rfc3339(change.at), schedule.zone()))?;
            }
        }
        Ok(exit::DONE)
    }

    async fn find(&self, engine_url: &str) -> anyhow::Result<Schedule> {
        let Some(name) = &self.name else {
            return Ok(Schedule::parse(self.schedule.as_deref().unwrap_or_default(), &self.tz)?);
        };
        let store = self.place.open(engine_url).await?;
        let known = store.cron_schedule(name).await?.ok_or_else(|| unknown(name))?;
        store.close().await;
        Ok(Schedule::from_spec(&known.spec)?)
    }
}

fn as_json(change: &ClockChange) -> ClockChangeJson {
    ClockChangeJson {
        at: rfc3339(change.at),
        effect: change.effect.word(),
        count: change.count,
        times: change.times.clone(),
        text: change.to_string(),
    }
}
