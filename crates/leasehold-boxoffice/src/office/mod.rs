//! The office: every operation of a box office, over an engine (leases) and a ledger (the database that decides).
//!
//! ```text
//!   hold ──▶ lease on all seats (engine) ──▶ hold row (ledger) ──▶ answer     if refused, the lease is released
//!   sale ──▶ one transaction (ledger) ──▶ leases released ──▶ answer
//! ```
//!
//! # Laws
//!
//! 1. First the lease, then the hold row. The row decides, and it ends before the lease.
//! 2. Nothing in memory decides. Any number of offices may share one engine and one ledger. The event cache may refuse
//!    early, and never grants.
//! 3. A refusal by the engine is answered without the ledger.
//! 4. Whatever takes a lease or sells runs in a task of its own: a caller that disconnects does not interrupt it.
//!
//! # In reading order
//!
//! `view` (requests and answers), `secret`, `engine` (which engine it is), `lease` (leases on seats), `event_cache` (layouts
//! and seat maps), `open_hold`, `hold_lifecycle` (renew, change, pay, release), `sale` (sales, and late money), `staff`,
//! `money` (refunds), `webhooks`, `tasks` (sweeper, sequencer, follower), `task_health`, `metrics`.
//!
//! # Not here
//!
//! Permissions and wire formats (the server), decisions (`model`), rows (`ledger`).

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::{Clock, SystemClock};
use leasehold::engine::Engine;

use crate::error::Error;
use crate::ledger::Ledger;
use crate::model::*;

pub mod engine;
mod event_cache;
mod hold_lifecycle;
mod lease;
mod metrics;
mod money;
mod open_hold;
mod sale;
pub mod secret;
mod staff;
mod task_health;
mod tasks;
#[cfg(test)]
mod tests;
pub mod view;
mod webhooks;

pub use engine::Admitted;
pub use money::{MoneyDecision, RefundMessage};
pub use secret::HoldKey;
pub use task_health::OfficeTask;
pub use view::*;
pub use webhooks::MAX_WEBHOOKS;

/// How an office is opened.
#[derive(Clone)]
pub struct OfficeOptions {
    /// Measures the intervals of the tasks and the age of the event cache.
    pub clock: Arc<dyn Clock>,
    /// How often the sweeper ends holds that are over.
    pub sweep_every: Duration,
    /// How often the sequencer numbers entries, and the follower reads new ones.
    pub sequence_every: Duration,
    /// A lease without a row is revoked at this age.
    pub orphan_lease_after: Duration,
    /// How long stored answers and ended holds are kept.
    pub retention: Duration,
    /// The holder name of the leases that this office's tasks take.
    pub name: String,
}

impl Default for OfficeOptions {
    fn default() -> Self {
        Self {
            clock: SystemClock::shared(),
            sweep_every: Duration::from_secs(1),
            sequence_every: Duration::from_millis(20),
            orphan_lease_after: Duration::from_secs(10),
            retention: Duration::from_secs(24 * 3600),
            name: "office".into(),
        }
    }
}

/// A box office. Cheap to clone; clones are the same office.
#[derive(Clone)]
pub struct Office(Arc<OfficeInner>);

struct OfficeInner {
    engine: Arc<dyn Engine>,
    ledger: Arc<dyn Ledger>,
    options: OfficeOptions,
    cache: event_cache::EventCache,
    counts: metrics::OfficeCounters,
    health: task_health::TaskHealth,
    /// The identity of the engine that was admitted.
    identity: std::sync::Mutex<Option<String>>,
}

impl std::fmt::Debug for Office {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Office").field("ledger", &self.0.ledger.name()).finish_non_exhaustive()
    }
}

impl Office {
    /// An office over an engine that promises fencing, and a ledger.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the engine promises no fencing.
    pub fn new(engine: Arc<dyn Engine>, ledger: Arc<dyn Ledger>, options: OfficeOptions) -> Result<Self, Error> {
        let promises = engine.promises();
        if !promises.fencing {
            return Err(Error::Invalid(format!(
                "the {} engine promises no fencing, so seats would have no token: use another engine",
                promises.engine
            )));
        }
        let (cache, counts, identity) = Default::default();
        let health = task_health::TaskHealth::new(options.clock.now());
        Ok(Self(Arc::new(OfficeInner { engine, ledger, options, cache, counts, health, identity })))
    }

    /// Whether holds can be made: the engine is the one that was admitted, and the office's tasks can take their leases,
    /// on this server or on another.
    ///
    /// # Errors
    ///
    /// Why not.
    pub async fn ready(&self) -> Result<(), Error> {
        self.check_engine().await?;
        let barred = [OfficeTask::Sweeper, OfficeTask::Sequencer]
            .into_iter()
            .find_map(|task| self.0.health.blocked_reason(task));
        match barred {
            None => Ok(()),
            Some(why) => {
                let (part, attempt) = ("office", "taking the leases of the box office's own tasks".into());
                Err(Error::Unavailable { part, attempt, source: why.into() })
            }
        }
    }

    /// Records that a task finished a round.
    pub fn record_task_round(&self, task: OfficeTask) {
        self.0.health.record_round(task, self.clock().now());
    }

    /// The ledger itself, for tests. Handlers and tasks use a method of the office for each purpose.
    #[cfg(any(test, feature = "testkit"))]
    #[must_use]
    pub fn ledger(&self) -> &Arc<dyn Ledger> {
        &self.0.ledger
    }

    /// Whether other servers may use the same ledger at the same time.
    #[must_use]
    pub fn shares_ledger(&self) -> bool {
        self.0.ledger.is_shared()
    }

    /// The moment it is, by the ledger's clock.
    ///
    /// # Errors
    ///
    /// The ledger could not be asked.
    pub async fn ledger_now(&self) -> Result<Moment, Error> {
        self.0.ledger.now().await
    }

    /// Whether the ledger can still write: goes through its writer without writing anything.
    ///
    /// # Errors
    ///
    /// Why it cannot.
    pub async fn check_ledger_writer(&self) -> Result<(), Error> {
        self.0.ledger.sequence(0).await.map(drop)
    }

    /// Finishes the transactions under way and closes the ledger. Later calls are [`Error::Unavailable`].
    ///
    /// # Errors
    ///
    /// The ledger could not finish.
    pub async fn close(&self) -> Result<(), Error> {
        self.0.ledger.close().await
    }

    /// Counters of this office, and gauges read from the ledger. Without an answer of the ledger there are no gauges.
    pub async fn metrics(&self) -> OfficeMetrics {
        OfficeMetrics { stands: self.stands().await.ok(), ..self.counted() }
    }

    /// Counters of this office alone: it reads nothing from the ledger.
    #[must_use]
    pub fn counted(&self) -> OfficeMetrics {
        OfficeMetrics { idle_seconds: self.0.health.idle_seconds(self.clock().now()), ..self.0.counts.to_metrics() }
    }

    async fn stands(&self) -> Result<LedgerGauges, Error> {
        use MoneyState::{CancelDue, RefundDue, Stuck};
        let live = self.0.ledger.count_live().await?;
        let money = self.0.ledger.money_in_states(None, &[RefundDue, CancelDue, Stuck]).await?;
        let captures = self.0.ledger.captures_open().await?;
        let failed =
            |order: &&OrderRow| order.capture.as_ref().is_some_and(|capture| capture.state == CaptureState::Failed);
        let now = self.0.ledger.now().await?;
        let due = || money.iter().filter(|row| row.state != Stuck);
        let oldest = due().filter_map(|row| Some(now.since(row.steps.last()?.at))).max();
        Ok(LedgerGauges {
            active: live.active,
            paying: live.paying,
            sweeper_lag_seconds: seconds(live.overdue_ms),
            refunds_due: due().count() as u64,
            refund_due_seconds: seconds(oldest.unwrap_or(0)),
            stuck_payments: (money.iter().filter(|row| row.state == Stuck).count()
                + captures.iter().filter(failed).count()) as u64,
        })
    }

    /// Wakes when entries of this event got numbers. Then read [`Office::audit`] from the last number seen.
    #[must_use]
    pub fn changes(&self, event: &EventId) -> tokio::sync::watch::Receiver<u64> {
        self.0.cache.subscribe(event)
    }

    fn clock(&self) -> &dyn Clock {
        &*self.0.options.clock
    }

    /// Runs work in a task of its own: it completes even if the caller is dropped (law 4).
    async fn detached<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let done = tokio::spawn(work).await;
        done.unwrap_or_else(|error| {
            let attempt = "a request to the box office".into();
            Err(Error::Indeterminate { part: "office", attempt, source: error.to_string().into() })
        })
    }
}

#[expect(clippy::cast_precision_loss, reason = "seconds for a gauge")]
fn seconds(millis: u64) -> f64 {
    millis as f64 / 1000.0
}

/// The view of a hold row at this moment.
fn to_hold_view(hold: HoldRow, now: Moment) -> HoldView {
    let mut hold = hold;
    hold.state = hold.state_at(now);
    let live = hold.state.has_seats();
    HoldView {
        key: None,
        remaining_ms: if live { hold.expires_at.since(now) } else { 0 },
        renewable_ms: if live { hold.cap_at.since(now) } else { 0 },
        total: hold.total(),
        order_id: (hold.state == HoldState::Sold).then(|| OrderId::for_hold(&hold.hold_id)),
        resolution: None,
        money: Vec::new(),
        replayed: false,
        hold,
    }
}
