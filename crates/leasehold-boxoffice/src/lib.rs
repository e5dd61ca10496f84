//! Seat holds from click to sale: a seat kept for a buyer for some minutes while they pay, never sold twice, and free
//! again by itself when it is abandoned.
//!
//! A hold is a lease on seats in the engine plus a row in the ledger. The engine refuses most of a crowd early; the
//! ledger decides. A sale is one transaction, with a unique constraint as the last line of defence.
//!
//! # A tour of the modules, in reading order
//!
//! - [`layout`]: what is for sale: sections, seats, areas, and their prices.
//! - [`model`]: the state machine, pure: commands, facts, decisions, writes, refusals, and the invariants.
//! - [`ledger`]: the database behind a trait, one method per transaction; SQLite, and PostgreSQL (feature `postgres`).
//! - [`office`]: all operations, over leases and ledger; the event cache, the background tasks, late money.
//! - [`mod@error`]: why an operation failed, one variant per thing to do next.
//! - [`import`]: reads a layout from CSV or JSON, or lists what is wrong with it, line by line.
//! - [`pick`]: which seats to offer: best available, an alternative for a lost choice, no orphans.
//! - [`sign`], [`ticket`], [`webhook`], [`provider`]: signed messages: tickets for browsers, webhooks for receivers, and
//!   callbacks of payment providers.
#![forbid(unsafe_code)]

pub mod error;
pub mod import;
pub mod layout;
pub mod ledger;
pub mod model;
pub mod office;
pub mod pick;
pub mod provider;
pub mod sign;
pub mod ticket;
pub mod webhook;

pub use error::Error;
pub use office::Office;
