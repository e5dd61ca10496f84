//! Tables of PostgreSQL that refuse stale writers, whoever the client is. Feature `postgres`.
//!
//! ```text
//!   lease ──▶ setting leasehold.token, local to a transaction ──▶ triggers of the table ──▶ row, and its fence with it
//! ```
//!
//! - [`install`]: triggers on a table. After that the database refuses every INSERT, UPDATE, DELETE or TRUNCATE without a
//!   token or with a stale one. `leasehold fence install` is this.
//! - [`write`](write()): a transaction under a [`FencedLease`](crate::FencedLease).
//! - [`Kv`]: a table of keys and values that is fenced from the start.
//! - [`check_fence`]: the fence of one name, for transactions written by hand.
//! - [`examine()`]: tables, highest tokens, and every hole there is.
//! - [`highest_token`]: what an engine must be above, after a restore or a move.
//! - [`remove()`]: takes the triggers away; what they remember stays.
//!
//! # What is promised
//!
//! After a transaction with a higher token has committed, none with a lower one commits a write to the same resource, at
//! every isolation level. What is remembered is what was committed. The order is kept by a lock that lives until the end of
//! the transaction, on the row itself or on a row of `leasehold_fence.seen`.
//!
//! # What cannot be stopped
//!
//! The owner of the table and superusers may disable or drop a trigger. [`examine()`] says who they are, and finds it.
//!
//! # Serialization failures
//!
//! `40001` and `40P01` are no refusals: run the transaction again with the same token. [`write`](write()) does.

mod examine;
mod fenced_row;
mod highest;
mod holes;
mod install;
mod kv;
mod permission;
mod remove;
mod row_memory;
mod sql_exec;
mod sql_refusal;
mod sql_text;
mod table;
mod transaction;

use leasehold_postgres::DatabaseAddress;
use leasehold_postgres::tokio_postgres::Client;

pub use examine::{FenceExamination, FencedTable, examine};
pub use highest::{TokenSource, highest_token};
pub use install::{FenceMode, InstallOptions, InstallReport, install, plan_install};
pub use kv::Kv;
pub use remove::{RemoveReport, remove};
pub use sql_exec::execute_sql;
pub use sql_refusal::refusal_from_sql;
pub use sql_text::Remember;
pub use transaction::{FencedWrite, write};

use super::refusal::FenceError;
use super::token_text::FenceSetting;
use sql_refusal::failure_before_commit;

/// The version of what [`install`] makes for a table.
const FENCE_VERSION: i32 = 1;

/// Checks the fence of one name and keeps its order until the transaction ends: for transactions written by hand, whose
/// tables have no triggers. Write in the same transaction. Tables that are fenced by one name share its memory.
///
/// The schema must be there: any `install` makes it.
///
/// # Errors
///
/// [`FenceError::Refused`] when the fence says no. The transaction has failed then.
pub async fn check_fence(
    transaction: &leasehold_postgres::tokio_postgres::Transaction<'_>,
    resource: &str,
    shown: &FenceSetting,
) -> Result<(), FenceError> {
    let sql = "SELECT leasehold_fence.check($1::text, $2::text)";
    let checked = transaction.execute(sql, &[&resource, &shown.to_string()]).await;
    checked.map(|_| ()).map_err(|error| failure_before_commit(error, "check the fence"))
}

/// A connection for the tools of this module.
///
/// # Errors
///
/// [`FenceError::Invalid`] for a URL that is none, [`FenceError::Unavailable`] when nobody answers there.
pub async fn connect(url: &str) -> Result<Client, FenceError> {
    connect_to(&address_of(url)?).await
}

fn address_of(url: &str) -> Result<DatabaseAddress, FenceError> {
    use leasehold_postgres::ConnectTimes;
    use std::time::Duration;
    let times = ConnectTimes {
        connect_timeout: Duration::from_secs(5),
        tcp_user_timeout: Duration::from_secs(30),
        keepalives_idle: Duration::from_secs(15),
    };
    let mut address = DatabaseAddress::from_url(url, "leasehold fence", times).map_err(FenceError::Invalid)?;
    address.want_primary();
    Ok(address)
}

async fn connect_to(address: &DatabaseAddress) -> Result<Client, FenceError> {
    let attempt = format!("connect to PostgreSQL at {}", address.places());
    address.connect().await.map_err(|error| sql_refusal::unavailable(&error, &attempt))
}
