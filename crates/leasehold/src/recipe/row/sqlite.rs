//! A transaction of SQLite that has the write lock from its beginning.
//!
//! SQLite has one lock for the file. Nobody else writes meanwhile, and the work cannot fail later for want of the lock.
//! The wait for the lock is bounded; the work itself runs in this thread and is not cut off.

use std::time::Duration;

use rusqlite::{Connection, Error as SqliteFailure, ErrorCode, Transaction, TransactionBehavior};

use super::RowError;

/// Waits up to `wait` for the write lock, runs `work`, and commits.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use leasehold::recipe::row;
///
/// let mut connection = rusqlite::Connection::open_in_memory()?;
/// connection.execute_batch("CREATE TABLE stock (item PRIMARY KEY, left_over); INSERT INTO stock VALUES (7, 3)")?;
///
/// let left: i64 = row::locked_sqlite(&mut connection, Duration::from_millis(500), |tx| {
///     tx.query_row("UPDATE stock SET left_over = left_over - 1 WHERE item = 7 RETURNING left_over", [], |row| row.get(0))
/// })?;
/// assert_eq!(left, 2);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// See [`RowError`].
pub fn locked_sqlite<T>(
    connection: &mut Connection,
    wait: Duration,
    work: impl FnOnce(&Transaction<'_>) -> Result<T, SqliteFailure>,
) -> Result<T, RowError<SqliteFailure>> {
    let usual: i64 = connection.query_row("PRAGMA busy_timeout", [], |row| row.get(0)).map_err(not_begun)?;
    connection.busy_timeout(wait).map_err(not_begun)?;
    let done = run_locked(connection, work);
    let usual = Duration::from_millis(usual.try_into().unwrap_or(0));
    // It changes a number of the connection, and fails only where the number is out of range.
    let _ = connection.busy_timeout(usual);
    done
}

fn run_locked<T>(
    connection: &mut Connection,
    work: impl FnOnce(&Transaction<'_>) -> Result<T, SqliteFailure>,
) -> Result<T, RowError<SqliteFailure>> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(not_begun)?;
    let value = work(&transaction).map_err(RowError::Work)?;
    match transaction.commit() {
        Ok(()) => Ok(value),
        // A failed sync: what is on the disk is not known.
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::SystemIoFailure) => {
            Err(RowError::Indeterminate(error.into()))
        }
        Err(error) => Err(RowError::Unavailable { attempt: "commit", source: error.into() }),
    }
}

fn not_begun(error: SqliteFailure) -> RowError<SqliteFailure> {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => RowError::Held,
        _ => RowError::Unavailable { attempt: "begin a transaction with the write lock", source: error.into() },
    }
}
