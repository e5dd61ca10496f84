//! `leasehold queue pause`: hands out no more jobs, or does so again.

use clap::Args;
use leasehold_support::{exit, output};
use serde::Serialize;

use super::{QueuePlace, open_existing};

const EXAMPLE: &str = "\
Example:
  leasehold queue pause mail
  leasehold queue pause mail --resume

Jobs can still be pushed, and those that workers have are not affected.";

/// Hands out no jobs of a queue, until it is resumed
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub struct QueuePauseArgs {
    /// The queue
    #[arg(value_name = "Q")]
    queue: String,
    /// Hand out jobs again; sleeping workers notice within their poll
    #[arg(long)]
    resume: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: QueuePlace,
}

#[derive(Serialize)]
struct PausedJson<'a> {
    queue: &'a str,
    paused: bool,
}

impl QueuePauseArgs {
    pub async fn execute(self, engine_url: &str) -> anyhow::Result<u8> {
        let queue = open_existing(&self.place, engine_url, &self.queue).await?;
        let done = if self.resume { queue.resume().await } else { queue.pause().await };
        done?;
        if self.json {
            output::json(&PausedJson { queue: queue.name(), paused: !self.resume })?;
        }
        Ok(exit::DONE)
    }
}
