//! `POST /v1/once/begin` and `/v1/once/end`.

use axum::body::Body;
use hyper::{Response, StatusCode};
use leasehold::recipe::RecipeRefusal;
use leasehold::recipe::once::{Begun, First, OnceRequest};
use leasehold_support::hex;
use serde_json::json;

use super::super::call::{HttpCall, run_detached};
use super::super::fields::{Fields, missing_field};
use super::super::problem::Problem;
use super::super::respond;
use super::{MAX_ANSWER_BODY_BYTES, required_decimal, required_text};
use crate::api::recipes::ReplayJson;
use crate::service::recipes::{RecipeAccess, TryEnd, stale_try};
use crate::service::{Caller, Denial, Verb};

fn authorize_scope(call: &HttpCall, caller: &Caller, scope: &str) -> Result<RecipeAccess, Problem> {
    let access = call.app.service.recipes(caller, Verb::Once, Some(&format!("once/{scope}")));
    access.map_err(|denial| call.denial_problem(&denial, caller))
}

/// `POST /v1/once/begin`
pub async fn begin(mut call: HttpCall) -> Result<Response<Body>, Problem> {
    let caller = call.authenticate()?;
    call.query_params([])?;
    let mut fields = call.json_fields_up_to(MAX_ANSWER_BODY_BYTES).await?;
    let (scope, key) = (required_text(&mut fields, "scope")?, required_text(&mut fields, "key")?);
    let mut request = parse_request(&mut fields, &scope, key)?;
    if let Some(ttl) = fields.take_millis("ttl_ms")? {
        request = request.ttl(ttl);
    }
    if let Some(keep) = fields.take_millis("keep_ms")? {
        request = request.keep(keep);
    }
    fields.deny_unknown()?;
    let access = authorize_scope(&call, &caller, &scope)?;
    let begun = run_detached(async move { access.once_begin(request).await }).await?;
    let refused = match begun.map_err(|denial| call.denial_problem(&denial, &caller))? {
        Begun::First(first) => {
            let body = json!({"outcome": "first", "token": first.token().to_string()});
            return Ok(respond::json_response(StatusCode::OK, &body));
        }
        Begun::Replay(answer) => return Ok(respond::json_response(StatusCode::OK, &ReplayJson::from(answer))),
        Begun::InFlight { remaining } => RecipeRefusal::InFlight { remaining: Some(remaining) },
        Begun::Mismatch => RecipeRefusal::Mismatch,
    };
    Err(Problem::from(&Denial::Recipe(refused.into())))
}

/// What must be the same when the key comes again: its SHA-256, or the text itself.
fn parse_request(fields: &mut Fields, scope: &str, key: String) -> Result<OnceRequest, Problem> {
    match (fields.take_text("asked_sha256")?, fields.take_text("request")?) {
        (Some(digest), None) => {
            let digest = hex::decode(&digest).and_then(|digest| <[u8; 32]>::try_from(digest).ok());
            let digest = digest.ok_or_else(|| Problem::invalid("asked_sha256 is 64 hexadecimal digits"))?;
            Ok(OnceRequest::from_digest(scope, key, digest))
        }
        (None, Some(text)) => Ok(OnceRequest::new(scope, key, text)),
        (None, None) => Err(missing_field("asked_sha256 or request")),
        (Some(_), Some(_)) => Err(Problem::invalid("there is asked_sha256 or request, not both")),
    }
}

/// `POST /v1/once/end`
pub async fn end(mut call: HttpCall) -> Result<Response<Body>, Problem> {
    let caller = call.authenticate()?;
    call.query_params([])?;
    let mut fields = call.json_fields_up_to(MAX_ANSWER_BODY_BYTES).await?;
    let (scope, key) = (required_text(&mut fields, "scope")?, required_text(&mut fields, "key")?);
    let token = required_decimal(&mut fields, "token")?;
    let end = parse_end(&mut fields)?;
    fields.deny_unknown()?;
    let access = authorize_scope(&call, &caller, &scope)?;
    let first = First::from_parts(scope, key, token);
    let ended = run_detached(async move { access.once_end(first, end).await }).await?;
    match ended {
        Ok(true) => Ok(respond::no_content()),
        Ok(false) => Err(Problem::from(&stale_try(token))),
        Err(denial) => Err(call.denial_problem(&denial, &caller)),
    }
}

fn parse_end(fields: &mut Fields) -> Result<TryEnd, Problem> {
    let how = required_text(fields, "how")?;
    match how.as_str() {
        "finish" => {
            let status = fields.take_signed("status")?.ok_or_else(|| missing_field("status"))?;
            let body = match (fields.take_text("body")?, fields.take_text("body_hex")?) {
                (Some(text), None) => text.into_bytes(),
                (None, Some(digits)) => {
                    hex::decode(&digits).ok_or_else(|| Problem::invalid("body_hex is pairs of hexadecimal digits"))?
                }
                (None, None) => return Err(missing_field("body or body_hex")),
                (Some(_), Some(_)) => return Err(Problem::invalid("there is body or body_hex, not both")),
            };
            Ok(TryEnd::Finish { status, body })
        }
        "renew" => Ok(TryEnd::Renew { ttl: fields.take_millis("ttl_ms")?.ok_or_else(|| missing_field("ttl_ms"))? }),
        "abandon" => Ok(TryEnd::Abandon),
        "ask" => Ok(TryEnd::Ask),
        _ => Err(Problem::invalid("how is finish, renew, abandon or ask")),
    }
}
