//! Reads of one consistent snapshot.

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension as _, params};

use super::load::{self, SqliteResult, load_list};
use crate::layout::{Area, Layout, Seat};
use crate::ledger::snapshot::{self, EventRows};
use crate::model::check::{Dump, TokenBack};
use crate::model::*;

pub(super) fn layout(db: &Connection, id: &EventId) -> SqliteResult<Option<(u64, Layout)>> {
    let Some(event) = load::event(db, id)? else { return Ok(None) };
    let sql = "SELECT seat_id, section, row, number, price FROM seats WHERE event_id = ?1 ORDER BY pos";
    let mut statement = db.prepare_cached(sql)?;
    let seats = statement.query_map([id.as_str()], |row| {
        Ok(Seat { id: row.get(0)?, section: row.get(1)?, row: row.get(2)?, number: row.get(3)?, price: row.get(4)? })
    })?;
    let seats = seats.collect::<Result<_, _>>()?;
    let sql = "SELECT area_id, capacity, price FROM areas WHERE event_id = ?1 ORDER BY pos";
    let mut statement = db.prepare_cached(sql)?;
    let areas = statement
        .query_map([id.as_str()], |row| Ok(Area { id: row.get(0)?, capacity: row.get(1)?, price: row.get(2)? }))?;
    let areas = areas.collect::<Result<_, _>>()?;
    Ok(Some((event.layout_version, Layout { seats, areas })))
}

fn holds(db: &Connection, id: &EventId) -> SqliteResult<Vec<HoldRow>> {
    // By the index of live holds: ended holds are not scanned, however many there are.
    let sql = "SELECT body FROM holds INDEXED BY holds_due WHERE live = 1 AND expires_at >= 0 AND event_id = ?1
               ORDER BY hold_id";
    load_list(db, sql, [id.as_str()], "holds")
}

fn head(db: &Connection, id: &EventId) -> SqliteResult<u64> {
    let mut statement = db.prepare_cached("SELECT seq FROM heads WHERE event_id = ?1")?;
    Ok(statement.query_row([id.as_str()], |row| row.get(0)).optional()?.unwrap_or(0))
}

pub(super) fn snapshot(db: &Connection, id: &EventId, now: Moment) -> SqliteResult<Option<Snapshot>> {
    let Some(event) = load::event(db, id)? else { return Ok(None) };
    let mut statement = db.prepare_cached("SELECT seat_id, reason FROM blocks WHERE event_id = ?1")?;
    let blocks = statement.query_map([id.as_str()], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let blocks = blocks.collect::<Result<_, _>>()?;
    let (holds, sold, areas) = (holds(db, id)?, sold(db, id)?, load::all_areas(db, id)?);
    Ok(Some(snapshot::snapshot(EventRows { event, holds, sold, blocks, areas, seq: head(db, id)? }, now)))
}

fn sold(db: &Connection, id: &EventId) -> SqliteResult<Vec<(String, OrderId, u64)>> {
    let mut statement = db.prepare_cached("SELECT seat_id, order_id, token FROM sold_seats WHERE event_id = ?1")?;
    let rows = statement.query_map([id.as_str()], |row| Ok((row.get(0)?, OrderId(row.get(1)?), row.get(2)?)))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn column(db: &Connection, sql: &str, id: &EventId) -> SqliteResult<Vec<String>> {
    let mut statement = db.prepare_cached(sql)?;
    let rows = statement.query_map([id.as_str()], |row| row.get(0))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn orders_of(db: &Connection, id: &EventId) -> SqliteResult<Vec<OrderRow>> {
    load_list(db, "SELECT body FROM orders WHERE event_id = ?1 ORDER BY order_id", [id.as_str()], "orders")
}

pub(super) fn dump(db: &Connection, id: &EventId, now: Moment) -> SqliteResult<Option<Dump>> {
    let Some(event) = load::event(db, id)? else { return Ok(None) };
    let mut statement = db.prepare_cached("SELECT seat_id, hold_id, token FROM hold_seats WHERE event_id = ?1")?;
    let held = statement.query_map([id.as_str()], |row| Ok((row.get(0)?, HoldId(row.get(1)?), row.get(2)?)))?;
    let held = held.collect::<Result<_, _>>()?;
    let mut statement = db.prepare_cached("SELECT buyer, held, sold FROM buyers WHERE event_id = ?1")?;
    let buyers = statement.query_map([id.as_str()], |row| Ok((Buyer(row.get(0)?), row.get(1)?, row.get(2)?)))?;
    let buyers = buyers.collect::<Result<_, _>>()?;
    let mut statement = db.prepare_cached("SELECT count(*), coalesce(max(seq), 0) FROM feed WHERE event_id = ?1")?;
    let numbered = statement.query_row([id.as_str()], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(Some(Dump {
        now,
        event,
        seats: column(db, "SELECT seat_id FROM seats WHERE event_id = ?1", id)?,
        areas: load::all_areas(db, id)?,
        held,
        sold: sold(db, id)?,
        blocked: column(db, "SELECT seat_id FROM blocks WHERE event_id = ?1", id)?,
        holds: holds(db, id)?,
        orders: orders_of(db, id)?,
        buyers,
        money: load_list(db, "SELECT body FROM money WHERE event_id = ?1", [id.as_str()], "money")?,
        numbered,
        tokens_back: tokens_back(db, id)?,
    }))
}

/// Computed from the entries alone, not from the tables of seats.
fn tokens_back(db: &Connection, id: &EventId) -> SqliteResult<Vec<TokenBack>> {
    let mut statement = db.prepare_cached(
        "SELECT seat, seq, before, token FROM (
             SELECT s.value ->> 'id' AS seat, f.seq AS seq, s.value ->> 'token' AS token, o.body ->> 'hold_id' AS hold,
                 lag(s.value ->> 'token') OVER seats AS before, lag(o.body ->> 'hold_id') OVER seats AS held
             FROM feed f JOIN outbox o ON o.id = f.outbox_id, json_each(o.body, '$.seats') s
             WHERE f.event_id = ?1 AND s.value ->> 'token' IS NOT NULL
             WINDOW seats AS (PARTITION BY s.value ->> 'id' ORDER BY f.seq))
         WHERE token < before OR (token = before AND hold IS NOT held) LIMIT 100",
    )?;
    let rows = statement.query_map([id.as_str()], |row| {
        Ok(TokenBack { seat: row.get(0)?, seq: row.get(1)?, before: row.get(2)?, after: row.get(3)? })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// The highest token of any seat is stored. Places of areas have the tokens of the leases of live holds.
pub(super) fn highest_token(db: &Connection) -> SqliteResult<u64> {
    let mut statement = db.prepare_cached(
        "SELECT max((SELECT highest FROM tokens),
             coalesce((SELECT max(l.value ->> 'token') FROM holds h, json_each(h.body, '$.leases') l WHERE h.live = 1), 0))",
    )?;
    Ok(statement.query_row([], |row| row.get(0))?)
}

pub(super) fn captures_open(db: &Connection) -> SqliteResult<Vec<OrderRow>> {
    let sql =
        "SELECT body FROM orders WHERE json_extract(body, '$.capture.state') IN ('due', 'failed') ORDER BY order_id";
    load_list(db, sql, [], "orders")
}

/// Holds that have seats, of all events: how many are what, and how late the oldest that is due is.
pub(super) fn live(db: &Connection, now: Moment) -> SqliteResult<LiveCounts> {
    let mut statement = db.prepare_cached(
        "SELECT count(*) FILTER (WHERE expires_at > ?1 AND body ->> 'state' = 'active'),
             count(*) FILTER (WHERE expires_at > ?1 AND body ->> 'state' = 'paying'), coalesce(min(expires_at), ?1)
         FROM holds WHERE live = 1",
    )?;
    let found = statement.query_row([now.0], |row| Ok((row.get(0)?, row.get(1)?, row.get::<_, u64>(2)?)))?;
    Ok(LiveCounts { active: found.0, paying: found.1, overdue_ms: now.0.saturating_sub(found.2) })
}

/// Holds with money on its way, of all events.
pub(super) fn paying(db: &Connection, now: Moment) -> SqliteResult<Vec<HoldRow>> {
    let sql = "SELECT body FROM holds WHERE live = 1 AND expires_at > ?1 AND body ->> 'state' = 'paying'
               ORDER BY expires_at";
    load_list(db, sql, [now.0], "holds")
}

/// See [`Ledger::payments_without_word`](crate::ledger::Ledger::payments_without_word).
pub(super) fn payments_without_word(db: &Connection, now: Moment, within_ms: u64) -> SqliteResult<Vec<HoldRow>> {
    let sql = "SELECT body FROM holds WHERE live = 0 AND expires_at > ?1 AND body ->> 'payment_ref' IS NOT NULL
               AND body ->> 'state' <> 'sold'
               AND NOT EXISTS (SELECT 1 FROM money WHERE payment_ref = holds.body ->> 'payment_ref')
               ORDER BY expires_at DESC LIMIT 1000";
    load_list(db, sql, [now.0.saturating_sub(within_ms)], "holds")
}

pub(super) fn takings(db: &Connection, id: &EventId) -> SqliteResult<Takings> {
    let refunds = money_in(db, Some(id), &[MoneyState::RefundDue])?;
    let sql = "SELECT count(*) FROM outbox WHERE event_id = ?1 AND kind = 'lapsed'";
    let lapsed = db.prepare_cached(sql)?.query_row([id.as_str()], |row| row.get(0))?;
    Ok(snapshot::takings(&orders_of(db, id)?, &refunds, lapsed))
}

pub(super) fn money_in(db: &Connection, id: Option<&EventId>, states: &[MoneyState]) -> SqliteResult<Vec<MoneyRow>> {
    let sql = "SELECT body FROM money WHERE (?1 IS NULL OR event_id = ?1)
               AND state IN (SELECT value FROM json_each(?2)) ORDER BY received_at, payment_ref";
    load_list(db, sql, params![id.map(EventId::as_str), load::json(states)?], "money")
}

/// All of a payment: the whole, and every part that is written down.
pub(super) fn money_of(db: &Connection, payment_ref: &str) -> SqliteResult<Vec<MoneyRow>> {
    let (from, until) = order::parts_of(payment_ref);
    let sql = "SELECT body FROM money WHERE payment_ref = ?1 OR (payment_ref >= ?2 AND payment_ref < ?3)
               ORDER BY payment_ref";
    load_list(db, sql, [payment_ref, &from, &until], "money")
}

pub(super) fn money_of_hold(db: &Connection, id: &HoldId) -> SqliteResult<Vec<MoneyRow>> {
    let sql = "SELECT body FROM money WHERE hold_id = ?1 ORDER BY received_at, payment_ref";
    load_list(db, sql, [id.as_str()], "money")
}

pub(super) fn orders(db: &Connection, id: &EventId, after: &str, limit: usize) -> SqliteResult<Vec<OrderRow>> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let sql = "SELECT body FROM orders WHERE event_id = ?1 AND order_id > ?2 ORDER BY order_id LIMIT ?3";
    load_list(db, sql, params![id.as_str(), after, limit], "orders")
}

pub(super) fn known_tokens(db: &Connection, id: &EventId, tokens: &[u64]) -> SqliteResult<Vec<u64>> {
    Ok(snapshot::known_tokens(&holds(db, id)?, tokens))
}

pub(super) fn heads(db: &Connection) -> SqliteResult<Vec<(EventId, u64)>> {
    let mut statement = db.prepare_cached("SELECT event_id, seq FROM heads")?;
    let rows = statement.query_map([], |row| Ok((EventId(row.get(0)?), row.get(1)?)))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

pub(super) fn audit(db: &Connection, id: &EventId, query: &AuditQuery) -> SqliteResult<Vec<Entry>> {
    let limit = if query.limit == 0 { 1000 } else { query.limit };
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut statement = db.prepare_cached(
        "SELECT f.seq, o.body FROM feed f JOIN outbox o ON o.id = f.outbox_id
         WHERE f.event_id = ?1 AND f.seq > ?2
         AND (?3 IS NULL OR EXISTS (SELECT 1 FROM json_each(o.body, '$.seats') s WHERE s.value ->> 'id' = ?3))
         ORDER BY f.seq LIMIT ?4",
    )?;
    let mut rows = statement.query(params![id.as_str(), query.since, query.seat, limit])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let body: String = row.get(1)?;
        found.push(Entry { seq: row.get(0)?, ..load::parse(&body, "outbox")? });
    }
    Ok(found)
}

/// Numbers entries that have no number. Their ids are in commit order, since one thread writes them.
pub(super) fn sequence(db: &Connection, limit: usize) -> SqliteResult<Vec<Entry>> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut statement = db.prepare_cached(
        "SELECT o.id, o.event_id, o.body FROM outbox o WHERE o.id > (SELECT outbox_id FROM sequenced) ORDER BY o.id LIMIT ?1",
    )?;
    let mut rows = statement.query([limit])?;
    let (mut found, mut last) = (Vec::new(), None);
    let mut heads: HashMap<EventId, u64> = HashMap::new();
    let mut feed: Vec<(String, u64, i64)> = Vec::new();
    while let Some(row) = rows.next()? {
        let (outbox, event, body): (i64, String, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let event = EventId(event);
        let before = match heads.get(&event) {
            Some(seq) => *seq,
            None => head(db, &event)?,
        };
        let seq = before + 1;
        heads.insert(event.clone(), seq);
        feed.push((event.0, seq, outbox));
        found.push(Entry { seq, ..load::parse(&body, "outbox")? });
        last = Some(outbox);
    }
    let Some(last) = last else { return Ok(found) };
    let sql = "INSERT INTO feed SELECT value ->> 0, value ->> 1, value ->> 2 FROM json_each(?1)";
    db.prepare_cached(sql)?.execute([load::json(&feed)?])?;
    for (event, seq) in &heads {
        let sql = "INSERT INTO heads VALUES (?1, ?2) ON CONFLICT (event_id) DO UPDATE SET seq = excluded.seq";
        db.prepare_cached(sql)?.execute(params![event.as_str(), seq])?;
    }
    db.prepare_cached("UPDATE sequenced SET outbox_id = ?1")?.execute([last])?;
    Ok(found)
}
