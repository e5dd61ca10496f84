//! What all tasks of one engine share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_core::Time;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::failure::{CLOSED, EtcdFailure, unavailable};
use super::joining::RequestTable;
use super::keys::KeyLayout;
use super::lease_clock::{EndBounds, LeaseClocks, read_answer};
use super::members::{CallKind, EtcdMembers};
use super::messages::{LeaseTimeToLiveCall, RangeCall, StoredKey, TxnCall, TxnReply, term_of};
use super::mirror::QueueMirrors;
use super::options::EtcdEngineOptions;
use super::own_leases::OwnLeases;
use super::queue_line::minus;
use super::session::SessionKeeper;
use super::shared_looks::SharedLooks;
use super::values::StoredCap;
use crate::clock::{Clock as _, SystemClock, wall_micros};
use crate::engine::Token;
use crate::engine::consensus::ended::{REMEMBERED_ENDINGS, RememberedEndings};
use crate::engine::consensus::lease_id::{PublicId, draw_bytes};
use crate::error::{Error, Refusal};

/// Separates the digests of this engine from those of others.
const PUBLIC_DOMAIN: &str = "leasehold etcd 1";
/// How long a name that was seen held is asked by a read before a transaction is tried.
const SEEN_HELD_FOR: Duration = Duration::from_secs(1);
const MAX_SEEN_HELD: usize = 10_000;
/// What a new leader may add to the time of a lease: it spreads many that would end at once.
const MAX_ADDED_SECONDS: i64 = 3600;
/// Acquires of unknown outcome that are cleaned up at once. From here on a new one is turned away before anything is sent;
/// those that are under way then come on top.
const MAX_CLEANUPS: usize = 512;
/// The first pause before a retry, and the longest.
const FIRST_BACKOFF: Duration = Duration::from_millis(20);
const MAX_BACKOFF: Duration = Duration::from_millis(500);

/// See the module.
pub(super) struct EtcdShared {
    pub options: EtcdEngineOptions,
    pub members: EtcdMembers,
    pub layout: KeyLayout,
    pub clock: SystemClock,
    pub sessions: SessionKeeper,
    pub lease_clocks: LeaseClocks,
    /// Leases that this process granted or renewed last.
    pub own: OwnLeases,
    pub ended: RememberedEndings,
    pub mirrors: QueueMirrors,
    pub requests: RequestTable,
    /// Reads of names that were held a moment ago.
    pub looks: SharedLooks<Option<Refusal>>,
    /// Names and the key that was in the way, a moment ago.
    seen_held: Mutex<HashMap<String, (Vec<u8>, Time)>>,
    /// No more calls are taken.
    pub closed: CancellationToken,
    /// Nothing is written any more.
    pub stopped: CancellationToken,
    /// Tasks of callers: they go on after their caller is gone.
    pub tasks: TaskTracker,
    /// Timers and mirrors.
    background: TaskTracker,
    /// Of these, those that clean up.
    cleanups: TaskTracker,
    runtime: Handle,
}

impl EtcdShared {
    pub fn new(options: EtcdEngineOptions, runtime: Handle) -> Result<Self, Error> {
        Ok(Self {
            members: EtcdMembers::new(&options)?,
            layout: KeyLayout::new(&options.prefix),
            options,
            clock: SystemClock,
            sessions: SessionKeeper::new(),
            lease_clocks: LeaseClocks::default(),
            own: OwnLeases::default(),
            ended: RememberedEndings::new(REMEMBERED_ENDINGS),
            mirrors: QueueMirrors::default(),
            requests: RequestTable::default(),
            looks: SharedLooks::default(),
            seen_held: Mutex::default(),
            closed: CancellationToken::new(),
            stopped: CancellationToken::new(),
            tasks: TaskTracker::new(),
            background: TaskTracker::new(),
            cleanups: TaskTracker::new(),
            runtime,
        })
    }

    /// Spawns a task that goes on after its caller is gone.
    pub fn spawn_task(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn_on(task, &self.runtime);
    }

    /// Spawns a task that ends with the engine.
    pub fn spawn_background(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stopped = self.stopped.clone();
        let until_stopped = async move {
            tokio::select! {
                () = stopped.cancelled() => {}
                () = task => {}
            }
        };
        self.background.spawn_on(until_stopped, &self.runtime);
    }

    /// Spawns a task that cleans up after an acquire of unknown outcome.
    pub fn spawn_cleanup(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn_background(self.cleanups.track_future(task));
    }

    /// The same for what an acquire does itself before it gives up: its caller may be gone by then.
    pub fn count_as_cleanup<F: Future>(&self, work: F) -> impl Future<Output = F::Output> {
        self.cleanups.track_future(work)
    }

    /// Whether so much is left to be cleaned up that no acquire may add to it.
    pub fn is_behind(&self) -> bool {
        self.cleanups.len() >= MAX_CLEANUPS
    }

    /// Spawns the task that ends the session when the engine stops.
    pub fn spawn_last(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.background.spawn_on(task, &self.runtime);
    }

    pub async fn wait_for_background(&self) {
        self.background.close();
        self.background.wait().await;
    }

    pub fn refuse_closed(&self, attempt: &str) -> Result<(), Error> {
        match self.closed.is_cancelled() {
            true => Err(unavailable(attempt, CLOSED)),
            false => Ok(()),
        }
    }

    pub fn public_id(&self, secret: &leasehold_core::Secret) -> PublicId {
        PublicId::from_secret(PUBLIC_DOMAIN, secret)
    }

    /// The token of a grant at this revision.
    pub fn token(&self, revision: u64) -> Result<Token, EtcdFailure> {
        let token = self.options.token_base.checked_add(revision).and_then(Token::new);
        token.ok_or_else(|| EtcdFailure::Never("token_base= leaves no room for tokens".into()))
    }

    /// A transaction. Unknown is left to its caller.
    pub async fn txn(&self, txn: TxnCall) -> Result<TxnReply, EtcdFailure> {
        self.members.call(txn, CallKind::Write).await
    }

    /// A transaction that only reads, or that has one effect however often it comes.
    pub async fn txn_again(&self, txn: TxnCall) -> Result<TxnReply, EtcdFailure> {
        self.members.call(txn, CallKind::Read).await
    }

    /// One key, as it is now.
    pub async fn read_key(&self, key: Vec<u8>) -> Result<Option<StoredKey>, EtcdFailure> {
        let reply = self.members.call(RangeCall::one(key), CallKind::Read).await?;
        Ok(reply.kvs.into_iter().next())
    }

    /// When an etcd lease ends. `LeaseGone`: etcd says that there is none. A key that is still there says otherwise, and is
    /// right: a member that leads no more, or not yet, may not know a lease that lives.
    pub async fn bounds(self: &Arc<Self>, lease: i64) -> Result<EndBounds, EtcdFailure> {
        if let Some(known) = self.lease_clocks.get(lease) {
            return Ok(known);
        }
        if !self.probe(lease).await? {
            return Err(EtcdFailure::LeaseGone);
        }
        let shared = self.clone();
        self.spawn_background(async move { shared.refine(lease).await });
        self.lease_clocks.get(lease).ok_or_else(|| EtcdFailure::NoEffect("too many etcd leases".into()))
    }

    /// Asks about an etcd lease. `false`: etcd says that there is none, which bounds nothing.
    pub async fn probe(&self, lease: i64) -> Result<bool, EtcdFailure> {
        let sent = self.clock.now();
        let Some(seconds) = self.read_time_to_live(lease).await? else { return Ok(false) };
        self.lease_clocks.record_answer(lease, sent, self.clock.now(), seconds);
        Ok(true)
    }

    /// Whole seconds that an etcd lease has left. None: etcd says that there is none.
    async fn read_time_to_live(&self, lease: i64) -> Result<Option<u64>, EtcdFailure> {
        let reply = match self.members.call(LeaseTimeToLiveCall { id: lease }, CallKind::Read).await {
            Ok(reply) if reply.ttl >= 0 => reply,
            Ok(_) | Err(EtcdFailure::LeaseGone) => return Ok(None),
            Err(other) => return Err(other),
        };
        // A leader adds a little when it begins. Before it does, its leases have no end: 292 years are no answer.
        if reply.ttl > reply.granted_ttl.saturating_add(MAX_ADDED_SECONDS) {
            return Err(EtcdFailure::NoEffect("the leader of etcd does not know yet when leases end".into()));
        }
        Ok(Some(reply.ttl.unsigned_abs()))
    }

    /// When a longest hold is over that another process began: at this moment or a little later. None: etcd has had another
    /// leader since, which gave the etcd lease its whole time anew. Nothing tells then how much of it had passed.
    pub async fn earliest_cap(&self, cap: StoredCap) -> Result<Option<Time>, EtcdFailure> {
        let sent = self.clock.now();
        // No key hangs on it that would say otherwise when there is no such lease.
        let Some(seconds) = self.read_time_to_live(cap.lease).await? else { return Ok(Some(sent)) };
        let bounds = read_answer(sent, self.clock.now(), seconds);
        // Asked afterwards, and not of a member that lags behind: an election before the answer shows.
        let now = self.members.call(RangeCall::one(self.layout.marker("")), CallKind::Read).await?;
        let same_leader = cap.term != 0 && cap.term == term_of(now.header.as_ref());
        Ok(same_leader.then(|| minus(bounds.lower, Duration::from_millis(cap.early))))
    }

    /// Asks at the moments that tell most.
    async fn refine(&self, lease: i64) {
        for _ in 0..4 {
            let next = self.lease_clocks.get(lease).and_then(|bounds| bounds.next_probe(self.clock.now()));
            let Some(next) = next else { return };
            self.clock.sleep_until(next).await;
            if self.probe(lease).await != Ok(true) {
                return;
            }
        }
    }

    /// Sleeps before a retry: longer every time, and not in step with others.
    pub async fn backoff(&self, round: u32) {
        let whole = FIRST_BACKOFF.saturating_mul(1 << round.min(10)).min(MAX_BACKOFF);
        let spread = f64::from(u32::from_le_bytes(draw_bytes())) / f64::from(u32::MAX);
        self.clock.sleep_until(self.clock.now().plus(whole.mul_f64(0.5 + spread / 2.0))).await;
    }

    /// Milliseconds since 1970, for people.
    pub fn wall_millis(&self) -> i64 {
        wall_micros() / 1000
    }

    /// A key was in the way of this name.
    pub fn note_held(&self, name: &str, key: &[u8]) {
        let now = self.clock.now();
        let mut seen = self.seen_held.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() >= MAX_SEEN_HELD {
            seen.retain(|_, (_, at)| now.since(*at) < SEEN_HELD_FOR);
        }
        if seen.len() < MAX_SEEN_HELD {
            seen.insert(name.to_owned(), (key.to_vec(), now));
        }
    }

    /// Nothing is in the way of this name any more, as far as is known.
    pub fn note_free(&self, name: &str) {
        self.seen_held.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    /// The key that was in the way of one of these names a moment ago.
    pub fn held_a_moment_ago<'n>(&self, names: impl Iterator<Item = &'n str>) -> Option<(&'n str, Vec<u8>)> {
        let now = self.clock.now();
        let seen = self.seen_held.lock().unwrap_or_else(PoisonError::into_inner);
        for name in names {
            if let Some((key, at)) = seen.get(name)
                && now.since(*at) < SEEN_HELD_FOR
            {
                return Some((name, key.clone()));
            }
        }
        None
    }
}

/// A random text that names one call.
pub(super) fn draw_call_name() -> String {
    format!("{:016x}", u64::from_be_bytes(draw_bytes()))
}
