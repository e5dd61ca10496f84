//! `leasehold revoke`: ends every lease on a resource, by an operator's order.

use clap::Args;

use super::target::Target;
use leasehold_support::exit::Failure;
use leasehold_support::{exit, output};

const EXAMPLE: &str = "\
Example:
  leasehold revoke nightly-report --reason 'host db-3 is gone, ticket 4711'

The old holder is not stopped by this: the fence at the resource refuses its token.";

/// Ends every lease on a resource, whoever holds it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub struct RevokeArgs {
    /// The resource.
    #[arg(value_name = "NAME")]
    name: String,
    /// Why, for the record.
    #[arg(long, value_name = "TEXT")]
    reason: String,
}

impl RevokeArgs {
    /// Revokes, and says how many leases that ended.
    pub async fn execute(self, target: &Target) -> anyhow::Result<u8> {
        if self.reason.trim().is_empty() {
            return Err(Failure::usage("a revoke wants its reason: say --reason TEXT"));
        }
        let client = target.open().await?;
        let ended = client.revoke(&self.name, &self.reason).await?;
        client.close().await?;
        let name = output::plain(&self.name);
        output::line(match ended {
            0 => format!("nothing to revoke: {name} is free"),
            1 => format!("revoked 1 lease on {name}"),
            n => format!("revoked {n} leases on {name}"),
        })?;
        Ok(exit::DONE)
    }
}
