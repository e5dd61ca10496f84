//! The fence of SQLite tables: the table of cases, statements, traps, installs, holes, and a race of processes' worth of
//! connections.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stdout)] // real files live in real time

mod installs;
mod race;
mod statements;

use leasehold::fence::sqlite::{SqliteFence, SqliteInstallOptions, install};
use leasehold::fence::{FenceError, FenceSetting};
use rusqlite::Connection;

const ADA: &str = "41:aaaaaaaaaaaaaaaa";
const BOB: &str = "42:bbbbbbbbbbbbbbbb";

fn options(table: &str, keys: &[&str], resource: &str) -> SqliteInstallOptions {
    SqliteInstallOptions {
        table: table.into(),
        keys: keys.iter().map(|key| (*key).to_owned()).collect(),
        resource: Some(resource.into()),
    }
}

/// A file in memory with 20 seats, fenced by key, and its connection.
fn fenced_seats() -> (Connection, SqliteFence) {
    let mut connection = Connection::open_in_memory().unwrap();
    connection
        .execute_batch(
            "CREATE TABLE seats (seat_id INTEGER PRIMARY KEY, owner TEXT);
             WITH RECURSIVE n(x) AS (VALUES (1) UNION ALL SELECT x + 1 FROM n WHERE x < 20)
             INSERT INTO seats SELECT x, 'free' FROM n",
        )
        .unwrap();
    install(&mut connection, &options("seats", &["seat_id"], "seat/{}")).unwrap();
    let fence = SqliteFence::attach(&connection).unwrap();
    (connection, fence)
}

/// Writes under a text: "ok", or the code of the refusal, or the error.
fn write(fence: &SqliteFence, connection: &mut Connection, shown: &str, sql: &str) -> String {
    let setting: FenceSetting = shown.parse().unwrap();
    let done = fence.write_showing(setting, connection, |tx| Ok(tx.execute_batch(sql)?));
    match done {
        Ok(()) => "ok".into(),
        Err(FenceError::Refused(refusal)) => refusal.code().into(),
        Err(error) => format!("{error:?}"),
    }
}
