//! The store: where recipes keep their rows, in PostgreSQL, in a file of SQLite, or behind a server.
//!
//! [`Store::open`] makes what is missing and migrates what is older. The tables live beside a user's own: in PostgreSQL in
//! the schema `leasehold`, in SQLite under names that begin with `leasehold_`. So that a recipe can be part of a transaction
//! of the user's: in PostgreSQL every recipe is a function of SQL, which any driver can call.
//!
//! | | PostgreSQL | SQLite | a server |
//! | --- | --- | --- | --- |
//! | URL | `postgres://user@host/database` | `sqlite:FILE` | `leasehold://host:port` |
//! | clock | the server's | the wall clock of the machine; it never goes back in one file | that of its store |
//! | processes | any number, on any machine | any number, on one machine | any number, on any machine |
//! | a call is on disk | when it is answered | when it is answered | when it is answered |
//! | inside your transaction | yes | yes | no: open the database itself |
//!
//! # Rights
//!
//! In PostgreSQL the role of a caller needs USAGE on the schema and on its sequence, and SELECT, INSERT, UPDATE and DELETE on
//! its tables. Only whoever makes the tables needs more: see [`migration_sql`].

#[cfg(feature = "postgres")]
pub(crate) mod postgres;
#[cfg(feature = "http")]
pub(crate) mod server;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

#[cfg(feature = "postgres")]
pub use postgres::schema::{SCHEMA, migration_sql};

use crate::clock::{Clock, SystemClock};
use crate::recipe::error::RecipeError;
#[cfg(feature = "postgres")]
use postgres::PostgresDatabase;
#[cfg(feature = "http")]
use server::ServerDatabase;
#[cfg(feature = "sqlite")]
use sqlite::SqliteDatabase;

/// The file of an embedded engine's directory in which recipes keep their rows.
const FILE_IN_DIRECTORY: &str = "recipes.db";

/// An open store. Cheap to clone; clones share its connections.
///
/// ```
/// use leasehold::recipe::Store;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let url = format!("sqlite:{}/recipes.db", dir.path().display());
/// let store = Store::open(&url).await?; // postgres://user@host/database, or sqlite:FILE
/// store.close().await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Store {
    pub(crate) database: StoreDatabase,
    /// What renewals and pauses go by.
    pub(crate) clock: Arc<dyn Clock>,
    /// When expired answers were removed last, in nanoseconds of the clock; 0: never.
    pub(crate) forgotten_at: Arc<AtomicU64>,
}

/// The database of a store.
#[derive(Clone)]
pub(crate) enum StoreDatabase {
    #[cfg(feature = "postgres")]
    Postgres(Arc<PostgresDatabase>),
    #[cfg(feature = "sqlite")]
    Sqlite(Arc<SqliteDatabase>),
    #[cfg(feature = "http")]
    Server(Arc<ServerDatabase>),
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("kind", &self.kind()).finish_non_exhaustive()
    }
}

impl Store {
    /// Opens a store by its URL, makes what is missing, and migrates what is older.
    ///
    /// # Errors
    ///
    /// [`RecipeError::Invalid`] for a URL that names no store, [`RecipeError::Unavailable`] when it cannot be opened.
    /// No message repeats more of the URL than its scheme.
    pub async fn open(url: &str) -> Result<Self, RecipeError> {
        Self::open_with_clock(url, SystemClock::shared()).await
    }

    /// Opens a store whose renewals go by this clock.
    pub(crate) async fn open_with_clock(url: &str, clock: Arc<dyn Clock>) -> Result<Self, RecipeError> {
        let (scheme, rest) = url.split_once(':').unwrap_or((url, ""));
        let database = match scheme {
            "postgres" | "postgresql" => open_postgres(url).await?,
            "sqlite" => open_sqlite(rest).await?,
            "leasehold" | "leaseholds" => open_server(url, clock.clone()).await?,
            _ => return Err(RecipeError::Invalid(NO_STORE.into())),
        };
        Ok(Self { database, clock, forgotten_at: Arc::default() })
    }

    /// Opens the store of a server: as [`Store::open`] with `leasehold://…`, where the key comes from elsewhere.
    ///
    /// # Errors
    ///
    /// As [`Store::open`].
    #[cfg(feature = "http")]
    pub async fn open_server(options: crate::engine::remote::Options) -> Result<Self, RecipeError> {
        let clock = SystemClock::shared();
        let database = StoreDatabase::Server(Arc::new(ServerDatabase::open(options, clock.clone()).await?));
        Ok(Self { database, clock, forgotten_at: Arc::default() })
    }

    /// Whether the store answers.
    ///
    /// # Errors
    ///
    /// It does not.
    pub async fn ping(&self) -> Result<(), RecipeError> {
        match &self.database {
            #[cfg(feature = "postgres")]
            StoreDatabase::Postgres(database) => database.call("ping", "SELECT 1", &[]).await.map(drop),
            #[cfg(feature = "sqlite")]
            StoreDatabase::Sqlite(database) => database.read("ping", |_, _| Ok(())).await,
            #[cfg(feature = "http")]
            StoreDatabase::Server(database) => database.ping().await,
        }
    }

    /// What it is: `postgres`, `sqlite` or `server`.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match &self.database {
            #[cfg(feature = "postgres")]
            StoreDatabase::Postgres(_) => postgres::STORE_NAME,
            #[cfg(feature = "sqlite")]
            StoreDatabase::Sqlite(_) => sqlite::STORE_NAME,
            #[cfg(feature = "http")]
            StoreDatabase::Server(_) => "server",
        }
    }

    /// Closes it. Calls that were made are finished; later ones are [`RecipeError::Unavailable`].
    pub async fn close(&self) {
        match &self.database {
            #[cfg(feature = "postgres")]
            StoreDatabase::Postgres(database) => database.close(),
            #[cfg(feature = "sqlite")]
            StoreDatabase::Sqlite(database) => database.close().await,
            #[cfg(feature = "http")]
            StoreDatabase::Server(database) => database.close(),
        }
    }
}

const NO_STORE: &str = "a store is postgres://user@host/database, sqlite:FILE or leasehold://host:port";

/// The URL of the store of an engine, where nobody names one: `embedded:DIR` has a file in its directory, `postgres://` is
/// itself one, `leasehold://` is a server that has one.
///
/// # Errors
///
/// [`RecipeError::Invalid`]: this engine has none. The sentence says what to give.
///
/// ```
/// use leasehold::recipe::store::default_url;
///
/// assert_eq!(default_url("embedded:./leases").unwrap(), "sqlite:./leases/recipes.db");
/// assert!(default_url("etcd://127.0.0.1:2379").unwrap_err().to_string().contains("--store"));
/// ```
pub fn default_url(engine_url: &str) -> Result<String, RecipeError> {
    let (scheme, rest) = engine_url.split_once(':').unwrap_or((engine_url, ""));
    match scheme {
        "embedded" if !rest.is_empty() => Ok(format!("sqlite:{}/{FILE_IN_DIRECTORY}", rest.trim_end_matches('/'))),
        "postgres" | "postgresql" | "leasehold" | "leaseholds" => Ok(engine_url.to_owned()),
        _ => Err(RecipeError::Invalid(
            "this engine keeps no rows of recipes: give --store postgres://user@host/database or --store sqlite:FILE"
                .into(),
        )),
    }
}

#[cfg(feature = "postgres")]
async fn open_postgres(url: &str) -> Result<StoreDatabase, RecipeError> {
    Ok(StoreDatabase::Postgres(Arc::new(PostgresDatabase::open(url).await?)))
}

#[cfg(not(feature = "postgres"))]
async fn open_postgres(_url: &str) -> Result<StoreDatabase, RecipeError> {
    Err(RecipeError::Invalid("this build has no stores on PostgreSQL: enable the feature postgres".into()))
}

#[cfg(feature = "sqlite")]
async fn open_sqlite(file: &str) -> Result<StoreDatabase, RecipeError> {
    if file.is_empty() || file.starts_with("//") || file.starts_with(":memory:") {
        return Err(RecipeError::Invalid(
            "sqlite: is followed by a path, without //, as in sqlite:./recipes.db".into(),
        ));
    }
    Ok(StoreDatabase::Sqlite(Arc::new(SqliteDatabase::open(file.into()).await?)))
}

#[cfg(not(feature = "sqlite"))]
async fn open_sqlite(_file: &str) -> Result<StoreDatabase, RecipeError> {
    Err(RecipeError::Invalid("this build has no stores on SQLite: enable the feature sqlite".into()))
}

#[cfg(feature = "http")]
async fn open_server(url: &str, clock: Arc<dyn Clock>) -> Result<StoreDatabase, RecipeError> {
    let options = crate::engine::remote::Options::from_url(url);
    let options = options.map_err(|error| RecipeError::Invalid(error.to_string()))?;
    Ok(StoreDatabase::Server(Arc::new(ServerDatabase::open(options, clock).await?)))
}

#[cfg(not(feature = "http"))]
async fn open_server(_url: &str, _clock: Arc<dyn Clock>) -> Result<StoreDatabase, RecipeError> {
    Err(RecipeError::Invalid("this build has no stores behind a server: enable the feature http".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_has_the_store_of_the_contract() {
        assert_eq!(default_url("embedded:/var/lib/leases/").unwrap(), "sqlite:/var/lib/leases/recipes.db");
        for url in ["postgres://ada:hunter2@db/app?schema=locks", "leasehold://:hunter2@db:7401", "leaseholds://db"] {
            assert_eq!(default_url(url).unwrap(), url);
        }
        for (engine, sentence) in
            [("redis://:hunter2@db", "keeps no rows"), ("zk://db", "keeps no rows"), ("embedded:", "keeps no rows")]
        {
            let said = default_url(engine).unwrap_err().to_string();
            assert!(said.contains(sentence) && said.contains("--store") && !said.contains("hunter2"), "{said}");
        }
    }

    #[tokio::test]
    async fn what_is_no_store_is_refused_without_its_secret() {
        for (url, sentence) in [
            ("mysql://ada:hunter2@db/app", "a store is"),
            ("hunter2", "a store is"),
            ("sqlite:", "followed by a path"),
            ("sqlite://tmp/x", "followed by a path"),
            ("leasehold://hunter2@db", "the key stands behind a colon"),
        ] {
            let said = Store::open(url).await.unwrap_err().to_string();
            assert!(said.contains(sentence) && !said.contains("hunter2"), "{url}: {said}");
        }
    }
}
