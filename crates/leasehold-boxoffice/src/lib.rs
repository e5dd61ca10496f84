//! Seat holds from click to sale: a seat kept for a buyer for some minutes while they pay, never sold twice, and free
//! again by itself when it is abandoned.
//!
//! A hold is a lease on seats (the engine takes the stampede) plus a row in the ledger (which takes the winners and
//! decides). A sale is one transaction with a unique constraint as the last line of defence.
//!
//! # A tour of the modules, in reading order
//!
//! - [`layout`]: what is for sale: sections, seats, areas, and their prices.
//! - [`model`]: the state machine, pure: commands, facts, decisions, writes, refusals, and the invariants.
//! - [`ledger`]: the database behind a trait, one method per transaction; SQLite, and PostgreSQL (feature `postgres`).
//! - [`office`]: leases and ledger put together; the sweeper, the sequencer, the ladder for late money.
//! - [`mod@error`]: why it was not done, one variant per thing to do next.
//! - [`import`]: how a file becomes a layout, or a list of what is wrong with it, line by line.
//! - [`pick`]: which seats to offer: best available, an alternative for a lost choice, no orphans.
//! - [`sign`], [`ticket`], [`webhook`], [`provider`]: what is signed: by us for browsers and receivers, and by those
//!   who take the money.
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
