//! Who leads: the leases under `election/`.

use axum::body::Body;
use hyper::{Response, StatusCode};
use leasehold::engine::Query;
use serde_json::json;

use super::super::call::HttpCall;
use super::super::problem::Problem;
use super::super::resources::MAX_PAGE_RESOURCES;
use super::super::respond;
use crate::api::recipes::ElectionJson;

/// What the names of elections begin with.
const PREFIX: &str = "election/";

/// `GET /v1/elections`: the first thousand, by name.
pub async fn list(call: HttpCall) -> Result<Response<Body>, Problem> {
    let caller = call.authenticate()?;
    call.query_params([])?;
    let query = Query { prefix: PREFIX.into(), after: None, limit: MAX_PAGE_RESOURCES };
    let found = call.app.service.list(&caller, query).await;
    let found = found.map_err(|denial| call.denial_problem(&denial, &caller))?;
    let elections: Vec<ElectionJson> =
        found.iter().filter_map(|resource| ElectionJson::from_resource(resource, PREFIX)).collect();
    Ok(respond::json_response(StatusCode::OK, &json!({"elections": elections})))
}
