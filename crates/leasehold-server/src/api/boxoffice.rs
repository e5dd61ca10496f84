//! The JSON of the box office.

use std::collections::HashMap;

use leasehold_boxoffice::layout::Layout;
use leasehold_boxoffice::model::{
    AreaNow, Entry, EventRow, HeldArea, HeldSeat, HoldState, MoneyRow, OrderRow, RecordedStep, Resolution, SeatNow,
    SeatState, SoldArea, SoldSeat,
};
use leasehold_boxoffice::office::{Availability, BuyersMoney, HoldView, StaffHold};
use leasehold_boxoffice::pick::SeatIndex;
use serde_json::{Map, Value, json};

use leasehold_support::time::rfc3339_at;

/// An event, as every caller sees it.
pub fn event_json(row: &EventRow) -> Value {
    let settings = &row.settings;
    json!({
        "event_id": row.event_id,
        "name": settings.name,
        "currency": settings.currency,
        "ttl_ms": settings.ttl_ms,
        "max_hold_ms": settings.max_hold_ms,
        "pay_ms": settings.pay_ms,
        "per_buyer": settings.per_buyer,
        "on_sale": settings.on_sale,
        "orphan_rule": settings.orphan_rule,
        "rehearsal": settings.rehearsal,
        "frozen": row.frozen,
        "layout_version": row.layout_version,
        "seats": row.seats,
    })
}

/// A row: its id and its seats.
type MapRow = (String, Vec<Value>);

/// The seat map: sections, rows and seats in order, and areas.
pub fn seat_map_json(row: &EventRow, layout: &Layout) -> Value {
    let index = SeatIndex::new(layout);
    let mut sections: Vec<(String, Vec<MapRow>)> = Vec::new();
    for seat in index.seats() {
        if sections.last().is_none_or(|(id, _)| *id != seat.section) {
            sections.push((seat.section.clone(), Vec::new()));
        }
        let Some((_, rows)) = sections.last_mut() else { continue };
        if rows.last().is_none_or(|(id, _)| *id != seat.row) {
            rows.push((seat.row.clone(), Vec::new()));
        }
        let Some((_, seats)) = rows.last_mut() else { continue };
        seats.push(json!({"id": seat.id, "number": seat.number, "price": seat.price}));
    }
    let rows = |rows: Vec<MapRow>| -> Vec<Value> {
        rows.into_iter().map(|(id, seats)| json!({"id": id, "seats": seats})).collect()
    };
    let sections: Vec<Value> =
        sections.into_iter().map(|(id, inside)| json!({"id": id, "rows": rows(inside)})).collect();
    json!({
        "event_id": row.event_id,
        "name": row.settings.name,
        "currency": row.settings.currency,
        "sections": sections,
        "areas": layout.areas,
    })
}

/// The state of every seat, or of those in `only`, as text: an event has many seats, and many clients ask.
pub fn availability_json(
    now: &Availability,
    layout: &Layout,
    only: Option<&[String]>,
    detail: Option<&[StaffHold]>,
) -> String {
    let known: HashMap<&str, &SeatNow> = now.seats.iter().map(|seat| (seat.id.as_str(), seat)).collect();
    let holds: HashMap<&str, &StaffHold> =
        detail.unwrap_or_default().iter().map(|hold| (hold.hold.hold_id.as_str(), hold)).collect();
    let mut text = format!("{{\"seq\":{},\"seats\":[", now.seq);
    let mut first = true;
    let mut one = |id: &str| {
        let seat = known.get(id).copied();
        if !std::mem::take(&mut first) {
            text.push(',');
        }
        if detail.is_some() {
            let hold = seat.and_then(|seat| holds.get(seat.hold_id.as_ref()?.as_str()));
            text.push_str(&staff_seat_json(id, seat, hold.copied()).to_string());
        } else {
            let state = seat.map_or(SeatState::Free, |seat| seat.state);
            text.push_str(&format!("{{\"id\":{},\"state\":\"{}\"}}", json!(id), seat_state_word(state)));
        }
    };
    match only {
        Some(ids) => ids.iter().for_each(|id| one(id)),
        None => layout.seats.iter().for_each(|seat| one(&seat.id)),
    }
    let area = |area: &AreaNow| {
        json!({"id": area.id, "free": area.free(), "capacity": area.capacity, "held": area.held,
               "paying": area.paying, "sold": area.sold, "blocked": area.blocked})
    };
    let areas: Vec<Value> = now.areas.iter().map(area).collect();
    text.push_str(&format!("],\"areas\":{},\"totals\":{}}}", json!(areas), json!(now.totals)));
    text
}

const fn seat_state_word(state: SeatState) -> &'static str {
    match state {
        SeatState::Free => "free",
        SeatState::Held => "held",
        SeatState::Paying => "paying",
        SeatState::Sold => "sold",
        SeatState::Blocked => "blocked",
    }
}

fn staff_seat_json(id: &str, seat: Option<&SeatNow>, hold: Option<&StaffHold>) -> Value {
    let mut shown = json!({"id": id, "state": seat.map_or(SeatState::Free, |seat| seat.state)});
    if let Some(seat) = seat {
        merge_fields(&mut shown, &staff_seat_fields(seat, hold));
    }
    shown
}

/// What staff sees of a seat beside its state.
fn staff_seat_fields(seat: &SeatNow, hold: Option<&StaffHold>) -> Value {
    let mut shown = Map::new();
    if let Some(hold) = hold {
        shown.insert("hold_id".into(), json!(hold.hold.hold_id));
        shown.insert("buyer".into(), json!(hold.hold.buyer));
        shown.insert("age_ms".into(), json!(hold.age_ms));
        shown.insert("renewals".into(), json!(hold.hold.renewals));
        shown.insert("remaining_ms".into(), json!(hold.remaining_ms));
    }
    if let Some(order) = &seat.order_id {
        shown.insert("order_id".into(), json!(order));
    }
    if let Some(reason) = &seat.reason {
        shown.insert("reason".into(), json!(reason));
    }
    Value::Object(shown)
}

fn merge_fields(into: &mut Value, more: &Value) {
    if let (Some(into), Some(more)) = (into.as_object_mut(), more.as_object()) {
        into.extend(more.clone());
    }
}

fn held_seat_json(seat: &HeldSeat) -> Value {
    json!({"id": seat.id, "token": seat.token.to_string(), "price": seat.price})
}

fn held_area_json(area: &HeldArea) -> Value {
    json!({"id": area.id, "qty": area.qty, "token": area.token.to_string(), "price": area.price})
}

/// A hold, as its buyer sees it. The key is present only where it was just created.
pub fn hold_json(view: &HoldView) -> Value {
    let row = &view.hold;
    let mut shown = json!({
        "hold_id": row.hold_id,
        "event_id": row.event_id,
        "buyer": row.buyer,
        "state": row.state,
        "seats": row.seats.iter().map(held_seat_json).collect::<Vec<_>>(),
        "areas": row.areas.iter().map(held_area_json).collect::<Vec<_>>(),
        "remaining_ms": view.remaining_ms,
        "renewable_ms": view.renewable_ms,
        "total": view.total,
        "renewals": row.renewals,
    });
    let mut more = Map::new();
    if let Some(key) = &view.key {
        more.insert("hold_key".into(), json!(key.expose()));
    }
    if let Some(payment) = &row.payment_ref {
        more.insert("payment".into(), json!({"payment_ref": payment}));
        if row.state == HoldState::Paying {
            more.insert("payment_ref".into(), json!(payment));
        }
    }
    if let Some(url) = row.pay_url.as_ref().filter(|_| row.state == HoldState::Paying) {
        more.insert("pay_url".into(), json!(url));
    }
    if let Some(order) = &view.order_id {
        more.insert("order_id".into(), json!(order));
    }
    if let Some(found) = &view.resolution {
        more.insert("resolution".into(), resolution_json(found));
    }
    if !view.money.is_empty() {
        more.insert("money".into(), view.money.iter().map(buyers_money_json).collect());
    }
    if let Some(why) = &row.ended_why {
        more.insert("ended_why".into(), json!(why));
    }
    merge_fields(&mut shown, &Value::Object(more));
    shown
}

/// The state of late money.
pub fn resolution_json(found: &Resolution) -> Value {
    let mut shown = json!({"state": found.state, "steps": steps_json(&found.steps)});
    if let Some(offer) = &found.offer {
        merge_fields(&mut shown, &json!({"offer": offer, "seats": found.seats}));
    }
    shown
}

fn buyers_money_json(money: &BuyersMoney) -> Value {
    let mut shown = resolution_json(&money.resolution);
    merge_fields(&mut shown, &json!({"amount": money.amount}));
    if let Some(payment) = &money.payment_ref {
        merge_fields(&mut shown, &json!({"payment_ref": payment}));
    }
    shown
}

fn steps_json(steps: &[RecordedStep]) -> Vec<Value> {
    steps.iter().map(|step| json!({"state": step.state, "note": step.note})).collect()
}

/// A hold, as staff sees it.
pub fn staff_hold_json(hold: &StaffHold, waited_ms: u64) -> Value {
    let row = &hold.hold;
    json!({
        "hold_id": row.hold_id,
        "buyer": row.buyer,
        "state": row.state,
        "seats": row.seats.iter().map(|seat| &seat.id).collect::<Vec<_>>(),
        "payment_ref": row.payment_ref,
        "total": row.total(),
        "age_ms": hold.age_ms,
        "waited_ms": waited_ms,
        "remaining_ms": hold.remaining_ms,
        "renewals": row.renewals,
    })
}

/// Late, surplus or due money, as staff sees it.
pub fn money_json(row: &MoneyRow) -> Value {
    json!({
        "refund_id": row.refund_id(),
        "payment_ref": row.payment_ref,
        "hold_id": row.hold_id,
        "order_id": row.order_id,
        "buyer": row.buyer,
        "amount": row.amount,
        "state": row.state,
        "offer": row.offer,
        "steps": steps_json(&row.steps),
    })
}

/// An order.
pub fn order_json(row: &OrderRow) -> Value {
    let seat = |seat: &SoldSeat| json!({"id": seat.id, "token": seat.token.to_string(), "price": seat.price});
    let area =
        |area: &SoldArea| json!({"id": area.id, "qty": area.qty, "token": area.token.to_string(), "price": area.price});
    json!({
        "order_id": row.order_id,
        "hold_id": row.hold_id,
        "event_id": row.event_id,
        "buyer": row.buyer,
        "payment_ref": row.payment_ref,
        "seats": row.seats.iter().map(seat).collect::<Vec<_>>(),
        "areas": row.areas.iter().map(area).collect::<Vec<_>>(),
        "total": row.total,
        "state": row.state,
        "late": row.late,
        "paid": row.came(),
        "refunded": row.back,
        "owed": row.owed(),
        "sold_for": row.sold_for,
        "source": row.sources.first().map(|source| source.by),
        "capture": row.capture.as_ref().map(|capture| json!({"state": capture.state, "amount": capture.amount})),
    })
}

/// An entry, as everybody may see it: without the actor.
pub fn entry_json(entry: &Entry) -> Value {
    let seats: Vec<Value> = entry.seats.iter().map(|seat| json!({"id": seat.id, "state": seat.state})).collect();
    let mut shown = json!({
        "seq": entry.seq,
        "at": rfc3339_at(entry.wall_ms),
        "kind": entry.kind,
        "seats": seats,
        "areas": entry.areas,
    });
    if let Some(hold) = &entry.hold_id {
        merge_fields(&mut shown, &json!({"hold_id": hold}));
    }
    if let Some(order) = &entry.order_id {
        merge_fields(&mut shown, &json!({"order_id": order}));
    }
    shown
}

/// An entry for staff and webhooks: all fields.
pub fn staff_entry_json(entry: &Entry) -> Value {
    let seats: Vec<Value> = entry
        .seats
        .iter()
        .map(|seat| {
            let mut shown = json!({"id": seat.id, "state": seat.state});
            if let Some(token) = seat.token {
                merge_fields(&mut shown, &json!({"token": token.to_string()}));
            }
            shown
        })
        .collect();
    let mut shown = entry_json(entry);
    merge_fields(&mut shown, &json!({"event_id": entry.event_id, "actor": entry.actor, "seats": seats}));
    let more = [
        ("buyer", json!(entry.buyer)),
        ("reason", json!(entry.reason)),
        ("payment_ref", json!(entry.payment_ref)),
        ("amount", json!(entry.amount)),
        ("paid", json!(entry.paid)),
        ("source", json!(entry.source)),
    ];
    for (name, value) in more.into_iter().filter(|(_, value)| !value.is_null()) {
        merge_fields(&mut shown, &json!({name: value}));
    }
    shown
}
