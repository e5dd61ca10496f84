//! The schema of the engine: its name, its layout, and how it comes into a database.
//!
//! # Laws
//!
//! 1. A layout is made or changed in one transaction, behind the gate: batches under way have ended, new ones wait.
//! 2. A layout that this version does not know is never touched.

use leasehold_postgres::tokio_postgres::error::SqlState;
use leasehold_postgres::tokio_postgres::types::Type;
use leasehold_postgres::tokio_postgres::{Client, Error as SqlError};
use sha2::{Digest as _, Sha256};

use crate::error::Error;

/// The layout that this version makes and uses.
pub(crate) const LAYOUT: i32 = 1;

const LAYOUT_1: &str = concat!(
    include_str!("layout_1/tables.sql"),
    include_str!("layout_1/names_and_queues.sql"),
    include_str!("layout_1/batch.sql"),
    include_str!("layout_1/waiting.sql"),
    include_str!("layout_1/operate.sql"),
);

const SAFE: &str = "SECURITY DEFINER SET search_path = pg_catalog, pg_temp";
const BY_KEY: &str = "SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off \
                      SET plan_cache_mode = force_generic_plan";

/// What an application may execute: everything that the engine calls.
const FUNCTIONS: [&str; 17] = [
    "batch",
    "check_waiters",
    "leave",
    "revoke",
    "show",
    "list",
    "heartbeat",
    "begin_watch",
    "expire",
    "read_events",
    "live",
    "begin_sweep",
    "sweep",
    "raise_floor",
    "advisory_token",
    "layout",
    "now_us",
];

/// The name of the schema: safe in any SQL text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaName(String);

impl SchemaName {
    /// The name where none is given.
    pub const DEFAULT: &str = "leasehold_engine";

    /// Checks a name: small letters, digits and `_`, not a digit first, at most 41.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`].
    pub fn new(name: &str) -> Result<Self, Error> {
        let first = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_');
        let rest = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        if first && rest && name.len() <= 41 && !name.starts_with("pg_") {
            return Ok(Self(name.to_owned()));
        }
        Err(Error::Invalid("a schema has a name of at most 41 small letters, digits and _, not a digit first".into()))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The class of this schema's advisory locks. The class beside it (the last bit turned) is for the gate.
    pub(crate) fn lock_class(&self) -> i32 {
        let digest = Sha256::digest(format!("leasehold.{}", self.0));
        i32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]])
    }

    /// The channel on which events are announced.
    pub(crate) fn events_channel(&self) -> String {
        format!("leasehold_events_{}", self.lock_class().cast_unsigned())
    }

    /// SQL with `@.` for the schema. Fit for text of ours alone.
    pub(crate) fn in_sql(&self, text: &str) -> String {
        let class = self.lock_class();
        text.replace("@SAFE", SAFE)
            .replace("@BY_KEY", BY_KEY)
            .replace("@K", &format!("({class})"))
            .replace("@N", &class.cast_unsigned().to_string())
            .replace("SCHEMA IF NOT EXISTS @", &format!("SCHEMA IF NOT EXISTS \"{}\"", self.0))
            .replace("SCHEMA @", &format!("SCHEMA \"{}\"", self.0))
            .replace("@.", &format!("\"{}\".", self.0))
    }
}

/// The SQL that makes this version's layout in an empty database, to be run in one transaction by the owner.
#[must_use]
pub fn migration_sql(schema: &SchemaName) -> String {
    schema.in_sql(LAYOUT_1)
}

/// The SQL that lets a role use the engine: USAGE on the schema and EXECUTE on the functions; no table.
#[must_use]
pub fn grant_sql(schema: &SchemaName, role: &str) -> String {
    let role = format!("\"{}\"", role.replace('"', "\"\""));
    let routines: Vec<String> = FUNCTIONS.iter().map(|name| format!("\"{}\".{name}", schema.as_str())).collect();
    format!(
        "GRANT USAGE ON SCHEMA \"{}\" TO {role};\nGRANT EXECUTE ON FUNCTION {} TO {role};\n",
        schema.as_str(),
        routines.join(", ")
    )
}

/// What a database has of the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Installed {
    /// Nothing.
    Missing,
    /// A layout, with the timeline for which its tokens were raised.
    Layout(i32, String),
    /// Something, but this role may not use it.
    Forbidden,
}

/// Reads what the database has.
pub(crate) async fn read_layout(client: &Client, schema: &SchemaName) -> Result<Installed, SqlError> {
    let sql = schema.in_sql("SELECT layout, history FROM @.layout()");
    let missing = [&SqlState::INVALID_SCHEMA_NAME, &SqlState::UNDEFINED_FUNCTION, &SqlState::UNDEFINED_TABLE];
    match client.query_typed(&sql, &[]).await {
        Ok(rows) => match rows.first() {
            Some(row) => Ok(Installed::Layout(row.try_get(0)?, row.try_get(1)?)),
            None => Ok(Installed::Missing),
        },
        Err(error) if error.code().is_some_and(|code| missing.contains(&code)) => Ok(Installed::Missing),
        Err(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => Ok(Installed::Forbidden),
        Err(error) => Err(error),
    }
}

/// Makes the layout, or brings it to this version. True: something was changed. Another process may do the same at the
/// same time: one of them waits for the other.
pub(crate) async fn install(client: &mut Client, schema: &SchemaName) -> Result<bool, SqlError> {
    let transaction = client.transaction().await?;
    let gate = schema.lock_class() ^ 1;
    // A migration of another process may take its time.
    transaction.batch_execute("SET LOCAL lock_timeout = 30000; SET LOCAL statement_timeout = 60000").await?;
    transaction.batch_execute(&format!("SELECT pg_advisory_xact_lock({gate}, 0)")).await?;
    let exists = "SELECT to_regclass($1) IS NOT NULL";
    let meta = format!("\"{}\".meta", schema.as_str());
    // Not prepared: there may be a pooler in between.
    let rows = transaction.query_typed(exists, &[(&meta, Type::TEXT)]).await?;
    if rows.first().is_some_and(|row| row.try_get(0).unwrap_or(false)) {
        transaction.rollback().await?;
        return Ok(false);
    }
    transaction.batch_execute(&migration_sql(schema)).await?;
    transaction.commit().await?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_name_is_safe_in_sql() {
        for good in ["leasehold_engine", "_a", "a1", &"a".repeat(41)] {
            assert_eq!(SchemaName::new(good).unwrap().as_str(), good);
        }
        for bad in ["", "1a", "A", "a-b", "a\"b", "a b", "pg_a", "é", &"a".repeat(42)] {
            assert!(SchemaName::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn no_placeholder_is_left_in_the_sql() {
        let sql = migration_sql(&SchemaName::new("elsewhere").unwrap());
        assert!(!sql.contains('@'), "{:?}", sql.lines().find(|line| line.contains('@')));
        assert!(sql.contains("\"elsewhere\".lease") && sql.contains("CREATE SCHEMA IF NOT EXISTS \"elsewhere\";"));
    }
}
