//! The resource of the labs: a table in a SQLite file, with or without its fence.
//!
//! The fence is the one that `leasehold fence install` makes: triggers, and a function of the connection that says the
//! token.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use rusqlite::functions::FunctionFlags;
use rusqlite::{Connection, ErrorCode, OptionalExtension as _, TransactionBehavior};

/// The resource of a seat, as leases name it.
pub const SEAT: &str = "seat/14";
/// The resource of the last unit, as leases name it.
pub const STOCK: &str = "stock/last";

/// How long a connection waits for another writer.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// What became of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SeatWrite {
    Admitted,
    Fenced { code: String, why: String },
}

/// Makes a file with one free seat.
pub fn create_seats(file: &Path, fenced: bool) -> anyhow::Result<()> {
    let connection = open_file(file)?;
    connection
        .execute_batch(
            "PRAGMA journal_mode = WAL;
             CREATE TABLE seats (seat_id TEXT PRIMARY KEY, owner TEXT NOT NULL);
             INSERT INTO seats VALUES ('14', 'free');",
        )
        .context("make a table of seats")?;
    if fenced { install_fence(&connection, "seats", "seat_id", "seat/") } else { Ok(()) }
}

/// Makes a file with one unit in stock. `unique` adds the constraint that a unit is sold once.
pub fn create_stock(file: &Path, fenced: bool, unique: bool) -> anyhow::Result<()> {
    let connection = open_file(file)?;
    connection
        .execute_batch(
            "PRAGMA journal_mode = WAL;
             CREATE TABLE stock (item TEXT PRIMARY KEY, units INTEGER NOT NULL, version INTEGER NOT NULL);
             CREATE TABLE sales (unit INTEGER NOT NULL, buyer TEXT NOT NULL);
             INSERT INTO stock VALUES ('last', 1, 1);",
        )
        .context("make a table of stock")?;
    if unique {
        connection.execute_batch("CREATE UNIQUE INDEX one_sale ON sales (unit);").context("make the constraint")?;
    }
    if fenced { install_fence(&connection, "stock", "item", "stock/") } else { Ok(()) }
}

/// Who owns the seat.
pub fn read_owner(file: &Path) -> anyhow::Result<String> {
    let connection = open_file(file)?;
    connection.query_row("SELECT owner FROM seats WHERE seat_id = '14'", [], |row| row.get(0)).context("read the seat")
}

/// Writes an owner into the seat.
pub fn write_owner(file: &Path, owner: &str, shown: Option<&str>) -> anyhow::Result<SeatWrite> {
    let mut connection = open_file(file)?;
    fenced_write(&mut connection, shown, |connection| {
        connection.execute("UPDATE seats SET owner = ?1 WHERE seat_id = '14'", [owner]).map(drop)
    })
}

/// How many units were sold.
pub fn count_sales(file: &Path) -> anyhow::Result<usize> {
    let connection = open_file(file)?;
    connection.query_row("SELECT count(*) FROM sales", [], |row| row.get(0)).context("count the sales")
}

/// Opens a file of seats or of stock.
pub fn open_file(file: &Path) -> anyhow::Result<Connection> {
    let connection = Connection::open(file).context("open the file of seats")?;
    connection.busy_timeout(BUSY_TIMEOUT).context("set the patience of a connection")?;
    connection.pragma_update(None, "synchronous", "NORMAL").context("set up a connection")?;
    Ok(connection)
}

/// Runs a write in a transaction, and reads what the fence said, if it refused.
pub fn fenced_write(
    connection: &mut Connection,
    shown: Option<&str>,
    write: impl FnOnce(&Connection) -> rusqlite::Result<()>,
) -> anyhow::Result<SeatWrite> {
    let (said, resource) = (shown.map(str::to_owned), SEAT);
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_INNOCUOUS;
    connection
        .create_scalar_function("leasehold_token", 1, flags, move |_| Ok(said.clone()))
        .context("give the connection its token")?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).context("begin a write")?;
    match write(&transaction) {
        Ok(()) => {
            transaction.commit().context("commit a write")?;
            Ok(SeatWrite::Admitted)
        }
        Err(rusqlite::Error::SqliteFailure(cause, Some(said)))
            if cause.code == ErrorCode::ConstraintViolation && said.starts_with("leasehold LH") =>
        {
            let code = said["leasehold ".len()..].chars().take(5).collect::<String>();
            let sql = "SELECT token FROM leasehold_seen WHERE resource = ?1";
            let highest: Option<i64> = transaction.query_row(sql, [resource], |row| row.get(0)).optional()?;
            let presented = shown.and_then(|shown| shown.split(':').next()).unwrap_or("none");
            let why = match (code.as_str(), highest) {
                ("LH001", Some(highest)) => format!("token {presented} is stale: {resource} has seen token {highest}"),
                ("LH003", _) => format!("token {presented} of {resource} belongs to another lease"),
                _ => said["leasehold LH000: ".len()..].to_owned(),
            };
            Ok(SeatWrite::Fenced { code, why })
        }
        Err(error) => Err(error).context("write"),
    }
}

fn install_fence(connection: &Connection, table: &str, key: &str, prefix: &str) -> anyhow::Result<()> {
    let check = |row: &str| {
        let resource = format!("'{prefix}' || {row}.{key}");
        let token = format!(
            "(SELECT CAST(substr(h, 1, instr(h || ':', ':') - 1) AS INTEGER) AS n, substr(h, instr(h || ':', ':') + 1) AS m \
             FROM (SELECT leasehold_token({resource}) AS h))"
        );
        format!(
            "SELECT RAISE(ABORT, 'leasehold LH002: no token was shown for a fenced row') WHERE leasehold_token({resource}) IS NULL;
             SELECT CASE WHEN s.token > t.n THEN RAISE(ABORT, 'leasehold LH001: the token is stale')
                         WHEN s.token = t.n AND s.lease NOT IN ('', t.m) THEN RAISE(ABORT, 'leasehold LH003: the token belongs to another lease') END
               FROM leasehold_seen s, {token} t WHERE s.resource = {resource};
             INSERT INTO leasehold_seen SELECT {resource}, n, m FROM {token} WHERE true
               ON CONFLICT (resource) DO UPDATE SET token = excluded.token, lease = excluded.lease
               WHERE leasehold_seen.token < excluded.token OR leasehold_seen.lease <> excluded.lease;"
        )
    };
    let (old, new) = (check("OLD"), check("NEW"));
    let sql = format!(
        "CREATE TABLE leasehold_seen (resource TEXT PRIMARY KEY, token INTEGER NOT NULL, lease TEXT NOT NULL) WITHOUT ROWID;
         CREATE TRIGGER zz_leasehold_insert AFTER INSERT ON {table} BEGIN {new} END;
         CREATE TRIGGER zz_leasehold_update AFTER UPDATE ON {table} BEGIN {old} {new} END;
         CREATE TRIGGER zz_leasehold_delete AFTER DELETE ON {table} BEGIN {old} END;"
    );
    connection.execute_batch(&sql).context("install the fence")
}
