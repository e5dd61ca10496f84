//! The counters of the server, in the text format of Prometheus. Resource names are never labels.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::engine::embedded::{Commits, Counters, Counts, Histogram};
use leasehold::engine::{Grant, Renewal};
use leasehold::fence::FenceKind;
use leasehold::fence::counters::read_counts;
use leasehold::{Error, Refusal};

use leasehold_boxoffice::model::Reason;
use leasehold_boxoffice::office::{self, LateOutcome, OfficeTask};

use super::Verb;
use crate::boxoffice;
use leasehold_support::sync::lock;

/// The outcome of an acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum AcquireOutcome {
    /// It was granted.
    Granted,
    /// Another holder has it.
    Held,
    /// The queue is full.
    QueueFull,
    /// Too many leases.
    Quota,
    /// The request id was used with another body.
    Mismatch,
    /// The request is invalid.
    Invalid,
    /// The engine could not be asked.
    Unavailable,
    /// It may have been granted.
    Unknown,
    /// The client hung up before the answer, or its key was revoked.
    Left,
}

impl AcquireOutcome {
    const ALL: [(Self, &'static str); 9] = [
        (Self::Granted, "granted"),
        (Self::Held, "held"),
        (Self::QueueFull, "queue_full"),
        (Self::Quota, "quota"),
        (Self::Mismatch, "mismatch"),
        (Self::Invalid, "invalid"),
        (Self::Unavailable, "unavailable"),
        (Self::Unknown, "unknown"),
        (Self::Left, "left"),
    ];

    /// The outcome for an error.
    pub const fn from_error(error: &Error) -> Self {
        match error {
            Error::Refused(Refusal::QueueFull { .. }) => Self::QueueFull,
            Error::Refused(Refusal::Quota(_)) => Self::Quota,
            Error::Refused(Refusal::Mismatch) => Self::Mismatch,
            Error::Refused(_) => Self::Held,
            Error::Invalid(_) => Self::Invalid,
            Error::Indeterminate { .. } => Self::Unknown,
            _ => Self::Unavailable,
        }
    }
}

/// The counters of the service. The engine's own counters are added when they are rendered.
#[derive(Debug, Default)]
pub struct ServiceMetrics {
    calls: [AtomicU64; Verb::ALL.len()],
    denied: AtomicU64,
    acquired: [AtomicU64; AcquireOutcome::ALL.len()],
    renew_stale: AtomicU64,
    renew_not_held: AtomicU64,
    renew_other: AtomicU64,
    contended: AtomicU64,
    waits: Mutex<Histogram>,
    rates: Mutex<SampledRates>,
}

/// Operations per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Granted.
    pub acquire: f64,
    /// Released.
    pub release: f64,
    /// Lapsed.
    pub lapse: f64,
    /// Refused.
    pub refused: f64,
}

#[derive(Debug, Default)]
struct SampledRates {
    last: Option<[u64; 4]>,
    rates: Rates,
}

impl ServiceMetrics {
    pub(super) fn record_call(&self, verb: Verb) {
        self.calls[verb as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn record_denial(&self) {
        self.denied.fetch_add(1, Ordering::Relaxed);
    }

    /// How many calls of this verb were authorised.
    #[cfg(test)]
    pub fn calls_so_far(&self, verb: Verb) -> u64 {
        self.calls[verb as usize].load(Ordering::Relaxed)
    }

    /// Counts an answered acquire.
    pub fn record_acquire(&self, answer: &Result<Grant, Error>, waited: Duration) {
        match answer {
            Ok(_) => self.record_grant(waited),
            Err(error) => self.record_refusal(AcquireOutcome::from_error(error)),
        }
    }

    /// Counts a grant, and how long it waited.
    pub fn record_grant(&self, waited: Duration) {
        self.acquired[AcquireOutcome::Granted as usize].fetch_add(1, Ordering::Relaxed);
        lock(&self.waits).add(waited);
    }

    /// Counts an acquire that was not granted.
    pub fn record_refusal(&self, outcome: AcquireOutcome) {
        self.acquired[outcome as usize].fetch_add(1, Ordering::Relaxed);
        if outcome == AcquireOutcome::Held {
            self.contended.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts an answered renewal.
    pub fn record_renewal(&self, answer: &Result<Renewal, Error>) {
        if let Err(error) = answer {
            self.record_renew_failure(error);
        }
    }

    /// Counts a failed renewal.
    pub fn record_renew_failure(&self, error: &Error) {
        let counter = match error {
            Error::Refused(Refusal::Stale) => &self.renew_stale,
            Error::Refused(Refusal::NotHeld) => &self.renew_not_held,
            _ => &self.renew_other,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// The rates of the last seconds.
    pub fn rates(&self) -> Rates {
        lock(&self.rates).rates
    }

    pub(super) fn sample_rates(&self, tally: Option<Counters>) {
        let granted = self.acquired[0].load(Ordering::Relaxed);
        let refused =
            self.acquired[1..AcquireOutcome::Left as usize].iter().map(|counter| counter.load(Ordering::Relaxed)).sum();
        let (released, lapsed) = tally.map_or((0, 0), |tally| (tally.released, tally.lapsed));
        let now = [granted, released, lapsed, refused];
        let mut sampled = lock(&self.rates);
        if let Some(last) = sampled.last.replace(now) {
            // The mean of old and new rate: smooth enough to read, quick enough to follow.
            let blend = |old: f64, at: usize| (old + now[at].saturating_sub(last[at]) as f64) / 2.0;
            let old = sampled.rates;
            sampled.rates = Rates {
                acquire: blend(old.acquire, 0),
                release: blend(old.release, 1),
                lapse: blend(old.lapse, 2),
                refused: blend(old.refused, 3),
            };
        }
    }

    /// Every metric, as Prometheus reads it.
    pub(super) fn render_text(
        &self,
        engine: Option<(Counters, Commits, Counts)>,
        office: Option<&boxoffice::BoxOfficeMetrics>,
    ) -> String {
        let mut page = MetricsText::default();
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        page.push_family("leasehold_acquire_total", "counter", "Acquires by outcome.");
        for (outcome, word) in AcquireOutcome::ALL {
            page.push_sample(
                "leasehold_acquire_total",
                &format!("{{outcome=\"{word}\"}}"),
                load(&self.acquired[outcome as usize]),
            );
        }
        // Refused because of another lease, or granted after it ended.
        let met = load(&self.contended) + engine.as_ref().map_or(0, |(tally, ..)| tally.waited);
        page.push_counter(
            "leasehold_contended_total",
            "Acquires that met somebody else: refused, or granted after a wait.",
            met,
        );
        page.push_family("leasehold_renew_failures_total", "counter", "Renewals that failed, by reason.");
        let reasons = [("stale", &self.renew_stale), ("not_held", &self.renew_not_held), ("other", &self.renew_other)];
        for (reason, counter) in reasons {
            page.push_sample("leasehold_renew_failures_total", &format!("{{reason=\"{reason}\"}}"), load(counter));
        }
        page.push_family("leasehold_calls_total", "counter", "Calls that the gate let through, by verb.");
        for verb in Verb::ALL {
            let label = format!("{{verb=\"{}\"}}", verb.word());
            page.push_sample("leasehold_calls_total", &label, load(&self.calls[verb as usize]));
        }
        page.push_counter("leasehold_denied_total", "Calls that the gate refused.", load(&self.denied));
        page.push_fence_metrics();
        let waits = *lock(&self.waits);
        page.push_seconds_histogram("leasehold_wait_seconds", "Time from the request to the grant.", &waits);
        if let Some((tally, commits, counts)) = engine {
            page.push_counter("leasehold_released_total", "Leases ended by their owners.", tally.released);
            page.push_counter("leasehold_lapsed_total", "Leases ended by time.", tally.lapsed);
            page.push_counter("leasehold_revoked_total", "Leases ended by an operator.", tally.revoked);
            page.push_gauge("leasehold_leases", "Leases that are somebody's.", counts.leases as u64);
            page.push_gauge("leasehold_waiters", "Claims in line.", counts.waiters as u64);
            page.push_seconds_histogram(
                "leasehold_hold_seconds",
                "Time from the grant to the end of a lease.",
                &tally.held,
            );
            page.push_seconds_histogram(
                "leasehold_commit_seconds",
                "Time to write and sync one batch.",
                &commits.seconds,
            );
            page.push_count_histogram("leasehold_commit_batch", "Answers let go by one batch.", &commits.answers);
        }
        if let Some(boxoffice::BoxOfficeMetrics { office, webhook_lag }) = office {
            page.push_office_metrics(office);
            page.push_money_metrics(office);
            page.push_family(
                "leasehold_webhook_lag_seconds",
                "gauge",
                "Age of the oldest message that a webhook did not take.",
            );
            page.push_sample("leasehold_webhook_lag_seconds", "", webhook_lag.as_secs_f64());
        }
        page.text
    }
}

/// A page in the text format of Prometheus.
#[derive(Default)]
pub struct MetricsText {
    /// What was pushed so far.
    pub text: String,
}

impl MetricsText {
    /// The head of a family.
    pub fn push_family(&mut self, name: &str, kind: &str, help: &str) {
        self.text.push_str(&format!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    /// One sample.
    pub fn push_sample(&mut self, name: &str, labels: &str, value: impl std::fmt::Display) {
        self.text.push_str(&format!("{name}{labels} {value}\n"));
    }

    /// A counter without labels.
    pub fn push_counter(&mut self, name: &str, help: &str, value: u64) {
        self.push_family(name, "counter", help);
        self.push_sample(name, "", value);
    }

    /// A gauge without labels.
    pub fn push_gauge(&mut self, name: &str, help: &str, value: u64) {
        self.push_family(name, "gauge", help);
        self.push_sample(name, "", value);
    }

    /// The metrics of the box office.
    /// What the fences of this process decided. Tables that are fenced in their database count there.
    fn push_fence_metrics(&mut self) {
        let families = [
            ("leasehold_fence_admitted_total", "Writes admitted by a fence of this process, by kind."),
            ("leasehold_fence_rejected_total", "Writes refused by a fence of this process, by kind."),
        ];
        for (at, (name, help)) in families.into_iter().enumerate() {
            self.push_family(name, "counter", help);
            for kind in FenceKind::ALL {
                let counts = read_counts(kind);
                let label = format!("{{kind=\"{kind}\"}}");
                self.push_sample(name, &label, if at == 0 { counts.admitted } else { counts.rejected });
            }
        }
    }

    fn push_office_metrics(&mut self, office: &office::OfficeMetrics) {
        // Without an answer of the ledger there is no sample: none is better than an old one.
        if let Some(stands) = &office.stands {
            self.push_family("leasehold_holds", "gauge", "Live holds by state.");
            self.push_sample("leasehold_holds", "{state=\"active\"}", stands.active);
            self.push_sample("leasehold_holds", "{state=\"paying\"}", stands.paying);
            self.push_family(
                "leasehold_sweeper_lag_seconds",
                "gauge",
                "How overdue the oldest hold is that no sweep has ended.",
            );
            self.push_sample("leasehold_sweeper_lag_seconds", "", stands.sweeper_lag_seconds);
        }
        self.push_family(
            "leasehold_task_idle_seconds",
            "gauge",
            "Time since the last round of a task of the box office.",
        );
        for (task, idle) in OfficeTask::ALL.into_iter().zip(office.idle_seconds) {
            self.push_sample("leasehold_task_idle_seconds", &format!("{{task=\"{}\"}}", task.as_str()), idle);
        }
        self.push_seconds_histogram(
            "leasehold_hold_request_seconds",
            "Time from a request for seats to its answer.",
            &office.hold_requests,
        );
        self.push_seconds_histogram(
            "leasehold_sale_seconds",
            "Time from a confirm or a callback to the order.",
            &office.sale_times,
        );
        self.push_counter("leasehold_holds_expired_total", "Holds that ended by time.", office.expired_total);
        self.push_family("leasehold_sale_conflicts_total", "counter", "Sales refused at the last moment, by reason.");
        for (reason, count) in ["stale_token", "expired"].into_iter().zip(office.sale_conflicts_total) {
            self.push_sample("leasehold_sale_conflicts_total", &format!("{{reason=\"{reason}\"}}"), count);
        }
        self.push_family(
            "leasehold_hold_conflicts_total",
            "counter",
            "Seats and areas that were not to be had, by reason.",
        );
        for (reason, count) in Reason::ALL.into_iter().zip(office.conflicts_total) {
            self.push_sample("leasehold_hold_conflicts_total", &format!("{{reason=\"{}\"}}", reason.as_str()), count);
        }
        self.push_counter("leasehold_holds_total", "Holds made.", office.holds_total);
        self.push_counter("leasehold_sales_total", "Orders made.", office.sales_total);
        self.push_counter(
            "leasehold_hold_renew_failures_total",
            "Renewals of holds that failed.",
            office.renew_failures_total,
        );
        self.push_counter(
            "leasehold_orphan_leases_total",
            "Leases without a hold that were revoked.",
            office.orphan_leases_total,
        );
    }

    /// Metrics of refunds, late and stuck payments.
    fn push_money_metrics(&mut self, office: &office::OfficeMetrics) {
        self.push_family(
            "leasehold_late_money_total",
            "counter",
            "Money that did not buy at once what it was for, by what came of it.",
        );
        for ((_, outcome), count) in LateOutcome::ALL.into_iter().zip(office.late_money_total) {
            self.push_sample("leasehold_late_money_total", &format!("{{outcome=\"{outcome}\"}}"), count);
        }
        if let Some(stands) = &office.stands {
            self.push_gauge(
                "leasehold_refunds_due",
                "Refunds and cancellations that the provider has not made yet.",
                stands.refunds_due,
            );
            self.push_family("leasehold_refund_due_seconds", "gauge", "Age of the oldest of them.");
            self.push_sample("leasehold_refund_due_seconds", "", stands.refund_due_seconds);
            self.push_gauge("leasehold_stuck_payments", "Payments that wait for staff.", stands.stuck_payments);
        }
    }

    /// A histogram of durations, in seconds.
    pub fn push_seconds_histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.push_histogram(name, help, histogram, |bound| bound / 1e6, histogram.sum_nanos as f64 / 1e9);
    }

    /// A histogram of plain numbers.
    fn push_count_histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.push_histogram(name, help, histogram, |bound| bound, histogram.sum_nanos as f64);
    }

    fn push_histogram(&mut self, name: &str, help: &str, histogram: &Histogram, unit: impl Fn(f64) -> f64, sum: f64) {
        self.push_family(name, "histogram", help);
        let mut so_far = 0;
        for (power, count) in histogram.buckets.iter().enumerate().take(Histogram::BUCKETS - 1) {
            so_far += count;
            let bound = unit((1u64 << power) as f64);
            self.push_sample(&format!("{name}_bucket"), &format!("{{le=\"{bound}\"}}"), so_far);
        }
        let all = histogram.count();
        self.push_sample(&format!("{name}_bucket"), "{le=\"+Inf\"}", all);
        self.push_sample(&format!("{name}_sum"), "", sum);
        self.push_sample(&format!("{name}_count"), "", all);
    }
}
