//! How often recipes of this process did what, for metrics.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
#[cfg(any(feature = "postgres", feature = "sqlite"))]
use std::time::Duration;

#[cfg(any(feature = "postgres", feature = "sqlite"))]
use super::cron::RunState;

static ELECTION_TERMS: AtomicU64 = AtomicU64::new(0);
static OPTIMISTIC_CONFLICTS: AtomicU64 = AtomicU64::new(0);
static FLIGHTS: [AtomicU64; FlightOutcome::ALL.len()] = [const { AtomicU64::new(0) }; FlightOutcome::ALL.len()];
#[cfg(any(feature = "postgres", feature = "sqlite"))]
static CRON_RUNS: [AtomicU64; RunState::ALL.len()] = [const { AtomicU64::new(0) }; RunState::ALL.len()];
#[cfg(any(feature = "postgres", feature = "sqlite"))]
static CRON_LATE_MILLIS: AtomicU64 = AtomicU64::new(0);

/// Where the value of a [`flight`](super::flight) came from. The label `outcome` of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FlightOutcome {
    /// The cache had a fresh value.
    Hit,
    /// Computed under the lease, since the cache had none or an old one.
    Computed,
    /// Computed under the lease before the old value expired.
    Refreshed,
    /// Another computed it, and the caller waited.
    Waited,
    /// Another computes it, and the caller took the old value.
    Stale,
    /// Computed without the lease: the engine was away, or the wait was over.
    Unguarded,
}

impl FlightOutcome {
    /// Every outcome.
    pub const ALL: [Self; 6] = [Self::Hit, Self::Computed, Self::Refreshed, Self::Waited, Self::Stale, Self::Unguarded];

    /// The outcome in one word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Computed => "computed",
            Self::Refreshed => "refreshed",
            Self::Waited => "waited",
            Self::Stale => "stale",
            Self::Unguarded => "unguarded",
        }
    }
}

impl fmt::Display for FlightOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// How many terms of leaders began in this process: `leasehold_election_terms_total`.
#[must_use]
pub fn read_election_terms() -> u64 {
    ELECTION_TERMS.load(Ordering::Relaxed)
}

/// How many optimistic attempts met another writer: `leasehold_optimistic_conflicts_total`.
#[must_use]
pub fn read_optimistic_conflicts() -> u64 {
    OPTIMISTIC_CONFLICTS.load(Ordering::Relaxed)
}

/// How many flights ended so: `leasehold_flight_total`.
#[must_use]
pub fn read_flights(outcome: FlightOutcome) -> u64 {
    FLIGHTS[outcome as usize].load(Ordering::Relaxed)
}

/// How many scheduled runs this process saw end so: `leasehold_cron_runs_total`. `Missed` and `Skipped` count ticks:
/// `leasehold_cron_missed_total` and `leasehold_cron_skipped_total`.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
#[must_use]
pub fn read_cron_runs(state: RunState) -> u64 {
    CRON_RUNS[state as usize].load(Ordering::Relaxed)
}

/// How late the last run of this process was begun: `leasehold_cron_late_seconds`.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
#[must_use]
pub fn read_cron_late() -> Duration {
    Duration::from_millis(CRON_LATE_MILLIS.load(Ordering::Relaxed))
}

#[cfg(all(feature = "cron", any(feature = "postgres", feature = "sqlite")))]
pub(super) fn count_cron_runs(state: RunState, count: u32) {
    CRON_RUNS[state as usize].fetch_add(u64::from(count), Ordering::Relaxed);
}

#[cfg(all(feature = "cron", any(feature = "postgres", feature = "sqlite")))]
pub(super) fn count_cron_late(late: Duration) {
    CRON_LATE_MILLIS.store(u64::try_from(late.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
}

pub(super) fn count_election_term() {
    ELECTION_TERMS.fetch_add(1, Ordering::Relaxed);
}

pub(super) fn count_optimistic_conflict() {
    OPTIMISTIC_CONFLICTS.fetch_add(1, Ordering::Relaxed);
}

pub(super) fn count_flight(outcome: FlightOutcome) {
    FLIGHTS[outcome as usize].fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every outcome has a counter and a word of its own.
    /// Method: other tests of this process count too, so a difference is at least what was counted here.
    #[test]
    fn outcomes_are_counted_apart() {
        for (place, outcome) in FlightOutcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome as usize, place);
            assert!(FlightOutcome::ALL.iter().all(|other| *other == outcome || other.word() != outcome.word()));
            let before = read_flights(outcome);
            count_flight(outcome);
            assert!(read_flights(outcome) > before);
        }
        let before = (read_election_terms(), read_optimistic_conflicts());
        count_election_term();
        count_optimistic_conflict();
        assert!(read_election_terms() > before.0 && read_optimistic_conflicts() > before.1);
    }
}
