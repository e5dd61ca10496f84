//! Staff: blocks, forced releases, refunds, audit, report, invariants.

use axum::body::Body;
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};
use leasehold_boxoffice::model::{AuditQuery, Entry, OrderRow, Reason, SetBlocks};
use leasehold_boxoffice::office::MoneyDecision;
use serde_json::{Value, json};

use super::{BoxOfficeRequest, query_number};
use crate::api::boxoffice::{hold_json, money_json, order_json, staff_entry_json, staff_hold_json};
use crate::boxoffice::settlement::payment_waited_ms;
use crate::http::call::{HttpCall, run_detached};
use crate::http::fields::Fields;
use crate::http::problem::Problem;
use crate::http::respond::json_response;
use crate::service::Verb;

/// Entries on a page of the audit: default and maximum.
const DEFAULT_AUDIT_PAGE_ENTRIES: usize = 200;
const MAX_AUDIT_PAGE_ENTRIES: usize = 1000;
/// Orders in a JSON report; CSV has all.
const MAX_REPORT_ORDERS: usize = 1000;
/// Seats in one request to block or unblock.
const MAX_SEATS_PER_BLOCK_REQUEST: usize = 5000;

/// `PUT /v1/events/{e}/blocks`
pub async fn blocks(mut call: HttpCall) -> Result<Response<Body>, Problem> {
    let request = BoxOfficeRequest::authorize(&call, Verb::RunEvent)?;
    call.query_params([])?;
    let event_id = request.visible_event(&call)?;
    let body = call.body_bytes(call.app.config.body_bytes, &["application/json"]).await?;
    let mut fields = Fields::parse(&body)?;
    let block = fields.take_texts("block")?.unwrap_or_default();
    let unblock = fields.take_texts("unblock")?.unwrap_or_default();
    let areas = area_blocks(&mut fields)?;
    let reason = fields.take_reason()?;
    fields.deny_unknown()?;
    if block.len() + unblock.len() + areas.len() == 0 {
        return Err(Problem::invalid("say what to block or unblock"));
    }
    if block.len() + unblock.len() > MAX_SEATS_PER_BLOCK_REQUEST {
        return Err(Problem::invalid(format!("at most {MAX_SEATS_PER_BLOCK_REQUEST} seats in one request")));
    }
    let ledger_call = request.ledger_call(&call, &body)?;
    let command = SetBlocks { event_id, block, unblock, areas, reason };
    let done = run_detached(async move { request.office().set_blocks(ledger_call, command).await }).await??;
    Ok(json_response(StatusCode::OK, &json!({"blocked": done.blocked, "unblocked": done.unblocked})))
}

/// `"areas": [{"id": "floor", "blocked": 20}]`: how many places are kept back from now on.
fn area_blocks(fields: &mut Fields) -> Result<Vec<(String, u32)>, Problem> {
    let wrong = || Problem::invalid("areas is a list of objects with id and blocked");
    let areas = match fields.take_value("areas") {
        None => return Ok(Vec::new()),
        Some(Value::Array(areas)) => areas,
        Some(_) => return Err(wrong()),
    };
    let one = |area: Value| {
        let Value::Object(area) = area else { return Err(wrong()) };
        let mut fields = Fields::from_object("an area", area);
        let id = fields.take_text("id")?.ok_or_else(wrong)?;
        let blocked = fields.take_number("blocked", "")?.ok_or_else(wrong)?;
        fields.deny_unknown()?;
        Ok((id, u32::try_from(blocked).map_err(|_| wrong())?))
    };
    areas.into_iter().map(one).collect()
}

/// `POST /v1/events/{e}/seats/{s}/release`
pub async fn force_release(mut call: HttpCall) -> Result<Response<Body>, Problem> {
    let request = BoxOfficeRequest::authorize(&call, Verb::RunEvent)?;
    call.query_params([])?;
    let event = request.visible_event(&call)?;
    let seat = call.path_segment(4)?;
    let body = call.body_bytes(call.app.config.body_bytes, &["application/json"]).await?;
    let mut fields = Fields::parse(&body)?;
    let reason = fields.take_reason()?;
    fields.deny_unknown()?;
    let ledger_call = request.ledger_call(&call, &body)?;
    let work = async move { request.office().force_release(ledger_call, &event, &seat, &reason).await };
    let view = run_detached(work).await??;
    Ok(json_response(StatusCode::OK, &hold_json(&view)))
}

/// `POST /v1/events/{e}/payments/{r}/refund`: money that is stuck shall go back.
pub async fn refund(call: HttpCall) -> Result<Response<Body>, Problem> {
    settle_money(call, MoneyDecision::GoesBack).await
}

/// `POST /v1/events/{e}/payments/{r}/close`: money that is stuck, or due, was settled by hand.
pub async fn close(call: HttpCall) -> Result<Response<Body>, Problem> {
    settle_money(call, MoneyDecision::ByHand).await
}

async fn settle_money(mut call: HttpCall, to: MoneyDecision) -> Result<Response<Body>, Problem> {
    let request = BoxOfficeRequest::authorize(&call, Verb::RunEvent)?;
    call.query_params([])?;
    let event = request.visible_event(&call)?;
    let refund = call.path_segment(4)?;
    let body = call.body_bytes(call.app.config.body_bytes, &["application/json"]).await?;
    let mut fields = Fields::parse(&body)?;
    let reason = fields.take_reason()?;
    fields.deny_unknown()?;
    let ledger_call = request.ledger_call(&call, &body)?;
    let work = async move { request.office().settle(ledger_call, &event, &refund, to, &reason).await };
    Ok(json_response(StatusCode::OK, &money_json(&run_detached(work).await??)))
}

/// `GET /v1/events/{e}/audit`
pub async fn audit(call: HttpCall) -> Result<Response<Body>, Problem> {
    let request = BoxOfficeRequest::authorize(&call, Verb::OverseeEvent)?;
    let [seat, since, limit, format] = call.query_params(["seat", "since", "limit", "format"])?;
    let event = request.visible_event(&call)?;
    request.office().event(&event).await?;
    let since = query_number(since, "since")?.unwrap_or(0);
    if is_csv(format)? {
        return audit_csv(&request, &event, seat, since).await;
    }
    let limit = match query_number(limit, "limit")? {
        None => DEFAULT_AUDIT_PAGE_ENTRIES,
        Some(limit) if (1..=MAX_AUDIT_PAGE_ENTRIES as u64).contains(&limit) => {
            usize::try_from(limit).unwrap_or(DEFAULT_AUDIT_PAGE_ENTRIES)
        }
        Some(_) => return Err(Problem::invalid(format!("limit is a number from 1 to {MAX_AUDIT_PAGE_ENTRIES}"))),
    };
    let query = AuditQuery { since, seat, limit };
    let entries = request.office().audit(&event, query).await?;
    let next = (entries.len() == limit).then(|| entries.last().map(|entry| entry.seq)).flatten();
    let entries: Vec<Value> = entries.iter().map(staff_entry_json).collect();
    Ok(json_response(StatusCode::OK, &json!({"entries": entries, "next": next})))
}

async fn audit_csv(
    request: &BoxOfficeRequest,
    event: &leasehold_boxoffice::model::EventId,
    seat: Option<String>,
    since: u64,
) -> Result<Response<Body>, Problem> {
    let mut text = csv_line(&[
        "seq",
        "at",
        "kind",
        "actor",
        "buyer",
        "hold_id",
        "order_id",
        "seats",
        "reason",
        "payment_ref",
        "amount",
    ]);
    let mut since = since;
    loop {
        let query = AuditQuery { since, seat: seat.clone(), limit: MAX_AUDIT_PAGE_ENTRIES };
        let entries = request.office().audit(event, query).await?;
        let Some(last) = entries.last() else { return Ok(csv_response(text)) };
        since = last.seq;
        entries.iter().for_each(|entry| text.push_str(&audit_line(entry)));
    }
}

fn audit_line(entry: &Entry) -> String {
    let told = staff_entry_json(entry);
    let field = |name: &str| match &told[name] {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let seats: Vec<&str> = entry.seats.iter().map(|seat| seat.id.as_str()).collect();
    let fields = [
        field("seq"),
        field("at"),
        field("kind"),
        field("actor"),
        field("buyer"),
        field("hold_id"),
        field("order_id"),
        seats.join(" "),
        field("reason"),
        field("payment_ref"),
        field("amount"),
    ];
    csv_line(&fields)
}

/// `GET /v1/events/{e}/report`
pub async fn report(call: HttpCall) -> Result<Response<Body>, Problem> {
    let request = BoxOfficeRequest::authorize(&call, Verb::OverseeEvent)?;
    let [format] = call.query_params(["format"])?;
    let event = request.visible_event(&call)?;
    let row = request.office().event(&event).await?;
    if is_csv(format)? {
        return orders_csv(&request, &event).await;
    }
    let report = request.office().report(&event).await?;
    let late = request.office().late_money(&event).await?;
    let paying = request.office().paying(&event).await?;
    let orders = request.office().orders(&event, None, MAX_REPORT_ORDERS).await?;
    let metrics = request.office().metrics().await;
    let lag = metrics.stands.map_or(0.0, |stands| stands.sweeper_lag_seconds);
    let lost = metrics.refused_total;
    let asked = lost + metrics.holds_total;
    let conflicts: serde_json::Map<String, Value> = Reason::ALL
        .into_iter()
        .zip(metrics.conflicts_total)
        .map(|(reason, count)| (reason.as_str().to_owned(), json!(count)))
        .collect();
    let by_section: Vec<Value> = report
        .sections
        .iter()
        .map(|(id, totals)| {
            let mut shown = json!(totals);
            shown["section"] = json!(id);
            shown
        })
        .collect();
    let stuck: Vec<Value> =
        paying.iter().map(|hold| staff_hold_json(hold, payment_waited_ms(hold, &row.settings))).collect();
    Ok(json_response(
        StatusCode::OK,
        &json!({
            "event_id": row.event_id,
            "currency": report.currency,
            "totals": report.totals,
            "by_section": by_section,
            "areas": report.areas,
            "takings": report.takings,
            "late_payments": late.iter().map(money_json).collect::<Vec<_>>(),
            "stuck_payments": stuck,
            // Counted by this server since its start.
            "conflict_rate": if asked == 0 { 0.0 } else { lost as f64 / asked as f64 },
            "conflicts": conflicts,
            "sweeper_lag_ms": (lag * 1000.0).round() as u64,
            "orders": orders.iter().map(order_json).collect::<Vec<_>>(),
        }),
    ))
}

async fn orders_csv(
    request: &BoxOfficeRequest,
    event: &leasehold_boxoffice::model::EventId,
) -> Result<Response<Body>, Problem> {
    let mut text = csv_line(&["order_id", "buyer", "state", "late", "payment_ref", "seat", "qty", "token", "price"]);
    let mut after = None;
    loop {
        let orders = request.office().orders(event, after.as_ref(), MAX_AUDIT_PAGE_ENTRIES).await?;
        let Some(last) = orders.last() else { return Ok(csv_response(text)) };
        after = Some(last.order_id.clone());
        orders.iter().for_each(|order| push_order_lines(order, &mut text));
    }
}

fn push_order_lines(order: &OrderRow, text: &mut String) {
    let state = match json!(order.state) {
        Value::String(word) => word,
        _ => String::new(),
    };
    let mut line = |id: &str, qty: u32, token: u64, price: u64| {
        let (late, qty, token, price) = (order.late.to_string(), qty.to_string(), token.to_string(), price.to_string());
        let fields = [&order.order_id.0, &order.buyer.0, &state, &late, &order.payment_ref, id, &qty, &token, &price];
        text.push_str(&csv_line(&fields));
    };
    order.seats.iter().for_each(|seat| line(&seat.id, 1, seat.token, seat.price));
    order.areas.iter().for_each(|area| line(&area.id, area.qty, area.token, area.price));
}

/// `GET /v1/events/{e}/invariants`
pub async fn invariants(call: HttpCall) -> Result<Response<Body>, Problem> {
    let request = BoxOfficeRequest::authorize(&call, Verb::OverseeEvent)?;
    call.query_params([])?;
    let event = request.visible_event(&call)?;
    let checks = request.office().invariants(&event).await?;
    let ok = checks.iter().all(|check| check.ok);
    Ok(json_response(StatusCode::OK, &json!({"ok": ok, "checks": checks})))
}

fn is_csv(format: Option<String>) -> Result<bool, Problem> {
    match format.as_deref() {
        None | Some("json") => Ok(false),
        Some("csv") => Ok(true),
        Some(_) => Err(Problem::invalid("format is json or csv")),
    }
}

/// One line of CSV. A field that a spreadsheet would run as a formula is quoted as text: names come from clients.
fn csv_line<T: AsRef<str>>(fields: &[T]) -> String {
    let field = |text: &T| {
        let text = text.as_ref();
        let formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
        let text = if formula { format!("'{text}") } else { text.to_owned() };
        // Some spreadsheets split fields at semicolons or tabs.
        if text.contains([',', ';', '\t', '"', '\n', '\r']) {
            format!("\"{}\"", text.replace('"', "\"\""))
        } else {
            text
        }
    };
    let fields: Vec<String> = fields.iter().map(field).collect();
    format!("{}\r\n", fields.join(","))
}

fn csv_response(text: String) -> Response<Body> {
    let mut response = Response::new(Body::from(text));
    let kind = HeaderValue::from_static("text/csv; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a name by a stranger is neither a formula nor a new field in somebody's spreadsheet.
    #[test]
    fn csv_is_safe_to_open() {
        assert_eq!(csv_line(&["a", "b,c", "say \"x\"", "l1\nl2"]), "a,\"b,c\",\"say \"\"x\"\"\",\"l1\nl2\"\r\n");
        assert_eq!(csv_line(&["=1+1", "+4", "-5", "@x", "5"]), "'=1+1,'+4,'-5,'@x,5\r\n");
        assert_eq!(csv_line(&["x;=cmd|'/C calc'!A0;", "a\tb"]), "\"x;=cmd|'/C calc'!A0;\",\"a\tb\"\r\n");
    }
}
