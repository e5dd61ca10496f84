//! Inspect, list and revoke.

use axum::body::Body;
use hyper::{Response, StatusCode};
use leasehold::engine::Query;
use serde_json::json;

use super::call::{HttpCall, run_detached};
use super::fields::missing_field;
use super::problem::Problem;
use super::respond;
use crate::api::leases::ResourceJson;

/// Resources on a page by default.
const DEFAULT_PAGE_RESOURCES: usize = 100;
/// Resources on a page at most: this many are built in memory for one response.
pub const MAX_PAGE_RESOURCES: usize = 1000;

/// `GET /v1/resources/{name}`
pub async fn inspect(call: HttpCall) -> Result<Response<Body>, Problem> {
    let caller = call.authenticate()?;
    call.query_params([])?;
    let name = call.resource_name()?;
    let found =
        call.app.service.inspect(&caller, &name).await.map_err(|denial| call.denial_problem(&denial, &caller))?;
    let seen = found.map_or_else(|| ResourceJson::free(name), ResourceJson::from);
    Ok(respond::json_response(StatusCode::OK, &seen))
}

/// `GET /v1/resources`
pub async fn list(call: HttpCall) -> Result<Response<Body>, Problem> {
    let caller = call.authenticate()?;
    let [prefix, limit, after] = call.query_params(["prefix", "limit", "after"])?;
    let limit = limit.map_or(Ok(DEFAULT_PAGE_RESOURCES), |text| match text.parse() {
        Ok(limit @ 1..=MAX_PAGE_RESOURCES) => Ok(limit),
        _ => Err(Problem::invalid(format!("limit is a number from 1 to {MAX_PAGE_RESOURCES}"))),
    })?;
    let service = &call.app.service;
    // One more than is shown says whether there are more.
    let query = Query { prefix: prefix.unwrap_or_default(), after, limit: limit + 1 };
    let mut found = service.list(&caller, query).await.map_err(|denial| call.denial_problem(&denial, &caller))?;
    // The embedded engine fills its pages; for others only an empty page is the end.
    let more = found.len() > limit || (service.embedded().is_none() && !found.is_empty());
    found.truncate(limit);
    let next = found.last().filter(|_| more).map(|last| last.name.clone());
    let resources: Vec<ResourceJson> = found.into_iter().map(ResourceJson::from).collect();
    Ok(respond::json_response(StatusCode::OK, &json!({"resources": resources, "next": next})))
}

/// `DELETE /v1/resources/{name}`
pub async fn revoke(mut call: HttpCall) -> Result<Response<Body>, Problem> {
    let caller = call.authenticate()?;
    call.query_params([])?;
    let name = call.resource_name()?;
    let mut fields = call.json_fields().await?;
    let reason = fields.take_text("reason")?.ok_or_else(|| missing_field("reason"))?;
    fields.deny_unknown()?;
    let (service, who) = (call.app.service.clone(), caller.clone());
    let revoked = run_detached(async move { service.revoke(&who, &name, &reason).await }).await?;
    let revoked = revoked.map_err(|denial| call.denial_problem(&denial, &caller))?;
    Ok(respond::json_response(StatusCode::OK, &json!({"revoked": revoked})))
}
