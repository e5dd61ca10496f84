//! Holds: taken, looked at, renewed, changed, paid for, confirmed, released.

use axum::body::Body;
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};
use leasehold_boxoffice::Error;
use leasehold_boxoffice::model::{Access, Buyer, EventId, HoldId, HoldState, Refusal};
use leasehold_boxoffice::office::{Change, HoldView, Want};
use serde_json::{Value, json};

use super::{Desk, hold_id, no, refused, shape};
use crate::http::fields::{Fields, missing};
use crate::http::problem::Problem;
use crate::http::routes::Call;
use crate::http::shape::json as answer;
use crate::service::{Denial, Verb};

/// Seats and areas in one request: what a claim may have.
const MOST_WANTED: usize = 64;

/// `POST /v1/events/{e}/holds`
pub async fn take(mut call: Call) -> Result<Response<Body>, Problem> {
    let desk = Desk::admit(&call, Verb::Buy)?;
    call.query([])?;
    let event = desk.event(&call)?;
    let body = call.bytes(call.app.config.body_bytes, &["application/json"]).await?;
    let mut fields = Fields::parse(&body)?;
    let buyer = buyer(&desk, fields.text("buyer")?)?;
    let want = want(&mut fields)?;
    fields.done()?;
    let made = desk.call(&call, &body)?;
    let view = match desk.office().hold(made, &event, buyer, want).await {
        Ok(view) => view,
        Err(error) => return Err(with_alternative(&desk, &event, error)),
    };
    let mut response = answer(StatusCode::CREATED, &shape::hold(&view));
    if let Ok(place) = HeaderValue::from_str(&format!("/v1/holds/{}", view.hold.hold_id)) {
        response.headers_mut().insert(header::LOCATION, place);
    }
    Ok(response)
}

/// Whom a hold is for: a ticket says it, and then the body may say the same or nothing.
fn buyer(desk: &Desk, given: Option<String>) -> Result<Buyer, Problem> {
    let buyer = match (&desk.caller.ticket, given) {
        (Some(ticket), None) => Buyer(ticket.buyer.clone()),
        (_, Some(given)) => Buyer(given),
        (None, None) => return Err(missing("buyer")),
    };
    if !desk.caller.acts_for(&buyer.0) {
        return Err(Problem::forbidden("this ticket is for another buyer"));
    }
    if !buyer.is_well_formed() {
        return Err(Problem::invalid("buyer is 1 to 128 bytes without control characters"));
    }
    Ok(buyer)
}

fn want(fields: &mut Fields) -> Result<Want, Problem> {
    let seats = fields.texts("seats")?;
    let areas = areas(fields, "areas")?;
    let best = fields.take("best");
    match (best, seats, areas) {
        (Some(best), None, None) => wanted_best(best),
        (None, seats, areas) if seats.is_some() || areas.is_some() => {
            let (seats, areas) = (seats.unwrap_or_default(), areas.unwrap_or_default());
            within(seats.len() + areas.len())?;
            Ok(Want::These { seats, areas })
        }
        _ => Err(Problem::invalid("say what is wanted: seats and areas, or best")),
    }
}

fn within(many: usize) -> Result<(), Problem> {
    match many {
        0 => Err(Problem::invalid("at least one seat or area is wanted")),
        1..=MOST_WANTED => Ok(()),
        _ => Err(Problem::invalid(format!("at most {MOST_WANTED} seats and areas in one request"))),
    }
}

fn wanted_best(best: Value) -> Result<Want, Problem> {
    let Value::Object(best) = best else { return Err(Problem::invalid("best is an object with qty")) };
    let mut fields = Fields::of("best", best);
    let qty = fields.number("qty", "")?.ok_or_else(|| missing("qty of best"))?;
    let section = fields.text("section")?;
    let adjacent = fields.flag("adjacent")?.unwrap_or(false);
    fields.done()?;
    if !(1..=MOST_WANTED as u64).contains(&qty) {
        return Err(Problem::invalid(format!("qty of best is from 1 to {MOST_WANTED}")));
    }
    Ok(Want::Best { qty: u32::try_from(qty).unwrap_or(u32::MAX), section, adjacent })
}

fn areas(fields: &mut Fields, name: &'static str) -> Result<Option<Vec<(String, u32)>>, Problem> {
    let areas = match fields.take(name) {
        None => return Ok(None),
        Some(Value::Array(areas)) => areas,
        Some(_) => return Err(Problem::invalid(format!("{name} is a list of objects with id and qty"))),
    };
    let one = |area: Value| {
        let Value::Object(area) = area else { return Err(Problem::invalid("an area is an object with id and qty")) };
        let mut fields = Fields::of("an area", area);
        let id = fields.text("id")?.ok_or_else(|| missing("id of an area"))?;
        let qty = fields.number("qty", "")?.ok_or_else(|| missing("qty of an area"))?;
        fields.done()?;
        match u32::try_from(qty) {
            Ok(qty) if qty > 0 => Ok((id, qty)),
            _ => Err(Problem::invalid("qty of an area is at least 1, and not too big")),
        }
    };
    areas.into_iter().map(one).collect::<Result<_, _>>().map(Some)
}

/// A conflict names each seat lost, and what could be had instead with its price. From memory: who loses never gets to the
/// ledger, or a crowd of losers would keep everybody from it.
fn with_alternative(desk: &Desk, event: &EventId, error: Error) -> Problem {
    let seats = match error.refusal() {
        Some(Refusal::Conflict { alternative: Some(seats), .. }) => seats.clone(),
        _ => return no(error),
    };
    let Some(total) = desk.office().total(event, &seats) else { return no(error) };
    no(error).and("alternative", json!({"seats": seats, "total": total}))
}

/// The hold that the path names, and what opens it.
fn shown(call: &Call) -> Result<(HoldId, Access), Problem> {
    Ok((hold_id(call)?, key_shown(call)?))
}

/// What opens a hold.
pub(super) fn key_shown(call: &Call) -> Result<Access, Problem> {
    let key = super::header(call, "leasehold-hold-key", "Leasehold-Hold-Key")?;
    let missing = || Problem::forbidden("every call on a hold shows its key, in the header Leasehold-Hold-Key");
    Ok(Access::key(key.ok_or_else(missing)?))
}

/// Whether it is theirs, beside the key: a ticket and a key with prefixes open only some.
pub(super) async fn opened(desk: &Desk, (hold, access): (HoldId, Access)) -> Result<(HoldId, Access), Problem> {
    if desk.caller.ticket.is_some() || !desk.caller.principal.prefixes.is_empty() {
        let view = desk.office().hold_view(&hold, access.clone()).await.map_err(closed(desk))?;
        check(desk, &view)?;
    }
    Ok((hold, access))
}

/// What is said to who did not get to a hold. Whoever shows keys that open nothing, again and again, is guessing.
pub(super) fn closed(desk: &Desk) -> impl Fn(Error) -> Problem {
    move |error| {
        let unknown = matches!(error.refusal(), Some(Refusal::NoHold(_)));
        if unknown && !desk.service.may_guess(&desk.caller) {
            let slow = Denial::Slow("too many holds and keys that do not fit: slow down".into());
            return Problem::told(&slow, &desk.service, &desk.caller);
        }
        no(error)
    }
}

/// Whoever has the key of a hold but a ticket for somebody else does not get to it.
fn check(desk: &Desk, view: &HoldView) -> Result<(), Problem> {
    let row = &view.hold;
    let theirs = desk.caller.sees_event(&row.event_id.0) && desk.caller.acts_for(&row.buyer.0);
    if theirs { Ok(()) } else { Err(refused(Refusal::NoHold(row.hold_id.clone()))) }
}

/// `GET /v1/holds/{h}`
pub async fn show(call: Call) -> Result<Response<Body>, Problem> {
    let desk = Desk::admit(&call, Verb::Buy)?;
    call.query([])?;
    let (hold, access) = opened(&desk, shown(&call)?).await?;
    let view = desk.office().hold_view(&hold, access).await.map_err(closed(&desk))?;
    Ok(answer(StatusCode::OK, &shape::hold(&view)))
}

/// `POST /v1/holds/{h}/renew`
pub async fn renew(mut call: Call) -> Result<Response<Body>, Problem> {
    let desk = Desk::admit(&call, Verb::Buy)?;
    call.query([])?;
    let body = call.bytes_or_none().await?;
    Fields::parse(&body)?.done()?;
    let (hold, access) = opened(&desk, shown(&call)?).await?;
    let made = desk.call(&call, &body)?;
    let view = desk.office().renew(made, &hold, access).await.map_err(closed(&desk))?;
    Ok(answer(StatusCode::OK, &shape::hold(&view)))
}

/// `POST /v1/holds/{h}/release`
pub async fn release(mut call: Call) -> Result<Response<Body>, Problem> {
    let desk = Desk::admit(&call, Verb::Buy)?;
    call.query([])?;
    let body = call.bytes_or_none().await?;
    Fields::parse(&body)?.done()?;
    let (hold, access) = opened(&desk, shown(&call)?).await?;
    let made = desk.call(&call, &body)?;
    let view = desk.office().release(made, &hold, access).await.map_err(closed(&desk))?;
    Ok(answer(StatusCode::OK, &shape::hold(&view)))
}

/// `POST /v1/holds/{h}/seats`
pub async fn change(mut call: Call) -> Result<Response<Body>, Problem> {
    let desk = Desk::admit(&call, Verb::Buy)?;
    call.query([])?;
    let body = call.bytes(call.app.config.body_bytes, &["application/json"]).await?;
    let mut fields = Fields::parse(&body)?;
    let change = Change {
        add: fields.texts("add")?.unwrap_or_default(),
        remove: fields.texts("remove")?.unwrap_or_default(),
        add_areas: areas(&mut fields, "add_areas")?.unwrap_or_default(),
        remove_areas: fields.texts("remove_areas")?.unwrap_or_default(),
    };
    fields.done()?;
    within(change.add.len() + change.remove.len() + change.add_areas.len() + change.remove_areas.len())?;
    let (hold, access) = opened(&desk, shown(&call)?).await?;
    let made = desk.call(&call, &body)?;
    match desk.office().change(made, &hold, access.clone(), change).await {
        // What was stored is the hold before its leases were put together: show it as it stands.
        Ok(view) if view.replayed => {
            let view = desk.office().hold_view(&hold, access).await.map_err(no)?;
            Ok(answer(StatusCode::OK, &shape::hold(&view)))
        }
        Ok(view) => Ok(answer(StatusCode::OK, &shape::hold(&view))),
        Err(error) => {
            let known = desk.office().hold_view(&hold, access).await;
            match known {
                Ok(view) => Err(with_alternative(&desk, &view.hold.event_id, error)),
                Err(_) => Err(closed(&desk)(error)),
            }
        }
    }
}

/// `POST /v1/holds/{h}/pay`
pub async fn pay(mut call: Call) -> Result<Response<Body>, Problem> {
    let desk = Desk::admit(&call, Verb::Buy)?;
    call.query([])?;
    let body = call.bytes(call.app.config.body_bytes, &["application/json"]).await?;
    let payment = payment_ref(Fields::parse(&body)?)?;
    let (hold, access) = opened(&desk, shown(&call)?).await?;
    let made = desk.call(&call, &body)?;
    let view = desk.office().pay(made, &hold, access, &payment).await.map_err(closed(&desk))?;
    Ok(answer(StatusCode::OK, &shape::hold(&view)))
}

/// `POST /v1/holds/{h}/confirm`
pub async fn confirm(mut call: Call) -> Result<Response<Body>, Problem> {
    let desk = Desk::admit(&call, Verb::Buy)?;
    call.query([])?;
    let body = call.bytes(call.app.config.body_bytes, &["application/json"]).await?;
    let payment = payment_ref(Fields::parse(&body)?)?;
    let (hold, access) = opened(&desk, shown(&call)?).await?;
    if desk.caller.ticket.is_some() {
        paid_for(&desk, &hold, access.clone(), &payment).await?;
    }
    let made = desk.call(&call, &body)?;
    let order = desk.office().confirm(made, &hold, access, &payment).await.map_err(closed(&desk))?;
    let mut response = answer(StatusCode::CREATED, &shape::order(&order));
    if let Ok(place) = HeaderValue::from_str(&format!("/v1/orders/{}", order.order_id)) {
        response.headers_mut().insert(header::LOCATION, place);
    }
    Ok(response)
}

/// A buyer's word is no money: with a ticket only that is confirmed which costs nothing, is sold already, or has money
/// that the provider told of. Else a ticket would be all it takes to have seats for nothing.
async fn paid_for(desk: &Desk, hold: &HoldId, access: Access, payment: &str) -> Result<(), Problem> {
    let row = desk.office().hold_view(hold, access).await.map_err(no)?.hold;
    if row.total() == 0 || row.state == HoldState::Sold {
        return Ok(());
    }
    let money = desk.office().ledger().money(payment).await.map_err(no)?;
    if money.is_some_and(|money| money.hold_id == *hold || money.offer.as_ref() == Some(hold)) {
        return Ok(());
    }
    let detail = "no payment has come for this hold: its seats are sold when the payment provider says so";
    Err(Problem::coded(StatusCode::FORBIDDEN, "not_paid", detail))
}

fn payment_ref(mut fields: Fields) -> Result<String, Problem> {
    let payment = fields.text("payment_ref")?.ok_or_else(|| missing("payment_ref"))?;
    fields.done()?;
    if !leasehold_boxoffice::model::ids::well_formed(&payment) {
        return Err(Problem::invalid("payment_ref is 1 to 128 bytes without control characters"));
    }
    Ok(payment)
}
