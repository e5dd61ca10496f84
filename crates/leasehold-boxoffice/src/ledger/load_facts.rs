//! Loads [`Facts`] for a [`Need`]: the rows that a decision is made from, for any database.
//!
//! # Not here
//!
//! How rows are read and locked (each ledger's [`LockedRows`]).

use std::collections::BTreeSet;

use crate::model::facts::{AreaFact, BuyerFact, Facts, Need, SeatFact};
use crate::model::{Buyer, EventId, EventRow, HoldId, HoldRow, Moment, MoneyRow, OrderId, OrderRow};

/// Reads rows that are locked in one transaction.
pub(super) trait LockedRows {
    /// Why they could not be read.
    type ReadError;

    fn hold(&self, id: &HoldId) -> Result<Option<HoldRow>, Self::ReadError>;
    fn holds(&self, ids: &BTreeSet<&HoldId>) -> Result<Vec<HoldRow>, Self::ReadError>;
    /// Holds that are over by time and not ended yet, oldest first; of one event or of all.
    fn due(&self, event: Option<&EventId>, now: Moment, limit: usize) -> Result<Vec<HoldRow>, Self::ReadError>;
    fn order(&self, id: &OrderId) -> Result<Option<OrderRow>, Self::ReadError>;
    fn money(&self, reference: &str) -> Result<Option<MoneyRow>, Self::ReadError>;
    /// Which hold a payment is for.
    fn payment(&self, reference: &str) -> Result<Option<HoldId>, Self::ReadError>;
    fn callback_seen(&self, id: &str) -> Result<bool, Self::ReadError>;
    fn event(&self, id: &EventId) -> Result<Option<EventRow>, Self::ReadError>;
    /// In order of id, each once, even if there is no row about it.
    fn seats(&self, event: &EventId, ids: &BTreeSet<String>) -> Result<Vec<SeatFact>, Self::ReadError>;
    fn area(&self, event: &EventId, id: &str) -> Result<Option<AreaFact>, Self::ReadError>;
    fn all_areas(&self, event: &EventId) -> Result<Vec<AreaFact>, Self::ReadError>;
    fn buyer(&self, event: &EventId, buyer: &Buyer) -> Result<BuyerFact, Self::ReadError>;
    /// Ids of seats that are held, sold or blocked.
    fn in_use(&self, event: &EventId) -> Result<Vec<String>, Self::ReadError>;
}

/// Loads what a decision needs.
pub(super) fn load_facts<R: LockedRows>(rows: &R, need: &Need, now: Moment) -> Result<Facts, R::ReadError> {
    let mut facts = Facts::default();
    let (mut seats, mut areas): (BTreeSet<String>, BTreeSet<String>) = Default::default();
    seats.extend(need.seats.iter().cloned());
    areas.extend(need.areas.iter().cloned());
    let (mut event, mut buyer) = (need.event.clone(), need.buyer.clone());
    let (mut buyer_more, mut areas_more) = (need.buyer_more, need.areas_more.clone());
    if let Some(id) = &need.hold {
        facts.hold = rows.hold(id)?;
    }
    if let Some(hold) = facts.hold.as_ref() {
        event.get_or_insert_with(|| hold.event_id.clone());
        if need.all_of_hold {
            buyer.get_or_insert_with(|| hold.buyer.clone());
            seats.extend(hold.seats.iter().map(|seat| seat.id.clone()));
            areas.extend(hold.areas.iter().map(|area| area.id.clone()));
        }
        if need.again {
            buyer_more = buyer_more.saturating_add(hold.count());
            areas_more.extend(hold.areas.iter().map(|area| (area.id.clone(), area.qty)));
        }
    }
    if let Some(id) = &need.order {
        facts.order = rows.order(id)?;
        event = event.or_else(|| facts.order.as_ref().map(|order| order.event_id.clone()));
    }
    if let Some(reference) = &need.money {
        facts.money = rows.money(reference)?;
    }
    if let Some(reference) = &need.payment {
        facts.payment = rows.payment(reference)?;
        // Money that named this hold, but is for another or in another currency, is stored once.
        if let (Some(hold), true) = (&need.hold, need.callback.is_some()) {
            facts.stray = rows.money(&MoneyRow::key_of(reference, hold.as_str()))?;
        }
    }
    if let Some(id) = &need.callback {
        facts.callback_seen = rows.callback_seen(id)?;
    }
    if need.due > 0 {
        facts.holds = rows.due(None, now, need.due)?;
    }
    let Some(event) = event else { return Ok(facts) };
    facts.event = rows.event(&event)?;
    if need.layout {
        facts.in_use = rows.in_use(&event)?;
        facts.areas = rows.all_areas(&event)?;
    }
    if !seats.is_empty() {
        facts.seats = rows.seats(&event, &seats)?;
        let over = facts.seats.iter().filter_map(|seat| Some(&seat.held.as_ref()?.0)).collect();
        facts.holds = rows.holds(&over)?;
    }
    for id in &areas {
        facts.areas.extend(rows.area(&event, id)?);
    }
    if let Some(buyer) = &buyer {
        facts.buyer = rows.buyer(&event, buyer)?;
    }
    if counters_refuse(&facts, buyer_more, &areas_more) {
        for hold in rows.due(Some(&event), now, usize::MAX)? {
            if facts.row(&hold.hold_id).is_none() {
                facts.holds.push(hold);
            }
        }
    }
    Ok(facts)
}

/// Whether the counters alone would refuse. They still count holds that are over: then those are loaded too.
fn counters_refuse(facts: &Facts, buyer_more: u32, areas_more: &[(String, u32)]) -> bool {
    let limit = facts.event.as_ref().map_or(u32::MAX, |event| event.settings.per_buyer);
    let buyer = facts.buyer.held.saturating_add(facts.buyer.sold).saturating_add(buyer_more);
    let full = |id: &str, more: u32| {
        facts.area(id).is_some_and(|area| {
            let used = area.held.saturating_add(area.sold).saturating_add(area.blocked);
            used.saturating_add(more) > area.capacity
        })
    };
    (buyer_more > 0 && buyer > limit) || areas_more.iter().any(|(id, more)| full(id, *more))
}
