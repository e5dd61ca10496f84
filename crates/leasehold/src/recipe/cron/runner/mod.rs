//! The runner: waits for ticks, and begins each on one machine of many.
//!
//! ```text
//!   tick + jitter ──▶ ledger has it? ──yes──▶ sleep until the next tick          (all machines but one: one read)
//!                          └─no─▶ lease cron/NAME ──held──▶ look again every ttl/3, or at the next tick
//!                                      └──▶ begin ──first──▶ CronTurn     ──done, again, early──▶ release, look again
//! ```
//!
//! Without a ledger ([`CronRunner::at_most_once`]) the lease is `cron/NAME@TICK`. It is never released: as long as it lives,
//! nobody else runs the tick, and when it lapses the tick is too late to be run.
//!
//! # Laws
//!
//! 1. No run without a `first` of the ledger. An answer that did not come is no `first`: the tick is not run.
//! 2. An engine or a store that is away ends nothing: the runner says so, and looks again.
//! 3. A stop takes effect before a run is begun or after it, never in between.

mod look;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio_util::sync::CancellationToken;

use super::plan::{CatchUp, CronPolicy, Overlap};
use super::schedule::{Schedule, floor_seconds};
use super::turn::CronTurn;
use super::{CronRun, MissedTicks, RunState};
use crate::client::Leasehold;
use crate::clock::{random_fraction, wall_time};
use crate::error::Error;
use crate::recipe::counters::count_cron_runs;
use crate::recipe::error::RecipeError;
use crate::recipe::store::Store;

/// Names of schedules begin with this, as resources.
pub const RESOURCE_PREFIX: &str = "cron/";

const DEFAULT_TTL: Duration = Duration::from_secs(30);
/// The wall clock may be set while we sleep: it is read again after this long.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);
/// First pause after somebody could not be asked, and the longest.
const FIRST_BACKOFF: Duration = Duration::from_millis(250);
const MAX_BACKOFF: Duration = Duration::from_secs(5);
/// How long a ledger that is away is told that a run ended. The lease is held meanwhile, so the other machines wait. After it
/// they find the run lost.
const FINISH_PATIENCE: Duration = Duration::from_secs(60);

/// Why a runner ended.
#[derive(Debug, thiserror::Error)]
pub enum CronError {
    /// Of the engine. Do: as it says.
    #[error("the lease of the schedule")]
    Lease(#[source] Error),
    /// Of the ledger. Do: as it says.
    #[error("the ledger of runs")]
    Ledger(#[source] RecipeError),
}

impl CronError {
    /// Whether it may pass by itself.
    fn may_pass(&self) -> bool {
        match self {
            Self::Lease(error) => !matches!(error, Error::Invalid(_) | Error::Corrupt { .. }),
            Self::Ledger(error) => {
                matches!(error, RecipeError::Unavailable { .. } | RecipeError::Indeterminate { .. })
            }
        }
    }
}

/// What a runner tells while it goes on.
#[derive(Debug)]
#[non_exhaustive]
pub enum CronNotice<'a> {
    /// Somebody could not be asked. It is tried again.
    Trouble(&'a CronError),
    /// The engine has no tokens: the ledger still lets one machine begin a tick, and cannot tell a late one from another.
    NoTokens {
        /// The engine.
        engine: &'static str,
    },
    /// The clock of this machine is more than 5 s ahead of the store's.
    ClockAhead {
        /// The tick that has not come yet.
        tick: SystemTime,
    },
    /// The ledger has a higher token than that of our lease: we were late. If this is said at every tick, the engine has lost
    /// its tokens, or another engine is asked than before.
    Stale {
        /// Which tick.
        tick: SystemTime,
    },
    /// A machine did not finish its run. It is not repeated.
    Lost(&'a CronRun),
    /// Ticks that nobody began are in the ledger as missed.
    Missed(MissedTicks),
    /// Ticks that came while a run was at work are in the ledger as skipped.
    Skipped(MissedTicks),
    /// It is unknown whether a run was begun. It is not run: the ledger may report it as lost.
    Unknown {
        /// Which tick.
        tick: SystemTime,
    },
}

/// What a runner found when it was asked once.
#[derive(Debug)]
#[must_use]
pub enum CronLook {
    /// A run to do.
    Turn(Box<CronTurn>),
    /// Another machine has the tick, or a run is at work.
    Taken {
        /// When to look again.
        until: Option<SystemTime>,
    },
    /// No tick is due.
    NotDue {
        /// When to look again.
        until: Option<SystemTime>,
    },
}

type OnNotice = Arc<dyn Fn(&CronNotice<'_>) + Send + Sync>;
type WallClock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// Waits for the ticks of a schedule, and begins those that are this machine's to run.
///
/// ```
/// use leasehold::recipe::Store;
/// use leasehold::recipe::cron::{CronRunner, Schedule};
/// use tokio_util::sync::CancellationToken;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let leasehold = leasehold::Leasehold::open(&format!("embedded:{}", dir.path().display())).await?;
/// # let store = Store::open(&format!("sqlite:{}/recipes.db", dir.path().display())).await?;
/// let every_second = Schedule::parse("* * * * * *", "UTC")?;
/// let mut runner = CronRunner::new(&leasehold, &store, "tidy", every_second);
/// let stop = CancellationToken::new();
/// // On every machine: one of them does the work.
/// runner.run_until(&stop, async |turn| {
///     println!("tick {:?}, token {:?}", turn.tick(), turn.lease().token());
///     stop.cancel();
///     Ok::<(), std::io::Error>(())
/// })
/// .await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing runs until it is asked for a run"]
pub struct CronRunner {
    leasehold: Leasehold,
    ledger: Option<Store>,
    name: String,
    schedule: Schedule,
    policy: CronPolicy,
    ttl: Duration,
    max_run: Option<Duration>,
    jitter: Option<Duration>,
    machine: Option<String>,
    change: bool,
    wall: WallClock,
    on_notice: Option<OnNotice>,
    /// Where the schedule starts, if the ledger does not know it: the first look.
    started_at: Option<SystemTime>,
    /// When to look again; none: at once.
    look_at: Option<SystemTime>,
    /// The last tick that this runner knows to be begun, for leases only.
    settled: Option<SystemTime>,
    failures: u32,
    said_no_tokens: bool,
}

impl fmt::Debug for CronRunner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CronRunner")
            .field("name", &self.name)
            .field("schedule", &self.schedule.spec())
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

impl CronRunner {
    /// A runner of the schedule of this name: its lease is `cron/NAME`.
    pub fn new(leasehold: &Leasehold, ledger: &Store, name: impl Into<String>, schedule: Schedule) -> Self {
        Self::with_ledger(leasehold, Some(ledger.clone()), name.into(), schedule)
    }

    /// A runner without a ledger. Each tick has a lease of its own, which is never released. There is no history, and a run
    /// whose machine died is not reported. Runs of two ticks may overlap.
    pub fn at_most_once(leasehold: &Leasehold, name: impl Into<String>, schedule: Schedule) -> Self {
        Self::with_ledger(leasehold, None, name.into(), schedule)
    }

    fn with_ledger(leasehold: &Leasehold, ledger: Option<Store>, name: String, schedule: Schedule) -> Self {
        let policy = CronPolicy {
            catch_up: CatchUp::default(),
            overlap: Overlap::default(),
            late: None,
            on_time: DEFAULT_TTL,
            least_run: Duration::ZERO,
        };
        Self {
            leasehold: leasehold.clone(),
            ledger,
            name,
            schedule,
            policy,
            ttl: DEFAULT_TTL,
            max_run: None,
            jitter: None,
            machine: None,
            change: false,
            wall: Arc::new(wall_time),
            on_notice: None,
            started_at: None,
            look_at: None,
            settled: None,
            failures: 0,
            said_no_tokens: false,
        }
    }

    /// What to do about ticks that nobody began.
    pub fn catch_up(mut self, catch_up: CatchUp) -> Self {
        self.policy.catch_up = catch_up;
        self
    }

    /// What to do about a tick that comes while a run is at work.
    pub fn overlap(mut self, overlap: Overlap) -> Self {
        self.policy.overlap = overlap;
        self
    }

    /// How late a tick may be begun. Default: half of the time to the next tick, at most 1 h.
    pub fn late(mut self, late: Duration) -> Self {
        self.policy.late = Some(late);
        self
    }

    /// The ttl of the lease: how long a dead machine keeps others from the next tick. Default: 30 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self.policy.on_time = ttl;
        self
    }

    /// A run that is at work for longer loses its lease. Default: no limit. It has no effect on `at_most_once`, whose lease
    /// remembers the tick.
    pub fn max_run(mut self, max_run: Duration) -> Self {
        self.max_run = Some(max_run);
        self
    }

    /// With [`Overlap::Replace`]: a run that would have less time than this before the next tick is not begun.
    pub fn least_run(mut self, least_run: Duration) -> Self {
        self.policy.least_run = least_run;
        self
    }

    /// Machines look at the ledger up to this long after a tick, each at a time of its own. Default: a twentieth of the time
    /// to the next tick, at most 2 s.
    pub fn jitter(mut self, jitter: Duration) -> Self {
        self.jitter = Some(jitter);
        self
    }

    /// Who runs it, for people. Default: the usual holder label.
    pub fn machine(mut self, machine: impl Into<String>) -> Self {
        self.machine = Some(machine.into());
        self
    }

    /// Whether this schedule replaces another one that the ledger knows under the name. Default: no, that is an error.
    pub fn change(mut self, change: bool) -> Self {
        self.change = change;
        self
    }

    /// Calls this with what people should know, while the runner goes on.
    pub fn on_notice(mut self, call: impl Fn(&CronNotice<'_>) + Send + Sync + 'static) -> Self {
        self.on_notice = Some(Arc::new(call));
        self
    }

    /// Reads the time of day here. Default: the clock of the machine.
    pub fn wall_clock(mut self, wall: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        self.wall = Arc::new(wall);
        self
    }

    /// Waits for the next run that is this machine's. None: it was stopped.
    ///
    /// # Errors
    ///
    /// What can never succeed: another schedule under the name, a bad name, rows that break a law. An engine or a store that
    /// is away is told by [`CronRunner::on_notice`], and asked again.
    pub async fn next_run(&mut self, stop: &CancellationToken) -> Result<Option<CronTurn>, CronError> {
        loop {
            if let Some(at) = self.look_at
                && !self.sleep_until(at, stop).await
            {
                return Ok(None);
            }
            if stop.is_cancelled() {
                return Ok(None);
            }
            let looked = self.look(stop).await;
            let until = match looked {
                Ok(CronLook::Turn(turn)) => {
                    self.look_at = None;
                    self.failures = 0;
                    return Ok(Some(*turn));
                }
                Ok(CronLook::Taken { until } | CronLook::NotDue { until }) => {
                    self.failures = 0;
                    until
                }
                Err(error) if error.may_pass() => {
                    self.notify(&CronNotice::Trouble(&error));
                    let whole = FIRST_BACKOFF.saturating_mul(1 << self.failures.min(16)).min(MAX_BACKOFF);
                    self.failures = self.failures.saturating_add(1);
                    (self.wall)().checked_add(whole.mul_f64(0.5 + random_fraction() / 2.0))
                }
                Err(error) => return Err(error),
            };
            // A schedule without a next tick is looked at again and again: its next tick is thousands of years away.
            self.look_at = until.or_else(|| (self.wall)().checked_add(LONGEST_SLEEP));
        }
    }

    /// Asks once, without waiting for a tick: for callers with a timer of their own. A schedule that the ledger does not know
    /// starts with the newest tick that has come.
    ///
    /// # Errors
    ///
    /// As [`CronRunner::next_run`], and when somebody could not be asked.
    pub async fn run_now(&mut self, stop: &CancellationToken) -> Result<CronLook, CronError> {
        if self.started_at.is_none() {
            let newest = self.schedule.last_at((self.wall)());
            self.started_at = newest.and_then(|newest| newest.checked_sub(Duration::from_secs(1)));
        }
        self.look(stop).await
    }

    /// Does the work of every run that is this machine's, until it is stopped. The work is dropped when its lease is lost.
    ///
    /// # Errors
    ///
    /// As [`CronRunner::next_run`].
    pub async fn run_until<E, F>(&mut self, stop: &CancellationToken, work: F) -> Result<(), CronError>
    where
        E: fmt::Display,
        F: AsyncFn(Arc<CronTurn>) -> Result<(), E>,
    {
        while let Some(turn) = self.next_run(stop).await? {
            // Shared, not borrowed: so a runner can be spawned as a task.
            let turn = Arc::new(turn);
            let (code, tail) = tokio::select! {
                biased;
                lost = turn.lease.lost() => (1, lost.to_string()),
                done = work(turn.clone()) => match done {
                    Ok(()) => (0, String::new()),
                    Err(error) => (1, error.to_string()),
                },
            };
            self.finish(&turn, code, &tail, stop).await?;
            if !turn.keeps_lease() {
                // One that is not released lapses with its ttl.
                let _ = self.leasehold.release(turn.lease.lease_id()).await;
            }
        }
        Ok(())
    }

    /// Finishes a run, and asks until the ledger has answered, for a minute; after a stop once more. False: it was reported
    /// lost meanwhile, or could not be told.
    ///
    /// # Errors
    ///
    /// What can never succeed.
    pub async fn finish(
        &self,
        turn: &CronTurn,
        code: i32,
        tail: &str,
        stop: &CancellationToken,
    ) -> Result<bool, CronError> {
        let mut failures: u32 = 0;
        let give_up = self.leasehold.clock.now().plus(FINISH_PATIENCE);
        loop {
            let last = stop.is_cancelled() || self.leasehold.clock.now() >= give_up;
            match turn.finish(code, tail).await.map_err(CronError::Ledger) {
                Ok(finished) => {
                    if finished {
                        count_cron_runs(if code == 0 { RunState::Ok } else { RunState::Failed }, 1);
                    }
                    return Ok(finished);
                }
                Err(error) if error.may_pass() => self.notify(&CronNotice::Trouble(&error)),
                Err(error) => return Err(error),
            }
            if last {
                return Ok(false);
            }
            let pause = FIRST_BACKOFF.saturating_mul(1 << failures.min(16)).min(MAX_BACKOFF);
            failures = failures.saturating_add(1);
            let clock = &self.leasehold.clock;
            tokio::select! {
                () = stop.cancelled() => {}
                () = clock.sleep_until(clock.now().plus(pause)) => {}
            }
        }
    }

    /// Sleeps until a time of the day. False: a stop came first.
    async fn sleep_until(&self, at: SystemTime, stop: &CancellationToken) -> bool {
        let clock = &self.leasehold.clock;
        loop {
            let Ok(left) = at.duration_since((self.wall)()) else { return true };
            if left.is_zero() {
                return true;
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return false,
                () = clock.sleep_until(clock.now().plus(left.min(LONGEST_SLEEP))) => {}
            }
        }
    }

    fn notify(&self, notice: &CronNotice<'_>) {
        if let Some(call) = &self.on_notice {
            call(notice);
        }
    }
}

/// A tick as text: RFC 3339 in UTC, whole seconds.
#[must_use]
pub fn rfc3339(tick: SystemTime) -> String {
    jiff::Timestamp::from_second(floor_seconds(tick)).map_or_else(|_| "?".into(), |tick| tick.to_string())
}
