//! The session of this process: the one etcd lease that is kept alive, and the marker that lives with it.
//!
//! Every transaction that grants or renews demands the marker. A process whose machine stood still with its clocks, longer
//! than the session lives, so finds out before it puts a key into a bucket that ends sooner than it thinks. A shorter stop is
//! not noticed. [`MARGIN`] keeps the key until the deadline all the same, but other processes count that deadline from the
//! bucket's end, and may end the lease early by as much. Such clocks are outside of the promise: `# Clock` of the engine.
//! Nothing that was granted hangs on the session: losing it costs the place in a queue.
//!
//! # Laws
//!
//! 1. A marker is never used by two sessions, and buckets belong to the session that opened them: a transaction that was
//!    put together before the session was lost cannot pass afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::buckets::BucketPool;
use super::failure::EtcdFailure;
use super::members::CallKind;
use super::messages::{LeaseGrantCall, LeaseRevokeCall, TxnCall, TxnPart, term_of};
use super::shared::EtcdShared;
use crate::clock::{Clock as _, until};
use crate::engine::consensus::lease_id::draw_bytes;

/// The life of a session without a keepalive.
const SESSION_TTL: Duration = Duration::from_secs(6);
const KEEPALIVE_EVERY: Duration = Duration::from_millis(1500);
/// How much longer a key lives than its lease needs: the longest stop of the clocks that the marker cannot show, and a little.
const MARGIN: Duration = Duration::from_secs(SESSION_TTL.as_secs() + 2);
/// Clocks of two machines differ in rate by up to this part of a span; one may be fast and the other slow.
const RATE_PART: u32 = 1000;
/// How long a call waits for a new session.
const SESSION_WAIT: Duration = Duration::from_millis(2500);
/// Between two tries to open a session.
const REOPEN_PAUSE: Duration = Duration::from_millis(300);

/// How long a key must live for a lease that lives so long.
pub(super) fn with_margin(life: Duration) -> Duration {
    life + life / RATE_PART + MARGIN
}

/// One session. See the module.
pub(super) struct EtcdSession {
    /// The etcd lease: waiting keys are attached to it.
    pub lease: i64,
    pub marker: Vec<u8>,
    pub buckets: BucketPool,
    /// Of the newest leader that etcd told of.
    pub term: AtomicU64,
    /// It is over, as etcd said or a missing marker showed.
    pub lost: CancellationToken,
}

/// The session as it is now.
pub(super) struct SessionKeeper {
    current: watch::Sender<Option<Arc<EtcdSession>>>,
    /// The last one could not be opened because etcd has no space.
    no_space: AtomicBool,
}

impl SessionKeeper {
    pub fn new() -> Self {
        Self { current: watch::Sender::new(None), no_space: AtomicBool::new(false) }
    }

    pub fn current(&self) -> Option<Arc<EtcdSession>> {
        self.current.borrow().clone().filter(|session| !session.lost.is_cancelled())
    }
}

impl EtcdShared {
    /// The session, or a new one if it comes soon. `NoSpace` at once where there can be none.
    pub async fn session(&self) -> Result<Arc<EtcdSession>, EtcdFailure> {
        if self.sessions.current().is_none() && self.sessions.no_space.load(Ordering::Relaxed) {
            return Err(EtcdFailure::NoSpace);
        }
        let mut sessions = self.sessions.current.subscribe();
        let live = |session: &Option<Arc<EtcdSession>>| session.as_ref().is_some_and(|s| !s.lost.is_cancelled());
        let waited = until(&self.clock, self.clock.now().plus(SESSION_WAIT), sessions.wait_for(live)).await;
        let session = waited.and_then(Result::ok).and_then(|session| session.clone());
        session.ok_or_else(|| EtcdFailure::NoEffect("etcd cannot be reached for a session".into()))
    }

    pub async fn open_session(&self) -> Result<(), EtcdFailure> {
        let opened = self.open_new_session().await;
        self.sessions.no_space.store(opened == Err(EtcdFailure::NoSpace), Ordering::Relaxed);
        opened
    }

    async fn open_new_session(&self) -> Result<(), EtcdFailure> {
        let ttl = i64::try_from(SESSION_TTL.as_secs()).unwrap_or(i64::MAX);
        let lease = self.members.call(LeaseGrantCall { ttl }, CallKind::Read).await?.id;
        let name = format!("{:032x}", u128::from_be_bytes(draw_bytes()));
        let marker = self.layout.marker(&name);
        let value = format!(r#"{{"v":1,"pid":{}}}"#, std::process::id());
        let put = TxnPart::put(marker.clone(), value.into_bytes(), lease);
        // Putting it twice is putting it once.
        let put = TxnCall { success: vec![put], ..TxnCall::default() };
        let reply = self.members.call(put, CallKind::Read).await?;
        let term = AtomicU64::new(term_of(reply.header.as_ref()));
        let lost = CancellationToken::new();
        let session = EtcdSession { lease, marker, buckets: BucketPool::default(), term, lost };
        self.sessions.current.send_replace(Some(Arc::new(session)));
        Ok(())
    }

    /// Keeps the session alive, and opens a new one when it is lost, until the engine stops.
    pub async fn keep_session(self: Arc<Self>) {
        loop {
            if let Some(session) = self.sessions.current() {
                tokio::select! {
                    () = self.stopped.cancelled() => return self.end_session(&session).await,
                    () = session.lost.cancelled() => {}
                    () = self.prolong(&session) => session.lost.cancel(),
                }
            }
            tokio::select! {
                () = self.stopped.cancelled() => return,
                opened = self.open_session() => {
                    if opened.is_err() {
                        self.clock.sleep_until(self.clock.now().plus(REOPEN_PAUSE)).await;
                    }
                }
            }
        }
    }

    /// Returns when etcd says that the session is gone.
    async fn prolong(&self, session: &EtcdSession) {
        loop {
            self.clock.sleep_until(self.clock.now().plus(KEEPALIVE_EVERY)).await;
            // Not answered: it may live still, and the next answer tells.
            if self.members.keep_alive(session.lease).await == Ok(false) {
                return;
            }
        }
    }

    /// All keys of the session go at once. Failed: they go with the session, soon.
    async fn end_session(&self, session: &EtcdSession) {
        let _ = self.members.call(LeaseRevokeCall { id: session.lease }, CallKind::Read).await;
    }
}
