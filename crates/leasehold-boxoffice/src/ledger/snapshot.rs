//! Builds snapshots and takings from the rows of one consistent read.

use std::collections::{BTreeMap, HashMap};

use crate::model::facts::AreaFact;
use crate::model::*;

/// All rows of an event, from one consistent read.
pub(super) struct EventRows {
    pub(super) event: EventRow,
    /// Holds that are not ended, due ones too.
    pub(super) holds: Vec<HoldRow>,
    /// Seat, order, token.
    pub(super) sold: Vec<(String, OrderId, u64)>,
    /// Seat, reason.
    pub(super) blocks: Vec<(String, String)>,
    pub(super) areas: Vec<AreaFact>,
    /// The last number that was given.
    pub(super) seq: u64,
}

/// The snapshot of an event. Holds that are due count as free.
pub(super) fn snapshot(found: EventRows, now: Moment) -> Snapshot {
    let EventRows { event, mut holds, sold, blocks, areas, seq } = found;
    holds.retain(|hold| hold.is_live(now));
    let mut seats: BTreeMap<String, SeatNow> = BTreeMap::new();
    let bare =
        |id: &str, state| SeatNow { id: id.into(), state, hold_id: None, order_id: None, token: None, reason: None };
    for hold in &holds {
        let state = if hold.state == HoldState::Paying { SeatState::Paying } else { SeatState::Held };
        for seat in &hold.seats {
            let (hold_id, token) = (Some(hold.hold_id.clone()), Some(seat.token));
            seats.insert(seat.id.clone(), SeatNow { hold_id, token, ..bare(&seat.id, state) });
        }
    }
    for (seat, order, token) in sold {
        let row = SeatNow { order_id: Some(order), token: Some(token), ..bare(&seat, SeatState::Sold) };
        seats.insert(seat, row);
    }
    for (seat, reason) in blocks {
        let blocked = SeatNow { reason: Some(reason), ..bare(&seat, SeatState::Blocked) };
        seats.insert(seat, blocked);
    }
    let areas = areas_now(areas, &holds);
    Snapshot { now, seq, event, seats: seats.into_values().collect(), areas, holds }
}

fn areas_now(areas: Vec<AreaFact>, live: &[HoldRow]) -> Vec<AreaNow> {
    let mut places: HashMap<&str, (u32, u32)> = HashMap::new();
    for hold in live {
        for area in &hold.areas {
            let (held, paying) = places.entry(&area.id).or_default();
            *(if hold.state == HoldState::Paying { paying } else { held }) += area.qty;
        }
    }
    let now = areas.into_iter().map(|area| {
        let (held, paying) = places.get(area.id.as_str()).copied().unwrap_or_default();
        AreaNow { id: area.id, capacity: area.capacity, held, paying, sold: area.sold, blocked: area.blocked }
    });
    now.collect()
}

/// Money and counts, from the orders themselves.
pub(super) fn takings(orders: &[OrderRow], refunds: &[MoneyRow], lapsed: u64) -> Takings {
    let mut takings = Takings { lapsed, ..Takings::default() };
    for order in orders {
        if order.state == OrderState::Voided {
            takings.voided += 1;
            continue;
        }
        takings.orders += 1;
        takings.late += u64::from(order.late);
        takings.seats += order.seats.len() as u64;
        takings.places += order.areas.iter().map(|area| u64::from(area.qty)).sum::<u64>();
        takings.revenue += order.total;
    }
    takings.refunds_due = refunds.iter().map(|money| money.amount).sum();
    takings
}

/// Those of the tokens that a lease under one of these holds has.
pub(super) fn known_tokens(holds: &[HoldRow], tokens: &[u64]) -> Vec<u64> {
    // Places of areas have no rows of their own: their tokens are in the body of the hold.
    let wanted: std::collections::HashSet<u64> = tokens.iter().copied().collect();
    let leases = holds.iter().flat_map(|hold| &hold.leases);
    leases.map(|lease| lease.token).filter(|token| wanted.contains(token)).collect()
}
