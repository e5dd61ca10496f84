//! What all calls of one engine share: sessions, leases, waiters, and how nodes are found.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use zookeeper_client::{self as zk, Acl, Acls, AuthId, Client, CreateMode, Permission, Stat};

use crate::clock::{Time, wall_micros};
use crate::engine::Token;
use crate::engine::consensus::ended::{HowEnded, RememberedEndings};
use crate::engine::consensus::lease_id::{ModeLetter, NamedLease, PublicId};
use crate::error::{Error, Refusal};

use super::directories::KnownDirectories;
use super::failure::{CLOSED, is_lost, no_effect, unavailable};
use super::lease_table::{LeaseNodes, LeaseTable, MindedLease};
use super::node_name::{NodeKey, NodeStep, QueueNode, contenders, parse_child, position};
use super::node_set::delete_rest;
use super::numbering::UsedUpDirectories;
use super::options::{ZookeeperEngineOptions, ZookeeperLayout, ZookeeperLease};
use super::paths::NodePaths;
use super::record::{NodeRecord, token_number};
use super::requests::RequestRegistry;
use super::sessions::{SESSIONS, SessionPool};
use super::wait_queue::WaitQueues;

/// Separates the public ids of this engine from those of others.
const DOMAIN: &str = "leasehold zookeeper 1";
/// How long a call waits for a connected session.
pub(super) const CONNECT_WAIT: Duration = Duration::from_secs(2);
/// How long a request whose reply was lost is tried again, or its effect looked for.
pub(super) const RETRY_FOR: Duration = Duration::from_secs(4);
pub(super) const RETRY_AFTER: Duration = Duration::from_millis(50);
/// How many names are remembered as held.
const HELD_REMEMBERED: usize = 4096;

/// See the module.
pub(super) struct ZookeeperShared {
    pub options: ZookeeperEngineOptions,
    pub paths: NodePaths,
    pub acls: Vec<Acl>,
    /// For nodes that hold secrets.
    pub secret_acls: Vec<Acl>,
    pub pool: Arc<SessionPool>,
    pub table: LeaseTable,
    pub ended: RememberedEndings,
    pub queues: WaitQueues,
    pub directories: KnownDirectories,
    pub used_up: UsedUpDirectories,
    pub requests: RequestRegistry,
    /// Names this process in the data of nodes.
    pub server: String,
    pub runtime: Handle,
    /// Acquires, and what they leave to be cleaned up.
    pub tasks: TaskTracker,
    /// Calls are refused, and waiters leave.
    pub closed: CancellationToken,
    /// Names that were held a moment ago: a try looks before it writes.
    pub held_at: Mutex<HashMap<String, Time>>,
    /// Watches that fired for a waiter. For tests.
    pub wakes: AtomicU64,
}

/// A node of a lease, and everything that was read of it.
pub(super) struct FoundNode {
    pub node: QueueNode,
    pub path: String,
    pub record: NodeRecord,
    pub stat: Stat,
}

/// Where the nodes of a lease are.
pub(super) struct LeasePaths {
    /// Those of the first resource first.
    pub paths: Vec<String>,
    /// Every resource has its nodes. Otherwise somebody removed one, and the lease is over.
    pub is_whole: bool,
}

/// A list of children as `zk::Error::NoNode` would have it: nothing is there.
pub(super) fn or_empty(listed: Result<Vec<String>, zk::Error>) -> Result<Vec<String>, zk::Error> {
    match listed {
        Err(zk::Error::NoNode) => Ok(Vec::new()),
        listed => listed,
    }
}

/// Who may do what with the nodes of queues; and with those of requests, which hold secrets.
pub(super) fn acls(options: &ZookeeperEngineOptions) -> (Vec<Acl>, Vec<Acl>) {
    if options.login.is_none() {
        let everybody = Acls::anyone_all().to_vec();
        return (everybody.clone(), everybody);
    }
    let (mine, everybody) = (AuthId::new("auth", ""), AuthId::new("world", "anyone"));
    let own = Acl::new(Permission::ALL, mine);
    // A waiter reads the node before its own, whoever made it.
    (vec![own.clone(), Acl::new(Permission::READ, everybody)], vec![own])
}

impl ZookeeperShared {
    pub fn now(&self) -> Time {
        self.options.clock.now()
    }

    pub fn is_minded(&self) -> bool {
        self.options.lease == ZookeeperLease::Minded
    }

    pub fn forget_held(&self, name: &str) {
        self.held_at.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    pub fn new_held_cache() -> Mutex<HashMap<String, Time>> {
        Mutex::default()
    }

    /// The session that requests for a name go to.
    pub fn slot(&self, name: &str) -> usize {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(name);
        usize::try_from(hash % SESSIONS as u64).unwrap_or(0)
    }

    pub fn refuse_closed(&self, attempt: &str) -> Result<(), Error> {
        if self.closed.is_cancelled() { Err(unavailable(attempt, CLOSED.into())) } else { Ok(()) }
    }

    /// A connected session for a name, soon.
    pub async fn client(&self, attempt: &str, name: &str) -> Result<Client, Error> {
        let by = self.now().plus(CONNECT_WAIT);
        self.pool.connected_by(self.slot(name), by).await.map_err(|source| unavailable(attempt, source))
    }

    /// Reads, and reads again while the replies are lost with their connections: a read may be repeated. A process that
    /// stood still learns at its first requests that its sessions are over.
    pub async fn read<T, R>(&self, attempt: &str, name: &str, read: impl Fn(Client) -> R) -> Result<T, Error>
    where
        R: Future<Output = Result<T, zk::Error>>,
    {
        let by = self.now().plus(RETRY_FOR);
        loop {
            let client = self.client(attempt, name).await?;
            match read(client).await {
                Err(error) if is_lost(&error) && self.now() < by => {
                    self.options.clock.sleep_until(self.now().plus(RETRY_AFTER)).await;
                }
                result => return result.map_err(|error| no_effect(attempt, error)),
            }
        }
    }

    /// How the directory of a resource is made. kazoo remembers that it made one, so there it must stay.
    pub const fn directory_mode(&self) -> CreateMode {
        match self.options.layout {
            ZookeeperLayout::Curator => CreateMode::Container,
            ZookeeperLayout::Kazoo | ZookeeperLayout::Both => CreateMode::Persistent,
        }
    }

    /// What a lease can live without renewal: with sessions less than one.
    pub fn longest_ttl(&self) -> Duration {
        let most = Duration::from_millis(self.options.limits.ttl_ms);
        match self.options.lease {
            ZookeeperLease::Minded => most,
            ZookeeperLease::Session => self.pool.sure_life().min(most),
        }
    }

    pub fn check_ttl_bound(&self, ttl: Duration) -> Result<(), Error> {
        let most = self.longest_ttl();
        if self.is_minded() || ttl <= most {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "a lease on this ensemble lives at most {} without renewal: renew more often, or raise maxSessionTimeout",
            super::examine::seconds(most)
        )))
    }

    /// The token of a grant that was decided by the write with this zxid.
    pub fn token(&self, zxid: i64) -> Result<Token, Error> {
        let token = token_number(zxid, self.options.token_base).and_then(Token::new);
        token.ok_or_else(|| Error::Invalid("token_base leaves no room for tokens below 2^63".into()))
    }

    /// The floor as it is; or why it is not raised here, and what to do instead.
    pub async fn floor(&self, floor: Option<Token>) -> Result<Token, Error> {
        let attempt = "read the last zxid";
        // A write is the only way to learn the last zxid of the ensemble. It changes nothing that anybody reads.
        let write = |client: Client| async move { client.set_data(&self.paths.private(), &[], None).await };
        let zxid = self.read(attempt, "", write).await?.mzxid;
        let Some(floor) = floor else { return self.token(zxid) };
        let base = floor.get().saturating_sub(u64::try_from(zxid).unwrap_or(0)).max(self.options.token_base);
        Err(Error::Invalid(format!(
            "tokens on ZooKeeper are its zxids: to raise them, put token_base={base} into the url of every process that uses them"
        )))
    }

    /// Says that this process minds leases no more.
    pub async fn withdraw(&self) {
        if self.is_minded()
            && let Some(client) = self.pool.connected(0)
        {
            let path = format!("{}/{}", self.paths.servers(), self.server);
            let by = self.now().plus(CONNECT_WAIT);
            // If it fails, the node ends with its session.
            let _ = crate::clock::until(&*self.options.clock, by, client.delete(&path, None)).await;
        }
    }

    pub fn wall_ms() -> u64 {
        u64::try_from(wall_micros() / 1000).unwrap_or(0)
    }

    pub fn note_held(&self, name: &str) {
        let now = self.now();
        let mut held = self.held_at.lock().unwrap_or_else(PoisonError::into_inner);
        if held.len() >= HELD_REMEMBERED {
            held.retain(|_, at| now.since(*at) < Duration::from_secs(1));
            if held.len() >= HELD_REMEMBERED {
                held.clear();
            }
        }
        held.insert(name.to_owned(), now);
    }

    pub fn was_held(&self, name: &str) -> bool {
        let held = self.held_at.lock().unwrap_or_else(PoisonError::into_inner);
        held.get(name).is_some_and(|at| self.now().since(*at) < Duration::from_secs(1))
    }

    /// The queue of a resource, not older than this call.
    pub async fn fresh_queue(&self, client: &Client, name: &str) -> Result<Vec<QueueNode>, zk::Error> {
        let directory = self.paths.directory(name);
        let (sync, list) = (client.sync(&directory), client.list_children(&directory));
        sync.await?;
        Ok(contenders(&or_empty(list.await)?))
    }

    /// What a lease is called in the store.
    pub fn public_id(lease: &NamedLease) -> PublicId {
        PublicId::from_secret(DOMAIN, &lease.secret)
    }

    /// The first node of a lease, if it is there.
    pub async fn find_first(
        &self,
        client: &Client,
        first: &str,
        public: PublicId,
    ) -> Result<Option<FoundNode>, zk::Error> {
        // It may change its name between the list and the read.
        for _ in 0..4 {
            let queue = self.fresh_queue(client, first).await?;
            let Some(at) = position(&queue, &NodeKey::new(public)) else { return Ok(None) };
            let node = queue[at].clone();
            let path = format!("{}/{}", self.paths.directory(first), node.name);
            let (data, stat) = match client.get_data(&path).await {
                Err(zk::Error::NoNode) => continue,
                read => read?,
            };
            let Some(record) = NodeRecord::parse(&data).filter(|record| record.id == public.to_hex()) else {
                return Ok(None);
            };
            return Ok(Some(FoundNode { node, path, record, stat }));
        }
        Ok(None)
    }

    /// The nodes of a lease. They are made, changed and deleted together, so one that is missing stays missing.
    pub async fn find_paths(&self, client: &Client, found: &FoundNode, first: &str) -> Result<LeasePaths, zk::Error> {
        let public = PublicId::from_hex(&found.record.id).unwrap_or(PublicId([0; 16]));
        let key = NodeKey::new(public);
        let names = if found.record.names.is_empty() { vec![first.to_owned()] } else { found.record.names.clone() };
        let directories: Vec<String> = names.iter().map(|name| self.paths.directory(name)).collect();
        let lists: Vec<_> = directories.iter().map(|directory| client.list_children(directory)).collect();
        let mut paths = vec![found.path.clone()];
        let mut counts = Vec::with_capacity(directories.len());
        for (directory, list) in directories.iter().zip(lists) {
            let mut mine: Vec<String> = or_empty(list.await)?
                .into_iter()
                .filter(|child| parse_child(child).is_some_and(|node| node.key.as_ref() == Some(&key)))
                .map(|child| format!("{directory}/{child}"))
                .collect();
            counts.push(mine.len());
            mine.retain(|path| *path != found.path);
            mine.sort();
            paths.extend(mine);
        }
        // Only the first node of a lease names no other. Each resource has as many as there are layouts.
        let is_whole = found.record.first.is_none() && counts.iter().all(|count| *count > 0 && *count == counts[0]);
        Ok(LeasePaths { paths, is_whole })
    }

    /// The lease of an id: one that is minded here, or one that is read from the store.
    pub async fn locate(&self, attempt: &str, lease: &NamedLease) -> Result<Arc<MindedLease>, Error> {
        let public = Self::public_id(lease);
        if let Some(known) = self.table.get(&public) {
            let same = known.token == lease.token && known.first == lease.first && known.letter == lease.letter;
            return if same { Ok(known) } else { Err(Refusal::NotHeld.into()) };
        }
        let held = |client: Client| async move {
            let found = self.find_first(&client, &lease.first, public).await?.filter(|found| {
                let token = found.record.token(found.stat.mzxid, self.options.token_base);
                token == Some(lease.token) && !found.record.waits(found.node.step)
            });
            let Some(found) = found else { return Ok(None) };
            let paths = self.find_paths(&client, &found, &lease.first).await?;
            Ok(Some((found, paths)))
        };
        let (found, LeasePaths { paths, is_whole }) =
            self.read(attempt, &lease.first, held).await?.ok_or(Refusal::NotHeld)?;
        if !is_whole {
            let client = self.client(attempt, &lease.first).await?;
            // What cannot be removed now is ended by whoever minds it, or by the walk of a janitor.
            let _ = delete_rest(&client, &paths).await;
            self.ended.insert(public, HowEnded::Stale);
            return Err(Refusal::Stale.into());
        }
        Ok(self.to_lease(found, lease.first.clone(), lease.letter, lease.token, paths))
    }

    /// A lease as it was read. When it ends is counted from now, if this machine cannot tell.
    pub fn to_lease(
        &self,
        found: FoundNode,
        first: String,
        letter: ModeLetter,
        token: Token,
        paths: Vec<String>,
    ) -> Arc<MindedLease> {
        let public = PublicId::from_hex(&found.record.id).unwrap_or(PublicId([0; 16]));
        let clock = &*self.options.clock;
        let session = (found.stat.ephemeral_owner != 0).then_some(found.stat.ephemeral_owner);
        let nodes = LeaseNodes {
            paths,
            version: found.stat.version,
            session,
            end: found.record.latest_end(clock, self.now()),
            span: found.record.span(),
            cap: found.record.known_cap(clock),
            record: found.record,
            over: false,
        };
        MindedLease::new(public, first, letter, token, nodes)
    }

    /// Minds a lease that was read from the store.
    pub fn mind(&self, found: FoundNode, lease: &NamedLease, paths: Vec<String>) {
        let minded = self.to_lease(found, lease.first.clone(), lease.letter, lease.token, paths);
        let end_at = minded.nodes.try_lock().map_or(self.now(), |nodes| nodes.end_at());
        self.table.insert(minded, end_at);
    }

    /// Remembers the end of a lease, and forgets it otherwise.
    pub fn note_end(&self, lease: &Arc<MindedLease>, nodes: &mut LeaseNodes, how: HowEnded) {
        nodes.over = true;
        lease.note(nodes);
        self.table.remove(lease);
        self.ended.insert(lease.public, how);
        self.forget_held(&lease.first);
        if let Some(digest) = &nodes.record.request {
            let at = self.now().plus(super::requests::KEEP_REQUESTS);
            self.table.forget_request_at(self.paths.request(digest), lease.public, at);
        }
    }

    /// Ends a lease that misses a node: whoever removed that has revoked it. The others are removed.
    ///
    /// If that fails, the lease stays minded: its other nodes go when its time is over.
    pub async fn end_broken(&self, client: &Client, lease: &Arc<MindedLease>, nodes: &mut LeaseNodes) {
        if nodes.paths.len() == 1 || delete_rest(client, &nodes.paths).await.is_ok() {
            self.note_end(lease, nodes, HowEnded::Stale);
        }
    }

    /// A node with a name of ours that does not end with a session, as those of others do, and that holds what somebody
    /// else wrote. Curator asks a holder to leave like that.
    pub fn is_overwritten(node: &QueueNode, data: &[u8], stat: &Stat) -> bool {
        Self::may_hold(node) && stat.ephemeral_owner == 0 && NodeRecord::parse(data).is_none()
    }

    /// The step of a holder's nodes, as a filter for what may be minded.
    pub fn may_hold(node: &QueueNode) -> bool {
        matches!(node.step, Some(NodeStep::First | NodeStep::Holder))
    }
}
