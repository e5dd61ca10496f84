//! The calls of a queue, on whichever store it is.

use std::time::Duration;

use super::limits::MAX_JOB_DELAY;
#[cfg(feature = "postgres")]
use super::postgres;
use super::rows::{
    DeadJob, FailedJob, HotKey, LaneAnswer, LaneAsk, Nacked, NewJob, Pushed, QueueFacts, QueueSettings, QueueStatus,
    TurnAnswer, TurnAsk,
};
#[cfg(feature = "sqlite")]
use super::{sqlite, sqlite_lanes, sqlite_views};
use crate::recipe::error::{RecipeError, RecipeRefusal};
use crate::recipe::store::{Store, StoreDatabase};

/// The most of a reason that is kept.
const MAX_WHY_CHARS: usize = 2000;

/// A queue of a store, by name.
#[derive(Clone, Debug)]
pub(super) struct QueueCalls {
    pub store: Store,
    pub name: String,
}

impl QueueCalls {
    /// Makes the queue, or changes the settings that are given.
    pub async fn make(&self, settings: QueueSettings) -> Result<QueueFacts, RecipeError> {
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
        }
    }

    /// What a worker must know of the queue.
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
        }
    }

    pub async fn push(&self, job: NewJob) -> Result<Pushed, RecipeError> {
        let name = self.name.clone();
        match &self.store.database {
            #[cfg(feature = "postgres")]
            StoreDatabase::Postgres(at) => postgres::push(at.as_ref(), &name, &job).await,
            #[cfg(feature = "sqlite")]
            StoreDatabase::Sqlite(at) => {
                at.write("push a job", move |db, tick| sqlite::push(db, tick, &name, &job)).await
            }
        }
    }

    pub async fn turn(&self, ask: TurnAsk) -> Result<TurnAnswer, RecipeError> {
        let name = self.name.clone();
        match &self.store.database {
            #[cfg(feature = "postgres")]
            StoreDatabase::Postgres(at) => postgres::turn(at.as_ref(), &name, &ask).await,
            #[cfg(feature = "sqlite")]
            StoreDatabase::Sqlite(at) => {
                at.write("take jobs", move |db, tick| sqlite::turn(db, tick, &name, &ask)).await
            }
        }
    }

    /// Ends deliveries of one token, and returns those that were stale.
    pub async fn ack(&self, jobs: Vec<i64>, token: i64) -> Result<Vec<i64>, RecipeError> {
        match &self.store.database {
            #[cfg(feature = "postgres")]
            StoreDatabase::Postgres(at) => postgres::ack(at.as_ref(), &jobs, token).await,
            #[cfg(feature = "sqlite")]
            StoreDatabase::Sqlite(at) => {
                at.write("acknowledge jobs", move |db, tick| sqlite::ack(db, tick, &jobs, token)).await
            }
        }
    }

    /// Gives a job back, or buries it.
    pub async fn nack(&self, mut failed: FailedJob) -> Result<Nacked, RecipeError> {
        let name = self.name.clone();
        // Whatever a handler says is stored, and never refused: PostgreSQL's text cannot hold a zero.
        failed.why =
            failed.why.chars().take(MAX_WHY_CHARS).map(|letter| if letter == '\0' { ' ' } else { letter }).collect();
        failed.after = failed.after.map(|after| after.min(MAX_JOB_DELAY));
        match (&self.store.database, failed.key.clone()) {
            #[cfg(feature = "postgres")]
            (StoreDatabase::Postgres(at), None) => read_word(&postgres::nack(at.as_ref(), &failed).await?),
            #[cfg(feature = "postgres")]
            (StoreDatabase::Postgres(at), Some(key)) => {
                read_word(&postgres::lane_nack(at.as_ref(), &name, &key, &failed).await?)
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
        }
    }

    /// Returns those that are still ours.
    pub async fn extend(&self, jobs: Vec<i64>, token: i64, visible: Duration) -> Result<Vec<i64>, RecipeError> {
        match &self.store.database {
            #[cfg(feature = "postgres")]
            StoreDatabase::Postgres(at) => postgres::extend(at.as_ref(), &jobs, token, visible).await,
            #[cfg(feature = "sqlite")]
            StoreDatabase::Sqlite(at) => {
                at.write("extend deliveries", move |db, tick| sqlite::extend(db, tick, &jobs, token, visible)).await
            }
        }
    }

    /// How many deliveries lapsed.
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
        }
    }

    pub async fn lane_claim(&self, ask: LaneAsk) -> Result<LaneAnswer, RecipeError> {
        let name = self.name.clone();
        match &self.store.database {
            #[cfg(feature = "postgres")]
            StoreDatabase::Postgres(at) => postgres::lane_claim(at.as_ref(), &name, &ask).await,
            #[cfg(feature = "sqlite")]
            StoreDatabase::Sqlite(at) => {
                at.write("take keys", move |db, tick| sqlite_lanes::lane_claim(db, tick, &name, &ask)).await
            }
        }
    }

    /// Ends jobs of a key; `free`: the claim on the key too.
    pub async fn lane_ack(&self, key: &str, token: i64, jobs: Vec<i64>, free: bool) -> Result<(), RecipeError> {
        let (name, key) = (self.name.clone(), key.to_owned());
        match &self.store.database {
            #[cfg(feature = "postgres")]
            StoreDatabase::Postgres(at) => postgres::lane_ack(at.as_ref(), &name, &key, token, &jobs, free).await,
            #[cfg(feature = "sqlite")]
            StoreDatabase::Sqlite(at) => {
                let work = move |db: &_, tick| sqlite_lanes::lane_ack(db, tick, &name, (&key, token), &jobs, free);
                at.write("acknowledge jobs of a key", work).await
            }
        }
    }

    /// Whether the key is still ours.
    pub async fn lane_extend(&self, key: &str, token: i64, visible: Duration) -> Result<bool, RecipeError> {
        let (name, key) = (self.name.clone(), key.to_owned());
        match &self.store.database {
            #[cfg(feature = "postgres")]
            StoreDatabase::Postgres(at) => postgres::lane_extend(at.as_ref(), &name, &key, token, visible).await,
            #[cfg(feature = "sqlite")]
            StoreDatabase::Sqlite(at) => {
                let work = move |db: &_, tick| sqlite_lanes::lane_extend(db, tick, &name, (&key, token), visible);
                at.write("extend the claim on a key", work).await
            }
        }
    }

    /// How long until the next job that is not ready yet is ready.
    pub async fn next_ready(&self) -> Result<Option<Duration>, RecipeError> {
        let name = self.name.clone();
        match &self.store.database {
            #[cfg(feature = "postgres")]
            StoreDatabase::Postgres(at) => postgres::next_ready(at.as_ref(), &name).await,
            #[cfg(feature = "sqlite")]
            StoreDatabase::Sqlite(at) => {
                at.read("look for the next job", move |db, now| sqlite_views::next_ready(db, now, &name)).await
            }
        }
    }

    /// Hands out no more jobs, or does so again.
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
        }
    }

    /// The keys with the most jobs.
    pub async fn hot_keys(&self, most: usize) -> Result<Vec<HotKey>, RecipeError> {
        let (name, most) = (self.name.clone(), i64::try_from(most).unwrap_or(i64::MAX));
        match &self.store.database {
            #[cfg(feature = "postgres")]
            StoreDatabase::Postgres(at) => postgres::hot_keys(at.as_ref(), &name, most).await,
            #[cfg(feature = "sqlite")]
            StoreDatabase::Sqlite(at) => {
                at.read("count jobs of keys", move |db, now| sqlite_views::hot_keys(db, now, &name, most)).await
            }
        }
    }

    /// Dead letters, the newest first.
    pub async fn dead(&self, most: usize) -> Result<Vec<DeadJob>, RecipeError> {
        let (name, most) = (self.name.clone(), i64::try_from(most).unwrap_or(i64::MAX));
        match &self.store.database {
            #[cfg(feature = "postgres")]
            StoreDatabase::Postgres(at) => postgres::dead(at.as_ref(), &name, most).await,
            #[cfg(feature = "sqlite")]
            StoreDatabase::Sqlite(at) => {
                at.read("read dead letters", move |db, now| sqlite_views::dead(db, now, &name, most)).await
            }
        }
    }

    /// Dead letters wait again.
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
        }
    }

    /// Removes dead letters.
    pub async fn drop_dead(&self, jobs: Vec<i64>) -> Result<u64, RecipeError> {
        let name = self.name.clone();
        match &self.store.database {
            #[cfg(feature = "postgres")]
            StoreDatabase::Postgres(at) => postgres::drop_dead(at.as_ref(), &name, &jobs).await,
            #[cfg(feature = "sqlite")]
            StoreDatabase::Sqlite(at) => {
                at.write("drop dead letters", move |db, _| sqlite_views::drop_dead(db, &name, &jobs)).await
            }
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
    }
}

fn read_word(word: &str) -> Result<Nacked, RecipeError> {
    Nacked::from_word(word)
        .ok_or_else(|| RecipeError::corrupt("postgres", "a nack says retry, dead or stale", word.to_owned()))
}
