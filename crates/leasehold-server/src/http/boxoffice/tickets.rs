//! Tickets for browsers, and what a page needs before it has one.

use axum::body::Body;
use hyper::{Response, StatusCode};
use leasehold_boxoffice::model::{Buyer, EventId};
use serde_json::json;

use super::BoxOfficeRequest;
use crate::http::call::HttpCall;
use crate::http::fields::{Fields, missing_field};
use crate::http::problem::Problem;
use crate::http::respond::json_response;
use crate::service::{Role, Verb};
use leasehold_support::duration::millis;

/// `GET /v1/boxoffice`
pub async fn public_info(call: HttpCall) -> Result<Response<Body>, Problem> {
    call.query_params([])?;
    let front = call.app.service.boxoffice_info();
    let (demo, event) = front.map_or((false, None), |front| (front.demo, front.default_event));
    Ok(json_response(StatusCode::OK, &json!({"demo": demo, "default_event": event})))
}

/// `POST /v1/tickets`
pub async fn create(mut call: HttpCall) -> Result<Response<Body>, Problem> {
    let demo = call.app.service.boxoffice_info().is_some_and(|front| front.demo);
    let caller = if demo { call.demo_caller(Role::Boxoffice)? } else { call.authenticate()? };
    let request = BoxOfficeRequest::authorize_caller(&call, caller, Verb::RunEvent)?;
    call.query_params([])?;
    let body = call.body_bytes(call.app.config.body_bytes, &["application/json"]).await?;
    let mut fields = Fields::parse(&body)?;
    let event = EventId(fields.take_text("event")?.ok_or_else(|| missing_field("event"))?);
    let buyer = fields.take_text("buyer")?;
    fields.deny_unknown()?;
    request.check_sees(&event)?;
    request.office().event(&event).await?;
    let buyer = match buyer {
        Some(buyer) => Buyer(buyer),
        None => Buyer(generate_buyer(&request, &call, &body)?),
    };
    if !buyer.is_well_formed() {
        return Err(Problem::invalid("buyer is 1 to 128 bytes without control characters"));
    }
    let minted = request.boxoffice.mint_ticket(&event, &buyer.0);
    let (ticket, ttl) = minted.ok_or_else(|| Problem::invalid("there is no ticket for such names"))?;
    Ok(json_response(StatusCode::CREATED, &json!({"ticket": ticket, "buyer": buyer, "expires_in_ms": millis(ttl)})))
}

/// A random name for a buyer. With an idempotency key a retry gets the same name.
fn generate_buyer(request: &BoxOfficeRequest, call: &HttpCall, body: &[u8]) -> Result<String, Problem> {
    let bits: [u8; 32] = match request.idempotency_key(call, body)? {
        Some(idempotency) => request.boxoffice.derive("buyer", &[idempotency.key, idempotency.body].concat()),
        None => {
            let mut bits = [0; 32];
            getrandom::fill(&mut bits).map_err(|_| Problem::unavailable("the system has no random bits to give"))?;
            bits
        }
    };
    Ok(format!("b_{}", leasehold_support::hex::encode(&bits[..10])))
}
