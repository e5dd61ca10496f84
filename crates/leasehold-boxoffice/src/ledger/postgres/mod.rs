//! The ledger on PostgreSQL: many servers, one database.
//!
//! # Promises
//!
//! All laws of [`super`]. Any number of processes may use one database. A transaction is durable before it is answered:
//! `synchronous_commit`, `fsync` and `full_page_writes` are checked on every connection. A server that has one of them
//! off is refused.
//!
//! # Does not promise
//!
//! A failover to an asynchronous standby loses transactions: name standbys in `synchronous_standby_names`.
//!
//! # Clock
//!
//! `clock_timestamp()` of the primary, read after the last lock. A step forward ends holds early by as much, a step
//! back lets them live longer by as much. Neither sells a seat twice: tokens and rows decide that, not moments.
//!
//! # Token
//!
//! The engine's, kept with every seat from hold to sale and compared in every transition.
//!
//! # On lost connection
//!
//! Before COMMIT was sent: Unavailable. After: Indeterminate, unless the server said that it failed before COMMIT.
//! Deadlocks and serialization failures are retried here, a bounded number of times.
//!
//! # Round trips
//!
//! Requests that arrive while a transaction is under way share the next one (`batch`). A transaction, for one request or
//! for a hundred, is two round trips (lock and read; write and COMMIT). It is one more if a request names a hold, an
//! order or a payment. A request that needs locks on lapsed holds of others is run a second time. A read is one round
//! trip.

mod batch;
mod batch_state;
mod calls;
mod error;
mod job;
mod lock;
mod read;
mod schema;
mod session;
mod store;

#[cfg(test)]
pub(crate) mod tests;

pub use schema::{SCHEMA, migration_sql};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_postgres::Row;

use super::LedgerFuture;
use crate::error::Error;
use crate::model::decide::Decision;
use crate::model::facts::{Facts, Need};
use crate::model::{Done, LedgerCall, Moment};
use batch_state::LockHints;
use error::{PostgresError, PostgresResult, unavailable};
use job::{BatchJob, DecideFn, PendingTransaction};
use session::{Pipeline, SessionPool, StatementParams};

const LEDGER_NAME: &str = "postgres";

/// Sizes and timeouts of the connection pools.
#[derive(Clone, Debug)]
pub struct PostgresOptions {
    /// Transactions under way at once, each on a connection of its own. Few are faster than many: waiting requests
    /// share the next transaction.
    pub writers: usize,
    /// Reads under way at once, each on a connection of its own.
    pub readers: usize,
    /// The longest wait for a connection from the pool, or for a new one.
    pub connect_timeout: Duration,
    /// The longest a statement may take.
    pub statement_timeout: Duration,
    /// The longest a statement may wait for a lock.
    pub lock_timeout: Duration,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self {
            writers: 3,
            readers: 4,
            connect_timeout: Duration::from_secs(3),
            statement_timeout: Duration::from_secs(5),
            lock_timeout: Duration::from_secs(2),
        }
    }
}

impl PostgresOptions {
    /// The longest a round trip may take, even if the server stops answering.
    fn patience(&self) -> Duration {
        self.statement_timeout.saturating_mul(2)
    }
}

/// A ledger in a PostgreSQL database. See the module.
pub struct Postgres {
    writers: Arc<SessionPool>,
    readers: Arc<SessionPool>,
    /// None: it is closed.
    jobs: Mutex<Option<mpsc::UnboundedSender<Box<dyn BatchJob>>>>,
    tasks: Mutex<JoinSet<()>>,
}

impl Postgres {
    /// Connects, refuses a server that is not durable, and brings the tables to this version's schema.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`]: the address cannot be read. [`Error::Unavailable`]: nobody answers there, or the server is
    /// refused; the source says what to change.
    pub async fn open(url: &str, options: PostgresOptions) -> Result<Arc<Self>, Error> {
        const ATTEMPT: &str = "opening the ledger on PostgreSQL";
        let address = session::address(url, &options).map_err(Error::Invalid)?;
        let prepare = async {
            let mut client = address.connect().await?;
            session::check(&client).await?;
            schema::migrate(&mut client).await
        };
        // Another server may be migrating: wait for it, but not for ever.
        let patience = options.connect_timeout + 6 * options.patience();
        let prepared = tokio::time::timeout(patience, prepare).await.unwrap_or(Err(PostgresError::TimedOut));
        prepared.map_err(|error| error.not_applied(ATTEMPT))?;
        let round_trips = Arc::new(AtomicU64::new(0));
        let sessions = |size: usize| {
            let made = SessionPool::new(&address, &options, size.max(1), round_trips.clone());
            made.map(Arc::new).map_err(|why| unavailable(ATTEMPT, why))
        };
        let (writers, readers) = (sessions(options.writers)?, sessions(options.readers)?);
        let (sender, receiver) = mpsc::unbounded_channel();
        let queue = Arc::new(tokio::sync::Mutex::new(receiver));
        let mut tasks = JoinSet::new();
        for _ in 0..options.writers.max(1) {
            tasks.spawn(batch::run_worker(writers.clone(), queue.clone()));
        }
        Ok(Arc::new(Self { writers, readers, jobs: Some(sender).into(), tasks: tasks.into() }))
    }

    /// Round trips to the server so far.
    #[must_use]
    pub fn round_trips(&self) -> u64 {
        self.writers.round_trips.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// One transaction: lock and load the rows, decide, store, commit.
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
        self.send(attempt, call, need, false, Box::new(decide))
    }

    /// Queues a request at once, not when first polled: dropping the future does not cancel the request.
    fn send<'a, T>(
        &'a self,
        attempt: &'static str,
        call: LedgerCall,
        need: Need,
        exclusive: bool,
        decide: DecideFn<T>,
    ) -> LedgerFuture<'a, Done<T>>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
    {
        let (reply, receiver) = oneshot::channel();
        // A request that takes long, or locks an event exclusively, gets a transaction of its own.
        let apart = exclusive || need.due > 0 || need.layout;
        let job: Box<dyn BatchJob> = Box::new(PendingTransaction {
            attempt,
            call,
            need,
            exclusive,
            decide,
            outcome: None,
            effect: false,
            reply,
        });
        let sent = match &*self.jobs.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(_) if apart => {
                let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
                while tasks.try_join_next().is_some() {}
                tasks.spawn(batch::run_alone(self.writers.clone(), job, LockHints::default()));
                true
            }
            Some(jobs) => jobs.send(job).is_ok(),
            None => false,
        };
        Box::pin(async move {
            if !sent {
                return Err(closed(attempt));
            }
            let lost = |_| {
                let source = "the ledger ended meanwhile".into();
                Err(Error::Indeterminate { part: LEDGER_NAME, attempt: attempt.into(), source })
            };
            receiver.await.unwrap_or_else(lost)
        })
    }

    /// Runs statements that need no decision, in a transaction of their own. Returns their rows.
    async fn write(
        &self,
        attempt: &str,
        statements: Vec<(&'static str, StatementParams)>,
    ) -> Result<Vec<Vec<Row>>, Error> {
        if self.jobs.lock().unwrap_or_else(PoisonError::into_inner).is_none() {
            return Err(closed(attempt));
        }
        let mut session = self.writers.session().await.map_err(|error| error.not_applied(attempt))?;
        let mut pipeline = Pipeline::default();
        pipeline.add("BEGIN", vec![]);
        for (sql, params) in statements {
            pipeline.add(sql, params);
        }
        pipeline.add("COMMIT", vec![]);
        let results = session.finish(pipeline).await.map_err(|error| error.indeterminate(attempt))?;
        let mut rows = Vec::new();
        for answer in results {
            match answer {
                Ok(found) => rows.push(found),
                Err(error) if error.is_server_error() => return Err(error.not_applied(attempt)),
                Err(error) => return Err(error.indeterminate(attempt)),
            }
        }
        Ok(rows.drain(1..rows.len() - 1).collect())
    }

    /// Reads one consistent snapshot: all statements see the same commit. The clock is read just before.
    async fn read_consistent(
        &self,
        attempt: &str,
        statements: Vec<(&'static str, StatementParams)>,
    ) -> Result<(Moment, Vec<Vec<Row>>), Error> {
        if self.jobs.lock().unwrap_or_else(PoisonError::into_inner).is_none() {
            return Err(closed(attempt));
        }
        let read = async {
            let mut session = self.readers.session().await?;
            let mut pipeline = Pipeline::default();
            pipeline.add(lock::SELECT_MOMENT, vec![]);
            pipeline.add("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", vec![]);
            for (sql, params) in statements {
                pipeline.add(sql, params);
            }
            pipeline.add("COMMIT", vec![]);
            let mut rows = session.finish(pipeline).await?.into_iter().collect::<PostgresResult<Vec<Vec<Row>>>>()?;
            let now = lock::moment_of(&rows[0])?;
            Ok((now, rows.drain(2..rows.len() - 1).collect()))
        };
        read.await.map_err(|error: PostgresError| error.not_applied(attempt))
    }
}

fn closed(attempt: &str) -> Error {
    unavailable(attempt, "the ledger is closed".into())
}
