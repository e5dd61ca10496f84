//! `leasehold inspect`: one resource, its holders and its queue. Never a lease_id.

use clap::Args;
use leasehold::engine::Resource;

use super::target::Target;
use crate::api::leases::{self, ResourceJson};
use leasehold_support::{duration, exit, output};

const EXAMPLE: &str = "\
Example:
  leasehold inspect seat-14
  leasehold inspect seat-14 --json | jq -r '.holders[0].token'";

/// Shows who holds a resource and who waits for it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub struct InspectArgs {
    /// The resource.
    #[arg(value_name = "NAME")]
    name: String,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

impl InspectArgs {
    /// Prints what is known of the resource. A free one is an answer, not an error.
    pub async fn execute(self, target: &Target) -> anyhow::Result<u8> {
        let client = target.open().await?;
        let found = client.inspect(&self.name).await?;
        client.close().await?;
        match found {
            Some(resource) if self.json => output::json(&ResourceJson::from(resource))?,
            None if self.json => output::json(&ResourceJson::free(self.name))?,
            Some(resource) => print_resource(&resource)?,
            None => output::line(format!("{} is free", output::plain(&self.name)))?,
        }
        Ok(exit::DONE)
    }
}

fn print_resource(resource: &Resource) -> anyhow::Result<()> {
    let name = output::plain(&resource.name);
    output::line(format!("{name}: {}, {} waiting", leases::mode_word(resource.mode), resource.queue_len))?;
    for holding in &resource.holders {
        let token = holding.token.map_or_else(String::new, |token| format!(", token {token}"));
        let (since, left) = (duration::brief(holding.since), duration::brief(holding.remaining));
        output::line(format!("  held by {}{token}, for {since}, {left} left", output::plain(&holding.holder)))?;
    }
    let hidden = resource.holders_total.saturating_sub(resource.holders.len());
    if hidden > 0 {
        output::line(format!("  and by {hidden} more"))?;
    }
    for waiting in &resource.waiters {
        let waited = duration::brief(waiting.waiting);
        output::line(format!("  awaited by {}, for {waited}", output::plain(&waiting.holder)))?;
    }
    Ok(())
}
