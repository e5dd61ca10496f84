//! The tables, and how an older database becomes a newer one.
//!
//! The same tables as on SQLite, in a schema of their own, so that they can live beside a shop's. What differs: there
//! is no clock (the server's is asked, by `moment()`), and `outbox` is a queue: entries of transactions that commit
//! out of order are numbered as they become visible, and move to `feed` with their number.
//!
//! Ids sort by their bytes (`COLLATE "C"`): locks are taken in one order everywhere.

use leasehold_postgres::{MigrationError, SchemaSteps};
use tokio_postgres::Client;

use super::error::PostgresError;

/// Where the tables are.
pub const SCHEMA: &str = "leasehold_boxoffice";

/// Two servers that start at once take turns under this advisory lock.
const MIGRATION_LOCK_KEY: i64 = 0x1ea5_e401_d5ea_7001;

/// One step for each version, in order. A step that was released is never changed: add another.
pub(super) const MIGRATIONS: [&str; 3] = [
    r#"
CREATE FUNCTION moment() RETURNS bigint LANGUAGE sql VOLATILE
    AS $$ SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint $$;
-- Writes and COMMIT travel together: a count that is not as decided must end the transaction on the server.
CREATE FUNCTION exactly(touched bigint, wanted bigint, what text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF touched <> wanted THEN
        RAISE EXCEPTION '% rows instead of % of %', touched, wanted, what USING ERRCODE = 'LH001';
    END IF;
    RETURN true;
END $$;
CREATE TABLE events (
    event_id TEXT COLLATE "C" PRIMARY KEY,
    pos BIGINT GENERATED ALWAYS AS IDENTITY,
    body TEXT NOT NULL
);
CREATE TABLE seats (
    event_id TEXT COLLATE "C" NOT NULL,
    seat_id TEXT COLLATE "C" NOT NULL,
    pos BIGINT NOT NULL,
    section TEXT NOT NULL,
    "row" TEXT NOT NULL,
    number BIGINT NOT NULL,
    price BIGINT NOT NULL,
    PRIMARY KEY (event_id, seat_id)
);
CREATE TABLE areas (
    event_id TEXT COLLATE "C" NOT NULL,
    area_id TEXT COLLATE "C" NOT NULL,
    pos BIGINT NOT NULL,
    capacity BIGINT NOT NULL,
    price BIGINT NOT NULL,
    held BIGINT NOT NULL DEFAULT 0 CHECK (held >= 0),
    sold BIGINT NOT NULL DEFAULT 0 CHECK (sold >= 0),
    blocked BIGINT NOT NULL DEFAULT 0 CHECK (blocked >= 0),
    PRIMARY KEY (event_id, area_id),
    CONSTRAINT never_oversold CHECK (held + sold + blocked <= capacity)
) WITH (fillfactor = 50);
CREATE TABLE holds (
    hold_id TEXT COLLATE "C" PRIMARY KEY,
    event_id TEXT COLLATE "C" NOT NULL,
    live BOOLEAN NOT NULL,
    expires_at BIGINT NOT NULL,
    body TEXT NOT NULL
);
CREATE INDEX holds_due ON holds (expires_at) WHERE live;
CREATE INDEX holds_ended ON holds (expires_at) WHERE NOT live;
CREATE INDEX holds_live ON holds (event_id, hold_id) WHERE live;
CREATE TABLE hold_seats (
    event_id TEXT COLLATE "C" NOT NULL,
    seat_id TEXT COLLATE "C" NOT NULL,
    hold_id TEXT COLLATE "C" NOT NULL,
    token BIGINT NOT NULL,
    PRIMARY KEY (event_id, seat_id)
);
CREATE TABLE sold_seats (
    event_id TEXT COLLATE "C" NOT NULL,
    seat_id TEXT COLLATE "C" NOT NULL,
    order_id TEXT COLLATE "C" NOT NULL,
    token BIGINT NOT NULL CHECK (token > 0),
    price BIGINT NOT NULL,
    UNIQUE (event_id, seat_id)
);
CREATE TABLE blocks (
    event_id TEXT COLLATE "C" NOT NULL,
    seat_id TEXT COLLATE "C" NOT NULL,
    reason TEXT NOT NULL,
    PRIMARY KEY (event_id, seat_id)
);
CREATE TABLE orders (
    order_id TEXT COLLATE "C" PRIMARY KEY,
    event_id TEXT COLLATE "C" NOT NULL,
    body TEXT NOT NULL
);
CREATE INDEX orders_of_event ON orders (event_id, order_id);
CREATE TABLE buyers (
    event_id TEXT COLLATE "C" NOT NULL,
    buyer TEXT COLLATE "C" NOT NULL,
    held BIGINT NOT NULL CHECK (held >= 0),
    sold BIGINT NOT NULL CHECK (sold >= 0),
    lapses BIGINT NOT NULL DEFAULT 0,
    lapsed_at BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (event_id, buyer)
) WITH (fillfactor = 80);
CREATE TABLE money (
    payment_ref TEXT COLLATE "C" PRIMARY KEY,
    event_id TEXT COLLATE "C" NOT NULL,
    state TEXT NOT NULL,
    received_at BIGINT NOT NULL,
    body TEXT NOT NULL
);
CREATE INDEX money_of_state ON money (state, received_at);
CREATE TABLE payments (payment_ref TEXT COLLATE "C" PRIMARY KEY, hold_id TEXT COLLATE "C" NOT NULL);
CREATE INDEX payments_of_hold ON payments (hold_id);
CREATE TABLE callbacks (id TEXT COLLATE "C" PRIMARY KEY);
CREATE TABLE answers (
    key BYTEA PRIMARY KEY,
    asked BYTEA NOT NULL,
    answer TEXT NOT NULL,
    at BIGINT NOT NULL
);
CREATE INDEX answers_by_age ON answers (at);
CREATE TABLE outbox (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id TEXT COLLATE "C" NOT NULL,
    kind TEXT NOT NULL,
    body TEXT NOT NULL
);
CREATE TABLE feed (
    event_id TEXT COLLATE "C" NOT NULL,
    seq BIGINT NOT NULL,
    kind TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (event_id, seq)
);
CREATE INDEX feed_lapsed ON feed (event_id) WHERE kind = 'lapsed';
CREATE TABLE heads (event_id TEXT COLLATE "C" PRIMARY KEY, seq BIGINT NOT NULL);
CREATE TABLE webhooks (id TEXT COLLATE "C" PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE webhook_cursors (
    webhook_id TEXT COLLATE "C" NOT NULL,
    event_id TEXT COLLATE "C" NOT NULL,
    seq BIGINT NOT NULL,
    PRIMARY KEY (webhook_id, event_id)
);
"#,
    // Whoever held the seats is shown all money that came for them. Generated, so that it is also right of what a server
    // of the version before writes meanwhile; by its letters, since no text in the body has a quote without a backslash.
    r#"
ALTER TABLE money ADD COLUMN hold_id TEXT COLLATE "C"
    GENERATED ALWAYS AS (substring(body from '"hold_id":"([^"]*)"')) STORED;
CREATE INDEX money_of_hold ON money (hold_id);
"#,
    // A seat remembers its last token when it is free again: `hold_id` is null then, and taking and freeing a seat update
    // one row in place. The engine that tokens come from is known by its identity. Orders whose payment is to be captured
    // are found by the letters of their body: no text in it has a quote without a backslash. The code becomes LH201: the
    // fence for PostgreSQL tables uses LH001.
    r#"
CREATE OR REPLACE FUNCTION exactly(touched bigint, wanted bigint, what text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF touched <> wanted THEN
        RAISE EXCEPTION '% rows instead of % of %', touched, wanted, what USING ERRCODE = 'LH201';
    END IF;
    RETURN true;
END $$;
ALTER TABLE hold_seats ALTER COLUMN hold_id DROP NOT NULL;
ALTER TABLE hold_seats SET (fillfactor = 50);
INSERT INTO hold_seats (event_id, seat_id, hold_id, token) SELECT event_id, seat_id, NULL, token FROM sold_seats
    ON CONFLICT (event_id, seat_id) DO UPDATE SET token = greatest(hold_seats.token, excluded.token);
CREATE TABLE engine (id INTEGER PRIMARY KEY CHECK (id = 1), identity TEXT);
INSERT INTO engine VALUES (1, NULL);
CREATE INDEX orders_to_capture ON orders (order_id)
    WHERE body LIKE '%"capture":{"state":"due"%' OR body LIKE '%"capture":{"state":"failed"%';
"#,
];

/// The steps, and how they are made.
const STEPS: SchemaSteps = SchemaSteps { schema: SCHEMA, lock_key: MIGRATION_LOCK_KEY, steps: &MIGRATIONS };

/// The SQL of a new installation, one transaction.
#[must_use]
pub fn migration_sql() -> String {
    STEPS.new_installation()
}

/// Brings the tables to this version.
pub(super) async fn migrate(client: &mut Client) -> Result<(), PostgresError> {
    match STEPS.migrate(client).await {
        Ok(_) => Ok(()),
        Err(MigrationError::Sql(error)) => Err(PostgresError::Sql(error)),
        Err(MigrationError::Newer(found)) => Err(PostgresError::NoConnection(format!(
            "the tables were made by a newer version of Leasehold (schema {found}, this one knows {})",
            MIGRATIONS.len()
        ))),
    }
}
