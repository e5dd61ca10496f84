//! The tables of the recipes in a file of SQLite, which may be a user's own.
//!
//! # Laws
//!
//! 1. Only names that begin with `leasehold_` are made. `user_version` is the user's.
//! 2. Tables of a newer version are never touched.

use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior};

use super::{STORE_NAME, sqlite_error};
use crate::recipe::error::RecipeError;

const STEP_1: &str = concat!(
    include_str!("step_1/clock.sql"),
    include_str!("step_1/queue.sql"),
    include_str!("step_1/once.sql"),
    include_str!("step_1/cron.sql"),
);

/// One step for each version, in order. A step that was released is never changed: add another.
const STEPS: [&str; 1] = [STEP_1];

const VERSION_TABLE: &str = "CREATE TABLE IF NOT EXISTS leasehold_schema_version
    (id INTEGER PRIMARY KEY CHECK (id = 1), version INTEGER NOT NULL) STRICT";

/// Makes what is missing, in one transaction. Processes that start at once take turns.
pub(super) fn migrate(connection: &mut Connection, attempt: &str) -> Result<(), RecipeError> {
    let sql = |error: rusqlite::Error| sqlite_error(&error, attempt);
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(sql)?;
    tx.execute_batch(VERSION_TABLE).map_err(sql)?;
    let found = tx.query_row("SELECT version FROM leasehold_schema_version", [], |row| row.get::<_, usize>(0));
    let found = found.optional().map_err(sql)?.unwrap_or(0);
    if found > STEPS.len() {
        let why = format!(
            "its tables were made by a newer version of Leasehold (schema {found}, this one knows {})",
            STEPS.len()
        );
        return Err(RecipeError::unavailable(STORE_NAME, attempt, why));
    }
    if found == STEPS.len() {
        return Ok(());
    }
    for step in &STEPS[found..] {
        tx.execute_batch(step).map_err(sql)?;
    }
    tx.execute("INSERT OR REPLACE INTO leasehold_schema_version VALUES (1, ?1)", [STEPS.len()]).map_err(sql)?;
    tx.commit().map_err(sql)
}
