//! `leasehold ls`: what is held, by whom, and who waits. Never a lease_id.

use clap::Args;

use super::target::Target;
use super::view;
use crate::api::leases::ResourceJson;
use leasehold_support::output::Table;
use leasehold_support::{exit, output};

const EXAMPLE: &str = "\
Example:
  leasehold ls seat-
  leasehold ls --json | jq -r 'select(.queue_len > 0) | .name'";

/// Lists the resources in use, in order of name.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub struct LsArgs {
    /// Only names that begin so.
    #[arg(default_value = "")]
    prefix: String,
    /// Print one JSON object per line.
    #[arg(long)]
    json: bool,
}

impl LsArgs {
    /// Prints the resources in use.
    pub async fn execute(self, target: &Target) -> anyhow::Result<u8> {
        let client = target.open().await?;
        let resources = client.list(&self.prefix).await?;
        client.close().await?;
        if self.json {
            resources.into_iter().try_for_each(|resource| output::json(&ResourceJson::from(resource)))?;
        } else if resources.is_empty() {
            output::say("nothing is held");
        } else {
            let mut table = Table::new(&view::RESOURCE_HEADINGS);
            resources.iter().flat_map(view::resource_rows).for_each(|row| table.row(row));
            table.print()?;
        }
        Ok(exit::DONE)
    }
}
