//! `leasehold cron rm`: forgets a schedule that was given up.

use clap::Args;
use leasehold_support::exit;

use super::CronPlace;
use super::history::unknown;

const EXAMPLE: &str = "\
Example:
  leasehold cron rm report --store postgres://app@db/shop

Removes the schedule and its history from the ledger: it is not overdue any more. Stop its machines first: one that still runs
begins the schedule anew. A server does not do it: name the store of the server itself.";

/// Forgets a schedule that was given up, with its history
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub struct CronRmArgs {
    /// The schedule
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    place: CronPlace,
}

impl CronRmArgs {
    pub async fn execute(self, engine_url: &str) -> anyhow::Result<u8> {
        let store = self.place.open(engine_url).await?;
        let removed = store.cron_remove(&self.name).await?;
        store.close().await;
        if removed { Ok(exit::DONE) } else { Err(unknown(&self.name)) }
    }
}
