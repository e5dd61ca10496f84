//! Counters and histograms of a rehearsal, updated while it runs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::bench::latency::LatencyHistogram;

/// Counters behind a lock, shared by all buyer tasks.
#[derive(Clone)]
pub struct SharedCounters(Arc<Mutex<RehearsalCounters>>);

pub struct RehearsalCounters {
    /// Latencies of granted holds, of refusals, of successful confirms, of releases.
    pub hold: LatencyHistogram,
    pub refusal: LatencyHistogram,
    pub confirm: LatencyHistogram,
    pub release: LatencyHistogram,
    /// Refused seats and areas, by reason.
    pub reasons: BTreeMap<String, u64>,
    /// Buyers that arrived, and their outcomes.
    pub arrived: u64,
    pub went_without: u64,
    pub released: u64,
    pub walked_away: u64,
    pub declined: u64,
    pub never_paid: u64,
    pub sold: u64,
    pub sold_seats: u64,
    pub sold_late: u64,
    pub sold_other_seats: u64,
    pub refunded: u64,
    pub expired: u64,
    /// Unexpected responses, by status and code.
    pub errors: BTreeMap<String, u64>,
    /// Requests that failed without a response.
    pub lost: u64,
    /// Responses that ask to retry later, by status.
    pub not_now: BTreeMap<u16, u64>,
    /// The longest time to a response. The second one counts only requests without a retry.
    pub longest_wait: Duration,
    pub longest_wait_first_try: Duration,
    /// Requests whose outcome is still unknown.
    pub unknown: u64,
    /// When a load starts to count latencies, and for how long it counted.
    pub counting_from: Option<Instant>,
    pub counted: Duration,
}

impl SharedCounters {
    /// All counters at zero.
    ///
    /// # Errors
    ///
    /// A histogram cannot be created.
    pub fn new() -> anyhow::Result<Self> {
        Ok(Self(Arc::new(Mutex::new(RehearsalCounters {
            hold: LatencyHistogram::new()?,
            refusal: LatencyHistogram::new()?,
            confirm: LatencyHistogram::new()?,
            release: LatencyHistogram::new()?,
            reasons: BTreeMap::new(),
            arrived: 0,
            went_without: 0,
            released: 0,
            walked_away: 0,
            declined: 0,
            never_paid: 0,
            sold: 0,
            sold_seats: 0,
            sold_late: 0,
            sold_other_seats: 0,
            refunded: 0,
            expired: 0,
            errors: BTreeMap::new(),
            lost: 0,
            not_now: BTreeMap::new(),
            longest_wait: Duration::ZERO,
            longest_wait_first_try: Duration::ZERO,
            unknown: 0,
            counting_from: None,
            counted: Duration::ZERO,
        }))))
    }

    /// Updates or reads the counters under the lock.
    pub fn update<T>(&self, with: impl FnOnce(&mut RehearsalCounters) -> T) -> T {
        with(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl RehearsalCounters {
    /// Records the time that a request waited for its response.
    pub fn record_wait(&mut self, waited: Duration, retried: bool) {
        self.longest_wait = self.longest_wait.max(waited);
        if !retried {
            self.longest_wait_first_try = self.longest_wait_first_try.max(waited);
        }
    }

    /// Counts a response that asks to retry later.
    pub fn count_not_now(&mut self, status: u16) {
        *self.not_now.entry(status).or_default() += 1;
    }

    /// Counts an unexpected response.
    pub fn count_error(&mut self, status: u16, code: &str) {
        let code = if code.is_empty() { "no code" } else { code };
        *self.errors.entry(format!("{status} {code}")).or_default() += 1;
    }

    /// Whether a request sent at this moment is counted.
    pub fn is_counted(&self, sent_at: Instant) -> bool {
        self.counting_from.is_some_and(|from| sent_at >= from)
    }

    /// The share of hold requests that were refused.
    #[allow(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
    pub fn conflict_rate(&self) -> f64 {
        let (granted, refused) = (self.hold.count() as f64, self.refusal.count() as f64);
        if granted + refused > 0.0 { (refused / (granted + refused) * 10_000.0).round() / 10_000.0 } else { 0.0 }
    }
}
