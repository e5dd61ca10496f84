//! What to do now: which tick to run, which are missed, and when to look again. No clock and no store: a pure function.
//!
//! ```text
//!   last tick begun          newest tick that came      now
//!        │   missed │ missed │ run this one, if fresh    │            look again at the next tick
//! ```
//!
//! # Laws
//!
//! 1. A tick that is to be run is later than the last one begun, and has come.
//! 2. All ticks between the last one begun and the one to be run are in its range of missed ticks, and no others.
//! 3. When nothing is to be run, the next look is at the next tick that comes.

use std::time::{Duration, SystemTime};

use super::schedule::Schedule;
use super::{CronRun, CronSchedule, MissedTicks, RunState};
use crate::recipe::error::RecipeError;

/// The longest time that a tick may be late, unless a longer one is asked for.
const LONGEST_DEFAULT_LATE: Duration = Duration::from_secs(3600);
/// How many ticks of a gap are run by [`CatchUp::All`].
const MAX_CAUGHT_UP: usize = 100;
/// The longest jitter, unless a longer one is asked for.
const LONGEST_DEFAULT_JITTER: Duration = Duration::from_secs(2);

/// What to do about ticks that nobody began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CatchUp {
    /// Run the newest, if it is not too late. The others are missed.
    #[default]
    Last,
    /// Run none: a tick that is not begun when it comes is missed.
    None,
    /// Run each in turn, however late: the newest 100.
    All,
}

/// What to do about a tick that comes while a run is at work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overlap {
    /// Do not run it.
    #[default]
    Skip,
    /// Run it when the other has ended, unless the next tick comes first.
    Wait,
    /// The run at work is ended before the tick comes.
    Replace,
}

/// How a schedule is kept.
#[derive(Clone, Debug)]
pub struct CronPolicy {
    /// Ticks that nobody began.
    pub catch_up: CatchUp,
    /// A tick that comes while a run is at work.
    pub overlap: Overlap,
    /// How late a tick may be begun. None: half of the time to the next tick, at most 1 h.
    pub late: Option<Duration>,
    /// What counts as begun when it comes, for [`CatchUp::None`]: the time that a lease of a dead machine takes to lapse.
    pub on_time: Duration,
    /// With [`Overlap::Replace`]: a run that would have less time than this is not begun.
    pub least_run: Duration,
}

impl CronPolicy {
    /// How late a tick may be begun.
    #[must_use]
    pub fn late_at(&self, schedule: &Schedule, tick: SystemTime) -> Duration {
        self.late.unwrap_or_else(|| default_late(schedule, tick))
    }
}

/// How late a tick may be begun, unless something else is asked for.
fn default_late(schedule: &Schedule, tick: SystemTime) -> Duration {
    (schedule.period_at(tick) / 2).min(LONGEST_DEFAULT_LATE)
}

impl CronSchedule {
    /// How long ago the next tick came, if nobody began it and by default it is too late to begin it: no machine may be left.
    /// `last`: the newest row of its runs. The ticks that came before a run ended are not waited for.
    ///
    /// A run that is still at work past the next tick looks the same as one whose machine died: the ledger cannot tell. Nor
    /// does it know what the machines call late.
    ///
    /// # Errors
    ///
    /// [`RecipeError::Invalid`]: the text of the schedule is of a version that we do not know.
    pub fn overdue(&self, last: Option<&CronRun>, now: SystemTime) -> Result<Option<Duration>, RecipeError> {
        let schedule = Schedule::from_spec(&self.spec)?;
        let finished = last.filter(|run| matches!(run.state, RunState::Ok | RunState::Failed));
        let settled = finished.and_then(|run| run.ended_at).map_or(self.last_tick, |ended| ended.max(self.last_tick));
        let Some(next) = schedule.next_after(settled) else { return Ok(None) };
        let age = now.duration_since(next).unwrap_or_default();
        Ok(Some(age).filter(|age| *age > default_late(&schedule, next)))
    }
}

/// Up to how much later than a tick the machines look, each at a time of its own, unless something else is asked for.
#[must_use]
pub fn default_jitter(schedule: &Schedule, tick: SystemTime) -> Duration {
    (schedule.period_at(tick) / 20).min(LONGEST_DEFAULT_JITTER)
}

/// What the ledger says, as far as a decision needs it.
#[derive(Clone, Copy, Debug)]
pub struct LedgerView {
    /// The ticks up to this instant are settled: the last tick begun, or where the schedule starts.
    pub settled: SystemTime,
    /// When the last run was at work, if it has ended.
    pub worked: Option<(SystemTime, SystemTime)>,
}

impl LedgerView {
    /// Whether this tick came while the last run was at work.
    fn was_at_work(&self, tick: SystemTime) -> bool {
        self.worked.is_some_and(|(started, ended)| started <= tick && tick < ended)
    }
}

/// What to do now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CronDecision {
    /// Nothing. Look again at this tick; none: no tick comes any more.
    Sleep {
        /// The next tick.
        until: Option<SystemTime>,
    },
    /// Begin this tick.
    Run {
        /// The tick.
        tick: SystemTime,
        /// The ticks before it that nobody began.
        missed: Option<MissedTicks>,
        /// The tick after the newest that has come.
        next: Option<SystemTime>,
    },
}

/// Decides what to do now.
#[must_use]
pub fn decide(schedule: &Schedule, policy: &CronPolicy, view: &LedgerView, now: SystemTime) -> CronDecision {
    let newest = schedule.last_at(now).filter(|newest| *newest > view.settled);
    let Some(newest) = newest else {
        // Another machine, whose clock is ahead of ours, may have begun a tick that we still wait for.
        return CronDecision::Sleep { until: schedule.next_after(now.max(view.settled)) };
    };
    let next = schedule.next_after(newest);
    let age = now.duration_since(newest).unwrap_or_default();
    let skipped = |tick: SystemTime| policy.overlap == Overlap::Skip && view.was_at_work(tick);
    let waited = policy.overlap == Overlap::Wait && view.was_at_work(newest);
    let fresh = |late: Duration| (age < late || waited) && !skipped(newest);
    let late = policy.late_at(schedule, newest);
    let tick = match policy.catch_up {
        CatchUp::Last => fresh(late).then_some(newest),
        CatchUp::None => fresh(late.min(policy.on_time)).then_some(newest),
        CatchUp::All => newest_due(schedule, view.settled, newest).into_iter().find(|tick| !skipped(*tick)),
    };
    let time_left = next.and_then(|next| next.duration_since(now).ok()).unwrap_or(Duration::MAX);
    let tick = tick.filter(|_| policy.overlap != Overlap::Replace || time_left > policy.least_run);
    match tick {
        Some(tick) => CronDecision::Run { tick, missed: schedule.range_between(view.settled, tick), next },
        None => CronDecision::Sleep { until: next },
    }
}

/// The newest ticks that are due, at most 100, the oldest of them first.
fn newest_due(schedule: &Schedule, settled: SystemTime, newest: SystemTime) -> Vec<SystemTime> {
    let due = schedule.ticks_between(settled, newest, MAX_CAUGHT_UP + 1);
    if due.len() <= MAX_CAUGHT_UP {
        return due;
    }
    let back = std::iter::successors(Some(newest), |tick| schedule.last_before(*tick));
    let mut due: Vec<SystemTime> = back.take(MAX_CAUGHT_UP).collect();
    due.reverse();
    due
}
