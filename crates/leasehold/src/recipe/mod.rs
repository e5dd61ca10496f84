//! Recipes: narrow alternatives to a lock. Each protects one kind of invariant, and is easier to get right.
//!
//! ```text
//!   caller ──▶ recipe ──┬──▶ Store: rows in PostgreSQL, SQLite or behind a server (once, queue, cron)
//!                       └──▶ engine: leases (election, cron, single flight)
//! ```
//!
//! # A tour of the modules
//!
//! - [`store`] (features `postgres`, `sqlite`, `http`): where recipes keep their rows. Opening it makes and migrates the tables.
//! - [`once`] (features `postgres`, `sqlite`, `http`): idempotency keys. The first answer is stored, and repeated requests get it.
//! - [`queue`] (features `postgres`, `sqlite`, `http`): jobs, each delivery with a token; by key: in order, one worker per key.
//! - [`cron`] (features `postgres`, `sqlite`, `http`): the ledger of scheduled runs; with the feature `cron` schedules, and a runner.
//! - [`election`]: one leader of many, which steps down before another can follow.
//! - [`flight`]: single flight: one computes a value for the cache, the others wait or take the old one.
//! - [`several`]: leases on several engines at once, in one order for everybody.
//! - [`optimistic`]: compare a version, and try again.
//! - [`row`] (features `postgres`, `sqlite`): a lock on rows, in a short transaction that ends in time.
//! - [`unique`] (features `postgres`, `sqlite`): a unique constraint decides who was first.
//! - `moment` (feature `http`): instants as text, between a server and its clients.
//! - [`counters`]: what recipes of this process did, for metrics.
//! - [`mod@error`]: why it was not done; one variant per thing to do next.
//!
//! # Laws
//!
//! 1. A token of a store is drawn after its row is locked. A later grant never carries a lower token.
//! 2. Whatever ends or changes a delivery or a first try shows the token of it. One that is not the newest changes nothing.
//! 3. There are two kinds of token. A lease's token comes from an engine, and may be shown to a fence. A delivery's and a
//!    first try's come from the store. They are never compared with each other.
//! 4. What is done inside a transaction of the caller commits or rolls back with it.

pub mod counters;
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "http"))]
pub mod cron;
pub mod election;
pub mod error;
pub mod flight;
mod lease_kind;
#[cfg(feature = "http")]
pub mod moment;
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "http"))]
pub mod once;
pub mod optimistic;
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "http"))]
pub mod queue;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub mod row;
pub mod several;
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "http"))]
pub mod store;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub mod unique;

pub use error::{RecipeError, RecipeRefusal};
pub use lease_kind::{LeaseKind, StrongestLease};
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "http"))]
pub use store::Store;
