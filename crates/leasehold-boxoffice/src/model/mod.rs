//! The state machine of seats, holds, orders and money. Pure: no I/O, no clock, no randomness.
//!
//! ```text
//!   command + facts (rows, under the ledger's locks) + now ──▶ decide ──▶ writes + result, or a refusal
//! ```
//!
//! # Laws
//!
//! 1. A seat is in exactly one of free, held, paying, sold, blocked; only [`decide`] says what changes.
//! 2. Expiry is a predicate: a hold is live while `now < expires_at`, whether or not the sweeper has ended it.
//! 3. A refusal writes nothing.
//! 4. Every change of a seat compares the token the seat was taken with; a higher token displaces a hold that is
//!    over, never one that is active or paying, and never a sale.
//!
//! # In reading order
//!
//! `ids` and `event`, `hold` and `order` (rows), `entry` (the audit log), `refusal`, `command` (one struct for each
//! transaction), `facts` and `write` (what a ledger loads and stores), `decide` (the decisions), `check` (the invariants,
//! checked on a dump of the rows), `history` (the invariants, checked on the entries).

pub mod check;
pub mod command;
pub mod decide;
pub mod entry;
pub mod event;
pub mod facts;
pub mod history;
pub mod hold;
pub mod ids;
pub mod order;
pub mod refusal;
pub mod write;

#[cfg(test)]
mod tests;

pub use command::*;
pub use entry::{AreaFree, Entry, EntryKind, SeatChange, SeatState};
pub use event::{EventRow, EventSettings};
pub use hold::{HeldArea, HeldSeat, HoldRow, HoldState, LeaseRef};
pub use ids::{Buyer, EventId, HoldId, Moment, OrderId};
pub use order::{
    Capture, CaptureState, MoneyRow, MoneyState, OrderRow, OrderState, PaymentSource, PaymentWitness, RecordedStep,
    SoldArea, SoldSeat,
};
pub use refusal::{Conflict, Reason, Refusal, Resolution};
