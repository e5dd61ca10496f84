//! An engine as a [`LockClient`]: through the library, in this process.

use anyhow::Context;
use leasehold::{LeaseId, Leasehold};

use super::pair_load::{LEASE_TTL, LockClient};

/// One client of an engine.
pub struct EngineClient {
    client: Leasehold,
    holder: String,
    /// Takes one name for all pairs, instead of a new one for each.
    same_name: bool,
    held: Option<LeaseId>,
}

/// Creates `count` clients of one engine.
pub fn new_clients(client: &Leasehold, count: usize, same_name: bool) -> Vec<EngineClient> {
    let new_client = |number| EngineClient {
        client: client.clone(),
        holder: format!("bench client {number}"),
        same_name,
        held: None,
    };
    (0..count).map(new_client).collect()
}

impl LockClient for EngineClient {
    async fn acquire(&mut self, name: &str) -> anyhow::Result<()> {
        // The last part counts the pairs.
        let name = if self.same_name { name.rsplit_once('/').map_or(name, |(client, _)| client) } else { name };
        let claim = self.client.acquire(name).ttl(LEASE_TTL).holder(self.holder.as_str());
        self.held = Some(claim.grant().await?.lease_id);
        Ok(())
    }

    async fn release(&mut self) -> anyhow::Result<()> {
        let held = self.held.take().context("release what was acquired")?;
        self.client.release(&held).await?;
        Ok(())
    }
}
