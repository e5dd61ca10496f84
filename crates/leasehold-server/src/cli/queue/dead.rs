//! `leasehold queue dead`, `retry` and `drop`: dead letters, and what becomes of them.

use clap::Args;
use leasehold::recipe::RecipeError;
use leasehold::recipe::queue::Queue;
use leasehold_support::exit::{self, Failure};
use leasehold_support::output::Table;
use leasehold_support::{duration, output};
use serde::Serialize;

use super::{QueuePlace, open_existing};

const DEAD_EXAMPLE: &str = "\
Example:
  leasehold queue dead mail
  leasehold queue dead mail --json --limit 1000

The newest first. A job becomes a dead letter when it was tried as often as its queue allows, or when its command ends
with code 65.";

const RETRY_EXAMPLE: &str = "\
Example:
  leasehold queue retry mail 17 23
  leasehold queue retry mail --all

They wait again as new jobs, at the end of their key where the queue is by key. Prints how many. Exit code 7 if an id is
no dead letter of the queue; with --all, 3 if some stay dead because their dedupe ids are in use.";

const DROP_EXAMPLE: &str = "\
Example:
  leasehold queue drop mail 17 23

Removes dead letters for good. Prints how many. Exit code 7 if an id is no dead letter of the queue.";

/// How many dead letters `retry --all` reads in one go: each may have 1 MiB.
const READ_AT_ONCE: usize = 100;
/// How many it revives in one go.
const REVIVED_AT_ONCE: usize = 1000;

/// Lists dead letters
#[derive(Debug, Args)]
#[command(after_help = DEAD_EXAMPLE)]
pub struct QueueDeadArgs {
    /// The queue
    #[arg(value_name = "Q")]
    queue: String,
    /// How many at most
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: QueuePlace,
}

/// Dead letters wait again
#[derive(Debug, Args)]
#[command(after_help = RETRY_EXAMPLE)]
pub struct QueueRetryArgs {
    /// The queue
    #[arg(value_name = "Q")]
    queue: String,
    /// The jobs, as `dead` shows them
    #[arg(value_name = "ID", required_unless_present = "all")]
    jobs: Vec<i64>,
    /// All dead letters of the queue
    #[arg(long, conflicts_with = "jobs")]
    all: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: QueuePlace,
}

/// Removes dead letters
#[derive(Debug, Args)]
#[command(after_help = DROP_EXAMPLE)]
pub struct QueueDropArgs {
    /// The queue
    #[arg(value_name = "Q")]
    queue: String,
    /// The jobs, as `dead` shows them
    #[arg(value_name = "ID", required = true)]
    jobs: Vec<i64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: QueuePlace,
}

#[derive(Serialize)]
struct RevivedJson {
    revived: u64,
    kept: u64,
}

#[derive(Serialize)]
struct DroppedJson {
    dropped: u64,
}

#[derive(Serialize)]
struct DeadJobJson<'a> {
    job_id: String,
    attempt: u16,
    key: Option<&'a str>,
    error: Option<&'a str>,
    age_ms: u64,
    dead_ms: u64,
    body: serde_json::Value,
}

impl QueueDeadArgs {
    pub async fn execute(self, engine_url: &str) -> anyhow::Result<u8> {
        let queue = open_existing(&self.place, engine_url, &self.queue).await?;
        let letters = queue.dead(self.limit).await?;
        if self.json {
            for letter in &letters {
                output::json(&DeadJobJson {
                    job_id: letter.job_id.to_string(),
                    attempt: letter.attempt,
                    key: letter.key.as_deref(),
                    error: letter.error.as_deref(),
                    age_ms: duration::millis(letter.age),
                    dead_ms: duration::millis(letter.dead_for),
                    body: serde_json::from_str(&letter.body)?,
                })?;
            }
            return Ok(exit::DONE);
        }
        let mut table = Table::new(&["JOB", "TRIES", "DEAD FOR", "KEY", "WHY", "BODY"]);
        for letter in letters {
            table.row([
                letter.job_id.to_string(),
                letter.attempt.to_string(),
                duration::brief(letter.dead_for),
                letter.key.unwrap_or_else(|| "-".into()),
                letter.error.unwrap_or_else(|| "-".into()),
                letter.body,
            ]);
        }
        table.print()?;
        Ok(exit::DONE)
    }
}

impl QueueRetryArgs {
    pub async fn execute(self, engine_url: &str) -> anyhow::Result<u8> {
        let queue = open_existing(&self.place, engine_url, &self.queue).await?;
        if !self.all {
            let revived = queue.retry(&self.jobs).await?;
            let kept = count_missing(revived, self.jobs.len());
            report(self.json, &RevivedJson { revived, kept }, revived)?;
            return end_of_named(kept, ", or their dedupe ids are in use");
        }
        let jobs = all_dead(&queue).await?;
        let mut revived = 0;
        for some in jobs.chunks(REVIVED_AT_ONCE) {
            revived += queue.retry(some).await?;
        }
        let kept = count_missing(revived, jobs.len());
        report(self.json, &RevivedJson { revived, kept }, revived)?;
        match kept {
            0 => Ok(exit::DONE),
            kept => Err(Failure::coded(exit::HELD, format!("{kept} stay dead: their dedupe ids are in use"))),
        }
    }
}

/// The ids of all dead letters, in the order in which they were pushed. What dies while they are revived is not among them.
async fn all_dead(queue: &Queue) -> Result<Vec<i64>, RecipeError> {
    let (mut jobs, mut below) = (Vec::new(), i64::MAX);
    loop {
        let page = queue.dead_below(below, READ_AT_ONCE).await?;
        let Some(lowest) = page.last() else { break };
        below = lowest.job_id;
        jobs.extend(page.iter().map(|letter| letter.job_id));
    }
    jobs.reverse();
    Ok(jobs)
}

impl QueueDropArgs {
    pub async fn execute(self, engine_url: &str) -> anyhow::Result<u8> {
        let queue = open_existing(&self.place, engine_url, &self.queue).await?;
        let dropped = queue.drop_dead(&self.jobs).await?;
        report(self.json, &DroppedJson { dropped }, dropped)?;
        end_of_named(count_missing(dropped, self.jobs.len()), "")
    }
}

/// How many of those that were named were not met.
fn count_missing(met: u64, named: usize) -> u64 {
    u64::try_from(named).unwrap_or(u64::MAX).saturating_sub(met)
}

/// Prints how many, or the whole answer.
fn report(json: bool, answer: &impl Serialize, count: u64) -> anyhow::Result<()> {
    if json { output::json(answer) } else { output::line(count.to_string()) }
}

/// Fails if some that were named are not there. `or`: what else may be the reason.
fn end_of_named(missing: u64, or: &str) -> anyhow::Result<u8> {
    match missing {
        0 => Ok(exit::DONE),
        missing => Err(Failure::coded(exit::STALE, format!("{missing} of them are no dead letters of this queue{or}"))),
    }
}
