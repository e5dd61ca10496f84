//! Jobs in a queue: pushed in your transaction, delivered to one worker at a time, ended by the newest delivery alone.
//!
//! ```text
//!   waiting ──turn──▶ taken (token, until) ──ack──▶ gone
//!      ▲                 │ nack, or `until` is over
//!      └──── backoff ────┴──▶ dead letter ──revive──▶ waiting, as a new job
//! ```
//!
//! ```
//! # use leasehold::recipe::Store;
//! use leasehold::recipe::queue::{Delivery, Nack};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let url = format!("sqlite:{}/recipes.db", dir.path().display());
//! let store = Store::open(&url).await?;
//! let mail = store.queue("mail").max_attempts(10).open().await?;
//! mail.push(&"welcome ada").await?;
//!
//! let (sent, all_sent) = tokio::sync::oneshot::channel();
//! let sent = std::sync::Mutex::new(Some(sent));
//! let send = async |job: Delivery<String>| {
//!     assert_eq!(job.body(), "welcome ada");
//!     sent.lock().unwrap().take().map(|sent| sent.send(()));
//!     Ok::<(), Nack>(()) // Err(Nack::later(why)): tried again, after a backoff
//! };
//! let report = mail.work(16, send).until(async { drop(all_sent.await) }).await?;
//! assert_eq!(report.acked, 1);
//! # Ok(())
//! # }
//! ```
//!
//! # Laws
//!
//! 1. A job ends by its newest token alone. Ack, nack and extend show the token of the delivery, and a token that is not the
//!    newest changes nothing.
//! 2. A job has at most one valid delivery: one whose token is the newest, and whose time is not over.
//! 3. A job is never lost. Until it is acknowledged or dropped by an operator it waits, is taken, or is a dead letter.
//! 4. By key: jobs of one key are delivered in the order of their ids, to one worker at a time.
//! 5. No transaction is open while a job is worked on.
//!
//! # Not promised
//!
//! That a job runs once: a worker that paused may have done the work, and another does it again. Put the effects and the end
//! of the job into one transaction ([`Delivery::finish`]), or make the work safe to repeat.
//!
//! # The files
//!
//! - [`delivery`]: a job in the hands of a worker. [`mod@work`]: the worker. `keeper`: claims, acknowledges and extends.
//! - `wake`: how a worker that sleeps learns of a push.
//! - [`calls`]: the calls, on whichever store. `postgres`, `sqlite`, `sqlite_lanes`, `sqlite_views`, `remote`: on each of them.
//! - `limits`, `rows`: what is accepted, and what goes to and fro.

pub mod calls;
pub mod delivery;
mod keeper;
mod keeper_ends;
mod keeper_lanes;
mod limits;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "http")]
mod remote;
mod rows;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(feature = "sqlite")]
mod sqlite_lanes;
#[cfg(all(test, feature = "sqlite"))]
mod sqlite_tests;
#[cfg(feature = "sqlite")]
mod sqlite_views;
mod wake;
pub mod work;

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::Duration;

#[cfg(feature = "postgres")]
use leasehold_postgres::tokio_postgres::GenericClient;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use delivery::{Delivery, Nack};
pub use limits::{
    MAX_CLAIM_JOBS, MAX_JOB_ATTEMPTS, MAX_JOB_BYTES, MAX_JOB_DELAY, MAX_JOB_KEY_BYTES, MAX_JOB_LEVELS,
    MAX_QUEUE_NAME_BYTES, MAX_VISIBLE,
};
pub use rows::{COUNTED_JOBS, DeadJob, HotKey, Nacked, Pushed, QueueStatus};
pub use work::{Work, WorkReport};

use crate::recipe::error::RecipeError;
use crate::recipe::store::Store;
use calls::QueueCalls;
use limits::check_name;
use rows::{NewJob, QueueSettings};

impl Store {
    /// The single calls of a queue: for those who write a worker or a server of their own. [`Queue::work`] is one.
    ///
    /// # Errors
    ///
    /// [`RecipeError::Invalid`]: it is no name of a queue.
    pub fn queue_calls(&self, name: &str) -> Result<QueueCalls, RecipeError> {
        check_name(name)?;
        Ok(QueueCalls { store: self.clone(), name: name.to_owned() })
    }

    /// A queue of this store. Nothing is asked before [`QueueBuilder::open`].
    pub fn queue(&self, name: &str) -> QueueBuilder {
        QueueBuilder {
            calls: QueueCalls { store: self.clone(), name: name.to_owned() },
            settings: QueueSettings::default(),
        }
    }

    /// All queues, as they are now.
    ///
    /// # Errors
    ///
    /// The store cannot be asked.
    pub async fn queues(&self) -> Result<Vec<QueueStatus>, RecipeError> {
        calls::read_status(self, None).await
    }
}

/// What a queue is to be like.
#[derive(Clone, Debug)]
#[must_use = "nothing is asked before open"]
pub struct QueueBuilder {
    calls: QueueCalls,
    settings: QueueSettings,
}

impl QueueBuilder {
    /// One worker per key, in order of arrival. A queue is by key or not for all its life.
    pub fn by_key(mut self) -> Self {
        self.settings.keyed = true;
        self
    }

    /// By key: whether a job that waits to be tried again holds up the others of its key. Default: it does.
    pub fn in_order(mut self, in_order: bool) -> Self {
        self.settings.in_order = Some(in_order);
        self
    }

    /// How often a job is tried before it is a dead letter. Default: 20.
    pub fn max_attempts(mut self, attempts: u16) -> Self {
        self.settings.max_attempts = Some(attempts);
        self
    }

    /// How long a delivery lasts without being extended. A worker that died keeps its jobs for so long. Default: 30 s.
    pub fn visible(mut self, visible: Duration) -> Self {
        self.settings.visible = Some(visible);
        self
    }

    /// The span before the second try, which doubles with each further one. Default: 1 s.
    pub fn backoff(mut self, base: Duration) -> Self {
        self.settings.backoff_base = Some(base);
        self
    }

    /// The longest span between two tries. Default: 1 h.
    pub fn backoff_cap(mut self, cap: Duration) -> Self {
        self.settings.backoff_cap = Some(cap);
        self
    }

    /// The levels of priority, served in this order. Default: level 1 only.
    pub fn levels(mut self, levels: &[i16]) -> Self {
        self.settings.levels = Some(levels.to_vec());
        self
    }

    /// Opens the queue. Makes it if there is none; changes the settings that were named, if there is.
    ///
    /// # Errors
    ///
    /// [`RecipeError::Invalid`] for a value beyond the limits, and for a queue of this name of the other kind.
    pub async fn open(self) -> Result<Queue, RecipeError> {
        check_name(&self.calls.name)?;
        self.calls.make(self.settings).await?;
        Ok(Queue { calls: self.calls })
    }

    /// Opens the queue if there is one of this name, as it is.
    ///
    /// # Errors
    ///
    /// [`RecipeRefusal::NoQueue`](crate::recipe::RecipeRefusal::NoQueue).
    pub async fn open_existing(self) -> Result<Queue, RecipeError> {
        check_name(&self.calls.name)?;
        self.calls.facts().await?;
        Ok(Queue { calls: self.calls })
    }
}

/// An open queue.
#[derive(Clone, Debug)]
pub struct Queue {
    calls: QueueCalls,
}

impl Queue {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.calls.name
    }

    /// Whether it is a queue by key.
    ///
    /// # Errors
    ///
    /// The store cannot be asked.
    pub async fn is_by_key(&self) -> Result<bool, RecipeError> {
        Ok(self.calls.facts().await?.keyed)
    }

    /// A job to be pushed: `.await` it, or push it [`within`](Push::within) a transaction of yours.
    pub fn push(&self, job: &impl Serialize) -> Push<'_> {
        let body = serde_json::to_string(job);
        let body = body.map_err(|error| RecipeError::Invalid(format!("the job cannot be written as JSON: {error}")));
        Push { queue: self, job: body.map(NewJob::from_checked) }
    }

    /// A job to be pushed that is JSON already.
    pub fn push_json(&self, job: &str) -> Push<'_> {
        Push { queue: self, job: NewJob::from_json(job.to_owned()) }
    }

    /// A worker with at most so many jobs at a time (by key: keys). See [`mod@work`].
    pub fn work<T, F>(&self, slots: usize, handler: F) -> Work<'_, T, F>
    where
        T: DeserializeOwned,
        F: AsyncFn(Delivery<T>) -> Result<(), Nack>,
    {
        Work::new(self, slots, handler)
    }

    /// The queue as it is now.
    ///
    /// # Errors
    ///
    /// [`RecipeRefusal::NoQueue`](crate::recipe::RecipeRefusal::NoQueue) if it was removed.
    pub async fn status(&self) -> Result<QueueStatus, RecipeError> {
        let found = calls::read_status(&self.calls.store, Some(self.name())).await?;
        let missing = || crate::recipe::RecipeRefusal::NoQueue { name: self.name().to_owned() };
        found.into_iter().next().ok_or_else(|| missing().into())
    }

    /// The keys with the most jobs, the hottest first.
    ///
    /// # Errors
    ///
    /// The store cannot be asked.
    pub async fn hot_keys(&self, most: usize) -> Result<Vec<HotKey>, RecipeError> {
        self.calls.hot_keys(most).await
    }

    /// Dead letters, the newest first.
    ///
    /// # Errors
    ///
    /// The store cannot be asked.
    pub async fn dead(&self, most: usize) -> Result<Vec<DeadJob>, RecipeError> {
        self.calls.dead(most).await
    }

    /// Dead letters with lower ids than this, the highest id first. To go through all of them, begin with [`i64::MAX`] and go on
    /// with the last id of each page: what dies meanwhile and was new has a higher id.
    ///
    /// # Errors
    ///
    /// The store cannot be asked.
    pub async fn dead_below(&self, job_id: i64, most: usize) -> Result<Vec<DeadJob>, RecipeError> {
        self.calls.dead_below(job_id, most).await
    }

    /// Dead letters wait again, as new jobs at the end. Returns how many. A dead letter whose dedupe id is in use stays.
    ///
    /// # Errors
    ///
    /// The store cannot be asked.
    pub async fn retry(&self, jobs: &[i64]) -> Result<u64, RecipeError> {
        self.calls.revive(jobs.to_vec()).await
    }

    /// Removes dead letters. Returns how many.
    ///
    /// # Errors
    ///
    /// The store cannot be asked.
    pub async fn drop_dead(&self, jobs: &[i64]) -> Result<u64, RecipeError> {
        self.calls.drop_dead(jobs.to_vec()).await
    }

    /// Hands out no jobs from now on. Those that workers have are not affected.
    ///
    /// # Errors
    ///
    /// The store cannot be asked.
    pub async fn pause(&self) -> Result<(), RecipeError> {
        self.calls.pause(true).await
    }

    /// Hands out jobs again. Sleeping workers notice at their next poll.
    ///
    /// # Errors
    ///
    /// The store cannot be asked.
    pub async fn resume(&self) -> Result<(), RecipeError> {
        self.calls.pause(false).await
    }
}

/// A job to be pushed.
#[derive(Debug)]
#[must_use = "nothing is pushed before it is awaited"]
pub struct Push<'a> {
    queue: &'a Queue,
    job: Result<NewJob, RecipeError>,
}

impl<'a> Push<'a> {
    /// Not before so long from now: up to a year.
    pub fn delay(self, delay: Duration) -> Self {
        self.change(|job| job.delay = delay)
    }

    /// One job of this id at a time: a push finds the one that waits. One that is being worked on runs once more afterwards,
    /// because it may have read what was there before.
    pub fn dedupe(self, id: &str) -> Self {
        self.change(|job| job.dedupe = Some(id.to_owned()))
    }

    /// The level of priority: one of the queue's.
    pub fn priority(self, level: i16) -> Self {
        self.change(|job| job.priority = level)
    }

    /// The key, of a queue by key.
    pub fn key(self, key: &str) -> Self {
        self.change(|job| job.key = Some(key.to_owned()))
    }

    /// How often this job is tried, where it is not the queue's number.
    pub fn max_attempts(self, attempts: u16) -> Self {
        self.change(|job| job.max_attempts = Some(attempts))
    }

    /// Pushes it in a transaction of yours: it commits or rolls back with your rows.
    ///
    /// # Errors
    ///
    /// [`RecipeError::Invalid`] for what the queue does not take. The transaction is then aborted, as after every error.
    #[cfg(feature = "postgres")]
    pub async fn within(self, transaction: &(impl GenericClient + Sync)) -> Result<Pushed, RecipeError> {
        let job = self.checked()?;
        postgres::push(&postgres::UserSession(transaction), self.queue.name(), &job).await
    }

    /// Pushes it in a transaction of yours on the SQLite file of the store.
    ///
    /// # Errors
    ///
    /// [`RecipeError::Invalid`] for what the queue does not take.
    #[cfg(feature = "sqlite")]
    pub fn within_sqlite(self, transaction: &rusqlite::Connection) -> Result<Pushed, RecipeError> {
        let job = self.checked()?;
        let tick = crate::recipe::store::sqlite::Tick::take(transaction, "push a job")?;
        sqlite::push(transaction, tick, self.queue.name(), &job)
    }

    fn change(mut self, change: impl FnOnce(&mut NewJob)) -> Self {
        if let Ok(job) = &mut self.job {
            change(job);
        }
        self
    }

    fn checked(&self) -> Result<NewJob, RecipeError> {
        let job = match &self.job {
            Ok(job) => job,
            Err(error) => return Err(RecipeError::Invalid(error.to_string())),
        };
        job.check()?;
        Ok(job.clone())
    }
}

impl<'a> IntoFuture for Push<'a> {
    type Output = Result<Pushed, RecipeError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.queue.calls.push(self.checked()?).await })
    }
}
