//! What changes of the local clock (summer time) do to a schedule: ticks that do not run, run later, or run twice.

use std::fmt;
use std::time::SystemTime;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::Offset;

use super::schedule::{Schedule, floor_seconds, from_seconds};
use croner::JobType;

/// How many times of the day are named.
const NAMED_TIMES: usize = 6;
/// More than any schedule has in the hours that a clock change skips or repeats.
const MAX_TICKS: usize = 3 * 3600;

/// What a change of the local clock does to a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockEffect {
    /// The local times do not exist on that day, and are not run.
    NotRun,
    /// The local time does not exist on that day: it is run when the clock goes on.
    Moved,
    /// The local times come twice on that day, and are run twice.
    Twice,
}

impl ClockEffect {
    /// The effect in one word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::NotRun => "not_run",
            Self::Moved => "moved",
            Self::Twice => "twice",
        }
    }
}

/// A change of the local clock that a schedule meets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClockChange {
    /// When the clock changes.
    pub at: SystemTime,
    /// What that does.
    pub effect: ClockEffect,
    /// The local date and the times of the schedule that it concerns: the first few of them.
    pub times: Vec<String>,
    /// How many there are.
    pub count: usize,
    /// The local date and time at which a moved tick is run, and at which the clock goes on otherwise.
    pub resumes: String,
}

impl fmt::Display for ClockChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let more = self.count.saturating_sub(self.times.len());
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let times = format!("{}{more}", self.times.join(", "));
        match self.effect {
            ClockEffect::NotRun => write!(f, "the clock is put forward: {times} will not run"),
            ClockEffect::Moved => write!(f, "the clock is put forward: {times} will run at {}", self.resumes),
            ClockEffect::Twice => write!(f, "the clock is put back: {times} will run twice"),
        }
    }
}

impl Schedule {
    /// The changes of the local clock between two instants at which ticks are left out, moved or repeated.
    ///
    /// A schedule whose hour is `*` simply goes on where the clock changes by whole hours: that is no effect.
    #[must_use]
    pub fn clock_changes(&self, from: SystemTime, upto: SystemTime) -> Vec<ClockChange> {
        let (Ok(from), upto) = (Timestamp::from_second(floor_seconds(from)), floor_seconds(upto)) else {
            return Vec::new();
        };
        let every_hour = self.spec().split(' ').rev().nth(4) == Some("*");
        let mut changes = Vec::new();
        for change in self.zone.following(from).take_while(|change| change.timestamp().as_second() <= upto) {
            let at = change.timestamp().as_second();
            let Ok(before) = Timestamp::from_second(at - 1) else { continue };
            let (old, new) = (self.zone.to_offset(before), change.offset());
            let shift = i64::from(new.seconds()) - i64::from(old.seconds());
            if shift == 0 || (every_hour && shift % 3600 == 0) {
                continue;
            }
            changes.extend(if shift > 0 { self.skipped(at, old, new) } else { self.repeated(at, -shift, new) });
        }
        changes
    }

    /// The local times of the schedule that do not exist when the clock goes from one offset to a higher one.
    fn skipped(&self, at: i64, old: Offset, new: Offset) -> Option<ClockChange> {
        let moment = Timestamp::from_second(at).ok()?;
        let (start, end) = (old.to_datetime(moment), new.to_datetime(moment));
        let first = self.cron.find_next_occurrence(&start, true).ok();
        let next = |time: &DateTime| self.cron.find_next_occurrence(time, false).ok();
        let times: Vec<DateTime> =
            std::iter::successors(first, next).take_while(|time| *time < end).take(MAX_TICKS).collect();
        let fixed = self.cron.determine_job_type() == JobType::FixedTime;
        let effect = if fixed { ClockEffect::Moved } else { ClockEffect::NotRun };
        describe(at, effect, &times, end)
    }

    /// The local times of the schedule that are run twice when the clock is put back by so many seconds.
    fn repeated(&self, at: i64, shift: i64, new: Offset) -> Option<ClockChange> {
        let mut times = Vec::new();
        let mut tick = self.next_second(at - 1);
        while let Some(second) = tick.filter(|second| *second < at + shift && times.len() < MAX_TICKS) {
            if self.next_second(second - shift - 1) == Some(second - shift) {
                times.push(new.to_datetime(Timestamp::from_second(second).ok()?));
            }
            tick = self.next_second(second);
        }
        let resumes = new.to_datetime(Timestamp::from_second(at).ok()?);
        describe(at, ClockEffect::Twice, &times, resumes)
    }
}

fn describe(at: i64, effect: ClockEffect, times: &[DateTime], resumes: DateTime) -> Option<ClockChange> {
    let text = |time: &DateTime| time.to_string().replace('T', " ");
    let named = times.iter().take(NAMED_TIMES).map(text).collect();
    let change =
        ClockChange { at: from_seconds(at), effect, times: named, count: times.len(), resumes: text(&resumes) };
    Some(change).filter(|change| change.count > 0)
}
