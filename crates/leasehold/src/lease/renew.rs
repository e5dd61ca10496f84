//! How long a lease is valid, and the task that renews it.
//!
//! ```text
//!   Lease ──┬── SharedLease: times (from when, until when, lost?) ◀── accept ── engine.renew
//!           └── RenewalTask: one task ── renews at 1/3 ── ends at lost, at release, at drop
//! ```
//!
//! # Laws
//!
//! 1. Validity is counted from before the request was sent.
//! 2. Lost is for ever: an answer that comes after the validity was over does not revive the guard.
//! 3. The clock alone ends a lease: a renewal task that is late, starved or dead changes nothing about it.
//! 4. No renewal is started after the guard is gone.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::Time;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::Lost;
use crate::clock::{self, Clock};
use crate::engine::{Engine, LeaseId, Renewal};
use crate::error::{Error, Refusal};

/// First pause after a failed renewal, and the longest; a short ttl makes both shorter.
const FIRST_RENEW_BACKOFF: Duration = Duration::from_millis(250);
const MAX_RENEW_BACKOFF: Duration = Duration::from_secs(5);

/// What is known of the lease's life, from the newest answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseTimes {
    /// When the request was sent whose answer this is.
    sent: Time,
    renew_at: Time,
    danger_at: Time,
    /// The lease is proven before this moment, and not at it.
    pub(crate) valid_until: Time,
    /// The end is at the cap: renewing cannot push it.
    capped: bool,
    lost: Option<Lost>,
}

impl LeaseTimes {
    /// Counts an answer from before its request was sent. The engine decided some time between then and
    /// now; from then on is the only span that is provably inside the lease.
    pub(crate) fn counted_from(sent: Time, answer: Renewal) -> Self {
        let third = answer.remaining / 3;
        Self {
            sent,
            renew_at: sent.plus(third),
            danger_at: sent.plus(answer.remaining.saturating_sub(third)),
            valid_until: sent.plus(answer.remaining),
            capped: answer.renewable.is_some_and(|renewable| renewable <= answer.remaining),
            lost: None,
        }
    }

    fn lost_at(&self, now: Time) -> Option<Lost> {
        self.lost.or_else(|| {
            let over = now >= self.valid_until;
            over.then_some(if self.capped { Lost::Capped } else { Lost::Lapsed })
        })
    }
}

/// What the guard and its renewal task share.
pub(crate) struct SharedLease {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) lease_id: LeaseId,
    pub(crate) resources: Vec<String>,
    /// Every resource was asked for exclusively: only such a lease may write through a fence.
    pub(crate) exclusive: bool,
    pub(crate) holder: String,
    /// Sent with every renewal, so that a renewal by the bare id with another ttl does not become the rule.
    pub(crate) ttl: Duration,
    /// A watch channel: tasks that wait for danger or loss must be woken by a renewal. The clock is read under
    /// its lock wherever the two are compared, or an answer could slip in between.
    pub(crate) terms: watch::Sender<LeaseTimes>,
}

impl SharedLease {
    /// Whether it is lost, and why. Remembers the answer.
    pub(crate) fn verdict(&self) -> Option<Lost> {
        let mut verdict = None;
        self.terms.send_if_modified(|terms| {
            let before = terms.lost;
            terms.lost = terms.lost_at(self.clock.now());
            verdict = terms.lost;
            before != terms.lost
        });
        verdict
    }

    pub(crate) fn is_live(&self) -> bool {
        let terms = self.terms.borrow();
        terms.lost_at(self.clock.now()).is_none()
    }

    pub(crate) fn is_safe(&self) -> bool {
        let terms = self.terms.borrow();
        let now = self.clock.now();
        now < terms.danger_at && terms.lost_at(now).is_none()
    }

    pub(crate) fn remaining(&self) -> Duration {
        let terms = self.terms.borrow();
        let now = self.clock.now();
        terms.lost_at(now).map_or_else(|| terms.valid_until.since(now), |_| Duration::ZERO)
    }

    pub(crate) async fn danger(&self) {
        let mut changes = self.terms.subscribe();
        while self.is_safe() {
            let danger_at = changes.borrow_and_update().danger_at;
            self.sleep_or_change(danger_at, &mut changes).await;
        }
    }

    pub(crate) async fn lost(&self) -> Lost {
        let mut changes = self.terms.subscribe();
        loop {
            if let Some(lost) = self.verdict() {
                return lost;
            }
            let valid_until = changes.borrow_and_update().valid_until;
            self.sleep_or_change(valid_until, &mut changes).await;
        }
    }

    async fn sleep_or_change(&self, at: Time, changes: &mut watch::Receiver<LeaseTimes>) {
        tokio::select! {
            biased;
            () = self.clock.sleep_until(at) => {}
            // Cannot fail: the sender is a field of self.
            _ = changes.changed() => {}
        }
    }

    /// Asks the engine once and takes over what it says.
    pub(crate) async fn renew(&self) -> Result<Renewal, Error> {
        if self.verdict().is_some() {
            return Err(Refusal::Stale.into());
        }
        let sent = self.clock.now();
        let answer = self.engine.renew(&self.lease_id, Some(self.ttl)).await;
        match &answer {
            Ok(renewal) => self.accept(sent, *renewal)?,
            Err(Error::Refused(Refusal::Stale | Refusal::NotHeld)) => self.lose(Lost::Stale),
            Err(_) => {}
        }
        answer
    }

    /// Takes over an engine's yes, unless it came too late (law 2).
    fn accept(&self, sent: Time, renewal: Renewal) -> Result<(), Error> {
        let mut lost = None;
        self.terms.send_if_modified(|terms| {
            lost = terms.lost_at(self.clock.now());
            // Answers may overtake each other; what was asked last is what the engine says now.
            let newest = sent >= terms.sent;
            if lost.is_some() {
                terms.lost = lost;
            } else if newest {
                *terms = LeaseTimes::counted_from(sent, renewal);
            }
            lost.is_some() || newest
        });
        lost.map_or(Ok(()), |_| Err(Refusal::Stale.into()))
    }

    fn lose(&self, lost: Lost) {
        self.terms.send_if_modified(|terms| {
            let before = terms.lost;
            terms.lost = terms.lost_at(self.clock.now()).or(Some(lost));
            before != terms.lost
        });
    }

    /// Renews whenever a renewal is due, and never ends by itself: the loss of the lease ends it.
    async fn renew_in_time(&self) -> Infallible {
        let mut changes = self.terms.subscribe();
        let mut failures = 0;
        let mut not_before = Time::ZERO;
        loop {
            let terms = *changes.borrow_and_update();
            let due = terms.renew_at.max(not_before);
            if terms.capped {
                self.sleep_or_change(Time::NEVER, &mut changes).await;
                continue;
            }
            if self.clock.now() < due {
                self.sleep_or_change(due, &mut changes).await;
                continue;
            }
            // An attempt that hangs is given up after a third of the ttl, so that there is time for another.
            let give_up = self.clock.now().plus(self.ttl / 3);
            match clock::until(&*self.clock, give_up, self.renew()).await {
                Some(Ok(_)) => {
                    failures = 0;
                    not_before = Time::ZERO;
                }
                // It would get the same answer for ever. The clock does the rest: danger, then lost.
                Some(Err(Error::Invalid(_) | Error::Corrupt { .. })) => {
                    self.sleep_or_change(Time::NEVER, &mut changes).await;
                }
                Some(Err(_)) | None => {
                    not_before = self.clock.now().plus(self.backoff(failures));
                    failures = failures.saturating_add(1);
                }
            }
        }
    }

    /// How long to wait after this many failures: doubling, bounded, and spread over its upper half so
    /// that a fleet whose engine comes back does not ask in step. The spread is drawn from what the lease
    /// is and when it was last renewed, so that a run under a clock set by hand can be repeated.
    fn backoff(&self, failures: u32) -> Duration {
        let first = (self.ttl / 30).clamp(Duration::from_millis(1), FIRST_RENEW_BACKOFF);
        let longest = (self.ttl / 6).clamp(first, MAX_RENEW_BACKOFF);
        let whole = first.saturating_mul(1 << failures.min(16)).min(longest);
        let sent = self.terms.borrow().sent;
        clock::spread_upper_half(whole, &(&self.resources, &self.holder, sent, failures))
    }
}

/// Owns the task that renews a lease. Dropping it ends the task.
pub(crate) struct RenewalTask {
    task: JoinHandle<()>,
    cancellation: CancellationToken,
}

impl RenewalTask {
    pub(crate) fn start(runtime: &Handle, held: Arc<SharedLease>, renewing: bool) -> Self {
        let cancellation = CancellationToken::new();
        // Cancels however the task ends: by loss, by abort, by a panic in an engine, by the runtime's end.
        let at_the_end = cancellation.clone().drop_guard();
        let task = runtime.spawn(async move {
            let _at_the_end = at_the_end;
            tokio::select! {
                biased;
                _ = held.lost() => {}
                never = held.renew_in_time(), if renewing => match never {},
            }
        });
        Self { task, cancellation }
    }

    pub(crate) fn cancellation(&self) -> CancellationToken {
        self.cancellation.child_token()
    }
}

impl Drop for RenewalTask {
    fn drop(&mut self) {
        self.task.abort();
        // The runtime drops an aborted task later; work under the lease must be cancelled at once.
        self.cancellation.cancel();
    }
}
