//! The tables, and the migrations from older files.
//!
//! Rows that are only read and written whole keep most of themselves as JSON in `body`; what is looked for, counted or
//! constrained has a column. The constraints are the last line of defence: code above them that is wrong gets an error,
//! and no seat is sold twice.

use rusqlite::{Connection, OptionalExtension as _};

/// One step for each version, in order. A step that was released is never changed: add another.
pub(super) const MIGRATIONS: [&str; 4] = [
    "
CREATE TABLE clock (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    boot BLOB NOT NULL,
    boottime INTEGER NOT NULL,
    moment INTEGER NOT NULL
);
CREATE TABLE events (event_id TEXT PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE seats (
    event_id TEXT NOT NULL,
    seat_id TEXT NOT NULL,
    pos INTEGER NOT NULL,
    section TEXT NOT NULL,
    row TEXT NOT NULL,
    number INTEGER NOT NULL,
    price INTEGER NOT NULL,
    PRIMARY KEY (event_id, seat_id)
) WITHOUT ROWID;
CREATE TABLE areas (
    event_id TEXT NOT NULL,
    area_id TEXT NOT NULL,
    pos INTEGER NOT NULL,
    capacity INTEGER NOT NULL,
    price INTEGER NOT NULL,
    held INTEGER NOT NULL DEFAULT 0 CHECK (held >= 0),
    sold INTEGER NOT NULL DEFAULT 0 CHECK (sold >= 0),
    blocked INTEGER NOT NULL DEFAULT 0 CHECK (blocked >= 0),
    PRIMARY KEY (event_id, area_id),
    CONSTRAINT never_oversold CHECK (held + sold + blocked <= capacity)
) WITHOUT ROWID;
CREATE TABLE holds (
    hold_id TEXT PRIMARY KEY,
    event_id TEXT NOT NULL,
    live INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    body TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX holds_due ON holds (expires_at) WHERE live = 1;
CREATE INDEX holds_ended ON holds (expires_at) WHERE live = 0;
CREATE TABLE hold_seats (
    event_id TEXT NOT NULL,
    seat_id TEXT NOT NULL,
    hold_id TEXT NOT NULL,
    token INTEGER NOT NULL,
    PRIMARY KEY (event_id, seat_id)
) WITHOUT ROWID;
CREATE TABLE sold_seats (
    event_id TEXT NOT NULL,
    seat_id TEXT NOT NULL,
    order_id TEXT NOT NULL,
    token INTEGER NOT NULL CHECK (token > 0),
    price INTEGER NOT NULL,
    UNIQUE (event_id, seat_id)
);
CREATE TABLE blocks (
    event_id TEXT NOT NULL,
    seat_id TEXT NOT NULL,
    reason TEXT NOT NULL,
    PRIMARY KEY (event_id, seat_id)
) WITHOUT ROWID;
CREATE TABLE orders (order_id TEXT PRIMARY KEY, event_id TEXT NOT NULL, body TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX orders_of_event ON orders (event_id, order_id);
CREATE TABLE buyers (
    event_id TEXT NOT NULL,
    buyer TEXT NOT NULL,
    held INTEGER NOT NULL CHECK (held >= 0),
    sold INTEGER NOT NULL CHECK (sold >= 0),
    lapses INTEGER NOT NULL DEFAULT 0,
    lapsed_at INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (event_id, buyer)
) WITHOUT ROWID;
CREATE TABLE money (
    payment_ref TEXT PRIMARY KEY,
    event_id TEXT NOT NULL,
    state TEXT NOT NULL,
    received_at INTEGER NOT NULL,
    body TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE payments (payment_ref TEXT PRIMARY KEY, hold_id TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX payments_of_hold ON payments (hold_id);
CREATE TABLE callbacks (id TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE answers (
    key BLOB PRIMARY KEY,
    asked BLOB NOT NULL,
    answer TEXT NOT NULL,
    at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX answers_by_age ON answers (at);
CREATE TABLE outbox (id INTEGER PRIMARY KEY, event_id TEXT NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL);
CREATE INDEX outbox_lapsed ON outbox (event_id) WHERE kind = 'lapsed';
CREATE TABLE feed (
    event_id TEXT NOT NULL,
    seq INTEGER NOT NULL,
    outbox_id INTEGER NOT NULL,
    PRIMARY KEY (event_id, seq)
) WITHOUT ROWID;
CREATE TABLE heads (event_id TEXT PRIMARY KEY, seq INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE sequenced (id INTEGER PRIMARY KEY CHECK (id = 1), outbox_id INTEGER NOT NULL);
INSERT INTO sequenced VALUES (1, 0);
CREATE TABLE webhooks (id TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE webhook_cursors (
    webhook_id TEXT NOT NULL,
    event_id TEXT NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (webhook_id, event_id)
) WITHOUT ROWID;
",
    // Whoever held the seats is shown all money that came for them.
    "
ALTER TABLE money ADD COLUMN hold_id TEXT GENERATED ALWAYS AS (json_extract(body, '$.hold_id')) VIRTUAL;
CREATE INDEX money_of_hold ON money (hold_id);
",
    // A seat remembers its last token when it is free again: `hold_id` is null then. The engine that tokens come from is
    // known by its identity. Orders whose payment is to be captured are found by themselves.
    "
CREATE TABLE hold_seats_3 (
    event_id TEXT NOT NULL,
    seat_id TEXT NOT NULL,
    hold_id TEXT,
    token INTEGER NOT NULL,
    PRIMARY KEY (event_id, seat_id)
) WITHOUT ROWID;
INSERT INTO hold_seats_3 SELECT event_id, seat_id, hold_id, token FROM hold_seats;
INSERT INTO hold_seats_3 SELECT event_id, seat_id, NULL, token FROM sold_seats WHERE true
    ON CONFLICT (event_id, seat_id) DO UPDATE SET token = max(token, excluded.token);
DROP TABLE hold_seats;
ALTER TABLE hold_seats_3 RENAME TO hold_seats;
CREATE TABLE engine (id INTEGER PRIMARY KEY CHECK (id = 1), identity TEXT);
INSERT INTO engine VALUES (1, NULL);
CREATE INDEX orders_to_capture ON orders (order_id) WHERE json_extract(body, '$.capture.state') IN ('due', 'failed');
",
    // The tokens of free seats are kept in memory now: see `freed.rs`. Only the highest one outlives the process.
    "
CREATE TABLE tokens (id INTEGER PRIMARY KEY CHECK (id = 1), highest INTEGER NOT NULL);
INSERT INTO tokens SELECT 1, coalesce(max(token), 0) FROM hold_seats;
CREATE TABLE hold_seats_4 (
    event_id TEXT NOT NULL,
    seat_id TEXT NOT NULL,
    hold_id TEXT NOT NULL,
    token INTEGER NOT NULL,
    PRIMARY KEY (event_id, seat_id)
) WITHOUT ROWID;
INSERT INTO hold_seats_4 SELECT event_id, seat_id, hold_id, token FROM hold_seats WHERE hold_id IS NOT NULL;
DROP TABLE hold_seats;
ALTER TABLE hold_seats_4 RENAME TO hold_seats;
",
];

/// Migrates the file to this version, in one transaction. Returns the version, or what is wrong.
pub(super) fn migrate(connection: &mut Connection) -> Result<usize, String> {
    let say = |error: rusqlite::Error| error.to_string();
    let tx = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Exclusive).map_err(say)?;
    tx.execute_batch(
        "CREATE TABLE IF NOT EXISTS schema_version (id INTEGER PRIMARY KEY CHECK (id = 1), version INTEGER NOT NULL)",
    )
    .map_err(say)?;
    let found: Option<usize> =
        tx.query_row("SELECT version FROM schema_version", [], |row| row.get(0)).optional().map_err(say)?;
    let found = found.unwrap_or(0);
    if found > MIGRATIONS.len() {
        return Err(format!(
            "the file was written by a newer version of Leasehold (schema {found}, this one knows {})",
            MIGRATIONS.len()
        ));
    }
    for step in &MIGRATIONS[found..] {
        tx.execute_batch(step).map_err(say)?;
    }
    tx.execute("INSERT OR REPLACE INTO schema_version VALUES (1, ?1)", [MIGRATIONS.len()]).map_err(say)?;
    tx.commit().map_err(say)?;
    Ok(MIGRATIONS.len())
}
