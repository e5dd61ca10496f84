//! What recipes did through this server, for metrics. Names of queues are labels, up to a number; keys never are.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::engine::embedded::Histogram;
use leasehold::recipe::counters::{FlightOutcome, read_election_terms, read_flights, read_optimistic_conflicts};
use leasehold::recipe::cron::CronRecorded;
use leasehold::recipe::queue::QueueStatus;
use leasehold_support::sync::lock;

use crate::service::metrics::MetricsText;

/// Names of queues that are labels. What is beyond is counted under none.
const MAX_LABELLED_QUEUES: usize = 100;

/// How a delivery ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum JobEnd {
    /// It was acknowledged.
    Ack,
    /// It failed, and is tried again.
    Retry,
    /// It is a dead letter.
    Dead,
    /// Its time was over.
    Lapsed,
    /// Its end came too late.
    Stale,
}

impl JobEnd {
    const ALL: [(Self, &'static str); 5] = [
        (Self::Ack, "ack"),
        (Self::Retry, "retry"),
        (Self::Dead, "dead"),
        (Self::Lapsed, "lapsed"),
        (Self::Stale, "stale"),
    ];
}

/// What came of a call of once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum OnceOutcome {
    /// A first try began.
    First,
    /// The stored answer was told.
    Replay,
    /// Another try still runs.
    InFlight,
    /// The key was used for another request.
    Mismatch,
    /// An answer was stored.
    Finished,
    /// A try was given up.
    Abandoned,
    /// A try that is not the newest wanted to end, or to go on.
    Stale,
}

impl OnceOutcome {
    const ALL: [(Self, &'static str); 7] = [
        (Self::First, "first"),
        (Self::Replay, "replay"),
        (Self::InFlight, "in_flight"),
        (Self::Mismatch, "mismatch"),
        (Self::Finished, "finished"),
        (Self::Abandoned, "abandoned"),
        (Self::Stale, "stale"),
    ];
}

/// What became of a run, as this server was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RunOutcome {
    /// It began.
    Running,
    /// It ended with code 0.
    Ok,
    /// It ended otherwise.
    Failed,
    /// The next run found it without an end.
    Lost,
}

impl RunOutcome {
    const ALL: [(Self, &'static str); 4] =
        [(Self::Running, "running"), (Self::Ok, "ok"), (Self::Failed, "failed"), (Self::Lost, "lost")];
}

/// The counters.
#[derive(Debug, Default)]
pub struct RecipeCounts {
    ended: Mutex<BTreeMap<String, [u64; JobEnd::ALL.len()]>>,
    rings: AtomicU64,
    once: [AtomicU64; OnceOutcome::ALL.len()],
    runs: [AtomicU64; RunOutcome::ALL.len()],
    missed: AtomicU64,
    skipped: AtomicU64,
    late: Mutex<Histogram>,
}

impl RecipeCounts {
    /// So many deliveries of a queue ended so.
    pub fn record_ended(&self, queue: &str, how: JobEnd, count: usize) {
        if count == 0 {
            return;
        }
        let mut ended = lock(&self.ended);
        if !ended.contains_key(queue) && ended.len() >= MAX_LABELLED_QUEUES {
            return;
        }
        ended.entry(queue.to_owned()).or_default()[how as usize] += count as u64;
    }

    /// A push woke somebody.
    pub fn record_ring(&self) {
        self.rings.fetch_add(1, Ordering::Relaxed);
    }

    /// A call of once.
    pub fn record_once(&self, outcome: OnceOutcome) {
        self.once[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// A run began or ended.
    pub fn record_run(&self, outcome: RunOutcome) {
        self.runs[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// A run began so much after its tick, and this was recorded about what came before it.
    pub fn record_begin(&self, late: Duration, recorded: CronRecorded) {
        lock(&self.late).add(late);
        self.missed.fetch_add(recorded.missed.into(), Ordering::Relaxed);
        self.skipped.fetch_add(recorded.skipped.into(), Ordering::Relaxed);
        self.runs[RunOutcome::Lost as usize].fetch_add(recorded.lost.into(), Ordering::Relaxed);
        self.record_run(RunOutcome::Running);
    }
}

impl MetricsText {
    /// What recipes did in this process, with or without a store.
    pub fn push_recipe_counters(&mut self) {
        self.push_counter("leasehold_election_terms_total", "Terms of leaders in this process.", read_election_terms());
        self.push_family("leasehold_flight_total", "counter", "Values of single flights in this process, by origin.");
        for outcome in FlightOutcome::ALL {
            self.push_sample("leasehold_flight_total", &format!("{{outcome=\"{outcome}\"}}"), read_flights(outcome));
        }
        self.push_counter(
            "leasehold_optimistic_conflicts_total",
            "Optimistic attempts in this process that met another writer.",
            read_optimistic_conflicts(),
        );
    }

    /// What recipes did through this server; `depths`: the queues, `overdue`: the schedules that are, if the store answered.
    pub fn push_recipe_metrics(&mut self, counts: &RecipeCounts, depths: Option<&[QueueStatus]>, overdue: Option<u64>) {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        // Without an answer of the store there is no sample: none is better than an old one.
        if let Some(depths) = depths {
            self.push_depths(&depths[..depths.len().min(MAX_LABELLED_QUEUES)]);
        }
        self.push_family("leasehold_queue_ended_total", "counter", "Deliveries that ended, by how.");
        for (queue, ended) in &*lock(&counts.ended) {
            for (how, word) in JobEnd::ALL {
                let labels = format!("{{queue=\"{}\",how=\"{word}\"}}", escape_label(queue));
                self.push_sample("leasehold_queue_ended_total", &labels, ended[how as usize]);
            }
        }
        self.push_counter("leasehold_queue_rings_total", "Pushes that woke a worker.", load(&counts.rings));
        self.push_family("leasehold_once_total", "counter", "Calls of once, by outcome.");
        for (outcome, word) in OnceOutcome::ALL {
            let label = format!("{{outcome=\"{word}\"}}");
            self.push_sample("leasehold_once_total", &label, load(&counts.once[outcome as usize]));
        }
        self.push_family("leasehold_cron_runs_total", "counter", "Runs of schedules that began or ended, by state.");
        for (outcome, word) in RunOutcome::ALL {
            let label = format!("{{state=\"{word}\"}}");
            self.push_sample("leasehold_cron_runs_total", &label, load(&counts.runs[outcome as usize]));
        }
        self.push_counter(
            "leasehold_cron_missed_total",
            "Ticks that nobody began, without those that came while a run was at work.",
            load(&counts.missed),
        );
        self.push_counter(
            "leasehold_cron_skipped_total",
            "Ticks that came while a run was at work.",
            load(&counts.skipped),
        );
        if let Some(overdue) = overdue {
            let help = "Schedules with a tick that nobody began and that is too late to begin.";
            self.push_gauge("leasehold_cron_overdue", help, overdue);
        }
        let late = *lock(&counts.late);
        self.push_seconds_histogram(
            "leasehold_cron_late_seconds",
            "Time from a tick to the beginning of its run.",
            &late,
        );
    }

    fn push_depths(&mut self, queues: &[QueueStatus]) {
        self.push_family("leasehold_queue_depth", "gauge", "Jobs of a queue, by state; at most 10000 are counted.");
        for queue in queues {
            let name = escape_label(&queue.name);
            let states = [
                ("ready", queue.ready),
                ("delayed", queue.delayed),
                ("taken", queue.taken),
                ("retried", queue.retried),
                ("dead", queue.dead),
            ];
            for (state, jobs) in states {
                let labels = format!("{{queue=\"{name}\",state=\"{state}\"}}");
                self.push_sample("leasehold_queue_depth", &labels, jobs);
            }
        }
        self.push_family(
            "leasehold_queue_oldest_seconds",
            "gauge",
            "How long the oldest job that is ready has waited.",
        );
        for queue in queues {
            let labels = format!("{{queue=\"{}\"}}", escape_label(&queue.name));
            let oldest = queue.oldest.unwrap_or(Duration::ZERO).as_secs_f64();
            self.push_sample("leasehold_queue_oldest_seconds", &labels, oldest);
        }
    }
}

/// A name as the value of a label. It has no control characters.
fn escape_label(name: &str) -> String {
    name.replace('\\', "\\\\").replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: names of queues are bounded and escaped.
    #[test]
    fn labels_are_few_and_escaped() {
        let counts = RecipeCounts::default();
        for number in 0..300 {
            counts.record_ended(&format!("q{number:03}"), JobEnd::Ack, 1);
        }
        let status = |name: &str| QueueStatus {
            name: name.into(),
            by_key: false,
            paused: false,
            ready: 1,
            delayed: 0,
            taken: 0,
            retried: 0,
            dead: 0,
            oldest: Some(Duration::from_millis(1500)),
            sleepers: 0,
        };
        let mut depths: Vec<QueueStatus> = (0..300).map(|number| status(&format!("q{number:03}"))).collect();
        depths[0].name = "a\"b\\c".into();
        let mut page = MetricsText::default();
        page.push_recipe_metrics(&counts, Some(&depths), None);
        assert_eq!(page.text.matches("leasehold_queue_ended_total{").count(), 500);
        assert_eq!(page.text.matches("leasehold_queue_depth{").count(), 500);
        assert!(page.text.contains("leasehold_queue_oldest_seconds{queue=\"a\\\"b\\\\c\"} 1.5"), "{}", page.text);
        assert!(!page.text.contains("q100\""), "the hundredth is the last");
    }
}
