//! The calls of a queue at a server, over HTTP.
//!
//! A server gives fewer jobs in one answer than a worker may have slots, because a job may be long: see [`MAX_ANSWER_JOBS`].
//! So one call here may be several there. Once one of them has given jobs, a later one that fails is not an error: what was
//! given must not be forgotten.

use std::time::Duration;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::limits::to_millis;
use super::rows::{
    ClaimedJob, DeadJob, Extended, FailedJob, HotKey, LaneAnswer, LaneAsk, Nacked, NewJob, NotEnded, Pushed,
    QueueFacts, QueueSettings, QueueStatus, SINCE_EVER, TurnAnswer, TurnAsk,
};
use crate::recipe::error::{RecipeError, RecipeRefusal};
use crate::recipe::store::server::{ServerDatabase, path_segment};

/// The most jobs that a server gives in one answer.
pub const MAX_ANSWER_JOBS: usize = 64;
/// The most dead letters that it shows.
const MAX_ANSWER_DEAD: usize = 100;
/// The most keys that it shows.
const MAX_ANSWER_KEYS: usize = 100;

/// A number as decimal text: JSON numbers end at 2^53.
struct DecimalNumber(i64);

impl<'de> Deserialize<'de> for DecimalNumber {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map(Self).map_err(|_| serde::de::Error::custom("no number"))
    }
}

#[derive(Deserialize)]
struct FactsAnswer {
    by_key: bool,
    visible_ms: u64,
    levels: Vec<i16>,
}

/// What a worker that falls asleep asks.
#[derive(Deserialize)]
pub(super) struct QueueGlance {
    next_ready_ms: Option<u64>,
    /// Changes when something was pushed.
    pub rings: String,
}

#[derive(Deserialize)]
struct PushAnswer {
    job_id: DecimalNumber,
    fresh: bool,
}

#[derive(Deserialize)]
struct JobAnswer {
    job_id: DecimalNumber,
    token: DecimalNumber,
    attempt: u16,
    ready_at: Option<DecimalNumber>,
    made_at: DecimalNumber,
    key: Option<String>,
    body: Box<RawValue>,
}

#[derive(Deserialize)]
struct ClaimAnswer {
    jobs: Vec<JobAnswer>,
    #[serde(default)]
    stale: Vec<DecimalNumber>,
    #[serde(default)]
    locked: Vec<DecimalNumber>,
    go_on_after: Option<String>,
}

/// What a worker that sleeps waits for.
#[derive(Deserialize)]
pub(super) struct RingAnswer {
    pub rings: String,
}

#[derive(Deserialize)]
struct StaleAnswer {
    stale: Vec<DecimalNumber>,
    locked: Vec<DecimalNumber>,
}

#[derive(Deserialize)]
struct OursAnswer {
    ours: Vec<DecimalNumber>,
    locked: Vec<DecimalNumber>,
}

#[derive(Deserialize)]
struct NackAnswer {
    state: String,
}

#[derive(Deserialize)]
struct CountAnswer {
    count: u64,
}

#[derive(Deserialize)]
struct QueuesAnswer {
    queues: Vec<StatusAnswer>,
}

#[derive(Deserialize)]
struct StatusAnswer {
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
    hot_keys: Vec<HotKeyAnswer>,
}

#[derive(Deserialize)]
struct HotKeyAnswer {
    key: String,
    jobs: u64,
    oldest_ms: u64,
}

#[derive(Deserialize)]
struct DeadAnswer {
    dead: Vec<DeadJobAnswer>,
}

#[derive(Deserialize)]
struct DeadJobAnswer {
    job_id: DecimalNumber,
    attempt: u16,
    key: Option<String>,
    error: Option<String>,
    age_ms: u64,
    dead_for_ms: u64,
    body: Box<RawValue>,
}

fn path(queue: &str, call: &str) -> String {
    format!("/v1/queues/{}/{call}", path_segment(queue))
}

/// A path of one queue among all.
fn one_of_all(queue: &str, keys: usize) -> String {
    format!("/v1/queues?name={}&keys={keys}", path_segment(queue))
}

fn texts(numbers: &[i64]) -> Vec<String> {
    numbers.iter().map(ToString::to_string).collect()
}

fn numbers(texts: Vec<DecimalNumber>) -> Vec<i64> {
    texts.into_iter().map(|DecimalNumber(number)| number).collect()
}

pub(super) async fn make(
    at: &ServerDatabase,
    queue: &str,
    settings: &QueueSettings,
) -> Result<QueueFacts, RecipeError> {
    let body = json!({
        "by_key": settings.keyed,
        "in_order": settings.in_order,
        "levels": settings.levels,
        "visible_ms": settings.visible.map(to_millis),
        "max_attempts": settings.max_attempts,
        "backoff_ms": settings.backoff_base.map(to_millis),
        "backoff_cap_ms": settings.backoff_cap.map(to_millis),
    });
    at.post("make a queue", &path(queue, "make"), &body).await.map(FactsAnswer::into_facts)
}

impl FactsAnswer {
    fn into_facts(self) -> QueueFacts {
        QueueFacts { keyed: self.by_key, visible: Duration::from_millis(self.visible_ms), levels: self.levels }
    }
}

pub(super) async fn facts(at: &ServerDatabase, queue: &str) -> Result<QueueFacts, RecipeError> {
    let path = format!("/v1/queues/{}", path_segment(queue));
    at.get("read a queue", &path).await.map(FactsAnswer::into_facts)
}

pub(super) async fn glance(at: &ServerDatabase, queue: &str) -> Result<QueueGlance, RecipeError> {
    at.get("look for the next job", &format!("/v1/queues/{}", path_segment(queue))).await
}

pub(super) async fn next_ready(at: &ServerDatabase, queue: &str) -> Result<Option<Duration>, RecipeError> {
    Ok(glance(at, queue).await?.next_ready_ms.map(Duration::from_millis))
}

pub(super) async fn push(at: &ServerDatabase, queue: &str, job: &NewJob) -> Result<Pushed, RecipeError> {
    #[derive(serde::Serialize)]
    struct PushBody<'a> {
        body: &'a RawValue,
        delay_ms: i64,
        priority: i16,
        key: &'a Option<String>,
        dedupe: &'a Option<String>,
        max_attempts: Option<u16>,
    }
    let raw = serde_json::from_str(&job.body);
    let body = PushBody {
        body: raw.map_err(|error| RecipeError::Invalid(format!("the job is no JSON: {error}")))?,
        delay_ms: to_millis(job.delay),
        priority: job.priority,
        key: &job.key,
        dedupe: &job.dedupe,
        max_attempts: job.max_attempts,
    };
    let pushed: PushAnswer = at.post("push a job", &path(queue, "push"), &body).await?;
    Ok(Pushed { job_id: pushed.job_id.0, fresh: pushed.fresh })
}

impl JobAnswer {
    fn into_claimed(self) -> ClaimedJob {
        ClaimedJob {
            job_id: self.job_id.0,
            token: self.token.0,
            attempt: self.attempt,
            ready_at: self.ready_at.map(|DecimalNumber(at)| at),
            made_at: self.made_at.0,
            key: self.key,
            body: Box::<str>::from(self.body).into(),
        }
    }
}

pub(super) async fn turn(at: &ServerDatabase, queue: &str, ask: TurnAsk) -> Result<TurnAnswer, RecipeError> {
    let mut answer = TurnAnswer::default();
    let mut body = json!({
        "done": texts(&ask.done),
        "done_token": ask.done_token.to_string(),
        "visible_ms": ask.visible.map(to_millis),
        "worker": ask.worker,
        "since": (ask.since != SINCE_EVER).then(|| ask.since.to_string()),
        "levels": ask.levels,
    });
    loop {
        let wanted = ask.jobs.saturating_sub(answer.jobs.len()).min(MAX_ANSWER_JOBS);
        body["jobs"] = json!(wanted);
        let given: ClaimAnswer = match at.post("take jobs", &path(queue, "turn"), &body).await {
            Err(_) if !answer.jobs.is_empty() => return Ok(answer),
            given => given?,
        };
        let short = given.jobs.len() < wanted;
        answer.stale.extend(numbers(given.stale));
        answer.locked.extend(numbers(given.locked));
        answer.jobs.extend(given.jobs.into_iter().map(JobAnswer::into_claimed));
        if short || answer.jobs.len() >= ask.jobs {
            return Ok(answer);
        }
        // Acknowledged by the first call.
        body["done"] = Value::Null;
        body["done_token"] = Value::Null;
    }
}

/// Answers when something may have been pushed since `rings`, or after so long.
pub(super) async fn wait_for_ring(
    at: &ServerDatabase,
    queue: &str,
    rings: &str,
    wait: Duration,
) -> Result<RingAnswer, RecipeError> {
    let body = json!({"jobs": 0, "wait_ms": to_millis(wait), "rings": rings});
    at.wait_for("wait for a push", &path(queue, "turn"), &body, wait).await
}

pub(super) async fn ack(at: &ServerDatabase, queue: &str, jobs: &[i64], token: i64) -> Result<NotEnded, RecipeError> {
    let body = json!({"jobs": texts(jobs), "token": token.to_string()});
    let answer: StaleAnswer = at.post("acknowledge jobs", &path(queue, "ack"), &body).await?;
    Ok(NotEnded { stale: numbers(answer.stale), locked: numbers(answer.locked) })
}

pub(super) async fn nack(at: &ServerDatabase, queue: &str, failed: &FailedJob) -> Result<Nacked, RecipeError> {
    const ATTEMPT: &str = "give a job back";
    let call = if failed.key.is_some() { "lanes/nack" } else { "nack" };
    let mut body = json!({
        "job": failed.job_id.to_string(),
        "token": failed.token.to_string(),
        "why": failed.why,
        "after_ms": failed.after.map(to_millis),
        "kill": failed.kill,
        "tries": failed.tries,
    });
    if let Some(key) = &failed.key {
        body["key"] = json!(key);
    }
    let answer: NackAnswer = match at.post(ATTEMPT, &path(queue, call), &body).await {
        Err(RecipeError::Refused(RecipeRefusal::Stale { .. })) => return Ok(Nacked::Stale),
        answer => answer?,
    };
    let unclear = || {
        let store = crate::recipe::store::server::STORE_NAME;
        RecipeError::indeterminate(store, ATTEMPT, "an answer that this version does not understand")
    };
    Nacked::from_word(&answer.state).ok_or_else(unclear)
}

pub(super) async fn extend(
    at: &ServerDatabase,
    queue: &str,
    jobs: &[i64],
    token: i64,
    visible: Duration,
) -> Result<Extended, RecipeError> {
    let body = json!({"jobs": texts(jobs), "token": token.to_string(), "visible_ms": to_millis(visible)});
    let answer: OursAnswer = at.post("extend deliveries", &path(queue, "extend"), &body).await?;
    Ok(Extended { ours: numbers(answer.ours), locked: numbers(answer.locked) })
}

pub(super) async fn lane_claim(at: &ServerDatabase, queue: &str, ask: LaneAsk) -> Result<LaneAnswer, RecipeError> {
    let per_key = ask.jobs_per_key.clamp(1, MAX_ANSWER_JOBS);
    let mut answer = LaneAnswer::default();
    let (mut taken, mut after) = (0, ask.after);
    loop {
        let wanted = ask.keys.saturating_sub(taken).min(MAX_ANSWER_JOBS / per_key);
        let body = json!({
            "keys": wanted,
            "jobs_per_key": per_key,
            "visible_ms": ask.visible.map(to_millis),
            "worker": ask.worker,
            "after": after,
        });
        let given: ClaimAnswer = match at.post("take keys", &path(queue, "lanes/claim"), &body).await {
            Err(_) if !answer.jobs.is_empty() => return Ok(answer),
            given => given?,
        };
        let jobs: Vec<ClaimedJob> = given.jobs.into_iter().map(JobAnswer::into_claimed).collect();
        let keys = jobs.chunk_by(|one, other| one.key == other.key).count();
        after = jobs.last().and_then(|job| job.key.clone()).unwrap_or_default();
        taken += keys;
        answer.jobs.extend(jobs);
        answer.go_on_after = given.go_on_after;
        if keys < wanted || taken >= ask.keys || answer.go_on_after.is_some() {
            return Ok(answer);
        }
    }
}

pub(super) async fn lane_ack(
    at: &ServerDatabase,
    queue: &str,
    key: &str,
    token: i64,
    jobs: &[i64],
    free: bool,
) -> Result<(), RecipeError> {
    let body = json!({"key": key, "token": token.to_string(), "jobs": texts(jobs), "free": free});
    at.post_done("acknowledge jobs of a key", &path(queue, "lanes/ack"), &body).await
}

pub(super) async fn lane_extend(
    at: &ServerDatabase,
    queue: &str,
    key: &str,
    token: i64,
    visible: Duration,
) -> Result<bool, RecipeError> {
    let body = json!({"key": key, "token": token.to_string(), "visible_ms": to_millis(visible)});
    match at.post_done("extend the claim on a key", &path(queue, "lanes/extend"), &body).await {
        Ok(()) => Ok(true),
        Err(RecipeError::Refused(RecipeRefusal::Stale { .. })) => Ok(false),
        Err(error) => Err(error),
    }
}

pub(super) async fn pause(at: &ServerDatabase, queue: &str, paused: bool) -> Result<(), RecipeError> {
    at.post_done("pause a queue", &path(queue, "pause"), &json!({"paused": paused})).await
}

pub(super) async fn revive(at: &ServerDatabase, queue: &str, jobs: &[i64]) -> Result<u64, RecipeError> {
    let body = json!({"jobs": texts(jobs)});
    let answer: CountAnswer = at.post("revive dead letters", &path(queue, "retry"), &body).await?;
    Ok(answer.count)
}

pub(super) async fn drop_dead(at: &ServerDatabase, queue: &str, jobs: &[i64]) -> Result<u64, RecipeError> {
    let body = json!({"jobs": texts(jobs)});
    let answer: CountAnswer = at.post("drop dead letters", &path(queue, "drop"), &body).await?;
    Ok(answer.count)
}

pub(super) async fn dead(
    at: &ServerDatabase,
    queue: &str,
    most: usize,
    below: Option<i64>,
) -> Result<Vec<DeadJob>, RecipeError> {
    let mut path = path(queue, &format!("dead?limit={}", most.clamp(1, MAX_ANSWER_DEAD)));
    if let Some(id) = below {
        path.push_str(&format!("&below={id}"));
    }
    let answer: DeadAnswer = at.get("read dead letters", &path).await?;
    let read = |dead: DeadJobAnswer| DeadJob {
        job_id: dead.job_id.0,
        attempt: dead.attempt,
        key: dead.key,
        error: dead.error,
        age: Duration::from_millis(dead.age_ms),
        dead_for: Duration::from_millis(dead.dead_for_ms),
        body: Box::<str>::from(dead.body).into(),
    };
    Ok(answer.dead.into_iter().take(most).map(read).collect())
}

pub(super) async fn hot_keys(at: &ServerDatabase, queue: &str, most: usize) -> Result<Vec<HotKey>, RecipeError> {
    let path = one_of_all(queue, most.clamp(1, MAX_ANSWER_KEYS));
    let answer: QueuesAnswer = at.get("count jobs of keys", &path).await?;
    let read =
        |key: HotKeyAnswer| HotKey { key: key.key, jobs: key.jobs, oldest: Duration::from_millis(key.oldest_ms) };
    Ok(answer.queues.into_iter().flat_map(|queue| queue.hot_keys).take(most).map(read).collect())
}

pub(super) async fn read_status(at: &ServerDatabase, queue: Option<&str>) -> Result<Vec<QueueStatus>, RecipeError> {
    let path = queue.map_or_else(|| "/v1/queues?keys=0".to_owned(), |queue| one_of_all(queue, 0));
    let answer: QueuesAnswer = at.get("read queues", &path).await?;
    let read = |status: StatusAnswer| QueueStatus {
        name: status.name,
        by_key: status.by_key,
        paused: status.paused,
        ready: status.ready,
        delayed: status.delayed,
        taken: status.taken,
        retried: status.retried,
        dead: status.dead,
        oldest: status.oldest_ms.map(Duration::from_millis),
        sleepers: status.sleepers,
    };
    Ok(answer.queues.into_iter().map(read).collect())
}
