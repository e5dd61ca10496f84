//! `leasehold release`: ends a lease, by its owner.

use clap::Args;

use super::secret;
use super::target::Target;
use leasehold_support::{exit, output};

const EXAMPLE: &str = "\
Example:
  leasehold release - <<<\"$LEASE_ID\"

Releasing twice is harmless. A lease that lapsed or was revoked before answers exit code 7.";

/// Ends a lease: the resource is free for the next in line.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub struct ReleaseArgs {
    /// What acquire printed, or - to read it from stdin: it is a secret.
    #[arg(value_name = "LEASE_ID", allow_hyphen_values = true)]
    lease_id: String,
}

impl ReleaseArgs {
    /// Releases, and says whether this call did it.
    pub async fn execute(self, target: &Target) -> anyhow::Result<u8> {
        let lease_id = secret::read_lease_id(&self.lease_id)?;
        let client = target.open().await?;
        let ended = client.release(&lease_id).await?;
        client.close().await?;
        output::line(if ended { "released" } else { "had been released before" })?;
        Ok(exit::DONE)
    }
}
