//! `leasehold fence remove`: takes the fence of a table away.

use clap::Args;
use leasehold::fence::{postgres, sqlite};
use leasehold_support::{exit, output};

use super::database::{DatabaseArg, FencedDatabase};
use super::fence_failure;

const EXAMPLE: &str = "\
Example:
  leasehold fence remove --url postgres://owner@db/shop --table seats

What the fence remembers stays, and a later install knows it. --forget drops it: from then on every old holder could write
again.";

/// Takes the fence of a table away. What it remembers stays.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub struct FenceRemoveArgs {
    #[command(flatten)]
    database: DatabaseArg,
    /// The table.
    #[arg(long, value_name = "TABLE")]
    table: String,
    /// Also forget the tokens that it has seen.
    #[arg(long)]
    forget: bool,
}

impl FenceRemoveArgs {
    /// Removes the fence.
    pub async fn execute(self) -> anyhow::Result<u8> {
        let (table, forgotten) = match self.database.parse()? {
            FencedDatabase::Postgres(url) => {
                let mut client = postgres::connect(&url).await.map_err(fence_failure)?;
                let removed = postgres::remove(&mut client, &self.table, self.forget).await.map_err(fence_failure)?;
                (removed.table, removed.forgotten)
            }
            FencedDatabase::Sqlite(path) => {
                let mut connection = sqlite::connect(&path).map_err(fence_failure)?;
                let forgotten = sqlite::remove(&mut connection, &self.table, self.forget).map_err(fence_failure)?;
                (self.table, forgotten)
            }
        };
        let memory = match (self.forget, forgotten) {
            (true, true) => "its memory is gone",
            (true, false) => "what it remembers stays: another fenced table may have the same resources",
            (false, _) => "what it remembers stays",
        };
        output::line(format!("{} is not fenced any more, {memory}", output::plain(&table)))?;
        Ok(exit::DONE)
    }
}
