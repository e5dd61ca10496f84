//! Tables of seats and of stock in a SQLite file.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use leasehold::fence::sqlite::{SqliteFence, SqliteInstallOptions, install};
use leasehold::fence::{FenceError, FenceSetting};
use rusqlite::{Connection, TransactionBehavior};

use super::SeatWrite;

/// How long a connection waits for another writer.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// Makes a file with one free seat.
pub fn create_seats(file: &Path, fenced: bool) -> anyhow::Result<()> {
    let mut connection = open_file(file)?;
    connection
        .execute_batch(
            "PRAGMA journal_mode = WAL;
             CREATE TABLE seats (seat_id TEXT PRIMARY KEY, owner TEXT NOT NULL);
             INSERT INTO seats VALUES ('14', 'free');",
        )
        .context("make a table of seats")?;
    if fenced { install_fence(&mut connection, "seats", "seat_id", "seat/{}") } else { Ok(()) }
}

/// Makes a file with one unit in stock. `unique` adds the constraint that a unit is sold once.
pub fn create_stock(file: &Path, fenced: bool, unique: bool) -> anyhow::Result<()> {
    let mut connection = open_file(file)?;
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
    if fenced { install_fence(&mut connection, "stock", "item", "stock/{}") } else { Ok(()) }
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

/// Runs a write in a transaction, under the token that is shown, and reads what the fence said.
pub fn fenced_write(
    connection: &mut Connection,
    shown: Option<&str>,
    write: impl FnOnce(&Connection) -> rusqlite::Result<()>,
) -> anyhow::Result<SeatWrite> {
    let Some(shown) = shown else {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        write(&transaction).context("write without a token")?;
        transaction.commit().context("commit a write")?;
        return Ok(SeatWrite::Admitted);
    };
    let setting: FenceSetting = shown.parse().context("read the token that is shown")?;
    let fence = SqliteFence::attach(connection)?;
    match fence.write_showing(setting, connection, |transaction| Ok(write(transaction)?)) {
        Ok(()) => Ok(SeatWrite::Admitted),
        Err(FenceError::Refused(refusal)) => {
            Ok(SeatWrite::Fenced { code: refusal.code().to_owned(), why: refusal.to_string() })
        }
        Err(error) => Err(error.into()),
    }
}

/// What `leasehold fence install --table TABLE --key KEY --resource RESOURCE` does.
fn install_fence(connection: &mut Connection, table: &str, key: &str, resource: &str) -> anyhow::Result<()> {
    let options = SqliteInstallOptions { table: table.into(), keys: vec![key.into()], resource: Some(resource.into()) };
    install(connection, &options).context("install the fence").map(drop)
}
