//! A ledger of maps in memory: it loads facts and applies writes without any constraint of its own, so that the checkers
//! find what is wrong.

use std::collections::{BTreeMap, BTreeSet};

use crate::layout::Layout;
use crate::model::check::{Dump, TokenBack};
use crate::model::facts::{AreaFact, BuyerFact, Facts, Need, SeatFact};
use crate::model::write::{Lapses, LedgerWrite};
use crate::model::*;

#[derive(Default)]
pub(super) struct MapLedger {
    pub(super) event: Option<EventRow>,
    pub(super) layout: Layout,
    pub(super) holds: BTreeMap<HoldId, HoldRow>,
    held: BTreeMap<String, (HoldId, u64)>,
    tokens: BTreeMap<String, u64>,
    sold: Vec<(String, OrderId, u64)>,
    blocked: BTreeMap<String, String>,
    areas: BTreeMap<String, AreaFact>,
    pub(super) buyers: BTreeMap<Buyer, BuyerFact>,
    pub(super) orders: BTreeMap<OrderId, OrderRow>,
    pub(super) money: BTreeMap<String, MoneyRow>,
    pub(super) payments: BTreeMap<String, HoldId>,
    callbacks: BTreeSet<String>,
    pub(super) entries: Vec<Entry>,
}

impl MapLedger {
    /// One transaction.
    pub(super) fn transact<T>(
        &mut self,
        need: &Need,
        now: Moment,
        decide: impl FnOnce(&Facts) -> decide::Decision<T>,
    ) -> Result<T, Refusal> {
        let facts = self.load(need, now);
        let (writes, value) = decide(&facts)?;
        writes.iter().for_each(|write| self.apply(write));
        Ok(value)
    }

    fn append_entry(&mut self, entry: &Entry) {
        let mut entry = entry.clone();
        entry.seq = self.entries.len() as u64 + 1;
        for told in &mut entry.areas {
            let area = &self.areas[&told.id];
            let taken = area.held + area.sold + area.blocked;
            told.free = area.capacity.saturating_sub(taken);
        }
        self.entries.push(entry);
    }

    fn load(&self, need: &Need, now: Moment) -> Facts {
        let mut facts = Facts { event: self.event.clone(), ..Facts::default() };
        let mut seats: BTreeSet<String> = need.seats.iter().cloned().collect();
        let mut areas: BTreeSet<String> = need.areas.iter().cloned().collect();
        let mut buyer = need.buyer.clone();
        facts.hold = need.hold.as_ref().and_then(|id| self.holds.get(id)).cloned();
        if let Some(hold) = facts.hold.as_ref().filter(|_| need.all_of_hold) {
            buyer.get_or_insert_with(|| hold.buyer.clone());
            seats.extend(hold.seats.iter().map(|seat| seat.id.clone()));
            areas.extend(hold.areas.iter().map(|area| area.id.clone()));
        }
        facts.order = need.order.as_ref().and_then(|id| self.orders.get(id)).cloned();
        facts.money = need.money.as_ref().and_then(|id| self.money.get(id)).cloned();
        facts.payment = need.payment.as_ref().and_then(|id| self.payments.get(id)).cloned();
        let stray = need.payment.as_ref().zip(need.hold.as_ref());
        let stray = stray.map(|(payment, hold)| MoneyRow::key_of(payment, hold.as_str()));
        facts.stray = stray.and_then(|key| self.money.get(&key)).cloned();
        facts.callback_seen = need.callback.as_ref().is_some_and(|id| self.callbacks.contains(id));
        facts.seats = seats.iter().map(|id| self.seat(id)).collect();
        facts.areas = areas.iter().filter_map(|id| self.areas.get(id)).cloned().collect();
        facts.buyer = buyer.and_then(|buyer| self.buyers.get(&buyer).copied()).unwrap_or_default();
        let under: BTreeSet<&HoldId> = facts.seats.iter().filter_map(|seat| Some(&seat.held.as_ref()?.0)).collect();
        // All that is due is in the facts, whether it stands in the way or not: no decision may depend on which.
        let wanted = |hold: &&HoldRow| {
            under.contains(&hold.hold_id) || (need.due + need.areas_more.len() > 0 && hold.is_due(now))
        };
        let more = need.buyer_more > 0;
        facts.holds = self.holds.values().filter(|hold| wanted(hold) || (more && hold.is_due(now))).cloned().collect();
        facts
    }

    fn seat(&self, id: &str) -> SeatFact {
        let sold = self.sold.iter().find(|(seat, ..)| seat == id).map(|(_, order, token)| (order.clone(), *token));
        let missing = !self.layout.seats.iter().any(|seat| seat.id == id);
        SeatFact {
            id: id.into(),
            held: self.held.get(id).cloned(),
            sold,
            blocked: self.blocked.get(id).cloned(),
            missing,
            token: self.tokens.get(id).copied().unwrap_or(0),
        }
    }

    fn apply(&mut self, write: &LedgerWrite) {
        match write.clone() {
            LedgerWrite::Event(row) => self.event = Some(*row),
            LedgerWrite::Layout(_, layout) => {
                for area in &layout.areas {
                    let fact = AreaFact { id: area.id.clone(), capacity: area.capacity, ..AreaFact::default() };
                    self.areas.insert(area.id.clone(), fact);
                }
                self.layout = *layout;
            }
            LedgerWrite::OpenHold(row) | LedgerWrite::UpdateHold(row) => {
                drop(self.holds.insert(row.hold_id.clone(), *row))
            }
            LedgerWrite::TakeSeats { hold_id, seats, .. } => {
                self.tokens.extend(seats.iter().cloned());
                self.held.extend(seats.into_iter().map(|(seat, token)| (seat, (hold_id.clone(), token))));
            }
            LedgerWrite::FreeSeats { hold_id, seats, .. } => {
                self.held.retain(|seat, (under, _)| *under != hold_id || !seats.contains(seat));
            }
            LedgerWrite::Area { area, held, sold, blocked, .. } => {
                let fact = self.areas.get_mut(&area).unwrap();
                let add = |count: &mut u32, more: i64| *count = u32::try_from(i64::from(*count) + more).unwrap();
                add(&mut fact.held, held);
                add(&mut fact.sold, sold);
                add(&mut fact.blocked, blocked);
            }
            LedgerWrite::Buyer { buyer, held, sold, lapses, .. } => {
                let fact = self.buyers.entry(buyer).or_default();
                fact.held = u32::try_from(i64::from(fact.held) + held).unwrap();
                fact.sold = u32::try_from(i64::from(fact.sold) + sold).unwrap();
                match lapses {
                    Lapses::Keep => {}
                    Lapses::Forget => fact.lapses = 0,
                    Lapses::More(now) => {
                        let recent = now.since(fact.lapsed_at) <= decide::LAPSE_WINDOW_MS;
                        (fact.lapses, fact.lapsed_at) = (if recent { fact.lapses + 1 } else { 1 }, now);
                    }
                }
            }
            LedgerWrite::Order(row) => drop(self.orders.insert(row.order_id.clone(), *row)),
            LedgerWrite::Sell { order_id, seats, .. } => {
                self.sold.extend(seats.into_iter().map(|seat| (seat.id, order_id.clone(), seat.token)));
            }
            LedgerWrite::Unsell { order_id, seats, .. } => {
                self.sold.retain(|(seat, order, _)| *order != order_id || !seats.contains(seat));
            }
            LedgerWrite::Block { seats, reason, .. } => {
                self.blocked.extend(seats.into_iter().map(|seat| (seat, reason.clone())));
            }
            LedgerWrite::Unblock { seats, .. } => self.blocked.retain(|seat, _| !seats.contains(seat)),
            LedgerWrite::Money(row) => drop(self.money.insert(row.key(), *row)),
            LedgerWrite::Payment { payment_ref, hold_id } => {
                assert!(self.payments.insert(payment_ref, hold_id).is_none(), "a payment is bound once");
            }
            LedgerWrite::Callback(id) => drop(self.callbacks.insert(id)),
            LedgerWrite::Entry(entry) => self.append_entry(&entry),
        }
    }

    pub(super) fn dump(&self, now: Moment) -> Dump {
        Dump {
            now,
            event: self.event.clone().unwrap(),
            seats: self.layout.seats.iter().map(|seat| seat.id.clone()).collect(),
            areas: self.areas.values().cloned().collect(),
            held: self.held.iter().map(|(seat, (hold, token))| (seat.clone(), hold.clone(), *token)).collect(),
            sold: self.sold.clone(),
            blocked: self.blocked.keys().cloned().collect(),
            holds: self.holds.values().filter(|hold| hold.state.has_seats()).cloned().collect(),
            orders: self.orders.values().cloned().collect(),
            buyers: self.buyers.iter().map(|(buyer, fact)| (buyer.clone(), fact.held, fact.sold)).collect(),
            money: self.money.values().cloned().collect(),
            numbered: (self.entries.len() as u64, self.entries.len() as u64),
            tokens_back: self.tokens_back(),
        }
    }

    fn tokens_back(&self) -> Vec<TokenBack> {
        let mut last: BTreeMap<&str, (u64, &Option<HoldId>)> = BTreeMap::new();
        let mut found = Vec::new();
        for entry in &self.entries {
            for (seat, after) in entry.seats.iter().filter_map(|seat| Some((seat.id.as_str(), seat.token?))) {
                let before = last.insert(seat, (after, &entry.hold_id));
                let back = |(before, hold): &(u64, &Option<HoldId>)| {
                    after < *before || (after == *before && *hold != &entry.hold_id)
                };
                if let Some((before, _)) = before.filter(back) {
                    found.push(TokenBack { seat: seat.into(), seq: entry.seq, before, after });
                }
            }
        }
        found
    }
}
