//! The resource of the labs: a table of seats in SQLite or PostgreSQL, with or without its fence.
//!
//! The fence is the one that `leasehold fence install` makes.

pub mod postgres;
pub mod sqlite;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The resource of a seat, as leases name it.
pub const SEAT: &str = "seat/14";
/// The resource of the last unit, as leases name it.
pub const STOCK: &str = "stock/last";

/// Where a table of seats is.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SeatStore {
    /// In a file.
    Sqlite(PathBuf),
    /// In a database, by its URL.
    Postgres(String),
}

/// What became of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SeatWrite {
    Admitted,
    Fenced { code: String, why: String },
}

impl SeatStore {
    /// Makes a table with one free seat.
    pub async fn create_seats(&self, fenced: bool) -> anyhow::Result<()> {
        match self {
            Self::Sqlite(file) => sqlite::create_seats(file, fenced),
            Self::Postgres(url) => postgres::create_seats(url, fenced).await,
        }
    }

    /// Who owns the seat.
    pub async fn read_owner(&self) -> anyhow::Result<String> {
        match self {
            Self::Sqlite(file) => sqlite::read_owner(file),
            Self::Postgres(url) => postgres::read_owner(url).await,
        }
    }

    /// Writes an owner into the seat, under the token that is shown.
    pub async fn write_owner(&self, owner: &str, shown: Option<&str>) -> anyhow::Result<SeatWrite> {
        match self {
            Self::Sqlite(file) => sqlite::write_owner(file, owner, shown),
            Self::Postgres(url) => postgres::write_owner(url, owner, shown).await,
        }
    }
}
