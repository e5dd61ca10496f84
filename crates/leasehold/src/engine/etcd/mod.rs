//! etcd as an engine: one transaction decides each verb. `etcd://h1:2379,h2:2379,h3:2379`.
//!
//! # Promises
//!
//! Durable, fencing, fair, never early, and leases that outlive the process that took them. `etcdctl lock` and `elect`, Go's
//! `concurrency.Mutex` and `Election`, and the lock service of the members wait in the same queues, in order of arrival.
//!
//! # Does not promise
//!
//! Order or exclusion against another client whose name is a path above ours: Go's mutex on `a` waits for our `a/b`, and
//! ours does not wait for it. Rising tokens after a restore from a snapshot without `--bump-revision`: set `token_base=`
//! above the highest token seen. A lapse on time once every process of ours is dead: etcd ends such a lease up to ten
//! seconds and a sixteenth of its ttl later. That a claim waiting through another process is joined by a repeat of its
//! request: the repeat waits for that one's end instead. Which process is told `false` and which one *not held* more than a
//! minute after a release. That of several shared or permit claims, let in by one ending, the first to come has the lowest
//! token: each is granted by a transaction of its own. Quotas and a limit of all waiters: the server counts those.
//!
//! # Clock
//!
//! The leader's, by etcd leases that are never prolonged. Between opening such a lease and using it, this machine's
//! BOOTTIME, fenced by a session marker in every transaction that grants or renews. The wall clock is only shown.
//!
//! A machine whose BOOTTIME stands still while etcd's clock goes on (a virtual machine that is paused and not told; not one
//! that is suspended, which BOOTTIME counts) is outside of the promise. A stop of more than six seconds is noticed. After a
//! shorter one, other processes may end what is granted next, early by as much. Stops add up while one etcd lease is used for
//! new grants: a second, or a sixteenth of the ttl. And who counts on a lease by a clock that stood still counts too long.
//!
//! Another process knows a deadline as an upper bound, which is enough to end a lease. What it promises an owner it counts from
//! an end that it wrote itself: so a renewal, and the repeat of a request, move the lease to an etcd lease of its own. It knows
//! `max_hold` by the leader's clock, a second early at most, as long as that leader leads. After an election only the process
//! that wrote the lease last renews one with a `max_hold`; elsewhere that is Unavailable. Where the leader's machine is
//! suspended without an election, as a single member on a laptop is, a `max_hold` is as much longer through other processes.
//!
//! # Token
//!
//! `token_base` (0) and the revision of the transaction that granted. Not of the one that lined up: `etcdctl lock` exports
//! the revision at its grant, and tokens must rise over both.
//!
//! # On lost connection
//!
//! What was not sent goes to the next member. An acquire whose reply was lost is resolved: a transaction puts an ending
//! where the lease would be, so it happened, or never will. A promotion is read, a renewal and a release are sent again.
//! What is not resolved in four seconds is Indeterminate, and goes on being resolved and cleaned up. Every call is answered
//! within nine seconds beyond its patience.
//!
//! # Files, in reading order
//!
//! `options`, `keys`, `values`, `messages`, `failure`, `tls`, `members`, `session`, `buckets`, `lease_clock`, `plan` (the
//! transactions), `shared_looks`, `shared`, `queue_line`, `own_leases`, `ending`, `owner`, `joining`, `attempt`, `attempt_queue`,
//! `attempt_recover`, `mirror`, `paging`, `view`, `events`, `examine`, `open`.

mod attempt;
mod attempt_queue;
mod attempt_recover;
mod buckets;
mod ending;
mod events;
mod examine;
mod failure;
mod joining;
mod keys;
#[cfg(test)]
mod late_tests;
mod lease_clock;
mod members;
mod messages;
mod mirror;
mod open;
mod options;
mod own_leases;
mod owner;
mod paging;
mod plan;
mod queue_line;
mod session;
mod shared;
mod shared_looks;
mod tls;
mod values;
mod view;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::fact::fingerprint;
use leasehold_core::{Secret, WaiterId};

use super::acquire_future::{AcquireFuture, EndsUnseen};
use super::from_book::{self, millis};
use super::{
    Answer, Claim, Engine, EngineProfile, EventId, Finding, Grant, Keys, LeaseId, Promises, Query, Renewal, Resource,
    Token, Watch,
};
use crate::clock::{Clock as _, until};
use crate::error::{Error, Refusal};
use attempt::EtcdAttempt;
use events::EtcdWatcher;
use failure::{indeterminate, unavailable};
use joining::{AcquireResult, AttemptCallers};
pub use options::EtcdEngineOptions;
use owner::LeaseChange;
use shared::EtcdShared;

const ENGINE: &str = "etcd";

/// How long a call may take beyond its patience. What it began goes on, and is cleaned up.
const MAX_DELAY: Duration = Duration::from_secs(9);
/// How long closing waits for calls under way.
const MAX_CLOSE_WAIT: Duration = Duration::from_secs(4);
const TOO_LATE: &str = "etcd did not answer in time";

/// What it promises, and what it needs for that.
pub const PROFILE: EngineProfile = EngineProfile { url: "etcd://HOST,HOST,HOST", best: PROMISES, needs: &[] };

const PROMISES: Promises =
    Promises { engine: ENGINE, durable: true, fencing: true, fair: true, never_early: true, outlives_process: true };

/// The client of one prefix of one cluster. See the module.
pub struct EtcdEngine {
    shared: Arc<EtcdShared>,
    identity: String,
    /// Names the history of events: the same for every process.
    run: u64,
}

impl fmt::Debug for EtcdEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdEngine").field("options", &self.shared.options).finish_non_exhaustive()
    }
}

impl Drop for EtcdEngine {
    fn drop(&mut self) {
        // Without close: the tasks end, leases by their time, and waiting claims with the session.
        self.shared.closed.cancel();
        self.shared.stopped.cancel();
    }
}

/// Ends leases that nobody saw.
struct EtcdUnseen(Arc<EtcdShared>);

impl EndsUnseen for EtcdUnseen {
    fn end_unseen(&self, grant: Grant) {
        let shared = self.0.clone();
        self.0.spawn_task(async move {
            // Failed: it lapses by its ttl.
            let _ = shared.release_lease(&grant.lease_id, "end a lease that nobody saw").await;
        });
    }
}

impl EtcdEngine {
    /// How many waiting claims were woken because their turn had come. For tests.
    #[cfg(any(test, feature = "testkit"))]
    #[must_use]
    pub fn wakes(&self) -> u64 {
        self.shared.mirrors.wakes()
    }

    fn check_claim(&self, claim: &Claim) -> Result<u64, Error> {
        let wants = from_book::wants(claim);
        // Neither is kept: the queue is in etcd, and the secret comes later.
        let checked = from_book::acquire(claim, &wants, None, WaiterId(0), Secret::new([0; 16]));
        self.shared.options.limits.check(&checked).map_err(Error::Invalid)?;
        Ok(fingerprint(&wants, checked.ttl_ms, checked.max_hold_ms, checked.delay_ms))
    }

    /// The answer, if it comes in time. `late`: what it means that it does not.
    async fn in_time<T>(
        &self,
        attempt: &str,
        late: fn(String, &'static str) -> Error,
        answer: impl Future<Output = Result<T, Error>> + Send,
    ) -> Result<T, Error> {
        let clock = self.shared.clock;
        let answer = until(&clock, clock.now().plus(MAX_DELAY), answer).await;
        answer.unwrap_or_else(|| Err(late(attempt.to_owned(), TOO_LATE)))
    }

    async fn acquire_claim(&self, claim: Claim) -> Result<Grant, Error> {
        self.shared.refuse_closed("acquire")?;
        let mark = self.check_claim(&claim)?;
        let shared = &self.shared;
        // Whole milliseconds, rounded up: nothing lapses early.
        let claim = Claim {
            ttl: Duration::from_millis(millis(claim.ttl)),
            delay: Duration::from_millis(millis(claim.delay)),
            max_hold: claim.max_hold.map(|cap| Duration::from_millis(millis(cap))),
            ..claim
        };
        let patience = shared.clock.now().plus(claim.wait);
        let request_key = claim.request.as_ref().map(|id| shared.layout.request(&claim.principal, id));
        let from = loop {
            let callers = Arc::new(AttemptCallers::new(mark));
            let found = request_key.as_ref().and_then(|key| shared.requests.find_or_insert(key, &callers));
            let Some(found) = found else {
                let from = callers.join(patience).ok_or_else(|| unavailable("acquire", TOO_LATE))?;
                let attempt = EtcdAttempt { shared: shared.clone(), claim: claim.clone(), callers, request_key };
                shared.spawn_task(attempt.run());
                break from;
            };
            let is_over = found.patience() <= shared.clock.now() && patience > found.patience();
            if found.fingerprint != mark && !is_over {
                return Err(Refusal::Mismatch.into());
            }
            if found.fingerprint == mark
                && let Some(from) = found.join(patience)
            {
                break from;
            }
            // It is about to be answered: its request is free then.
            shared.backoff(0).await;
        };
        let ends = claim.request.is_none().then(|| EtcdUnseen(shared.clone()));
        let mut future = AcquireFuture::new(from, ENGINE, "acquire".into(), ends);
        let clock = shared.clock;
        let late = clock.sleep_until(patience.plus(MAX_DELAY));
        let answer: Option<AcquireResult> = tokio::select! {
            biased;
            answer = &mut future => Some(answer),
            () = late => None,
        };
        answer.unwrap_or_else(|| Err(indeterminate("acquire", TOO_LATE)))
    }

    async fn floor(&self, floor: Option<Token>) -> Result<Token, Error> {
        let attempt = "read the floor";
        self.shared.refuse_closed(attempt)?;
        let newest = self.shared.newest_revision();
        let read = async { newest.await.map_err(|failure| failure.into_read_error(attempt.into())) };
        let revision = self.in_time(attempt, late_read, read).await?;
        let revision = u64::try_from(revision).unwrap_or(0);
        match floor {
            None => self.shared.token(revision).map_err(|failure| failure.into_error(false, attempt.into())),
            Some(floor) => {
                let base = floor.get().saturating_sub(revision).max(self.shared.options.token_base);
                Err(Error::Invalid(format!(
                    "tokens of this engine are revisions of etcd: put token_base={base} into every url of it"
                )))
            }
        }
    }

    async fn stop(&self) {
        let shared = &self.shared;
        shared.closed.cancel();
        shared.tasks.close();
        let clock = shared.clock;
        // A lease that cannot be released in this time lapses; waiting claims go with the session.
        let _ = until(&clock, clock.now().plus(MAX_CLOSE_WAIT), shared.tasks.wait()).await;
        shared.stopped.cancel();
        let _ = until(&clock, clock.now().plus(MAX_CLOSE_WAIT), shared.wait_for_background()).await;
    }
}

fn late_read(attempt: String, cause: &'static str) -> Error {
    unavailable(attempt, cause)
}

fn late_write(attempt: String, cause: &'static str) -> Error {
    indeterminate(attempt, cause)
}

impl Engine for EtcdEngine {
    fn promises(&self) -> Promises {
        PROMISES
    }

    fn acquire(&self, claim: Claim) -> Answer<'_, Grant> {
        Box::pin(self.acquire_claim(claim))
    }

    fn renew<'a>(&'a self, lease: &'a LeaseId, ttl: Option<Duration>) -> Answer<'a, Renewal> {
        Box::pin(async move {
            let attempt = "renew a lease";
            self.shared.refuse_closed(attempt)?;
            if let Some(ttl) = ttl {
                self.shared.options.limits.check_ttl(millis(ttl)).map_err(Error::Invalid)?;
            }
            let ttl = ttl.map(|ttl| Duration::from_millis(millis(ttl)));
            let changed = self.shared.change_lease(lease, LeaseChange::Renew(ttl), attempt);
            self.in_time(attempt, late_write, changed).await
        })
    }

    fn relabel<'a>(&'a self, lease: &'a LeaseId, holder: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            let attempt = "relabel a lease";
            self.shared.refuse_closed(attempt)?;
            self.shared.options.limits.check_holder(holder).map_err(Error::Invalid)?;
            let changed = self.shared.change_lease(lease, LeaseChange::Relabel(holder), attempt);
            self.in_time(attempt, late_write, changed).await.map(drop)
        })
    }

    fn release<'a>(&'a self, lease: &'a LeaseId) -> Answer<'a, bool> {
        Box::pin(async move {
            let attempt = "release a lease";
            self.shared.refuse_closed(attempt)?;
            self.in_time(attempt, late_write, self.shared.release_lease(lease, attempt)).await
        })
    }

    fn revoke<'a>(&'a self, name: &'a str, reason: &'a str) -> Answer<'a, usize> {
        Box::pin(async move {
            let attempt = format!("revoke {name}");
            self.shared.refuse_closed(&attempt)?;
            let limits = &self.shared.options.limits;
            limits.check_name(name).map_err(Error::Invalid)?;
            if reason.trim().is_empty() || reason.len() > limits.holder_bytes {
                return Err(Error::Invalid(format!("a revoke gives a reason of 1 to {} bytes", limits.holder_bytes)));
            }
            self.in_time(&attempt, late_write, self.shared.revoke_all(name, reason, &attempt)).await
        })
    }

    fn inspect<'a>(&'a self, name: &'a str) -> Answer<'a, Option<Resource>> {
        Box::pin(async move {
            let attempt = format!("inspect {name}");
            self.shared.refuse_closed(&attempt)?;
            self.shared.options.limits.check_name(name).map_err(Error::Invalid)?;
            let shown = async { self.shared.show_one(name).await.map_err(|f| f.into_read_error(attempt.clone())) };
            self.in_time(&attempt, late_read, shown).await
        })
    }

    fn list(&self, query: Query) -> Answer<'_, Vec<Resource>> {
        Box::pin(async move {
            let attempt = format!("list {}", query.prefix);
            self.shared.refuse_closed(&attempt)?;
            let listed = async { self.shared.list_page(&query).await.map_err(|f| f.into_read_error(attempt.clone())) };
            self.in_time(&attempt, late_read, listed).await
        })
    }

    fn raise_floor(&self, floor: Option<Token>) -> Answer<'_, Token> {
        Box::pin(self.floor(floor))
    }

    fn identity(&self) -> Answer<'_, Option<String>> {
        Box::pin(async move {
            self.shared.refuse_closed("read the identity")?;
            Ok(Some(self.identity.clone()))
        })
    }

    fn examine(&self) -> Answer<'_, Vec<Finding>> {
        Box::pin(async move {
            let attempt = "examine the engine";
            self.shared.refuse_closed(attempt)?;
            let found = async { self.shared.examine_cluster().await.map_err(|f| f.into_read_error(attempt.into())) };
            self.in_time(attempt, late_read, found).await
        })
    }

    fn watch(&self, since: Option<EventId>) -> Answer<'_, Watch> {
        Box::pin(async move {
            self.shared.refuse_closed("watch")?;
            let opened = EtcdWatcher::open(self.shared.clone(), self.run, since);
            let watcher = self.in_time("watch", late_read, opened).await?;
            Ok(Box::new(watcher) as Watch)
        })
    }

    fn keys(&self) -> Option<&dyn Keys> {
        None
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            self.stop().await;
            Ok(())
        })
    }
}
