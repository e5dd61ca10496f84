//! The embedded engine as a [`LockClient`]: in this process, through the library.

use anyhow::Context;
use leasehold::{LeaseId, Leasehold};

use super::pair_load::{LEASE_TTL, LockClient};

/// One client of the embedded engine.
pub struct EmbeddedClient {
    client: Leasehold,
    holder: String,
    held: Option<LeaseId>,
}

/// Creates `count` clients of one engine.
pub fn new_clients(client: &Leasehold, count: usize) -> Vec<EmbeddedClient> {
    let new_client =
        |number| EmbeddedClient { client: client.clone(), holder: format!("bench client {number}"), held: None };
    (0..count).map(new_client).collect()
}

impl LockClient for EmbeddedClient {
    async fn acquire(&mut self, name: &str) -> anyhow::Result<()> {
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
