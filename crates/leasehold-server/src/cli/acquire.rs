//! `leasehold acquire`: takes a lease and says its id, for scripts that renew and release by hand.

use std::time::Duration;

use clap::Args;
use leasehold::Leasehold;
use leasehold::engine::Grant;

use super::target::Target;
use crate::api::leases::GrantJson;
use leasehold_support::exit::Failure;
use leasehold_support::{duration, exit, output, signals};

const EXAMPLE: &str = "\
Example:
  leasehold acquire seat-14 --ttl 10m --wait 5s
  leasehold acquire --shared catalogue
  leasehold acquire --permits 1 --capacity 4 render-slots
  LEASE_ID=$(leasehold acquire seat-14 --id-only) || exit

The lease_id is a secret: it proves that the lease is yours.";

/// Takes a lease on one or more resources, all or nothing.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub struct AcquireArgs {
    /// The resources wanted, all or nothing.
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// Asked life of the lease: 1ms to 24h.
    #[arg(long, default_value = "30s", value_parser = duration::parse, allow_hyphen_values = true)]
    ttl: Duration,
    /// How long to stand in line while it is held by another: up to 1h.
    #[arg(long, default_value = "0s", value_parser = duration::parse, allow_hyphen_values = true)]
    wait: Duration,
    /// Take it together with other readers.
    #[arg(long, conflicts_with_all = ["permits", "capacity"])]
    shared: bool,
    /// Take this many of the capacity.
    #[arg(long, value_name = "N", requires = "capacity")]
    permits: Option<u32>,
    /// How many permits there are; set by whoever comes first.
    #[arg(long, value_name = "M", requires = "permits")]
    capacity: Option<u32>,
    /// Renewals never push the end past this.
    #[arg(long, value_name = "D", value_parser = duration::parse, allow_hyphen_values = true)]
    max_hold: Option<Duration>,
    /// Keep the resource closed this long after a lapse (not after a release).
    #[arg(long, value_name = "D", value_parser = duration::parse, allow_hyphen_values = true)]
    delay: Option<Duration>,
    /// Public label of who holds it, for people.
    #[arg(long, value_name = "TEXT")]
    holder: Option<String>,
    /// Makes a retry harmless: the same id gives the same lease.
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,
    /// Print only the lease_id, for a shell variable.
    #[arg(long, conflicts_with = "json")]
    id_only: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

impl AcquireArgs {
    /// Takes the lease and prints it.
    pub async fn execute(self, target: &Target) -> anyhow::Result<u8> {
        let client = target.open().await?;
        let promises = client.promises();
        if !promises.outlives_process {
            client.close().await?;
            let engine = promises.engine;
            return Err(Failure::usage(format!(
                "a lease of the {engine} engine ends with the process that took it, and this command ends at once: use \
                 leasehold run, or ask a server"
            )));
        }
        // A grant with a request id is kept for a retry.
        let left = match self.request_id {
            Some(_) => "a lease may be held: repeat the command with the same request id to learn",
            None => signals::NOTHING_HELD,
        };
        let granted = signals::unless_interrupted(left, async { Ok(self.build_claim(&client).grant().await?) }).await;
        let done = match granted {
            Ok(grant) => self.hand_over(&client, &grant).await,
            Err(error) => Err(error),
        };
        // Also after an interrupted wait: closing finishes what the engine still has to take back.
        let closed = client.close().await;
        done?;
        closed?;
        Ok(exit::DONE)
    }

    fn build_claim(&self, client: &Leasehold) -> leasehold::Acquire {
        let mut claim = client.acquire_all(self.names.iter().cloned()).ttl(self.ttl).wait(self.wait);
        if self.shared {
            claim = claim.shared();
        }
        if let (Some(permits), Some(capacity)) = (self.permits, self.capacity) {
            claim = claim.permits(permits, capacity);
        }
        if let Some(max_hold) = self.max_hold {
            claim = claim.max_hold(max_hold);
        }
        if let Some(delay) = self.delay {
            claim = claim.delay(delay);
        }
        if let Some(holder) = &self.holder {
            claim = claim.holder(holder);
        }
        if let Some(id) = &self.request_id {
            claim = claim.request_id(id);
        }
        claim
    }

    /// Prints the grant. If nobody could read it, nobody could ever release it: give it back.
    async fn hand_over(&self, client: &Leasehold, grant: &Grant) -> anyhow::Result<()> {
        let Err(unread) = self.print_grant(grant) else {
            return Ok(());
        };
        client.release(&grant.lease_id).await?;
        let sentence = format!("the lease was released again, since nobody could read it: {}", exit::sentence(&unread));
        Err(Failure::coded(exit::UNEXPECTED, sentence))
    }

    fn print_grant(&self, grant: &Grant) -> anyhow::Result<()> {
        if self.json {
            return output::json(&GrantJson::new(grant, &self.names));
        }
        if self.id_only {
            return output::line(grant.lease_id.expose());
        }
        output::line(format!("lease_id   {}", grant.lease_id.expose()))?;
        if let Some(token) = grant.token {
            output::line(format!("token      {token}"))?;
        }
        output::line(format!("remaining  {}", duration::human(grant.remaining)))?;
        match grant.renewable {
            Some(renewable) => output::line(format!("renewable  {}", duration::human(renewable))),
            None => Ok(()),
        }
    }
}
