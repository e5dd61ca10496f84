//! Counters of one office.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use leasehold::engine::embedded::Histogram;

use super::task_health::OfficeTask;
use super::view::{LateOutcome, OfficeMetrics};
use crate::error::Error;
use crate::model::{Conflict, Reason, Refusal};

/// Counters of one office.
#[derive(Debug, Default)]
pub(super) struct OfficeCounters {
    hold_requests: Mutex<Histogram>,
    sale_times: Mutex<Histogram>,
    late_money: [AtomicU64; LateOutcome::ALL.len()],
    pub(super) expired: AtomicU64,
    conflicts: [AtomicU64; 7],
    refused: AtomicU64,
    stale_sales: AtomicU64,
    expired_sales: AtomicU64,
    pub(super) renew_failures: AtomicU64,
    pub(super) orphan_leases: AtomicU64,
    pub(super) holds: AtomicU64,
    pub(super) sales: AtomicU64,
}

impl OfficeCounters {
    /// Records how long a request for seats took.
    pub(super) fn record_hold_request(&self, took: Duration) {
        self.hold_requests.lock().unwrap_or_else(PoisonError::into_inner).add(took);
    }

    /// Counts an order, and how long the sale took.
    pub(super) fn record_sale(&self, took: Duration) {
        self.sales.fetch_add(1, Relaxed);
        self.sale_times.lock().unwrap_or_else(PoisonError::into_inner).add(took);
    }

    /// Counts an outcome of late money.
    pub(super) fn count_late_money(&self, outcome: LateOutcome) {
        self.late_money[outcome as usize].fetch_add(1, Relaxed);
    }

    /// Counts a request that was refused for these conflicts.
    pub(super) fn count_conflicts(&self, conflicts: &[Conflict]) {
        self.refused.fetch_add(1, Relaxed);
        for lost in conflicts {
            let at = Reason::ALL.iter().position(|reason| *reason == lost.reason).unwrap_or(0);
            self.conflicts[at].fetch_add(1, Relaxed);
        }
    }

    pub(super) fn count_sale_refusal(&self, error: &Error) {
        match error {
            Error::Refused(Refusal::StaleToken) => self.stale_sales.fetch_add(1, Relaxed),
            Error::Refused(Refusal::Ended(_) | Refusal::Late(_)) => self.expired_sales.fetch_add(1, Relaxed),
            _ => 0,
        };
    }

    pub(super) fn to_metrics(&self) -> OfficeMetrics {
        let of = |counter: &AtomicU64| counter.load(Relaxed);
        let spread = |spread: &Mutex<Histogram>| *spread.lock().unwrap_or_else(PoisonError::into_inner);
        OfficeMetrics {
            stands: None,
            idle_seconds: [0.0; OfficeTask::ALL.len()],
            hold_requests: spread(&self.hold_requests),
            sale_times: spread(&self.sale_times),
            late_money_total: std::array::from_fn(|at| of(&self.late_money[at])),
            expired_total: of(&self.expired),
            conflicts_total: std::array::from_fn(|at| of(&self.conflicts[at])),
            refused_total: of(&self.refused),
            sale_conflicts_total: [of(&self.stale_sales), of(&self.expired_sales)],
            renew_failures_total: of(&self.renew_failures),
            orphan_leases_total: of(&self.orphan_leases),
            holds_total: of(&self.holds),
            sales_total: of(&self.sales),
        }
    }
}
