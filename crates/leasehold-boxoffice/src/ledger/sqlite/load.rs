//! Loads the rows a decision is made from: one statement for all seats of a request.

use std::collections::BTreeSet;
use std::rc::Rc;

use rusqlite::types::Value;
use rusqlite::vtab::array::Array;
use rusqlite::{Connection, OptionalExtension as _, params};
use serde::de::DeserializeOwned;

use super::freed;
use crate::ledger::load_facts::LockedRows;
use crate::model::facts::{AreaFact, BuyerFact, SeatFact};
use crate::model::{Buyer, EventId, EventRow, HoldId, HoldRow, Moment, MoneyRow, OrderId, OrderRow};

/// Why rows could not be read.
#[derive(Debug, thiserror::Error)]
pub(in crate::ledger) enum SqliteError {
    #[error(transparent)]
    Sql(#[from] rusqlite::Error),
    /// A row that this code cannot have written.
    #[error("{law} at {at}")]
    Corrupt { law: String, at: String },
}

pub(in crate::ledger) type SqliteResult<T> = Result<T, SqliteError>;

/// Reads a row that was stored as JSON.
pub(super) fn parse<T: DeserializeOwned>(body: &str, table: &str) -> SqliteResult<T> {
    serde_json::from_str(body).map_err(|error| SqliteError::Corrupt {
        law: "stored rows can be read".into(),
        at: format!("{table}: {error}"),
    })
}

pub(super) fn json<T: serde::Serialize + ?Sized>(value: &T) -> SqliteResult<String> {
    serde_json::to_string(value)
        .map_err(|error| SqliteError::Corrupt { law: "rows can be written".into(), at: error.to_string() })
}

/// Texts as one parameter, for `rarray`.
pub(super) fn text_array<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> Array {
    Rc::new(texts.into_iter().map(|text| Value::Text(text.as_ref().to_owned())).collect())
}

/// There is one writer: its open transaction is the lock on all rows.
impl LockedRows for Connection {
    type ReadError = SqliteError;

    fn hold(&self, id: &HoldId) -> SqliteResult<Option<HoldRow>> {
        hold(self, id)
    }

    fn holds(&self, ids: &BTreeSet<&HoldId>) -> SqliteResult<Vec<HoldRow>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let sql = "SELECT h.body FROM json_each(?1) j JOIN holds h ON h.hold_id = j.value";
        load_list(self, sql, [json(ids)?], "holds")
    }

    fn due(&self, event: Option<&EventId>, now: Moment, limit: usize) -> SqliteResult<Vec<HoldRow>> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let sql = "SELECT body FROM holds WHERE live = 1 AND expires_at <= ?1 AND (?2 IS NULL OR event_id = ?2)
                   ORDER BY expires_at LIMIT ?3";
        load_list(self, sql, params![now.0, event.map(EventId::as_str), limit], "holds")
    }

    fn order(&self, id: &OrderId) -> SqliteResult<Option<OrderRow>> {
        order(self, id)
    }

    fn money(&self, reference: &str) -> SqliteResult<Option<MoneyRow>> {
        money(self, reference)
    }

    fn payment(&self, reference: &str) -> SqliteResult<Option<HoldId>> {
        let mut statement = self.prepare_cached("SELECT hold_id FROM payments WHERE payment_ref = ?1")?;
        Ok(statement.query_row([reference], |row| row.get(0).map(HoldId)).optional()?)
    }

    fn callback_seen(&self, id: &str) -> SqliteResult<bool> {
        Ok(self.prepare_cached("SELECT 1 FROM callbacks WHERE id = ?1")?.exists([id])?)
    }

    fn event(&self, id: &EventId) -> SqliteResult<Option<EventRow>> {
        event(self, id)
    }

    fn seats(&self, event: &EventId, ids: &BTreeSet<String>) -> SqliteResult<Vec<SeatFact>> {
        seat_facts(self, event, ids)
    }

    fn area(&self, event: &EventId, id: &str) -> SqliteResult<Option<AreaFact>> {
        area(self, event, id)
    }

    fn all_areas(&self, event: &EventId) -> SqliteResult<Vec<AreaFact>> {
        all_areas(self, event)
    }

    fn buyer(&self, event: &EventId, buyer: &Buyer) -> SqliteResult<BuyerFact> {
        buyer_fact(self, event, buyer.as_str())
    }

    fn in_use(&self, event: &EventId) -> SqliteResult<Vec<String>> {
        in_use(self, event)
    }
}

fn seat_facts(db: &Connection, event: &EventId, ids: &BTreeSet<String>) -> SqliteResult<Vec<SeatFact>> {
    let mut statement = db.prepare_cached(
        "SELECT j.value, h.hold_id, h.token, s.order_id, s.token, b.reason, l.seat_id IS NULL
         FROM rarray(?2) j
         LEFT JOIN hold_seats h ON h.event_id = ?1 AND h.seat_id = j.value
         LEFT JOIN sold_seats s ON s.event_id = ?1 AND s.seat_id = j.value
         LEFT JOIN blocks b ON b.event_id = ?1 AND b.seat_id = j.value
         LEFT JOIN seats l ON l.event_id = ?1 AND l.seat_id = j.value",
    )?;
    let rows = statement.query_map(params![event.as_str(), text_array(ids)], |row| {
        let held: Option<String> = row.get(1)?;
        let sold: Option<String> = row.get(3)?;
        let held = held.map(|id| Ok::<_, rusqlite::Error>((HoldId(id), row.get(2)?))).transpose()?;
        let sold = sold.map(|id| Ok::<_, rusqlite::Error>((OrderId(id), row.get(4)?))).transpose()?;
        let (id, blocked, missing): (String, _, _) = (row.get(0)?, row.get(5)?, row.get(6)?);
        let token = row.get::<_, Option<u64>>(2)?.unwrap_or_else(|| freed::last_token(event, &id));
        Ok(SeatFact { id, held, sold, blocked, missing, token })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn parse_bodies<T: DeserializeOwned>(
    statement: &mut rusqlite::CachedStatement<'_>,
    params: impl rusqlite::Params,
    table: &str,
) -> SqliteResult<Vec<T>> {
    let mut rows = statement.query(params)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        found.push(parse(row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?, table)?);
    }
    Ok(found)
}

fn load_one<T: DeserializeOwned>(db: &Connection, sql: &str, id: &str, table: &str) -> SqliteResult<Option<T>> {
    let mut statement = db.prepare_cached(sql)?;
    let body: Option<String> = statement.query_row([id], |row| row.get(0)).optional()?;
    body.map(|body| parse(&body, table)).transpose()
}

pub(super) fn event(db: &Connection, id: &EventId) -> SqliteResult<Option<EventRow>> {
    load_one(db, "SELECT body FROM events WHERE event_id = ?1", id.as_str(), "events")
}

pub(super) fn hold(db: &Connection, id: &HoldId) -> SqliteResult<Option<HoldRow>> {
    load_one(db, "SELECT body FROM holds WHERE hold_id = ?1", id.as_str(), "holds")
}

pub(super) fn order(db: &Connection, id: &OrderId) -> SqliteResult<Option<OrderRow>> {
    load_one(db, "SELECT body FROM orders WHERE order_id = ?1", id.as_str(), "orders")
}

pub(super) fn money(db: &Connection, reference: &str) -> SqliteResult<Option<MoneyRow>> {
    load_one(db, "SELECT body FROM money WHERE payment_ref = ?1", reference, "money")
}

fn area_row(row: &rusqlite::Row<'_>) -> rusqlite::Result<AreaFact> {
    Ok(AreaFact { id: row.get(0)?, capacity: row.get(1)?, held: row.get(2)?, sold: row.get(3)?, blocked: row.get(4)? })
}

fn area(db: &Connection, event: &EventId, id: &str) -> SqliteResult<Option<AreaFact>> {
    let mut statement = db.prepare_cached(
        "SELECT area_id, capacity, held, sold, blocked FROM areas WHERE event_id = ?1 AND area_id = ?2",
    )?;
    Ok(statement.query_row([event.as_str(), id], area_row).optional()?)
}

pub(super) fn all_areas(db: &Connection, event: &EventId) -> SqliteResult<Vec<AreaFact>> {
    let sql = "SELECT area_id, capacity, held, sold, blocked FROM areas WHERE event_id = ?1 ORDER BY pos";
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map([event.as_str()], area_row)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn buyer_fact(db: &Connection, event: &EventId, buyer: &str) -> SqliteResult<BuyerFact> {
    let mut statement =
        db.prepare_cached("SELECT held, sold, lapses, lapsed_at FROM buyers WHERE event_id = ?1 AND buyer = ?2")?;
    let found = statement.query_row([event.as_str(), buyer], |row| {
        Ok(BuyerFact { held: row.get(0)?, sold: row.get(1)?, lapses: row.get(2)?, lapsed_at: Moment(row.get(3)?) })
    });
    Ok(found.optional()?.unwrap_or_default())
}

fn in_use(db: &Connection, event: &EventId) -> SqliteResult<Vec<String>> {
    let mut statement = db.prepare_cached(
        "SELECT seat_id FROM hold_seats WHERE event_id = ?1
         UNION SELECT seat_id FROM sold_seats WHERE event_id = ?1
         UNION SELECT seat_id FROM blocks WHERE event_id = ?1",
    )?;
    let rows = statement.query_map([event.as_str()], |row| row.get(0))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Rows stored as JSON, of any query.
pub(super) fn load_list<T: DeserializeOwned>(
    db: &Connection,
    sql: &str,
    params: impl rusqlite::Params,
    table: &str,
) -> SqliteResult<Vec<T>> {
    parse_bodies(&mut db.prepare_cached(sql)?, params, table)
}
