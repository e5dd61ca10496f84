//! Status, health, readiness and metrics.

use std::time::Duration;

use axum::body::Body;
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::json;
use tokio::time::timeout;

use super::call::HttpCall;
use super::problem::Problem;
use super::respond;
use crate::api::leases::LeaseEventJson;
use crate::service::Denial;

/// A server whose engine takes longer is not ready.
const READINESS_TIMEOUT: Duration = Duration::from_secs(2);

/// `GET /v1/status`
pub async fn status(call: HttpCall) -> Result<Response<Body>, Problem> {
    let caller = call.authenticate()?;
    call.query_params([])?;
    let status = call.app.service.status(&caller).map_err(|denial| call.denial_problem(&denial, &caller))?;
    let promises = status.promises;
    let recent: Vec<LeaseEventJson> = status.recent.into_iter().map(LeaseEventJson::from).collect();
    let role: Vec<&str> = status.roles.iter().map(|role| role.word()).collect();
    let body = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "engine": promises.engine,
        "promises": {
            "durable": promises.durable,
            "fencing": promises.fencing,
            "fair": promises.fair,
            "never_early": promises.never_early,
            "outlives_process": promises.outlives_process,
        },
        "leases": status.leases,
        "waiters": status.waiters,
        "uptime_ms": leasehold_support::duration::millis(status.uptime),
        "rates": status.rates.map(|rates| json!({
            "acquire_per_s": rates.acquire,
            "release_per_s": rates.release,
            "lapse_per_s": rates.lapse,
            "refused_per_s": rates.refused,
        })),
        "recent": recent,
        "auth": if status.keys_needed { "required" } else { "none" },
        "role": role,
    });
    Ok(respond::json_response(StatusCode::OK, &body))
}

/// `GET /healthz`: the process is up.
pub async fn health(_call: HttpCall) -> Result<Response<Body>, Problem> {
    Ok(respond::json_response(StatusCode::OK, &json!({"status": "up"})))
}

/// `GET /readyz`: engine, ledger and store answer, and the box office can take its leases.
pub async fn ready(call: HttpCall) -> Result<Response<Body>, Problem> {
    if call.app.stop.is_cancelled() {
        return Err(Problem::shutting_down());
    }
    match timeout(READINESS_TIMEOUT, call.app.service.ready()).await {
        Ok(Ok(())) => Ok(respond::json_response(StatusCode::OK, &json!({"status": "ready"}))),
        Ok(Err(denial)) => {
            tracing::warn!(target: "leasehold::http", error = denial.sentence(), "not ready");
            Err(Problem::unavailable(not_ready(&denial)))
        }
        Err(_) => Err(Problem::unavailable("the engine, the ledger or the store does not answer in time")),
    }
}

/// Why the server is not ready, for callers without credentials. The office's own sentence is public; the text of a
/// database or a server may contain names, and goes to the log only.
fn not_ready(denial: &Denial) -> String {
    match denial {
        Denial::Office(error @ leasehold_boxoffice::Error::Unavailable { part: "office", attempt, .. }) => {
            let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
            format!("the box office cannot work: {attempt}: {cause}")
        }
        Denial::Office(_) => "the ledger does not answer".into(),
        Denial::Recipe(_) => "the store of recipes does not answer".into(),
        _ => "the engine does not answer".into(),
    }
}

/// `GET /metrics`
pub async fn metrics(call: HttpCall) -> Result<Response<Body>, Problem> {
    let caller = call.authenticate()?;
    let text = call.app.service.metrics(&caller).await.map_err(|denial| call.denial_problem(&denial, &caller))?;
    let mut response = Response::new(Body::from(text));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}
