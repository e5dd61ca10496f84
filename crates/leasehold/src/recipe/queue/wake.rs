//! How a worker that sleeps learns that something was pushed.
//!
//! PostgreSQL: the worker listens on a channel of its own and says so in the table `sleeper`; a push notifies one channel of
//! that table, and nobody if it is empty: NOTIFY takes a lock that all commits share. SQLite: a number that changes with
//! the file is looked at. A server: a request that it answers when something was pushed through it (a long poll: one request
//! in half a minute for each worker that sleeps, and no delay). Each may miss a push; the poll finds it.

use std::time::Duration;

use crate::clock::Clock;
use crate::recipe::error::RecipeError;
use crate::recipe::store::{Store, StoreDatabase};

/// How often a file is looked at.
#[cfg(feature = "sqlite")]
const FILE_CHECK_EVERY: Duration = Duration::from_millis(50);

/// The waking of one worker.
pub(super) enum Wake {
    #[cfg(feature = "postgres")]
    Channel(channel::WakeChannel),
    #[cfg(feature = "sqlite")]
    File(file::FileWatch),
    #[cfg(feature = "http")]
    LongPoll(long_poll::LongPoll),
}

impl Wake {
    pub fn new(store: &Store, queue: &str) -> Result<Self, RecipeError> {
        match &store.database {
            #[cfg(feature = "postgres")]
            StoreDatabase::Postgres(at) => Ok(Self::Channel(channel::WakeChannel::new(at.clone(), queue)?)),
            #[cfg(feature = "sqlite")]
            StoreDatabase::Sqlite(at) => Ok(Self::File(file::FileWatch::new(at.reader("watch the store")?))),
            #[cfg(feature = "http")]
            StoreDatabase::Server(at) => {
                Ok(Self::LongPoll(long_poll::LongPoll::new(at.clone(), queue, store.clock.clone())))
            }
        }
    }

    /// From now on a push wakes this worker, for so long. What was pushed before must be looked for after this.
    pub async fn arm(&mut self, span: Duration) -> Result<(), RecipeError> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Channel(channel) => channel.arm(span).await,
            #[cfg(feature = "sqlite")]
            Self::File(file) => file.arm(),
            #[cfg(feature = "http")]
            Self::LongPoll(poll) => poll.arm().await,
        }
    }

    /// Pushes need not wake this worker any more.
    pub async fn disarm(&mut self) -> Result<(), RecipeError> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Channel(channel) => channel.disarm().await,
            #[cfg(feature = "sqlite")]
            Self::File(_) => Ok(()),
            #[cfg(feature = "http")]
            Self::LongPoll(poll) => {
                poll.disarm();
                Ok(())
            }
        }
    }

    /// Completes when something may have been pushed.
    pub async fn rung(&mut self, clock: &dyn Clock) {
        match self {
            #[cfg(feature = "postgres")]
            Self::Channel(channel) => channel.rung().await,
            #[cfg(feature = "sqlite")]
            Self::File(file) => file.changed(clock).await,
            #[cfg(feature = "http")]
            Self::LongPoll(poll) => poll.rung().await,
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

#[cfg(feature = "http")]
mod long_poll {
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::sync::Notify;
    use tokio::task::JoinHandle;

    use super::super::remote;
    use crate::clock::Clock;
    use crate::recipe::error::RecipeError;
    use crate::recipe::store::server::ServerDatabase;

    /// How long the server is asked to wait.
    const WAIT: Duration = Duration::from_secs(30);
    /// The pause after a request that failed.
    const PAUSE: Duration = Duration::from_secs(1);

    /// A request that waits at the server, on a task of its own: whoever listens for the ring comes and goes.
    pub(in super::super) struct LongPoll {
        server: Arc<ServerDatabase>,
        queue: String,
        clock: Arc<dyn Clock>,
        rings: Arc<Notify>,
        task: Option<JoinHandle<()>>,
    }

    impl LongPoll {
        pub fn new(server: Arc<ServerDatabase>, queue: &str, clock: Arc<dyn Clock>) -> Self {
            Self { server, queue: queue.to_owned(), clock, rings: Arc::default(), task: None }
        }

        /// Asks for the number of rings, and waits until there is another. A push in between is another number.
        pub async fn arm(&mut self) -> Result<(), RecipeError> {
            self.disarm();
            let seen = remote::glance(&self.server, &self.queue).await?.rings;
            let (server, queue) = (self.server.clone(), self.queue.clone());
            let (clock, rings) = (self.clock.clone(), self.rings.clone());
            self.task = Some(tokio::spawn(async move {
                loop {
                    match remote::wait_for_ring(&server, &queue, &seen, WAIT).await {
                        Ok(answer) if answer.rings == seen => {}
                        Ok(_) => return rings.notify_one(),
                        Err(_) => clock.sleep_until(clock.now().plus(PAUSE)).await,
                    }
                }
            }));
            Ok(())
        }

        pub fn disarm(&mut self) {
            if let Some(task) = self.task.take() {
                task.abort();
            }
        }

        pub async fn rung(&mut self) {
            self.rings.notified().await;
        }
    }

    impl Drop for LongPoll {
        fn drop(&mut self) {
            self.disarm();
        }
    }
}
