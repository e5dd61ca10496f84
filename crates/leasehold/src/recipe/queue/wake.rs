//! How a worker that sleeps learns that something was pushed.
//!
//! PostgreSQL: the worker listens on a channel of its own and says so in the table `sleeper`; a push notifies one channel of
//! that table, and nobody if it is empty: NOTIFY takes a lock that all commits share. SQLite: a number that changes with
//! the file is looked at. Either may miss a push; the poll finds it.

use std::time::Duration;

use crate::clock::Clock;
use crate::recipe::error::RecipeError;
use crate::recipe::store::{Store, StoreDatabase};

/// How often a file is looked at.
const FILE_CHECK_EVERY: Duration = Duration::from_millis(50);

/// The waking of one worker.
pub(super) enum Wake {
    #[cfg(feature = "postgres")]
    Channel(channel::WakeChannel),
    #[cfg(feature = "sqlite")]
    File(file::FileWatch),
}

impl Wake {
    pub fn new(store: &Store, queue: &str) -> Result<Self, RecipeError> {
        match &store.database {
            #[cfg(feature = "postgres")]
            StoreDatabase::Postgres(at) => Ok(Self::Channel(channel::WakeChannel::new(at.clone(), queue)?)),
            #[cfg(feature = "sqlite")]
            StoreDatabase::Sqlite(at) => Ok(Self::File(file::FileWatch::new(at.reader("watch the store")?))),
        }
    }

    /// From now on a push wakes this worker, for so long. What was pushed before must be looked for after this.
    pub async fn arm(&mut self, span: Duration) -> Result<(), RecipeError> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Channel(channel) => channel.arm(span).await,
            #[cfg(feature = "sqlite")]
            Self::File(file) => file.arm(),
        }
    }

    /// Pushes need not wake this worker any more.
    pub async fn disarm(&mut self) -> Result<(), RecipeError> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Channel(channel) => channel.disarm().await,
            #[cfg(feature = "sqlite")]
            Self::File(_) => Ok(()),
        }
    }

    /// Completes when something may have been pushed.
    pub async fn rung(&mut self, clock: &dyn Clock) {
        match self {
            #[cfg(feature = "postgres")]
            Self::Channel(channel) => channel.rung().await,
            #[cfg(feature = "sqlite")]
            Self::File(file) => file.changed(clock).await,
        }
    }
}

#[cfg(feature = "postgres")]
mod channel {
    use std::future::poll_fn;
    use std::sync::Arc;
    use std::time::Duration;

    use leasehold_postgres::tokio_postgres::{AsyncMessage, Client};
    use tokio::sync::Notify;

    use super::super::postgres;
    use crate::recipe::error::RecipeError;
    use crate::recipe::store::postgres::sql_error::{SqlEffect, recipe_error};
    use crate::recipe::store::postgres::{PostgresDatabase, STORE_NAME};

    /// A channel of PostgreSQL that only this worker listens on.
    pub(in super::super) struct WakeChannel {
        database: Arc<PostgresDatabase>,
        queue: String,
        channel: String,
        rings: Arc<Notify>,
        /// None: not connected yet, or not any more.
        listener: Option<Client>,
    }

    impl WakeChannel {
        pub fn new(database: Arc<PostgresDatabase>, queue: &str) -> Result<Self, RecipeError> {
            let mut random = [0; 16];
            let drawn = getrandom::fill(&mut random);
            drawn.map_err(|error| RecipeError::unavailable(STORE_NAME, "draw the name of a channel", error))?;
            let channel = format!("leasehold_queue_{:032x}", u128::from_be_bytes(random));
            Ok(Self { database, queue: queue.to_owned(), channel, rings: Arc::default(), listener: None })
        }

        pub async fn arm(&mut self, span: Duration) -> Result<(), RecipeError> {
            if self.listener.as_ref().is_none_or(Client::is_closed) {
                self.listener = Some(self.listen().await?);
            }
            postgres::arm(self.database.as_ref(), &self.queue, &self.channel, span).await
        }

        pub async fn disarm(&mut self) -> Result<(), RecipeError> {
            postgres::disarm(self.database.as_ref(), &self.queue, &self.channel).await
        }

        pub async fn rung(&mut self) {
            self.rings.notified().await;
        }

        async fn listen(&self) -> Result<Client, RecipeError> {
            let attempt = "listen for pushes";
            let sql = |error| recipe_error(&error, attempt, SqlEffect::None);
            let (client, mut connection) = self.database.address().connect_with_messages().await.map_err(sql)?;
            let rings = self.rings.clone();
            tokio::spawn(async move {
                while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
                    if matches!(message, AsyncMessage::Notification(_)) {
                        rings.notify_one();
                    }
                }
            });
            client.batch_execute(&format!("LISTEN {}", self.channel)).await.map_err(sql)?;
            Ok(client)
        }
    }
}

#[cfg(feature = "sqlite")]
mod file {
    use rusqlite::Connection;

    use super::FILE_CHECK_EVERY;
    use crate::clock::Clock;
    use crate::recipe::error::RecipeError;
    use crate::recipe::store::sqlite::SqliteDatabase;

    /// A file, watched by a connection that does nothing else: its version changes with every commit of another.
    pub(in super::super) struct FileWatch {
        connection: Connection,
        seen: i64,
    }

    impl FileWatch {
        pub fn new(connection: Connection) -> Self {
            Self { connection, seen: 0 }
        }

        pub fn arm(&mut self) -> Result<(), RecipeError> {
            self.seen = SqliteDatabase::data_version(&self.connection, "watch the store")?;
            Ok(())
        }

        pub async fn changed(&mut self, clock: &dyn Clock) {
            loop {
                clock.sleep_until(clock.now().plus(FILE_CHECK_EVERY)).await;
                // What cannot be read now is found by the poll.
                let version = SqliteDatabase::data_version(&self.connection, "watch the store");
                if version.is_ok_and(|version| version != self.seen) {
                    return;
                }
            }
        }
    }
}
