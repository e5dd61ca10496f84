//! Queues as people look at them: their state, dead letters, and what operators change.

use axum::body::Body;
use hyper::{Response, StatusCode};
use serde::Serialize;
use serde_json::json;

use super::super::call::{HttpCall, run_detached};
use super::super::fields::missing_field;
use super::super::problem::Problem;
use super::super::respond;
use super::{deny, parse_limit};
use crate::api::recipes::{DeadJobJson, QueueJson};
use crate::service::recipes::{MAX_HOT_KEYS, QueueOrder, queue_resource};
use crate::service::{Caller, Verb};

/// Hot keys of a queue, where nobody says how many.
const DEFAULT_HOT_KEYS: usize = 10;
/// Dead letters of one answer: each may have 1 MiB.
const MAX_DEAD: usize = 100;

/// `GET /v1/queues`
pub async fn list(call: HttpCall) -> Result<Response<Body>, Problem> {
    let caller = call.authenticate()?;
    let [name, keys] = call.query_params(["name", "keys"])?;
    let keys = parse_limit("keys", keys, DEFAULT_HOT_KEYS, 0..=MAX_HOT_KEYS)?;
    let app = call.app;
    let denied = deny(&app, &caller);
    let resource = name.as_deref().map(queue_resource);
    let access = app.service.recipes(&caller, Verb::SeeQueue, resource.as_deref()).map_err(&denied)?;
    let found = access.queues(&caller, name.as_deref(), keys).await.map_err(&denied)?;
    let queues: Vec<QueueJson> = found.into_iter().map(|seen| QueueJson::new(seen.status, seen.hot_keys)).collect();
    Ok(respond::json_response(StatusCode::OK, &json!({"queues": queues})))
}

#[derive(Serialize)]
struct DeadJson {
    dead: Vec<DeadJobJson>,
}

/// `GET /v1/queues/{q}/dead`
pub async fn dead(call: HttpCall) -> Result<Response<Body>, Problem> {
    let caller = call.authenticate()?;
    let [limit, below] = call.query_params(["limit", "below"])?;
    let limit = parse_limit("limit", limit, MAX_DEAD, 1..=MAX_DEAD)?;
    let below = below.map(|text| text.parse().map_err(|_| Problem::invalid("below is the id of a job".to_owned())));
    let below: Option<i64> = below.transpose()?;
    let name = call.path_segment(2)?;
    let app = call.app;
    let denied = deny(&app, &caller);
    let access = app.service.recipes(&caller, Verb::SeeQueue, Some(&queue_resource(&name))).map_err(&denied)?;
    let found = access.dead(&name, limit, below).await.map_err(&denied)?;
    // Not by json!, which would read the jobs: they go as they came.
    let body = DeadJson { dead: found.into_iter().map(DeadJobJson::from).collect() };
    Ok(respond::json_response(StatusCode::OK, &body))
}

/// `POST /v1/queues/{q}/retry`
pub async fn retry(call: HttpCall) -> Result<Response<Body>, Problem> {
    order_dead(call, QueueOrder::Retry).await
}

/// `POST /v1/queues/{q}/drop`
pub async fn drop_dead(call: HttpCall) -> Result<Response<Body>, Problem> {
    order_dead(call, QueueOrder::Drop).await
}

async fn order_dead(mut call: HttpCall, order: fn(Vec<i64>) -> QueueOrder) -> Result<Response<Body>, Problem> {
    let caller = call.authenticate()?;
    call.query_params([])?;
    let mut fields = call.json_fields().await?;
    let jobs = fields.take_decimals("jobs")?.ok_or_else(|| missing_field("jobs"))?;
    fields.deny_unknown()?;
    let count = give_order(call, caller, order(jobs)).await?;
    Ok(respond::json_response(StatusCode::OK, &json!({"count": count})))
}

/// `POST /v1/queues/{q}/pause`
pub async fn pause(mut call: HttpCall) -> Result<Response<Body>, Problem> {
    let caller = call.authenticate()?;
    call.query_params([])?;
    let mut fields = call.json_fields().await?;
    let paused = fields.take_flag("paused")?.ok_or_else(|| missing_field("paused"))?;
    fields.deny_unknown()?;
    give_order(call, caller, QueueOrder::Pause(paused)).await?;
    Ok(respond::no_content())
}

async fn give_order(call: HttpCall, caller: Caller, order: QueueOrder) -> Result<u64, Problem> {
    let name = call.path_segment(2)?;
    let (service, who) = (call.app.service.clone(), caller.clone());
    let done = run_detached(async move { service.order_queue(&who, &name, order).await }).await?;
    done.map_err(|denial| call.denial_problem(&denial, &caller))
}
