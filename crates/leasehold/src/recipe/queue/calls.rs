//! The calls of a queue, on whichever store it is: one for each function of the schema `leasehold`. [`super::Queue`] and its
//! worker are made of them; a server passes them on, and whoever writes another kind of worker uses them.

use std::time::Duration;

use super::limits::{MAX_JOB_DELAY, check_count, check_key, fit_label};
#[cfg(feature = "postgres")]
use super::postgres;
#[cfg(feature = "http")]
use super::remote;
pub use super::rows::{
    ClaimedJob, Extended, FailedJob, LaneAnswer, LaneAsk, NewJob, NotEnded, QueueFacts, QueueSettings, SINCE_EVER,
    TurnAnswer, TurnAsk,
};
use super::rows::{DeadJob, HotKey, Nacked, Pushed, QueueStatus, check_visible};
#[cfg(feature = "sqlite")]
use super::{sqlite, sqlite_lanes, sqlite_views};
use crate::recipe::error::{RecipeError, RecipeRefusal};
use crate::recipe::store::{Store, StoreDatabase};

/// Characters of a reason that are kept.
const MAX_REASON_CHARS: usize = 2000;

/// A queue of a store, by name. [`Store::queue_calls`] makes one.
///
/// Whether there is such a queue is known when it is asked: [`RecipeRefusal::NoQueue`].
#[derive(Clone, Debug)]
pub struct QueueCalls {
    pub(super) store: Store,
    pub(super) name: String,
}

impl QueueCalls {
    /// Makes the queue, or changes the settings that are given.
    ///
    /// # Errors
    ///
    /// [`RecipeError::Invalid`] for a value beyond the limits, and for a queue of this name of the other kind.
    pub async fn make(&self, settings: QueueSettings) -> Result<QueueFacts, RecipeError> {
        settings.check()?;
        let name = self.name.clone();
        let other_kind = || {
            RecipeError::Invalid(format!(
                "queue {} is there already, and is of the other kind (by key or plain) or has jobs on a level that is \
                 not among the new ones",
                self.name
            ))
        };
        match &self.store.database {
            #[cfg(feature = "postgres")]
            StoreDatabase::Postgres(at) => postgres::make(at.as_ref(), &name, &settings).await?.ok_or_else(other_kind),
            #[cfg(feature = "sqlite")]
            StoreDatabase::Sqlite(at) => {
                let made = at.write("make a queue", move |db, _| {
                    let made = sqlite::make(db, &name, &settings)?;
                    Ok(if made { Some(sqlite::QueueRow::read(db, &name)?.facts()) } else { None })
                });
                made.await?.ok_or_else(other_kind)
            }
            #[cfg(feature = "http")]
            StoreDatabase::Server(at) => remote::make(at, &name, &settings).await,
        }
    }

    /// What a worker must know of the queue.
    ///
    /// # Errors
    ///
    /// The store cannot be asked.
    pub async fn facts(&self) -> Result<QueueFacts, RecipeError> {
        let name = self.name.clone();
        match &self.store.database {
            #[cfg(feature = "postgres")]
            StoreDatabase::Postgres(at) => {
                let facts = postgres::facts(at.as_ref(), &name).await?;
                facts.ok_or_else(|| RecipeRefusal::NoQueue { name }.into())
            }
            #[cfg(feature = "sqlite")]
            StoreDatabase::Sqlite(at) => {
                at.read("read a queue", move |db, _| Ok(sqlite::QueueRow::read(db, &name)?.facts())).await
            }
            #[cfg(feature = "http")]
            StoreDatabase::Server(at) => remote::facts(at, &name).await,
        }
    }

    /// Pushes a job.
    ///
    /// # Errors
    ///
    /// [`RecipeError::Invalid`] for what the queue does not take.
    pub async fn push(&self, job: NewJob) -> Result<Pushed, RecipeError> {
        job.check()?;
        let name = self.name.clone();
        match &self.store.database {
            #[cfg(feature = "postgres")]
            StoreDatabase::Postgres(at) => postgres::push(at.as_ref(), &name, &job).await,
            #[cfg(feature = "sqlite")]
            StoreDatabase::Sqlite(at) => {
                at.write("push a job", move |db, tick| sqlite::push(db, tick, &name, &job)).await
            }
            #[cfg(feature = "http")]
            StoreDatabase::Server(at) => remote::push(at, &name, &job).await,
        }
    }

    /// Acknowledges what is done, and claims jobs: one call, one commit.
    ///
    /// # Errors
    ///
    /// [`RecipeError::Indeterminate`]: jobs may have been claimed that nobody knows of. They lapse.
    pub async fn turn(&self, mut ask: TurnAsk) -> Result<TurnAnswer, RecipeError> {
        ask.check()?;
        ask.worker = fit_label(&ask.worker);
        let name = self.name.clone();
        match &self.store.database {
            #[cfg(feature = "postgres")]
            StoreDatabase::Postgres(at) => postgres::turn(at.as_ref(), &name, &ask).await,
            #[cfg(feature = "sqlite")]
            StoreDatabase::Sqlite(at) => {
                at.write("take jobs", move |db, tick| sqlite::turn(db, tick, &name, &ask)).await
            }
            #[cfg(feature = "http")]
            StoreDatabase::Server(at) => remote::turn(at, &name, ask).await,
        }
    }

    /// Ends deliveries of one token, and returns those that were not ended. It does not wait for transactions that are open.
    ///
    /// # Errors
    ///
    /// The store cannot be asked.
    pub async fn ack(&self, jobs: Vec<i64>, token: i64) -> Result<NotEnded, RecipeError> {
        check_count(jobs.len())?;
        match &self.store.database {
            #[cfg(feature = "postgres")]
            StoreDatabase::Postgres(at) => postgres::ack(at.as_ref(), &jobs, token).await,
            #[cfg(feature = "sqlite")]
            StoreDatabase::Sqlite(at) => {
                let ended = at.write("acknowledge jobs", move |db, tick| sqlite::ack(db, tick, &jobs, token)).await;
                // A transaction that is open has the whole file: nothing is locked apart from that.
                ended.map(|stale| NotEnded { stale, locked: Vec::new() })
            }
            #[cfg(feature = "http")]
            StoreDatabase::Server(at) => remote::ack(at, &self.name, &jobs, token).await,
        }
    }

    /// Gives a job back, or buries it.
    ///
    /// # Errors
    ///
    /// The store cannot be asked.
    pub async fn nack(&self, mut failed: FailedJob) -> Result<Nacked, RecipeError> {
        let name = self.name.clone();
        // Whatever a handler says is stored, and never refused: PostgreSQL's text cannot hold a zero.
        failed.why =
            failed.why.chars().take(MAX_REASON_CHARS).map(|letter| if letter == '\0' { ' ' } else { letter }).collect();
        failed.after = failed.after.map(|after| after.min(MAX_JOB_DELAY));
        failed.check()?;
        match (&self.store.database, failed.key.clone()) {
            #[cfg(feature = "postgres")]
            (StoreDatabase::Postgres(at), None) => read_nacked(postgres::nack(at.as_ref(), &failed).await),
            #[cfg(feature = "postgres")]
            (StoreDatabase::Postgres(at), Some(key)) => {
                read_nacked(postgres::lane_nack(at.as_ref(), &name, &key, &failed).await)
            }
            #[cfg(feature = "sqlite")]
            (StoreDatabase::Sqlite(at), None) => {
                at.write("give a job back", move |db, tick| sqlite::nack(db, tick, &name, &failed)).await
            }
            #[cfg(feature = "sqlite")]
            (StoreDatabase::Sqlite(at), Some(key)) => {
                let work = move |db: &_, tick| sqlite_lanes::lane_nack(db, tick, &name, &key, &failed);
                at.write("give a job of a key back", work).await
            }
            #[cfg(feature = "http")]
            (StoreDatabase::Server(at), _) => remote::nack(at, &name, &failed).await,
        }
    }

    /// Those of the jobs that are in this queue. A job never changes its queue: what is in another now is never in this one.
    /// Ack, nack and extend go by job and token alone; who may use one queue only is asked this first.
    ///
    /// # Errors
    ///
    /// The store cannot be asked.
    pub async fn only_here(&self, jobs: &[i64]) -> Result<Vec<i64>, RecipeError> {
        check_count(jobs.len())?;
        match &self.store.database {
            #[cfg(feature = "postgres")]
            StoreDatabase::Postgres(at) => postgres::only_here(at.as_ref(), &self.name, jobs).await,
            #[cfg(feature = "sqlite")]
            StoreDatabase::Sqlite(at) => {
                let (name, jobs) = (self.name.clone(), jobs.to_vec());
                at.read("look for jobs", move |db, _| sqlite::only_here(db, &name, &jobs)).await
            }
            // The server compares by itself.
            #[cfg(feature = "http")]
            StoreDatabase::Server(_) => Ok(jobs.to_vec()),
        }
    }

    /// Extends deliveries of one token. It does not wait for transactions that are open.
    ///
    /// # Errors
    ///
    /// The store cannot be asked.
    pub async fn extend(&self, jobs: Vec<i64>, token: i64, visible: Duration) -> Result<Extended, RecipeError> {
        check_count(jobs.len())?;
        check_visible(Some(visible))?;
        match &self.store.database {
            #[cfg(feature = "postgres")]
            StoreDatabase::Postgres(at) => postgres::extend(at.as_ref(), &jobs, token, visible).await,
            #[cfg(feature = "sqlite")]
            StoreDatabase::Sqlite(at) => {
                let work = move |db: &_, tick| sqlite::extend(db, tick, &jobs, token, visible);
                at.write("extend deliveries", work).await.map(|ours| Extended { ours, locked: Vec::new() })
            }
            #[cfg(feature = "http")]
            StoreDatabase::Server(at) => remote::extend(at, &self.name, &jobs, token, visible).await,
        }
    }

    /// Collects deliveries whose time is over, at most once a second whoever asks, and says how many.
    ///
    /// # Errors
    ///
    /// The store cannot be asked.
    pub async fn sweep(&self) -> Result<u32, RecipeError> {
        let name = self.name.clone();
        match &self.store.database {
            #[cfg(feature = "postgres")]
            StoreDatabase::Postgres(at) => postgres::sweep(at.as_ref(), &name).await,
            #[cfg(feature = "sqlite")]
            StoreDatabase::Sqlite(at) => {
                let work = move |db: &_, tick| {
                    let queue = sqlite::QueueRow::read(db, &name)?;
                    sqlite_lanes::forget_lanes(db, tick, &queue)?;
                    sqlite::collect_lapsed(db, tick, &queue)
                };
                at.write("collect lapsed deliveries", work).await
            }
            // The server does it, while there are claims or workers that sleep.
            #[cfg(feature = "http")]
            StoreDatabase::Server(_) => Ok(0),
        }
    }

    /// Claims keys, and jobs of each.
    ///
    /// # Errors
    ///
    /// As [`QueueCalls::turn`].
    pub async fn lane_claim(&self, mut ask: LaneAsk) -> Result<LaneAnswer, RecipeError> {
        ask.check()?;
        ask.worker = fit_label(&ask.worker);
        let name = self.name.clone();
        match &self.store.database {
            #[cfg(feature = "postgres")]
            StoreDatabase::Postgres(at) => postgres::lane_claim(at.as_ref(), &name, &ask).await,
            #[cfg(feature = "sqlite")]
            StoreDatabase::Sqlite(at) => {
                at.write("take keys", move |db, tick| sqlite_lanes::lane_claim(db, tick, &name, &ask)).await
            }
            #[cfg(feature = "http")]
            StoreDatabase::Server(at) => remote::lane_claim(at, &name, ask).await,
        }
    }

    /// Ends jobs of a key; `free`: the claim on the key too.
    ///
    /// # Errors
    ///
    /// [`RecipeRefusal::Stale`]: another has the key, and nothing was changed.
    pub async fn lane_ack(&self, key: &str, token: i64, jobs: Vec<i64>, free: bool) -> Result<(), RecipeError> {
        check_key("a key", key)?;
        check_count(jobs.len())?;
        let (name, key) = (self.name.clone(), key.to_owned());
        match &self.store.database {
            #[cfg(feature = "postgres")]
            StoreDatabase::Postgres(at) => postgres::lane_ack(at.as_ref(), &name, &key, token, &jobs, free).await,
            #[cfg(feature = "sqlite")]
            StoreDatabase::Sqlite(at) => {
                let work = move |db: &_, tick| sqlite_lanes::lane_ack(db, tick, &name, (&key, token), &jobs, free);
                at.write("acknowledge jobs of a key", work).await
            }
            #[cfg(feature = "http")]
            StoreDatabase::Server(at) => remote::lane_ack(at, &name, &key, token, &jobs, free).await,
        }
    }

    /// Whether the key is still ours.
    ///
    /// # Errors
    ///
    /// The store cannot be asked.
    pub async fn lane_extend(&self, key: &str, token: i64, visible: Duration) -> Result<bool, RecipeError> {
        check_key("a key", key)?;
        check_visible(Some(visible))?;
        let (name, key) = (self.name.clone(), key.to_owned());
        match &self.store.database {
            #[cfg(feature = "postgres")]
            StoreDatabase::Postgres(at) => postgres::lane_extend(at.as_ref(), &name, &key, token, visible).await,
            #[cfg(feature = "sqlite")]
            StoreDatabase::Sqlite(at) => {
                let work = move |db: &_, tick| sqlite_lanes::lane_extend(db, tick, &name, (&key, token), visible);
                at.write("extend the claim on a key", work).await
            }
            #[cfg(feature = "http")]
            StoreDatabase::Server(at) => remote::lane_extend(at, &name, &key, token, visible).await,
        }
    }

    /// How long until the next job that is not ready yet is ready.
    ///
    /// # Errors
    ///
    /// The store cannot be asked.
    pub async fn next_ready(&self) -> Result<Option<Duration>, RecipeError> {
        let name = self.name.clone();
        match &self.store.database {
            #[cfg(feature = "postgres")]
            StoreDatabase::Postgres(at) => postgres::next_ready(at.as_ref(), &name).await,
            #[cfg(feature = "sqlite")]
            StoreDatabase::Sqlite(at) => {
                at.read("look for the next job", move |db, now| sqlite_views::next_ready(db, now, &name)).await
            }
            #[cfg(feature = "http")]
            StoreDatabase::Server(at) => remote::next_ready(at, &name).await,
        }
    }

    /// Hands out no more jobs, or does so again.
    ///
    /// # Errors
    ///
    /// The store cannot be asked.
    pub async fn pause(&self, paused: bool) -> Result<(), RecipeError> {
        let name = self.name.clone();
        match &self.store.database {
            #[cfg(feature = "postgres")]
            StoreDatabase::Postgres(at) => match postgres::pause(at.as_ref(), &name, paused).await? {
                true => Ok(()),
                false => Err(RecipeRefusal::NoQueue { name }.into()),
            },
            #[cfg(feature = "sqlite")]
            StoreDatabase::Sqlite(at) => {
                at.write("pause a queue", move |db, _| sqlite_views::pause(db, &name, paused)).await
            }
            #[cfg(feature = "http")]
            StoreDatabase::Server(at) => remote::pause(at, &name, paused).await,
        }
    }

    /// The keys with the most jobs.
    ///
    /// # Errors
    ///
    /// The store cannot be asked.
    pub async fn hot_keys(&self, most: usize) -> Result<Vec<HotKey>, RecipeError> {
        let (name, limit) = (self.name.clone(), i64::try_from(most).unwrap_or(i64::MAX));
        match &self.store.database {
            #[cfg(feature = "postgres")]
            StoreDatabase::Postgres(at) => postgres::hot_keys(at.as_ref(), &name, limit).await,
            #[cfg(feature = "sqlite")]
            StoreDatabase::Sqlite(at) => {
                at.read("count jobs of keys", move |db, now| sqlite_views::hot_keys(db, now, &name, limit)).await
            }
            #[cfg(feature = "http")]
            StoreDatabase::Server(at) => remote::hot_keys(at, &name, most).await,
        }
    }

    /// Dead letters, the newest first.
    ///
    /// # Errors
    ///
    /// The store cannot be asked.
    pub async fn dead(&self, most: usize) -> Result<Vec<DeadJob>, RecipeError> {
        self.read_dead(most, None).await
    }

    /// Dead letters with lower ids than this, the highest id first: to go through all of them, page by page.
    ///
    /// # Errors
    ///
    /// The store cannot be asked.
    pub async fn dead_below(&self, job_id: i64, most: usize) -> Result<Vec<DeadJob>, RecipeError> {
        self.read_dead(most, Some(job_id)).await
    }

    async fn read_dead(&self, most: usize, below: Option<i64>) -> Result<Vec<DeadJob>, RecipeError> {
        let (name, limit) = (self.name.clone(), i64::try_from(most).unwrap_or(i64::MAX));
        match &self.store.database {
            #[cfg(feature = "postgres")]
            StoreDatabase::Postgres(at) => postgres::dead(at.as_ref(), &name, limit, below).await,
            #[cfg(feature = "sqlite")]
            StoreDatabase::Sqlite(at) => {
                at.read("read dead letters", move |db, now| sqlite_views::dead(db, now, &name, limit, below)).await
            }
            #[cfg(feature = "http")]
            StoreDatabase::Server(at) => remote::dead(at, &name, most, below).await,
        }
    }

    /// Dead letters wait again.
    ///
    /// # Errors
    ///
    /// The store cannot be asked.
    pub async fn revive(&self, jobs: Vec<i64>) -> Result<u64, RecipeError> {
        let name = self.name.clone();
        match &self.store.database {
            #[cfg(feature = "postgres")]
            StoreDatabase::Postgres(at) => postgres::revive(at.as_ref(), &name, &jobs).await,
            #[cfg(feature = "sqlite")]
            StoreDatabase::Sqlite(at) => {
                let work = move |db: &_, tick| sqlite_views::revive(db, tick, &name, &jobs);
                at.write("revive dead letters", work).await
            }
            #[cfg(feature = "http")]
            StoreDatabase::Server(at) => remote::revive(at, &name, &jobs).await,
        }
    }

    /// Removes dead letters.
    ///
    /// # Errors
    ///
    /// The store cannot be asked.
    pub async fn drop_dead(&self, jobs: Vec<i64>) -> Result<u64, RecipeError> {
        let name = self.name.clone();
        match &self.store.database {
            #[cfg(feature = "postgres")]
            StoreDatabase::Postgres(at) => postgres::drop_dead(at.as_ref(), &name, &jobs).await,
            #[cfg(feature = "sqlite")]
            StoreDatabase::Sqlite(at) => {
                at.write("drop dead letters", move |db, _| sqlite_views::drop_dead(db, &name, &jobs)).await
            }
            #[cfg(feature = "http")]
            StoreDatabase::Server(at) => remote::drop_dead(at, &name, &jobs).await,
        }
    }
}

/// All queues of a store, or the one of this name.
pub(super) async fn read_status(store: &Store, name: Option<&str>) -> Result<Vec<QueueStatus>, RecipeError> {
    let name = name.map(str::to_owned);
    match &store.database {
        #[cfg(feature = "postgres")]
        StoreDatabase::Postgres(at) => postgres::status(at.as_ref(), name.as_deref()).await,
        #[cfg(feature = "sqlite")]
        StoreDatabase::Sqlite(at) => {
            at.read("read queues", move |db, now| sqlite_views::status(db, now, name.as_deref())).await
        }
        #[cfg(feature = "http")]
        StoreDatabase::Server(at) => remote::read_status(at, name.as_deref()).await,
    }
}

#[cfg(feature = "postgres")]
fn read_nacked(answered: Result<String, RecipeError>) -> Result<Nacked, RecipeError> {
    match answered {
        Ok(word) => Nacked::from_word(&word)
            .ok_or_else(|| RecipeError::corrupt("postgres", "a nack says retry, dead or stale", word)),
        Err(error) if is_locked(&error) => Ok(Nacked::Locked),
        Err(error) => Err(error),
    }
}

/// Whether a call met a transaction that is open, and had no effect.
#[cfg(feature = "postgres")]
pub(super) fn is_locked(error: &RecipeError) -> bool {
    crate::recipe::store::postgres::sql_error::sql_code(error) == Some("55P03")
}

#[cfg(not(feature = "postgres"))]
pub(super) const fn is_locked(_error: &RecipeError) -> bool {
    false
}
