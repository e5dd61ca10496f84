//! Opening, renewing, changing and ending holds.

use super::*;
use crate::model::command::{ChangeSeats, OpenHold, OpenedHold, ReleaseHold, RenewHold, ReplaceLease, Swept};
use crate::model::hold::{HeldArea, HeldSeat};

/// What [`open_hold`] must know.
#[must_use]
pub fn need_open_hold(command: &OpenHold) -> Need {
    let asked = items_of(command);
    Need {
        event: Some(command.event_id.clone()),
        seats: command.seats.iter().map(|seat| seat.id.clone()).collect(),
        areas: command.areas.iter().map(|area| area.id.clone()).collect(),
        areas_more: command.areas.iter().map(|area| (area.id.clone(), area.qty)).collect(),
        buyer: Some(command.buyer.clone()),
        buyer_more: asked.count(),
        ..Need::default()
    }
}

fn items_of(command: &OpenHold) -> RequestedItems<'_> {
    RequestedItems {
        event: &command.event_id,
        seats: command.seats.iter().map(|seat| seat.id.as_str()).collect(),
        areas: command.areas.iter().map(|area| (area.id.as_str(), area.qty)).collect(),
        token: command.lease.token,
        buyer: Some(&command.buyer),
        except: None,
    }
}

/// A hold on free seats and places, within the buyer's limit.
///
/// # Errors
///
/// What is lost, each seat and area by itself; or that the event is not there, or the layout another.
pub fn open_hold(command: &OpenHold, facts: &Facts, actor: &str, now: Moment) -> Decision<OpenedHold> {
    let event = require_event(facts, &command.event_id)?;
    let asked = items_of(command);
    // An offer for late money is no new sale: the buyer has paid, so a freeze does not apply.
    if command.payment_ref.is_none() && (event.frozen || !event.settings.on_sale) {
        return Err(asked.all_lost(Reason::NotOnSale));
    }
    if event.layout_version != command.layout_version {
        return Err(Refusal::LayoutChanged);
    }
    let room = RoomCheck::check(&asked, facts, actor, now).or_conflict()?;
    if beyond_limit(&event, room.buyer, asked.count()) {
        return Err(asked.all_lost(Reason::BuyerLimit));
    }
    let ttl_ms = ttl_for(event.settings.ttl_ms, room.buyer.lapses, room.buyer.lapsed_at, now);
    let hold = new_hold(command, &event, ttl_ms, now);
    if hold.checked_total().is_none() {
        return Err(Refusal::TooDear);
    }
    let mut writes = room.writes;
    writes.push(LedgerWrite::OpenHold(Box::new(hold.clone())));
    writes.extend(take_writes(&hold, &hold.seats, &hold.areas));
    let (kind, state) = match hold.state {
        HoldState::Paying => (EntryKind::Offered, SeatState::Paying),
        _ => (EntryKind::Held, SeatState::Held),
    };
    writes.push(entry_write(hold_entry(&hold, kind, state, actor, now)));
    Ok((writes, OpenedHold { hold, sealed_key: command.sealed_key.clone() }))
}

fn new_hold(command: &OpenHold, event: &EventRow, ttl_ms: u64, now: Moment) -> HoldRow {
    let token = command.lease.token;
    let active_until = now.plus(ttl_ms);
    let paying = command.payment_ref.is_some();
    HoldRow {
        hold_id: command.hold_id.clone(),
        event_id: command.event_id.clone(),
        buyer: command.buyer.clone(),
        key_hash: command.key_hash.clone(),
        state: if paying { HoldState::Paying } else { HoldState::Active },
        seats: command.seats.iter().map(|seat| HeldSeat { id: seat.id.clone(), token, price: seat.price }).collect(),
        areas: command.areas.iter().map(|area| held_area(area, token)).collect(),
        leases: vec![command.lease.clone()],
        opened_at: now,
        expires_at: if paying { now.plus(event.settings.pay_ms) } else { active_until },
        active_until,
        cap_at: now.plus(event.settings.max_hold_ms),
        ttl_ms,
        pay_ms: Some(event.settings.pay_ms),
        renewals: 0,
        payment_ref: command.payment_ref.clone(),
        pay_url: None,
        given_up: Vec::new(),
        payments: 0,
        offered: paying,
        ended_at: None,
        ended_why: None,
    }
}

fn held_area(area: &crate::model::PricedArea, token: u64) -> HeldArea {
    HeldArea { id: area.id.clone(), qty: area.qty, token, price: area.price }
}

/// Writes that give seats and places to a hold.
fn take_writes(hold: &HoldRow, seats: &[HeldSeat], areas: &[HeldArea]) -> Vec<LedgerWrite> {
    let mut writes = Vec::new();
    if !seats.is_empty() {
        let seats = seats.iter().map(|seat| (seat.id.clone(), seat.token)).collect();
        writes.push(LedgerWrite::TakeSeats { event_id: hold.event_id.clone(), hold_id: hold.hold_id.clone(), seats });
    }
    writes.extend(areas.iter().map(|area| area_delta(&hold.event_id, &area.id, i64::from(area.qty), 0, 0)));
    let count = seats.len() as i64 + areas.iter().map(|area| i64::from(area.qty)).sum::<i64>();
    writes.push(LedgerWrite::Buyer {
        event_id: hold.event_id.clone(),
        buyer: hold.buyer.clone(),
        held: count,
        sold: 0,
        lapses: Lapses::Keep,
    });
    writes
}

/// What [`renew`] must know.
#[must_use]
pub fn need_renew(command: &RenewHold) -> Need {
    need_hold(&command.hold_id)
}

/// Pushes the end of an active hold to now + ttl, within its cap. While money is on its way it changes nothing.
///
/// # Errors
///
/// The hold is over, or its tokens are not the newest.
pub fn renew(command: &RenewHold, facts: &Facts, actor: &str, now: Moment) -> Decision<HoldRow> {
    let hold = require_hold(facts, &command.hold_id, &command.access)?;
    check_live(&hold, now)?;
    if hold.state == HoldState::Paying {
        return Ok((Vec::new(), hold));
    }
    check_leases(&hold, &command.tokens)?;
    check_tokens(&hold, facts)?;
    let asked = now.plus(hold.ttl_ms);
    let until = asked.min(hold.cap_at);
    let row = HoldRow { expires_at: until, active_until: until, renewals: hold.renewals.saturating_add(1), ..hold };
    let entry = entry_write(hold_entry(&row, EntryKind::Renewed, SeatState::Held, actor, now));
    Ok((vec![LedgerWrite::UpdateHold(Box::new(row.clone())), entry], row))
}

/// What [`change_seats`] must know.
#[must_use]
pub fn need_change_seats(command: &ChangeSeats) -> Need {
    let more: u32 = command.add_areas.iter().map(|area| area.qty).sum();
    Need {
        seats: command.add.iter().map(|seat| seat.id.clone()).collect(),
        areas: command.add_areas.iter().map(|area| area.id.clone()).collect(),
        areas_more: command.add_areas.iter().map(|area| (area.id.clone(), area.qty)).collect(),
        buyer_more: more.saturating_add(u32::try_from(command.add.len()).unwrap_or(u32::MAX)),
        ..need_hold(&command.hold_id)
    }
}

/// Adds and removes seats and places of an active hold; its end stays.
///
/// # Errors
///
/// Something that was to be added is lost, or the hold is over, paying, or would be empty.
pub fn change_seats(command: &ChangeSeats, facts: &Facts, actor: &str, now: Moment) -> Decision<HoldRow> {
    let hold = require_hold(facts, &command.hold_id, &command.access)?;
    check_live(&hold, now)?;
    if hold.state == HoldState::Paying {
        return Err(Refusal::Paying);
    }
    check_tokens(&hold, facts)?;
    let event = require_event(facts, &hold.event_id)?;
    let no_seat = command.remove.iter().find(|id| !hold.seats.iter().any(|seat| seat.id == **id));
    let no_area = command.remove_areas.iter().find(|id| !hold.areas.iter().any(|area| area.id == **id));
    if let Some(id) = no_seat.or(no_area) {
        return Err(Refusal::NoSeat(id.clone()));
    }
    let asked = RequestedItems {
        event: &hold.event_id,
        seats: command.add.iter().map(|seat| seat.id.as_str()).collect(),
        areas: command.add_areas.iter().map(|area| (area.id.as_str(), area.qty)).collect(),
        token: command.lease.as_ref().map_or(0, |lease| lease.token),
        buyer: Some(&hold.buyer),
        except: Some(&hold.hold_id),
    };
    let adds = asked.count() > 0;
    if adds && (event.frozen || !event.settings.on_sale) {
        return Err(asked.all_lost(Reason::NotOnSale));
    }
    if adds && event.layout_version != command.layout_version {
        return Err(Refusal::LayoutChanged);
    }
    let room = RoomCheck::check(&asked, facts, actor, now).or_conflict()?;
    let (given_seats, kept_seats): (Vec<_>, Vec<_>) =
        hold.seats.iter().cloned().partition(|seat| command.remove.contains(&seat.id));
    let (given_areas, kept_areas): (Vec<_>, Vec<_>) =
        hold.areas.iter().cloned().partition(|area| command.remove_areas.contains(&area.id));
    let given = HoldRow { seats: given_seats, areas: given_areas, ..hold.clone() };
    let mut buyer = room.buyer;
    buyer.held = buyer.held.saturating_sub(given.count());
    if beyond_limit(&event, buyer, asked.count()) {
        return Err(asked.all_lost(Reason::BuyerLimit));
    }

    let added = added_items(&hold, command);
    let mut row = HoldRow { seats: kept_seats, areas: kept_areas, ..hold };
    row.seats.extend(added.seats.iter().cloned());
    row.areas.extend(added.areas.iter().cloned());
    row.seats.sort_by(|a, b| a.id.cmp(&b.id));
    row.areas.sort_by(|a, b| a.id.cmp(&b.id));
    if row.count() == 0 {
        return Err(Refusal::Empty);
    }
    if row.checked_total().is_none() {
        return Err(Refusal::TooDear);
    }
    row.leases.extend(command.lease.clone());
    // The caller releases a lease that covers nothing any more.
    let used: Vec<u64> =
        row.seats.iter().map(|seat| seat.token).chain(row.areas.iter().map(|area| area.token)).collect();
    row.leases.retain(|lease| used.contains(&lease.token));

    let mut writes = room.writes;
    writes.extend(free_writes(&given));
    writes.push(LedgerWrite::UpdateHold(Box::new(row.clone())));
    if added.count() > 0 {
        writes.extend(take_writes(&row, &added.seats, &added.areas));
    }
    writes.push(entry_write(change_entry(&added, &given, actor, now)));
    Ok((writes, row))
}

/// The entry about a change of a hold: what was added, and what was given up.
fn change_entry(added: &HoldRow, given: &HoldRow, actor: &str, now: Moment) -> Entry {
    let mut entry = hold_entry(added, EntryKind::Changed, SeatState::Held, actor, now);
    entry.areas.iter_mut().zip(&added.areas).for_each(|(entry, area)| entry.delta = i64::from(area.qty));
    entry.seats.extend(hold_entry(given, EntryKind::Changed, SeatState::Free, actor, now).seats);
    entry.areas.extend(given.areas.iter().map(|area| area_free(&area.id, -i64::from(area.qty))));
    entry
}

/// What a change adds, in the shape of a hold.
fn added_items(hold: &HoldRow, command: &ChangeSeats) -> HoldRow {
    let token = command.lease.as_ref().map_or(0, |lease| lease.token);
    let seats = command.add.iter().map(|seat| HeldSeat { id: seat.id.clone(), token, price: seat.price });
    HoldRow {
        seats: seats.collect(),
        areas: command.add_areas.iter().map(|area| held_area(area, token)).collect(),
        ..hold.clone()
    }
}

/// Writes that free seats and places of a hold that continues.
fn free_writes(given: &HoldRow) -> Vec<LedgerWrite> {
    if given.count() == 0 {
        return Vec::new();
    }
    let (writes, _) = end_hold(given, HoldState::Released, None, Lapses::Keep, given.opened_at);
    // The caller writes the row itself.
    writes.into_iter().filter(|write| !matches!(write, LedgerWrite::UpdateHold(_))).collect()
}

/// What [`replace_lease`] must know.
#[must_use]
pub fn need_replace_lease(command: &ReplaceLease) -> Need {
    need_hold(&command.hold_id)
}

/// Stores another lease, with its token, for the seats that were under one lease.
///
/// # Errors
///
/// The hold is over, or no seat of it has that token any more.
pub fn replace_lease(command: &ReplaceLease, facts: &Facts, actor: &str, now: Moment) -> Decision<HoldRow> {
    let hold = require_hold(facts, &command.hold_id, &crate::model::Access::Staff)?;
    check_live(&hold, now)?;
    check_tokens(&hold, facts)?;
    let held_state = if hold.state == HoldState::Paying { SeatState::Paying } else { SeatState::Held };
    let mut row = hold.clone();
    let mut seats = Vec::new();
    for seat in row.seats.iter_mut().filter(|seat| seat.token == command.old) {
        seat.token = command.lease.token;
        seats.push(seat.clone());
    }
    let mut places = 0;
    for area in row.areas.iter_mut().filter(|area| area.token == command.old) {
        area.token = command.lease.token;
        places += 1;
    }
    if (seats.is_empty() && places == 0) || command.lease.token <= command.old {
        return Err(Refusal::StaleToken);
    }
    row.leases.retain(|lease| lease.token != command.old);
    row.leases.push(command.lease.clone());
    let mut writes = vec![LedgerWrite::UpdateHold(Box::new(row.clone()))];
    if !seats.is_empty() {
        let (event_id, hold_id) = (row.event_id.clone(), row.hold_id.clone());
        let ids = seats.iter().map(|seat| seat.id.clone()).collect();
        let taken = seats.iter().map(|seat| (seat.id.clone(), seat.token)).collect();
        writes.push(LedgerWrite::FreeSeats { event_id: event_id.clone(), hold_id: hold_id.clone(), seats: ids });
        writes.push(LedgerWrite::TakeSeats { event_id, hold_id, seats: taken });
    }
    writes.push(entry_write(hold_entry(&HoldRow { seats, ..row.clone() }, EntryKind::Changed, held_state, actor, now)));
    Ok((writes, row))
}

/// What [`release`] must know.
#[must_use]
pub fn need_release(command: &ReleaseHold) -> Need {
    Need { hold: Some(command.hold_id.clone()), ..Need::default() }
}

/// Releases a hold. A repeat changes nothing.
///
/// # Errors
///
/// Money is on its way, or the hold is over otherwise.
pub fn release(command: &ReleaseHold, facts: &Facts, actor: &str, now: Moment) -> Decision<HoldRow> {
    let hold = require_hold(facts, &command.hold_id, &command.access)?;
    if hold.state == HoldState::Released {
        return Ok((Vec::new(), hold));
    }
    check_live(&hold, now)?;
    // For an offer the money has come already: a release refunds it.
    if hold.state == HoldState::Paying && !hold.offered {
        return Err(Refusal::Paying);
    }
    let (mut writes, row) = end_hold(&hold, HoldState::Released, None, Lapses::Keep, now);
    writes.push(entry_write(hold_entry(&row, EntryKind::Released, SeatState::Free, actor, now)));
    Ok((writes, row))
}

/// What [`lapse_due`] must know.
#[must_use]
pub fn need_lapse_due(limit: usize) -> Need {
    Need { due: limit, ..Need::default() }
}

/// Ends every hold among the facts that is over by time.
///
/// # Errors
///
/// Never.
pub fn lapse_due(limit: usize, facts: &Facts, now: Moment) -> Decision<Swept> {
    let mut swept = Swept { more: facts.holds.len() >= limit, ..Swept::default() };
    let mut writes = Vec::new();
    for hold in facts.holds.iter().filter(|hold| hold.is_due(now)) {
        swept.lag_ms = swept.lag_ms.max(now.since(hold.expires_at));
        let (more, row) = lapse_hold(hold, "sweeper", now);
        writes.extend(more);
        swept.holds.push(row);
    }
    Ok((writes, swept))
}
