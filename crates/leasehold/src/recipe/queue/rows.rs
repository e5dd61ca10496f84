//! What goes to the store and comes from it, whichever store it is. Times of the store are microseconds since 1970, by
//! its own clock.

use std::time::Duration;

/// `since` of a turn that looks at all jobs.
pub(super) const SINCE_EVER: i64 = i64::MIN;

/// A job to be pushed.
#[derive(Clone, Debug)]
pub(super) struct NewJob {
    pub body: String,
    pub delay: Duration,
    pub priority: i16,
    pub key: Option<String>,
    pub dedupe: Option<String>,
    pub max_attempts: Option<u16>,
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
pub(super) struct TurnAsk {
    /// How many jobs to claim at most; 0: acknowledge only.
    pub jobs: usize,
    /// Jobs that are done, all under `done_token`.
    pub done: Vec<i64>,
    pub done_token: i64,
    pub visible: Option<Duration>,
    pub worker: String,
    /// Jobs that were ready before this moment are not looked for.
    pub since: i64,
    /// The order of levels, where it is not the queue's.
    pub levels: Option<Vec<i16>>,
}

/// A job that a claim delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClaimedJob {
    pub job_id: i64,
    pub token: i64,
    pub attempt: u16,
    /// Not told by a claim of a key.
    pub ready_at: Option<i64>,
    pub made_at: i64,
    pub key: Option<String>,
    pub body: String,
}

/// The answer to a turn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TurnAnswer {
    pub jobs: Vec<ClaimedJob>,
    /// Those of `done` that somebody else has, or that are gone.
    pub stale: Vec<i64>,
}

/// What a claim of keys asks for.
#[derive(Clone, Debug)]
pub(super) struct LaneAsk {
    pub keys: usize,
    pub jobs_per_key: usize,
    pub visible: Option<Duration>,
    pub worker: String,
    /// The key to go on after; empty: from the first.
    pub after: String,
}

/// The answer to a claim of keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LaneAnswer {
    /// In order of arrival within a key.
    pub jobs: Vec<ClaimedJob>,
    /// The call saw many busy keys and stopped: the next goes on after this one.
    pub go_on_after: Option<String>,
}

/// A delivery that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FailedJob {
    pub job_id: i64,
    pub token: i64,
    /// Of a queue by key.
    pub key: Option<String>,
    pub why: String,
    /// When to try again; none: by the backoff of the queue.
    pub after: Option<Duration>,
    /// Never again.
    pub kill: bool,
    /// Added to the number of tries: 1 for a try that the claim did not count, -1 for one that was none.
    pub tries: i32,
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
}

impl Nacked {
    /// From the word of the store.
    pub(super) fn from_word(word: &str) -> Option<Self> {
        match word {
            "retry" => Some(Self::Retry),
            "dead" => Some(Self::Dead),
            "stale" => Some(Self::Stale),
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
pub(super) struct QueueSettings {
    pub keyed: bool,
    pub in_order: Option<bool>,
    pub levels: Option<Vec<i16>>,
    pub visible: Option<Duration>,
    pub max_attempts: Option<u16>,
    pub backoff_base: Option<Duration>,
    pub backoff_cap: Option<Duration>,
}

/// What a worker must know of its queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct QueueFacts {
    pub keyed: bool,
    pub visible: Duration,
    pub levels: Vec<i16>,
}
