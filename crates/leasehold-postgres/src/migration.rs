//! Steps of a schema: how the tables of one part come into a database, and how older ones become newer.
//!
//! # Laws
//!
//! 1. All steps that are missing are made in one transaction. Two processes that start at once take turns.
//! 2. Tables of a newer version are never touched.
//! 3. A role that may use the schema need not be allowed to make one: where nothing is missing, nothing is made.

use tokio_postgres::{Client, Error};

/// The table that says which step the others are at.
const VERSION_TABLE: &str =
    "CREATE TABLE schema_version (id INTEGER PRIMARY KEY CHECK (id = 1), version BIGINT NOT NULL)";

/// The schema of one part of Leasehold, and the steps that make it. A step that was released is never changed: add another.
#[derive(Clone, Copy, Debug)]
pub struct SchemaSteps {
    /// The name of the schema: a constant of ours, safe in SQL.
    pub schema: &'static str,
    /// The advisory lock under which processes take turns.
    pub lock_key: i64,
    /// The SQL of each step, run with the schema as `search_path`.
    pub steps: &'static [&'static str],
}

/// Why a schema could not be made or upgraded.
#[derive(Debug)]
pub enum MigrationError {
    /// The server reported an error, or the connection broke.
    Sql(Error),
    /// The tables were made by a newer version, which has so many steps.
    Newer(usize),
}

impl From<Error> for MigrationError {
    fn from(error: Error) -> Self {
        Self::Sql(error)
    }
}

impl SchemaSteps {
    /// Makes what is missing. True: something was.
    ///
    /// # Errors
    ///
    /// The tables are of a newer version, or the server could not do it. Nothing was changed then, unless the connection
    /// was lost at COMMIT. It can be tried again.
    pub async fn migrate(&self, client: &mut Client) -> Result<bool, MigrationError> {
        let Self { schema, lock_key, steps } = self;
        let tx = client.transaction().await?;
        tx.execute("SELECT pg_advisory_xact_lock($1)", &[lock_key]).await?;
        let there: bool = tx.query_one("SELECT to_regnamespace($1) IS NOT NULL", &[schema]).await?.get(0);
        if !there {
            tx.batch_execute(&format!("CREATE SCHEMA {schema}")).await?;
        }
        tx.batch_execute(&format!("SET LOCAL search_path TO {schema}")).await?;
        let there: bool = tx.query_one("SELECT to_regclass('schema_version') IS NOT NULL", &[]).await?.get(0);
        if !there {
            tx.batch_execute(VERSION_TABLE).await?;
        }
        let found: Option<i64> = tx.query_opt("SELECT version FROM schema_version", &[]).await?.map(|row| row.get(0));
        let found = usize::try_from(found.unwrap_or(0)).unwrap_or(usize::MAX);
        if found > steps.len() {
            return Err(MigrationError::Newer(found));
        }
        for step in &steps[found..] {
            tx.batch_execute(step).await?;
        }
        if found < steps.len() {
            let version = steps.len() as i64;
            let sql =
                "INSERT INTO schema_version VALUES (1, $1) ON CONFLICT (id) DO UPDATE SET version = excluded.version";
            tx.execute(sql, &[&version]).await?;
        }
        tx.commit().await?;
        Ok(found < steps.len())
    }

    /// The SQL of a new installation, one transaction, to be run by whoever owns the database.
    #[must_use]
    pub fn new_installation(&self) -> String {
        let Self { schema, steps, .. } = self;
        let version = steps.len();
        format!(
            "BEGIN;\nCREATE SCHEMA {schema};\nSET LOCAL search_path TO {schema};\n{VERSION_TABLE};\n{}\
             INSERT INTO schema_version VALUES (1, {version});\nCOMMIT;\n",
            steps.concat()
        )
    }
}
