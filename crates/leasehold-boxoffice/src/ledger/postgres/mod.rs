//! The ledger on PostgreSQL: many servers, one database.
//!
//! # Promises
//!
//! All laws of [`super`]. Any number of processes on one database are one box office. An answer is durable before it is
//! given: `synchronous_commit`, `fsync` and `full_page_writes` are checked on every connection, and a server that has
//! one of them off is refused.
//!
//! # Does not promise
//!
//! What a failover to an asynchronous standby loses, it loses: name standbys in `synchronous_standby_names`.
//!
//! # Clock
//!
//! `clock_timestamp()` of the primary, read after the last lock. A step forward ends holds early by as much, a step
//! back lets them live longer by as much; no seat is sold twice by either, since tokens and rows decide, not moments.
//!
//! # Token
//!
//! The engine's, kept with every seat from hold to sale and compared in every transition.
//!
//! # On lost connection
//!
//! Before COMMIT was sent: Unavailable. After: Indeterminate, unless the server itself said that it never came to it.
//! Deadlocks and serialization failures are tried again here, a bounded number of times.
//!
//! # Round trips
//!
//! Requests that arrive while others are under way share a transaction (`batch`). A transaction, for one request or
//! for a hundred, is two round trips (lock and read; write and COMMIT), and one more before these if a request names
//! a hold, an order or a payment. A hold that others' lapsed rows stand in the way of is tried a second time. A read is
//! one round trip.

mod batch;
mod calls;
#[cfg(any(test, feature = "testkit"))]
pub mod cluster;
mod job;
mod lock;
mod read;
mod schema;
mod session;
mod shelf;
mod store;
mod tls;
mod trouble;

#[cfg(test)]
mod tests;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_postgres::Row;

use super::Answer;
use crate::error::Error;
use crate::model::decide::Decision;
use crate::model::facts::{Facts, Need};
use crate::model::{Call, Done, Moment};
use job::{Decide, Job, Request};
use session::{Flight, Params, Sessions};
use shelf::Hints;
use trouble::{Loaded, Trouble, unavailable};

const PART: &str = "postgres";

/// How the database is used.
#[derive(Clone, Debug)]
pub struct Options {
    /// Transactions under way at once, each on a connection of its own. Few are faster than many: requests that wait
    /// share the next one.
    pub writers: usize,
    /// Reads under way at once, each on a connection of its own.
    pub readers: usize,
    /// The longest a connection may take to be had or made.
    pub connect_timeout: Duration,
    /// The longest a statement may take.
    pub statement_timeout: Duration,
    /// The longest a statement may wait for somebody else's transaction.
    pub lock_timeout: Duration,
}

impl Default for Options {
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

impl Options {
    /// The longest a round trip may take, whatever becomes of the server.
    fn patience(&self) -> Duration {
        self.statement_timeout.saturating_mul(2)
    }
}

/// A ledger in a PostgreSQL database. See the module.
pub struct Postgres {
    writers: Arc<Sessions>,
    readers: Arc<Sessions>,
    /// None: it is closed.
    jobs: Mutex<Option<mpsc::UnboundedSender<Box<dyn Job>>>>,
    tasks: Mutex<JoinSet<()>>,
}

impl Postgres {
    /// Connects, refuses a server that is not durable, and brings the tables to this version's schema.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`]: the address cannot be read. [`Error::Unavailable`]: nobody answers there, or the server is
    /// refused; the source says what to change.
    pub async fn open(url: &str, options: Options) -> Result<Arc<Self>, Error> {
        const ATTEMPT: &str = "opening the ledger on PostgreSQL";
        let address = session::address(url, &options).map_err(Error::Invalid)?;
        let prepare = async {
            let mut client = session::connect(&address).await?;
            session::check(&client).await?;
            schema::migrate(&mut client).await
        };
        // A server that starts beside others waits for their migration, but not for ever.
        let patience = options.connect_timeout + 6 * options.patience();
        let prepared = tokio::time::timeout(patience, prepare).await.unwrap_or(Err(Trouble::Silence));
        prepared.map_err(|trouble| trouble.undone(ATTEMPT))?;
        let trips = Arc::new(AtomicU64::new(0));
        let sessions = |size: usize| {
            let made = Sessions::new(&address, &options, size.max(1), trips.clone());
            made.map(Arc::new).map_err(|why| unavailable(ATTEMPT, why))
        };
        let (writers, readers) = (sessions(options.writers)?, sessions(options.readers)?);
        let (sender, receiver) = mpsc::unbounded_channel();
        let queue = Arc::new(tokio::sync::Mutex::new(receiver));
        let mut tasks = JoinSet::new();
        for _ in 0..options.writers.max(1) {
            tasks.spawn(batch::work(writers.clone(), queue.clone()));
        }
        Ok(Arc::new(Self { writers, readers, jobs: Some(sender).into(), tasks: tasks.into() }))
    }

    /// Round trips to the server so far.
    #[must_use]
    pub fn round_trips(&self) -> u64 {
        self.writers.trips.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// One transaction: lock, load, decide, store, commit, answer.
    fn transact<'a, T, D>(&'a self, attempt: &'static str, call: Call, need: Need, decide: D) -> Answer<'a, Done<T>>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        D: Fn(&Facts, &str, Moment) -> Decision<T> + Send + 'static,
    {
        self.send(attempt, call, need, false, Box::new(decide))
    }

    /// Hands a request over at once, not when first polled: dropping the answer does not undo what was asked.
    fn send<'a, T>(
        &'a self,
        attempt: &'static str,
        call: Call,
        need: Need,
        exclusive: bool,
        decide: Decide<T>,
    ) -> Answer<'a, Done<T>>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
    {
        let (reply, receiver) = oneshot::channel();
        // What takes long, or wants an event for itself, does not make a batch wait.
        let apart = exclusive || need.due > 0 || need.layout;
        let job: Box<dyn Job> =
            Box::new(Request { attempt, call, need, exclusive, decide, outcome: None, effect: false, reply });
        let sent = match &*self.jobs.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(_) if apart => {
                let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
                while tasks.try_join_next().is_some() {}
                tasks.spawn(batch::alone(self.writers.clone(), job, Hints::default()));
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
                Err(Error::Indeterminate { part: PART, attempt: attempt.into(), source })
            };
            receiver.await.unwrap_or_else(lost)
        })
    }

    /// Statements that need no decision, in a transaction of their own. Answers their rows.
    async fn write(&self, attempt: &str, statements: Vec<(&'static str, Params)>) -> Result<Vec<Vec<Row>>, Error> {
        if self.jobs.lock().unwrap_or_else(PoisonError::into_inner).is_none() {
            return Err(closed(attempt));
        }
        let mut session = self.writers.session().await.map_err(|trouble| trouble.undone(attempt))?;
        let mut flight = Flight::default();
        flight.add("BEGIN", vec![]);
        for (sql, params) in statements {
            flight.add(sql, params);
        }
        flight.add("COMMIT", vec![]);
        let landed = session.finish(flight).await.map_err(|trouble| trouble.unknown(attempt))?;
        let mut rows = Vec::new();
        for answer in landed {
            match answer {
                Ok(found) => rows.push(found),
                Err(trouble) if trouble.is_answer() => return Err(trouble.undone(attempt)),
                Err(trouble) => return Err(trouble.unknown(attempt)),
            }
        }
        Ok(rows.drain(1..rows.len() - 1).collect())
    }

    /// One consistent picture: all statements see the same moment, and the clock was read just before it.
    async fn picture(
        &self,
        attempt: &str,
        statements: Vec<(&'static str, Params)>,
    ) -> Result<(Moment, Vec<Vec<Row>>), Error> {
        if self.jobs.lock().unwrap_or_else(PoisonError::into_inner).is_none() {
            return Err(closed(attempt));
        }
        let look = async {
            let mut session = self.readers.session().await?;
            let mut flight = Flight::default();
            flight.add(lock::MOMENT, vec![]);
            flight.add("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", vec![]);
            for (sql, params) in statements {
                flight.add(sql, params);
            }
            flight.add("COMMIT", vec![]);
            let mut rows = session.finish(flight).await?.into_iter().collect::<Loaded<Vec<Vec<Row>>>>()?;
            let now = lock::moment_of(&rows[0])?;
            Ok((now, rows.drain(2..rows.len() - 1).collect()))
        };
        look.await.map_err(|trouble: Trouble| trouble.undone(attempt))
    }
}

fn closed(attempt: &str) -> Error {
    unavailable(attempt, "the ledger is closed".into())
}
