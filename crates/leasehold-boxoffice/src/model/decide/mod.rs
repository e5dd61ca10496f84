//! Decisions: from a command, facts and the present moment to writes and a result, or to a refusal.
//!
//! For each transaction there are two functions: `need_…` says which rows must be loaded and locked, and the other decides.
//!
//! ```text
//!   seat: free ─▶ held(token, until) ─▶ paying(token, deadline) ─▶ sold(order, token) ─▶ free      free ◀─▶ blocked
//! ```

mod hold;
mod money;
mod sale;
mod staff;

pub use hold::*;
pub use money::{capture_step, money_step, need_capture_step, need_money_step};
use money::{known_payment_again, money_writes, overpaid_writes, step_write, stray_payment, unsold_money};
pub use sale::*;
pub use staff::*;

use super::entry::{AreaFree, Entry, EntryKind, SeatChange, SeatState};
use super::event::EventRow;
use super::facts::{Facts, Need, SeatFact};
use super::hold::{HoldRow, HoldState};
use super::ids::{EventId, HoldId, Moment};
use super::refusal::{Conflict, Reason, Refusal};
use super::write::{Lapses, LedgerWrite};

/// Writes and a result, or a refusal.
pub type Decision<T> = Result<(Vec<LedgerWrite>, T), Refusal>;

/// A lapse this long after the last one counts as the first.
pub const LAPSE_WINDOW_MS: u64 = 3_600_000;
/// So many lapses do not shorten the ttl.
pub const FREE_LAPSES: u32 = 2;
/// The shortest ttl for a buyer whose holds lapsed (or the event's ttl, if it is shorter).
pub const MIN_TTL_MS: u64 = 30_000;

/// The ttl of a new hold: the event's, halved for every lapse beyond [`FREE_LAPSES`].
#[must_use]
pub fn ttl_for(ttl_ms: u64, lapses: u32, lapsed_at: Moment, now: Moment) -> u64 {
    let recent = if now.since(lapsed_at) > LAPSE_WINDOW_MS { 0 } else { lapses };
    let halvings = recent.saturating_sub(FREE_LAPSES).min(16);
    (ttl_ms >> halvings).max(MIN_TTL_MS.min(ttl_ms))
}

/// A new entry without details.
fn new_entry(event_id: &EventId, kind: EntryKind, actor: &str, now: Moment) -> Entry {
    Entry {
        seq: 0,
        event_id: event_id.clone(),
        at: now,
        wall_ms: 0,
        kind,
        actor: actor.into(),
        buyer: None,
        hold_id: None,
        order_id: None,
        seats: Vec::new(),
        areas: Vec::new(),
        until: None,
        reason: None,
        payment_ref: None,
        amount: None,
        paid: None,
        source: None,
    }
}

/// An entry about a hold: all its seats are in this state now.
fn hold_entry(hold: &HoldRow, kind: EntryKind, state: SeatState, actor: &str, now: Moment) -> Entry {
    let token = |token: u64| (state != SeatState::Free).then_some(token);
    let sign = match kind {
        EntryKind::Held | EntryKind::Offered => 1,
        EntryKind::Released | EntryKind::ForceReleased | EntryKind::Lapsed => -1,
        _ => 0,
    };
    Entry {
        buyer: Some(hold.buyer.clone()),
        hold_id: Some(hold.hold_id.clone()),
        seats: hold
            .seats
            .iter()
            .map(|seat| SeatChange { id: seat.id.clone(), state, token: token(seat.token) })
            .collect(),
        areas: hold.areas.iter().map(|area| area_free(&area.id, sign * i64::from(area.qty))).collect(),
        until: hold.state.has_seats().then_some(hold.expires_at),
        payment_ref: hold.payment_ref.clone(),
        ..new_entry(&hold.event_id, kind, actor, now)
    }
}

/// An area in an entry; how much of it is free the ledger fills in.
fn area_free(id: &str, delta: i64) -> AreaFree {
    AreaFree { id: id.into(), free: 0, delta }
}

fn entry_write(entry: Entry) -> LedgerWrite {
    LedgerWrite::Entry(Box::new(entry))
}

/// Ends a hold without a sale: its seats and places are freed; the row still lists them.
fn end_hold(
    hold: &HoldRow,
    state: HoldState,
    why: Option<&str>,
    lapses: Lapses,
    now: Moment,
) -> (Vec<LedgerWrite>, HoldRow) {
    let row = HoldRow { state, ended_at: Some(now), ended_why: why.map(Into::into), ..hold.clone() };
    let mut writes = vec![LedgerWrite::UpdateHold(Box::new(row.clone()))];
    if !hold.seats.is_empty() {
        let seats = hold.seats.iter().map(|seat| seat.id.clone()).collect();
        writes.push(LedgerWrite::FreeSeats { event_id: hold.event_id.clone(), hold_id: hold.hold_id.clone(), seats });
    }
    for area in &hold.areas {
        writes.push(area_delta(&hold.event_id, &area.id, -i64::from(area.qty), 0, 0));
    }
    writes.push(LedgerWrite::Buyer {
        event_id: hold.event_id.clone(),
        buyer: hold.buyer.clone(),
        held: -i64::from(hold.count()),
        sold: 0,
        lapses,
    });
    (writes, row)
}

/// Whether a lapse of this hold counts against the buyer. For an offer the money has come, so it does not. A payment that
/// was only begun is no excuse.
const fn lapse_counts(hold: &HoldRow) -> bool {
    !hold.offered
}

/// Ends a hold that is over by time.
fn lapse_hold(hold: &HoldRow, actor: &str, now: Moment) -> (Vec<LedgerWrite>, HoldRow) {
    lapse_with(hold, lapses_of(hold, now), actor, now)
}

/// How a lapse of this hold changes its buyer's count.
fn lapses_of(hold: &HoldRow, now: Moment) -> Lapses {
    if lapse_counts(hold) { Lapses::More(now) } else { Lapses::Keep }
}

fn lapse_with(hold: &HoldRow, lapses: Lapses, actor: &str, now: Moment) -> (Vec<LedgerWrite>, HoldRow) {
    let (mut writes, row) = end_hold(hold, HoldState::Lapsed, None, lapses, now);
    writes.push(entry_write(hold_entry(&row, EntryKind::Lapsed, SeatState::Free, actor, now)));
    (writes, row)
}

fn area_delta(event_id: &EventId, area: &str, held: i64, sold: i64, blocked: i64) -> LedgerWrite {
    LedgerWrite::Area { event_id: event_id.clone(), area: area.into(), held, sold, blocked }
}

fn require_event(facts: &Facts, id: &EventId) -> Result<EventRow, Refusal> {
    facts.event.clone().ok_or_else(|| Refusal::NoEvent(id.clone()))
}

/// The hold, if the caller's key opens it.
fn require_hold(facts: &Facts, id: &HoldId, access: &super::Access) -> Result<HoldRow, Refusal> {
    let hold = facts.hold.as_ref().filter(|hold| access.opens(&hold.key_hash));
    hold.cloned().ok_or_else(|| Refusal::NoHold(id.clone()))
}

/// Refuses a hold that is over.
fn check_live(hold: &HoldRow, now: Moment) -> Result<(), Refusal> {
    if hold.is_live(now) { Ok(()) } else { Err(Refusal::Ended(hold.state_at(now))) }
}

/// Refuses a hold whose seats are not all under it with their tokens: a newer token has displaced it.
fn check_tokens(hold: &HoldRow, facts: &Facts) -> Result<(), Refusal> {
    let mine = |seat: &super::HeldSeat| {
        let fact = facts.seat(&seat.id);
        let held = fact.and_then(|fact| fact.held.as_ref());
        held.is_some_and(|(under, token)| *under == hold.hold_id && *token == seat.token)
            && fact.is_some_and(|fact| fact.sold.is_none())
    };
    if hold.seats.iter().all(mine) { Ok(()) } else { Err(Refusal::StaleToken) }
}

/// Refuses unless all leases of the hold were renewed.
fn check_leases(hold: &HoldRow, tokens: &[u64]) -> Result<(), Refusal> {
    let covered = hold.leases.iter().all(|lease| tokens.contains(&lease.token));
    if covered && !hold.leases.is_empty() { Ok(()) } else { Err(Refusal::StaleToken) }
}

/// The check for seats and places that a command wants: lapses to write first, and conflicts.
///
/// Holds that are over are ended on the way: otherwise their counters and seat rows would refuse what is free.
struct RoomCheck {
    writes: Vec<LedgerWrite>,
    conflicts: Vec<Conflict>,
    /// A free seat was held with a newer token before: this command is from a server that was stalled.
    stale: bool,
    /// The buyer's counters after the lapses.
    buyer: super::facts::BuyerFact,
}

impl RoomCheck {
    /// Checks the facts. `except`: a hold whose own seats are no conflict.
    fn check(asked: &RequestedItems<'_>, facts: &Facts, actor: &str, now: Moment) -> Self {
        let mut room = Self { writes: Vec::new(), conflicts: Vec::new(), stale: false, buyer: facts.buyer };
        let due = facts.holds.iter().filter(|hold| may_be_displaced(hold, now) && Some(&hold.hold_id) != asked.except);
        let due: Vec<&HoldRow> = due.collect();
        for hold in &due {
            room.writes.extend(lapse_hold(hold, actor, now).0);
            if Some(&hold.buyer) == asked.buyer {
                room.buyer.held = room.buyer.held.saturating_sub(hold.count());
                if lapse_counts(hold) {
                    let recent = now.since(room.buyer.lapsed_at) <= LAPSE_WINDOW_MS;
                    room.buyer.lapses = if recent { room.buyer.lapses.saturating_add(1) } else { 1 };
                    room.buyer.lapsed_at = now;
                }
            }
        }
        for id in &asked.seats {
            let lost = facts.seat(id).and_then(|seat| seat_lost(seat, asked, facts, now));
            room.conflicts.extend(lost.map(|reason| Conflict::seat(id, reason)));
            room.stale |= facts.seat(id).is_some_and(|seat| seat.token >= asked.token);
        }
        for (id, qty) in &asked.areas {
            let freed = |hold: &&&HoldRow| hold.event_id == *asked.event;
            let places = due.iter().filter(freed).flat_map(|hold| &hold.areas).filter(|area| area.id == *id);
            let freed: u32 = places.map(|area| area.qty).sum();
            let lost = area_lost(facts, id, *qty, freed);
            room.conflicts.extend(lost.map(|reason| Conflict::area(id, reason)));
        }
        room
    }

    fn or_conflict(self) -> Result<Self, Refusal> {
        if self.conflicts.is_empty() {
            return if self.stale { Err(Refusal::StaleToken) } else { Ok(self) };
        }
        Err(Refusal::Conflict { conflicts: self.conflicts, alternative: None })
    }
}

/// Writes that store the token of seats that are sold without a live hold.
fn remember_tokens(event_id: &EventId, hold_id: &HoldId, seats: Vec<(String, u64)>) -> Vec<LedgerWrite> {
    if seats.is_empty() {
        return Vec::new();
    }
    let ids = seats.iter().map(|(id, _)| id.clone()).collect();
    let (event, hold) = (event_id.clone(), hold_id.clone());
    let (event_id, hold_id) = (event_id.clone(), hold_id.clone());
    vec![
        LedgerWrite::TakeSeats { event_id: event, hold_id: hold, seats },
        LedgerWrite::FreeSeats { event_id, hold_id, seats: ids },
    ]
}

/// The items that a command wants.
struct RequestedItems<'a> {
    event: &'a EventId,
    seats: Vec<&'a str>,
    areas: Vec<(&'a str, u32)>,
    token: u64,
    buyer: Option<&'a super::Buyer>,
    except: Option<&'a HoldId>,
}

impl RequestedItems<'_> {
    fn count(&self) -> u32 {
        let places: u32 = self.areas.iter().map(|(_, qty)| *qty).fold(0, u32::saturating_add);
        u32::try_from(self.seats.len()).unwrap_or(u32::MAX).saturating_add(places)
    }

    /// Everything lost for one reason.
    fn all_lost(&self, reason: Reason) -> Refusal {
        let seats = self.seats.iter().map(|id| Conflict::seat(id, reason));
        let areas = self.areas.iter().map(|(id, _)| Conflict::area(id, reason));
        Refusal::Conflict { conflicts: seats.chain(areas).collect(), alternative: None }
    }
}

fn may_be_displaced(hold: &HoldRow, now: Moment) -> bool {
    hold.is_due(now)
}

fn seat_lost(seat: &SeatFact, asked: &RequestedItems<'_>, facts: &Facts, now: Moment) -> Option<Reason> {
    if seat.sold.is_some() {
        return Some(Reason::Sold);
    }
    if seat.missing {
        return Some(Reason::NoBlock);
    }
    if seat.blocked.is_some() {
        return Some(Reason::Blocked);
    }
    let (under, token) = seat.held.as_ref()?;
    // Only a newer token displaces a hold, and only one that is over. A seat row without its hold breaks a law: it stays.
    let gone = facts.row(under).is_some_and(|hold| may_be_displaced(hold, now)) && *token < asked.token;
    (!gone).then_some(Reason::Taken)
}

fn area_lost(facts: &Facts, id: &str, qty: u32, freed: u32) -> Option<Reason> {
    let Some(area) = facts.area(id) else { return Some(Reason::NoBlock) };
    super::facts::AreaFact { held: area.held.saturating_sub(freed), ..area.clone() }.short_of(qty)
}

/// Whether so many more are too many for the buyer.
fn beyond_limit(event: &EventRow, buyer: super::facts::BuyerFact, more: u32) -> bool {
    buyer.held.saturating_add(buyer.sold).saturating_add(more) > event.settings.per_buyer
}

/// The need of a command about one hold and all that it has.
fn need_hold(hold_id: &HoldId) -> Need {
    Need { hold: Some(hold_id.clone()), all_of_hold: true, ..Need::default() }
}
