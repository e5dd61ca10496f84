//! The calls of queues by key: the claim is on a key.

use axum::body::Body;
use hyper::{Response, StatusCode};
use leasehold::recipe::queue::calls::{LaneAnswer, LaneAsk};
use leasehold::recipe::{RecipeError, RecipeRefusal};

use super::super::call::{HttpCall, run_detached};
use super::super::fields::missing_field;
use super::super::problem::Problem;
use super::super::respond;
use super::queue::{PushWait, give_back, take_count, take_failed};
use super::{MAX_CLAIMED_JOBS, authorize_queue, required_decimal, required_text};
use crate::api::recipes::{ClaimedJobJson, LanesJson};
use crate::service::recipes::QueueAccess;
use crate::service::{Denial, Verb};

/// Jobs of one key, where nobody says how many.
const DEFAULT_JOBS_PER_KEY: usize = 1;

/// `POST /v1/queues/{q}/lanes/claim`
pub async fn claim(mut call: HttpCall) -> Result<Response<Body>, Problem> {
    let caller = call.authenticate()?;
    call.query_params([])?;
    let mut fields = call.json_fields().await?;
    let ask = LaneAsk {
        keys: take_count(&mut fields, "keys")?.ok_or_else(|| missing_field("keys"))?,
        jobs_per_key: take_count(&mut fields, "jobs_per_key")?.unwrap_or(DEFAULT_JOBS_PER_KEY),
        visible: fields.take_millis("visible_ms")?,
        worker: fields.take_text("worker")?.unwrap_or_else(|| caller.principal.id.clone()),
        after: fields.take_text("after")?.unwrap_or_default(),
    };
    if ask.keys.saturating_mul(ask.jobs_per_key) > MAX_CLAIMED_JOBS {
        return Err(Problem::invalid(format!("keys times jobs_per_key is at most {MAX_CLAIMED_JOBS}")));
    }
    let wait = PushWait::take(&mut fields)?;
    fields.deny_unknown()?;
    let queue = authorize_queue(&call, &caller, Verb::WorkQueue)?;
    let claim = |queue: QueueAccess| {
        let ask = ask.clone();
        async move { queue.lane_claim(ask).await }
    };
    let is_empty = |answer: &LaneAnswer| answer.jobs.is_empty() && answer.go_on_after.is_none();
    let app = call.app;
    let (answer, rings) = wait.claim(&app, &caller, &queue, claim, is_empty).await?;
    let jobs: Vec<ClaimedJobJson> = answer.jobs.into_iter().map(ClaimedJobJson::from).collect();
    let body = LanesJson { jobs, go_on_after: answer.go_on_after, rings: rings.to_string() };
    Ok(respond::json_response(StatusCode::OK, &body))
}

/// `POST /v1/queues/{q}/lanes/ack`
pub async fn ack(mut call: HttpCall) -> Result<Response<Body>, Problem> {
    let caller = call.authenticate()?;
    call.query_params([])?;
    let mut fields = call.json_fields().await?;
    let (key, token) = (required_text(&mut fields, "key")?, required_decimal(&mut fields, "token")?);
    let jobs = fields.take_decimals("jobs")?.ok_or_else(|| missing_field("jobs"))?;
    let free = fields.take_flag("free")?.unwrap_or(true);
    fields.deny_unknown()?;
    let queue = authorize_queue(&call, &caller, Verb::WorkQueue)?;
    let done = run_detached(async move { queue.lane_ack(&key, token, jobs, free).await }).await?;
    done.map_err(|denial| call.denial_problem(&denial, &caller))?;
    Ok(respond::no_content())
}

/// `POST /v1/queues/{q}/lanes/nack`
pub async fn nack(mut call: HttpCall) -> Result<Response<Body>, Problem> {
    let caller = call.authenticate()?;
    call.query_params([])?;
    let mut fields = call.json_fields().await?;
    let key = required_text(&mut fields, "key")?;
    let failed = take_failed(&mut fields, Some(key))?;
    fields.deny_unknown()?;
    give_back(call, caller, failed).await
}

/// `POST /v1/queues/{q}/lanes/extend`
pub async fn extend(mut call: HttpCall) -> Result<Response<Body>, Problem> {
    let caller = call.authenticate()?;
    call.query_params([])?;
    let mut fields = call.json_fields().await?;
    let (key, token) = (required_text(&mut fields, "key")?, required_decimal(&mut fields, "token")?);
    let visible = fields.take_millis("visible_ms")?.ok_or_else(|| missing_field("visible_ms"))?;
    fields.deny_unknown()?;
    let queue = authorize_queue(&call, &caller, Verb::WorkQueue)?;
    let what = format!("delivery {token} of key {key}");
    let ours = run_detached(async move { queue.lane_extend(&key, token, visible).await }).await?;
    match ours {
        Ok(true) => Ok(respond::no_content()),
        Ok(false) => Err(Problem::from(&Denial::Recipe(RecipeError::Refused(RecipeRefusal::Stale { what })))),
        Err(denial) => Err(call.denial_problem(&denial, &caller)),
    }
}
