//! etcd: one `Txn` puts the key under the client's lease if it does not exist, another deletes it.

mod rpc;

use anyhow::{Context, ensure};

use self::rpc::{Compare, EtcdChannel, LeaseGrantRequest, LeaseRevokeRequest, RequestOp, TxnRequest};
use super::{PeerServer, unavailable, unique_owner};
use crate::bench::pair_load;

/// Longer than any bench: the lease is granted once, before the load, and not kept alive.
const LEASE_TTL_SECONDS: i64 = 24 * 3600;

/// One channel with its lease.
pub struct EtcdClient {
    connection: EtcdChannel,
    lease: i64,
    owner: String,
    /// Name and revision of the held key.
    held: (String, i64),
}

/// Connects the clients, each with a channel and a lease of its own.
pub async fn connect(peer: &PeerServer, count: usize) -> anyhow::Result<Vec<EtcdClient>> {
    let location = peer.location.trim_end_matches('/');
    let endpoints: Vec<String> = location.split(',').map(|location| format!("http://{location}")).collect();
    let mut clients = Vec::with_capacity(count);
    for number in 0..count {
        let (connection, lease) =
            open_channel(&endpoints, url_user(&peer.url)).await.map_err(|cause| unavailable(peer, &cause))?;
        clients.push(EtcdClient { connection, lease, owner: unique_owner(number), held: Default::default() });
    }
    Ok(clients)
}

/// Opens a channel, authenticates if there is a user, and grants a lease.
async fn open_channel(endpoints: &[String], user: Option<(&str, &str)>) -> anyhow::Result<(EtcdChannel, i64)> {
    let mut connection = EtcdChannel::new(endpoints)?;
    if let Some((name, password)) = user {
        connection.authenticate(name, password).await?;
    }
    let lease = connection.call(LeaseGrantRequest { ttl: LEASE_TTL_SECONDS }).await?.id;
    Ok((connection, lease))
}

/// User and password of the URL, if it has both.
fn url_user(url: &str) -> Option<(&str, &str)> {
    let (userinfo, _) = url.strip_prefix("etcd://")?.rsplit_once('@')?;
    userinfo.split_once(':')
}

impl pair_load::LockClient for EtcdClient {
    async fn acquire(&mut self, name: &str) -> anyhow::Result<()> {
        let free = Compare::created_at(name, 0);
        let put = RequestOp::put(name, &self.owner, self.lease);
        let txn = TxnRequest { compare: vec![free], success: vec![put] };
        let done = self.connection.call(txn).await.context("acquire by Txn")?;
        ensure!(done.succeeded, "somebody else holds a name of the bench");
        let revision = done.header.map(|header| header.revision).context("an answer has a revision")?;
        self.held = (name.to_owned(), revision);
        Ok(())
    }

    async fn release(&mut self) -> anyhow::Result<()> {
        let (name, revision) = std::mem::take(&mut self.held);
        let ours = Compare::created_at(&name, revision);
        let txn = TxnRequest { compare: vec![ours], success: vec![RequestOp::delete(&name)] };
        let done = self.connection.call(txn).await.context("release by Txn")?;
        ensure!(done.succeeded, "a lock of the bench was lost");
        Ok(())
    }

    async fn clean_up(mut self) -> anyhow::Result<()> {
        self.connection.call(LeaseRevokeRequest { id: self.lease }).await.context("revoke the lease of the bench")?;
        Ok(())
    }
}
