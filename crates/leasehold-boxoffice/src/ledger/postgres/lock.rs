//! Locks and loads the rows that a batch needs. All rows are locked in one global order, and read after the last lock.
//!
//! ```text
//!   holds ─▶ orders ─▶ money ─▶ events ─▶ buyers ─▶ areas ─▶ seats           each sorted by id: no deadlock
//!   └── round trip 1, if a job names one ──┘  └── round trip 2, with all reads ──┘
//! ```
//!
//! Rows are read by separate statements after the last lock: under READ COMMITTED each statement sees all that was
//! committed before it began. Events are locked by advisory locks: exclusive to change rules or layout, shared otherwise.
//! A row lock on the event would be contended, since every hold needs it.

use std::collections::BTreeSet;

use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};
use tokio_postgres::Row;

use super::batch_state::{BatchState, InEvent, LockHints};
use super::error::{PostgresError, PostgresResult};
use super::job::{BatchJob, unreadable};
use super::session::{Pipeline, PooledSession, StatementParams};
use crate::model::facts::{AreaFact, BuyerFact, SeatFact};
use crate::model::*;

const DUE: &str =
    "SELECT hold_id FROM holds WHERE live AND expires_at <= (SELECT moment()) ORDER BY expires_at LIMIT $1";
const DUE_OF: &str =
    "SELECT hold_id FROM holds WHERE live AND expires_at <= (SELECT moment()) AND event_id = ANY($1::text[])";
const HOLDS: &str = "SELECT body FROM holds WHERE hold_id = ANY($1::text[]) ORDER BY hold_id FOR UPDATE";
const ORDERS: &str = "SELECT body FROM orders WHERE order_id = ANY($1::text[]) ORDER BY order_id FOR UPDATE";
const MONEY: &str = "SELECT body FROM money WHERE payment_ref = ANY($1::text[]) ORDER BY payment_ref FOR UPDATE";
const SHARE_EVENTS: &str = "SELECT pg_advisory_xact_lock_shared(19528, key) FROM unnest($1::int4[]) key";
const LOCK_EVENTS: &str = "SELECT pg_advisory_xact_lock(19528, key) FROM unnest($1::int4[]) key";
// The condition is never true: existing rows are locked and not changed.
const LOCK_BUYERS: &str = "INSERT INTO buyers (event_id, buyer, held, sold)
    SELECT event_id, buyer, 0, 0 FROM unnest($1::text[], $2::text[]) AS asked (event_id, buyer)
    ON CONFLICT (event_id, buyer) DO UPDATE SET held = excluded.held WHERE false";
const AREAS: &str = "SELECT a.event_id, a.area_id, a.capacity, a.held, a.sold, a.blocked
    FROM areas a JOIN unnest($1::text[], $2::text[]) AS asked (event_id, area_id) USING (event_id, area_id)
    ORDER BY a.event_id, a.area_id FOR UPDATE OF a";
const ALL_AREAS: &str = "SELECT event_id, area_id, capacity, held, sold, blocked FROM areas
    WHERE event_id = $1 ORDER BY pos";
const IN_USE: &str = "SELECT seat_id FROM hold_seats WHERE event_id = $1 AND hold_id IS NOT NULL
    UNION SELECT seat_id FROM sold_seats WHERE event_id = $1 UNION SELECT seat_id FROM blocks WHERE event_id = $1";
const LOCK_SEATS: &str = "SELECT 1 FROM seats s
    JOIN unnest($1::text[], $2::text[]) AS asked (event_id, seat_id) USING (event_id, seat_id)
    ORDER BY s.event_id, s.seat_id FOR NO KEY UPDATE OF s";
const SEATS: &str =
    "SELECT asked.event_id, asked.seat_id, h.hold_id, coalesce(h.token, 0), s.order_id, s.token, b.reason, d.body,
    l.seat_id IS NULL
    FROM unnest($1::text[], $2::text[]) AS asked (event_id, seat_id)
    LEFT JOIN hold_seats h ON h.event_id = asked.event_id AND h.seat_id = asked.seat_id
    LEFT JOIN sold_seats s ON s.event_id = asked.event_id AND s.seat_id = asked.seat_id
    LEFT JOIN blocks b ON b.event_id = asked.event_id AND b.seat_id = asked.seat_id
    LEFT JOIN holds d ON d.hold_id = h.hold_id
    LEFT JOIN seats l ON l.event_id = asked.event_id AND l.seat_id = asked.seat_id";
const BUYERS: &str = "SELECT b.event_id, b.buyer, b.held, b.sold, b.lapses, b.lapsed_at
    FROM buyers b JOIN unnest($1::text[], $2::text[]) AS asked (event_id, buyer) USING (event_id, buyer)";
const EVENTS: &str = "SELECT body FROM events WHERE event_id = ANY($1::text[])";
const PAYMENTS: &str = "SELECT payment_ref, hold_id FROM payments WHERE payment_ref = ANY($1::text[])";
const CALLBACKS: &str = "SELECT id FROM callbacks WHERE id = ANY($1::text[])";
const ANSWERS: &str = "SELECT key, asked, answer FROM answers WHERE key = ANY($1::bytea[])";
pub(super) const SELECT_MOMENT: &str = "SELECT moment()";

/// Keys of all rows that a batch needs, sorted.
#[derive(Default)]
struct RowsToLock {
    holds: BTreeSet<HoldId>,
    orders: BTreeSet<OrderId>,
    money: BTreeSet<String>,
    payments: BTreeSet<String>,
    events: BTreeSet<EventId>,
    buyers: BTreeSet<InEvent<Buyer>>,
    areas: BTreeSet<InEvent<String>>,
    seats: BTreeSet<InEvent<String>>,
    callbacks: BTreeSet<String>,
    answers: BTreeSet<[u8; 32]>,
    exclusive: bool,
    /// The event whose layout is to be changed.
    layout: Option<EventId>,
    due: usize,
}

impl RowsToLock {
    /// The keys that the jobs name themselves.
    fn from_jobs(jobs: &[Box<dyn BatchJob>], hints: &LockHints) -> Self {
        let mut wants = Self { holds: hints.holds.clone(), ..Self::default() };
        for job in jobs {
            let need = job.need();
            wants.holds.extend(need.hold.clone());
            wants.orders.extend(need.order.clone());
            wants.money.extend(need.money.clone());
            if let (Some(payment), Some(hold), true) = (&need.payment, &need.hold, need.callback.is_some()) {
                wants.money.insert(MoneyRow::key_of(payment, hold.as_str()));
            }
            wants.payments.extend(need.payment.clone());
            wants.callbacks.extend(need.callback.clone());
            wants.answers.extend(job.idem().map(|idem| idem.key));
            wants.exclusive |= job.is_exclusive();
            wants.due = wants.due.max(need.due);
            if let Some(event) = &need.event {
                wants.add_of_event(event, need);
                wants.layout = need.layout.then(|| event.clone()).or(wants.layout);
            }
        }
        wants
    }

    fn add_of_event(&mut self, event: &EventId, need: &facts::Need) {
        self.events.insert(event.clone());
        self.seats.extend(need.seats.iter().map(|id| (event.clone(), id.clone())));
        self.areas.extend(need.areas.iter().map(|id| (event.clone(), id.clone())));
        self.buyers.extend(need.buyer.iter().map(|buyer| (event.clone(), buyer.clone())));
    }

    /// Adds the keys that the loaded holds and orders refer to.
    fn add_from_rows(&mut self, jobs: &[Box<dyn BatchJob>], state: &BatchState) {
        // Any change of a hold or an order changes the counters of its buyer and its areas.
        for hold in state.holds.values() {
            self.events.insert(hold.event_id.clone());
            self.buyers.insert((hold.event_id.clone(), hold.buyer.clone()));
            self.areas.extend(hold.areas.iter().map(|area| (hold.event_id.clone(), area.id.clone())));
        }
        for order in state.orders.values() {
            self.events.insert(order.event_id.clone());
            self.buyers.insert((order.event_id.clone(), order.buyer.clone()));
            self.areas.extend(order.areas.iter().map(|area| (order.event_id.clone(), area.id.clone())));
        }
        for need in jobs.iter().map(|job| job.need()) {
            let hold = need.hold.as_ref().and_then(|id| state.holds.get(id));
            let order = need.order.as_ref().and_then(|id| state.orders.get(id));
            let event = hold.map(|hold| &hold.event_id).or(order.map(|order| &order.event_id));
            if let Some(event) = need.event.as_ref().or(event) {
                self.add_of_event(&event.clone(), need);
            }
            if let Some(hold) = hold.filter(|_| need.all_of_hold) {
                self.seats.extend(hold.seats.iter().map(|seat| (hold.event_id.clone(), seat.id.clone())));
            }
        }
    }
}

/// Begins a transaction, locks and loads.
pub(super) async fn load(
    session: &mut PooledSession,
    jobs: &mut [Box<dyn BatchJob>],
    hints: &LockHints,
) -> PostgresResult<BatchState> {
    let mut wants = RowsToLock::from_jobs(jobs, hints);
    let mut state = BatchState::default();
    state.due_of.clone_from(&hints.due_of);
    let mut pipeline = Pipeline::default();
    pipeline.add("BEGIN", vec![]);
    if wants.due > 0 || !hints.due_of.is_empty() {
        pipeline.add(DUE, vec![Box::new(i64::try_from(wants.due).unwrap_or(i64::MAX))]);
        pipeline.add(DUE_OF, vec![Box::new(texts(&hints.due_of, EventId::as_str))]);
        for row in session.query(std::mem::take(&mut pipeline)).await?.iter().flatten() {
            wants.holds.insert(HoldId(row.try_get(0)?));
        }
    }
    if !(wants.holds.is_empty() && wants.orders.is_empty() && wants.money.is_empty()) {
        lock_named_rows(session, pipeline, &wants, &mut state).await?;
        wants.add_from_rows(jobs, &state);
        pipeline = Pipeline::default();
    }
    lock_and_read(session, pipeline, &wants, &mut state).await?;
    Ok(state)
}

async fn lock_named_rows(
    session: &mut PooledSession,
    mut pipeline: Pipeline,
    wants: &RowsToLock,
    state: &mut BatchState,
) -> PostgresResult<()> {
    let holds = pipeline.add(HOLDS, vec![Box::new(texts(&wants.holds, HoldId::as_str))]);
    let orders = || -> StatementParams { vec![Box::new(texts(&wants.orders, OrderId::as_str))] };
    let orders = pipeline.add_if(!wants.orders.is_empty(), ORDERS, orders);
    let money = || -> StatementParams { vec![Box::new(texts(&wants.money, String::as_str))] };
    let money = pipeline.add_if(!wants.money.is_empty(), MONEY, money);
    let results = session.query(pipeline).await?;
    for hold in bodies::<HoldRow>(&results[holds], "holds")? {
        state.locked.insert(hold.hold_id.clone());
        state.holds.insert(hold.hold_id.clone(), hold);
    }
    for order in bodies::<OrderRow>(&results[orders], "orders")? {
        state.orders.insert(order.order_id.clone(), order);
    }
    for money in bodies::<MoneyRow>(&results[money], "money")? {
        state.money.insert(money.key(), money);
    }
    Ok(())
}

async fn lock_and_read(
    session: &mut PooledSession,
    mut pipeline: Pipeline,
    wants: &RowsToLock,
    state: &mut BatchState,
) -> PostgresResult<()> {
    let keys: BTreeSet<i32> = wants.events.iter().map(lock_key).collect();
    let keys: Vec<i32> = keys.into_iter().collect();
    pipeline.add(if wants.exclusive { LOCK_EVENTS } else { SHARE_EVENTS }, vec![Box::new(keys)]);
    let (some_buyers, some_seats) = (!wants.buyers.is_empty(), !wants.seats.is_empty());
    let buyers = || pair_params(pairs(&wants.buyers, Buyer::as_str));
    let seats = || pair_params(pairs(&wants.seats, String::as_str));
    pipeline.add_if(some_buyers, LOCK_BUYERS, buyers);
    let areas = pipeline.add_if(!wants.areas.is_empty(), AREAS, || pair_params(pairs(&wants.areas, String::as_str)));
    pipeline.add_if(some_seats, LOCK_SEATS, seats);
    let seats = pipeline.add_if(some_seats, SEATS, seats);
    let buyers = pipeline.add_if(some_buyers, BUYERS, buyers);
    let events = pipeline.add(EVENTS, vec![Box::new(texts(&wants.events, EventId::as_str))]);
    let payments = || -> StatementParams { vec![Box::new(texts(&wants.payments, String::as_str))] };
    let payments = pipeline.add_if(!wants.payments.is_empty(), PAYMENTS, payments);
    let callbacks = || -> StatementParams { vec![Box::new(texts(&wants.callbacks, String::as_str))] };
    let callbacks = pipeline.add_if(!wants.callbacks.is_empty(), CALLBACKS, callbacks);
    let answers =
        || -> StatementParams { vec![Box::new(wants.answers.iter().map(|key| key.to_vec()).collect::<Vec<_>>())] };
    let answers = pipeline.add_if(!wants.answers.is_empty(), ANSWERS, answers);
    let layout = wants.layout.as_ref().map(|event| {
        let all = pipeline.add(ALL_AREAS, vec![Box::new(event.0.clone())]);
        (all, pipeline.add(IN_USE, vec![Box::new(event.0.clone())]))
    });
    // The clock is read last: the time spent waiting for locks counts.
    let moment = pipeline.add(SELECT_MOMENT, vec![]);
    let results = session.query(pipeline).await?;
    for row in &results[areas] {
        let (event, area) = area_row(row)?;
        state.areas.insert((event, area.id.clone()), area);
    }
    for row in &results[seats] {
        seat_row(row, state)?;
    }
    for row in &results[buyers] {
        let (event, buyer) = (EventId(row.try_get(0)?), Buyer(row.try_get(1)?));
        let (held, sold, lapses) = (count(row, 2)?, count(row, 3)?, count(row, 4)?);
        let lapsed_at = Moment(number(row, 5)?);
        state.buyers.insert((event, buyer), BuyerFact { held, sold, lapses, lapsed_at });
    }
    for event in bodies::<EventRow>(&results[events], "events")? {
        state.events.insert(event.event_id.clone(), event);
    }
    for row in &results[payments] {
        state.payments.insert(row.try_get(0)?, HoldId(row.try_get(1)?));
    }
    for row in &results[callbacks] {
        state.callbacks.insert(row.try_get(0)?);
    }
    for row in &results[answers] {
        let key: Vec<u8> = row.try_get(0)?;
        let key = key.try_into().map_err(|_| PostgresError::corrupt("keys are digests", "answers"))?;
        state.answers.insert(key, (row.try_get(1)?, row.try_get(2)?));
    }
    if let Some((areas, in_use)) = layout {
        state.layout.0 = results[areas].iter().map(|row| Ok(area_row(row)?.1)).collect::<PostgresResult<_>>()?;
        state.layout.1 = results[in_use].iter().map(|row| Ok(row.try_get(0)?)).collect::<PostgresResult<_>>()?;
    }
    state.now = moment_of(&results[moment])?;
    Ok(())
}

/// Loads a seat, and its hold unless that was loaded under a lock.
fn seat_row(row: &Row, state: &mut BatchState) -> PostgresResult<()> {
    let (event, id) = (EventId(row.try_get(0)?), row.try_get::<_, String>(1)?);
    let held: Option<String> = row.try_get(2)?;
    let held = held.map(|hold| PostgresResult::Ok((HoldId(hold), number(row, 3)?))).transpose()?;
    let sold: Option<String> = row.try_get(4)?;
    let sold = sold.map(|order| PostgresResult::Ok((OrderId(order), number(row, 5)?))).transpose()?;
    let body: Option<&str> = row.try_get(7)?;
    if let Some((hold, _)) = &held
        && !state.locked.contains(hold)
        && let Some(body) = body
    {
        state.holds.insert(hold.clone(), parse(body, "holds")?);
    }
    let (blocked, missing, token) = (row.try_get(6)?, row.try_get(8)?, number(row, 3)?);
    let fact = SeatFact { id: id.clone(), held, sold, blocked, missing, token };
    state.seats.insert((event, id), fact);
    Ok(())
}

pub(super) fn area_row(row: &Row) -> PostgresResult<(EventId, AreaFact)> {
    let (capacity, held, sold, blocked) = (count(row, 2)?, count(row, 3)?, count(row, 4)?, count(row, 5)?);
    Ok((EventId(row.try_get(0)?), AreaFact { id: row.try_get(1)?, capacity, held, sold, blocked }))
}

/// The advisory lock key of an event. Two events with the same key only wait for each other.
fn lock_key(event: &EventId) -> i32 {
    let digest = Sha256::digest(event.as_str().as_bytes());
    i32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]])
}

fn texts<T>(set: &BTreeSet<T>, text: impl Fn(&T) -> &str) -> Vec<String> {
    set.iter().map(|item| text(item).to_owned()).collect()
}

fn pairs<T>(set: &BTreeSet<InEvent<T>>, text: impl Fn(&T) -> &str) -> (Vec<String>, Vec<String>) {
    set.iter().map(|(event, item)| (event.0.clone(), text(item).to_owned())).unzip()
}

fn pair_params((events, ids): (Vec<String>, Vec<String>)) -> StatementParams {
    vec![Box::new(events), Box::new(ids)]
}

pub(super) fn parse<T: DeserializeOwned>(body: &str, table: &str) -> PostgresResult<T> {
    serde_json::from_str(body).map_err(|error| unreadable(table, &error))
}

/// Rows stored as JSON, in their first column.
pub(super) fn bodies<T: DeserializeOwned>(rows: &[Row], table: &str) -> PostgresResult<Vec<T>> {
    rows.iter().map(|row| parse(row.try_get(0)?, table)).collect()
}

/// A number that is never negative.
pub(super) fn number(row: &Row, at: usize) -> PostgresResult<u64> {
    let found: i64 = row.try_get(at)?;
    u64::try_from(found)
        .map_err(|_| PostgresError::corrupt("counts, tokens and prices are not negative", found.to_string()))
}

pub(super) fn count(row: &Row, at: usize) -> PostgresResult<u32> {
    let found = number(row, at)?;
    u32::try_from(found).map_err(|_| PostgresError::corrupt("counts are not beyond all bounds", found.to_string()))
}

pub(super) fn moment_of(rows: &[Row]) -> PostgresResult<Moment> {
    let row = rows.first().ok_or_else(|| PostgresError::corrupt("the server has a clock", "moment()"))?;
    Ok(Moment(number(row, 0)?))
}
