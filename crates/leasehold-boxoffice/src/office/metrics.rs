//! What is counted.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::view::Metrics;
use crate::error::Error;
use crate::model::{Conflict, Reason, Refusal};

/// Counters of one office.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) active: AtomicU64,
    pub(super) paying: AtomicU64,
    pub(super) expired: AtomicU64,
    conflicts: [AtomicU64; 7],
    refused: AtomicU64,
    stale_sales: AtomicU64,
    expired_sales: AtomicU64,
    pub(super) renew_failures: AtomicU64,
    pub(super) lag_ms: AtomicU64,
    pub(super) orphan_leases: AtomicU64,
    pub(super) holds: AtomicU64,
    pub(super) sales: AtomicU64,
}

impl Counts {
    /// A request was refused for these.
    pub(super) fn lost(&self, conflicts: &[Conflict]) {
        self.refused.fetch_add(1, Relaxed);
        for lost in conflicts {
            let at = Reason::ALL.iter().position(|reason| *reason == lost.reason).unwrap_or(0);
            self.conflicts[at].fetch_add(1, Relaxed);
        }
    }

    pub(super) fn sale_refused(&self, error: &Error) {
        match error {
            Error::Refused(Refusal::StaleToken) => self.stale_sales.fetch_add(1, Relaxed),
            Error::Refused(Refusal::Ended(_) | Refusal::Late(_)) => self.expired_sales.fetch_add(1, Relaxed),
            _ => 0,
        };
    }

    pub(super) fn read(&self) -> Metrics {
        let of = |counter: &AtomicU64| counter.load(Relaxed);
        #[expect(clippy::cast_precision_loss, reason = "seconds for a gauge")]
        let lag = of(&self.lag_ms) as f64 / 1000.0;
        Metrics {
            active: of(&self.active),
            paying: of(&self.paying),
            expired_total: of(&self.expired),
            conflicts_total: std::array::from_fn(|at| of(&self.conflicts[at])),
            refused_total: of(&self.refused),
            sale_conflicts_total: [of(&self.stale_sales), of(&self.expired_sales)],
            renew_failures_total: of(&self.renew_failures),
            sweeper_lag_seconds: lag,
            orphan_leases_total: of(&self.orphan_leases),
            holds_total: of(&self.holds),
            sales_total: of(&self.sales),
        }
    }
}
