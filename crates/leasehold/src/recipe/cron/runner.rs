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

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio_util::sync::CancellationToken;

use super::plan::{CatchUp, CronDecision, CronPolicy, LedgerView, Overlap, decide, default_jitter};
use super::schedule::{Schedule, floor_seconds};
use super::turn::CronTurn;
use super::{CronBegun, CronRun, CronStart, MissedTicks, RunState};
use crate::acquire::Acquire;
use crate::client::Leasehold;
use crate::clock::{random_fraction, wall_time};
use crate::error::{Error, Refusal};
use crate::recipe::counters::{count_cron_late, count_cron_missed, count_cron_run};
use crate::recipe::error::RecipeError;
use crate::recipe::store::Store;
use crate::recipe::{LeaseKind as _, StrongestLease};

/// Names of schedules begin with this, as resources.
pub const RESOURCE_PREFIX: &str = "cron/";

const DEFAULT_TTL: Duration = Duration::from_secs(30);
/// The wall clock may be set while we sleep: it is read again after this long.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);
/// How long one claim may wait in line: what engines allow by default.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);
/// How long the lease of a run that was ended for the next tick may take to come free.
const REPLACED_WAIT: Duration = Duration::from_secs(2);
/// First pause after somebody could not be asked, and the longest.
const FIRST_BACKOFF: Duration = Duration::from_millis(250);
const MAX_BACKOFF: Duration = Duration::from_secs(5);
/// How much longer than its tick may be late the lease of a tick lives: clocks of machines differ.
const SLOT_MARGIN: Duration = Duration::from_secs(600);

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
    /// Ticks that nobody ran are in the ledger.
    Missed(MissedTicks),
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

    /// A run that is at work for longer loses its lease. Default: no limit.
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
        F: AsyncFn(&CronTurn) -> Result<(), E>,
    {
        while let Some(turn) = self.next_run(stop).await? {
            let (code, tail) = tokio::select! {
                biased;
                lost = turn.lease.lost() => (1, lost.to_string()),
                done = work(&turn) => match done {
                    Ok(()) => (0, String::new()),
                    Err(error) => (1, error.to_string()),
                },
            };
            self.finish(&turn, code, &tail, stop).await?;
            if !turn.keeps_lease() {
                // One that is not released lapses with its ttl.
                let _ = turn.into_lease().end().await;
            }
        }
        Ok(())
    }

    /// Finishes a run, and asks until the ledger has answered; after a stop once more. False: it was reported lost meanwhile,
    /// or could not be told before the stop.
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
        loop {
            let last = stop.is_cancelled();
            match turn.finish(code, tail).await.map_err(CronError::Ledger) {
                Ok(finished) => {
                    if finished {
                        count_cron_run(if code == 0 { RunState::Ok } else { RunState::Failed });
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

    /// Looks at the ledger once, and begins what is due.
    async fn look(&mut self, stop: &CancellationToken) -> Result<CronLook, CronError> {
        let now = (self.wall)();
        let started_at = *self.started_at.get_or_insert(now);
        match self.ledger.clone() {
            Some(ledger) => self.look_at_ledger(&ledger, now, started_at, stop).await,
            None => self.look_at_slot(now, started_at, stop).await,
        }
    }

    async fn look_at_ledger(
        &mut self,
        ledger: &Store,
        now: SystemTime,
        started_at: SystemTime,
        stop: &CancellationToken,
    ) -> Result<CronLook, CronError> {
        let known = ledger.cron_schedule(&self.name).await.map_err(CronError::Ledger)?;
        let seen = known.as_ref().map(|known| known.last_tick);
        let settled = match &known {
            None => started_at,
            Some(known) if known.spec == self.schedule.spec() => known.last_tick,
            // The ticks of the new schedule count from when it was given.
            Some(known) if self.change => known.last_tick.max(started_at),
            Some(known) => return Err(CronError::Ledger(self.other_schedule(&known.spec))),
        };
        let mut view = LedgerView { settled, worked: None };
        if let sleep @ CronDecision::Sleep { .. } = decide(&self.schedule, &self.policy, &view, now) {
            return Ok(self.not_due(&sleep, seen, now));
        }
        // Only now: most machines find the tick begun, and read one row.
        let runs = ledger.cron_runs(&self.name, 1).await.map_err(CronError::Ledger)?;
        let last = runs.into_iter().next();
        view.worked = last.as_ref().and_then(|run| self.time_at_work(run, now));
        let (tick, missed, next) = match decide(&self.schedule, &self.policy, &view, now) {
            CronDecision::Run { tick, missed, next } => (tick, missed, next),
            CronDecision::Sleep { until } => return Ok(CronLook::Taken { until: self.with_jitter(until) }),
        };
        let Some(lease) = self.acquire(self.schedule_claim(now, next), stop).await? else {
            return Ok(CronLook::Taken { until: self.after_held(next) });
        };
        let machine = self.machine.clone().unwrap_or_else(|| lease.holder().to_owned());
        let start = CronStart {
            name: self.name.clone(),
            tick,
            token: lease.token(),
            machine,
            spec: self.schedule.spec().to_owned(),
            seen,
            missed,
        };
        let begun = match ledger.cron_begin(&start).await {
            Ok(begun) => begun,
            Err(error) => {
                if matches!(error, RecipeError::Indeterminate { .. }) {
                    self.notify(&CronNotice::Unknown { tick });
                }
                release(lease).await;
                return Err(CronError::Ledger(error));
            }
        };
        let until = match begun {
            CronBegun::First { token } => {
                let lost = self.find_lost(ledger, last).await;
                return Ok(CronLook::Turn(Box::new(self.begun(lease, tick, token, missed, lost))));
            }
            CronBegun::Done => self.with_jitter(next),
            // Another machine began something since we read: read again.
            CronBegun::Again => Some(now),
            CronBegun::Stale => {
                self.notify(&CronNotice::Stale { tick });
                self.after_held(next)
            }
            CronBegun::Early => {
                self.notify(&CronNotice::ClockAhead { tick });
                (self.wall)().checked_add(MAX_BACKOFF)
            }
        };
        release(lease).await;
        Ok(CronLook::Taken { until })
    }

    /// When the last run was at work. One that still runs is in the way of those who wait for it; whether it is in the way of
    /// the others is known by its lease.
    fn time_at_work(&self, run: &CronRun, now: SystemTime) -> Option<(SystemTime, SystemTime)> {
        match run.ended_at {
            Some(ended) => Some((run.started_at, ended)),
            None if self.policy.overlap == Overlap::Wait => Some((run.started_at, now)),
            None => None,
        }
    }

    /// The run that our begin found without an end. It may have ended after we read of it, so it is read again.
    async fn find_lost(&self, ledger: &Store, last: Option<CronRun>) -> Option<CronRun> {
        let last = last.filter(|run| run.state == RunState::Running)?;
        // Ours, a range of missed ticks, and the lost one.
        match ledger.cron_runs(&self.name, 3).await {
            Ok(runs) => runs.into_iter().find(|run| run.tick == last.tick && run.state == RunState::Lost),
            Err(error) => {
                self.notify(&CronNotice::Trouble(&CronError::Ledger(error)));
                None
            }
        }
    }

    /// Without a ledger: the lease of the tick decides.
    async fn look_at_slot(
        &mut self,
        now: SystemTime,
        started_at: SystemTime,
        stop: &CancellationToken,
    ) -> Result<CronLook, CronError> {
        // A tick that came before this process may have been run by another: its lease knows.
        let newest = self.schedule.last_at(now).and_then(|newest| newest.checked_sub(Duration::from_secs(1)));
        let start = match self.policy.catch_up {
            CatchUp::None => started_at,
            CatchUp::Last | CatchUp::All => newest.map_or(started_at, |newest| newest.min(started_at)),
        };
        let view = LedgerView { settled: self.settled.unwrap_or(start), worked: None };
        // Only a tick that is younger than its lease may be tried: `All` would try older ones.
        let catch_up = if self.policy.catch_up == CatchUp::None { CatchUp::None } else { CatchUp::Last };
        let policy = CronPolicy { catch_up, overlap: Overlap::Skip, ..self.policy.clone() };
        let decision = decide(&self.schedule, &policy, &view, now);
        let CronDecision::Run { tick, next, .. } = decision else {
            return Ok(self.not_due(&decision, self.settled, now));
        };
        let ttl = policy.late_at(&self.schedule, tick).saturating_add(SLOT_MARGIN);
        let resource = format!("{RESOURCE_PREFIX}{}@{}", self.name, rfc3339(tick));
        let claim = self.limited(self.leasehold.acquire(resource).ttl(ttl));
        let lease = self.acquire(claim, stop).await?;
        // Whoever has the lease: this tick is settled.
        self.settled = Some(tick);
        Ok(match lease {
            None => CronLook::Taken { until: self.with_jitter(next) },
            Some(lease) => CronLook::Turn(Box::new(self.begun(lease, tick, 0, None, None))),
        })
    }

    /// A run that is ours, after everybody was told what came before it.
    fn begun(
        &self,
        lease: StrongestLease,
        tick: SystemTime,
        token: i64,
        missed: Option<MissedTicks>,
        lost: Option<CronRun>,
    ) -> CronTurn {
        if let Some(lost) = &lost {
            count_cron_run(RunState::Lost);
            self.notify(&CronNotice::Lost(lost));
        }
        if let Some(missed) = missed {
            count_cron_missed(missed.count);
            self.notify(&CronNotice::Missed(missed));
        }
        count_cron_late((self.wall)().duration_since(tick).unwrap_or_default());
        CronTurn { name: self.name.clone(), tick, token, lease, ledger: self.ledger.clone(), missed, lost }
    }

    fn schedule_claim(&self, now: SystemTime, next: Option<SystemTime>) -> Acquire {
        let claim = self.leasehold.acquire(format!("{RESOURCE_PREFIX}{}", self.name)).ttl(self.ttl);
        let time_left = next.and_then(|next| next.duration_since(now).ok()).unwrap_or(Duration::MAX);
        match self.policy.overlap {
            Overlap::Skip => self.limited(claim),
            Overlap::Wait => self.limited(claim.wait(time_left.min(LONGEST_WAIT))),
            Overlap::Replace => {
                // The run before this tick was ended just before it: its lease may not be released yet.
                let claim = claim.wait(REPLACED_WAIT.min(time_left / 2));
                let most = self.max_run.map_or(time_left, |most| most.min(time_left));
                self.labelled(if most == Duration::MAX { claim } else { claim.max_hold(most) })
            }
        }
    }

    fn limited(&self, claim: Acquire) -> Acquire {
        self.labelled(match self.max_run {
            Some(most) => claim.max_hold(most),
            None => claim,
        })
    }

    fn labelled(&self, claim: Acquire) -> Acquire {
        match &self.machine {
            Some(machine) => claim.holder(machine),
            None => claim,
        }
    }

    /// The lease; none: another has it, or a stop came while we stood in line.
    async fn acquire(&mut self, claim: Acquire, stop: &CancellationToken) -> Result<Option<StrongestLease>, CronError> {
        let promises = self.leasehold.promises();
        if !promises.fencing && !self.said_no_tokens && self.ledger.is_some() {
            self.said_no_tokens = true;
            self.notify(&CronNotice::NoTokens { engine: promises.engine });
        }
        let asked = tokio::select! {
            biased;
            asked = StrongestLease::ask_for(claim) => asked,
            () = stop.cancelled() => return Ok(None),
        };
        match asked {
            Ok(lease) => Ok(Some(lease)),
            Err(Error::Refused(Refusal::Held { .. })) => Ok(None),
            Err(error) => Err(CronError::Lease(error)),
        }
    }

    /// What to say about a tick that is not to be run now: another machine has it, or none has come.
    fn not_due(&self, decision: &CronDecision, seen: Option<SystemTime>, now: SystemTime) -> CronLook {
        let until = match decision {
            CronDecision::Sleep { until } => self.with_jitter(*until),
            CronDecision::Run { .. } => None,
        };
        match self.schedule.last_at(now) {
            Some(newest) if seen.is_some_and(|seen| seen >= newest) => CronLook::Taken { until },
            _ => CronLook::NotDue { until },
        }
    }

    /// When to look again at a tick whose lease another has.
    fn after_held(&self, next: Option<SystemTime>) -> Option<SystemTime> {
        let pause = (self.ttl / 3).mul_f64(0.5 + random_fraction() / 2.0);
        let soon = (self.wall)().checked_add(pause)?;
        Some(self.with_jitter(next).map_or(soon, |next| next.min(soon)))
    }

    /// The tick, and a part of the jitter.
    fn with_jitter(&self, tick: Option<SystemTime>) -> Option<SystemTime> {
        let tick = tick?;
        let most = self.jitter.unwrap_or_else(|| default_jitter(&self.schedule, tick));
        tick.checked_add(most.mul_f64(random_fraction()))
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

    fn other_schedule(&self, stored: &str) -> RecipeError {
        RecipeError::Invalid(format!(
            "the ledger has another schedule under the name {}: \"{stored}\", and this is \"{}\"; stop the machines that \
             have the other one, and give --change to replace it",
            self.name,
            self.schedule.spec()
        ))
    }

    fn notify(&self, notice: &CronNotice<'_>) {
        if let Some(call) = &self.on_notice {
            call(notice);
        }
    }
}

/// One that is not released lapses with its ttl.
async fn release(lease: StrongestLease) {
    let _ = lease.end().await;
}

/// A tick as text: RFC 3339 in UTC, whole seconds.
#[must_use]
pub fn rfc3339(tick: SystemTime) -> String {
    jiff::Timestamp::from_second(floor_seconds(tick)).map_or_else(|_| "?".into(), |tick| tick.to_string())
}
