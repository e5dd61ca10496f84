//! The processes that mind leases, and who looks after those of a process that is gone.
//!
//! Each has an ephemeral node. The one with the lowest name is the janitor: at its start and when a process disappears, it
//! walks through all resources and minds what nobody minds. Now and then everybody does. What is left of a lease that misses
//! a node is removed: nobody can renew it. So is a node of ours that somebody wrote over, when no lease can live in it any
//! more.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::Limits;
use zookeeper_client::{self as zk, Acls, Client, CreateMode, MultiReadResult, OneshotWatcher, Stat};

use crate::clock::Time;
use crate::engine::consensus::lease_id::{ModeLetter, NamedLease, PublicId};

use super::node_name::{NodeKey, QueueNode, contenders, position};
use super::node_set::delete_rest;
use super::record::{NodeRecord, NodeState, RequestRecord};
use super::shared::{FoundNode, LeasePaths, ZookeeperShared, or_empty};

const RETRY_AFTER: Duration = Duration::from_millis(500);
/// Nodes that one request reads.
const READS_AT_ONCE: usize = 100;
/// A request id without a lease is forgotten this long after it was first seen so.
const REQUEST_KEPT: Duration = Duration::from_secs(60);
/// How long after its write a node of this process may be that of an acquire without an answer.
const UNDER_WAY_FOR: Duration = Duration::from_secs(30);

/// What the janitor knows between its looks.
#[derive(Default)]
struct JanitorState {
    /// Those who were there at the last look.
    servers: HashSet<String>,
    was_lowest: bool,
    /// When it walked last, or began.
    walked: Option<Time>,
    /// Requests without a lease, and since when.
    orphans: HashMap<String, Time>,
    overwritten: OverwrittenNodes,
}

/// Nodes of ours that hold what somebody else wrote: the zxid of that write, and since when this process knows it.
#[derive(Default)]
struct OverwrittenNodes {
    /// By the last walk that came to its end.
    before: HashMap<String, (i64, Time)>,
    /// By this walk.
    now: HashMap<String, (i64, Time)>,
}

impl OverwrittenNodes {
    /// A node was seen like this. Since when?
    fn note(&mut self, path: &str, zxid: i64, now: Time) -> Time {
        let since = self.before.get(path).filter(|(known, _)| *known == zxid).map_or(now, |(_, since)| *since);
        self.now.insert(path.to_owned(), (zxid, since));
        since
    }

    /// The walk came to its end.
    fn finish_walk(&mut self) {
        self.before = std::mem::take(&mut self.now);
    }
}

impl JanitorState {
    /// How long after a walk the next one is due, whoever is there.
    fn walk_after(&self, shared: &ZookeeperShared) -> Duration {
        let every = shared.options.walk_every;
        if self.orphans.is_empty() { every } else { every.min(REQUEST_KEPT) }
    }
}

impl ZookeeperShared {
    fn server_path(&self, server: &str) -> String {
        format!("{}/{server}", self.paths.servers())
    }

    /// Whether a process that minds leases is there. If it cannot be asked: it is.
    pub async fn is_alive(&self, client: &Client, server: &str) -> bool {
        !matches!(client.check_stat(&self.server_path(server)).await, Ok(None))
    }

    /// Says that this process minds leases.
    pub async fn announce(&self, client: &Client) -> Result<(), zk::Error> {
        let options = CreateMode::Ephemeral.with_acls(Acls::new(&self.acls));
        match client.create(&self.server_path(&self.server), &[], &options).await {
            Ok(_) | Err(zk::Error::NodeExists) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Runs until the engine is closed.
pub(super) async fn run_janitor(shared: Arc<ZookeeperShared>) {
    let mut state = JanitorState::default();
    let mut sessions = shared.pool.changes();
    let clock = shared.options.clock.clone();
    loop {
        sessions.mark_unchanged();
        let looked = match shared.pool.connected(0) {
            Some(client) => look(&shared, &client, &mut state).await,
            None => Err(zk::Error::ConnectionLoss),
        };
        let (watcher, next) = match looked {
            Ok(watcher) => (Some(watcher), state.walk_after(&shared)),
            Err(_) => (None, RETRY_AFTER),
        };
        let fired = async {
            match watcher {
                Some(watcher) => drop(watcher.changed().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = shared.closed.cancelled() => return,
            () = fired => {}
            _ = sessions.changed() => {}
            () = clock.sleep_until(clock.now().plus(next)) => {}
        }
    }
}

/// One look at who is there; a walk if it is due.
async fn look(
    shared: &Arc<ZookeeperShared>,
    client: &Client,
    state: &mut JanitorState,
) -> Result<OneshotWatcher, zk::Error> {
    let (children, watcher) = client.list_and_watch_children(&shared.paths.servers()).await?;
    let mut servers: HashSet<String> = children.into_iter().collect();
    if !servers.contains(&shared.server) {
        shared.announce(client).await?;
        servers.insert(shared.server.clone());
    }
    let lowest = servers.iter().min().is_some_and(|lowest| *lowest == shared.server);
    let gone = state.servers.iter().any(|server| !servers.contains(server));
    let now = shared.now();
    let stale = state.walked.is_some_and(|walked| now.since(walked) >= state.walk_after(shared));
    // Whoever becomes the lowest walks at once. The others walk now and then, for what is left under their own name.
    if (lowest && (gone || !state.was_lowest)) || stale {
        walk(shared, client, &servers, &mut state.overwritten).await?;
        forget_requests(shared, client, &servers, state).await?;
        state.walked = Some(now);
    }
    state.walked.get_or_insert(now);
    state.was_lowest = lowest;
    state.servers = servers;
    Ok(watcher)
}

/// Minds what nobody minds.
async fn walk(
    shared: &Arc<ZookeeperShared>,
    client: &Client,
    servers: &HashSet<String>,
    overwritten: &mut OverwrittenNodes,
) -> Result<(), zk::Error> {
    overwritten.now.clear();
    let children = or_empty(client.list_children(shared.paths.root()).await)?;
    let names: Vec<String> = children.iter().filter_map(|child| shared.paths.resource(child)).collect();
    for chunk in names.chunks(READS_AT_ONCE) {
        let mut reader = client.new_multi_reader();
        for name in chunk {
            reader.add_get_children(&shared.paths.directory(name))?;
        }
        for (name, result) in chunk.iter().zip(reader.commit().await?) {
            let MultiReadResult::Children { children } = result else { continue };
            let ours: Vec<QueueNode> = contenders(&children).into_iter().filter(ZookeeperShared::may_hold).collect();
            for nodes in ours.chunks(READS_AT_ONCE) {
                walk_nodes(shared, client, servers, name, nodes, overwritten).await?;
            }
        }
    }
    overwritten.finish_walk();
    Ok(())
}

async fn walk_nodes(
    shared: &Arc<ZookeeperShared>,
    client: &Client,
    servers: &HashSet<String>,
    name: &str,
    nodes: &[QueueNode],
    overwritten: &mut OverwrittenNodes,
) -> Result<(), zk::Error> {
    let directory = shared.paths.directory(name);
    let mut reader = client.new_multi_reader();
    for node in nodes {
        reader.add_get_data(&format!("{directory}/{}", node.name))?;
    }
    for (node, result) in nodes.iter().zip(reader.commit().await?) {
        let MultiReadResult::Data { data, stat } = result else { continue };
        let path = format!("{directory}/{}", node.name);
        let Some(record) = NodeRecord::parse(&data) else {
            if ZookeeperShared::is_overwritten(node, &data, &stat) {
                let since = overwritten.note(&path, stat.mzxid, shared.now());
                end_overwritten(shared, client, &path, &stat, since).await?;
            }
            continue;
        };
        let minded = servers.contains(&record.server) && record.server != shared.server;
        // Nodes that end with a session need no minding.
        if minded || stat.ephemeral_owner != 0 || record.state == NodeState::Waiting {
            continue;
        }
        let Some(public) = PublicId::from_hex(&record.id) else { continue };
        if shared.table.get(&public).is_some() || is_fresh(shared, &record) {
            continue;
        }
        if let Some(first) = &record.first {
            // Those of further resources of a claim are minded with its first node, if there is one.
            if is_gone(shared, client, first, public, name).await? {
                delete_rest(client, &[path]).await?;
            }
            continue;
        }
        let Some(token) = record.token(stat.mzxid, shared.options.token_base) else { continue };
        let found = FoundNode { node: node.clone(), path, record, stat };
        let LeasePaths { paths, is_whole } = shared.find_paths(client, &found, name).await?;
        if !is_whole {
            delete_rest(client, &paths).await?;
            continue;
        }
        let letter = ModeLetter::from_mode(node.mode);
        let secret = leasehold_core::Secret::new([0; 16]);
        let several = !found.record.names.is_empty();
        let lease = NamedLease { token, letter, several, first: name.to_owned(), secret };
        shared.mind(found, &lease, paths);
    }
    Ok(())
}

/// Ends a node of ours whose data is not ours, when no lease can live in it any more: whoever renews one writes it anew, and
/// whoever minds one ends it by its time. What the last owner asked for is lost, so the longest ttl and the longest delay
/// after it are counted from the first look.
async fn end_overwritten(
    shared: &ZookeeperShared,
    client: &Client,
    path: &str,
    stat: &Stat,
    since: Time,
) -> Result<(), zk::Error> {
    // A process with other limits may have granted it.
    let longest = Duration::from_millis(shared.options.limits.ttl_ms.max(Limits::default().ttl_ms));
    if shared.now().since(since) < longest * 2 {
        return Ok(());
    }
    match client.delete(path, Some(stat.version)).await {
        Ok(()) | Err(zk::Error::NoNode | zk::Error::BadVersion) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Whether the first node of a lease is gone, of which a node for the resource `of` was read just now.
///
/// A lease's nodes are made, renamed and deleted together, and a session reads nothing older than what it has read. So a list
/// that lacks the first node means that the lease is over, and not that it is just being made.
async fn is_gone(
    shared: &ZookeeperShared,
    client: &Client,
    first: &str,
    public: PublicId,
    of: &str,
) -> Result<bool, zk::Error> {
    // The twin in the other layout, which is in a queue of its own only without the first node.
    if first == of {
        return Ok(true);
    }
    let children = or_empty(client.list_children(&shared.paths.directory(first)).await)?;
    Ok(position(&contenders(&children), &NodeKey::new(public)).is_none())
}

/// A node of this very process that was written a moment ago: its acquire is under way.
fn is_fresh(shared: &ZookeeperShared, record: &NodeRecord) -> bool {
    let (now, until) = (shared.now(), Time::from_nanos(record.until));
    let span = record.max_hold.map_or(record.span(), |most| record.span().min(Duration::from_millis(most)));
    let age = span.saturating_sub(until.since(now)).saturating_add(now.since(until));
    record.server == shared.server && age < UNDER_WAY_FOR
}

/// Forgets requests of processes that are gone, a while after their leases ended.
async fn forget_requests(
    shared: &Arc<ZookeeperShared>,
    client: &Client,
    servers: &HashSet<String>,
    state: &mut JanitorState,
) -> Result<(), zk::Error> {
    let now = shared.now();
    let mut orphans = HashMap::new();
    for digest in or_empty(client.list_children(&shared.paths.requests()).await)? {
        let path = shared.paths.request(&digest);
        let Ok((data, stat)) = client.get_data(&path).await else { continue };
        let Some(record) = RequestRecord::parse(&data).filter(|record| !servers.contains(&record.server)) else {
            continue;
        };
        let lease = record.lease(crate::engine::Token::MIN);
        let live = match &lease {
            Some(lease) => shared.find_first(client, &lease.first, ZookeeperShared::public_id(lease)).await?.is_some(),
            None => false,
        };
        if live {
            continue;
        }
        let since = state.orphans.get(&digest).copied().unwrap_or(now);
        if now.since(since) >= REQUEST_KEPT {
            let _ = client.delete(&path, Some(stat.version)).await;
        } else {
            orphans.insert(digest, since);
        }
    }
    state.orphans = orphans;
    Ok(())
}
