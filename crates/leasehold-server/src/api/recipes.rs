//! The JSON of recipes: queues, tries of once, schedules and elections. Tokens, and ids of jobs, are decimal text.

use std::time::{Duration, SystemTime};

use leasehold::engine::Resource;
use leasehold::recipe::cron::{CronRun, CronSchedule, next_tick};
use leasehold::recipe::moment::format_moment;
use leasehold::recipe::once::Answer;
use leasehold::recipe::queue::calls::{ClaimedJob, QueueFacts};
use leasehold::recipe::queue::{DeadJob, HotKey, QueueStatus};
use serde::Serialize;
use serde_json::value::RawValue;

use leasehold_support::duration::millis;
use leasehold_support::hex;
use leasehold_support::time::wall_ms;

/// What a worker must know of its queue.
#[derive(Debug, Serialize)]
pub struct QueueFactsJson {
    by_key: bool,
    visible_ms: u64,
    levels: Vec<i16>,
}

impl From<QueueFacts> for QueueFactsJson {
    fn from(facts: QueueFacts) -> Self {
        Self { by_key: facts.keyed, visible_ms: millis(facts.visible), levels: facts.levels }
    }
}

/// A job that a claim delivered.
#[derive(Debug, Serialize)]
pub struct ClaimedJobJson {
    job_id: String,
    token: String,
    attempt: u16,
    ready_at: Option<String>,
    made_at: String,
    key: Option<String>,
    body: Box<RawValue>,
}

impl From<ClaimedJob> for ClaimedJobJson {
    fn from(job: ClaimedJob) -> Self {
        Self {
            job_id: job.job_id.to_string(),
            token: job.token.to_string(),
            attempt: job.attempt,
            ready_at: job.ready_at.map(|at| at.to_string()),
            made_at: job.made_at.to_string(),
            key: job.key,
            body: raw_json(job.body),
        }
    }
}

/// The answer to a turn.
#[derive(Debug, Serialize)]
pub struct TurnJson {
    /// What was claimed.
    pub jobs: Vec<ClaimedJobJson>,
    /// Ids of those that were acknowledged too late.
    pub stale: Vec<String>,
    /// Ids of those that were not acknowledged, because a transaction that is open has them.
    pub locked: Vec<String>,
    /// Changes when something is pushed.
    pub rings: String,
}

/// The answer to a claim of keys.
#[derive(Debug, Serialize)]
pub struct LanesJson {
    /// What was claimed.
    pub jobs: Vec<ClaimedJobJson>,
    /// Where the next claim goes on, if this one stopped at many busy keys.
    pub go_on_after: Option<String>,
    /// Changes when something is pushed.
    pub rings: String,
}

/// A queue and its hot keys.
#[derive(Debug, Serialize)]
pub struct QueueJson {
    name: String,
    by_key: bool,
    paused: bool,
    ready: u64,
    delayed: u64,
    taken: u64,
    retried: u64,
    dead: u64,
    oldest_ms: Option<u64>,
    sleepers: u64,
    hot_keys: Vec<HotKeyJson>,
}

#[derive(Debug, Serialize)]
struct HotKeyJson {
    key: String,
    jobs: u64,
    oldest_ms: u64,
}

impl QueueJson {
    /// The JSON of a queue.
    pub fn new(status: QueueStatus, hot_keys: Vec<HotKey>) -> Self {
        let hot = |key: HotKey| HotKeyJson { key: key.key, jobs: key.jobs, oldest_ms: millis(key.oldest) };
        Self {
            name: status.name,
            by_key: status.by_key,
            paused: status.paused,
            ready: status.ready,
            delayed: status.delayed,
            taken: status.taken,
            retried: status.retried,
            dead: status.dead,
            oldest_ms: status.oldest.map(millis),
            sleepers: status.sleepers,
            hot_keys: hot_keys.into_iter().map(hot).collect(),
        }
    }
}

/// A dead letter.
#[derive(Debug, Serialize)]
pub struct DeadJobJson {
    job_id: String,
    attempt: u16,
    key: Option<String>,
    error: Option<String>,
    age_ms: u64,
    dead_for_ms: u64,
    body: Box<RawValue>,
}

impl From<DeadJob> for DeadJobJson {
    fn from(job: DeadJob) -> Self {
        Self {
            job_id: job.job_id.to_string(),
            attempt: job.attempt,
            key: job.key,
            error: job.error,
            age_ms: millis(job.age),
            dead_for_ms: millis(job.dead_for),
            body: raw_json(job.body),
        }
    }
}

/// The stored answer of a key: as text if it is text, as hexadecimal digits otherwise.
#[derive(Debug, Serialize)]
pub struct ReplayJson {
    outcome: &'static str,
    status: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body_hex: Option<String>,
}

impl From<Answer> for ReplayJson {
    fn from(answer: Answer) -> Self {
        let (body, body_hex) = match String::from_utf8(answer.body) {
            Ok(text) => (Some(text), None),
            Err(bytes) => (None, Some(hex::encode(bytes.as_bytes()))),
        };
        Self { outcome: "replay", status: answer.status, body, body_hex }
    }
}

/// A run of a schedule.
#[derive(Debug, Serialize)]
pub struct RunJson {
    tick: String,
    upto: String,
    ticks: u32,
    state: &'static str,
    machine: Option<String>,
    started_at: String,
    ended_at: Option<String>,
    code: Option<i32>,
    /// From the tick to the beginning.
    late_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    /// Only in the runs of one schedule.
    #[serde(skip_serializing_if = "Option::is_none")]
    tail: Option<Option<String>>,
}

impl RunJson {
    /// As in the list of all schedules.
    pub fn short(run: CronRun) -> Self {
        let late = run.started_at.duration_since(run.tick).unwrap_or(Duration::ZERO);
        Self {
            tick: format_moment(run.tick),
            upto: format_moment(run.upto),
            ticks: run.ticks,
            state: run.state.as_str(),
            machine: run.machine,
            started_at: format_moment(run.started_at),
            ended_at: run.ended_at.map(format_moment),
            code: run.code,
            late_ms: millis(late),
            token: None,
            tail: None,
        }
    }

    /// With the token and the last words of its output.
    pub fn whole(mut run: CronRun) -> Self {
        let (token, tail) = (run.token.to_string(), run.tail.take());
        Self { token: Some(token), tail: Some(tail), ..Self::short(run) }
    }
}

/// A schedule and its newest runs.
#[derive(Debug, Serialize)]
pub struct ScheduleJson {
    name: String,
    spec: String,
    last_tick: String,
    token: String,
    next_tick: Option<String>,
    /// How long ago a tick came that nobody began, and that is too late to begin; null: there is none.
    overdue_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    runs: Option<Vec<RunJson>>,
}

impl ScheduleJson {
    /// The JSON of a schedule. `runs`: the newest first. They are shown in the list of all.
    pub fn new(schedule: CronSchedule, runs: Vec<CronRun>, show_runs: bool) -> Self {
        // Its text may be of a version that we do not know.
        let overdue = schedule.overdue(runs.first(), wall_now()).ok().flatten();
        Self {
            next_tick: next_tick(&schedule.spec, wall_now()).ok().flatten().map(format_moment),
            overdue_ms: overdue.map(millis),
            name: schedule.name,
            spec: schedule.spec,
            last_tick: format_moment(schedule.last_tick),
            token: schedule.token.to_string(),
            runs: show_runs.then(|| runs.into_iter().map(RunJson::short).collect()),
        }
    }
}

fn wall_now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(wall_ms())
}

/// The leader of an election.
#[derive(Debug, Serialize)]
pub struct ElectionJson {
    name: String,
    value: String,
    token: Option<String>,
    since_ms: u64,
    remaining_ms: u64,
    queue_len: usize,
}

impl ElectionJson {
    /// The election on this resource; none while nobody leads.
    pub fn from_resource(resource: &Resource, prefix: &str) -> Option<Self> {
        let leader = resource.holders.first()?;
        Some(Self {
            name: resource.name.strip_prefix(prefix)?.to_owned(),
            value: leader.holder.clone(),
            token: leader.token.map(|token| token.to_string()),
            since_ms: millis(leader.since),
            remaining_ms: millis(leader.remaining),
            queue_len: resource.queue_len,
        })
    }
}

/// What a store holds as JSON. It was checked when it came; what is none all the same is shown as text.
fn raw_json(text: String) -> Box<RawValue> {
    RawValue::from_string(text).unwrap_or_else(|error| {
        let sentence = serde_json::Value::from(format!("this job is no JSON: {error}"));
        RawValue::from_string(sentence.to_string()).expect("a text of JSON is JSON")
    })
}
