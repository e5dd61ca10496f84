//! A transaction under a lease: what it writes to fenced tables is admitted or refused with it.
//!
//! # Laws
//!
//! 1. Only a [`FencedLease`] over exclusive claims opens it, and it speaks for the resources of that lease only. A process
//!    that was started under such a lease shows what it was given (`LEASEHOLD_FENCE`) as a [`FenceSetting`].
//! 2. Success means that COMMIT was acknowledged, and that no statement had failed before it.
//! 3. A connection that is lost after COMMIT was sent is Indeterminate, never a refusal and never Unavailable.
//! 4. Dropping the future rolls back.

use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use leasehold_postgres::tokio_postgres::types::ToSql;
use leasehold_postgres::tokio_postgres::{Client, IsolationLevel, SimpleQueryMessage, Transaction};

use super::sql_refusal::{
    SqlCause, WorkFailure, failure_before_commit, failure_of_commit, failure_of_work, gave_up, unavailable,
};
use super::sql_text::quote_literal;
use crate::clock::{Clock as _, SystemClock};
use crate::error::BoxError;
use crate::fence::counters::{FenceKind, count_admitted, count_rejected};
use crate::fence::refusal::FenceError;
use crate::fence::token_text::FenceSetting;
use crate::lease::FencedLease;

/// How often a transaction is run that loses against others.
const DEFAULT_ATTEMPTS: u32 = 10;
/// The pause before the second run. It doubles, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

const ATTEMPT: &str = "write under a lease";

/// Runs `work` in a transaction under a lease, and commits it. See [`FencedWrite`] for more.
///
/// ```no_run
/// use leasehold::{Leasehold, fence::postgres};
///
/// # async fn sell(leasehold: Leasehold) -> Result<(), Box<dyn std::error::Error>> {
/// let mut client = postgres::connect("postgres://app@localhost/shop").await?;
/// let lease = leasehold.acquire("seat/14").fenced().await?;
/// postgres::write(&lease, &mut client, async |tx| {
///     Ok(tx.execute("UPDATE seats SET owner = 'ada' WHERE seat_id = 14", &[]).await?)
/// })
/// .await?;
/// # Ok(())
/// # }
/// ```
///
/// A lease for efficiency has no token, and opens no fenced write:
///
/// ```compile_fail,E0308
/// use leasehold::{Lease, fence::postgres};
///
/// async fn sell(lease: &Lease, client: &mut tokio_postgres::Client) {
///     let _ = postgres::write(lease, client, async |_| Ok(())).await; // expected `&FencedLease`, found `&Lease`
/// }
/// ```
///
/// # Errors
///
/// As [`FencedWrite::run`].
pub async fn write<T, F>(lease: &FencedLease, client: &mut Client, work: F) -> Result<T, FenceError>
where
    F: AsyncFn(&Transaction<'_>) -> Result<T, BoxError>,
{
    FencedWrite::under(lease)?.run(client, work).await
}

/// A fenced write being put together.
#[derive(Clone, Debug)]
#[must_use = "nothing is written until it is run"]
pub struct FencedWrite<'c> {
    setting: FenceSetting,
    isolation: Option<IsolationLevel>,
    lock_timeout: Option<Duration>,
    attempts: u32,
    evict: Option<(Duration, &'c Client)>,
}

impl<'c> FencedWrite<'c> {
    /// A write under one lease.
    ///
    /// # Errors
    ///
    /// [`FenceError::Invalid`] for a lease that shares a resource with others.
    pub fn under(lease: &FencedLease) -> Result<Self, FenceError> {
        Self::under_all([lease])
    }

    /// A write under several leases. Each speaks for the resources that it covers.
    ///
    /// # Errors
    ///
    /// [`FenceError::Invalid`] for a lease that shares a resource with others.
    pub fn under_all<'l>(leases: impl IntoIterator<Item = &'l FencedLease>) -> Result<Self, FenceError> {
        Ok(Self::showing(FenceSetting::for_leases(leases)?))
    }

    /// A write of a process that was given what it shows, as `leasehold run` gives it in `LEASEHOLD_FENCE`.
    pub fn showing(setting: FenceSetting) -> Self {
        Self { setting, isolation: None, lock_timeout: None, attempts: DEFAULT_ATTEMPTS, evict: None }
    }

    /// The isolation level. Default: that of the connection. The fence holds at every level.
    pub fn isolation(mut self, level: IsolationLevel) -> Self {
        self.isolation = Some(level);
        self
    }

    /// How long a statement may wait for a lock, for example of a stale holder that stopped inside its transaction.
    /// Default: as the connection has it.
    pub fn lock_timeout(mut self, timeout: Duration) -> Self {
        self.lock_timeout = Some(timeout);
        self
    }

    /// How often the transaction is run when it loses against others (`40001`, `40P01`). Default: 10.
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts.max(1);
        self
    }

    /// Terminates, through this other connection, whoever still blocks this write after so long: a holder that stopped
    /// inside its transaction. The role needs `pg_signal_backend`. Default: nobody is terminated.
    ///
    /// Whoever holds a lock that this transaction waits for is ended, fenced or not.
    pub fn evict_after(mut self, patience: Duration, through: &'c Client) -> Self {
        self.evict = Some((patience, through));
        self
    }

    /// Runs `work` in a transaction, and commits it. `work` runs again, in a new transaction, when it loses against others:
    /// what it does besides the database it must be able to do twice.
    ///
    /// # Errors
    ///
    /// [`FenceError::Refused`]: stop, a later holder has written. [`FenceError::Unavailable`]: nothing was written.
    /// [`FenceError::Indeterminate`]: the connection was lost at COMMIT. [`FenceError::Work`]: `work` failed, nothing was
    /// written.
    pub async fn run<T, F>(&self, client: &mut Client, work: F) -> Result<T, FenceError>
    where
        F: AsyncFn(&Transaction<'_>) -> Result<T, BoxError>,
    {
        let mut pause = FIRST_PAUSE;
        let mut attempt = 1;
        let done = loop {
            match self.run_once(client, &work).await {
                Ok(value) => break Ok(value),
                Err(WorkFailure::Again(cause)) if attempt >= self.attempts => break Err(gave_up(cause, ATTEMPT)),
                Err(WorkFailure::Again(_)) => {}
                Err(WorkFailure::Final(error)) => break Err(error),
            }
            attempt += 1;
            SystemClock.sleep_until(SystemClock.now().plus(pause)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        };
        match &done {
            Ok(_) => count_admitted(FenceKind::Postgres),
            Err(FenceError::Refused(_)) => count_rejected(FenceKind::Postgres),
            Err(_) => {}
        }
        done
    }

    async fn run_once<T, F>(&self, client: &mut Client, work: &F) -> Result<T, WorkFailure>
    where
        F: AsyncFn(&Transaction<'_>) -> Result<T, BoxError>,
    {
        let mut builder = client.build_transaction();
        if let Some(level) = self.isolation {
            builder = builder.isolation_level(level);
        }
        let transaction = builder.start().await.map_err(|error| WorkFailure::Final(unavailable(&error, ATTEMPT)))?;
        let backend = AtomicI32::new(0);
        let fenced = async {
            // Sent together: the setting costs no round trip of its own. It is polled first, and so it is sent first.
            tokio::join!(biased; self.show_token(&transaction, &backend), work(&transaction))
        };
        let (shown, worked) = self.evict_while(fenced, &backend).await;
        shown?;
        let value = worked.map_err(|error| failure_of_work(error, ATTEMPT))?;
        // COMMIT of a transaction with a failed statement rolls back, and says that all is well. Work that swallowed an
        // error must not be taken for done.
        let whole = transaction.batch_execute("SELECT 1").await;
        whole.map_err(|error| WorkFailure::Final(failed_before(&error)))?;
        transaction.commit().await.map_err(|error| failure_of_commit(&error, ATTEMPT))?;
        Ok(value)
    }

    async fn show_token(&self, transaction: &Transaction<'_>, backend: &AtomicI32) -> Result<(), WorkFailure> {
        let setting = quote_literal(&self.setting.to_string());
        let mut sql = format!("SELECT pg_backend_pid(), set_config('leasehold.token', {setting}, true)");
        if let Some(timeout) = self.lock_timeout {
            sql += &format!(", set_config('lock_timeout', '{}', true)", timeout.as_millis().max(1));
        }
        let answer = transaction.simple_query(&sql).await;
        let answer = answer.map_err(|error| WorkFailure::Final(failure_before_commit(error, ATTEMPT)))?;
        for message in answer {
            if let SimpleQueryMessage::Row(row) = message {
                backend.store(row.get(0).and_then(|pid| pid.parse().ok()).unwrap_or(0), Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Awaits the work; terminates whoever blocks it for too long, where that was asked for.
    async fn evict_while<T>(&self, work: impl Future<Output = T>, backend: &AtomicI32) -> T {
        let Some((patience, through)) = self.evict else { return work.await };
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = SystemClock.sleep_until(SystemClock.now().plus(patience)) => {}
            }
            let sql = "SELECT count(pg_terminate_backend(p)) FROM unnest(pg_blocking_pids($1)) p WHERE p > 0";
            let waiter = backend.load(Ordering::Relaxed);
            let parameters: [&(dyn ToSql + Sync); 1] = [&waiter];
            // Without the right to do it the write goes on waiting, as it would have.
            tokio::select! {
                biased;
                done = &mut work => return done,
                _ = through.execute(sql, &parameters) => {}
            }
        }
    }
}

fn failed_before(error: &leasehold_postgres::tokio_postgres::Error) -> FenceError {
    if error.as_db_error().is_some_and(|answer| answer.code().code() == "25P02") {
        return FenceError::Work(
            "a statement of the work failed and its error was not returned: the transaction is rolled back".into(),
        );
    }
    gave_up(SqlCause::new(error), ATTEMPT)
}
