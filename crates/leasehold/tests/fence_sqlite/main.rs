//! The fence of SQLite tables: the table of cases, statements, traps, installs, holes, and races of connections and of processes
//! that are killed.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stdout)] // real files live in real time

mod installs;
mod killed;
mod race;
#[allow(dead_code, reason = "the judge has more than one kind of race")]
#[path = "../fence_support/race.rs"]
mod race_judge;
mod statements;
#[allow(dead_code, reason = "no test uses all of it")]
#[path = "../support/mod.rs"]
mod support;

use leasehold::fence::sqlite::{SqliteFence, SqliteInstallOptions, install};
use leasehold::fence::{FenceError, FenceSetting};
use rusqlite::Connection;
use support::Dice;

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
