//! How every part of Leasehold connects to PostgreSQL: the engine, the ledger of the box office, the fence and the recipes.
//!
//! - [`address`]: reads the URL, and connects.
//! - [`durability`]: the settings without which an acknowledged COMMIT may be lost.
//! - [`migration`]: steps of a schema.
//! - [`pool`]: pools of connections that are checked when they are made.
//! - [`tls`]: TLS, by rustls.
//!
//! What a part of Leasehold sends over a connection is its own affair, and so are its schema and its sentences.

#![forbid(unsafe_code)]

pub mod address;
pub mod durability;
pub mod migration;
pub mod pool;
pub mod tls;

pub use address::{ConnectTimes, DatabaseAddress};
pub use durability::Durability;
pub use migration::{MigrationError, SchemaSteps};
pub use tokio_postgres;

/// An error with all its causes: `tokio_postgres::Error` alone does not say what the server said.
#[must_use]
pub fn with_causes(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {}", with_causes(cause)))
}

/// The message and the code of the server, without its details: they may repeat values. Of other errors all causes.
#[must_use]
pub fn message_and_code(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(answer) => format!("{} ({})", answer.message(), answer.code().code()),
        None => with_causes(error),
    }
}
