//! Opens a file for the tools of this module, and runs SQL text under a token.

use std::path::Path;
use std::time::Duration;

use rusqlite::fallible_iterator::FallibleIterator as _;
use rusqlite::types::ValueRef;
use rusqlite::{Batch, Connection, OpenFlags, Row};

use super::transaction::SqliteFence;
use super::unavailable;
use crate::fence::counters::FenceKind;
use crate::fence::refusal::{FenceError, SelfEnded};
use crate::fence::token_text::FenceSetting;

/// How long another writer is waited for.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// Opens a file that is there. A mistyped name does not make a new one.
///
/// # Errors
///
/// [`FenceError::Unavailable`] when it cannot be opened.
pub fn connect(path: &Path) -> Result<Connection, FenceError> {
    let attempt = format!("open {}", path.display());
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let opened = Connection::open_with_flags(path, flags).and_then(|connection| {
        connection.busy_timeout(BUSY_TIMEOUT)?;
        // A file that is no database is found out now, and not at the first statement.
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
        Ok(connection)
    });
    opened.map_err(|error| unavailable(error, &attempt))
}

/// Runs statements in one transaction that shows this token. The rows of all of them, as text.
///
/// # Errors
///
/// As [`SqliteFence::write`].
pub fn execute_sql(
    connection: &mut Connection,
    shown: FenceSetting,
    sql: &str,
) -> Result<Vec<Vec<Option<String>>>, FenceError> {
    let fence = SqliteFence::attach(connection)?;
    let done = fence.write_showing(shown, connection, |transaction| {
        let mut found = Vec::new();
        let mut batch = Batch::new(transaction, sql);
        while let Some(mut statement) = batch.next()? {
            let columns = statement.column_count();
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                found.push((0..columns).map(|at| text_of(row, at)).collect::<rusqlite::Result<_>>()?);
            }
            // COMMIT, END or ROLLBACK: the statements after it would have no token.
            if transaction.is_autocommit() {
                return Err(SelfEnded(None).into());
            }
        }
        Ok(found)
    });
    done.map_err(|error| SelfEnded::reveal(error, FenceKind::Sqlite))
}

fn text_of(row: &Row<'_>, at: usize) -> rusqlite::Result<Option<String>> {
    Ok(match row.get_ref(at)? {
        ValueRef::Null => None,
        ValueRef::Integer(number) => Some(number.to_string()),
        ValueRef::Real(number) => Some(number.to_string()),
        ValueRef::Text(text) => Some(String::from_utf8_lossy(text).into_owned()),
        ValueRef::Blob(bytes) => Some(bytes.iter().fold(String::new(), |digits, byte| digits + &format!("{byte:02x}"))),
    })
}
