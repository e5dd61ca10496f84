//! Applies the writes of a decision: one statement for all seats of a write. Each statement must touch an exact number
//! of rows.

use rusqlite::{Connection, params};

use super::freed;
use super::load::{SqliteError, SqliteResult, json, text_array};
use crate::layout::Layout;
use crate::model::decide::LAPSE_WINDOW_MS;
use crate::model::write::{Lapses, LedgerWrite};
use crate::model::{Entry, EventId, HoldRow};

/// Applies all of them, in order.
pub(super) fn apply_all(db: &Connection, writes: &[LedgerWrite]) -> SqliteResult<()> {
    writes.iter().try_for_each(|write| apply_write(db, write))
}

fn apply_write(db: &Connection, write: &LedgerWrite) -> SqliteResult<()> {
    match write {
        LedgerWrite::Event(row) => {
            let sql = "INSERT INTO events VALUES (?1, ?2) ON CONFLICT (event_id) DO UPDATE SET body = excluded.body";
            execute_exactly(db, sql, params![row.event_id.as_str(), json(row)?], 1)
        }
        LedgerWrite::Layout(event, new) => replace_layout(db, event, new),
        LedgerWrite::OpenHold(row) => insert_hold(db, row),
        LedgerWrite::UpdateHold(row) => {
            let sql = "UPDATE holds SET live = ?2, expires_at = ?3, body = ?4 
                       WHERE hold_id = ?1 AND (live = 1 OR ?2 = 0)";
            execute_exactly(
                db,
                sql,
                params![row.hold_id.as_str(), row.state.has_seats(), row.expires_at.0, json(row)?],
                1,
            )
        }
        LedgerWrite::TakeSeats { .. }
        | LedgerWrite::FreeSeats { .. }
        | LedgerWrite::Sell { .. }
        | LedgerWrite::Unsell { .. }
        | LedgerWrite::Block { .. }
        | LedgerWrite::Unblock { .. } => apply_seat_write(db, write),
        LedgerWrite::Area { event_id, area, held, sold, blocked } => {
            let sql = "UPDATE areas SET held = held + ?3, sold = sold + ?4, blocked = blocked + ?5
                       WHERE event_id = ?1 AND area_id = ?2";
            execute_exactly(db, sql, params![event_id.as_str(), area, held, sold, blocked], 1)
        }
        LedgerWrite::Buyer { .. } => update_buyer(db, write),
        LedgerWrite::Order(row) => {
            let sql =
                "INSERT INTO orders VALUES (?1, ?2, ?3) ON CONFLICT (order_id) DO UPDATE SET body = excluded.body";
            execute_exactly(db, sql, params![row.order_id.as_str(), row.event_id.as_str(), json(row)?], 1)
        }
        LedgerWrite::Money(row) => {
            let state = json(&row.state)?;
            let sql = "INSERT INTO money VALUES (?1, ?2, ?3, ?4, ?5)
                       ON CONFLICT (payment_ref) DO UPDATE SET state = excluded.state, body = excluded.body";
            let event = row.event_id.as_str();
            execute_exactly(
                db,
                sql,
                params![row.key(), event, state.trim_matches('"'), row.received_at.0, json(row)?],
                1,
            )
        }
        LedgerWrite::Payment { payment_ref, hold_id } => {
            execute_exactly(db, "INSERT INTO payments VALUES (?1, ?2)", [payment_ref, &hold_id.0], 1)
        }
        LedgerWrite::Callback(id) => execute_exactly(db, "INSERT INTO callbacks VALUES (?1)", [id], 1),
        LedgerWrite::Entry(entry) => append_entry(db, entry),
    }
}

/// Applies a write that changes the state of seats; any other is none of them.
fn apply_seat_write(db: &Connection, write: &LedgerWrite) -> SqliteResult<()> {
    match write {
        LedgerWrite::TakeSeats { event_id, hold_id, seats } => {
            // One statement for all seats of a lease: they have the same token.
            seats.chunk_by(|one, next| one.1 == next.1).try_for_each(|seats| {
                let (token, ids) =
                    (seats.first().map_or(0, |seat| seat.1), text_array(seats.iter().map(|seat| &seat.0)));
                if let Some((seat, _)) = seats.iter().find(|(seat, token)| freed::last_token(event_id, seat) >= *token)
                {
                    let law = "the tokens of a seat rise".into();
                    return Err(SqliteError::Corrupt { law, at: format!("seat {seat}, token {token}") });
                }
                let sql = "INSERT INTO hold_seats SELECT ?1, value, ?2, ?3 FROM rarray(?4)";
                execute_exactly(db, sql, params![event_id.as_str(), hold_id.as_str(), token, ids], seats.len())?;
                execute_exactly(db, "UPDATE tokens SET highest = max(highest, ?1)", [token], 1)
            })
        }
        LedgerWrite::FreeSeats { event_id, hold_id, seats } => free_seats(db, event_id, hold_id.as_str(), seats),
        LedgerWrite::Sell { event_id, order_id, seats } => {
            let rows: Vec<(&str, u64, u64)> = seats.iter().map(|seat| (&*seat.id, seat.token, seat.price)).collect();
            let sql = "INSERT INTO sold_seats (event_id, seat_id, order_id, token, price)
                       SELECT ?1, j.value ->> 0, ?2, j.value ->> 1, j.value ->> 2 FROM json_each(?3) j";
            execute_exactly(db, sql, params![event_id.as_str(), order_id.as_str(), json(&rows)?], seats.len())
        }
        LedgerWrite::Unsell { event_id, order_id, seats } => {
            let sql = "DELETE FROM sold_seats WHERE event_id = ?1 AND order_id = ?2
                       AND seat_id IN (SELECT value FROM json_each(?3))";
            execute_exactly(db, sql, params![event_id.as_str(), order_id.as_str(), json(seats)?], seats.len())
        }
        LedgerWrite::Block { event_id, seats, reason } => {
            let sql = "INSERT INTO blocks SELECT ?1, value, ?2 FROM json_each(?3)";
            execute_exactly(db, sql, params![event_id.as_str(), reason, json(seats)?], seats.len())
        }
        LedgerWrite::Unblock { event_id, seats } => {
            let sql = "DELETE FROM blocks WHERE event_id = ?1 AND seat_id IN (SELECT value FROM json_each(?2))";
            execute_exactly(db, sql, params![event_id.as_str(), json(seats)?], seats.len())
        }
        _ => Ok(()),
    }
}

/// Frees seats, and remembers their tokens.
fn free_seats(db: &Connection, event: &EventId, hold_id: &str, seats: &[String]) -> SqliteResult<()> {
    let sql = "DELETE FROM hold_seats WHERE event_id = ?1 AND seat_id IN rarray(?3) AND hold_id = ?2
               RETURNING seat_id, token";
    let mut statement = db.prepare_cached(sql)?;
    let mut rows = statement.query(params![event.as_str(), hold_id, text_array(seats)])?;
    let mut touched = 0;
    while let Some(row) = rows.next()? {
        freed::remember(event, row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?, row.get(1)?);
        touched += 1;
    }
    expect_rows(touched, seats.len(), sql)
}

/// Runs a statement that must touch so many rows. Another number means that decision and tables do not agree.
fn execute_exactly(db: &Connection, sql: &str, params: impl rusqlite::Params, rows: usize) -> SqliteResult<()> {
    expect_rows(db.prepare_cached(sql)?.execute(params)?, rows, sql)
}

fn expect_rows(touched: usize, rows: usize, sql: &str) -> SqliteResult<()> {
    if touched == rows {
        return Ok(());
    }
    let law = "what is decided is what is stored".into();
    Err(SqliteError::Corrupt { law, at: format!("{touched} rows instead of {rows}: {sql}") })
}

fn insert_hold(db: &Connection, row: &HoldRow) -> SqliteResult<()> {
    let sql = "INSERT INTO holds VALUES (?1, ?2, 1, ?3, ?4)";
    execute_exactly(db, sql, params![row.hold_id.as_str(), row.event_id.as_str(), row.expires_at.0, json(row)?], 1)
}

fn update_buyer(db: &Connection, write: &LedgerWrite) -> SqliteResult<()> {
    let LedgerWrite::Buyer { event_id, buyer, held, sold, lapses } = write else { return Ok(()) };
    // No upsert: SQLite checks the constraints of the inserted row, with negative counts, before it sees the conflict.
    let (event, buyer) = (event_id.as_str(), buyer.as_str());
    let sql = "UPDATE buyers SET held = held + ?3, sold = sold + ?4 WHERE event_id = ?1 AND buyer = ?2";
    if db.prepare_cached(sql)?.execute(params![event, buyer, held, sold])? == 0 {
        let sql = "INSERT INTO buyers (event_id, buyer, held, sold) VALUES (?1, ?2, ?3, ?4)";
        execute_exactly(db, sql, params![event, buyer, held, sold], 1)?;
    }
    match lapses {
        Lapses::Keep => Ok(()),
        Lapses::Forget => {
            let sql = "UPDATE buyers SET lapses = 0 WHERE event_id = ?1 AND buyer = ?2";
            execute_exactly(db, sql, [event, buyer], 1)
        }
        Lapses::More(now) => {
            let sql =
                "UPDATE buyers SET lapses = CASE WHEN ?3 - lapsed_at > ?4 THEN 1 ELSE lapses + 1 END, lapsed_at = ?3
                       WHERE event_id = ?1 AND buyer = ?2";
            execute_exactly(db, sql, params![event, buyer, now.0, LAPSE_WINDOW_MS], 1)
        }
    }
}

fn replace_layout(db: &Connection, event: &EventId, layout: &Layout) -> SqliteResult<()> {
    db.prepare_cached("DELETE FROM seats WHERE event_id = ?1")?.execute([event.as_str()])?;
    let sql =
        "INSERT INTO seats SELECT ?1, value ->> 'id', key, value ->> 'section', value ->> 'row', value ->> 'number',
               value ->> 'price' FROM json_each(?2)";
    execute_exactly(db, sql, params![event.as_str(), json(&layout.seats)?], layout.seats.len())?;
    let sql = "DELETE FROM areas WHERE event_id = ?1 AND area_id NOT IN (SELECT value ->> 'id' FROM json_each(?2))";
    db.prepare_cached(sql)?.execute(params![event.as_str(), json(&layout.areas)?])?;
    let sql = "INSERT INTO areas (event_id, area_id, pos, capacity, price)
               SELECT ?1, value ->> 'id', key, value ->> 'capacity', value ->> 'price' FROM json_each(?2) WHERE true
               ON CONFLICT (event_id, area_id)
               DO UPDATE SET pos = excluded.pos, capacity = excluded.capacity, price = excluded.price";
    execute_exactly(db, sql, params![event.as_str(), json(&layout.areas)?], layout.areas.len())
}

fn append_entry(db: &Connection, entry: &Entry) -> SqliteResult<()> {
    let mut entry = entry.clone();
    entry.wall_ms = crate::ledger::wall_ms();
    let sql = "SELECT capacity - held - sold - blocked FROM areas WHERE event_id = ?1 AND area_id = ?2";
    for area in &mut entry.areas {
        area.free = db.prepare_cached(sql)?.query_row([entry.event_id.as_str(), &area.id], |row| row.get(0))?;
    }
    let kind = json(&entry.kind)?;
    let sql = "INSERT INTO outbox (event_id, kind, body) VALUES (?1, ?2, ?3)";
    execute_exactly(db, sql, params![entry.event_id.as_str(), kind.trim_matches('"'), json(&entry)?], 1)
}
