//! The pure decisions of Leasehold: no clock, no I/O, no async, no randomness.
//!
//! ```text
//!   Command, now ──▶ Book::apply ──▶ Outcome { reply, effects }
//!                       │
//!                       └──▶ facts on the tape, for the journal
//! ```
//!
//! Read in this order:
//!
//! - [`token`] and [`time`]: what names a lease, what proves it, and what a moment is.
//! - [`command`]: what can be asked of the book, and what it answers.
//! - [`limits`]: how much may be asked; checked before anything is kept.
//! - [`fact`]: what happened, as the journal records it. Replay only evolves.
//! - [`book`]: every lease we know of, and the only code that may change one.
//! - [`news`]: the events that watchers get.
//! - [`wheel`]: the timer: which entry is due next, in constant time.
//!
//! # Not here
//!
//! Durability (the journal of the embedded engine), threads, wire formats. The engine around the book is called the
//! shell.
#![forbid(unsafe_code)]

mod block_vec;
pub mod book;
pub mod command;
pub mod fact;
pub mod limits;
pub mod news;
pub mod time;
pub mod token;
pub mod wheel;
pub mod wire;

pub use book::Book;
pub use command::{
    Acquire, Command, Effect, Granted, HeldDetails, Keys, Mode, Outcome, Push, Refusal, Renewed, Reply, RequestId,
    WaiterId, Want,
};
pub use fact::{End, Fact};
pub use limits::Limits;
pub use time::Time;
pub use token::{LeaseKey, Secret, Token};
