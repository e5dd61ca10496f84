//! What goes to the store and comes from it, whichever store it is. Times of the store are microseconds since 1970, by
//! its own clock.

use std::time::Duration;

use serde::de::IgnoredAny;

use super::limits::{check_attempts, check_body, check_count, check_delay, check_key, check_levels, check_span};
use super::{MAX_JOB_DELAY, MAX_JOB_KEY_BYTES, MAX_VISIBLE};
use crate::recipe::error::RecipeError;

/// `since` of a turn that looks at all jobs.
pub const SINCE_EVER: i64 = i64::MIN;
/// The level of priority that a job has if nobody says otherwise.
const DEFAULT_PRIORITY: i16 = 1;

/// A job to be pushed.
#[derive(Clone, Debug)]
pub struct NewJob {
    /// The job, as JSON.
    pub(super) body: String,
    /// Not before so long from now.
    pub delay: Duration,
    /// One of the levels of the queue.
    pub priority: i16,
    /// Of a queue by key.
    pub key: Option<String>,
    /// One job of this id at a time.
    pub dedupe: Option<String>,
    /// How often it is tried, where it is not the queue's number.
    pub max_attempts: Option<u16>,
}

impl NewJob {
    /// A job of this JSON.
    ///
    /// # Errors
    ///
    /// [`RecipeError::Invalid`]: it is no JSON, or too long.
    pub fn from_json(body: String) -> Result<Self, RecipeError> {
        check_body(&body)?;
        let checked = serde_json::from_str::<IgnoredAny>(&body);
        checked.map_err(|error| RecipeError::Invalid(format!("the job is no JSON: {error}")))?;
        Ok(Self::from_checked(body))
    }

    /// A job of text that is JSON.
    pub(super) fn from_checked(body: String) -> Self {
        let (delay, priority) = (Duration::ZERO, DEFAULT_PRIORITY);
        Self { body, delay, priority, key: None, dedupe: None, max_attempts: None }
    }

    pub(super) fn check(&self) -> Result<(), RecipeError> {
        check_body(&self.body)?;
        check_delay(self.delay)?;
        self.max_attempts.map_or(Ok(()), check_attempts)?;
        self.key.as_deref().map_or(Ok(()), |key| check_key("a key", key))?;
        self.dedupe.as_deref().map_or(Ok(()), |id| check_key("a dedupe id", id))
    }
}

/// The answer to a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pushed {
    /// The job: the new one, or the one that has the dedupe id already.
    pub job_id: i64,
    /// Whether the job is new. `false`: there was one with this dedupe id. If it was being worked on, it runs once more
    /// afterwards.
    pub fresh: bool,
}

/// What one turn asks for.
#[derive(Clone, Debug)]
pub struct TurnAsk {
    /// How many jobs to claim at most; 0: acknowledge only.
    pub jobs: usize,
    /// Jobs that are done, all under `done_token`.
    pub done: Vec<i64>,
    /// The token of those that are done.
    pub done_token: i64,
    /// How long the deliveries last, where it is not the queue's time.
    pub visible: Option<Duration>,
    /// The label of the worker, for people.
    pub worker: String,
    /// Jobs that were ready before this moment are not looked for.
    pub since: i64,
    /// The order of levels, where it is not the queue's.
    pub levels: Option<Vec<i16>>,
}

impl TurnAsk {
    pub(super) fn check(&self) -> Result<(), RecipeError> {
        check_count(self.jobs)?;
        check_count(self.done.len())?;
        check_visible(self.visible)?;
        self.levels.as_deref().map_or(Ok(()), check_levels)
    }
}

/// A job that a claim delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedJob {
    /// The job.
    pub job_id: i64,
    /// The token of the delivery.
    pub token: i64,
    /// Which try this is.
    pub attempt: u16,
    /// When it was ready. Not told by a claim of a key.
    pub ready_at: Option<i64>,
    /// When it was pushed.
    pub made_at: i64,
    /// Of a queue by key.
    pub key: Option<String>,
    /// The job, as JSON.
    pub body: String,
}

/// The answer to a turn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TurnAnswer {
    /// What was claimed.
    pub jobs: Vec<ClaimedJob>,
    /// Those of `done` that somebody else has, or that are gone.
    pub stale: Vec<i64>,
    /// Those of `done` that a transaction has locked: see [`NotEnded::locked`].
    pub locked: Vec<i64>,
    /// Deliveries that this call found over by time. PostgreSQL collects them in [`sweep`](super::QueueCalls::sweep).
    pub lapsed: u32,
}

/// What an acknowledgement did not end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NotEnded {
    /// Somebody else has them, or they are gone.
    pub stale: Vec<i64>,
    /// A transaction that is open has their rows, such as one that asks for them again. Nothing was changed: acknowledge them
    /// again soon.
    pub locked: Vec<i64>,
}

/// The answer to extending deliveries. Those in neither list are stale.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extended {
    /// Extended.
    pub ours: Vec<i64>,
    /// Not extended, because a transaction that is open has their rows. They are still ours, for as long as they were: ask
    /// again soon.
    pub locked: Vec<i64>,
}

/// What a claim of keys asks for.
#[derive(Clone, Debug)]
pub struct LaneAsk {
    /// How many keys to claim at most.
    pub keys: usize,
    /// How many jobs of each.
    pub jobs_per_key: usize,
    /// How long the claim lasts, where it is not the queue's time.
    pub visible: Option<Duration>,
    /// The label of the worker, for people.
    pub worker: String,
    /// The key to go on after; empty: from the first.
    pub after: String,
}

impl LaneAsk {
    pub(super) fn check(&self) -> Result<(), RecipeError> {
        check_count(self.keys)?;
        check_count(self.jobs_per_key)?;
        check_visible(self.visible)?;
        if self.after.len() > MAX_JOB_KEY_BYTES || self.after.contains('\0') {
            return Err(RecipeError::Invalid("the key to go on after is no key".into()));
        }
        Ok(())
    }
}

/// The answer to a claim of keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaneAnswer {
    /// In order of arrival within a key.
    pub jobs: Vec<ClaimedJob>,
    /// The call saw many busy keys and stopped: the next goes on after this one.
    pub go_on_after: Option<String>,
}

/// A delivery that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedJob {
    /// The job.
    pub job_id: i64,
    /// The token of the delivery.
    pub token: i64,
    /// Of a queue by key.
    pub key: Option<String>,
    /// The reason, for people.
    pub why: String,
    /// When to try again; none: by the backoff of the queue.
    pub after: Option<Duration>,
    /// Never again.
    pub kill: bool,
    /// Added to the number of tries: 1 for a try that the claim did not count, -1 for one that was none.
    pub tries: i32,
}

impl FailedJob {
    /// By key: whether it is of this claim.
    pub(super) fn is_of(&self, token: i64, key: &str) -> bool {
        self.token == token && self.key.as_deref() == Some(key)
    }

    pub(super) fn check(&self) -> Result<(), RecipeError> {
        self.after.map_or(Ok(()), check_delay)?;
        if self.tries.unsigned_abs() > 1 {
            return Err(RecipeError::Invalid("a delivery adds -1, 0 or 1 to the tries of its job".into()));
        }
        self.key.as_deref().map_or(Ok(()), |key| check_key("a key", key))
    }
}

/// The time of a delivery, where one is given.
pub(super) fn check_visible(visible: Option<Duration>) -> Result<(), RecipeError> {
    visible.map_or(Ok(()), |visible| check_span("the time of a delivery", visible, MAX_VISIBLE))
}

/// What became of a delivery that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nacked {
    /// It waits to be tried again.
    Retry,
    /// It is a dead letter.
    Dead,
    /// The delivery was not the newest: nothing was changed.
    Stale,
    /// A transaction that is open has its row: nothing was changed. Ask again soon.
    Locked,
}

impl Nacked {
    /// The word of the store.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Dead => "dead",
            Self::Stale => "stale",
            Self::Locked => "locked",
        }
    }

    /// From the word of the store.
    pub(super) fn from_word(word: &str) -> Option<Self> {
        match word {
            "retry" => Some(Self::Retry),
            "dead" => Some(Self::Dead),
            "stale" => Some(Self::Stale),
            "locked" => Some(Self::Locked),
            _ => None,
        }
    }
}

/// A queue, as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueStatus {
    /// Its name.
    pub name: String,
    /// One worker per key, in order of arrival.
    pub by_key: bool,
    /// No jobs are handed out.
    pub paused: bool,
    /// Jobs that wait and are ready. At most [`COUNTED_JOBS`] are counted, here and below.
    pub ready: u64,
    /// Jobs that wait for their moment: delayed, or to be tried again.
    pub delayed: u64,
    /// Jobs that workers have. Of a queue by key: keys that workers have.
    pub taken: u64,
    /// Jobs that wait after a try that failed.
    pub retried: u64,
    /// Dead letters.
    pub dead: u64,
    /// How long the job that has been ready the longest has waited.
    pub oldest: Option<Duration>,
    /// Workers that sleep until something is pushed. A SQLite store does not tell.
    pub sleepers: u64,
}

/// The most jobs of one kind that [`QueueStatus`] counts.
pub const COUNTED_JOBS: u64 = 10_000;

/// A dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadJob {
    /// The job.
    pub job_id: i64,
    /// How often it was tried.
    pub attempt: u16,
    /// Of a queue by key.
    pub key: Option<String>,
    /// Why it was given up.
    pub error: Option<String>,
    /// How long ago it was pushed.
    pub age: Duration,
    /// How long ago it was given up.
    pub dead_for: Duration,
    /// The job, as JSON.
    pub body: String,
}

/// A key of many waiting jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotKey {
    /// The key.
    pub key: String,
    /// Its jobs.
    pub jobs: u64,
    /// How long ago the first of them was pushed.
    pub oldest: Duration,
}

/// What a queue is like. What is not set has the default of the store, or stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueSettings {
    /// One worker per key.
    pub keyed: bool,
    /// By key: a job that is to be tried again holds up its key.
    pub in_order: Option<bool>,
    /// The levels of priority, in the order in which they are served.
    pub levels: Option<Vec<i16>>,
    /// How long a delivery lasts.
    pub visible: Option<Duration>,
    /// How often a job is tried.
    pub max_attempts: Option<u16>,
    /// The span before the second try.
    pub backoff_base: Option<Duration>,
    /// The longest span before a try.
    pub backoff_cap: Option<Duration>,
}

impl QueueSettings {
    pub(super) fn check(&self) -> Result<(), RecipeError> {
        self.max_attempts.map_or(Ok(()), check_attempts)?;
        check_visible(self.visible)?;
        self.backoff_base.map_or(Ok(()), |base| check_span("a backoff", base, MAX_JOB_DELAY))?;
        self.backoff_cap.map_or(Ok(()), |cap| check_span("a backoff", cap, MAX_JOB_DELAY))?;
        self.levels.as_deref().map_or(Ok(()), check_levels)
    }
}

/// What a worker must know of its queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueFacts {
    /// One worker per key.
    pub keyed: bool,
    /// How long a delivery lasts.
    pub visible: Duration,
    /// The levels of priority, in the order in which they are served.
    pub levels: Vec<i16>,
}
