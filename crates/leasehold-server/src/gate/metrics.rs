//! Counters of a gate, in the text format of Prometheus. Resource names are never labels.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::engine::embedded::Histogram;
use leasehold::fence::FenceKind;
use leasehold::fence::counters::read_counts;
use leasehold_support::sync::lock;

use crate::service::metrics::MetricsText;

/// What a gate counts. Admitted and refused requests are counted by `leasehold::fence::counters`.
#[derive(Debug, Default)]
pub struct GateMetrics {
    unsettled: AtomicU64,
    busy: AtomicU64,
    unanswered: AtomicU64,
    drains: Mutex<Histogram>,
    raise_syncs: Mutex<Histogram>,
}

impl GateMetrics {
    /// A newer request waited this long for older ones.
    pub fn record_drain(&self, waited: Duration) {
        lock(&self.drains).add(waited);
    }

    /// A batch of raises was written and synced.
    pub fn record_raise_sync(&self, took: Duration) {
        lock(&self.raise_syncs).add(took);
    }

    /// A request without an answer was cut off: what it did is not known.
    pub fn count_unsettled(&self) {
        self.unsettled.fetch_add(1, Ordering::Relaxed);
    }

    /// A request was refused because older ones are without an answer.
    pub fn count_busy(&self) {
        self.busy.fetch_add(1, Ordering::Relaxed);
    }

    /// A request was sent, and no whole answer came.
    pub fn count_unanswered(&self) {
        self.unanswered.fetch_add(1, Ordering::Relaxed);
    }

    /// The page.
    pub fn render_page(&self, resources: usize, flying: usize) -> String {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut page = MetricsText::default();
        let counts = read_counts(FenceKind::Gate);
        let label = format!("{{kind=\"{}\"}}", FenceKind::Gate.word());
        page.push_family("leasehold_fence_admitted_total", "counter", "Requests that a fence admitted, by kind.");
        page.push_sample("leasehold_fence_admitted_total", &label, counts.admitted);
        page.push_family("leasehold_fence_rejected_total", "counter", "Requests that a fence refused, by kind.");
        page.push_sample("leasehold_fence_rejected_total", &label, counts.rejected);
        page.push_counter(
            "leasehold_gate_unsettled_total",
            "Requests that were cut off before the upstream answered them.",
            load(&self.unsettled),
        );
        page.push_counter(
            "leasehold_gate_busy_total",
            "Requests refused because older ones are without an answer.",
            load(&self.busy),
        );
        page.push_counter(
            "leasehold_gate_unanswered_total",
            "Requests that were sent and not wholly answered.",
            load(&self.unanswered),
        );
        page.push_gauge("leasehold_gate_resources", "Resources that are remembered.", resources as u64);
        page.push_gauge("leasehold_gate_flying", "Fenced requests that are with the upstream.", flying as u64);
        let (drains, raise_syncs) = (*lock(&self.drains), *lock(&self.raise_syncs));
        page.push_seconds_histogram(
            "leasehold_gate_drain_seconds",
            "Time that requests waited for older ones to be answered.",
            &drains,
        );
        page.push_seconds_histogram(
            "leasehold_gate_raise_sync_seconds",
            "Time to write and sync one batch of raised tokens.",
            &raise_syncs,
        );
        page.text
    }
}
