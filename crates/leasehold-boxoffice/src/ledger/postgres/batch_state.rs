//! The state of one batch: its rows in memory, first as they were loaded under locks, then as its decisions leave them.
//!
//! ```text
//!   locked rows ──▶ batch state ──▶ facts of job 1 ──▶ its writes, applied to the state ──▶ facts of job 2 ──▶ …
//!                                                            └──▶ changes, one statement per table
//! ```
//!
//! # Laws
//!
//! 1. Each request sees what those before it in the batch decided, as if it had come after their COMMIT.
//! 2. A hold that is not locked is not changed. A job that would change one is set aside, and retried with the lock.
//! 3. What is stored is the difference between the loaded rows and the final rows.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};

use super::error::{PostgresError, PostgresResult};
use super::job::BatchJob;
use crate::layout::Layout;
use crate::ledger::load_facts::{LockedRows, load_facts};
use crate::model::decide::LAPSE_WINDOW_MS;
use crate::model::facts::{AreaFact, BuyerFact, SeatFact};
use crate::model::write::{Lapses, LedgerWrite};
use crate::model::*;

/// A seat, an area or a buyer of an event.
pub(super) type InEvent<T> = (EventId, T);

/// What must be locked when a job that was set aside is retried.
#[derive(Clone, Debug, Default)]
pub(super) struct LockHints {
    /// These holds.
    pub(super) holds: BTreeSet<HoldId>,
    /// All holds of these events that are over by time.
    pub(super) due_of: BTreeSet<EventId>,
}

impl LockHints {
    pub(super) fn is_empty(&self) -> bool {
        self.holds.is_empty() && self.due_of.is_empty()
    }

    pub(super) fn extend(&mut self, more: Self) {
        self.holds.extend(more.holds);
        self.due_of.extend(more.due_of);
    }
}

/// A row that is inserted or deleted: before and after the batch.
#[derive(Clone, Debug)]
pub(super) struct RowChange<T> {
    pub(super) before: Option<T>,
    pub(super) after: Option<T>,
}

/// A change of a row in `hold_seats`. The row stays when the seat is free again, with its last token.
#[derive(Clone, Debug)]
pub(super) struct HeldSeatChange {
    /// Whether the row exists.
    pub(super) there: bool,
    /// The hold that the row must have now.
    pub(super) before: Option<HoldId>,
    /// The hold to store.
    pub(super) after: Option<HoldId>,
    /// The token to store; none: unchanged.
    pub(super) token: Option<u64>,
}

/// See the module.
#[derive(Default)]
pub(super) struct BatchState {
    pub(super) now: Moment,
    /// Events whose due holds were all loaded and locked.
    pub(super) due_of: BTreeSet<EventId>,
    pub(super) events: BTreeMap<EventId, EventRow>,
    pub(super) holds: BTreeMap<HoldId, HoldRow>,
    /// Holds that are locked in this transaction.
    pub(super) locked: BTreeSet<HoldId>,
    pub(super) orders: BTreeMap<OrderId, OrderRow>,
    pub(super) money: BTreeMap<String, MoneyRow>,
    /// Which hold a payment is for.
    pub(super) payments: BTreeMap<String, HoldId>,
    pub(super) callbacks: BTreeSet<String>,
    pub(super) answers: BTreeMap<[u8; 32], (Vec<u8>, String)>,
    pub(super) seats: BTreeMap<InEvent<String>, SeatFact>,
    pub(super) areas: BTreeMap<InEvent<String>, AreaFact>,
    pub(super) buyers: BTreeMap<InEvent<Buyer>, BuyerFact>,
    /// Areas of one event in the order of its layout, and its seats in use; only where a layout is changed.
    pub(super) layout: (Vec<AreaFact>, Vec<String>),
    /// A decision asked for due holds of an event that is not in `due_of`.
    missed_due: AtomicBool,
    pub(super) changes: BatchChanges,
}

/// All changes of a batch, by table.
#[derive(Default)]
pub(super) struct BatchChanges {
    pub(super) new_events: Vec<EventRow>,
    pub(super) events: BTreeMap<EventId, EventRow>,
    pub(super) layouts: Vec<(EventId, Layout)>,
    pub(super) new_holds: BTreeSet<HoldId>,
    pub(super) holds: BTreeMap<HoldId, HoldRow>,
    pub(super) held: BTreeMap<InEvent<String>, HeldSeatChange>,
    pub(super) sold: BTreeMap<InEvent<String>, RowChange<(OrderId, u64, u64)>>,
    pub(super) blocked: BTreeMap<InEvent<String>, RowChange<String>>,
    /// Deltas of held, sold and blocked.
    pub(super) areas: BTreeMap<InEvent<String>, (i64, i64, i64)>,
    /// Deltas of held and sold; lapses and their moment as stored afterwards.
    pub(super) buyers: BTreeMap<InEvent<Buyer>, (i64, i64, u32, Moment)>,
    pub(super) new_orders: BTreeSet<OrderId>,
    pub(super) orders: BTreeMap<OrderId, OrderRow>,
    pub(super) new_money: BTreeSet<String>,
    pub(super) money: BTreeMap<String, MoneyRow>,
    pub(super) payments: BTreeMap<String, HoldId>,
    pub(super) callbacks: BTreeSet<String>,
    /// Key, digest of what was asked, answer.
    pub(super) answers: Vec<([u8; 32], [u8; 32], String)>,
    pub(super) entries: Vec<Entry>,
    /// Whether there is any change.
    pub(super) any: bool,
}

impl BatchState {
    /// Decides one job and applies its writes. With hints: it was set aside, and nothing was decided.
    pub(super) fn decide_job(&mut self, job: &mut dyn BatchJob) -> PostgresResult<LockHints> {
        let mut hints = LockHints::default();
        let idem = job.idem().cloned();
        if let Some((asked, answer)) = idem.as_ref().and_then(|idem| self.answers.get(&idem.key)) {
            job.replay(asked, answer, self.now);
            return Ok(hints);
        }
        self.missed_due.store(false, Ordering::Relaxed);
        let facts = load_facts(self, job.need(), self.now)?;
        if self.missed_due.load(Ordering::Relaxed) {
            hints.due_of.extend(facts.event.map(|event| event.event_id));
            return Ok(hints);
        }
        let Some(decided) = job.decide(&facts, self.now) else { return Ok(hints) };
        for write in &decided.writes {
            if let LedgerWrite::UpdateHold(row) = write
                && !self.locked.contains(&row.hold_id)
            {
                hints.holds.insert(row.hold_id.clone());
            }
        }
        if !hints.is_empty() {
            return Ok(hints);
        }
        decided.writes.into_iter().try_for_each(|write| self.apply_write(write))?;
        if let (Some(idem), Some(answer)) = (idem, decided.answer) {
            let answer = answer.map_err(|error| PostgresError::corrupt("rows can be written", error.to_string()))?;
            self.answers.insert(idem.key, (idem.body.to_vec(), answer.clone()));
            self.changes.answers.push((idem.key, idem.body, answer));
        }
        self.changes.any = true;
        Ok(hints)
    }

    fn append_entry(&mut self, mut entry: Entry) -> PostgresResult<()> {
        entry.wall_ms = crate::ledger::wall_ms();
        for told in &mut entry.areas {
            let area = self.areas.get(&(entry.event_id.clone(), told.id.clone()));
            let area = area.ok_or_else(|| missing("area", &told.id))?;
            let taken = area.held.saturating_add(area.sold).saturating_add(area.blocked);
            told.free = area.capacity.saturating_sub(taken);
        }
        self.changes.entries.push(entry);
        Ok(())
    }

    fn apply_write(&mut self, write: LedgerWrite) -> PostgresResult<()> {
        match write {
            LedgerWrite::Event(row) => {
                let known = self.events.insert(row.event_id.clone(), (*row).clone()).is_some();
                if known {
                    self.changes.events.insert(row.event_id.clone(), *row);
                } else {
                    self.changes.new_events.push(*row);
                }
            }
            LedgerWrite::Layout(event, layout) => self.changes.layouts.push((event, *layout)),
            LedgerWrite::OpenHold(row) => {
                self.changes.new_holds.insert(row.hold_id.clone());
                self.locked.insert(row.hold_id.clone());
                self.store_hold(*row);
            }
            LedgerWrite::UpdateHold(row) => self.store_hold(*row),
            LedgerWrite::TakeSeats { .. }
            | LedgerWrite::FreeSeats { .. }
            | LedgerWrite::Sell { .. }
            | LedgerWrite::Unsell { .. }
            | LedgerWrite::Block { .. }
            | LedgerWrite::Unblock { .. } => self.apply_seat_write(write)?,
            LedgerWrite::Area { event_id, area, held, sold, blocked } => {
                self.area_delta((event_id, area), held, sold, blocked)?
            }
            LedgerWrite::Buyer { event_id, buyer, held, sold, lapses } => {
                self.buyer_delta((event_id, buyer), held, sold, lapses)?
            }
            LedgerWrite::Order(row) => {
                if self.orders.insert(row.order_id.clone(), (*row).clone()).is_none() {
                    self.changes.new_orders.insert(row.order_id.clone());
                }
                self.changes.orders.insert(row.order_id.clone(), *row);
            }
            LedgerWrite::Money(row) => {
                if self.money.insert(row.key(), (*row).clone()).is_none() {
                    self.changes.new_money.insert(row.key());
                }
                self.changes.money.insert(row.key(), *row);
            }
            LedgerWrite::Payment { payment_ref, hold_id } => {
                self.payments.insert(payment_ref.clone(), hold_id.clone());
                self.changes.payments.insert(payment_ref, hold_id);
            }
            LedgerWrite::Callback(id) => {
                self.callbacks.insert(id.clone());
                self.changes.callbacks.insert(id);
            }
            LedgerWrite::Entry(entry) => self.append_entry(*entry)?,
        }
        Ok(())
    }

    /// Applies a write that changes the state of seats; any other is none of them.
    fn apply_seat_write(&mut self, write: LedgerWrite) -> PostgresResult<()> {
        match write {
            LedgerWrite::TakeSeats { event_id, hold_id, seats } => {
                for (seat, token) in seats {
                    let fact = self.seats.get_mut(&(event_id.clone(), seat.clone()));
                    let fact = fact.ok_or_else(|| missing("seat", &seat))?;
                    let fresh = HeldSeatChange { there: fact.token > 0, before: None, after: None, token: None };
                    let net = self.changes.held.entry((event_id.clone(), seat.clone())).or_insert(fresh);
                    if net.after.replace(hold_id.clone()).is_some() || fact.token >= token {
                        return Err(PostgresError::corrupt("a seat is taken by one, and its token rises", seat));
                    }
                    net.token = Some(token);
                    (fact.held, fact.token) = (Some((hold_id.clone(), token)), token);
                }
            }
            LedgerWrite::FreeSeats { event_id, hold_id, seats } => {
                for seat in seats {
                    if let Some(fact) = self.seats.get_mut(&(event_id.clone(), seat.clone())) {
                        fact.held = None;
                    }
                    let held = HeldSeatChange { there: true, before: Some(hold_id.clone()), after: None, token: None };
                    self.changes.held.entry((event_id.clone(), seat)).or_insert(held).after = None;
                }
            }
            LedgerWrite::Sell { event_id, order_id, seats } => {
                for seat in seats {
                    if let Some(fact) = self.seats.get_mut(&(event_id.clone(), seat.id.clone())) {
                        fact.sold = Some((order_id.clone(), seat.token));
                    }
                    insert_row(
                        &mut self.changes.sold,
                        (event_id.clone(), seat.id),
                        (order_id.clone(), seat.token, seat.price),
                    )?;
                }
            }
            LedgerWrite::Unsell { event_id, order_id, seats } => {
                for seat in seats {
                    if let Some(fact) = self.seats.get_mut(&(event_id.clone(), seat.clone())) {
                        fact.sold = None;
                    }
                    delete_row(&mut self.changes.sold, (event_id.clone(), seat), (order_id.clone(), 0, 0));
                }
            }
            LedgerWrite::Block { event_id, seats, reason } => {
                for seat in seats {
                    let fact = self.seats.get_mut(&(event_id.clone(), seat.clone()));
                    fact.ok_or_else(|| missing("seat", &seat))?.blocked = Some(reason.clone());
                    insert_row(&mut self.changes.blocked, (event_id.clone(), seat), reason.clone())?;
                }
            }
            LedgerWrite::Unblock { event_id, seats } => {
                for seat in seats {
                    let fact = self.seats.get_mut(&(event_id.clone(), seat.clone()));
                    fact.ok_or_else(|| missing("seat", &seat))?.blocked = None;
                    delete_row(&mut self.changes.blocked, (event_id.clone(), seat), String::new());
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn store_hold(&mut self, row: HoldRow) {
        self.holds.insert(row.hold_id.clone(), row.clone());
        self.changes.holds.insert(row.hold_id.clone(), row);
    }

    fn area_delta(&mut self, key: InEvent<String>, held: i64, sold: i64, blocked: i64) -> PostgresResult<()> {
        let fact = self.areas.get_mut(&key).ok_or_else(|| missing("area", &key.1))?;
        (fact.held, fact.sold) = (sum(fact.held, held)?, sum(fact.sold, sold)?);
        fact.blocked = sum(fact.blocked, blocked)?;
        let delta = self.changes.areas.entry(key).or_default();
        *delta = (delta.0 + held, delta.1 + sold, delta.2 + blocked);
        Ok(())
    }

    fn buyer_delta(&mut self, key: InEvent<Buyer>, held: i64, sold: i64, lapses: Lapses) -> PostgresResult<()> {
        let fact = self.buyers.get_mut(&key).ok_or_else(|| missing("buyer", key.1.as_str()))?;
        (fact.held, fact.sold) = (sum(fact.held, held)?, sum(fact.sold, sold)?);
        match lapses {
            Lapses::Keep => {}
            Lapses::Forget => fact.lapses = 0,
            Lapses::More(now) => {
                let recent = now.since(fact.lapsed_at) <= LAPSE_WINDOW_MS;
                fact.lapses = if recent { fact.lapses.saturating_add(1) } else { 1 };
                fact.lapsed_at = now;
            }
        }
        let (lapses, lapsed_at) = (fact.lapses, fact.lapsed_at);
        let delta = self.changes.buyers.entry(key).or_default();
        *delta = (delta.0 + held, delta.1 + sold, lapses, lapsed_at);
        Ok(())
    }
}

fn missing(what: &str, id: &str) -> PostgresError {
    PostgresError::corrupt("a decision changes what was locked for it", format!("{what} {id}"))
}

fn sum(count: u32, delta: i64) -> PostgresResult<u32> {
    let sum = u32::try_from(i64::from(count) + delta);
    sum.map_err(|_| PostgresError::corrupt("counters count rows", format!("{count} and {delta} more")))
}

/// Records that a row is inserted. It must not exist.
fn insert_row<T>(
    rows: &mut BTreeMap<InEvent<String>, RowChange<T>>,
    key: InEvent<String>,
    row: T,
) -> PostgresResult<()> {
    let seat = key.1.clone();
    let net = rows.entry(key).or_insert(RowChange { before: None, after: None });
    match net.after.replace(row) {
        None => Ok(()),
        Some(_) => Err(PostgresError::corrupt("a seat is taken by one", seat)),
    }
}

/// Records that a row is deleted. It is in the table, unless this batch inserted it.
fn delete_row<T>(rows: &mut BTreeMap<InEvent<String>, RowChange<T>>, key: InEvent<String>, row: T) {
    rows.entry(key).or_insert(RowChange { before: Some(row), after: None }).after = None;
}

impl LockedRows for BatchState {
    type ReadError = Infallible;

    fn hold(&self, id: &HoldId) -> Result<Option<HoldRow>, Infallible> {
        Ok(self.holds.get(id).cloned())
    }

    fn holds(&self, ids: &BTreeSet<&HoldId>) -> Result<Vec<HoldRow>, Infallible> {
        Ok(ids.iter().filter_map(|id| self.holds.get(*id).cloned()).collect())
    }

    fn due(&self, event: Option<&EventId>, now: Moment, limit: usize) -> Result<Vec<HoldRow>, Infallible> {
        if event.is_some_and(|event| !self.due_of.contains(event)) {
            self.missed_due.store(true, Ordering::Relaxed);
        }
        let wanted = |hold: &&HoldRow| hold.is_due(now) && event.is_none_or(|event| hold.event_id == *event);
        let mut due: Vec<HoldRow> = self.holds.values().filter(wanted).cloned().collect();
        due.sort_by_key(|hold| hold.expires_at);
        due.truncate(limit);
        Ok(due)
    }

    fn order(&self, id: &OrderId) -> Result<Option<OrderRow>, Infallible> {
        Ok(self.orders.get(id).cloned())
    }

    fn money(&self, reference: &str) -> Result<Option<MoneyRow>, Infallible> {
        Ok(self.money.get(reference).cloned())
    }

    fn payment(&self, reference: &str) -> Result<Option<HoldId>, Infallible> {
        Ok(self.payments.get(reference).cloned())
    }

    fn callback_seen(&self, id: &str) -> Result<bool, Infallible> {
        Ok(self.callbacks.contains(id))
    }

    fn event(&self, id: &EventId) -> Result<Option<EventRow>, Infallible> {
        Ok(self.events.get(id).cloned())
    }

    fn seats(&self, event: &EventId, ids: &BTreeSet<String>) -> Result<Vec<SeatFact>, Infallible> {
        let fact = |id: &String| self.seats.get(&(event.clone(), id.clone())).cloned();
        let bare = |id: &String| SeatFact { id: id.clone(), ..SeatFact::default() };
        Ok(ids.iter().map(|id| fact(id).unwrap_or_else(|| bare(id))).collect())
    }

    fn area(&self, event: &EventId, id: &str) -> Result<Option<AreaFact>, Infallible> {
        Ok(self.areas.get(&(event.clone(), id.into())).cloned())
    }

    fn all_areas(&self, _: &EventId) -> Result<Vec<AreaFact>, Infallible> {
        Ok(self.layout.0.clone())
    }

    fn buyer(&self, event: &EventId, buyer: &Buyer) -> Result<BuyerFact, Infallible> {
        Ok(self.buyers.get(&(event.clone(), buyer.clone())).copied().unwrap_or_default())
    }

    fn in_use(&self, _: &EventId) -> Result<Vec<String>, Infallible> {
        Ok(self.layout.1.clone())
    }
}
