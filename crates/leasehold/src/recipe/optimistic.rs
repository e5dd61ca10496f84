//! Optimistic writes: read, work, write if nobody wrote meanwhile, else try again.
//!
//! ```text
//!   SELECT left, version … ──▶ UPDATE … SET …, version = version + 1 WHERE id = $1 AND version = $2
//!        ▲                                  │ one row ──▶ done
//!        └──── a short pause by chance ◀────┘ no row: another wrote
//! ```
//!
//! # Laws
//!
//! 1. The number of tries is bounded, and so is each pause.
//! 2. A conflict is told from an error: the work says which one it was.
//!
//! # When to stop being optimistic
//!
//! Beside writers that lock the row first, optimistic ones are faster while they seldom meet, and much slower when they
//! often do. Measured on PostgreSQL with 16 writers: 1.4 times as fast at 1 % conflicts, 0.8 at 37 %, 0.3 at 80 %. Above
//! a quarter, [`OptimisticReport::advice`] says so: lock the row (`row`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::counters::count_optimistic_conflict;
use crate::clock::{Clock, SystemClock, random_fraction};

/// The first pause is at most this, the next at most twice as long, and none longer than the last.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// Above this share of conflicts a lock on the row is cheaper.
const MAX_CONFLICT_SHARE: f64 = 0.25;
/// The share is not judged on fewer attempts, and older ones count half each time so many are full.
const MIN_ATTEMPTS_TO_JUDGE: u64 = 100;
const RECENT_ATTEMPTS: u64 = 1000;

/// What one attempt came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update<T> {
    /// It was written.
    Written(T),
    /// Another wrote meanwhile: read again, and try again.
    Conflict,
}

impl<T> Update<T> {
    /// Reads the number of rows that a conditional `UPDATE` changed.
    pub fn by_rows(changed: impl TryInto<u64>, value: T) -> Self {
        if changed.try_into().is_ok_and(|changed| changed > 0) { Self::Written(value) } else { Self::Conflict }
    }
}

/// Why nothing was written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OptimisticError<E: std::error::Error + 'static> {
    /// Every try met another writer. Do: try later, or lock the row.
    #[error("another wrote first, {tries} times in a row")]
    GaveUp {
        /// How many tries there were.
        tries: u32,
    },
    /// The work failed.
    #[error("the work failed on try {tries}")]
    Failed {
        /// On which try.
        tries: u32,
        /// Its error.
        source: E,
    },
}

/// Optimistic writers of one kind, and what they met. Clones share the report.
///
/// # Examples
///
/// ```
/// use std::convert::Infallible;
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use leasehold::recipe::optimistic::{Update, Optimistic};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let left = AtomicU64::new(3);
/// let sales = Optimistic::up_to(8);
/// let sold = sales
///     .write(async |_try| {
///         let seen = left.load(Ordering::SeqCst);
///         let written = left.compare_exchange(seen, seen - 1, Ordering::SeqCst, Ordering::SeqCst);
///         Ok::<_, Infallible>(Update::by_rows(u64::from(written.is_ok()), seen))
///     })
///     .await?;
/// assert_eq!((sold, sales.report().conflicts), (3, 0));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Optimistic {
    tries: u32,
    clock: Arc<dyn Clock>,
    met: Arc<Met>,
}

#[derive(Default)]
struct Met {
    attempts: AtomicU64,
    conflicts: AtomicU64,
    gave_up: AtomicU64,
    recent: Mutex<Recent>,
}

#[derive(Clone, Copy, Default)]
struct Recent {
    attempts: u64,
    conflicts: u64,
}

impl std::fmt::Debug for Optimistic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Optimistic").field("tries", &self.tries).field("report", &self.report()).finish_non_exhaustive()
    }
}

impl Optimistic {
    /// Tries so often, at least once.
    #[must_use]
    pub fn up_to(tries: u32) -> Self {
        Self { tries: tries.max(1), clock: SystemClock::shared(), met: Arc::default() }
    }

    /// Pauses by this clock.
    #[must_use]
    pub fn with_clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Runs `work` until it has written, with the number of the try. Between two tries is a pause by chance, so that
    /// writers who met do not meet again.
    ///
    /// The work reads anew in each try. In PostgreSQL use one statement, or a transaction for each try.
    ///
    /// # Errors
    ///
    /// See [`OptimisticError`].
    pub async fn write<T, E, F>(&self, mut work: F) -> Result<T, OptimisticError<E>>
    where
        E: std::error::Error + 'static,
        F: AsyncFnMut(u32) -> Result<Update<T>, E>,
    {
        for number in 1..=self.tries {
            let attempt = work(number).await.map_err(|source| OptimisticError::Failed { tries: number, source })?;
            self.met.count(matches!(attempt, Update::Conflict));
            match attempt {
                Update::Written(value) => return Ok(value),
                Update::Conflict if number < self.tries => {
                    let pause = longest_pause(number).mul_f64(random_fraction());
                    self.clock.sleep_until(self.clock.now().plus(pause)).await;
                }
                Update::Conflict => {}
            }
        }
        self.met.gave_up.fetch_add(1, Ordering::Relaxed);
        Err(OptimisticError::GaveUp { tries: self.tries })
    }

    /// What was met so far.
    #[must_use]
    pub fn report(&self) -> OptimisticReport {
        let recent = *self.met.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        OptimisticReport {
            attempts: load(&self.met.attempts),
            conflicts: load(&self.met.conflicts),
            gave_up: load(&self.met.gave_up),
            recent_conflict_share: (recent.attempts >= MIN_ATTEMPTS_TO_JUDGE)
                .then(|| recent.conflicts as f64 / recent.attempts as f64),
        }
    }
}

fn longest_pause(number: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << (number - 1).min(16)).min(LONGEST_PAUSE)
}

impl Met {
    fn count(&self, conflict: bool) {
        self.attempts.fetch_add(1, Ordering::Relaxed);
        if conflict {
            self.conflicts.fetch_add(1, Ordering::Relaxed);
            count_optimistic_conflict();
        }
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.attempts >= RECENT_ATTEMPTS {
            *recent = Recent { attempts: recent.attempts / 2, conflicts: recent.conflicts / 2 };
        }
        recent.attempts += 1;
        recent.conflicts += u64::from(conflict);
    }
}

/// What optimistic writers met.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OptimisticReport {
    /// How many attempts there were.
    pub attempts: u64,
    /// How many of them met another writer.
    pub conflicts: u64,
    /// How many writes gave up.
    pub gave_up: u64,
    /// The share of conflicts among the last thousand attempts or so; none on too few to judge.
    pub recent_conflict_share: Option<f64>,
}

impl OptimisticReport {
    /// What to change, when writers meet too often.
    #[must_use]
    pub fn advice(&self) -> Option<String> {
        let share = self.recent_conflict_share.filter(|share| *share > MAX_CONFLICT_SHARE)?;
        Some(format!(
            "{:.0} % of the attempts met another writer: stop being optimistic, and lock the row (recipe::row)",
            share * 100.0
        ))
    }
}

/// Whether an error of PostgreSQL says that another transaction was first: a conflict, to be tried again.
#[cfg(feature = "postgres")]
#[must_use]
pub fn is_sql_conflict(error: &leasehold_postgres::tokio_postgres::Error) -> bool {
    use leasehold_postgres::tokio_postgres::error::SqlState;
    error
        .code()
        .is_some_and(|code| [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED].contains(code))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::io;

    use super::*;
    use crate::testkit::ManualClock;

    fn writers(tries: u32) -> (Optimistic, ManualClock) {
        let clock = ManualClock::new();
        (Optimistic::up_to(tries).with_clock(clock.shared()), clock)
    }

    /// Moves the clock to whatever is waited for, until the task ends, and says how long each pause was.
    async fn drive<T: Send + 'static>(
        clock: &ManualClock,
        work: impl Future<Output = T> + Send + 'static,
    ) -> (T, Vec<Duration>) {
        let task = tokio::spawn(work);
        let mut pauses = Vec::new();
        while !task.is_finished() {
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
            if let Some(at) = clock.next_wake() {
                pauses.push(at.since(clock.now()));
                clock.set(at);
            }
        }
        (task.await.unwrap(), pauses)
    }

    /// Goal: tries and pauses are bounded, and the pauses are drawn by chance.
    /// Method: a row that another always writes first.
    #[tokio::test]
    async fn tries_and_pauses_are_bounded() {
        let (writers, clock) = writers(12);
        let kept = writers.clone();
        let (done, pauses) =
            drive(&clock, async move { writers.write(async |_| Ok::<Update<()>, Infallible>(Update::Conflict)).await })
                .await;
        assert!(matches!(done, Err(OptimisticError::GaveUp { tries: 12 })), "{done:?}");
        assert_eq!(pauses.len(), 11, "no pause after the last try");
        for (number, pause) in (1..).zip(&pauses) {
            assert!(*pause <= longest_pause(number) && *pause <= LONGEST_PAUSE, "{number}: {pause:?}");
        }
        assert!(pauses.windows(2).any(|pair| pair[0] != pair[1]));
        assert_eq!(
            (longest_pause(1), longest_pause(7), longest_pause(40)),
            (FIRST_PAUSE, LONGEST_PAUSE, LONGEST_PAUSE)
        );
        let report = kept.report();
        assert_eq!((report.attempts, report.conflicts, report.gave_up), (12, 12, 1));
        assert_eq!(report.advice(), None, "twelve attempts are too few to judge");
    }

    #[tokio::test]
    async fn an_error_of_the_work_is_not_tried_again() {
        let (writers, _clock) = writers(8);
        let mut calls = 0;
        let done: Result<(), _> = writers
            .write(async |_| {
                calls += 1;
                Err(io::Error::other("the server is gone"))
            })
            .await;
        assert!(matches!(done, Err(OptimisticError::Failed { tries: 1, .. })), "{done:?}");
        assert_eq!(calls, 1);
    }

    /// Goal: above a quarter of conflicts the report says to lock the row, below it says nothing, and it forgets.
    /// Method: a thousand attempts of each share.
    #[tokio::test]
    async fn the_report_says_when_to_stop_being_optimistic() {
        let (writers, _clock) = writers(1);
        let run = async |conflicts_of_ten: u32| {
            for number in 0..1000 {
                let attempt = if number % 10 < conflicts_of_ten { Update::Conflict } else { Update::Written(()) };
                let _ = writers.write(async |_| Ok::<_, Infallible>(attempt)).await;
            }
        };
        run(2).await;
        assert_eq!(writers.report().advice(), None, "{:?}", writers.report());
        run(4).await;
        run(4).await;
        let advice = writers.report().advice().unwrap();
        assert!(advice.contains("lock the row"), "{advice}");
        run(1).await;
        run(1).await;
        assert_eq!(writers.report().advice(), None, "{:?}", writers.report());
    }
}
