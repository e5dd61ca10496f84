//! A lock on rows in a short transaction that ends in time. For work that is all in one database and takes less than a
//! second.
//!
//! - `postgres` (feature `postgres`): `SELECT … FOR UPDATE`, with a limit on every way to hang.
//! - `sqlite` (feature `sqlite`): `BEGIN IMMEDIATE`: SQLite locks the file, not the row.

#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "sqlite")]
pub mod sqlite;

#[cfg(feature = "postgres")]
pub use postgres::locked;
#[cfg(feature = "sqlite")]
pub use sqlite::locked_sqlite;

use crate::error::BoxError;

/// Why the transaction did not do its work. One variant per thing to do next.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RowError<E: std::error::Error + 'static> {
    /// Another transaction has the lock. Nothing was written. Do: try later, or give up.
    #[error("another transaction holds the lock")]
    Held,
    /// Nothing was written. Do: try again. If the connection is gone, with another one.
    #[error("{attempt}: nothing was written")]
    Unavailable {
        /// What was tried.
        attempt: &'static str,
        /// The cause.
        source: BoxError,
    },
    /// It may have been committed. Do: look at your rows.
    #[error("the answer to COMMIT was lost, it may have happened")]
    Indeterminate(#[source] BoxError),
    /// The work itself failed, and was rolled back.
    #[error("the work failed and was rolled back")]
    Work(#[source] E),
}
