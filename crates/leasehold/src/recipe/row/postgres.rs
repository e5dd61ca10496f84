//! Rows of PostgreSQL, locked in a transaction that ends in time.
//!
//! | what hangs | ended by | code |
//! | --- | --- | --- |
//! | another has the row | `lock_timeout` | 55P03, Held |
//! | a statement | `statement_timeout` | 57014, Unavailable |
//! | this process, between two statements | `idle_in_transaction_session_timeout` | 25P03, and the connection is gone |
//! | everything together | this process, by its clock | Unavailable |
//!
//! PostgreSQL counts `lock_timeout` for each lock: take several rows by one statement, in the order of their key. Before
//! version 17 it has no limit for a whole transaction. When this process ends the work at the deadline, a statement that
//! still runs at the server ends by its own limit, at most as much later: do not use the client for anything urgent.

use std::time::Duration;

use leasehold_postgres::tokio_postgres::error::{Severity, SqlState};
use leasehold_postgres::tokio_postgres::{Client, Error as SqlError, Transaction};

use super::RowError;
use crate::clock::{Clock, SystemClock, until};

/// Runs `work` in a transaction that has `within` to end, and commits it.
///
/// ```no_run
/// # async fn example(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use leasehold::recipe::row;
///
/// let left: i64 = row::locked(client, Duration::from_millis(500), async |tx| {
///     let row = tx.query_one("SELECT left_over FROM stock WHERE item = $1 FOR UPDATE", &[&7]).await?;
///     tx.execute("UPDATE stock SET left_over = left_over - 1 WHERE item = $1", &[&7]).await?;
///     Ok::<i64, tokio_postgres::Error>(row.get(0))
/// })
/// .await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// See [`RowError`]. An error of the work that PostgreSQL's limits caused is found in its chain of sources.
pub async fn locked<T, E, F>(client: &mut Client, within: Duration, work: F) -> Result<T, RowError<E>>
where
    E: std::error::Error + 'static,
    F: AsyncFnOnce(&Transaction<'_>) -> Result<T, E>,
{
    let clock = SystemClock;
    let deadline = clock.now().plus(within);
    let late = || RowError::Unavailable { attempt: "a transaction with a deadline", source: OVERDUE.into() };
    let begun = until(&clock, deadline, begin(client, within)).await.ok_or_else(late)?;
    let transaction = begun.map_err(|error| RowError::Unavailable {
        attempt: "begin a transaction with a deadline",
        source: error.into(),
    })?;
    // Dropping the transaction rolls it back.
    let worked = until(&clock, deadline, work(&transaction)).await.ok_or_else(late)?;
    let value = worked.map_err(read_failure)?;
    // COMMIT after a failed statement that the work ignored says yes, and rolls back. Here it is an error.
    let alive = until(&clock, deadline, transaction.batch_execute("SELECT 1")).await.ok_or_else(late)?;
    alive.map_err(|error| RowError::Unavailable {
        attempt: "commit, after a statement of the work had failed",
        source: error.into(),
    })?;
    if clock.now() >= deadline {
        return Err(late());
    }
    // From here on nobody can say that it did not happen.
    let committed = until(&clock, clock.now().plus(within), transaction.commit()).await;
    match committed {
        Some(Ok(())) => Ok(value),
        // The server's answer is no: it rolled back. A session that it ended may have committed before.
        Some(Err(error))
            if error.as_db_error().is_some_and(|answer| answer.parsed_severity() == Some(Severity::Error)) =>
        {
            Err(RowError::Unavailable { attempt: "commit", source: error.into() })
        }
        Some(Err(error)) => Err(RowError::Indeterminate(error.into())),
        None => Err(RowError::Indeterminate("no answer in time".into())),
    }
}

const OVERDUE: &str = "the work did not end before its deadline";

async fn begin(client: &mut Client, within: Duration) -> Result<Transaction<'_>, SqlError> {
    // Zero would switch the limit off.
    let millis = within.as_millis().clamp(1, i32::MAX as u128);
    let transaction = client.transaction().await?;
    transaction
        .batch_execute(&format!(
            "SET LOCAL lock_timeout = {millis}; SET LOCAL statement_timeout = {millis}; \
             SET LOCAL idle_in_transaction_session_timeout = {millis}"
        ))
        .await?;
    Ok(transaction)
}

/// Reads why the work failed: one of our limits, or something of its own.
fn read_failure<E: std::error::Error + 'static>(error: E) -> RowError<E> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    let mut found = None;
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<SqlError>() {
            let by_io = std::error::Error::source(error).is_some_and(|cause| cause.is::<std::io::Error>());
            found = Some((error.code().cloned(), error.is_closed() || by_io));
        }
        cause = error.source();
    }
    let late = |attempt, why: &str| RowError::Unavailable { attempt, source: why.into() };
    match found {
        Some((Some(SqlState::LOCK_NOT_AVAILABLE), _)) => RowError::Held,
        Some((Some(SqlState::QUERY_CANCELED), _)) => late("a statement under a deadline", OVERDUE),
        Some((Some(SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT), _)) => {
            late("a transaction with a deadline", "this process was too slow, and the server closed the connection")
        }
        Some((None, true)) => late("a transaction with a deadline", "the connection is lost"),
        _ => RowError::Work(error),
    }
}
