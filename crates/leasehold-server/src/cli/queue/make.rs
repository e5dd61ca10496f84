//! `leasehold queue make`: makes a queue with settings, or changes the settings of one.

use std::time::Duration;

use clap::Args;
use leasehold_support::{duration, exit, output};
use serde::Serialize;

use super::QueuePlace;

const EXAMPLE: &str = "\
Example:
  leasehold queue make mail --max-attempts 10 --visible 1m
  leasehold queue make orders --by-key
  leasehold queue make thumbnails --levels 1,5,9

Settings that are not named keep their value, or have their default in a new queue: 20 attempts, 30s, backoff 1s up to
1h, level 1. A queue is by key or plain for all its life.";

/// Makes a queue, or changes its settings
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub struct QueueMakeArgs {
    /// The queue
    #[arg(value_name = "Q")]
    queue: String,
    /// One worker per key, in order of arrival
    #[arg(long)]
    by_key: bool,
    /// By key: a job that is to be tried again does not hold up the others of its key
    #[arg(long, requires = "by_key", conflicts_with = "in_order")]
    any_order: bool,
    /// By key: a job that is to be tried again holds up the others of its key, as in a new queue
    #[arg(long, requires = "by_key")]
    in_order: bool,
    /// How often a job is tried before it is a dead letter: up to 1000
    #[arg(long, value_name = "N")]
    max_attempts: Option<u16>,
    /// How long a worker that died keeps its jobs: up to 12h
    #[arg(long, value_name = "D", value_parser = duration::parse, allow_hyphen_values = true)]
    visible: Option<Duration>,
    /// The span before the second try; it doubles with every further one
    #[arg(long, value_name = "D", value_parser = duration::parse, allow_hyphen_values = true)]
    backoff: Option<Duration>,
    /// The longest span between two tries
    #[arg(long, value_name = "D", value_parser = duration::parse, allow_hyphen_values = true)]
    backoff_cap: Option<Duration>,
    /// Levels of priority, at most 4, in the order in which they are served
    #[arg(long, value_name = "N,…", value_delimiter = ',', allow_hyphen_values = true)]
    levels: Vec<i16>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: QueuePlace,
}

#[derive(Serialize)]
struct MadeJson<'a> {
    queue: &'a str,
    by_key: bool,
}

impl QueueMakeArgs {
    pub async fn execute(self, engine_url: &str) -> anyhow::Result<u8> {
        let store = self.place.open(engine_url).await?;
        let mut queue = store.queue(&self.queue);
        if self.by_key {
            queue = queue.by_key();
        }
        if self.any_order || self.in_order {
            queue = queue.in_order(self.in_order);
        }
        if let Some(attempts) = self.max_attempts {
            queue = queue.max_attempts(attempts);
        }
        if let Some(visible) = self.visible {
            queue = queue.visible(visible);
        }
        if let Some(base) = self.backoff {
            queue = queue.backoff(base);
        }
        if let Some(cap) = self.backoff_cap {
            queue = queue.backoff_cap(cap);
        }
        if !self.levels.is_empty() {
            queue = queue.levels(&self.levels);
        }
        queue.open().await?;
        if self.json {
            output::json(&MadeJson { queue: &self.queue, by_key: self.by_key })?;
        }
        Ok(exit::DONE)
    }
}
