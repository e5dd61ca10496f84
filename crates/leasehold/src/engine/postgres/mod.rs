//! PostgreSQL as an engine.

mod ids;
mod schema;

pub use schema::{SchemaName, grant_sql, migration_sql};
