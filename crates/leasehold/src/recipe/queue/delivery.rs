//! A job in the hands of a worker, and how the worker ends it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[cfg(feature = "postgres")]
use leasehold_postgres::tokio_postgres;
use tokio::sync::watch;

use super::rows::ClaimedJob;
use crate::clock::{Clock, Time};
use crate::recipe::error::RecipeError;

/// Why a job is not done, and what becomes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nack {
    pub(super) why: String,
    pub(super) after: Option<Duration>,
    pub(super) kill: bool,
    /// It was not tried: the number of tries does not rise.
    pub(super) untried: bool,
}

impl Nack {
    /// Tried again, after the backoff of the queue.
    pub fn later(why: impl fmt::Display) -> Self {
        Self { why: why.to_string(), after: None, kill: false, untried: false }
    }

    /// Tried again, after this span: a year at most.
    pub fn after(span: Duration, why: impl fmt::Display) -> Self {
        Self { after: Some(span), ..Self::later(why) }
    }

    /// Never tried again: a dead letter.
    pub fn dead(why: impl fmt::Display) -> Self {
        Self { kill: true, ..Self::later(why) }
    }

    /// Given back as if it had not been taken: tried again at once, and this try does not count.
    pub fn untried(why: impl fmt::Display) -> Self {
        Self { untried: true, ..Self::after(Duration::ZERO, why) }
    }
}

/// How long a delivery is provably ours: shared by the keeper, which extends it, and the worker.
#[derive(Clone, Debug)]
pub(super) struct DeliveryEnd(pub watch::Receiver<Time>);

impl DeliveryEnd {
    /// Completes when the delivery can no longer be proven ours.
    pub async fn passed(&mut self, clock: &dyn Clock) {
        loop {
            let end = *self.0.borrow_and_update();
            if clock.now() >= end {
                return;
            }
            tokio::select! {
                () = clock.sleep_until(end) => {}
                changed = self.0.changed() => if changed.is_err() {
                    // The keeper is gone: nobody extends it any more.
                    clock.sleep_until(end).await;
                },
            }
        }
    }
}

/// A job that this worker has, until its time is over.
pub struct Delivery<T> {
    pub(super) queue: String,
    pub(super) job: ClaimedJob,
    pub(super) body: T,
    /// By key: earlier jobs of this claim whose handlers are done. Their acknowledgement may still be on its way, and they
    /// must not end after this one.
    pub(super) done_before: Vec<i64>,
    pub(super) end: DeliveryEnd,
    pub(super) clock: Arc<dyn Clock>,
    /// Ended by [`Delivery::finish`]: the worker must not acknowledge it again.
    pub(super) finished: Arc<AtomicBool>,
}

impl<T: fmt::Debug> fmt::Debug for Delivery<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("Delivery");
        text.field("queue", &self.queue).field("job_id", &self.job.job_id).field("token", &self.job.token);
        text.field("attempt", &self.job.attempt).field("key", &self.job.key).field("body", &self.body).finish()
    }
}

impl<T> Delivery<T> {
    /// What was pushed.
    pub const fn body(&self) -> &T {
        &self.body
    }

    /// What was pushed, as JSON.
    pub fn json(&self) -> &str {
        &self.job.body
    }

    /// The job.
    pub const fn job_id(&self) -> i64 {
        self.job.job_id
    }

    /// The token of this delivery: higher than that of every earlier one of this job. Not a token for a fence.
    pub const fn token(&self) -> i64 {
        self.job.token
    }

    /// Which try this is, from 1. By key, a delivery whose worker died counts for the first job of its key only.
    pub const fn attempt(&self) -> u16 {
        self.job.attempt
    }

    /// The key, in a queue by key.
    pub fn key(&self) -> Option<&str> {
        self.job.key.as_deref()
    }

    /// When it was pushed, by the clock of the store: microseconds since 1970.
    pub const fn pushed_at_micros(&self) -> i64 {
        self.job.made_at
    }

    /// How long this delivery is provably ours, if it is not extended. The worker extends it at a third of its time.
    pub fn remaining(&self) -> Duration {
        self.end.0.borrow().since(self.clock.now())
    }

    /// Ends the job in your transaction, and commits it: the effects and the end of the job are one.
    ///
    /// # Errors
    ///
    /// [`RecipeRefusal::Stale`](crate::recipe::RecipeRefusal::Stale): another has the job, and nothing of the transaction is
    /// kept. [`RecipeError::Indeterminate`]: there was no answer to COMMIT. Your own rows say what happened.
    #[cfg(feature = "postgres")]
    pub async fn finish(&self, transaction: tokio_postgres::Transaction<'_>) -> Result<(), RecipeError> {
        use super::postgres;
        use crate::recipe::store::postgres::sql_error::{SqlEffect, recipe_error};

        let session = postgres::UserSession(&transaction);
        let (job, token) = (self.job.job_id, self.job.token);
        match &self.job.key {
            None => postgres::finish(&session, job, token).await?,
            Some(key) => postgres::lane_ack(&session, &self.queue, key, token, &self.jobs_up_to_this(), false).await?,
        }
        let attempt = "commit the end of a job";
        transaction.commit().await.map_err(|error| match error.as_db_error() {
            // A deferred constraint of the caller's own tables.
            Some(answer) if answer.code().code().starts_with("23") => {
                let cause = leasehold_postgres::message_and_code(&error);
                RecipeError::Invalid(format!(
                    "{attempt}: the transaction goes against a constraint of its own: {cause}"
                ))
            }
            _ => recipe_error(&error, attempt, SqlEffect::Unknown),
        })?;
        self.finished.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// By key: what ends with this job, so that jobs of a key end in their order.
    fn jobs_up_to_this(&self) -> Vec<i64> {
        self.done_before.iter().copied().chain([self.job.job_id]).collect()
    }

    /// As `finish`, in a transaction on the SQLite file of the store. Begin it with `TransactionBehavior::Immediate`.
    ///
    /// # Errors
    ///
    /// As `finish`.
    #[cfg(feature = "sqlite")]
    pub fn finish_sqlite(&self, transaction: rusqlite::Transaction<'_>) -> Result<(), RecipeError> {
        use super::{sqlite, sqlite_lanes};
        use crate::recipe::store::sqlite::{STORE_NAME, Tick};

        let tick = Tick::take(&transaction, "finish a job")?;
        let (job, token) = (self.job.job_id, self.job.token);
        match &self.job.key {
            None => sqlite::finish(&transaction, tick, job, token)?,
            Some(key) => {
                let jobs = self.jobs_up_to_this();
                sqlite_lanes::lane_ack(&transaction, tick, &self.queue, (key, token), &jobs, false)?;
            }
        }
        let committed = transaction.commit();
        committed
            .map_err(|error| RecipeError::indeterminate(STORE_NAME, "commit the end of a job", error.to_string()))?;
        self.finished.store(true, Ordering::SeqCst);
        Ok(())
    }
}
