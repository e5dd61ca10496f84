//! The default ledger: SQLite in the process, with one file, one writer thread, and a pool of reader connections.
//!
//! # Promises
//!
//! All laws of [`super`]. Whatever is answered or read is on disk before. Many requests share one commit. SQLite itself
//! syncs at checkpoints only (WAL, `synchronous=NORMAL`): the syncer thread in `writer.rs` syncs the WAL after each
//! commit, while the writer thread runs the next batch. One process at a time: the file is locked.
//!
//! # Clock
//!
//! Its own, BOOTTIME based and kept in the file: see `clock.rs`. Steps of the wall clock have no effect.
//!
//! # Secrets
//!
//! The file holds lease ids (hold keys only as digests): it is made readable by its owner alone.

mod apply;
mod calls;
mod clock;
mod freed;
mod load;
mod read;
mod retention;
mod schema;
mod webhooks;
mod writer;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod writer_tests;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold::clock::Clock;
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, params};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{Semaphore, oneshot};

use super::LedgerFuture;
use super::load_facts::load_facts;
use crate::error::Error;
use crate::model::decide::Decision;
use crate::model::facts::{Facts, Need};
use crate::model::write::LedgerWrite;
use crate::model::{Done, Idem, LedgerCall, Moment, Refusal};
use clock::LedgerClock;
use load::{SqliteError, SqliteResult, json, parse};
use writer::{CommitOutcome, JobRun, WriterHandle, WriterJob};

const LEDGER_NAME: &str = "sqlite";
/// Prepared statements cached on each connection: enough for all of them.
const CACHED_STATEMENTS: usize = 128;
/// WAL pages per checkpoint. The writer thread does the checkpoint and others wait for it. The more pages at once, the
/// fewer are written twice.
const CHECKPOINT_PAGES: u32 = 4000;
/// The most reads at once for requests of buyers and staff. Further ones wait for a permit.
const MAX_READS: usize = 8;
/// The most reads at once for the followers and the event cache. Their permits are apart from the others: a cache that
/// waited behind a crowd would be too old to keep that crowd away from the ledger. No read per buyer belongs here.
const MAX_FOLLOWER_READS: usize = 2;
/// The most reads of entries at once: for streams that are behind, for pages that reconnect, for staff.
const MAX_ENTRY_READS: usize = 2;

/// A ledger in a file. See the module.
pub struct Sqlite {
    path: PathBuf,
    time: Arc<LedgerClock>,
    writer: WriterHandle,
    readers: Mutex<Vec<Connection>>,
    read_permits: Semaphore,
    follower_permits: Semaphore,
    entry_permits: Semaphore,
    /// The lock file, locked while this process has the ledger open.
    lock: Mutex<Option<File>>,
}

impl Sqlite {
    /// Opens the file, makes it if there is none, and brings it to this version's schema.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`]: it cannot be opened, or another process has it. [`Error::Corrupt`]: it is damaged.
    pub async fn open(path: impl AsRef<Path>, clock: Arc<dyn Clock>) -> Result<Arc<Self>, Error> {
        let path = path.as_ref().to_owned();
        let opened = tokio::task::spawn_blocking(move || Self::open_now(&path, clock)).await;
        opened.map_err(|source| unavailable("opening the ledger", source.to_string()))?.map(Arc::new)
    }

    fn open_now(path: &Path, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        let attempt = || format!("opening the ledger {}", path.display());
        let fail = |source: String| unavailable(&attempt(), source);
        let private = |path: &Path| OpenOptions::new().create(true).append(true).mode(0o600).open(path);
        let mut beside = path.as_os_str().to_owned();
        beside.push(".lock");
        let lock = private(Path::new(&beside)).map_err(|error| fail(error.to_string()))?;
        lock.try_lock().map_err(|_| fail("another process has it".into()))?;
        private(path).map_err(|error| fail(error.to_string()))?;
        let mut connection = connect(path, false).map_err(|error| sql_error(&attempt(), &error))?;
        // During migration SQLite syncs every commit itself.
        let durable = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;";
        connection.execute_batch(durable).map_err(|error| sql_error(&attempt(), &error))?;
        schema::migrate(&mut connection).map_err(fail)?;
        let time = Arc::new(LedgerClock::open(&connection, clock).map_err(|error| sql_error(&attempt(), &error))?);
        let ours = format!("PRAGMA synchronous = NORMAL; PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES};");
        connection.execute_batch(&ours).map_err(|error| sql_error(&attempt(), &error))?;
        let mut beside = path.as_os_str().to_owned();
        beside.push("-wal");
        let wal = OpenOptions::new().write(true).open(Path::new(&beside)).map_err(|error| fail(error.to_string()))?;
        // Transactions that an earlier process committed and did not sync are visible now: make them durable first.
        wal.sync_data().map_err(|error| fail(error.to_string()))?;
        let writer = WriterHandle::start(connection, wal, time.clone()).map_err(|error| fail(error.to_string()))?;
        let (path, readers, lock) = (path.to_owned(), Mutex::default(), Mutex::new(Some(lock)));
        let [read_permits, follower_permits, entry_permits] =
            [MAX_READS, MAX_FOLLOWER_READS, MAX_ENTRY_READS].map(Semaphore::new);
        Ok(Self { path, time, writer, readers, read_permits, follower_permits, entry_permits, lock })
    }

    /// How many transactions were committed since it was opened; each may contain many requests.
    #[must_use]
    pub fn commits(&self) -> u64 {
        self.writer.progress.commits()
    }

    /// One transaction: load the facts, decide, apply the writes, commit.
    fn transact<'a, T, D>(
        &'a self,
        attempt: &'static str,
        call: LedgerCall,
        need: Need,
        decide: D,
    ) -> LedgerFuture<'a, Done<T>>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        D: Fn(&Facts, &str, Moment) -> Decision<T> + Send + 'static,
    {
        self.write(attempt, move |db, time| {
            let now = time.now();
            if let Some(value) = stored_answer(db, call.idem.as_ref())? {
                return Ok(Done { value, now, replayed: true });
            }
            let facts = load_facts(db, &need, now)?;
            let (writes, value) = decide(&facts, &call.actor, now)?;
            if writes.is_empty() && call.idem.is_none() {
                return Ok(Done { value, now, replayed: false });
            }
            apply_and_store(db, &writes, call.idem.as_ref(), &value, now)?;
            Ok(Done { value, now, replayed: false })
        })
    }

    /// Queues work for the writer thread. The future waits until it is durable.
    fn write<'a, T, F>(&'a self, attempt: &'static str, work: F) -> LedgerFuture<'a, T>
    where
        T: Send + 'static,
        F: FnMut(&Connection, &LedgerClock) -> Result<T, JobFailure> + Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        // Queued at once, not when first polled: requests run in the order in which they were made.
        let sent = self.writer.send(Box::new(PendingWrite { attempt, work, outcome: None, sender }));
        Box::pin(async move {
            if !sent {
                return Err(unavailable(attempt, "the ledger is closed, or has failed".into()));
            }
            receiver.await.unwrap_or_else(|_| Err(indeterminate(attempt, "the writer ended meanwhile".into())))
        })
    }

    /// Reads with a permit for requests.
    fn read<'a, T, F>(&'a self, attempt: &'static str, work: F) -> LedgerFuture<'a, T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection, Moment) -> SqliteResult<T> + Send + 'static,
    {
        self.read_with_permit(&self.read_permits, attempt, work)
    }

    /// Reads with a permit for followers.
    fn read_for_follower<'a, T, F>(&'a self, attempt: &'static str, work: F) -> LedgerFuture<'a, T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection, Moment) -> SqliteResult<T> + Send + 'static,
    {
        self.read_with_permit(&self.follower_permits, attempt, work)
    }

    /// Reads entries, with a permit of their own.
    fn read_entries<'a, T, F>(&'a self, attempt: &'static str, work: F) -> LedgerFuture<'a, T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection, Moment) -> SqliteResult<T> + Send + 'static,
    {
        self.read_with_permit(&self.entry_permits, attempt, work)
    }

    /// Reads on a reader connection, in one transaction: one consistent snapshot.
    fn read_with_permit<'a, T, F>(
        &'a self,
        permits: &'a Semaphore,
        attempt: &'static str,
        work: F,
    ) -> LedgerFuture<'a, T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection, Moment) -> SqliteResult<T> + Send + 'static,
    {
        let (path, time) = (self.path.clone(), self.time.clone());
        Box::pin(async move {
            let _permit = permits.acquire().await.map_err(|error| unavailable(attempt, error.to_string()))?;
            let kept = self.readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let worked = tokio::task::spawn_blocking(move || {
                let db = match kept {
                    Some(db) => db,
                    None => connect(&path, true)?,
                };
                db.execute_batch("BEGIN")?;
                // The moment is read before the snapshot: rows in it were decided by then, or a little later.
                let outcome = work(&db, time.now());
                db.execute_batch("COMMIT")?;
                outcome.map(|value| (value, db))
            });
            let worked = worked.await.map_err(|error| unavailable(attempt, error.to_string()))?;
            let (value, db) = worked.map_err(|error| JobFailure::Sqlite(error).into_error(attempt))?;
            {
                let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
                if readers.len() < MAX_READS + MAX_FOLLOWER_READS + MAX_ENTRY_READS {
                    readers.push(db);
                }
            }
            // Rows that were read may be committed and not yet on disk: wait until they are.
            if !self.writer.progress.durable().await {
                return Err(unavailable(attempt, "what was read is not known to be on disk".into()));
            }
            Ok(value)
        })
    }
}

fn connect(path: &Path, reader: bool) -> rusqlite::Result<Connection> {
    let access = if reader { OpenFlags::SQLITE_OPEN_READ_ONLY } else { OpenFlags::SQLITE_OPEN_READ_WRITE };
    let db = Connection::open_with_flags(path, access | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    db.busy_timeout(Duration::from_secs(5))?;
    db.set_prepared_statement_cache_capacity(CACHED_STATEMENTS);
    rusqlite::vtab::array::load_module(&db)?;
    // The query planner does not look at bound values. Otherwise SQLite prepares statements again at every call if a
    // partial index could serve them.
    db.set_db_config(rusqlite::config::DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    // Page cache: 16 MiB for the writer, 8 for each reader. Not more: after a tree was rebalanced, SQLite walks all cached
    // pages at the next commit.
    db.execute_batch(if reader { "PRAGMA cache_size = -8192" } else { "PRAGMA cache_size = -16384" })?;
    Ok(db)
}

/// The stored answer of an idempotency key.
fn stored_answer<T: DeserializeOwned>(db: &Connection, idem: Option<&Idem>) -> Result<Option<T>, JobFailure> {
    let Some(idem) = idem else { return Ok(None) };
    let mut statement = db.prepare_cached("SELECT asked, answer FROM answers WHERE key = ?1")?;
    let found: Option<(Vec<u8>, String)> =
        statement.query_row([&idem.key[..]], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    let Some((asked, answer)) = found else { return Ok(None) };
    if asked != idem.body {
        return Err(Refusal::Mismatch.into());
    }
    // The digest of the body covers the path too, so the stored answer is of the same type.
    Ok(Some(parse(&answer, "answers")?))
}

/// Applies writes and stores the answer. If it fails in between, the writer thread rolls back.
fn apply_and_store<T: Serialize>(
    db: &Connection,
    writes: &[LedgerWrite],
    idem: Option<&Idem>,
    value: &T,
    now: Moment,
) -> SqliteResult<()> {
    apply::apply_all(db, writes)?;
    let Some(idem) = idem else { return Ok(()) };
    let mut statement = db.prepare_cached("INSERT INTO answers VALUES (?1, ?2, ?3, ?4)")?;
    statement.execute(params![&idem.key[..], &idem.body[..], json(value)?, now.0])?;
    Ok(())
}

/// A job of a caller who waits for its result.
struct PendingWrite<T, F> {
    attempt: &'static str,
    work: F,
    outcome: Option<Result<T, Error>>,
    sender: oneshot::Sender<Result<T, Error>>,
}

impl<T, F> WriterJob for PendingWrite<T, F>
where
    T: Send,
    F: FnMut(&Connection, &LedgerClock) -> Result<T, JobFailure> + Send,
{
    fn run(&mut self, db: &Connection, time: &LedgerClock) -> JobRun {
        let done = (self.work)(db, time);
        // A refusal is decided before anything is written.
        let ran = if matches!(done, Err(JobFailure::Sqlite(_))) { JobRun::PartiallyApplied } else { JobRun::Complete };
        self.outcome = Some(done.map_err(|failure| failure.into_error(self.attempt)));
        ran
    }

    fn complete(self: Box<Self>, fate: &CommitOutcome) {
        let _ = self.sender.send(match (self.outcome, fate) {
            (Some(outcome), CommitOutcome::Durable) => outcome,
            (_, CommitOutcome::Unknown(why)) => Err(indeterminate(self.attempt, why.clone())),
            (_, CommitOutcome::RolledBack(why)) => Err(unavailable(self.attempt, why.clone())),
            (None, CommitOutcome::Durable) => Err(unavailable(self.attempt, "it was not run".into())),
        });
    }
}

/// Why a job failed.
enum JobFailure {
    Refused(Refusal),
    Sqlite(SqliteError),
}

impl From<Refusal> for JobFailure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl<E: Into<SqliteError>> From<E> for JobFailure {
    fn from(error: E) -> Self {
        Self::Sqlite(error.into())
    }
}

impl JobFailure {
    fn into_error(self, attempt: &str) -> Error {
        match self {
            Self::Refused(refusal) => Error::Refused(refusal),
            Self::Sqlite(SqliteError::Corrupt { law, at }) => Error::Corrupt { part: LEDGER_NAME, law, at },
            Self::Sqlite(SqliteError::Sql(error)) => sql_error(attempt, &error),
        }
    }
}

fn sql_error(attempt: &str, error: &rusqlite::Error) -> Error {
    use rusqlite::ErrorCode::{ConstraintViolation, DatabaseCorrupt, NotADatabase};
    let corrupt = |law: &str| Error::Corrupt { part: LEDGER_NAME, law: law.into(), at: format!("{attempt}: {error}") };
    match error.sqlite_error_code() {
        Some(ConstraintViolation) => corrupt("no decision goes against a constraint"),
        Some(DatabaseCorrupt | NotADatabase) => corrupt("the file is a database"),
        _ => unavailable(attempt, error.to_string()),
    }
}

fn unavailable(attempt: &str, why: String) -> Error {
    Error::Unavailable { part: LEDGER_NAME, attempt: attempt.into(), source: why.into() }
}

fn indeterminate(attempt: &str, why: String) -> Error {
    Error::Indeterminate { part: LEDGER_NAME, attempt: attempt.into(), source: why.into() }
}
