//! Seat holds from click to sale: a seat kept for a buyer for some minutes while they pay, never sold twice, and free
//! again by itself when it is abandoned.
//!
//! A hold is a lease on seats (the engine takes the stampede) plus a row in the ledger (which takes the winners and
//! decides). A sale is one transaction with a unique constraint as the last line of defence.
//!
//! # A tour of the modules, in reading order
//!
//! - [`layout`]: what is for sale: sections, seats, areas, and their prices.
#![forbid(unsafe_code)]

pub mod layout;
