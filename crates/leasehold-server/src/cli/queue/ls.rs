//! `leasehold queue ls`: queues, and the hot keys of one.

use clap::Args;
use leasehold::recipe::queue::{HotKey, QueueStatus};
use leasehold_support::exit::{self, Failure};
use leasehold_support::output::Table;
use leasehold_support::{duration, output};
use serde::Serialize;

use super::{QueuePlace, open_existing};

/// How many keys are shown.
const SHOWN_KEYS: usize = 10;

const EXAMPLE: &str = "\
Example:
  leasehold queue ls
  leasehold queue ls orders --keys --json

READY waits and may be taken, DELAYED waits for its moment or for another try, TAKEN is with workers (by key: keys),
OLDEST is how long the first ready job has waited. Counts stop at 10000. --keys shows the ten keys with the most jobs.";

/// Lists queues, or the hot keys of one
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub struct QueueLsArgs {
    /// Only this queue
    #[arg(value_name = "Q")]
    queue: Option<String>,
    /// The keys with the most jobs
    #[arg(long)]
    keys: bool,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: QueuePlace,
}

#[derive(Serialize)]
struct QueueJson<'a> {
    queue: &'a str,
    by_key: bool,
    paused: bool,
    ready: u64,
    delayed: u64,
    taken: u64,
    retried: u64,
    dead: u64,
    oldest_ms: Option<u64>,
    sleepers: u64,
}

#[derive(Serialize)]
struct HotKeyJson<'a> {
    key: &'a str,
    jobs: u64,
    oldest_ms: u64,
}

impl QueueLsArgs {
    pub async fn execute(self, engine_url: &str) -> anyhow::Result<u8> {
        match (&self.queue, self.keys) {
            (None, true) => return Err(Failure::usage("--keys is about one queue: name it")),
            (Some(name), true) => {
                let queue = open_existing(&self.place, engine_url, name).await?;
                print_keys(&queue.hot_keys(SHOWN_KEYS).await?, self.json)?;
            }
            (Some(name), false) => {
                let queue = open_existing(&self.place, engine_url, name).await?;
                print_queues(&[queue.status().await?], self.json)?;
            }
            (None, false) => {
                let store = self.place.open(engine_url).await?;
                print_queues(&store.queues().await?, self.json)?;
            }
        }
        Ok(exit::DONE)
    }
}

fn print_queues(queues: &[QueueStatus], json: bool) -> anyhow::Result<()> {
    if json {
        return queues.iter().try_for_each(|queue| {
            output::json(&QueueJson {
                queue: &queue.name,
                by_key: queue.by_key,
                paused: queue.paused,
                ready: queue.ready,
                delayed: queue.delayed,
                taken: queue.taken,
                retried: queue.retried,
                dead: queue.dead,
                oldest_ms: queue.oldest.map(duration::millis),
                sleepers: queue.sleepers,
            })
        });
    }
    let mut table = Table::new(&["QUEUE", "KIND", "READY", "DELAYED", "TAKEN", "RETRIED", "DEAD", "OLDEST"]);
    for queue in queues {
        let kind = match (queue.by_key, queue.paused) {
            (false, false) => "plain",
            (true, false) => "by key",
            (false, true) => "plain, paused",
            (true, true) => "by key, paused",
        };
        let counts = [queue.ready, queue.delayed, queue.taken, queue.retried, queue.dead].map(|n| n.to_string());
        let oldest = queue.oldest.map_or_else(|| "-".to_owned(), duration::brief);
        table.row([vec![queue.name.clone(), kind.to_owned()], counts.to_vec(), vec![oldest]].concat());
    }
    table.print()
}

fn print_keys(keys: &[HotKey], json: bool) -> anyhow::Result<()> {
    if json {
        return keys.iter().try_for_each(|key| {
            output::json(&HotKeyJson { key: &key.key, jobs: key.jobs, oldest_ms: duration::millis(key.oldest) })
        });
    }
    let mut table = Table::new(&["KEY", "JOBS", "OLDEST"]);
    for key in keys {
        table.row([key.key.clone(), key.jobs.to_string(), duration::brief(key.oldest)]);
    }
    table.print()
}
