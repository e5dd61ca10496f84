//! From a [`Need`] to [`Facts`]: one statement for all seats of a request.

use std::collections::BTreeSet;

use rusqlite::{Connection, OptionalExtension as _, params};
use serde::de::DeserializeOwned;

use crate::model::facts::{AreaFact, BuyerFact, Facts, Need, SeatFact};
use crate::model::{EventId, EventRow, HoldId, HoldRow, Moment, MoneyRow, OrderId, OrderRow};

/// Why rows could not be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    #[error(transparent)]
    Sql(#[from] rusqlite::Error),
    /// A row that cannot be what we wrote.
    #[error("{law} at {at}")]
    Broken { law: String, at: String },
}

pub(super) type Loaded<T> = Result<T, Trouble>;

/// Reads a row that was stored as JSON.
pub(super) fn parse<T: DeserializeOwned>(body: &str, table: &str) -> Loaded<T> {
    serde_json::from_str(body)
        .map_err(|error| Trouble::Broken { law: "stored rows can be read".into(), at: format!("{table}: {error}") })
}

pub(super) fn json<T: serde::Serialize + ?Sized>(value: &T) -> Loaded<String> {
    serde_json::to_string(value)
        .map_err(|error| Trouble::Broken { law: "rows can be written".into(), at: error.to_string() })
}

/// Loads what a decision needs. The writer's transaction is the lock on all of it.
pub(super) fn facts(db: &Connection, need: &Need, now: Moment) -> Loaded<Facts> {
    let mut facts = Facts::default();
    let (mut seats, mut areas): (BTreeSet<String>, BTreeSet<String>) = Default::default();
    seats.extend(need.seats.iter().cloned());
    areas.extend(need.areas.iter().cloned());
    let (mut event, mut buyer) = (need.event.clone(), need.buyer.clone());
    let (mut buyer_more, mut areas_more) = (need.buyer_more, need.areas_more.clone());
    if let Some(id) = &need.hold {
        facts.hold = hold(db, id)?;
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
        facts.order = order(db, id)?;
        event = event.or_else(|| facts.order.as_ref().map(|order| order.event_id.clone()));
    }
    if let Some(reference) = &need.money {
        facts.money = money(db, reference)?;
    }
    if let Some(id) = &need.callback {
        let mut statement = db.prepare_cached("SELECT 1 FROM callbacks WHERE id = ?1")?;
        facts.callback_seen = statement.exists([id])?;
    }
    if need.due > 0 {
        facts.holds = due(db, None, now, need.due)?;
    }
    let Some(event) = event else { return Ok(facts) };
    facts.event = self::event(db, &event)?;
    if need.layout {
        facts.in_use = in_use(db, &event)?;
        facts.areas = all_areas(db, &event)?;
    }
    if !seats.is_empty() {
        facts.seats = seat_facts(db, &event, &seats)?;
        facts.holds = holds_of(db, &facts.seats)?;
    }
    for id in &areas {
        facts.areas.extend(area(db, &event, id)?);
    }
    if let Some(buyer) = &buyer {
        facts.buyer = buyer_fact(db, &event, buyer.as_str())?;
    }
    if in_the_way(&facts, buyer_more, &areas_more) {
        for hold in due(db, Some(&event), now, usize::MAX)? {
            if facts.row(&hold.hold_id).is_none() {
                facts.holds.push(hold);
            }
        }
    }
    Ok(facts)
}

/// Whether a counter, which still counts holds that are over, would refuse.
fn in_the_way(facts: &Facts, buyer_more: u32, areas_more: &[(String, u32)]) -> bool {
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

fn seat_facts(db: &Connection, event: &EventId, ids: &BTreeSet<String>) -> Loaded<Vec<SeatFact>> {
    let mut statement = db.prepare_cached(
        "SELECT j.value, h.hold_id, h.token, s.order_id, s.token, b.reason FROM json_each(?2) j
         LEFT JOIN hold_seats h ON h.event_id = ?1 AND h.seat_id = j.value
         LEFT JOIN sold_seats s ON s.event_id = ?1 AND s.seat_id = j.value
         LEFT JOIN blocks b ON b.event_id = ?1 AND b.seat_id = j.value",
    )?;
    let rows = statement.query_map(params![event.as_str(), json(ids)?], |row| {
        let held: Option<String> = row.get(1)?;
        let sold: Option<String> = row.get(3)?;
        let held = held.map(|id| Ok::<_, rusqlite::Error>((HoldId(id), row.get(2)?))).transpose()?;
        let sold = sold.map(|id| Ok::<_, rusqlite::Error>((OrderId(id), row.get(4)?))).transpose()?;
        Ok(SeatFact { id: row.get(0)?, held, sold, blocked: row.get(5)? })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn holds_of(db: &Connection, seats: &[SeatFact]) -> Loaded<Vec<HoldRow>> {
    let ids: BTreeSet<&str> = seats.iter().filter_map(|seat| Some(seat.held.as_ref()?.0.as_str())).collect();
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let mut statement =
        db.prepare_cached("SELECT h.body FROM json_each(?1) j JOIN holds h ON h.hold_id = j.value")?;
    bodies(&mut statement, [json(&ids)?], "holds")
}

/// Holds that are over by time and not ended yet, oldest first.
pub(super) fn due(db: &Connection, event: Option<&EventId>, now: Moment, limit: usize) -> Loaded<Vec<HoldRow>> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut statement = db.prepare_cached(
        "SELECT body FROM holds WHERE live = 1 AND expires_at <= ?1 AND (?2 IS NULL OR event_id = ?2)
         ORDER BY expires_at LIMIT ?3",
    )?;
    bodies(&mut statement, params![now.0, event.map(EventId::as_str), limit], "holds")
}

fn bodies<T: DeserializeOwned>(
    statement: &mut rusqlite::CachedStatement<'_>,
    params: impl rusqlite::Params,
    table: &str,
) -> Loaded<Vec<T>> {
    let mut rows = statement.query(params)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        found.push(parse(row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?, table)?);
    }
    Ok(found)
}

fn one<T: DeserializeOwned>(db: &Connection, sql: &str, id: &str, table: &str) -> Loaded<Option<T>> {
    let mut statement = db.prepare_cached(sql)?;
    let body: Option<String> = statement.query_row([id], |row| row.get(0)).optional()?;
    body.map(|body| parse(&body, table)).transpose()
}

pub(super) fn event(db: &Connection, id: &EventId) -> Loaded<Option<EventRow>> {
    one(db, "SELECT body FROM events WHERE event_id = ?1", id.as_str(), "events")
}

pub(super) fn hold(db: &Connection, id: &HoldId) -> Loaded<Option<HoldRow>> {
    one(db, "SELECT body FROM holds WHERE hold_id = ?1", id.as_str(), "holds")
}

pub(super) fn order(db: &Connection, id: &OrderId) -> Loaded<Option<OrderRow>> {
    one(db, "SELECT body FROM orders WHERE order_id = ?1", id.as_str(), "orders")
}

pub(super) fn money(db: &Connection, reference: &str) -> Loaded<Option<MoneyRow>> {
    one(db, "SELECT body FROM money WHERE payment_ref = ?1", reference, "money")
}

fn area_row(row: &rusqlite::Row<'_>) -> rusqlite::Result<AreaFact> {
    Ok(AreaFact {
        id: row.get(0)?,
        capacity: row.get(1)?,
        held: row.get(2)?,
        sold: row.get(3)?,
        blocked: row.get(4)?,
    })
}

fn area(db: &Connection, event: &EventId, id: &str) -> Loaded<Option<AreaFact>> {
    let mut statement = db.prepare_cached(
        "SELECT area_id, capacity, held, sold, blocked FROM areas WHERE event_id = ?1 AND area_id = ?2",
    )?;
    Ok(statement.query_row([event.as_str(), id], area_row).optional()?)
}

pub(super) fn all_areas(db: &Connection, event: &EventId) -> Loaded<Vec<AreaFact>> {
    let sql = "SELECT area_id, capacity, held, sold, blocked FROM areas WHERE event_id = ?1 ORDER BY pos";
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map([event.as_str()], area_row)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn buyer_fact(db: &Connection, event: &EventId, buyer: &str) -> Loaded<BuyerFact> {
    let mut statement = db
        .prepare_cached("SELECT held, sold, lapses, lapsed_at FROM buyers WHERE event_id = ?1 AND buyer = ?2")?;
    let found = statement.query_row([event.as_str(), buyer], |row| {
        Ok(BuyerFact { held: row.get(0)?, sold: row.get(1)?, lapses: row.get(2)?, lapsed_at: Moment(row.get(3)?) })
    });
    Ok(found.optional()?.unwrap_or_default())
}

fn in_use(db: &Connection, event: &EventId) -> Loaded<Vec<String>> {
    let mut statement = db.prepare_cached(
        "SELECT seat_id FROM hold_seats WHERE event_id = ?1 UNION SELECT seat_id FROM sold_seats WHERE event_id = ?1
         UNION SELECT seat_id FROM blocks WHERE event_id = ?1",
    )?;
    let rows = statement.query_map([event.as_str()], |row| row.get(0))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Rows stored as JSON, of any query.
pub(super) fn list<T: DeserializeOwned>(
    db: &Connection,
    sql: &str,
    params: impl rusqlite::Params,
    table: &str,
) -> Loaded<Vec<T>> {
    bodies(&mut db.prepare_cached(sql)?, params, table)
}
