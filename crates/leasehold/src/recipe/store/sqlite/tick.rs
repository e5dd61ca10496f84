//! The beginning of every call: the moment it is, and a token.

use rusqlite::Connection;

use super::sqlite_error;
use crate::recipe::error::RecipeError;

const TAKE: &str = "UPDATE leasehold_clock
    SET token = token + 1, at = max(at, CAST(unixepoch('subsec') * 1000 AS INTEGER)) RETURNING token, at";
const READ: &str = "SELECT max(at, CAST(unixepoch('subsec') * 1000 AS INTEGER)) FROM leasehold_clock";

/// The moment of a call, and its token. Whoever takes one has the write lock of the file, so ticks are in one order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tick {
    /// Higher than every token that was given before.
    pub token: i64,
    /// Milliseconds since 1970. Never before the moment of an earlier call.
    pub now: i64,
}

impl Tick {
    /// Takes the next tick, inside the transaction of the call.
    pub fn take(db: &Connection, attempt: &str) -> Result<Self, RecipeError> {
        let taken = db
            .prepare_cached(TAKE)
            .and_then(|mut statement| statement.query_row([], |row| Ok(Self { token: row.get(0)?, now: row.get(1)? })));
        taken.map_err(|error| sqlite_error(&error, attempt))
    }

    /// The present moment, for reads.
    pub fn read_now(db: &Connection, attempt: &str) -> Result<i64, RecipeError> {
        let read = db.prepare_cached(READ).and_then(|mut statement| statement.query_row([], |row| row.get(0)));
        read.map_err(|error| sqlite_error(&error, attempt))
    }
}
