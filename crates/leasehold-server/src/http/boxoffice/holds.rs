//! Holds: create, show, renew, change, pay, confirm, release.

use axum::body::Body;
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};
use leasehold_boxoffice::Error;
use leasehold_boxoffice::model::{Access, Buyer, EventId, HoldId, HoldState, PaymentProof, Refusal};
use leasehold_boxoffice::office::{HoldChange, HoldRequest, HoldView};
use leasehold_boxoffice::provider::{MAX_AMOUNT, is_page};
use serde_json::{Value, json};

use super::{BoxOfficeRequest, hold_id, refusal_problem};
use crate::api::boxoffice::{hold_json, order_json};
use crate::boxoffice::payment::{PaymentError, PaymentStart};
use crate::http::call::{HttpCall, run_detached};
use crate::http::fields::{Fields, missing_field};
use crate::http::problem::Problem;
use crate::http::respond::json_response;
use crate::service::{Denial, Verb};

/// Seats and areas in one request: the limit of a claim.
const MAX_ITEMS_PER_REQUEST: usize = 64;

/// The longest URL that a buyer comes back to after paying.
const MAX_RETURN_URL_BYTES: usize = 1024;

/// `POST /v1/events/{e}/holds`
pub async fn create(mut call: HttpCall) -> Result<Response<Body>, Problem> {
    let request = BoxOfficeRequest::authorize(&call, Verb::Buy)?;
    call.query_params([])?;
    let event = request.visible_event(&call)?;
    let body = call.body_bytes(call.app.config.body_bytes, &["application/json"]).await?;
    let mut fields = Fields::parse(&body)?;
    let buyer = hold_buyer(&request, fields.take_text("buyer")?)?;
    let want = parse_hold_request(&mut fields)?;
    fields.deny_unknown()?;
    let ledger_call = request.ledger_call(&call, &body)?;
    let view = match request.office().hold(ledger_call, &event, buyer, want).await {
        Ok(view) => view,
        Err(error) => return Err(with_alternative(&request, &event, error)),
    };
    let mut response = json_response(StatusCode::CREATED, &hold_json(&view));
    if let Ok(place) = HeaderValue::from_str(&format!("/v1/holds/{}", view.hold.hold_id)) {
        response.headers_mut().insert(header::LOCATION, place);
    }
    Ok(response)
}

/// The buyer of a hold. With a ticket the body may repeat its buyer or name none.
fn hold_buyer(request: &BoxOfficeRequest, given: Option<String>) -> Result<Buyer, Problem> {
    let buyer = match (&request.caller.ticket, given) {
        (Some(ticket), None) => Buyer(ticket.buyer.clone()),
        (_, Some(given)) => Buyer(given),
        (None, None) => return Err(missing_field("buyer")),
    };
    if !request.caller.acts_for(&buyer.0) {
        return Err(Problem::forbidden("this ticket is for another buyer"));
    }
    if !buyer.is_well_formed() {
        return Err(Problem::invalid("buyer is 1 to 128 bytes without control characters"));
    }
    Ok(buyer)
}

fn parse_hold_request(fields: &mut Fields) -> Result<HoldRequest, Problem> {
    let seats = fields.take_texts("seats")?;
    let areas = parse_areas(fields, "areas")?;
    let best = fields.take_value("best");
    match (best, seats, areas) {
        (Some(best), None, None) => parse_best(best),
        (None, seats, areas) if seats.is_some() || areas.is_some() => {
            let (seats, areas) = (seats.unwrap_or_default(), areas.unwrap_or_default());
            check_item_count(seats.len() + areas.len())?;
            Ok(HoldRequest::These { seats, areas })
        }
        _ => Err(Problem::invalid("say what is wanted: seats and areas, or best")),
    }
}

fn check_item_count(count: usize) -> Result<(), Problem> {
    match count {
        0 => Err(Problem::invalid("at least one seat or area is wanted")),
        1..=MAX_ITEMS_PER_REQUEST => Ok(()),
        _ => Err(Problem::invalid(format!("at most {MAX_ITEMS_PER_REQUEST} seats and areas in one request"))),
    }
}

fn parse_best(best: Value) -> Result<HoldRequest, Problem> {
    let Value::Object(best) = best else { return Err(Problem::invalid("best is an object with qty")) };
    let mut fields = Fields::from_object("best", best);
    let qty = fields.take_number("qty", "")?.ok_or_else(|| missing_field("qty of best"))?;
    let section = fields.take_text("section")?;
    let adjacent = fields.take_flag("adjacent")?.unwrap_or(false);
    fields.deny_unknown()?;
    if !(1..=MAX_ITEMS_PER_REQUEST as u64).contains(&qty) {
        return Err(Problem::invalid(format!("qty of best is from 1 to {MAX_ITEMS_PER_REQUEST}")));
    }
    Ok(HoldRequest::Best { qty: u32::try_from(qty).unwrap_or(u32::MAX), section, adjacent })
}

fn parse_areas(fields: &mut Fields, name: &'static str) -> Result<Option<Vec<(String, u32)>>, Problem> {
    let areas = match fields.take_value(name) {
        None => return Ok(None),
        Some(Value::Array(areas)) => areas,
        Some(_) => return Err(Problem::invalid(format!("{name} is a list of objects with id and qty"))),
    };
    let one = |area: Value| {
        let Value::Object(area) = area else { return Err(Problem::invalid("an area is an object with id and qty")) };
        let mut fields = Fields::from_object("an area", area);
        let id = fields.take_text("id")?.ok_or_else(|| missing_field("id of an area"))?;
        let qty = fields.take_number("qty", "")?.ok_or_else(|| missing_field("qty of an area"))?;
        fields.deny_unknown()?;
        match u32::try_from(qty) {
            Ok(qty) if qty > 0 => Ok((id, qty)),
            _ => Err(Problem::invalid("qty of an area is at least 1, and not too big")),
        }
    };
    areas.into_iter().map(one).collect::<Result<_, _>>().map(Some)
}

/// Adds an alternative and its price to a conflict. Read from memory: a refused request does not reach the ledger, or
/// many of them would block it.
fn with_alternative(request: &BoxOfficeRequest, event: &EventId, error: Error) -> Problem {
    let seats = match error.refusal() {
        Some(Refusal::Conflict { alternative: Some(seats), .. }) => seats.clone(),
        _ => return Problem::from(error),
    };
    let Some(total) = request.office().total(event, &seats) else { return Problem::from(error) };
    Problem::from(error).with_field("alternative", json!({"seats": seats, "total": total}))
}

/// The hold id in the path, and its key.
fn hold_and_key(call: &HttpCall) -> Result<(HoldId, Access), Problem> {
    Ok((hold_id(call)?, hold_key_header(call)?))
}

/// The hold key, from its header.
pub(super) fn hold_key_header(call: &HttpCall) -> Result<Access, Problem> {
    let key = call.single_header("leasehold-hold-key", "Leasehold-Hold-Key")?;
    let missing = || Problem::forbidden("every call on a hold shows its key, in the header Leasehold-Hold-Key");
    Ok(Access::key(key.ok_or_else(missing)?))
}

/// Checks the hold against the ticket or the prefixes of the caller, beside the hold key.
pub(super) async fn check_hold_access(
    request: &BoxOfficeRequest,
    (hold, access): (HoldId, Access),
) -> Result<(HoldId, Access), Problem> {
    if request.caller.ticket.is_some() || !request.caller.principal.prefixes.is_empty() {
        let view = request.office().hold_view(&hold, access.clone()).await.map_err(hold_error(request))?;
        check_owner(request, &view)?;
    }
    Ok((hold, access))
}

/// The problem for a failed access to a hold. A caller who sends many wrong keys is guessing, and is slowed down.
pub(super) fn hold_error(request: &BoxOfficeRequest) -> impl Fn(Error) -> Problem {
    move |error| {
        let unknown = matches!(error.refusal(), Some(Refusal::NoHold(_)));
        if unknown && !request.service.may_guess(&request.caller) {
            let slow = Denial::Slow("too many holds and keys that do not fit: slow down".into());
            return Problem::with_retry_after(&slow, &request.service, &request.caller);
        }
        Problem::from(error)
    }
}

/// A hold of another buyer or event does not exist for this caller.
fn check_owner(request: &BoxOfficeRequest, view: &HoldView) -> Result<(), Problem> {
    let row = &view.hold;
    let theirs = request.caller.sees_event(&row.event_id.0) && request.caller.acts_for(&row.buyer.0);
    if theirs { Ok(()) } else { Err(refusal_problem(Refusal::NoHold(row.hold_id.clone()))) }
}

/// `GET /v1/holds/{h}`
pub async fn show(call: HttpCall) -> Result<Response<Body>, Problem> {
    let request = BoxOfficeRequest::authorize(&call, Verb::Buy)?;
    call.query_params([])?;
    let (hold, access) = check_hold_access(&request, hold_and_key(&call)?).await?;
    let view = request.office().hold_view(&hold, access).await.map_err(hold_error(&request))?;
    Ok(json_response(StatusCode::OK, &hold_json(&view)))
}

/// `POST /v1/holds/{h}/renew`
pub async fn renew(mut call: HttpCall) -> Result<Response<Body>, Problem> {
    let request = BoxOfficeRequest::authorize(&call, Verb::Buy)?;
    call.query_params([])?;
    let body = call.optional_body_bytes().await?;
    Fields::parse(&body)?.deny_unknown()?;
    let (hold, access) = check_hold_access(&request, hold_and_key(&call)?).await?;
    let ledger_call = request.ledger_call(&call, &body)?;
    let view = request.office().renew(ledger_call, &hold, access).await.map_err(hold_error(&request))?;
    Ok(json_response(StatusCode::OK, &hold_json(&view)))
}

/// `POST /v1/holds/{h}/release`
pub async fn release(mut call: HttpCall) -> Result<Response<Body>, Problem> {
    let request = BoxOfficeRequest::authorize(&call, Verb::Buy)?;
    call.query_params([])?;
    let body = call.optional_body_bytes().await?;
    Fields::parse(&body)?.deny_unknown()?;
    let (hold, access) = check_hold_access(&request, hold_and_key(&call)?).await?;
    let ledger_call = request.ledger_call(&call, &body)?;
    let view = request.office().release(ledger_call, &hold, access).await.map_err(hold_error(&request))?;
    Ok(json_response(StatusCode::OK, &hold_json(&view)))
}

/// `POST /v1/holds/{h}/seats`
pub async fn change(mut call: HttpCall) -> Result<Response<Body>, Problem> {
    let request = BoxOfficeRequest::authorize(&call, Verb::Buy)?;
    call.query_params([])?;
    let body = call.body_bytes(call.app.config.body_bytes, &["application/json"]).await?;
    let mut fields = Fields::parse(&body)?;
    let change = HoldChange {
        add: fields.take_texts("add")?.unwrap_or_default(),
        remove: fields.take_texts("remove")?.unwrap_or_default(),
        add_areas: parse_areas(&mut fields, "add_areas")?.unwrap_or_default(),
        remove_areas: fields.take_texts("remove_areas")?.unwrap_or_default(),
    };
    fields.deny_unknown()?;
    check_item_count(change.add.len() + change.remove.len() + change.add_areas.len() + change.remove_areas.len())?;
    let (hold, access) = check_hold_access(&request, hold_and_key(&call)?).await?;
    let ledger_call = request.ledger_call(&call, &body)?;
    match request.office().change(ledger_call, &hold, access.clone(), change).await {
        // The stored response is the hold before its leases were merged: show the hold as it is now.
        Ok(view) if view.replayed => {
            let view = request.office().hold_view(&hold, access).await?;
            Ok(json_response(StatusCode::OK, &hold_json(&view)))
        }
        Ok(view) => Ok(json_response(StatusCode::OK, &hold_json(&view))),
        Err(error) => {
            let known = request.office().hold_view(&hold, access).await;
            match known {
                Ok(view) => Err(with_alternative(&request, &view.hold.event_id, error)),
                Err(_) => Err(hold_error(&request)(error)),
            }
        }
    }
}

/// `POST /v1/holds/{h}/pay`
pub async fn pay(mut call: HttpCall) -> Result<Response<Body>, Problem> {
    let request = BoxOfficeRequest::authorize(&call, Verb::Buy)?;
    call.query_params([])?;
    let body = call.body_bytes(call.app.config.body_bytes, &["application/json"]).await?;
    let mut fields = Fields::parse(&body)?;
    let named = optional_payment_ref(&mut fields)?;
    let return_url = return_url(&mut fields)?;
    fields.deny_unknown()?;
    let (hold, access) = check_hold_access(&request, hold_and_key(&call)?).await?;
    let begin = payment_start(&request, &hold, &access, named, return_url).await?;
    let ledger_call = request.ledger_call(&call, &body)?;
    let boxoffice = request.boxoffice.clone();
    // On a task of its own: a hang-up must not leave a payment at the provider without its hold.
    let begun = run_detached(async move { boxoffice.begin_payment(ledger_call, &hold, access, begin).await }).await?;
    let view = begun.map_err(|why| payment_problem(&request, why))?;
    Ok(json_response(StatusCode::OK, &hold_json(&view)))
}

/// The name of the payment. A ticket may not choose one, except the payment that its own hold has already.
async fn payment_start(
    request: &BoxOfficeRequest,
    hold: &HoldId,
    access: &Access,
    named: Option<String>,
    return_url: Option<String>,
) -> Result<PaymentStart, Problem> {
    let Some(payment_ref) = named else { return Ok(PaymentStart::Drawn { return_url }) };
    if request.caller.ticket.is_some() {
        let view = request.office().hold_view(hold, access.clone()).await.map_err(hold_error(request))?;
        let its_own = view.hold.state == HoldState::Paying && view.hold.payment_ref.as_ref() == Some(&payment_ref);
        if !its_own {
            return Err(Problem::forbidden("a ticket names no payment: leave payment_ref out, and the answer has one"));
        }
        return Ok(PaymentStart::Drawn { return_url });
    }
    Ok(PaymentStart::Named(payment_ref))
}

fn payment_problem(request: &BoxOfficeRequest, why: PaymentError) -> Problem {
    match why {
        PaymentError::Office(error) => hold_error(request)(error),
        PaymentError::Paid => {
            let detail = "the provider says that this payment is paid: the hold is sold, or its money comes back";
            Problem::with_code(StatusCode::CONFLICT, "already_paid", detail)
        }
        PaymentError::Provider(error) => {
            tracing::warn!(%error, "the payment provider was asked in vain");
            Problem::unavailable("the payment provider does not answer, or refused: nothing was changed, try again")
        }
    }
}

/// `POST /v1/holds/{h}/pay/cancel`
pub async fn cancel_payment(mut call: HttpCall) -> Result<Response<Body>, Problem> {
    let request = BoxOfficeRequest::authorize(&call, Verb::Buy)?;
    call.query_params([])?;
    let body = call.optional_body_bytes().await?;
    Fields::parse(&body)?.deny_unknown()?;
    let (hold, access) = check_hold_access(&request, hold_and_key(&call)?).await?;
    let ledger_call = request.ledger_call(&call, &body)?;
    let boxoffice = request.boxoffice.clone();
    let ended = run_detached(async move { boxoffice.cancel_payment(ledger_call, &hold, access).await }).await?;
    let view = ended.map_err(|why| payment_problem(&request, why))?;
    Ok(json_response(StatusCode::OK, &hold_json(&view)))
}

/// `POST /v1/holds/{h}/confirm`
pub async fn confirm(mut call: HttpCall) -> Result<Response<Body>, Problem> {
    let request = BoxOfficeRequest::authorize(&call, Verb::Buy)?;
    call.query_params([])?;
    let body = call.body_bytes(call.app.config.body_bytes, &["application/json"]).await?;
    let mut fields = Fields::parse(&body)?;
    let payment = optional_payment_ref(&mut fields)?.ok_or_else(|| missing_field("payment_ref"))?;
    let amount = fields.take_number("amount", "")?;
    fields.deny_unknown()?;
    // A ticket proves no payment: the office decides whether the hold can be sold.
    let proof = match (&request.caller.ticket, amount) {
        (Some(_), Some(_)) => return Err(Problem::forbidden("a ticket says no amount: the payment provider does")),
        (Some(_), None) => PaymentProof::Buyer,
        (None, Some(amount)) if amount > MAX_AMOUNT => {
            return Err(Problem::invalid(format!("amount is at most {MAX_AMOUNT}")));
        }
        (None, amount) => PaymentProof::Key { amount },
    };
    let (hold, access) = check_hold_access(&request, hold_and_key(&call)?).await?;
    let ledger_call = request.ledger_call(&call, &body)?;
    let order = request
        .office()
        .confirm_with(ledger_call, &hold, access, &payment, proof)
        .await
        .map_err(hold_error(&request))?;
    let mut response = json_response(StatusCode::CREATED, &order_json(&order));
    if let Ok(place) = HeaderValue::from_str(&format!("/v1/orders/{}", order.order_id)) {
        response.headers_mut().insert(header::LOCATION, place);
    }
    Ok(response)
}

fn optional_payment_ref(fields: &mut Fields) -> Result<Option<String>, Problem> {
    let payment = fields.take_text("payment_ref")?;
    if payment.as_ref().is_some_and(|payment| !leasehold_boxoffice::model::ids::well_formed(payment)) {
        return Err(Problem::invalid("payment_ref is 1 to 128 bytes without control characters"));
    }
    Ok(payment)
}

fn return_url(fields: &mut Fields) -> Result<Option<String>, Problem> {
    let url = fields.take_text("return_url")?;
    let fits = |url: &String| url.len() <= MAX_RETURN_URL_BYTES && is_page(url);
    if url.as_ref().is_none_or(fits) {
        return Ok(url);
    }
    Err(Problem::invalid(format!(
        "return_url is an http or https URL of at most {MAX_RETURN_URL_BYTES} bytes, without a password"
    )))
}
