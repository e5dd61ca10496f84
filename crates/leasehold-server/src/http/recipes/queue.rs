//! The calls of plain queues, and what both kinds have in common.

use std::future::Future;
use std::time::Duration;

use axum::body::Body;
use hyper::{Response, StatusCode};
use leasehold::recipe::queue::calls::{FailedJob, NewJob, QueueSettings, SINCE_EVER, TurnAnswer, TurnAsk};
use serde_json::json;

use super::super::App;
use super::super::call::{HttpCall, run_detached};
use super::super::fields::{Fields, missing_field};
use super::super::problem::Problem;
use super::super::respond;
use super::{MAX_CLAIMED_JOBS, MAX_JOB_BODY_BYTES, MAX_WAIT, authorize_queue, decimal_texts, deny, required_decimal};
use crate::api::recipes::{ClaimedJobJson, QueueFactsJson, TurnJson};
use crate::service::recipes::QueueAccess;
use crate::service::{Caller, Denial, Verb};

/// The shortest wait for a job that is about to be ready.
const MIN_WAIT: Duration = Duration::from_millis(5);

/// `GET /v1/queues/{q}`: what a worker must know, and what it asks before it sleeps.
pub async fn show(call: HttpCall) -> Result<Response<Body>, Problem> {
    let caller = call.authenticate()?;
    call.query_params([])?;
    let queue = authorize_queue(&call, &caller, Verb::SeeQueue)?;
    let (facts, next_ready) = queue.glance().await.map_err(|denial| call.denial_problem(&denial, &caller))?;
    let mut body = json!(QueueFactsJson::from(facts));
    body["next_ready_ms"] = json!(next_ready.map(leasehold_support::duration::millis));
    body["rings"] = json!(queue.rings().to_string());
    Ok(respond::json_response(StatusCode::OK, &body))
}

/// `POST /v1/queues/{q}/make`
pub async fn make(mut call: HttpCall) -> Result<Response<Body>, Problem> {
    let caller = call.authenticate()?;
    call.query_params([])?;
    let mut fields = call.json_fields().await?;
    let settings = QueueSettings {
        keyed: fields.take_flag("by_key")?.unwrap_or(false),
        in_order: fields.take_flag("in_order")?,
        levels: fields.take_levels("levels")?,
        visible: fields.take_millis("visible_ms")?,
        max_attempts: fields.take_signed("max_attempts")?,
        backoff_base: fields.take_millis("backoff_ms")?,
        backoff_cap: fields.take_millis("backoff_cap_ms")?,
    };
    fields.deny_unknown()?;
    let queue = authorize_queue(&call, &caller, Verb::MakeQueue)?;
    let made = run_detached(async move { queue.make(settings).await }).await?;
    let facts = made.map_err(|denial| call.denial_problem(&denial, &caller))?;
    Ok(respond::json_response(StatusCode::OK, &QueueFactsJson::from(facts)))
}

/// `POST /v1/queues/{q}/push`
pub async fn push(mut call: HttpCall) -> Result<Response<Body>, Problem> {
    let caller = call.authenticate()?;
    call.query_params([])?;
    let body = call.body_bytes(MAX_JOB_BODY_BYTES, &["application/json"]).await?;
    let (mut fields, job) = Fields::parse_with_raw(&body, "body")?;
    let job = NewJob::from_json(job.ok_or_else(|| missing_field("body"))?);
    let mut job = job.map_err(|error| Problem::invalid(error.to_string()))?;
    job.delay = fields.take_millis("delay_ms")?.unwrap_or(Duration::ZERO);
    job.priority = fields.take_signed("priority")?.unwrap_or(job.priority);
    job.key = fields.take_text("key")?;
    job.dedupe = fields.take_text("dedupe")?;
    job.max_attempts = fields.take_signed("max_attempts")?;
    fields.deny_unknown()?;
    let queue = authorize_queue(&call, &caller, Verb::PushJob)?;
    let pushed = run_detached(async move { queue.push(job).await }).await?;
    let pushed = pushed.map_err(|denial| call.denial_problem(&denial, &caller))?;
    let status = if pushed.fresh { StatusCode::CREATED } else { StatusCode::OK };
    Ok(respond::json_response(status, &json!({"job_id": pushed.job_id.to_string(), "fresh": pushed.fresh})))
}

/// How long a claim that finds nothing waits for a push.
pub struct PushWait {
    wait: Duration,
    /// The number of rings that the caller saw; none: the present one.
    seen: Option<u64>,
}

impl PushWait {
    /// From the fields of a claim.
    ///
    /// # Errors
    ///
    /// It is too long.
    pub fn take(fields: &mut Fields) -> Result<Self, Problem> {
        let wait = fields.take_millis("wait_ms")?.unwrap_or(Duration::ZERO);
        if wait > MAX_WAIT {
            return Err(Problem::invalid(format!("wait_ms is at most {}", MAX_WAIT.as_millis())));
        }
        let seen = fields.take_decimal("rings")?.map(i64::unsigned_abs);
        Ok(Self { wait, seen })
    }

    /// Claims until there is something, or the wait is over, and answers it with the number of rings. Each claim runs to
    /// its end although the caller hangs up; the wait does not.
    ///
    /// # Errors
    ///
    /// A claim failed.
    pub async fn claim<T, F>(
        self,
        app: &App,
        caller: &Caller,
        queue: &QueueAccess,
        mut claim: impl FnMut(QueueAccess) -> F,
        is_empty: impl Fn(&T) -> bool,
    ) -> Result<(T, u64), Problem>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Denial>> + Send + 'static,
    {
        let denied = deny(app, caller);
        let clock = app.service.clock();
        let end = clock.now().plus(self.wait);
        let mut seen = self.seen;
        loop {
            // Before the claim: what is pushed after it changes the number. Nobody waits at a queue that is not there.
            let next_ready = if self.wait.is_zero() { None } else { queue.glance().await.map_err(&denied)?.1 };
            let before = seen.take().or_else(|| (!self.wait.is_zero()).then(|| queue.rings()));
            let claimed = run_detached(claim(queue.clone())).await?.map_err(&denied)?;
            let now = clock.now();
            let Some(before) = before.filter(|_| is_empty(&claimed) && now < end && !app.stop.is_cancelled()) else {
                return Ok((claimed, queue.rings()));
            };
            // A job that waits for its moment rings nothing.
            let left = end.since(now);
            let span = next_ready.map_or(left, |next| next.max(MIN_WAIT).min(left));
            sleep_until_push(app, caller, queue, before, span).await?;
        }
    }
}

/// Waits for a push. Ends early when the server stops.
///
/// # Errors
///
/// The key was revoked.
async fn sleep_until_push(
    app: &App,
    caller: &Caller,
    queue: &QueueAccess,
    seen: u64,
    span: Duration,
) -> Result<(), Problem> {
    tokio::select! {
        () = queue.wait_for_push(seen, span) => Ok(()),
        () = app.stop.cancelled() => Ok(()),
        () = caller.principal.until_revoked() => Err(Problem::from(&Denial::Unauthorized)),
    }
}

/// `POST /v1/queues/{q}/turn`
pub async fn turn(mut call: HttpCall) -> Result<Response<Body>, Problem> {
    let caller = call.authenticate()?;
    call.query_params([])?;
    let mut fields = call.json_fields().await?;
    let mut ask = TurnAsk {
        jobs: take_count(&mut fields, "jobs")?.ok_or_else(|| missing_field("jobs"))?,
        done: fields.take_decimals("done")?.unwrap_or_default(),
        done_token: fields.take_decimal("done_token")?.unwrap_or(0),
        visible: fields.take_millis("visible_ms")?,
        worker: fields.take_text("worker")?.unwrap_or_else(|| caller.principal.id.clone()),
        since: fields.take_decimal("since")?.unwrap_or(SINCE_EVER),
        levels: fields.take_levels("levels")?,
    };
    let wait = PushWait::take(&mut fields)?;
    fields.deny_unknown()?;
    let queue = authorize_queue(&call, &caller, Verb::WorkQueue)?;
    let app = call.app;
    let (answer, rings) = match (ask.jobs, wait.seen) {
        // A worker that sleeps: it claims for itself, when it is woken.
        (0, Some(seen)) if ask.done.is_empty() => {
            queue.glance().await.map_err(deny(&app, &caller))?;
            sleep_until_push(&app, &caller, &queue, seen, wait.wait).await?;
            (TurnAnswer::default(), queue.rings())
        }
        _ => {
            let claim = |queue: QueueAccess| {
                let done = std::mem::take(&mut ask.done);
                // Acknowledged by the first claim, so by no other.
                let ask = TurnAsk { done, ..ask.clone() };
                async move { queue.turn(ask).await }
            };
            let is_empty =
                |answer: &TurnAnswer| answer.jobs.is_empty() && answer.stale.is_empty() && answer.locked.is_empty();
            wait.claim(&app, &caller, &queue, claim, is_empty).await?
        }
    };
    let jobs: Vec<ClaimedJobJson> = answer.jobs.into_iter().map(ClaimedJobJson::from).collect();
    let (stale, locked) = (decimal_texts(&answer.stale), decimal_texts(&answer.locked));
    let body = TurnJson { jobs, stale, locked, rings: rings.to_string() };
    Ok(respond::json_response(StatusCode::OK, &body))
}

/// `POST /v1/queues/{q}/ack`
pub async fn ack(mut call: HttpCall) -> Result<Response<Body>, Problem> {
    let caller = call.authenticate()?;
    call.query_params([])?;
    let mut fields = call.json_fields().await?;
    let jobs = fields.take_decimals("jobs")?.ok_or_else(|| missing_field("jobs"))?;
    let token = required_decimal(&mut fields, "token")?;
    fields.deny_unknown()?;
    let queue = authorize_queue(&call, &caller, Verb::WorkQueue)?;
    let left = run_detached(async move { queue.ack(jobs, token).await }).await?;
    let left = left.map_err(|denial| call.denial_problem(&denial, &caller))?;
    let body = json!({"stale": decimal_texts(&left.stale), "locked": decimal_texts(&left.locked)});
    Ok(respond::json_response(StatusCode::OK, &body))
}

/// `POST /v1/queues/{q}/nack`
pub async fn nack(mut call: HttpCall) -> Result<Response<Body>, Problem> {
    let caller = call.authenticate()?;
    call.query_params([])?;
    let mut fields = call.json_fields().await?;
    let failed = take_failed(&mut fields, None)?;
    fields.deny_unknown()?;
    give_back(call, caller, failed).await
}

/// The fields of a delivery that failed.
///
/// # Errors
///
/// One is missing or wrong.
pub fn take_failed(fields: &mut Fields, key: Option<String>) -> Result<FailedJob, Problem> {
    Ok(FailedJob {
        job_id: required_decimal(fields, "job")?,
        token: required_decimal(fields, "token")?,
        key,
        why: fields.take_text("why")?.unwrap_or_default(),
        after: fields.take_millis("after_ms")?,
        kill: fields.take_flag("kill")?.unwrap_or(false),
        tries: fields.take_signed("tries")?.unwrap_or(0),
    })
}

/// Gives a job back, of either kind of queue.
///
/// # Errors
///
/// The delivery is stale, or the store failed.
pub async fn give_back(call: HttpCall, caller: Caller, failed: FailedJob) -> Result<Response<Body>, Problem> {
    let queue = authorize_queue(&call, &caller, Verb::WorkQueue)?;
    let nacked = run_detached(async move { queue.nack(failed).await }).await?;
    let nacked = nacked.map_err(|denial| call.denial_problem(&denial, &caller))?;
    Ok(respond::json_response(StatusCode::OK, &json!({"state": nacked.as_str()})))
}

/// `POST /v1/queues/{q}/extend`
pub async fn extend(mut call: HttpCall) -> Result<Response<Body>, Problem> {
    let caller = call.authenticate()?;
    call.query_params([])?;
    let mut fields = call.json_fields().await?;
    let jobs = fields.take_decimals("jobs")?.ok_or_else(|| missing_field("jobs"))?;
    let token = required_decimal(&mut fields, "token")?;
    let visible = fields.take_millis("visible_ms")?.ok_or_else(|| missing_field("visible_ms"))?;
    fields.deny_unknown()?;
    let queue = authorize_queue(&call, &caller, Verb::WorkQueue)?;
    let extended = run_detached(async move { queue.extend(jobs, token, visible).await }).await?;
    let extended = extended.map_err(|denial| call.denial_problem(&denial, &caller))?;
    let body = json!({"ours": decimal_texts(&extended.ours), "locked": decimal_texts(&extended.locked)});
    Ok(respond::json_response(StatusCode::OK, &body))
}

/// How many jobs, or keys, a claim is for.
///
/// # Errors
///
/// More than one answer holds.
pub fn take_count(fields: &mut Fields, name: &'static str) -> Result<Option<usize>, Problem> {
    let count = fields.take_number(name, "")?.map(|count| usize::try_from(count).unwrap_or(usize::MAX));
    if count.is_some_and(|count| count > MAX_CLAIMED_JOBS) {
        return Err(Problem::invalid(format!("{name} is at most {MAX_CLAIMED_JOBS}: one answer holds no more jobs")));
    }
    Ok(count)
}
