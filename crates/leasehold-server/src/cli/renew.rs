//! `leasehold renew`: pushes the end of a lease, with the same token.

use std::time::Duration;

use clap::Args;

use super::secret;
use super::target::Target;
use crate::api::leases::RenewalJson;
use leasehold_support::{duration, exit, output};

const EXAMPLE: &str = "\
Example:
  leasehold renew - --ttl 30s <<<\"$LEASE_ID\"

A lease that ended is never revived: exit code 7.";

/// Renews a lease: its end becomes now + ttl, within its cap.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub struct RenewArgs {
    /// What acquire printed, or - to read it from stdin: it is a secret.
    #[arg(value_name = "LEASE_ID", allow_hyphen_values = true)]
    lease_id: String,
    /// Asked life from now; the last ttl if none is given.
    #[arg(long, value_parser = duration::parse, allow_hyphen_values = true)]
    ttl: Option<Duration>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

impl RenewArgs {
    /// Renews, and prints how long the lease now lasts.
    pub async fn execute(self, target: &Target) -> anyhow::Result<u8> {
        let lease_id = secret::read_lease_id(&self.lease_id)?;
        let client = target.open().await?;
        let renewal = client.renew(&lease_id, self.ttl).await?;
        client.close().await?;
        if self.json {
            output::json(&RenewalJson::new(&renewal))?;
        } else {
            output::line(format!("remaining  {}", duration::human(renewal.remaining)))?;
        }
        Ok(exit::DONE)
    }
}
