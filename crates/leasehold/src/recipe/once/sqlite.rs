//! `once` in a file of SQLite, in any transaction of the caller.
//!
//! ```
//! use leasehold::recipe::once::{Begun, sqlite};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let file = dir.path().join("shop.db");
//! // Opening the file as a store makes the tables, once.
//! leasehold::recipe::Store::open(&format!("sqlite:{}", file.display())).await?;
//! let mut connection = rusqlite::Connection::open(&file)?;
//! connection.execute_batch("CREATE TABLE stock (left_over INTEGER); INSERT INTO stock VALUES (9)")?;
//! for _ in 0..2 {
//!     let tx = connection.transaction()?;
//!     match sqlite::begin(&tx, "orders", "order-7", "one chair")? {
//!         Begun::First(first) => {
//!             tx.execute("UPDATE stock SET left_over = left_over - 1", [])?;
//!             sqlite::finish(&tx, first, 201, b"sold")?;
//!             tx.commit()?;
//!         }
//!         Begun::Replay(answer) => assert_eq!(answer.body, b"sold"),
//!         Begun::InFlight { .. } | Begun::Mismatch => panic!("409 or 422"),
//!     }
//! }
//! assert_eq!(connection.query_row("SELECT left_over FROM stock", [], |row| row.get::<_, i64>(0))?, 8);
//! # Ok(())
//! # }
//! ```

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension as _, params};

use super::request::{OnceRequest, check_answer, millis};
use super::{Answer, Begun, First, OnceEnd};
use crate::recipe::error::RecipeError;
use crate::recipe::store::sqlite::{STORE_NAME, SqliteDatabase, Tick, sqlite_error};

const UPSERT: &str = "INSERT INTO leasehold_once AS x (scope, key, token, until, expires_at, asked)
    VALUES (?1, ?2, ?3, ?4 + ?5, ?4 + max(?6, ?5), ?7)
    ON CONFLICT (scope, key) DO UPDATE SET token = excluded.token, until = excluded.until,
        expires_at = excluded.expires_at, asked = excluded.asked, status = NULL, answer = NULL
    WHERE (x.status IS NULL AND x.until <= ?4 AND x.asked = excluded.asked)
        OR (x.expires_at <= ?4 AND (x.status IS NOT NULL OR x.until <= ?4))
    RETURNING token";
const FOUND: &str = "SELECT asked, status, answer, until FROM leasehold_once WHERE scope = ?1 AND key = ?2";
const FINISH: &str = "UPDATE leasehold_once SET status = ?4, answer = ?5
    WHERE scope = ?1 AND key = ?2 AND token = ?3 AND status IS NULL";
const RENEW: &str = "UPDATE leasehold_once SET until = ?5
    WHERE scope = ?1 AND key = ?2 AND token = ?3 AND status IS NULL AND until > ?4";
const STORED: &str = "SELECT 1 FROM leasehold_once WHERE scope = ?1 AND key = ?2 AND token = ?3 AND status IS NOT NULL";
/// What expired an hour ago, some rows at a time. A try that still runs is left alone.
const FORGET: &str = "DELETE FROM leasehold_once WHERE rowid IN (
    SELECT rowid FROM leasehold_once WHERE expires_at < ?1 - 3600000 AND until < ?1 LIMIT 1000)";

const ATTEMPT_BEGIN: &str = "begin a try";
const ATTEMPT_END: &str = "end a try";

/// Begins in the caller's transaction. Do the work and [`finish`] in the same one, and commit.
///
/// It takes the write lock of the file: another request waits until this transaction ends, as long as `busy_timeout` of its
/// connection says.
///
/// # Errors
///
/// [`RecipeError::Invalid`]: there is no transaction, or a limit is broken. [`RecipeError::Unavailable`]: roll back, and run
/// the transaction again.
pub fn begin(transaction: &Connection, scope: &str, key: &str, body: impl AsRef<[u8]>) -> Result<Begun, RecipeError> {
    begin_request(transaction, &OnceRequest::new(scope, key, body))
}

/// As [`begin`], with times of its own.
///
/// # Errors
///
/// As [`begin`].
pub fn begin_request(transaction: &Connection, request: &OnceRequest) -> Result<Begun, RecipeError> {
    check_transaction(transaction)?;
    request.check()?;
    let tick = Tick::take(transaction, ATTEMPT_BEGIN)?;
    begin_at(transaction, request, tick)
}

/// Stores the answer, in the transaction of the work.
///
/// # Errors
///
/// [`RecipeRefusal::Stale`](crate::recipe::RecipeRefusal::Stale): another took over, and nothing was stored. Roll back.
pub fn finish(transaction: &Connection, first: First, status: i32, body: &[u8]) -> Result<(), RecipeError> {
    check_transaction(transaction)?;
    check_answer(body)?;
    if end_at(transaction, &first, OnceEnd::Finish { status, body }, 0)? { Ok(()) } else { Err(first.stale()) }
}

fn check_transaction(connection: &Connection) -> Result<(), RecipeError> {
    if connection.is_autocommit() {
        return Err(RecipeError::Invalid("there is no transaction on this connection: begin one first".into()));
    }
    Ok(())
}

fn begin_at(db: &Connection, request: &OnceRequest, tick: Tick) -> Result<Begun, RecipeError> {
    let sql = |error: rusqlite::Error| sqlite_error(&error, ATTEMPT_BEGIN);
    let OnceRequest { scope, key, asked, .. } = request;
    let (ttl, keep) = (millis(request.ttl), millis(request.keep));
    let mut upsert = db.prepare_cached(UPSERT).map_err(sql)?;
    let values = params![scope, key, tick.token, tick.now, ttl, keep, &asked[..]];
    if let Some(token) = upsert.query_row(values, |row| row.get(0)).optional().map_err(sql)? {
        return Ok(Begun::First(First { scope: scope.clone(), key: key.clone(), token }));
    }
    let mut found = db.prepare_cached(FOUND).map_err(sql)?;
    type StoredTry = (Vec<u8>, Option<i32>, Option<Vec<u8>>, i64);
    let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?));
    let (stored, status, answer, until): StoredTry = found.query_row(params![scope, key], read).map_err(sql)?;
    Ok(match (status, answer) {
        _ if stored != asked[..] => Begun::Mismatch,
        (Some(status), Some(body)) => Begun::Replay(Answer { status, body, replayed: true }),
        (None, None) => {
            let left = u64::try_from(until.saturating_sub(tick.now)).unwrap_or(0);
            Begun::InFlight { remaining: Duration::from_millis(left) }
        }
        _ => return Err(RecipeError::corrupt(STORE_NAME, "an answer has a status and a body", "leasehold_once")),
    })
}

/// False: stale, and nothing was written.
fn end_at(db: &Connection, first: &First, end: OnceEnd<'_>, now: i64) -> Result<bool, RecipeError> {
    let First { scope, key, token } = first;
    let changed = match end {
        OnceEnd::Finish { status, body } => {
            db.prepare_cached(FINISH).and_then(|mut sql| sql.execute(params![scope, key, token, status, body]))
        }
        OnceEnd::Renew { ttl } => {
            let until = now.saturating_add(millis(ttl));
            db.prepare_cached(RENEW).and_then(|mut sql| sql.execute(params![scope, key, token, now, until]))
        }
        OnceEnd::Abandon => {
            db.prepare_cached(RENEW).and_then(|mut sql| sql.execute(params![scope, key, token, now, 0]))
        }
    };
    changed.map(|rows| rows > 0).map_err(|error| sqlite_error(&error, ATTEMPT_END))
}

impl SqliteDatabase {
    pub(super) async fn once_begin(&self, request: &OnceRequest) -> Result<Begun, RecipeError> {
        let request = request.clone();
        self.write(ATTEMPT_BEGIN, move |db, tick| begin_at(db, &request, tick)).await
    }

    /// False: stale, and nothing was written.
    pub(super) async fn once_end(&self, first: &First, end: OnceEnd<'_>) -> Result<bool, RecipeError> {
        let (first, finish, ttl) = match end {
            OnceEnd::Finish { status, body } => (first.clone(), Some((status, body.to_owned())), None),
            OnceEnd::Renew { ttl } => (first.clone(), None, Some(ttl)),
            OnceEnd::Abandon => (first.clone(), None, None),
        };
        let work = move |db: &Connection, tick: Tick| {
            let end = match (&finish, ttl) {
                (Some((status, body)), _) => OnceEnd::Finish { status: *status, body },
                (None, Some(ttl)) => OnceEnd::Renew { ttl },
                (None, None) => OnceEnd::Abandon,
            };
            end_at(db, &first, end, tick.now)
        };
        self.write(ATTEMPT_END, work).await
    }

    /// Whether the answer of this try is the stored one.
    pub(super) async fn once_is_stored(&self, first: &First) -> Result<bool, RecipeError> {
        const ATTEMPT: &str = "read the answer of a try";
        let First { scope, key, token } = first.clone();
        let work = move |db: &Connection, _| {
            let stored = db.query_row(STORED, params![scope, key, token], |_| Ok(())).optional();
            stored.map(|row| row.is_some()).map_err(|error| sqlite_error(&error, ATTEMPT))
        };
        self.read(ATTEMPT, work).await
    }

    pub(super) async fn once_forget(&self) -> Result<usize, RecipeError> {
        const ATTEMPT: &str = "forget expired answers";
        let forget =
            |db: &Connection, tick: Tick| db.execute(FORGET, [tick.now]).map_err(|error| sqlite_error(&error, ATTEMPT));
        self.write(ATTEMPT, forget).await
    }
}
