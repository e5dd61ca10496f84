//! ZooKeeper as an engine: sequential nodes, in the layout of Curator, of kazoo, or of both. `zk://h1,h2,h3/chroot`.
//!
//! # Promises
//!
//! Durable, fencing, fair, never early. With `lease=minded`, as `leasehold serve` opens it, leases outlive the process
//! that took them; with `lease=session`, as the library opens it, they end with its session.
//!
//! # Does not promise
//!
//! A lapse on time when the process that minds a lease is killed: another one ends it when the session of the first is
//! over (10 s), a whole ttl after its own look if it is on another machine. A lapse at all while no process with minded
//! leases lives: the lease stays closed until one starts. Watch. Endings are remembered by each process: through
//! another one a lease that ended is *not held*. Joining a request that still waits at another process. A lease with
//! `lease=session` is never longer than a session, and has no delay. A foreign client that holds one resource and waits for
//! a second can wait for a claim of ours on both; patience ends it. That of several shared or permit claims, let in by one
//! ending, the first to come has the lowest token: each is granted by a write of its own.
//!
//! # Clock
//!
//! This machine's BOOTTIME. A record holds its deadline with the boot it is of: a process on the same boot reads it, and
//! everybody else counts the whole span from its own look; to a repeated request id it answers with a renewal. `max_hold`
//! through another machine is counted by the times in the ensemble's stats. The wall clock is only shown. Copies of a
//! running machine have one boot and several clocks: one of them may end what another granted early.
//!
//! # Token
//!
//! `token_base` (0) + the zxid of the write that granted: of the create if the queue has not changed since, else of the swap
//! for a holder's node.
//!
//! # On lost connection
//!
//! A request is given to a connected session only. If its reply is lost, the outcome is found by the id in the node's
//! name, once the session answers again or is over: what it had not done by then it never does. Not known in time:
//! Indeterminate, and what was left is removed later. When a session is over, those who wait by it learn Unavailable, and
//! session leases are Stale; minded leases live on.
//!
//! # Files, in reading order
//!
//! `options` (the URL), `paths` and `node_name` (where nodes are and how they are called), `record` (what they hold),
//! `failure`, `probe` (why nobody answers), `sessions`, `node_set` (all nodes of a lease), `lease_table`, `directories`,
//! `numbering` (before the numbers of a directory end), `shared`, `place` (the nodes of an acquire), `wait_queue`,
//! `requests`, `acquire_task`, `owner`, `minder`, `janitor`, `view`, `examine`.

mod acquire_task;
mod directories;
mod examine;
mod failure;
mod janitor;
mod lease_table;
mod minder;
mod node_name;
mod node_set;
mod numbering;
mod options;
mod owner;
mod paths;
mod place;
mod probe;
mod record;
mod requests;
mod sessions;
mod shared;
mod view;
mod wait_queue;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::{Secret, WaiterId};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use zookeeper_client::{Acls, CreateMode};

use super::consensus::ended::{REMEMBERED_ENDINGS, RememberedEndings};
use super::consensus::lease_id::draw_bytes;
use super::from_book;
use super::{
    Answer, Claim, Engine, EngineProfile, EventId, Finding, Grant, Keys, LeaseId, Promises, Query, Renewal, Resource,
    Token, Watch,
};
use crate::clock::until;
use crate::error::Error;
use acquire_task::acquire_in_time;
use failure::{ENGINE, indeterminate, no_effect, unavailable};
pub use options::{ZookeeperEngineOptions, ZookeeperLayout, ZookeeperLease};
use owner::OwnerWrite;
use sessions::{SESSIONS, SessionPool};
use shared::ZookeeperShared;

/// How long closing waits for claims to leave their queues.
const MAX_CLOSE_WAIT: Duration = Duration::from_secs(4);
/// How long a call may take beyond its patience. What it began goes on, and is cleaned up.
const MAX_DELAY: Duration = Duration::from_secs(7);
const NO_WATCH: &str =
    "ZooKeeper keeps no history and tells only paths: look with `leasehold ls`, or watch an engine that has one";

/// The node of a session lease goes with its process, and nobody is left to keep the resource closed.
const NO_DELAY: &str =
    "a delay on zk:// needs leases that outlive their process: use a server, or open with ?lease=minded";

/// What it promises at best, and what it needs for that.
pub const PROFILE: EngineProfile = EngineProfile {
    url: "zk://HOST:PORT/CHROOT",
    best: promises(ZookeeperLease::Minded),
    needs: &["lease=minded for leases that outlive their process (`leasehold serve` opens it so)"],
};

const fn promises(lease: ZookeeperLease) -> Promises {
    Promises {
        engine: ENGINE,
        durable: true,
        fencing: true,
        fair: true,
        never_early: true,
        outlives_process: matches!(lease, ZookeeperLease::Minded),
    }
}

/// The client of one chroot of one ensemble. See the module.
pub struct ZookeeperEngine {
    shared: Arc<ZookeeperShared>,
}

impl fmt::Debug for ZookeeperEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZookeeperEngine").field("options", &self.shared.options).finish_non_exhaustive()
    }
}

impl Drop for ZookeeperEngine {
    fn drop(&mut self) {
        // Without close: the tasks end, the sessions are closed, and minded leases end by their time.
        self.shared.closed.cancel();
        self.shared.pool.close();
    }
}

impl ZookeeperEngine {
    /// Connects, and makes the chroot. Its tasks run on the runtime that this is called in.
    ///
    /// # Errors
    ///
    /// Unavailable when no server answers; Invalid for a login without permission, or outside of a tokio runtime.
    pub async fn open(options: ZookeeperEngineOptions) -> Result<Arc<Self>, Error> {
        let runtime = Handle::try_current()
            .map_err(|_| Error::Invalid("an ensemble is asked on a tokio runtime: open it inside one".into()))?;
        let (closed, attempt) = (CancellationToken::new(), format!("open zk://{}", options.at()));
        let pool = SessionPool::open(&options, closed.clone()).await?;
        let paths = paths::NodePaths::new(&options.chroot);
        let acls = shared::acls(&options);
        let server = draw_bytes::<8>().iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
        let shared =
            Arc::new(ZookeeperShared::new(options, paths, acls, pool.clone(), server, runtime.clone(), closed));
        let client = shared.client(&attempt, "").await?;
        let persistent = CreateMode::Persistent.with_acls(Acls::new(&shared.acls));
        let secret = CreateMode::Persistent.with_acls(Acls::new(&shared.secret_acls));
        let (root, servers, requests) = (shared.paths.root(), shared.paths.servers(), shared.paths.requests());
        for (path, options) in [(root, &persistent), (servers.as_str(), &persistent), (requests.as_str(), &secret)] {
            if path != "/" {
                let made = node_set::make_path(&client, path, options).await;
                made.map_err(|error| no_effect(&attempt, error))?;
            }
        }
        if shared.is_minded() {
            let first = pool.connected(0).unwrap_or(client);
            shared.announce(&first).await.map_err(|error| no_effect(&attempt, error))?;
            runtime.spawn(janitor::run_janitor(shared.clone()));
        }
        for slot in 0..SESSIONS {
            let ends = Arc::downgrade(&shared);
            runtime.spawn(pool.clone().keep(slot, move |session| {
                if let Some(shared) = ends.upgrade() {
                    shared.end_session(session);
                }
            }));
        }
        runtime.spawn(minder::run_minder(shared.clone()));
        Ok(Arc::new(Self { shared }))
    }

    /// How many watches have fired for those who wait here. For tests.
    #[cfg(any(test, feature = "testkit"))]
    #[must_use]
    pub fn watch_wakes(&self) -> u64 {
        self.shared.wakes.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// The longest ttl that it grants, without renewal.
    #[must_use]
    pub fn longest_ttl(&self) -> Duration {
        self.shared.longest_ttl()
    }

    /// The answer, if it comes in time. `late`: what it means that it does not.
    async fn answer_in_time<T>(
        &self,
        attempt: &str,
        late: fn(String, crate::error::BoxError) -> Error,
        answer: impl Future<Output = Result<T, Error>> + Send,
    ) -> Result<T, Error> {
        self.shared.refuse_closed(attempt)?;
        let clock = &*self.shared.options.clock;
        let answer = until(clock, clock.now().plus(MAX_DELAY), answer).await;
        answer.unwrap_or_else(|| Err(late(attempt.to_owned(), "the ensemble did not answer in time".into())))
    }

    /// Does it in a task of its own: what was sent is not given up half-way when the caller is.
    async fn detached<T: Send + 'static>(
        &self,
        attempt: &str,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        self.shared.refuse_closed(attempt)?;
        let task = self.shared.tasks.spawn_on(work, &self.shared.runtime);
        let answer = async {
            let source = "the runtime that the engine was opened on is gone";
            task.await.unwrap_or_else(|_| Err(indeterminate(attempt.to_owned(), source.into())))
        };
        self.answer_in_time(attempt, indeterminate, answer).await
    }

    async fn write_lease(&self, attempt: &'static str, lease: &LeaseId, what: OwnerWrite) -> Result<Renewal, Error> {
        let (shared, lease) = (self.shared.clone(), lease.clone());
        self.detached(attempt, async move { shared.write_lease(attempt, &lease, &what).await }).await
    }

    fn check_claim(&self, claim: &Claim) -> Result<(), Error> {
        let wants = from_book::wants(claim);
        let checked = from_book::acquire(claim, &wants, None, WaiterId(0), Secret::new([0; 16]));
        self.shared.options.limits.check(&checked).map_err(Error::Invalid)?;
        if !self.shared.is_minded() && !claim.delay.is_zero() {
            return Err(Error::Invalid(NO_DELAY.into()));
        }
        self.shared.check_ttl_bound(claim.ttl.min(claim.max_hold.unwrap_or(claim.ttl)))
    }
}

impl Engine for ZookeeperEngine {
    fn promises(&self) -> Promises {
        promises(self.shared.options.lease)
    }

    fn acquire(&self, claim: Claim) -> Answer<'_, Grant> {
        Box::pin(async move {
            self.shared.refuse_closed("acquire")?;
            self.check_claim(&claim)?;
            acquire_in_time(&self.shared, claim, MAX_DELAY).await
        })
    }

    fn renew<'a>(&'a self, lease: &'a LeaseId, ttl: Option<Duration>) -> Answer<'a, Renewal> {
        Box::pin(async move {
            if let Some(ttl) = ttl {
                self.shared.options.limits.check_ttl(from_book::millis(ttl)).map_err(Error::Invalid)?;
            }
            let attempt = "renew a lease";
            self.write_lease(attempt, lease, OwnerWrite::Renew(ttl)).await
        })
    }

    fn relabel<'a>(&'a self, lease: &'a LeaseId, holder: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            self.shared.options.limits.check_holder(holder).map_err(Error::Invalid)?;
            let attempt = "relabel a lease";
            self.write_lease(attempt, lease, OwnerWrite::Relabel(holder.to_owned())).await.map(drop)
        })
    }

    fn release<'a>(&'a self, lease: &'a LeaseId) -> Answer<'a, bool> {
        Box::pin(async move {
            let attempt = "release a lease";
            let (shared, lease) = (self.shared.clone(), lease.clone());
            self.detached(attempt, async move { shared.release_lease(attempt, &lease).await }).await
        })
    }

    fn revoke<'a>(&'a self, name: &'a str, reason: &'a str) -> Answer<'a, usize> {
        Box::pin(async move {
            let limits = &self.shared.options.limits;
            limits.check_name(name).map_err(Error::Invalid)?;
            if reason.trim().is_empty() || reason.len() > limits.holder_bytes {
                return Err(Error::Invalid(format!("a revoke gives a reason of 1 to {} bytes", limits.holder_bytes)));
            }
            let (shared, name) = (self.shared.clone(), name.to_owned());
            self.detached(&format!("revoke {name}"), async move { shared.revoke_all(&name).await }).await
        })
    }

    fn inspect<'a>(&'a self, name: &'a str) -> Answer<'a, Option<Resource>> {
        Box::pin(async move {
            self.shared.options.limits.check_name(name).map_err(Error::Invalid)?;
            self.answer_in_time(&format!("inspect {name}"), unavailable, self.shared.show_one(name)).await
        })
    }

    fn list(&self, query: Query) -> Answer<'_, Vec<Resource>> {
        Box::pin(async move {
            let attempt = format!("list {}", query.prefix);
            self.answer_in_time(&attempt, unavailable, self.shared.list_page(&query)).await
        })
    }

    fn raise_floor(&self, floor: Option<Token>) -> Answer<'_, Token> {
        Box::pin(async move {
            self.shared.refuse_closed("raise the floor")?;
            self.shared.floor(floor).await
        })
    }

    fn identity(&self) -> Answer<'_, Option<String>> {
        Box::pin(async move {
            self.shared.refuse_closed("read the identity")?;
            Ok(None)
        })
    }

    fn examine(&self) -> Answer<'_, Vec<Finding>> {
        Box::pin(async move {
            let attempt = "examine the engine";
            let examined = async {
                let client = self.shared.client(attempt, "").await?;
                self.shared.examine_ensemble(&client).await.map_err(|error| no_effect(attempt, error))
            };
            self.answer_in_time(attempt, unavailable, examined).await
        })
    }

    fn watch(&self, _since: Option<EventId>) -> Answer<'_, Watch> {
        Box::pin(async move { Err(Error::Invalid(NO_WATCH.into())) })
    }

    fn keys(&self) -> Option<&dyn Keys> {
        None
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            let shared = &self.shared;
            shared.closed.cancel();
            shared.tasks.close();
            let clock = &*shared.options.clock;
            // What cannot be removed in this time ends with its session, or by its ttl.
            let _ = until(clock, clock.now().plus(MAX_CLOSE_WAIT), shared.tasks.wait()).await;
            shared.withdraw().await;
            shared.pool.close();
            Ok(())
        })
    }
}

impl ZookeeperShared {
    fn new(
        options: ZookeeperEngineOptions,
        paths: paths::NodePaths,
        (acls, secret_acls): (Vec<zookeeper_client::Acl>, Vec<zookeeper_client::Acl>),
        pool: Arc<SessionPool>,
        server: String,
        runtime: Handle,
        closed: CancellationToken,
    ) -> Self {
        Self {
            options,
            paths,
            acls,
            secret_acls,
            pool,
            table: lease_table::LeaseTable::default(),
            ended: RememberedEndings::new(REMEMBERED_ENDINGS),
            queues: wait_queue::WaitQueues::default(),
            directories: directories::KnownDirectories::default(),
            used_up: numbering::UsedUpDirectories::default(),
            requests: requests::RequestRegistry::default(),
            server,
            runtime,
            tasks: TaskTracker::new(),
            closed,
            held_at: Self::new_held_cache(),
            wakes: std::sync::atomic::AtomicU64::new(0),
        }
    }
}
