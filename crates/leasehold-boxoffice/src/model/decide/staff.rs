//! What staff decides: events, blocks, forced releases, voids and moves.

use std::collections::BTreeMap;

use super::*;
use crate::model::command::{
    Amended, Blocks, Configure, ForceRelease, Freeze, MoveOrder, NewEvent, ReplaceLayout, SetBlocks, Void,
};
use crate::model::order::{OrderRow, OrderState, SoldSeat};

/// What [`create_event`] must know.
#[must_use]
pub fn need_create_event(command: &NewEvent) -> Need {
    Need { event: Some(command.event_id.clone()), ..Need::default() }
}

/// A new event with its layout.
///
/// # Errors
///
/// There is one of this id.
pub fn create_event(command: &NewEvent, facts: &Facts, actor: &str, now: Moment) -> Decision<EventRow> {
    if facts.event.is_some() {
        return Err(Refusal::Exists(format!("event {}", command.event_id)));
    }
    let row = EventRow {
        event_id: command.event_id.clone(),
        settings: command.settings.clone(),
        frozen: false,
        layout_version: 1,
        created_at: now,
        seats: command.layout.seats.len() as u64,
        most_per_buyer: command.settings.per_buyer,
    };
    let writes = vec![
        LedgerWrite::Event(Box::new(row.clone())),
        LedgerWrite::Layout(row.event_id.clone(), Box::new(command.layout.clone())),
        entry_write(new_entry(&row.event_id, EntryKind::EventCreated, actor, now)),
    ];
    Ok((writes, row))
}

/// What [`configure`] must know.
#[must_use]
pub fn need_configure(command: &Configure) -> Need {
    Need { event: Some(command.event_id.clone()), ..Need::default() }
}

/// Other rules, from now on.
///
/// # Errors
///
/// There is no such event, or somebody else changed it since it was seen.
pub fn configure(command: &Configure, facts: &Facts, actor: &str, now: Moment) -> Decision<EventRow> {
    let event = require_event(facts, &command.event_id)?;
    if command.seen.is_some_and(|seen| seen != event.layout_version) {
        return Err(Refusal::Changed);
    }
    // Whoever took a lease by the old rules is sent back for one that is long enough.
    let most_per_buyer = event.most_per_buyer.max(event.settings.per_buyer).max(command.settings.per_buyer);
    let layout_version = event.layout_version + 1;
    let row = EventRow { settings: command.settings.clone(), layout_version, most_per_buyer, ..event };
    let entry = entry_write(new_entry(&row.event_id, EntryKind::EventChanged, actor, now));
    Ok((vec![LedgerWrite::Event(Box::new(row.clone())), entry], row))
}

/// What [`replace_layout`] must know.
#[must_use]
pub fn need_replace_layout(command: &ReplaceLayout) -> Need {
    Need { event: Some(command.event_id.clone()), layout: true, ..Need::default() }
}

/// Another layout, that has all that is held, sold or blocked.
///
/// # Errors
///
/// Something in use is not in it, or an area is too small.
pub fn replace_layout(command: &ReplaceLayout, facts: &Facts, actor: &str, now: Moment) -> Decision<EventRow> {
    let event = require_event(facts, &command.event_id)?;
    let layout = &command.layout;
    let known: std::collections::HashSet<&str> = layout.seats.iter().map(|seat| seat.id.as_str()).collect();
    let seats = facts.in_use.iter().filter(|id| !known.contains(id.as_str()));
    let mut conflicts: Vec<Conflict> = seats.map(|id| Conflict::seat(id, Reason::Taken)).collect();
    for area in &facts.areas {
        let capacity = layout.areas.iter().find(|new| new.id == area.id).map_or(0, |new| new.capacity);
        let used = area.held.saturating_add(area.sold).saturating_add(area.blocked);
        conflicts.extend((used > capacity).then(|| Conflict::area(&area.id, Reason::Taken)));
    }
    if !conflicts.is_empty() {
        return Err(Refusal::Conflict { conflicts, alternative: None });
    }
    if command.dry_run {
        return Ok((Vec::new(), event));
    }
    let row = EventRow { layout_version: event.layout_version + 1, seats: layout.seats.len() as u64, ..event };
    let writes = vec![
        LedgerWrite::Event(Box::new(row.clone())),
        LedgerWrite::Layout(row.event_id.clone(), Box::new(layout.clone())),
        entry_write(new_entry(&row.event_id, EntryKind::LayoutChanged, actor, now)),
    ];
    Ok((writes, row))
}

/// What [`freeze`] must know.
#[must_use]
pub fn need_freeze(command: &Freeze) -> Need {
    Need { event: Some(command.event_id.clone()), ..Need::default() }
}

/// Stops or resumes sales. What is held may still be paid.
///
/// # Errors
///
/// There is no such event.
pub fn freeze(command: &Freeze, facts: &Facts, actor: &str, now: Moment) -> Decision<EventRow> {
    let event = require_event(facts, &command.event_id)?;
    if event.frozen == command.frozen {
        return Ok((Vec::new(), event));
    }
    let row = EventRow { frozen: command.frozen, ..event };
    let kind = if command.frozen { EntryKind::Frozen } else { EntryKind::Unfrozen };
    let entry = Entry { reason: Some(command.reason.clone()), ..new_entry(&row.event_id, kind, actor, now) };
    Ok((vec![LedgerWrite::Event(Box::new(row.clone())), entry_write(entry)], row))
}

/// What [`set_blocks`] must know.
#[must_use]
pub fn need_set_blocks(command: &SetBlocks) -> Need {
    let mut seats: Vec<String> = command.block.iter().chain(&command.unblock).cloned().collect();
    seats.sort();
    seats.dedup();
    Need {
        event: Some(command.event_id.clone()),
        seats,
        areas: command.areas.iter().map(|(id, _)| id.clone()).collect(),
        areas_more: command.areas.clone(),
        ..Need::default()
    }
}

/// Blocks free seats and unblocks blocked ones; what is so already stays so.
///
/// # Errors
///
/// A seat to block is held or sold, or an area has not so many places left.
pub fn set_blocks(command: &SetBlocks, facts: &Facts, actor: &str, now: Moment) -> Decision<Blocks> {
    let event = require_event(facts, &command.event_id)?;
    let blocked = |id: &&String| facts.seat(id).is_some_and(|seat| seat.blocked.is_some());
    let mut fresh: Vec<String> = command.block.iter().filter(|id| !blocked(id)).cloned().collect();
    let mut freed: Vec<String> = command.unblock.iter().filter(blocked).cloned().collect();
    fresh.sort();
    fresh.dedup();
    freed.sort();
    freed.dedup();
    if let Some(both) = command.block.iter().find(|id| command.unblock.contains(id)) {
        return Err(Refusal::Exists(format!("{both} both to block and to unblock")));
    }
    let mut areas: Vec<(&str, i64)> = Vec::new();
    for (id, qty) in &command.areas {
        if areas.iter().any(|(named, _)| *named == id.as_str()) {
            return Err(Refusal::Exists(format!("{id} in this request")));
        }
        let area = facts.area(id).ok_or_else(|| Refusal::NoSeat(id.clone()))?;
        areas.push((id, i64::from(*qty) - i64::from(area.blocked)));
    }
    let more = areas.iter().filter(|(_, delta)| *delta > 0);
    let asked = RequestedItems {
        event: &event.event_id,
        seats: fresh.iter().map(String::as_str).collect(),
        areas: more.map(|(id, delta)| (*id, u32::try_from(*delta).unwrap_or(u32::MAX))).collect(),
        // The house has no lease: whatever is over gives way.
        token: u64::MAX,
        buyer: None,
        except: None,
    };
    let room = RoomCheck::check(&asked, facts, actor, now).or_conflict()?;
    let mut writes = room.writes;
    let entry = |kind, seats: &[String], state| {
        let change = |id: &String| SeatChange { id: id.clone(), state, token: None };
        Entry {
            seats: seats.iter().map(change).collect(),
            reason: Some(command.reason.clone()),
            ..new_entry(&event.event_id, kind, actor, now)
        }
    };
    let event_id = &event.event_id;
    let mut block = entry(EntryKind::Blocked, &fresh, SeatState::Blocked);
    if !fresh.is_empty() {
        let (event_id, reason) = (event_id.clone(), command.reason.clone());
        writes.push(LedgerWrite::Block { event_id, seats: fresh.clone(), reason });
    }
    for (id, delta) in areas.iter().filter(|(_, delta)| *delta != 0) {
        writes.push(area_delta(event_id, id, 0, 0, *delta));
        block.areas.push(area_free(id, *delta));
    }
    if !block.seats.is_empty() || !block.areas.is_empty() {
        writes.push(entry_write(block));
    }
    if !freed.is_empty() {
        writes.push(LedgerWrite::Unblock { event_id: event_id.clone(), seats: freed.clone() });
        writes.push(entry_write(entry(EntryKind::Unblocked, &freed, SeatState::Free)));
    }
    Ok((writes, Blocks { blocked: fresh, unblocked: freed }))
}

/// What [`force_release`] must know.
#[must_use]
pub fn need_force_release(command: &ForceRelease) -> Need {
    let (event, hold) = (Some(command.event_id.clone()), Some(HoldId(command.seat.clone())));
    Need { event, hold, seats: vec![command.seat.clone()], ..Need::default() }
}

/// Ends the hold on a seat, or the hold of this id, paying or not, with all that it has.
///
/// # Errors
///
/// Nobody holds it.
pub fn force_release(command: &ForceRelease, facts: &Facts, actor: &str, now: Moment) -> Decision<HoldRow> {
    require_event(facts, &command.event_id)?;
    let held = facts.seat(&command.seat).and_then(|seat| seat.held.as_ref());
    let named = facts.hold.as_ref().filter(|hold| hold.event_id == command.event_id);
    let held = held.and_then(|(under, _)| facts.row(under)).or(named);
    let Some(hold) = held.filter(|hold| hold.is_live(now)) else {
        return Err(Refusal::NotHeld(command.seat.clone()));
    };
    let (mut writes, row) = end_hold(hold, HoldState::Released, Some(&command.reason), Lapses::Keep, now);
    let entry = hold_entry(&row, EntryKind::ForceReleased, SeatState::Free, actor, now);
    writes.push(entry_write(Entry { reason: Some(command.reason.clone()), ..entry }));
    Ok((writes, row))
}

/// What [`void`] must know.
#[must_use]
pub fn need_void(command: &Void) -> Need {
    Need { order: Some(command.order_id.clone()), ..Need::default() }
}

/// Takes an order back, or some of its seats: they are free again, and what was paid for them is due.
///
/// # Errors
///
/// There is no such order, or it does not have these seats.
pub fn void(command: &Void, facts: &Facts, actor: &str, now: Moment) -> Decision<Amended> {
    let order = the_order(facts, &command.order_id)?;
    if order.state == OrderState::Voided && command.seats.is_none() {
        return Ok((Vec::new(), Amended { order, owed: 0 }));
    }
    let whole = command.seats.is_none();
    let mut going: Vec<SoldSeat> = Vec::new();
    match &command.seats {
        None => going.clone_from(&order.seats),
        Some(ids) => {
            for id in ids {
                let seat = order.seats.iter().find(|seat| seat.id == *id).ok_or_else(|| Refusal::NoSeat(id.clone()))?;
                if !going.contains(seat) {
                    going.push(seat.clone());
                }
            }
        }
    }
    let areas = if whole { order.areas.clone() } else { Vec::new() };
    let mut row = order.clone();
    row.seats.retain(|seat| !going.contains(seat));
    row.areas.retain(|area| !areas.contains(area));
    row.total = row.sum();
    if row.seats.is_empty() && row.areas.is_empty() {
        row.state = OrderState::Voided;
    }
    let (owed, back) = settle_difference(&mut row, &order, &command.reason, actor, now);
    let mut writes = vec![LedgerWrite::Order(Box::new(row.clone()))];
    writes.extend(unsell_write(&order, going.iter().map(|seat| seat.id.clone()).collect()));
    writes.extend(areas.iter().map(|area| area_delta(&order.event_id, &area.id, 0, -i64::from(area.qty), 0)));
    let places: i64 = areas.iter().map(|area| i64::from(area.qty)).sum();
    let (event_id, buyer) = (order.event_id.clone(), order.buyer.clone());
    let sold = -(going.len() as i64) - places;
    writes.push(LedgerWrite::Buyer { event_id, buyer, held: 0, sold, lapses: Lapses::Keep });
    let free = |seat: &SoldSeat| SeatChange { id: seat.id.clone(), state: SeatState::Free, token: None };
    writes.push(entry_write(Entry {
        seats: going.iter().map(free).collect(),
        areas: areas.iter().map(|area| area_free(&area.id, -i64::from(area.qty))).collect(),
        amount: Some(order.total - row.total),
        ..order_entry(&order, EntryKind::Voided, &command.reason, actor, now)
    }));
    writes.extend(back);
    Ok((writes, Amended { order: row, owed }))
}

/// What an order that was changed owes: said, and written down to go back.
fn settle_difference(
    row: &mut OrderRow,
    before: &OrderRow,
    reason: &str,
    actor: &str,
    now: Moment,
) -> (i64, Vec<LedgerWrite>) {
    row.paid = Some(before.came());
    let owed = row.owed();
    (owed, overpaid_writes(row, reason, actor, now))
}

fn the_order(facts: &Facts, id: &crate::model::OrderId) -> Result<OrderRow, Refusal> {
    facts.order.clone().ok_or_else(|| Refusal::NoOrder(id.clone()))
}

fn unsell_write(order: &OrderRow, mut seats: Vec<String>) -> Option<LedgerWrite> {
    seats.sort();
    let (event_id, order_id) = (order.event_id.clone(), order.order_id.clone());
    (!seats.is_empty()).then_some(LedgerWrite::Unsell { event_id, order_id, seats })
}

fn order_entry(order: &OrderRow, kind: EntryKind, reason: &str, actor: &str, now: Moment) -> Entry {
    Entry {
        buyer: Some(order.buyer.clone()),
        hold_id: Some(order.hold_id.clone()),
        order_id: Some(order.order_id.clone()),
        payment_ref: Some(order.payment_ref.clone()),
        reason: Some(reason.into()),
        ..new_entry(&order.event_id, kind, actor, now)
    }
}

/// What [`move_order`] must know.
#[must_use]
pub fn need_move_order(command: &MoveOrder) -> Need {
    let mut seats: Vec<String> = command.moves.iter().map(|(_, to)| to.id.clone()).collect();
    seats.sort();
    seats.dedup();
    Need { order: Some(command.order_id.clone()), seats, ..Need::default() }
}

/// Moves sold seats of an order to free ones, each with the token of the lease that was taken on them. What they cost
/// less is due; what they cost more is said, and stays owed by the buyer.
///
/// # Errors
///
/// A new seat is lost, or the order does not have an old one.
pub fn move_order(command: &MoveOrder, facts: &Facts, actor: &str, now: Moment) -> Decision<Amended> {
    let order = the_order(facts, &command.order_id)?;
    let event = require_event(facts, &order.event_id)?;
    if event.layout_version != command.layout_version {
        return Err(Refusal::LayoutChanged);
    }
    let asked = RequestedItems {
        event: &order.event_id,
        seats: command.moves.iter().map(|(_, to)| to.id.as_str()).collect(),
        areas: Vec::new(),
        token: command.token,
        buyer: None,
        except: None,
    };
    let room = RoomCheck::check(&asked, facts, actor, now).or_conflict()?;
    let to: BTreeMap<&str, &crate::model::Priced> =
        command.moves.iter().map(|(from, to)| (from.as_str(), to)).collect();
    let mut row = order.clone();
    let mut sold = Vec::new();
    for from in to.keys() {
        let seat = row.seats.iter_mut().find(|seat| seat.id == **from);
        let seat = seat.ok_or_else(|| Refusal::NoSeat((*from).into()))?;
        *seat = SoldSeat { id: to[from].id.clone(), token: command.token, price: to[from].price };
        sold.push(seat.clone());
    }
    sold.sort_by(|a, b| a.id.cmp(&b.id));
    row.seats.sort_by(|a, b| a.id.cmp(&b.id));
    row.total = row.sum();
    let (owed, back) = settle_difference(&mut row, &order, &command.reason, actor, now);
    let mut writes = room.writes;
    let tokens = sold.iter().map(|seat| (seat.id.clone(), seat.token)).collect();
    writes.extend(remember_tokens(&order.event_id, &order.hold_id, tokens));
    writes.extend(unsell_write(&order, to.keys().map(|from| (*from).into()).collect()));
    let (event_id, order_id) = (order.event_id.clone(), order.order_id.clone());
    writes.push(LedgerWrite::Sell { event_id, order_id, seats: sold.clone() });
    writes.push(LedgerWrite::Order(Box::new(row.clone())));
    let free = to.keys().map(|id| SeatChange { id: (*id).into(), state: SeatState::Free, token: None });
    let taken =
        sold.iter().map(|seat| SeatChange { id: seat.id.clone(), state: SeatState::Sold, token: Some(seat.token) });
    writes.push(entry_write(Entry {
        seats: free.chain(taken).collect(),
        amount: Some(row.total),
        ..order_entry(&order, EntryKind::Moved, &command.reason, actor, now)
    }));
    writes.extend(back);
    Ok((writes, Amended { order: row, owed }))
}
