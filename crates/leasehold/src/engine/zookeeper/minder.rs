//! Ends leases when their time is over: those of this process, and with minded leases those of processes that are gone.
//!
//! # Laws
//!
//! 1. Nothing is ended before its time, by this machine's clock, from what this process saw itself: exactly where the
//!    record is of this boot, and otherwise a whole ttl after its own look.
//! 2. A node is ended at the version that was looked at. Whoever renewed it meanwhile keeps it.
//! 3. The node of a request is forgotten only while it is of the lease that ended: its id may be in use again.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use zookeeper_client::{self as zk, Client};

use crate::clock::Time;
use crate::engine::Token;
use crate::engine::consensus::ended::HowEnded;
use crate::engine::consensus::lease_id::PublicId;

use super::lease_table::{LeaseNodes, MindedLease};
use super::node_set::{NodeChange, delete_nodes, write_nodes};
use super::owner::read_node;
use super::record::{NodeRecord, NodeState, RequestRecord, boot_text};
use super::shared::ZookeeperShared;

/// Ends under way at once: many leases may end in one moment.
const ENDS_AT_ONCE: usize = 64;
/// How long after a failure it is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(200);
/// How long the minder sleeps if nothing is due.
const IDLE: Duration = Duration::from_secs(3600);

/// Runs until the engine is closed.
pub(super) async fn run_minder(shared: Arc<ZookeeperShared>) {
    let places = Arc::new(Semaphore::new(ENDS_AT_ONCE));
    loop {
        let now = shared.now();
        let (leases, requests) = shared.table.due(now);
        for lease in leases {
            let Ok(place) = places.clone().acquire_owned().await else { return };
            let shared = shared.clone();
            let runtime = shared.runtime.clone();
            runtime.spawn(async move {
                end_if_due(&shared, &lease).await;
                drop(place);
            });
        }
        for (path, lease) in requests {
            let shared = shared.clone();
            let runtime = shared.runtime.clone();
            runtime.spawn(async move {
                if let Some(client) = shared.pool.connected(0) {
                    // One that stays is removed by whoever looks after those of processes that are gone.
                    let _ = forget_request(&client, &path, lease).await;
                }
            });
        }
        let next = shared.table.next().unwrap_or_else(|| now.plus(IDLE));
        tokio::select! {
            () = shared.closed.cancelled() => return,
            () = shared.table.sooner.notified() => {}
            () = shared.options.clock.sleep_until(next) => {}
        }
    }
}

/// Deletes the node of a request, unless another acquire has made it anew: each process that saw the lease end comes here,
/// and the first of them deletes it.
async fn forget_request(client: &Client, path: &str, lease: PublicId) -> Result<(), zk::Error> {
    let Some((data, stat)) = read_node(client, path).await? else { return Ok(()) };
    let of = RequestRecord::parse(&data).and_then(|record| record.lease(Token::MIN));
    if of.is_some_and(|of| ZookeeperShared::public_id(&of) == lease) {
        client.delete(path, Some(stat.version)).await?;
    }
    Ok(())
}

async fn end_if_due(shared: &ZookeeperShared, lease: &Arc<MindedLease>) {
    let mut nodes = lease.nodes.lock().await;
    if nodes.over {
        return shared.table.remove(lease);
    }
    let end_at = nodes.end_at();
    if shared.now() < end_at {
        return shared.table.look_at(lease.public, end_at);
    }
    let Some(client) = shared.pool.connected(shared.slot(&lease.first)) else {
        return shared.table.look_at(lease.public, shared.now().plus(RETRY_AFTER));
    };
    let closes = nodes.record.state != NodeState::Closed && nodes.record.delay > 0;
    let ended = if closes {
        let record = closed_record(shared, &nodes.record);
        let written = write_nodes(&client, &nodes.data(&record), nodes.version).await;
        if matches!(written, Ok(NodeChange::Done(_))) {
            nodes.end = Time::from_nanos(record.until);
            nodes.span = record.span();
            nodes.record = record;
            nodes.version += 1;
            lease.note(&nodes);
            shared.ended.insert(lease.public, HowEnded::Stale);
            return shared.table.look_at(lease.public, nodes.end_at());
        }
        written
    } else {
        delete_nodes(&client, &nodes.paths, Some(nodes.version)).await
    };
    match ended {
        Ok(NodeChange::Gone) if closes => end_rest(shared, &client, lease, &mut nodes).await,
        Ok(NodeChange::Done(_) | NodeChange::Gone) => shared.note_end(lease, &mut nodes, HowEnded::Stale),
        Ok(NodeChange::Changed) => look_again(shared, &client, lease, &mut nodes).await,
        Err(_) => shared.table.look_at(lease.public, shared.now().plus(RETRY_AFTER)),
    }
}

/// A node is missing: nothing is left to close.
async fn end_rest(shared: &ZookeeperShared, client: &Client, lease: &Arc<MindedLease>, nodes: &mut LeaseNodes) {
    shared.end_broken(client, lease, nodes).await;
    if !nodes.over {
        shared.table.look_at(lease.public, shared.now().plus(RETRY_AFTER));
    }
}

fn closed_record(shared: &ZookeeperShared, record: &NodeRecord) -> NodeRecord {
    let clock = &*shared.options.clock;
    let end = shared.now().plus(Duration::from_millis(record.delay));
    let (server, boot, until) = (shared.server.clone(), boot_text(clock), end.as_nanos());
    NodeRecord { state: NodeState::Closed, boot, until, server, ..record.clone() }
}

/// Somebody changed the nodes: it is theirs to end now, or it is looked at again.
async fn look_again(shared: &ZookeeperShared, client: &Client, lease: &Arc<MindedLease>, nodes: &mut LeaseNodes) {
    let Some(path) = nodes.paths.first() else { return };
    match read_node(client, path).await {
        Ok(Some((data, stat))) => shared.note_read(lease, nodes, &data, stat),
        Ok(None) => return end_rest(shared, client, lease, nodes).await,
        Err(_) => return shared.table.look_at(lease.public, shared.now().plus(RETRY_AFTER)),
    }
    let mine = nodes.record.server == shared.server;
    if mine || !shared.is_alive(client, &nodes.record.server).await {
        shared.table.look_at(lease.public, nodes.end_at().max(shared.now().plus(RETRY_AFTER)));
    } else {
        shared.table.remove(lease);
    }
}

impl ZookeeperShared {
    /// A session is over: so is every lease that depended on it.
    pub fn end_session(&self, session: i64) {
        for lease in self.table.all() {
            // Whoever holds the lock finds the nodes gone.
            if let Ok(mut nodes) = lease.nodes.try_lock()
                && nodes.session == Some(session)
            {
                self.note_end(&lease, &mut nodes, HowEnded::Stale);
            }
        }
    }
}
