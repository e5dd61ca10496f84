//! The store in a file of SQLite: one writer thread for each process, and connections for reads. Processes may share the
//! file, and the file may be a user's own.
//!
//! # Laws
//!
//! 1. What is answered is on disk before: WAL with `synchronous=FULL`, where a commit is synced before anybody sees it.
//! 2. Each call begins with a [`Tick`]: a moment that never goes back in this file, and a token that rises.
//!
//! # Clock
//!
//! The wall clock, by SQLite itself, because processes and machines that start again must agree on it, and ticks of a
//! schedule are wall time. It never goes back. Where the wall clock is set back, the moment stands still until the wall
//! clock has caught up: nothing is taken over early. Where it is set forward, times end early by that much. A first try or
//! a delivery that is late is refused by its token all the same.

mod schema;
mod tick;
mod writer;

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};

pub(crate) use tick::Tick;

use crate::recipe::error::RecipeError;
use writer::StoreWriter;

/// What errors call this store.
pub(crate) const STORE_NAME: &str = "sqlite";
/// How long a call waits for other processes that write.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Statements kept prepared on each connection.
const CACHED_STATEMENTS: usize = 64;
/// Connections kept for reads.
const MAX_IDLE_READERS: usize = 4;

/// The database of a store. See the module.
pub(crate) struct SqliteDatabase {
    path: PathBuf,
    writer: StoreWriter,
    readers: Arc<Mutex<Vec<Connection>>>,
}

impl SqliteDatabase {
    /// Opens the file, makes it if there is none, and migrates.
    pub async fn open(path: PathBuf) -> Result<Self, RecipeError> {
        let attempt = format!("open the store {}", path.display());
        let opened = tokio::task::spawn_blocking({
            let attempt = attempt.clone();
            move || Self::open_now(path, &attempt)
        });
        opened.await.map_err(|error| RecipeError::unavailable(STORE_NAME, &attempt, error))?
    }

    fn open_now(path: PathBuf, attempt: &str) -> Result<Self, RecipeError> {
        let sql = |error: rusqlite::Error| sqlite_error(&error, attempt);
        // A new file is for its owner alone: answers and jobs may be secret. One that is there keeps its mode.
        let made = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
        made.map_err(|error| RecipeError::unavailable(STORE_NAME, attempt, error))?;
        let mut connection = connect(&path, OpenFlags::SQLITE_OPEN_READ_WRITE).map_err(sql)?;
        connection.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;").map_err(sql)?;
        schema::migrate(&mut connection, attempt)?;
        let writer = StoreWriter::start(connection);
        let writer = writer.map_err(|error| RecipeError::unavailable(STORE_NAME, attempt, error))?;
        Ok(Self { path, writer, readers: Arc::default() })
    }

    /// Runs `work` on the writer thread, in a transaction that may be shared with other calls, and answers when it is on
    /// disk. Where `work` fails, nothing of it is kept. Where it changes no row, its tick is not kept either: a token that
    /// no row has was given to nobody.
    pub async fn write<T: Send + 'static>(
        &self,
        attempt: &str,
        work: impl FnOnce(&Connection, Tick) -> Result<T, RecipeError> + Send + 'static,
    ) -> Result<T, RecipeError> {
        self.writer.write(attempt, work).await
    }

    /// Reads one consistent snapshot on a connection of its own. `work` gets the present moment in milliseconds.
    pub async fn read<T: Send + 'static>(
        &self,
        attempt: &str,
        work: impl FnOnce(&Connection, i64) -> Result<T, RecipeError> + Send + 'static,
    ) -> Result<T, RecipeError> {
        let (path, readers, text) = (self.path.clone(), self.readers.clone(), attempt.to_owned());
        let worked = tokio::task::spawn_blocking(move || {
            let sql = |error: rusqlite::Error| sqlite_error(&error, &text);
            let kept = readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let db = match kept {
                Some(db) => db,
                None => connect(&path, OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(sql)?,
            };
            db.execute_batch("BEGIN").map_err(sql)?;
            let done = Tick::read_now(&db, &text).and_then(|now| work(&db, now));
            db.execute_batch("COMMIT").map_err(sql)?;
            let mut readers = readers.lock().unwrap_or_else(PoisonError::into_inner);
            if readers.len() < MAX_IDLE_READERS {
                readers.push(db);
            }
            done
        });
        worked.await.map_err(|error| RecipeError::unavailable(STORE_NAME, attempt, error))?
    }

    /// A number that changes when another connection, of this process or of another, has changed the file.
    /// Run it twice on the same connection, inside [`SqliteDatabase::read`] it would say nothing.
    pub fn data_version(connection: &Connection, attempt: &str) -> Result<i64, RecipeError> {
        let read = connection.query_row("PRAGMA data_version", [], |row| row.get(0));
        read.map_err(|error| sqlite_error(&error, attempt))
    }

    /// A connection of its own for reads.
    pub fn reader(&self, attempt: &str) -> Result<Connection, RecipeError> {
        connect(&self.path, OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(|error| sqlite_error(&error, attempt))
    }

    /// Ends the writer thread, after what is queued.
    pub async fn close(&self) {
        self.writer.close().await;
        self.readers.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

fn connect(path: &Path, access: OpenFlags) -> rusqlite::Result<Connection> {
    let db = Connection::open_with_flags(path, access | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    db.busy_timeout(BUSY_TIMEOUT)?;
    db.set_prepared_statement_cache_capacity(CACHED_STATEMENTS);
    Ok(db)
}

/// What an error of SQLite means inside a transaction that is not committed: nothing happened.
pub(crate) fn sqlite_error(error: &rusqlite::Error, attempt: &str) -> RecipeError {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            RecipeError::corrupt(STORE_NAME, "the file is sound", format!("{attempt}: {error}"))
        }
        Some(ErrorCode::ConstraintViolation) => {
            RecipeError::corrupt(STORE_NAME, "no call goes against a constraint", format!("{attempt}: {error}"))
        }
        _ if error.to_string().contains("no such table: leasehold_") => RecipeError::Invalid(format!(
            "the store is not in this file, run `leasehold migrate --store sqlite:FILE` first: {error}"
        )),
        _ => RecipeError::unavailable(STORE_NAME, attempt, error.to_string()),
    }
}
