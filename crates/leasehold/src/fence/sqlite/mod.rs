//! Tables of a SQLite file that refuse stale writers. Feature `sqlite`.
//!
//! ```text
//!   lease ──▶ function leasehold_token(resource) of the connection ──▶ triggers of the table ──▶ leasehold_seen
//! ```
//!
//! - [`install`]: triggers on a table. After that a connection without the function cannot even prepare a write, and one
//!   with the function writes only under a token that is not stale. Reading is free.
//! - [`SqliteFence`]: gives a connection the function, and runs transactions under a [`FencedLease`](crate::FencedLease).
//! - [`examine()`], [`highest_token`], [`remove()`]: as for PostgreSQL.
//!
//! # What is promised
//!
//! SQLite has one writer at a time, and a writer always sees the newest: its write lock is the order. After a transaction
//! with a higher token has committed, none with a lower one commits a write to the same resource.
//!
//! # What cannot be stopped
//!
//! `DROP TRIGGER`, `writable_schema`, and whoever may write the file. `INSERT OR REPLACE` on a connection without
//! `PRAGMA recursive_triggers = ON` removes a row that collides on *another* unique index without asking the fence:
//! [`SqliteFence::attach`] sets the pragma, and [`examine()`] names the tables that it concerns.

mod examine;
mod install;
mod sql_exec;
mod transaction;
mod trigger_text;

pub use examine::{SqliteExamination, SqliteFencedTable, examine, highest_token};
pub use install::{SqliteInstallOptions, SqliteInstallReport, install, plan_install, remove};
pub use sql_exec::{connect, execute_sql};
pub use transaction::SqliteFence;

use rusqlite::Error as SqliteFailure;

use super::counters::FenceKind;
use super::refusal::FenceError;

/// The version of what [`install`] makes for a table.
const FENCE_VERSION: i64 = 1;

/// Nothing was written: the file cannot be used now.
fn unavailable(error: SqliteFailure, attempt: &str) -> FenceError {
    FenceError::Unavailable { kind: FenceKind::Sqlite, attempt: attempt.to_owned(), source: Box::new(error) }
}
