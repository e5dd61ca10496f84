//! A transaction of SQLite under a lease.
//!
//! # Laws
//!
//! 1. Only a [`FencedLease`] over exclusive claims opens it, and it speaks for the resources of that lease only. A process
//!    that was started under such a lease shows what it was given (`LEASEHOLD_FENCE`) as a [`FenceSetting`].
//! 2. A token never outlives its transaction: what is written on the connection afterwards has none.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rusqlite::functions::FunctionFlags;
use rusqlite::{Connection, ErrorCode, OptionalExtension as _, Transaction, TransactionBehavior};

use super::unavailable;
use crate::Token;
use crate::error::BoxError;
use crate::fence::counters::{FenceKind, count_admitted, count_rejected};
use crate::fence::refusal::{FenceError, FenceRefusal};
use crate::fence::token_text::{FenceSetting, FenceToken};
use crate::lease::FencedLease;

const ATTEMPT: &str = "write under a lease";

/// A connection that can write to fenced tables: it has the function `leasehold_token`.
///
/// ```
/// use leasehold::{Leasehold, fence::sqlite::{SqliteFence, SqliteInstallOptions, install}};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let leasehold = Leasehold::open(&format!("embedded:{}", dir.path().display())).await?;
/// let mut connection = rusqlite::Connection::open_in_memory()?;
/// connection.execute_batch("CREATE TABLE seats (seat_id INTEGER PRIMARY KEY, owner TEXT)")?;
/// let options = SqliteInstallOptions {
///     table: "seats".into(),
///     keys: vec!["seat_id".into()],
///     resource: Some("seat/{}".into()),
/// };
/// install(&mut connection, &options)?;
///
/// let fence = SqliteFence::attach(&connection)?;
/// let lease = leasehold.acquire("seat/14").fenced().await?;
/// fence.write(&lease, &mut connection, |tx| {
///     Ok(tx.execute("INSERT INTO seats VALUES (14, 'ada')", [])?)
/// })?;
/// // Without a token nothing is written.
/// assert!(connection.execute("DELETE FROM seats", []).is_err());
/// # Ok(())
/// # }
/// ```
///
/// A lease for efficiency has no token, and opens no fenced write:
///
/// ```compile_fail,E0308
/// use leasehold::{Lease, fence::sqlite::SqliteFence};
///
/// fn sell(fence: &SqliteFence, lease: &Lease, connection: &mut rusqlite::Connection) {
///     let _ = fence.write(lease, connection, |_| Ok(())); // expected `&FencedLease`, found `&Lease`
/// }
/// ```
pub struct SqliteFence {
    shown: Arc<Mutex<ShownToken>>,
}

/// What the function of the connection answers, and what it was asked last.
#[derive(Default)]
struct ShownToken {
    setting: Option<FenceSetting>,
    last: Option<(String, Option<FenceToken>)>,
}

impl fmt::Debug for SqliteFence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteFence").finish_non_exhaustive()
    }
}

impl SqliteFence {
    /// Gives a connection the function `leasehold_token`, and sets `PRAGMA recursive_triggers`.
    ///
    /// # Errors
    ///
    /// [`FenceError::Unavailable`] when a statement of this connection still runs.
    pub fn attach(connection: &Connection) -> Result<Self, FenceError> {
        let shown = Arc::new(Mutex::new(ShownToken::default()));
        let asked = shown.clone();
        // Innocuous: also where the schema is not trusted. Not deterministic: the answer changes with the transaction.
        let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_INNOCUOUS;
        let answer = move |context: &rusqlite::functions::Context<'_>| {
            let resource: String = context.get(0)?;
            let mut shown = lock(&asked);
            let picked = shown.setting.as_ref().map(|setting| setting.pick_for(&resource)).transpose();
            shown.last = Some((resource, picked.as_ref().ok().copied().flatten()));
            match picked {
                Ok(token) => Ok(token.map(|token| token.to_string())),
                Err(refusal) => {
                    Err(rusqlite::Error::UserFunctionError(format!("leasehold {}: {refusal}", refusal.code()).into()))
                }
            }
        };
        let made = connection
            .create_scalar_function("leasehold_token", 1, flags, answer)
            .and_then(|()| connection.pragma_update(None, "recursive_triggers", true));
        made.map_err(|error| unavailable(error, "give the connection its function"))?;
        Ok(Self { shown })
    }

    /// Runs `work` in a transaction under a lease, and commits it.
    ///
    /// # Errors
    ///
    /// [`FenceError::Refused`]: stop, a later holder has written. [`FenceError::Unavailable`]: nothing was written.
    /// [`FenceError::Indeterminate`]: COMMIT failed with the disk. [`FenceError::Work`]: `work` failed, nothing was written.
    pub fn write<T>(
        &self,
        lease: &FencedLease,
        connection: &mut Connection,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, BoxError>,
    ) -> Result<T, FenceError> {
        self.write_showing(FenceSetting::for_lease(lease)?, connection, work)
    }

    /// Runs `work` under what another process was given, for example in `LEASEHOLD_FENCE`.
    ///
    /// # Errors
    ///
    /// As [`SqliteFence::write`].
    pub fn write_showing<T>(
        &self,
        setting: FenceSetting,
        connection: &mut Connection,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, BoxError>,
    ) -> Result<T, FenceError> {
        *lock(&self.shown) = ShownToken { setting: Some(setting), last: None };
        // Also when `work` panics.
        let _clear = ClearOnDrop(&self.shown);
        let done = self.run(connection, work);
        match &done {
            Ok(_) => count_admitted(FenceKind::Sqlite),
            Err(FenceError::Refused(_)) => count_rejected(FenceKind::Sqlite),
            Err(_) => {}
        }
        done
    }

    fn run<T>(
        &self,
        connection: &mut Connection,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, BoxError>,
    ) -> Result<T, FenceError> {
        // Immediate: the write lock is the order of writers, and a snapshot from before it would be old.
        let transaction = connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(|error| unavailable(error, ATTEMPT))?;
        let value = match work(&transaction) {
            Ok(value) => value,
            Err(error) => return Err(self.failure_of(error, &transaction)),
        };
        transaction.commit().map_err(|error| match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::ConstraintViolation) => {
                unavailable(error, ATTEMPT)
            }
            _ => FenceError::Indeterminate {
                kind: FenceKind::Sqlite,
                attempt: ATTEMPT.to_owned(),
                source: Box::new(error),
            },
        })?;
        Ok(value)
    }

    /// Reads the error of the work. The transaction is still open: the fence is as the refusal saw it.
    fn failure_of(&self, error: BoxError, transaction: &Transaction<'_>) -> FenceError {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&*error);
        while let Some(at) = cause {
            if let Some(rusqlite::Error::SqliteFailure(code, Some(message))) = at.downcast_ref::<rusqlite::Error>() {
                if let Some(refusal) = self.refusal_from(message, transaction) {
                    return FenceError::Refused(refusal);
                }
                if matches!(code.code, ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) {
                    return FenceError::Unavailable {
                        kind: FenceKind::Sqlite,
                        attempt: ATTEMPT.to_owned(),
                        source: error,
                    };
                }
            }
            cause = at.source();
        }
        FenceError::Work(error)
    }

    fn refusal_from(&self, message: &str, transaction: &Transaction<'_>) -> Option<FenceRefusal> {
        let code = message.split("leasehold LH").nth(1)?.get(..3)?;
        let (resource, shown) = lock(&self.shown).last.clone()?;
        Some(match code {
            "001" => {
                let highest = highest_of(transaction, &resource)?;
                FenceRefusal::Stale { resource, presented: shown?.token, highest }
            }
            "002" => FenceRefusal::NoToken { resource },
            "003" => FenceRefusal::OtherLease { resource, presented: shown?.token },
            "004" => FenceRefusal::Malformed,
            "006" => FenceRefusal::NotCovered { resource },
            _ => return None,
        })
    }
}

fn highest_of(transaction: &Transaction<'_>, resource: &str) -> Option<Token> {
    let sql = "SELECT token FROM leasehold_seen WHERE resource = ?1";
    let number: Option<i64> = transaction.query_row(sql, [resource], |row| row.get(0)).optional().ok()?;
    number.and_then(|number| u64::try_from(number).ok()).and_then(Token::new)
}

fn lock(shown: &Mutex<ShownToken>) -> MutexGuard<'_, ShownToken> {
    // Replaced in one move: a panic elsewhere cannot leave it half written.
    shown.lock().unwrap_or_else(PoisonError::into_inner)
}

struct ClearOnDrop<'s>(&'s Mutex<ShownToken>);

impl Drop for ClearOnDrop<'_> {
    fn drop(&mut self) {
        *lock(self.0) = ShownToken::default();
    }
}
