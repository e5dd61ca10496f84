//! ZooKeeper: the lock recipe. Create an ephemeral sequential node and list its siblings: the lowest one holds the
//! lock. Releasing deletes the node.
//!
//! The recipe needs a parent node per lock, which is created once. So each client uses one lock for the whole run, and
//! its parent is created before the load. A new lock for each pair would cost two more writes.

use std::time::Duration;

use anyhow::{Context, ensure};
use zookeeper_client::{Acls, CreateMode, CreateOptions};

use super::{PeerServer, unavailable};
use crate::bench::pair_load;

const SESSION_TIMEOUT: Duration = Duration::from_secs(30);

/// One connection, with its session and the parent node of its lock.
pub struct ZooKeeperClient {
    connection: zookeeper_client::Client,
    parent: String,
    /// The name of the held node, without its parent.
    held: String,
}

/// Connects the clients and creates their parent nodes.
pub async fn connect(peer: &PeerServer, count: usize) -> anyhow::Result<Vec<ZooKeeperClient>> {
    let cluster = peer.location.trim_end_matches('/');
    let mut clients = Vec::with_capacity(count);
    for number in 0..count {
        // Without it, connecting to a closed port never ends.
        let connector = zookeeper_client::Client::connector().with_session_timeout(SESSION_TIMEOUT).with_fail_eagerly();
        let connection = connector.connect(cluster).await.map_err(|cause| unavailable(peer, &cause))?;
        let parent = format!("/{}-{number}", pair_load::resource_prefix().replace('/', "-"));
        let made = connection.create(&parent, b"", &create_options(CreateMode::Persistent)).await;
        made.map_err(|cause| unavailable(peer, &cause))?;
        clients.push(ZooKeeperClient { connection, parent, held: String::new() });
    }
    Ok(clients)
}

fn create_options(mode: CreateMode) -> CreateOptions<'static> {
    mode.with_acls(Acls::anyone_all())
}

impl pair_load::LockClient for ZooKeeperClient {
    async fn acquire(&mut self, _name: &str) -> anyhow::Result<()> {
        let prefix = format!("{}/lock-", self.parent);
        let created = self.connection.create(&prefix, b"", &create_options(CreateMode::EphemeralSequential)).await;
        let (_, sequence) = created.context("create a node")?;
        self.held = format!("lock-{sequence}");
        let siblings = self.connection.list_children(&self.parent).await.context("list the siblings")?;
        let lowest = siblings.iter().min().is_some_and(|lowest| *lowest == self.held);
        ensure!(lowest, "somebody else holds a name of the bench");
        Ok(())
    }

    async fn release(&mut self) -> anyhow::Result<()> {
        let path = format!("{}/{}", self.parent, self.held);
        self.connection.delete(&path, None).await.context("delete the node")
    }

    async fn clean_up(self) -> anyhow::Result<()> {
        self.connection.delete(&self.parent, None).await.context("delete the parent node")
    }
}
