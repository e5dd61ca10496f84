//! The embedded engine: the book in memory, its facts on disk. The default.
//!
//! # Promises
//!
//! Durable: nothing is answered before the batch that holds it is on disk (one write, one fdatasync).
//! Fencing: one counter of tokens for all resources, reserved ahead in two places, never reused.
//! Fair: waiters are served in order of arrival. Never early, and a lease outlives the process that took it.
//!
//! # Does not promise
//!
//! To survive the loss of the disk: there is one copy. Order among waiting *processes* ([`Visitor`]).
//! The queue: a restart forgets who waited, and their callers learn Unavailable.
//!
//! # Clock
//!
//! `CLOCK_BOOTTIME`, which counts suspend. After a restart on the same boot remaining times are exact; on
//! another boot each live lease has its last ttl once more. The wall clock is never asked.
//!
//! # Token
//!
//! A counter below a ceiling that is durable in the journal and in a second file before any token under it
//! is given out. After a crash the counter goes on above the ceiling; an orderly close hands back the rest. A raised
//! floor needs no record of its own: it is answered when it is below such a ceiling, and close writes the counter.
//!
//! # On lost connection
//!
//! There is none to lose. A failed write or sync stops the engine: calls in flight are Indeterminate, later
//! ones Unavailable, and the sync is never tried again.
//!
//! # Files, from the lowest
//!
//! `storage` (the disk as a trait), `journal/` (frames, segments, snapshots, recovery), `start` (a directory becomes a
//! running book), `events` (recent events in memory), `commit/` (group commit), `maintenance` (the thread that writes
//! snapshots), `watcher`, `examine`, `engine` (the [`crate::engine::Engine`] methods), `open`, `visitor`.

mod book_clock;
#[doc(hidden)]
pub mod commit;
#[doc(hidden)]
pub mod dir_lock;
mod engine;
mod errors;
mod events;
mod examine;
#[doc(hidden)]
pub mod journal;
mod maintenance;
mod open;
mod options;
mod random;
mod start;
#[doc(hidden)]
pub mod storage;
mod visitor;
mod watcher;

pub use leasehold_core::book::{Counters, Counts, Histogram};

#[doc(hidden)]
pub use book_clock::BookClock;
pub use commit::completion::{CompletionQueue, Stopped};
pub use commit::locked::LockedEngine;
pub use commit::shared::Commits;
pub use engine::{Embedded, PROFILE, PROMISES};
pub use errors::refusal;
pub use options::{Notice, Options};
#[doc(hidden)]
pub use start::{Started, start};
pub use visitor::Visitor;
