//! Orders: show; for staff void and move.

use axum::body::Body;
use hyper::{Response, StatusCode};
use leasehold_boxoffice::model::{OrderId, OrderRow, Refusal};
use serde_json::{Value, json};

use super::{BoxOfficeRequest, order_id, refusal_problem};
use crate::api::boxoffice::order_json;
use crate::http::call::{HttpCall, run_detached};
use crate::http::fields::{Fields, missing_field};
use crate::http::problem::Problem;
use crate::http::respond::json_response;
use crate::service::Verb;

async fn find_order(request: &BoxOfficeRequest, order: OrderId) -> Result<OrderRow, Problem> {
    let row = request.office().order(&order).await?;
    let theirs = request.caller.sees_event(&row.event_id.0) && request.caller.acts_for(&row.buyer.0);
    if theirs { Ok(row) } else { Err(refusal_problem(Refusal::NoOrder(order))) }
}

/// `GET /v1/orders/{o}`
pub async fn show(call: HttpCall) -> Result<Response<Body>, Problem> {
    let request = BoxOfficeRequest::authorize(&call, Verb::Buy)?;
    call.query_params([])?;
    let row = find_order(&request, order_id(&call)?).await?;
    Ok(json_response(StatusCode::OK, &order_json(&row)))
}

/// `POST /v1/orders/{o}/void`
pub async fn void(mut call: HttpCall) -> Result<Response<Body>, Problem> {
    let request = BoxOfficeRequest::authorize(&call, Verb::RunEvent)?;
    call.query_params([])?;
    let body = call.body_bytes(call.app.config.body_bytes, &["application/json"]).await?;
    let mut fields = Fields::parse(&body)?;
    let seats = fields.take_texts("seats")?;
    let reason = fields.take_reason()?;
    fields.deny_unknown()?;
    let order = find_order(&request, order_id(&call)?).await?.order_id;
    let ledger_call = request.ledger_call(&call, &body)?;
    let work = async move { request.office().void(ledger_call, &order, seats, &reason).await };
    let amended = run_detached(work).await??;
    Ok(json_response(StatusCode::OK, &order_json_with_owed(&amended.order, amended.owed)))
}

/// `POST /v1/orders/{o}/move`
pub async fn relocate(mut call: HttpCall) -> Result<Response<Body>, Problem> {
    let request = BoxOfficeRequest::authorize(&call, Verb::RunEvent)?;
    call.query_params([])?;
    let body = call.body_bytes(call.app.config.body_bytes, &["application/json"]).await?;
    let mut fields = Fields::parse(&body)?;
    let moves = parse_moves(fields.take_value("moves").ok_or_else(|| missing_field("moves"))?)?;
    let reason = fields.take_reason()?;
    fields.deny_unknown()?;
    let order = find_order(&request, order_id(&call)?).await?.order_id;
    let ledger_call = request.ledger_call(&call, &body)?;
    let work = async move { request.office().move_order(ledger_call, &order, moves, &reason).await };
    let amended = run_detached(work).await??;
    Ok(json_response(StatusCode::OK, &order_json_with_owed(&amended.order, amended.owed)))
}

/// Moves are `[{"from": "A-1", "to": "B-1"}]`.
fn parse_moves(value: Value) -> Result<Vec<(String, String)>, Problem> {
    let Value::Array(moves) = value else {
        return Err(Problem::invalid("moves is a list of objects with from and to"));
    };
    if !(1..=64).contains(&moves.len()) {
        return Err(Problem::invalid("moves are 1 to 64"));
    }
    let one = |value: Value| {
        let Value::Object(object) = value else { return Err(Problem::invalid("a move has from and to")) };
        let mut fields = Fields::from_object("a move", object);
        let from = fields.take_text("from")?.ok_or_else(|| missing_field("from of a move"))?;
        let to = fields.take_text("to")?.ok_or_else(|| missing_field("to of a move"))?;
        fields.deny_unknown()?;
        Ok((from, to))
    };
    moves.into_iter().map(one).collect()
}

fn order_json_with_owed(row: &OrderRow, owed: i64) -> Value {
    let mut shown = order_json(row);
    shown["owed"] = json!(owed);
    shown
}
