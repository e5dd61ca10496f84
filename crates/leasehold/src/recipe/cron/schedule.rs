//! A schedule: the fields of a crontab and a time zone, as instants.
//!
//! A tick is an instant in UTC, a whole second. Everything here is asked for instants and answers instants: no clock is read.
//!
//! # Laws
//!
//! 1. [`Schedule::next_after`] is later than what was asked, and never falls when that rises.
//! 2. Only the search forward decides what a tick is. [`Schedule::last_before`] is found by it, so both ways have the same ticks.
//! 3. A schedule without any tick is refused when it is read.

use std::time::{Duration, SystemTime};

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::MissedTicks;
use crate::recipe::error::RecipeError;

/// Where the search for any tick begins: a schedule has no year, so one instant is as good as another.
const SOME_SECOND: i64 = 1_700_000_000;
/// No schedule pauses for longer: 29 February on one day of the week, around the year 2100.
const LONGEST_PAUSE_SECONDS: i64 = 41 * 366 * 86_400;
/// Up to this many ticks are counted; a longer gap counts as this many.
const MAX_COUNTED_TICKS: u32 = 100_000;

/// When something is due: `0 3 * * *` in a time zone.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use leasehold::recipe::cron::Schedule;
///
/// let nightly = Schedule::parse("0 3 * * *", "UTC")?;
/// assert_eq!(nightly.spec(), "0 3 * * * UTC");
/// let three = SystemTime::UNIX_EPOCH + Duration::from_secs(3 * 3600);
/// assert_eq!(nightly.next_after(SystemTime::UNIX_EPOCH), Some(three));
/// assert!(Schedule::parse("0 3 30 2 *", "UTC").is_err(), "30 February never comes");
/// # Ok::<(), leasehold::recipe::RecipeError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Schedule {
    pub(super) cron: Cron,
    pub(super) zone: TimeZone,
    /// The fields and the zone, with one space between them.
    spec: String,
}

impl PartialEq for Schedule {
    fn eq(&self, other: &Self) -> bool {
        self.spec == other.spec
    }
}

impl Eq for Schedule {}

impl Schedule {
    /// Reads five fields (minute, hour, day of the month, month, day of the week), or six with seconds first, and the name of
    /// a time zone.
    ///
    /// # Errors
    ///
    /// [`RecipeError::Invalid`], with a sentence that says what is wrong.
    pub fn parse(fields: &str, zone: &str) -> Result<Self, RecipeError> {
        let words: Vec<String> = fields.split_whitespace().map(str::to_uppercase).collect();
        if !(5..=6).contains(&words.len()) || words.iter().any(|word| word.contains('@')) {
            return Err(invalid(format!(
                "a schedule has five fields (minute, hour, day, month, weekday), or six with seconds first, as in \
                 \"0 3 * * *\"; this has {}",
                words.len()
            )));
        }
        let fields = words.join(" ");
        let parser = CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build();
        let cron = parser.parse(&fields).map_err(|error| invalid(format!("schedule \"{fields}\": {error}")))?;
        let zone = zone.trim();
        let found = TimeZone::get(zone).map_err(|_| {
            invalid(format!("there is no time zone {zone:?}: say e.g. UTC, Europe/Berlin or America/New_York"))
        })?;
        // As the table spells it: another spelling is no other schedule.
        let zone_name = found.iana_name().unwrap_or(zone).to_owned();
        let schedule = Self { cron, zone: found, spec: format!("{fields} {zone_name}") };
        if schedule.next_second(SOME_SECOND).is_none() {
            return Err(invalid(format!("schedule \"{fields}\" never comes")));
        }
        Ok(schedule)
    }

    /// Reads what [`Schedule::spec`] wrote.
    ///
    /// # Errors
    ///
    /// As [`Schedule::parse`].
    pub fn from_spec(spec: &str) -> Result<Self, RecipeError> {
        let (fields, zone) = spec.trim().rsplit_once(char::is_whitespace).unwrap_or((spec, ""));
        Self::parse(fields, zone)
    }

    /// The fields and the zone: what the ledger keeps and compares.
    #[must_use]
    pub fn spec(&self) -> &str {
        &self.spec
    }

    /// The name of the time zone.
    #[must_use]
    pub fn zone(&self) -> &str {
        self.spec.rsplit(' ').next().unwrap_or_default()
    }

    /// The first tick after an instant. None: there is none before the year 5000.
    #[must_use]
    pub fn next_after(&self, after: SystemTime) -> Option<SystemTime> {
        self.next_second(floor_seconds(after)).map(from_seconds)
    }

    /// The last tick before an instant. None: there is none since 1970.
    #[must_use]
    pub fn last_before(&self, before: SystemTime) -> Option<SystemTime> {
        // The first second that is not before.
        let end = ceil_seconds(before);
        let comes_before = |second: i64| self.next_second(second).is_some_and(|tick| tick < end);
        let mut span = 64;
        let mut low = loop {
            let low = end.saturating_sub(span).max(-1);
            if comes_before(low) {
                break low;
            }
            if low < 0 || span > LONGEST_PAUSE_SECONDS {
                return None;
            }
            span *= 4;
        };
        // A tick comes after `low` and before the end, none after `high`.
        let mut high = end - 1;
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if comes_before(middle) { low = middle } else { high = middle }
        }
        Some(from_seconds(high)).filter(|_| high >= 0)
    }

    /// The newest tick that has come at an instant.
    #[must_use]
    pub fn last_at(&self, now: SystemTime) -> Option<SystemTime> {
        self.last_before(now.checked_add(Duration::from_nanos(1))?)
    }

    /// The ticks after one instant, up to and with another; at most so many.
    #[must_use]
    pub fn ticks_between(&self, after: SystemTime, upto: SystemTime, most: usize) -> Vec<SystemTime> {
        self.ticks_after(after).take_while(|tick| *tick <= upto).take(most).collect()
    }

    /// How long after this tick the next one comes.
    #[must_use]
    pub fn period_at(&self, tick: SystemTime) -> Duration {
        self.next_after(tick).and_then(|next| next.duration_since(tick).ok()).unwrap_or(Duration::MAX)
    }

    /// The ticks strictly between two instants as one range. Up to 100,000 are counted.
    pub(super) fn range_between(&self, after: SystemTime, before: SystemTime) -> Option<MissedTicks> {
        let from = self.next_after(after).filter(|from| *from < before)?;
        let upto = self.last_before(before).filter(|upto| *upto >= from)?;
        let most = usize::try_from(MAX_COUNTED_TICKS).unwrap_or(usize::MAX);
        let count = self.ticks_after(after).take_while(|tick| *tick <= upto).take(most).count();
        Some(MissedTicks { from, upto, count: u32::try_from(count).unwrap_or(MAX_COUNTED_TICKS) })
    }

    /// The same ticks, cut at the end of a run that came among them: those before it, and the others.
    pub(super) fn ranges_between(
        &self,
        after: SystemTime,
        before: SystemTime,
        run_ended: Option<SystemTime>,
    ) -> Vec<MissedTicks> {
        let Some(ended) = run_ended.filter(|ended| after < *ended && *ended < before) else {
            return self.range_between(after, before).into_iter().collect();
        };
        let skipped = self.range_between(after, ended);
        // A tick at the very end of the run was in nobody's way.
        let rest = ended.checked_sub(Duration::from_nanos(1)).and_then(|almost| self.range_between(almost, before));
        skipped.into_iter().chain(rest).collect()
    }

    fn ticks_after(&self, after: SystemTime) -> impl Iterator<Item = SystemTime> {
        std::iter::successors(self.next_after(after), |tick| self.next_after(*tick))
    }

    /// The first tick after a second since 1970.
    pub(super) fn next_second(&self, after: i64) -> Option<i64> {
        let start = Timestamp::from_second(after).ok()?.to_zoned(self.zone.clone());
        let found = self.cron.find_next_occurrence(&start, false).ok()?;
        Some(found.timestamp().as_second()).filter(|tick| *tick > after)
    }
}

/// The first tick after an instant of a schedule that a ledger keeps as text. None: none comes.
///
/// # Errors
///
/// [`RecipeError::Invalid`]: the text is no schedule.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use leasehold::recipe::cron::next_tick;
///
/// let minute = SystemTime::UNIX_EPOCH + Duration::from_secs(60);
/// assert_eq!(next_tick("* * * * * UTC", SystemTime::UNIX_EPOCH)?, Some(minute));
/// # Ok::<(), leasehold::recipe::RecipeError>(())
/// ```
pub fn next_tick(spec: &str, after: SystemTime) -> Result<Option<SystemTime>, RecipeError> {
    Ok(Schedule::from_spec(spec)?.next_after(after))
}

fn invalid(sentence: String) -> RecipeError {
    RecipeError::Invalid(sentence)
}

/// Whole seconds since 1970. What is before 1970 has no ticks: it counts as the second before.
pub(super) fn floor_seconds(at: SystemTime) -> i64 {
    at.duration_since(SystemTime::UNIX_EPOCH).map_or(-1, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}

fn ceil_seconds(at: SystemTime) -> i64 {
    let Ok(since) = at.duration_since(SystemTime::UNIX_EPOCH) else { return 0 };
    let part = i64::from(since.subsec_nanos() > 0);
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX).saturating_add(part)
}

pub(super) fn from_seconds(seconds: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}
