//! Webhooks: create, list, remove. A secret is shown once, in the response that creates it.

use axum::body::Body;
use hyper::{Response, StatusCode};
use leasehold_boxoffice::model::{EventId, Refusal, WebhookAdded, WebhookRow};
use leasehold_boxoffice::office::MAX_WEBHOOKS;
use leasehold_boxoffice::sign::MIN_SECRET_BYTES;
use leasehold_support::hex;
use serde_json::{Value, json};

use super::{BoxOfficeRequest, refusal_problem};
use crate::http::call::{HttpCall, run_detached};
use crate::http::fields::{Fields, missing_field};
use crate::http::problem::Problem;
use crate::http::respond::{json_response, no_content};
use crate::service::Verb;

/// `POST /v1/webhooks`
pub async fn create(mut call: HttpCall) -> Result<Response<Body>, Problem> {
    let request = BoxOfficeRequest::authorize(&call, Verb::RunEvent)?;
    call.query_params([])?;
    let body = call.body_bytes(call.app.config.body_bytes, &["application/json"]).await?;
    let mut fields = Fields::parse(&body)?;
    let url = fields.take_text("url")?.ok_or_else(|| missing_field("url"))?;
    let event_id = fields.take_text("event")?.map(EventId);
    let secret = fields.take_text("secret")?;
    fields.deny_unknown()?;
    request.boxoffice.outbound().guard().target(&url).map_err(|why| Problem::invalid(why.to_string()))?;
    if let Some(event) = &event_id {
        request.check_sees(event)?;
        request.office().event(event).await?;
    } else if !request.caller.principal.prefixes.is_empty() {
        return Err(Problem::forbidden("this key sees some events only: name one"));
    }
    if secret.as_ref().is_some_and(|secret| !(MIN_SECRET_BYTES..=256).contains(&secret.len())) {
        return Err(Problem::invalid(format!("secret is {MIN_SECRET_BYTES} to 256 bytes")));
    }
    let (id, drawn) = new_id_and_secret(&request, &call, &body)?;
    let row = WebhookRow { id, event_id, url, secret: secret.unwrap_or(drawn), active: true };
    run_detached(async move { store_webhook(&request, row).await }).await?
}

/// The id and the secret of a new webhook. With an idempotency key a retry has the same.
fn new_id_and_secret(request: &BoxOfficeRequest, call: &HttpCall, body: &[u8]) -> Result<(String, String), Problem> {
    let seed = match request.idempotency_key(call, body)? {
        Some(idempotency) => idempotency.key,
        None => {
            let mut bits = [0; 32];
            getrandom::fill(&mut bits).map_err(|_| Problem::unavailable("the system has no random bits to give"))?;
            bits
        }
    };
    let id = format!("w_{}", hex::encode(&request.boxoffice.derive("webhook", &seed)[..12]));
    Ok((id, hex::encode(&request.boxoffice.derive("webhook secret", &seed))))
}

async fn store_webhook(request: &BoxOfficeRequest, row: WebhookRow) -> Result<Response<Body>, Problem> {
    match request.office().add_webhook(row.clone()).await? {
        WebhookAdded::Added => Ok(created_response(&row)),
        // The id is derived from the idempotency key: this is a retry, or another request with the same key.
        WebhookAdded::Exists(same) if (WebhookRow { active: row.active, ..same.clone() }) == row => {
            Ok(created_response(&same))
        }
        WebhookAdded::Exists(_) => Err(refusal_problem(Refusal::Mismatch)),
        WebhookAdded::TooMany => Err(Problem::with_code(
            StatusCode::TOO_MANY_REQUESTS,
            "quota",
            format!("there are at most {MAX_WEBHOOKS} webhooks"),
        )),
    }
}

fn created_response(row: &WebhookRow) -> Response<Body> {
    let mut shown = webhook_json(row);
    shown["secret"] = json!(row.secret);
    json_response(StatusCode::CREATED, &shown)
}

fn webhook_json(row: &WebhookRow) -> Value {
    json!({"webhook_id": row.id, "event": row.event_id, "url": row.url, "active": row.active})
}

/// Whether the caller may see a webhook.
fn may_see(request: &BoxOfficeRequest, row: &WebhookRow) -> bool {
    match &row.event_id {
        Some(event) => request.caller.sees_event(&event.0),
        None => request.caller.principal.prefixes.is_empty(),
    }
}

/// `GET /v1/webhooks`
pub async fn list(call: HttpCall) -> Result<Response<Body>, Problem> {
    let request = BoxOfficeRequest::authorize(&call, Verb::RunEvent)?;
    call.query_params([])?;
    let rows = request.office().webhooks().await?;
    let webhooks: Vec<Value> = rows.iter().filter(|row| may_see(&request, row)).map(webhook_json).collect();
    Ok(json_response(StatusCode::OK, &json!({"webhooks": webhooks})))
}

/// `DELETE /v1/webhooks/{w}`
pub async fn remove(call: HttpCall) -> Result<Response<Body>, Problem> {
    let request = BoxOfficeRequest::authorize(&call, Verb::RunEvent)?;
    call.query_params([])?;
    let id = call.path_segment(2)?;
    let rows = request.office().webhooks().await?;
    let removed = match rows.iter().find(|row| row.id == id && may_see(&request, row)) {
        Some(row) => request.office().remove_webhook(row).await?,
        None => false,
    };
    if !removed {
        return Err(Problem::with_code(StatusCode::NOT_FOUND, "not_found", "there is no such webhook"));
    }
    Ok(no_content())
}
