//! etcd: one `Txn` that puts the key under the client's lease if it is not there, and one that deletes it.

use anyhow::{Context, ensure};
use etcd_client::{Compare, CompareOp, ConnectOptions, PutOptions, Txn, TxnOp};

use super::{Peer, owner, silent};
use crate::cli::bench::load;

/// Longer than the bench: the lease is granted once, before the load, and not kept alive.
const LEASE_SECONDS: i64 = 24 * 3600;

/// One connection, with its lease.
pub struct Client {
    connection: etcd_client::Client,
    lease: i64,
    owner: String,
    /// Name and revision of what is held.
    held: (String, i64),
}

/// Connects the clients, each with a channel and a lease of its own.
pub async fn connect(peer: &Peer, count: usize) -> anyhow::Result<Vec<Client>> {
    let place = peer.shown.strip_prefix("etcd://").unwrap_or(&peer.shown).trim_end_matches('/');
    let endpoints: Vec<String> = place.split(',').map(|place| format!("http://{place}")).collect();
    let mut clients = Vec::with_capacity(count);
    for number in 0..count {
        let connected = etcd_client::Client::connect(&endpoints, options(&peer.url)).await;
        let mut connection = connected.map_err(|cause| silent(peer, &cause))?;
        let lease = connection.lease_grant(LEASE_SECONDS, None).await.map_err(|cause| silent(peer, &cause))?.id();
        clients.push(Client { connection, lease, owner: owner(number), held: Default::default() });
    }
    Ok(clients)
}

/// The user of the URL, where it has one.
fn options(url: &str) -> Option<ConnectOptions> {
    let (userinfo, _) = url.strip_prefix("etcd://")?.rsplit_once('@')?;
    let (user, password) = userinfo.split_once(':')?;
    Some(ConnectOptions::new().with_user(user, password))
}

impl load::Client for Client {
    async fn acquire(&mut self, name: &str) -> anyhow::Result<()> {
        let put = TxnOp::put(name, self.owner.as_str(), Some(PutOptions::new().with_lease(self.lease)));
        let free = Compare::create_revision(name, CompareOp::Equal, 0);
        let done = self.connection.txn(Txn::new().when([free]).and_then([put])).await.context("acquire by Txn")?;
        ensure!(done.succeeded(), "somebody else holds a name of the bench");
        let revision = done.header().map(etcd_client::ResponseHeader::revision).context("an answer has a revision")?;
        self.held = (name.to_owned(), revision);
        Ok(())
    }

    async fn release(&mut self) -> anyhow::Result<()> {
        let (name, revision) = std::mem::take(&mut self.held);
        let ours = Compare::create_revision(name.as_str(), CompareOp::Equal, revision);
        let delete = TxnOp::delete(name, None);
        let done = self.connection.txn(Txn::new().when([ours]).and_then([delete])).await.context("release by Txn")?;
        ensure!(done.succeeded(), "a lock of the bench was lost");
        Ok(())
    }

    async fn leave(mut self) -> anyhow::Result<()> {
        self.connection.lease_revoke(self.lease).await.context("revoke the lease of the bench")?;
        Ok(())
    }
}
