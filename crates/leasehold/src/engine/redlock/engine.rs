//! The verbs of the contract, by a majority.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::{Mode, Secret, WaiterId};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::acquire_task::{AcquireTask, keys_live_ms, life_ms};
use super::coordinator::Coordinator;
use super::node::{LeaseKeys, Node};
use super::options::RedlockOptions;
use super::redis_node::{RedlockNode, SharedNode};
use super::vote::VoteRules;
use super::{CLOSED, ENGINE, examine, unavailable};
use crate::clock::until;
use crate::engine::from_book::{acquire, millis, wants};
use crate::engine::redis::claim_text::to_hex;
use crate::engine::redis::connect::PushSink;
use crate::engine::redis::node::{RedisNode, random_bits};
use crate::engine::redis::scripts::{Layout, PREFIX};
use crate::engine::{
    Answer, Claim, Engine, EngineProfile, EventId, Finding, Grant, Keys, LeaseId, Promises, Query, Renewal, Resource,
    Token, Watch,
};
use crate::error::{Error, Refusal};

/// What it promises at best.
pub const PROFILE: EngineProfile =
    EngineProfile { url: "redlock://HOST:PORT,HOST:PORT,HOST:PORT", best: PROMISES, needs: &[] };

const PROMISES: Promises = Promises {
    engine: ENGINE,
    durable: false,
    fencing: false,
    fair: false,
    never_early: false,
    outlives_process: true,
};

/// How long opening waits for the other nodes once a majority is connected.
const OPEN_WAIT_FOR_REST: Duration = Duration::from_millis(300);
/// How long closing waits for releases that are owed.
const MAX_CLOSE_WAIT: Duration = Duration::from_secs(4);
/// How many leases of this process are remembered, for how long their release is repeated.
const LEASES_REMEMBERED: usize = 65_536;

const NO_MODES: &str = "Redlock has exclusive leases only: independent nodes each count their own holders, and a majority of a \
    count is no count";
const NO_TOKENS: &str = "Redlock has no tokens: its nodes are independent and have no linearizable state, so nothing orders \
    their grants";
const NO_WATCH: &str = "Redlock cannot be watched: no order of events exists over independent nodes";
const NO_LABELS: &str =
    "Redlock does not relabel leases: a label that only some nodes have changed would be two labels";

/// The client of several independent Redis servers. See the module.
pub struct Redlock {
    coordinator: Arc<Coordinator>,
    nodes: Vec<Arc<RedlockNode>>,
    servers: Vec<Arc<RedisNode>>,
    options: RedlockOptions,
    layout: Layout,
    /// How long the keys of leases live that this process took, by handle.
    lives: Mutex<HashMap<String, Duration>>,
}

impl fmt::Debug for Redlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redlock").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Redlock {
    /// Connects to the nodes. Its tasks run on the runtime that this is called in.
    ///
    /// # Errors
    ///
    /// Unavailable when fewer than a majority answer; Invalid for a wrong password, an old server, a cluster, a node that
    /// is the same server as another, or a call outside of a tokio runtime.
    pub async fn open(options: RedlockOptions) -> Result<Arc<Self>, Error> {
        let runtime = Handle::try_current()
            .map_err(|_| Error::Invalid("servers are asked on a tokio runtime: open it inside one".into()))?;
        let runs = Arc::default();
        let (mut servers, mut nodes) = (Vec::new(), Vec::new());
        for (number, node) in options.nodes.iter().enumerate() {
            let pushes = PushSink::new(|_| {});
            let server = RedisNode::new(node.clone(), to_hex(&random_bits::<8>()), pushes, runtime.clone());
            nodes.push(RedlockNode::new(server.clone(), number, options.quarantine, Arc::clone(&runs)));
            servers.push(server);
        }
        let rules = VoteRules::new(nodes.len());
        connect_majority(&options, &nodes, rules).await?;
        for node in &nodes {
            runtime.spawn(node.clone().supervise());
        }
        let voters = nodes.iter().map(|node| Arc::new(SharedNode(node.clone())) as Arc<dyn Node>).collect();
        let fill = |bits: &mut [u8]| {
            // Without randomness there are no unique handles, and there is nothing to fall back on.
            getrandom::fill(bits).expect("the operating system gives random bits");
        };
        let coordinator = Coordinator::start(voters, rules, options.clock.clone(), runtime, Arc::new(fill));
        let layout = options.nodes[0].layout();
        Ok(Arc::new(Self { coordinator, nodes, servers, options, layout, lives: Mutex::default() }))
    }

    fn open_or(&self, attempt: &str) -> Result<(), Error> {
        if self.coordinator.closed.is_cancelled() {
            return Err(unavailable(attempt.to_owned(), CLOSED.into()));
        }
        Ok(())
    }

    fn check_claim(&self, claim: &Claim) -> Result<(), Error> {
        let wanted = wants(claim);
        let checked = acquire(claim, &wanted, None, WaiterId(0), Secret::new([0; 16]));
        self.options.limits.check(&checked).map_err(Error::Invalid)?;
        if claim.wants.iter().any(|want| want.mode != Mode::Exclusive) {
            return Err(Error::Invalid(NO_MODES.into()));
        }
        self.check_life(life_ms(claim))?;
        claim.wants.iter().try_for_each(|want| self.key_of(&want.name).map(drop))
    }

    /// A lease that is all drift can never be valid.
    fn check_life(&self, life_ms: u64) -> Result<(), Error> {
        if self.coordinator.rules.validity(life_ms, Duration::ZERO).is_none() {
            let sentence = "a ttl on Redlock is at least 4ms: the clocks of its nodes may differ by 3ms";
            return Err(Error::Invalid(sentence.into()));
        }
        Ok(())
    }

    fn key_of(&self, name: &str) -> Result<String, Error> {
        self.options.limits.check_name(name).map_err(Error::Invalid)?;
        let key = format!("{}{name}", self.layout.key_prefix);
        if key.starts_with(PREFIX) {
            return Err(Error::Invalid(format!("names that begin with {PREFIX} are the engine's own on Redis")));
        }
        Ok(key)
    }

    fn remember(&self, grant: &Grant, life: Duration) {
        let Some(lease) = LeaseKeys::from_id(&grant.lease_id) else { return };
        let mut lives = self.lock_lives();
        if lives.len() >= LEASES_REMEMBERED
            && let Some(forgotten) = lives.keys().next().cloned()
        {
            lives.remove(&forgotten);
        }
        lives.insert(lease.handle, life);
    }

    fn lock_lives(&self) -> MutexGuard<'_, HashMap<String, Duration>> {
        self.lives.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits until a majority is connected, and a moment for the others.
async fn connect_majority(options: &RedlockOptions, nodes: &[Arc<RedlockNode>], rules: VoteRules) -> Result<(), Error> {
    let mut connecting = JoinSet::new();
    for node in nodes {
        let node = node.clone();
        connecting.spawn(async move { node.connect().await });
    }
    let (mut connected, mut reasons) = (0, Vec::new());
    let clock = &*options.clock;
    let mut end = None;
    loop {
        let next = match end {
            None => connecting.join_next().await,
            Some(end) => until(clock, end, connecting.join_next()).await.flatten(),
        };
        match next {
            None => break,
            Some(Ok(Ok(()))) => connected += 1,
            // A wrong password or a wrong address is worth knowing, even if others are enough.
            Some(Ok(Err(error @ Error::Invalid(_)))) => return Err(error),
            Some(Ok(Err(Error::Unavailable { source, .. }))) => reasons.push(source.to_string()),
            Some(Ok(Err(error))) => reasons.push(error.to_string()),
            Some(Err(_)) => reasons.push("a task ended early".into()),
        }
        if connected >= rules.quorum && end.is_none() {
            end = Some(clock.now().plus(OPEN_WAIT_FOR_REST));
        }
    }
    // Those that are still at it go on: the supervisor would begin again.
    connecting.detach_all();
    if connected >= rules.quorum {
        return Ok(());
    }
    let attempt = format!("open redlock://{}", options.addresses().join(","));
    let why =
        format!("{connected} of {} nodes answer, and {} are needed: {}", rules.nodes, rules.quorum, reasons.join("; "));
    Err(unavailable(attempt, why.into()))
}

impl Engine for Redlock {
    fn promises(&self) -> Promises {
        PROMISES
    }

    fn acquire(&self, claim: Claim) -> Answer<'_, Grant> {
        Box::pin(async move {
            self.open_or("acquire")?;
            self.check_claim(&claim)?;
            let life = Duration::from_millis(keys_live_ms(&claim));
            let grant = AcquireTask::start(&self.coordinator, &self.layout, claim).await?;
            self.remember(&grant, life);
            Ok(grant)
        })
    }

    fn renew<'a>(&'a self, lease: &'a LeaseId, ttl: Option<Duration>) -> Answer<'a, Renewal> {
        Box::pin(async move {
            self.open_or("renew a lease")?;
            let ttl_ms = ttl.map(millis);
            if let Some(ttl_ms) = ttl_ms {
                self.options.limits.check_ttl(ttl_ms).map_err(Error::Invalid)?;
                self.check_life(ttl_ms)?;
            }
            let lease = LeaseKeys::from_id(lease).ok_or(Error::Refused(Refusal::NotHeld))?;
            if let Some(ttl) = ttl
                && let Some(life) = self.lock_lives().get_mut(&lease.handle)
            {
                *life = (*life).max(ttl);
            }
            self.coordinator.renew(lease, ttl_ms).await
        })
    }

    fn relabel<'a>(&'a self, _lease: &'a LeaseId, _holder: &'a str) -> Answer<'a, ()> {
        Box::pin(async { Err(Error::Invalid(NO_LABELS.into())) })
    }

    fn release<'a>(&'a self, lease: &'a LeaseId) -> Answer<'a, bool> {
        Box::pin(async move {
            self.open_or("release a lease")?;
            let lease = LeaseKeys::from_id(lease).ok_or(Error::Refused(Refusal::NotHeld))?;
            let life = self.lock_lives().remove(&lease.handle);
            self.coordinator.release(lease, life).await
        })
    }

    fn revoke<'a>(&'a self, name: &'a str, reason: &'a str) -> Answer<'a, usize> {
        Box::pin(async move {
            self.open_or("revoke")?;
            let key = self.key_of(name)?;
            if reason.trim().is_empty() {
                return Err(Error::Invalid("a revoke says why".into()));
            }
            self.coordinator.revoke(name, key, reason).await
        })
    }

    fn inspect<'a>(&'a self, name: &'a str) -> Answer<'a, Option<Resource>> {
        Box::pin(async move {
            self.open_or("inspect")?;
            self.coordinator.inspect(name, self.key_of(name)?).await
        })
    }

    fn list(&self, query: Query) -> Answer<'_, Vec<Resource>> {
        Box::pin(async move {
            self.open_or("list")?;
            if query.limit == 0 {
                return Ok(Vec::new());
            }
            self.coordinator.list(&query, &self.layout.key_prefix).await
        })
    }

    fn raise_floor(&self, _floor: Option<Token>) -> Answer<'_, Token> {
        Box::pin(async { Err(Error::Invalid(NO_TOKENS.into())) })
    }

    fn identity(&self) -> Answer<'_, Option<String>> {
        Box::pin(async { Ok(None) })
    }

    fn examine(&self) -> Answer<'_, Vec<Finding>> {
        Box::pin(async move {
            self.open_or("examine the engine")?;
            Ok(examine::findings(&self.nodes, &self.options, &self.coordinator).await)
        })
    }

    fn watch(&self, _since: Option<EventId>) -> Answer<'_, Watch> {
        Box::pin(async { Err(Error::Invalid(NO_WATCH.into())) })
    }

    fn keys(&self) -> Option<&dyn Keys> {
        None
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            let coordinator = &self.coordinator;
            coordinator.closed.cancel();
            coordinator.tasks.close();
            let clock = &*coordinator.clock;
            let end = clock.now().plus(MAX_CLOSE_WAIT);
            // A release that cannot be confirmed in this time is left to the ttl.
            let _ = until(clock, end, coordinator.tasks.wait()).await;
            let _ = until(clock, end, coordinator.wait_until_paid()).await;
            self.servers.iter().for_each(|server| server.closed.cancel());
            Ok(())
        })
    }
}

impl Drop for Redlock {
    fn drop(&mut self) {
        self.coordinator.closed.cancel();
        // Releases that are owed are sent all the same, for a moment.
        let (coordinator, servers) = (self.coordinator.clone(), std::mem::take(&mut self.servers));
        self.coordinator.runtime.spawn(async move {
            let clock = coordinator.clock.clone();
            let _ = until(&*clock, clock.now().plus(MAX_CLOSE_WAIT), coordinator.wait_until_paid()).await;
            servers.iter().for_each(|server| server.closed.cancel());
        });
    }
}
