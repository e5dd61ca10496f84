//! `once` against a real PostgreSQL and a file of SQLite: its laws, a model, and processes that are killed and stopped.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::print_stdout)] // real servers live in real time

mod audit;
mod crash;
mod in_transaction;
mod laws;
mod model;
mod worker;

use std::time::Duration;

use leasehold::recipe::Store;
use leasehold_harness::postgres::Cluster;

/// A database of one kind, with an open store.
pub(crate) enum Place {
    Postgres { cluster: Cluster, database: String },
    Sqlite { dir: tempfile::TempDir },
}

impl Place {
    pub(crate) async fn postgres() -> Self {
        let cluster = Cluster::start(&["max_connections=100"]);
        let database = cluster.database().await;
        Self::Postgres { cluster, database }
    }

    pub(crate) fn sqlite() -> Self {
        Self::Sqlite { dir: tempfile::tempdir().unwrap() }
    }

    /// One of each kind, or only that which `LEASEHOLD_RECIPE_STORE` names.
    pub(crate) async fn both() -> Vec<Self> {
        match std::env::var("LEASEHOLD_RECIPE_STORE").as_deref() {
            Ok("postgres") => vec![Self::postgres().await],
            Ok("sqlite") => vec![Self::sqlite()],
            _ => vec![Self::postgres().await, Self::sqlite()],
        }
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Self::Postgres { cluster, database } => cluster.url(database),
            Self::Sqlite { dir } => format!("sqlite:{}", dir.path().join("recipes.db").display()),
        }
    }

    pub(crate) async fn store(&self) -> Store {
        Store::open(&self.url()).await.unwrap()
    }

    /// Runs SQL behind our back. `leasehold.` names a table of the store on both.
    pub(crate) async fn execute(&self, sql: &str) {
        match self {
            Self::Postgres { cluster, database } => cluster.execute(database, sql).await,
            Self::Sqlite { .. } => self.open_file().execute_batch(&sql.replace("leasehold.", "leasehold_")).unwrap(),
        }
    }

    /// A connection to the file of SQLite.
    pub(crate) fn open_file(&self) -> rusqlite::Connection {
        let Self::Sqlite { dir } = self else { panic!("it is no file") };
        let db = rusqlite::Connection::open(dir.path().join("recipes.db")).unwrap();
        db.busy_timeout(Duration::from_secs(20)).unwrap();
        db
    }

    /// Rows of text columns.
    pub(crate) async fn rows(&self, sql: &str) -> Vec<Vec<String>> {
        match self {
            Self::Postgres { cluster, database } => {
                let rows = cluster.client(database).await.query(sql, &[]).await.unwrap();
                rows.iter().map(|row| (0..row.len()).map(|at| row.get(at)).collect()).collect()
            }
            Self::Sqlite { .. } => {
                let db = self.open_file();
                let mut statement = db.prepare(&sql.replace("leasehold.", "leasehold_")).unwrap();
                let columns = statement.column_count();
                let read = |row: &rusqlite::Row<'_>| (0..columns).map(|at| row.get(at)).collect();
                statement.query_map([], read).unwrap().map(Result::unwrap).collect()
            }
        }
    }

    /// Moves the time of all tries and answers on, as if so much had passed.
    pub(crate) async fn pass(&self, span: Duration) {
        let millis = span.as_millis();
        self.execute(&match self {
            Self::Postgres { .. } => format!(
                "UPDATE leasehold.once SET until = until - {millis} * interval '1 ms',
                 expires_at = expires_at - {millis} * interval '1 ms'"
            ),
            Self::Sqlite { .. } => {
                format!("UPDATE leasehold.once SET until = until - {millis}, expires_at = expires_at - {millis}")
            }
        })
        .await;
    }
}

/// xorshift64*: the same numbers for the same seed.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % bound
    }
}

pub(crate) fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
