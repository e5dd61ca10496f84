//! From a decided command to a durable reply: group commit.
//!
//! ```text
//!   command ──▶ GroupCommit: decides, gathers ──▶ JournalWriter: one write, one fdatasync ──▶ ReplyTo: callers
//! ```
//!
//! Each file uses only those above it in this list:
//!
//! | file | what |
//! | --- | --- |
//! | `group.rs` | the book, and the replies that wait for the disk; no lock, no thread |
//! | `completion.rs` | where replies go |
//! | `lifecycle.rs` | whether commands are taken and batches written |
//! | `shared.rs` | the book's lock and what stands beside it, for all threads |
//! | `call.rs` | one command of one caller |
//! | `journal_writer.rs` | writes one batch, then completes its replies |
//! | `locked.rs` | many commands under one lock, for a thread that serves many connections |
//! | `writer_thread.rs` | the thread that commits batches and expires leases |

pub(super) mod call;
pub(super) mod completion;
pub mod group;
pub(super) mod journal_writer;
#[cfg(test)]
mod journal_writer_tests;
pub(super) mod lifecycle;
pub(super) mod locked;
pub(super) mod shared;
pub(super) mod writer_thread;
