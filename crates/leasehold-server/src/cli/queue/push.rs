//! `leasehold queue push`: one job into a queue.

use std::io::Read as _;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use leasehold::recipe::queue::MAX_JOB_BYTES;
use leasehold_support::{duration, exit, output};
use serde::Serialize;

use super::{QueuePlace, open_or_make};

const EXAMPLE: &str = "\
Example:
  leasehold queue push mail '{\"to\": \"ada\"}'
  leasehold queue push mail - --delay 5m < job.json
  leasehold queue push orders '{\"item\": 3}' --key customer-7

Prints the id of the job. A plain queue is made if there is none of this name. With --dedupe a job of the same id that
still waits stands for this one: its id is printed.";

/// Pushes a job
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub struct QueuePushArgs {
    /// The queue
    #[arg(value_name = "Q")]
    queue: String,
    /// The job, as JSON; - reads it from stdin: up to 1 MiB
    #[arg(value_name = "JSON", allow_hyphen_values = true)]
    job: String,
    /// Not before so long from now
    #[arg(long, value_name = "D", default_value = "0s", value_parser = duration::parse, allow_hyphen_values = true)]
    delay: Duration,
    /// The key, of a queue by key
    #[arg(long, value_name = "K")]
    key: Option<String>,
    /// One job of this id at a time
    #[arg(long, value_name = "ID")]
    dedupe: Option<String>,
    /// The level of priority: one of the queue's
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    priority: Option<i16>,
    /// Print one JSON object: job_id, and whether the job is new
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: QueuePlace,
}

#[derive(Serialize)]
struct PushedJson {
    job_id: String,
    fresh: bool,
}

impl QueuePushArgs {
    pub async fn execute(self, engine_url: &str) -> anyhow::Result<u8> {
        let text = if self.job == "-" { read_stdin()? } else { self.job };
        let store = self.place.open(engine_url).await?;
        let queue = open_or_make(&store, &self.queue).await?;
        let mut push = queue.push_json(&text).delay(self.delay);
        if let Some(key) = &self.key {
            push = push.key(key);
        }
        if let Some(id) = &self.dedupe {
            push = push.dedupe(id);
        }
        if let Some(level) = self.priority {
            push = push.priority(level);
        }
        let pushed = push.await?;
        if self.json {
            output::json(&PushedJson { job_id: pushed.job_id.to_string(), fresh: pushed.fresh })?;
        } else {
            output::line(pushed.job_id.to_string())?;
        }
        Ok(exit::DONE)
    }
}

fn read_stdin() -> anyhow::Result<String> {
    let mut text = String::new();
    // One more than the limit, so that the limit is what refuses it.
    let limit = u64::try_from(MAX_JOB_BYTES).unwrap_or(u64::MAX).saturating_add(1);
    std::io::stdin().take(limit).read_to_string(&mut text).context("read the job from stdin")?;
    Ok(text)
}
