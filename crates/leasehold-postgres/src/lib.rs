//! How every part of Leasehold connects to PostgreSQL: the engine, the ledger of the box office, the fence and the recipes.
//!
//! - [`address`]: reads the URL, and connects.
//! - [`durability`]: the settings without which an acknowledged COMMIT may be lost.
//! - [`pool`]: pools of connections that are checked when they are made.
//! - [`tls`]: TLS, by rustls.
//!
//! What a part of Leasehold sends over a connection is its own affair, and so are its schema and its sentences.

#![forbid(unsafe_code)]

pub mod address;
pub mod durability;
pub mod pool;
pub mod tls;

pub use address::{ConnectTimes, DatabaseAddress};
pub use durability::Durability;
pub use tokio_postgres;

/// An error with all its causes: `tokio_postgres::Error` alone does not say what the server said.
#[must_use]
pub fn with_causes(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {}", with_causes(cause)))
}
