//! Read statements, and how their rows are parsed.

use tokio_postgres::Row;

use super::error::PostgresResult;
use super::lock::{area_row, bodies, count, number, parse};
use crate::layout::{Area, Layout, Seat};
use crate::ledger::snapshot::{self, EventRows};
use crate::model::check::{Dump, TokenBack};
use crate::model::*;

pub(super) const EVENT: &str = "SELECT body FROM events WHERE event_id = $1";
pub(super) const EVENTS: &str = "SELECT body FROM events ORDER BY pos";
pub(super) const HOLD: &str = "SELECT body FROM holds WHERE hold_id = $1";
pub(super) const ORDER: &str = "SELECT body FROM orders WHERE order_id = $1";
pub(super) const MONEY: &str = "SELECT body FROM money WHERE payment_ref = $1";
pub(super) const MONEY_OF: &str = "SELECT body FROM money WHERE payment_ref = $1
    OR (payment_ref >= $2 AND payment_ref < $3) ORDER BY payment_ref";
pub(super) const MONEY_OF_HOLD: &str = "SELECT body FROM money WHERE hold_id = $1 ORDER BY received_at, payment_ref";
pub(super) const MONEY_OF_EVENT: &str = "SELECT body FROM money WHERE event_id = $1";
pub(super) const MONEY_IN: &str = "SELECT body FROM money WHERE ($1::text IS NULL OR event_id = $1)
    AND state = ANY($2::text[]) ORDER BY received_at, payment_ref";
pub(super) const ORDERS: &str =
    "SELECT body FROM orders WHERE event_id = $1 AND order_id > $2 ORDER BY order_id LIMIT $3";
pub(super) const ORDERS_OF: &str = "SELECT body FROM orders WHERE event_id = $1 ORDER BY order_id";
pub(super) const LIVE: &str = "SELECT body FROM holds WHERE live AND event_id = $1 ORDER BY hold_id";
pub(super) const SEATS: &str =
    r#"SELECT seat_id, section, "row", number, price FROM seats WHERE event_id = $1 ORDER BY pos"#;
pub(super) const LAYOUT_AREAS: &str = "SELECT area_id, capacity, price FROM areas WHERE event_id = $1 ORDER BY pos";
pub(super) const AREAS: &str =
    "SELECT event_id, area_id, capacity, held, sold, blocked FROM areas WHERE event_id = $1 ORDER BY pos";
pub(super) const SOLD: &str = "SELECT seat_id, order_id, token FROM sold_seats WHERE event_id = $1";
pub(super) const BLOCKS: &str = "SELECT seat_id, reason FROM blocks WHERE event_id = $1";
pub(super) const HEAD: &str = "SELECT seq FROM heads WHERE event_id = $1";
pub(super) const HEADS: &str = "SELECT event_id, seq FROM heads ORDER BY event_id";
pub(super) const HELD: &str =
    "SELECT seat_id, hold_id, token FROM hold_seats WHERE event_id = $1 AND hold_id IS NOT NULL";
/// Computed from the entries alone, not from the tables of seats.
/// `OFFSET 0` makes PostgreSQL parse each body once, and COLLATE "C" compares bytes: 2.7 times as fast. So 300,000 entries
/// fit into the statement timeout.
pub(super) const TOKENS_BACK: &str = r#"SELECT seat, seq, before, token FROM (
        SELECT seat, seq, token, hold, lag(token) OVER seats AS before, lag(hold) OVER seats AS held
        FROM (
            SELECT (s ->> 'id') COLLATE "C" AS seat, f.seq, (s ->> 'token')::bigint AS token, f.body ->> 'hold_id' AS hold
            FROM (SELECT seq, body::jsonb AS body FROM feed WHERE event_id = $1 OFFSET 0) f,
                jsonb_array_elements(coalesce(f.body -> 'seats', '[]')) s
            WHERE s ->> 'token' IS NOT NULL OFFSET 0
        ) told
        WINDOW seats AS (PARTITION BY seat ORDER BY seq)
    ) steps WHERE token < before OR (token = before AND hold IS DISTINCT FROM held) LIMIT 100"#;
pub(super) const CAPTURES_OPEN: &str = r#"SELECT body FROM orders
    WHERE body LIKE '%"capture":{"state":"due"%' OR body LIKE '%"capture":{"state":"failed"%' ORDER BY order_id"#;
pub(super) const COUNT_LIVE: &str = r#"SELECT
    count(*) FILTER (WHERE expires_at > m.now AND body LIKE '%"state":"active"%'),
    count(*) FILTER (WHERE expires_at > m.now AND body LIKE '%"state":"paying"%'),
    greatest(coalesce(max(m.now) - min(expires_at), 0), 0)
    FROM holds, (SELECT moment() AS now) m WHERE live"#;
pub(super) const PAYING: &str = r#"SELECT body FROM holds WHERE live AND expires_at > (SELECT moment())
    AND body LIKE '%"state":"paying"%' ORDER BY expires_at"#;
/// See [`Ledger::payments_without_word`](crate::ledger::Ledger::payments_without_word). The LIKE conditions come first: they
/// exclude most ended holds cheaply.
pub(super) const PAYMENTS_WITHOUT_WORD: &str = r#"SELECT body FROM holds WHERE NOT live AND expires_at > (SELECT moment()) - $1::bigint
    AND body LIKE '%"payment_ref":"%' AND body NOT LIKE '%"state":"sold"%'
    AND NOT EXISTS (SELECT 1 FROM money m WHERE m.payment_ref = holds.body::json ->> 'payment_ref')
    ORDER BY expires_at DESC LIMIT 1000"#;
pub(super) const ENGINE: &str = "SELECT identity FROM engine";
/// Seats keep their last token. Places of areas have the tokens of the leases of live holds.
pub(super) const HIGHEST_TOKEN: &str = "SELECT greatest(coalesce((SELECT max(token) FROM hold_seats), 0),
    coalesce((SELECT max((l ->> 'token')::bigint) FROM holds h, jsonb_array_elements(h.body::jsonb -> 'leases') l
        WHERE h.live), 0))";
pub(super) const PUT_ENGINE: &str =
    "UPDATE engine SET identity = $1 WHERE identity IS NOT DISTINCT FROM $2 RETURNING id";
pub(super) const BUYERS: &str = "SELECT buyer, held, sold FROM buyers WHERE event_id = $1";
pub(super) const NUMBERED: &str = "SELECT count(*), coalesce(max(seq), 0) FROM feed WHERE event_id = $1";
pub(super) const LAPSED: &str = "SELECT (SELECT count(*) FROM feed WHERE event_id = $1 AND kind = 'lapsed')
    + (SELECT count(*) FROM outbox WHERE event_id = $1 AND kind = 'lapsed')";
pub(super) const ANSWER: &str = "SELECT asked, answer FROM answers WHERE key = $1";
pub(super) const AUDIT: &str = "SELECT event_id, seq, body FROM feed WHERE event_id = $1 AND seq > $2
    AND ($3::text IS NULL OR body::jsonb -> 'seats' @> jsonb_build_array(jsonb_build_object('id', $3::text)))
    ORDER BY seq LIMIT $4";

/// One transaction at a time numbers entries.
pub(super) const NUMBERING: &str = "SELECT pg_advisory_xact_lock(19529, 0)";
/// Entries become visible when their transactions commit, and a later change of the same row has a higher id. So the ids
/// that one statement sees are a valid order of events.
pub(super) const NUMBER: &str = "WITH taken AS (
        DELETE FROM outbox WHERE id IN (SELECT id FROM outbox ORDER BY id LIMIT $1) RETURNING id, event_id, kind, body
    ), numbered AS (
        SELECT t.id, t.event_id, t.kind, t.body,
            coalesce(h.seq, 0) + row_number() OVER (PARTITION BY t.event_id ORDER BY t.id) AS seq
        FROM taken t LEFT JOIN heads h ON h.event_id = t.event_id
    ), fed AS (
        INSERT INTO feed (event_id, seq, kind, body) SELECT event_id, seq, kind, body FROM numbered
    ), headed AS (
        INSERT INTO heads (event_id, seq) SELECT event_id, max(seq) FROM numbered GROUP BY event_id ORDER BY event_id
        ON CONFLICT (event_id) DO UPDATE SET seq = excluded.seq
    )
    SELECT event_id, seq, body FROM numbered ORDER BY id";

/// One transaction at a time adds or removes webhooks: the limit counts committed rows.
pub(super) const LOCK_WEBHOOKS: &str = "SELECT pg_advisory_xact_lock(19530, 0)";
/// Many transactions may advance cursors at once, but not while one adds or removes a webhook.
pub(super) const LOCK_WEBHOOKS_SHARED: &str = "SELECT pg_advisory_xact_lock_shared(19530, 0)";
pub(super) const ADD_WEBHOOK: &str = "WITH added AS (
        INSERT INTO webhooks (id, body) SELECT $1::text, $2::text WHERE (SELECT count(*) FROM webhooks) < $3
        ON CONFLICT (id) DO NOTHING RETURNING id
    ), begun AS (
        INSERT INTO webhook_cursors (webhook_id, event_id, seq)
        SELECT a.id, h.event_id, h.seq FROM added a, heads h WHERE $4::text IS NULL OR h.event_id = $4
        ON CONFLICT (webhook_id, event_id) DO UPDATE SET seq = greatest(webhook_cursors.seq, excluded.seq)
    )
    SELECT id FROM added";
pub(super) const WEBHOOK: &str = "SELECT body FROM webhooks WHERE id = $1";
// A text replacement is safe: inside JSON strings quotes have a backslash before them.
pub(super) const DEACTIVATE_WEBHOOK: &str =
    r#"UPDATE webhooks SET body = replace(body, '"active":true', '"active":false') WHERE id = $1 RETURNING id"#;
pub(super) const REMOVE_WEBHOOK: &str = "WITH removed AS (
        DELETE FROM webhooks WHERE id = $1 AND body::json ->> 'event_id' IS NOT DISTINCT FROM $2::text RETURNING id
    ), cursors AS (DELETE FROM webhook_cursors c USING removed r WHERE c.webhook_id = r.id)
    SELECT id FROM removed";
pub(super) const WEBHOOKS: &str = "SELECT body FROM webhooks ORDER BY id";
pub(super) const CURSOR: &str = "SELECT seq FROM webhook_cursors WHERE webhook_id = $1 AND event_id = $2";
pub(super) const ADVANCE: &str = "INSERT INTO webhook_cursors (webhook_id, event_id, seq)
    SELECT $1::text, $2::text, $3::bigint WHERE EXISTS (SELECT 1 FROM webhooks WHERE id = $1)
    ON CONFLICT (webhook_id, event_id) DO UPDATE SET seq = greatest(webhook_cursors.seq, excluded.seq)";
pub(super) const FORGET_ANSWERS: &str =
    "WITH gone AS (DELETE FROM answers WHERE at < (SELECT moment() - $1) RETURNING 1)
    SELECT count(*) FROM gone";
// Money may still come for what was once paid for, or has come: such holds stay.
pub(super) const FORGET_HOLDS: &str = "WITH gone AS (DELETE FROM holds WHERE NOT live
    AND expires_at < (SELECT moment() - $1) AND body::jsonb ->> 'payment_ref' IS NULL
    AND NOT EXISTS (SELECT 1 FROM payments p WHERE p.hold_id = holds.hold_id) RETURNING 1)
    SELECT count(*) FROM gone";

/// The first row, stored as JSON.
pub(super) fn first_body<T: serde::de::DeserializeOwned>(rows: &[Row], table: &str) -> PostgresResult<Option<T>> {
    rows.first().map(|row| parse(row.try_get(0)?, table)).transpose()
}

/// The number in the first row; zero if there is none.
pub(super) fn first_number(rows: &[Row]) -> PostgresResult<u64> {
    rows.first().map_or(Ok(0), |row| number(row, 0))
}

/// From [`EVENT`], [`SEATS`], [`LAYOUT_AREAS`].
pub(super) fn layout(rows: &[Vec<Row>]) -> PostgresResult<Option<(u64, Layout)>> {
    let Some(event) = first_body::<EventRow>(&rows[0], "events")? else { return Ok(None) };
    let seat = |row: &Row| -> PostgresResult<Seat> {
        let (id, section, line) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        Ok(Seat { id, section, row: line, number: count(row, 3)?, price: number(row, 4)? })
    };
    let area = |row: &Row| -> PostgresResult<Area> {
        Ok(Area { id: row.try_get(0)?, capacity: count(row, 1)?, price: number(row, 2)? })
    };
    let seats = rows[1].iter().map(seat).collect::<PostgresResult<_>>()?;
    let areas = rows[2].iter().map(area).collect::<PostgresResult<_>>()?;
    Ok(Some((event.layout_version, Layout { seats, areas })))
}

fn sold(rows: &[Row]) -> PostgresResult<Vec<(String, OrderId, u64)>> {
    rows.iter().map(|row| Ok((row.try_get(0)?, OrderId(row.try_get(1)?), number(row, 2)?))).collect()
}

/// From [`EVENT`], [`LIVE`], [`SOLD`], [`BLOCKS`], [`AREAS`], [`HEAD`].
pub(super) fn snapshot(rows: &[Vec<Row>], now: Moment) -> PostgresResult<Option<Snapshot>> {
    let Some(event) = first_body(&rows[0], "events")? else { return Ok(None) };
    let blocks = rows[3].iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect::<PostgresResult<_>>()?;
    let areas = rows[4].iter().map(|row| Ok(area_row(row)?.1)).collect::<PostgresResult<_>>()?;
    let (holds, sold, seq) = (bodies(&rows[1], "holds")?, sold(&rows[2])?, first_number(&rows[5])?);
    Ok(Some(snapshot::snapshot(EventRows { event, holds, sold, blocks, areas, seq }, now)))
}

/// From [`EVENT`], [`SEATS`], [`AREAS`], [`HELD`], [`SOLD`], [`BLOCKS`], [`LIVE`], [`ORDERS_OF`], [`BUYERS`],
/// [`NUMBERED`], [`MONEY_OF_EVENT`], [`TOKENS_BACK`].
pub(super) fn dump(rows: &[Vec<Row>], now: Moment) -> PostgresResult<Option<Dump>> {
    let Some(event) = first_body(&rows[0], "events")? else { return Ok(None) };
    let ids = |at: usize| rows[at].iter().map(|row| Ok(row.try_get(0)?)).collect::<PostgresResult<Vec<String>>>();
    let held = |row: &Row| Ok((row.try_get(0)?, HoldId(row.try_get(1)?), number(row, 2)?));
    let buyer = |row: &Row| Ok((Buyer(row.try_get(0)?), count(row, 1)?, count(row, 2)?));
    let back = |row: &Row| {
        let (seat, seq) = (row.try_get(0)?, number(row, 1)?);
        Ok(TokenBack { seat, seq, before: number(row, 2)?, after: number(row, 3)? })
    };
    let numbered = rows[9].first().map_or(Ok((0, 0)), |row| PostgresResult::Ok((number(row, 0)?, number(row, 1)?)))?;
    Ok(Some(Dump {
        now,
        event,
        seats: ids(1)?,
        areas: rows[2].iter().map(|row| Ok(area_row(row)?.1)).collect::<PostgresResult<_>>()?,
        held: rows[3].iter().map(held).collect::<PostgresResult<_>>()?,
        sold: sold(&rows[4])?,
        blocked: ids(5)?,
        holds: bodies(&rows[6], "holds")?,
        orders: bodies(&rows[7], "orders")?,
        buyers: rows[8].iter().map(buyer).collect::<PostgresResult<_>>()?,
        money: bodies(&rows[10], "money")?,
        numbered,
        tokens_back: rows[11].iter().map(back).collect::<PostgresResult<_>>()?,
    }))
}

/// From [`COUNT_LIVE`].
pub(super) fn live(rows: &[Row]) -> PostgresResult<LiveCounts> {
    let Some(row) = rows.first() else { return Ok(LiveCounts::default()) };
    Ok(LiveCounts { active: number(row, 0)?, paying: number(row, 1)?, overdue_ms: number(row, 2)? })
}

/// From [`ENGINE`].
pub(super) fn engine(rows: &[Row]) -> PostgresResult<Option<String>> {
    Ok(rows.first().map(|row| row.try_get(0)).transpose()?.flatten())
}

/// Numbered entries: event, number, body.
pub(super) fn entries(rows: &[Row]) -> PostgresResult<Vec<Entry>> {
    let entry = |row: &Row| Ok(Entry { seq: number(row, 1)?, ..parse(row.try_get(2)?, "feed")? });
    rows.iter().map(entry).collect()
}

pub(super) fn heads(rows: &[Row]) -> PostgresResult<Vec<(EventId, u64)>> {
    rows.iter().map(|row| Ok((EventId(row.try_get(0)?), number(row, 1)?))).collect()
}
