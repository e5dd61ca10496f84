//! `leasehold cron history`: what ran, where, and how it ended.

use std::time::{Duration, SystemTime};

use clap::Args;
use leasehold::recipe::cron::{CronRun, RunState, rfc3339};
use leasehold_support::exit::{self, Failure};
use leasehold_support::output::Table;
use leasehold_support::{duration, output, time};
use serde::Serialize;

use super::CronPlace;

const EXAMPLE: &str = "\
Example:
  leasehold cron history report
  leasehold cron history report --limit 1 --json | jq -r .tail

Newest first. LATE is how long after its tick a run began, TOOK how long it was at work. A row of several ticks (missed,
skipped) names the first; TICKS says how many. --json has the end of the output too, in `tail`.";

/// Shows the runs of a schedule, newest first
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub struct CronHistoryArgs {
    /// The schedule
    #[arg(value_name = "NAME")]
    name: String,
    /// How many rows
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: CronPlace,
}

#[derive(Serialize)]
struct RunJson<'a> {
    tick: String,
    upto: String,
    ticks: u32,
    state: &'static str,
    machine: Option<&'a str>,
    token: String,
    started_at: String,
    ended_at: Option<String>,
    code: Option<i32>,
    tail: Option<&'a str>,
}

impl CronHistoryArgs {
    pub async fn execute(self, engine_url: &str) -> anyhow::Result<u8> {
        let store = self.place.open(engine_url).await?;
        if store.cron_schedule(&self.name).await?.is_none() {
            return Err(unknown(&self.name));
        }
        let runs = store.cron_runs(&self.name, self.limit).await?;
        store.close().await;
        if self.json {
            runs.iter().try_for_each(|run| output::json(&as_json(run)))?;
            return Ok(exit::DONE);
        }
        let mut table = Table::new(&["TICK", "TICKS", "STATE", "CODE", "LATE", "TOOK", "MACHINE"]);
        for run in &runs {
            table.row(as_row(run));
        }
        table.print()?;
        Ok(exit::DONE)
    }
}

/// The end of a command about a schedule that the ledger does not know.
pub fn unknown(name: &str) -> anyhow::Error {
    let name = output::plain(name);
    Failure::usage(format!("the ledger knows no schedule {name}: it is known once its first tick was begun"))
}

fn as_json(run: &CronRun) -> RunJson<'_> {
    RunJson {
        tick: rfc3339(run.tick),
        upto: rfc3339(run.upto),
        ticks: run.ticks,
        state: run.state.as_str(),
        machine: run.machine.as_deref(),
        token: run.token.to_string(),
        started_at: moment(run.started_at),
        ended_at: run.ended_at.map(moment),
        code: run.code,
        tail: run.tail.as_deref(),
    }
}

fn as_row(run: &CronRun) -> [String; 7] {
    let dash = || "-".to_owned();
    let ran = !matches!(run.state, RunState::Missed | RunState::Skipped);
    let span = |from: SystemTime, to: SystemTime| to.duration_since(from).ok().map(duration::brief);
    let late = span(run.tick, run.started_at).filter(|_| ran);
    let took = run.ended_at.and_then(|ended| span(run.started_at, ended)).filter(|_| ran);
    [
        rfc3339(run.tick),
        run.ticks.to_string(),
        run.state.as_str().to_owned(),
        run.code.map_or_else(dash, |code| code.to_string()),
        late.unwrap_or_else(dash),
        took.unwrap_or_else(dash),
        run.machine.clone().unwrap_or_else(dash),
    ]
}

/// To the millisecond: only ticks are whole seconds.
fn moment(at: SystemTime) -> String {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    time::rfc3339_at(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
