//! The ledger of scheduled runs: which tick of a schedule ran, where, and how it ended.
//!
//! ```text
//!   tick ──begin──▶ running(token) ──finish──▶ ok | failed
//!                      └── found by a begin with a higher token ──▶ lost
//!   ticks that nobody began ──with the next begin──▶ skipped, if they came before the last run ended; missed after it
//! ```
//!
//! Whoever begins a run says which tick it saw last, and which ticks were missed since. If another machine began one
//! meanwhile, it is told to look again: so no tick falls between two machines, even on an engine without tokens.
//!
//! A lease keeps two machines from running at once. The ledger decides: it compares the tick and the token of the lease.
//! Ticks are instants in UTC. The clock of the store judges whether one is early.
//!
//! # Laws
//!
//! 1. At most one [`CronBegun::First`] per tick.
//! 2. Each tick from the first to the last is one run, or in one `missed` or `skipped` row.
//!    No tick that came after the end of the last run is in a `skipped` row.
//! 3. A run that is found `running` under a lower token is `lost`. It is reported, and not repeated.
//! 4. A finish without the token of the run writes nothing.
//!
//! # A tour of the modules (feature `cron`)
//!
//! - [`schedule`]: the fields of a crontab and a time zone, as instants; [`clock_change`]: what summer time does to them.
//! - [`plan`]: which tick to run now, which are missed, when to look again. A pure function.
//! - [`runner`]: waits for ticks, and begins each on one machine of many; [`turn`]: a run that was begun.

#[cfg(feature = "cron")]
pub mod clock_change;
#[cfg(feature = "cron")]
pub mod plan;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "http")]
mod remote;
#[cfg(feature = "cron")]
pub mod runner;
#[cfg(feature = "cron")]
pub mod schedule;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(feature = "cron")]
#[cfg(test)]
mod tests;
#[cfg(feature = "cron")]
pub mod turn;

#[cfg(feature = "cron")]
pub use clock_change::{ClockChange, ClockEffect};
#[cfg(feature = "cron")]
pub use plan::{CatchUp, Overlap};
#[cfg(feature = "cron")]
pub use runner::{CronError, CronLook, CronNotice, CronRunner, rfc3339};
#[cfg(feature = "cron")]
pub use schedule::{Schedule, next_tick};
#[cfg(feature = "cron")]
pub use turn::CronTurn;

use std::time::{Duration, SystemTime};

use crate::engine::Token;
use crate::recipe::error::RecipeError;
use crate::recipe::store::{Store, StoreDatabase};

const MAX_NAME_BYTES: usize = 128;
const MAX_SPEC_BYTES: usize = 512;
const MAX_MACHINE_BYTES: usize = 256;
/// The last words of a command that are kept.
const MAX_TAIL_CHARS: usize = 4000;
/// Ticks that came while a run was at work, and ticks after it.
const MAX_MISSED_RANGES: usize = 2;
/// How far a machine's clock may be ahead of the store's.
const MAX_AHEAD: Duration = Duration::from_secs(5);

/// A run that a machine wants to begin.
#[derive(Clone, Debug)]
pub struct CronStart {
    /// The schedule.
    pub name: String,
    /// Which tick of it.
    pub tick: SystemTime,
    /// The token of the lease on the schedule; none: the engine has none, and the store gives one. Then a late machine
    /// cannot be told from another.
    pub token: Option<Token>,
    /// Who runs it, for people.
    pub machine: String,
    /// The schedule as text: its fields and its time zone.
    pub spec: String,
    /// The last tick that was begun, as the caller read it; none: there was none. `missed` is counted from it, so the ledger
    /// compares it.
    pub seen: Option<SystemTime>,
    /// The ticks before this one that nobody began, in order. Two ranges if the last run ended among them: those that came
    /// before its end, and the others. A range is `skipped` if a run ended after all of it, and `missed` otherwise.
    pub missed: Vec<MissedTicks>,
}

/// Ticks that nobody began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissedTicks {
    /// The first of them.
    pub from: SystemTime,
    /// The last of them.
    pub upto: SystemTime,
    /// How many.
    pub count: u32,
}

/// What the ledger recorded together with the beginning of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CronRecorded {
    /// Ticks before it that came while a run was at work.
    pub skipped: u32,
    /// Other ticks before it that nobody began.
    pub missed: u32,
    /// Runs before it that their machines did not finish.
    pub lost: u32,
}

/// What the ledger says to a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum CronBegun {
    /// Nobody began this tick: run it, and finish with this token.
    First {
        /// The token of the lease, or one of the store.
        token: i64,
        /// What became of the ticks and runs before it.
        recorded: CronRecorded,
    },
    /// This tick was begun, or a later one.
    Done,
    /// A machine with a higher token has begun a run. Stop.
    Stale,
    /// Another machine began a tick since the caller read the last one. Read it again.
    Again,
    /// The store's clock says that the tick is more than 5 s away: this machine's clock is ahead.
    Early,
}

/// The state of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// It was begun, and has not ended as far as anybody knows.
    Running,
    /// It ended with code 0.
    Ok,
    /// It ended otherwise.
    Failed,
    /// Its machine did not finish it, and another machine began a later tick.
    Lost,
    /// Nobody began it.
    Missed,
    /// It came while another run was at work.
    Skipped,
}

impl RunState {
    /// Every state.
    pub const ALL: [Self; 6] = [Self::Running, Self::Ok, Self::Failed, Self::Lost, Self::Missed, Self::Skipped];

    /// The word in the table.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Ok => "ok",
            Self::Failed => "failed",
            Self::Lost => "lost",
            Self::Missed => "missed",
            Self::Skipped => "skipped",
        }
    }

    fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }
}

/// One row of the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CronRun {
    /// The tick, or the first of a range.
    pub tick: SystemTime,
    /// The last tick of a range; the same for a run.
    pub upto: SystemTime,
    /// How many ticks.
    pub ticks: u32,
    /// The token it was begun with.
    pub token: i64,
    /// What became of it.
    pub state: RunState,
    /// Who ran it.
    pub machine: Option<String>,
    /// When the ledger was told.
    pub started_at: SystemTime,
    /// When it ended.
    pub ended_at: Option<SystemTime>,
    /// The exit code.
    pub code: Option<i32>,
    /// The last words of its output.
    pub tail: Option<String>,
}

/// A schedule, as the ledger knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CronSchedule {
    /// Its name.
    pub name: String,
    /// Its text.
    pub spec: String,
    /// The last tick that was begun.
    pub last_tick: SystemTime,
    /// The highest token.
    pub token: i64,
}

impl Store {
    /// Begins a run in the ledger, and records ticks before it that nobody began.
    ///
    /// # Errors
    ///
    /// [`RecipeError::Indeterminate`]: it may have begun. Do not run it: the next machine finds it lost, and reports it.
    pub async fn cron_begin(&self, start: &CronStart) -> Result<CronBegun, RecipeError> {
        check_start(start)?;
        match &self.database {
            #[cfg(feature = "postgres")]
            StoreDatabase::Postgres(database) => database.cron_begin(start).await,
            #[cfg(feature = "sqlite")]
            StoreDatabase::Sqlite(database) => database.cron_begin(start).await,
            #[cfg(feature = "http")]
            StoreDatabase::Server(database) => database.cron_begin(start).await,
        }
    }

    /// Ends a run: `ok` with code 0, otherwise `failed`. `tail`: the last words of its output, of which 4,000 characters are
    /// kept. False: it was lost meanwhile, or ended before; nothing was written.
    ///
    /// # Errors
    ///
    /// What the store says when it cannot be asked. It may be asked again.
    pub async fn cron_finish(
        &self,
        name: &str,
        tick: SystemTime,
        token: i64,
        code: i32,
        tail: &str,
    ) -> Result<bool, RecipeError> {
        let state = if code == 0 { RunState::Ok } else { RunState::Failed };
        // A NUL is no text to PostgreSQL.
        let skipped = tail.chars().count().saturating_sub(MAX_TAIL_CHARS);
        let tail: String = tail.chars().skip(skipped).map(|letter| if letter == '\0' { ' ' } else { letter }).collect();
        let end = CronEnd { name: name.to_owned(), tick: unix_millis(tick)?, token, state, code, tail };
        match &self.database {
            #[cfg(feature = "postgres")]
            StoreDatabase::Postgres(database) => database.cron_finish(&end).await,
            #[cfg(feature = "sqlite")]
            StoreDatabase::Sqlite(database) => database.cron_finish(end).await,
            #[cfg(feature = "http")]
            StoreDatabase::Server(database) => database.cron_finish(&end).await,
        }
    }

    /// A schedule; none: none of its ticks was ever begun.
    ///
    /// # Errors
    ///
    /// What the store says when it cannot be asked.
    pub async fn cron_schedule(&self, name: &str) -> Result<Option<CronSchedule>, RecipeError> {
        match &self.database {
            #[cfg(feature = "postgres")]
            StoreDatabase::Postgres(database) => database.cron_schedule(name).await,
            #[cfg(feature = "sqlite")]
            StoreDatabase::Sqlite(database) => database.cron_schedule(name).await,
            #[cfg(feature = "http")]
            StoreDatabase::Server(database) => database.cron_schedule(name).await,
        }
    }

    /// The schedules that the ledger knows, by name.
    ///
    /// # Errors
    ///
    /// What the store says when it cannot be asked.
    pub async fn cron_schedules(&self, limit: u32) -> Result<Vec<CronSchedule>, RecipeError> {
        match &self.database {
            #[cfg(feature = "postgres")]
            StoreDatabase::Postgres(database) => database.cron_schedules(limit).await,
            #[cfg(feature = "sqlite")]
            StoreDatabase::Sqlite(database) => database.cron_schedules(limit).await,
            #[cfg(feature = "http")]
            StoreDatabase::Server(database) => database.cron_schedules(limit).await,
        }
    }

    /// Forgets a schedule that was given up, with its history: from then on nobody waits for its ticks. False: there was none.
    ///
    /// Stop its machines first. One that still runs begins the schedule anew, and may run its newest tick again.
    ///
    /// # Errors
    ///
    /// [`RecipeError::Invalid`] behind a server: open its store itself. Otherwise what the store says when it cannot be asked.
    pub async fn cron_remove(&self, name: &str) -> Result<bool, RecipeError> {
        match &self.database {
            #[cfg(feature = "postgres")]
            StoreDatabase::Postgres(database) => database.cron_remove(name).await,
            #[cfg(feature = "sqlite")]
            StoreDatabase::Sqlite(database) => database.cron_remove(name).await,
            #[cfg(feature = "http")]
            StoreDatabase::Server(_) => Err(RecipeError::Invalid(
                "a schedule is not removed through a server: open the store of the server itself, as its --store says"
                    .into(),
            )),
        }
    }

    /// The newest rows of a schedule, newest first.
    ///
    /// # Errors
    ///
    /// What the store says when it cannot be asked.
    pub async fn cron_runs(&self, name: &str, limit: u32) -> Result<Vec<CronRun>, RecipeError> {
        match &self.database {
            #[cfg(feature = "postgres")]
            StoreDatabase::Postgres(database) => database.cron_runs(name, limit).await,
            #[cfg(feature = "sqlite")]
            StoreDatabase::Sqlite(database) => database.cron_runs(name, limit).await,
            #[cfg(feature = "http")]
            StoreDatabase::Server(database) => database.cron_runs(name, limit).await,
        }
    }
}

/// The end of a run, as the databases take it.
struct CronEnd {
    name: String,
    tick: i64,
    token: i64,
    state: RunState,
    code: i32,
    tail: String,
}

fn check_start(start: &CronStart) -> Result<(), RecipeError> {
    for (what, text, most) in [
        ("name of a schedule", &start.name, MAX_NAME_BYTES),
        ("schedule", &start.spec, MAX_SPEC_BYTES),
        ("machine", &start.machine, MAX_MACHINE_BYTES),
    ] {
        if text.is_empty() || text.len() > most || text.chars().any(char::is_control) {
            return Err(RecipeError::Invalid(format!("a {what} is 1 to {most} bytes without control characters")));
        }
    }
    let in_order = start.missed.windows(2).all(|pair| pair[0].upto < pair[1].from);
    let is_range = |missed: &MissedTicks| missed.count > 0 && missed.from <= missed.upto && missed.upto < start.tick;
    if start.missed.len() > MAX_MISSED_RANGES || !in_order || !start.missed.iter().all(is_range) {
        return Err(RecipeError::Invalid(format!(
            "missed ticks are {MAX_MISSED_RANGES} ranges at most, of at least one tick, in order, and before the tick that \
             begins"
        )));
    }
    start.seen.map(unix_millis).transpose()?;
    unix_millis(start.tick).map(drop)
}

/// Milliseconds since 1970. Ticks are whole seconds.
fn unix_millis(at: SystemTime) -> Result<i64, RecipeError> {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).ok();
    let millis = since.and_then(|since| i64::try_from(since.as_millis()).ok());
    // Far enough: the year 9999.
    let millis = millis.filter(|millis| *millis < 253_402_300_800_000);
    millis.ok_or_else(|| RecipeError::Invalid("a tick is between 1970 and 9999".into()))
}

fn from_unix_millis(millis: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}

/// The token as the databases have it: a token of a lease is below 2^63.
fn token_number(token: Option<Token>) -> Option<i64> {
    token.map(|token| i64::try_from(token.get()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod state_tests {
    use super::*;

    #[test]
    fn every_state_has_its_word() {
        for (place, state) in RunState::ALL.into_iter().enumerate() {
            assert_eq!(RunState::from_word(state.as_str()), Some(state));
            assert_eq!(state as usize, place);
        }
        assert_eq!(RunState::from_word("unheard of"), None);
    }
}
