//! The schema of the recipes: its steps, and how it comes into a database.

use leasehold_postgres::tokio_postgres::Client;
use leasehold_postgres::{MigrationError, SchemaSteps};

use super::STORE_NAME;
use super::sql_error::{SqlEffect, recipe_error};
use crate::recipe::error::RecipeError;

/// Where the tables and functions are. Users write this name in their own SQL.
pub const SCHEMA: &str = "leasehold";

/// Two processes that start at once take turns under this advisory lock.
const MIGRATION_LOCK_KEY: i64 = 0x1ea5_e401_d5ea_7002;

const STEP_1: &str = concat!(
    include_str!("step_1/tokens.sql"),
    include_str!("step_1/queue.sql"),
    include_str!("step_1/once.sql"),
    include_str!("step_1/cron.sql"),
);

/// One step for each version, in order. A step that was released is never changed: add another.
const STEPS: SchemaSteps = SchemaSteps { schema: SCHEMA, lock_key: MIGRATION_LOCK_KEY, steps: &[STEP_1] };

/// The SQL of a new installation, one transaction: for a database whose owner runs it by hand.
#[must_use]
pub fn migration_sql() -> String {
    STEPS.new_installation()
}

/// Makes what is missing.
pub(super) async fn migrate(client: &mut Client, attempt: &str) -> Result<(), RecipeError> {
    match STEPS.migrate(client).await {
        Ok(_) => Ok(()),
        Err(MigrationError::Sql(error)) => Err(recipe_error(&error, attempt, SqlEffect::None)),
        Err(MigrationError::Newer(found)) => Err(RecipeError::unavailable(
            STORE_NAME,
            attempt,
            format!(
                "its tables were made by a newer version of Leasehold (schema {found}, this one knows {})",
                STEPS.steps.len()
            ),
        )),
    }
}
