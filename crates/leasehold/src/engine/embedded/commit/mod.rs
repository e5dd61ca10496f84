//! From a decided command to a durable answer: group commit.
//!
//! ```text
//!   command ──▶ GroupCommit: decide, gather ──▶ JournalWriter: one write, one fdatasync ──▶ ReplyTo: callers
//! ```
//!
//! Each file uses only those above it in this list.
//!
//! | file | what |
//! | --- | --- |
//! | `group.rs` | the book, and the answers that wait for the disk; no lock, no thread |
//! | `locked.rs` | many commands under one lock, for a thread that serves many connections |
//! | `journal_writer.rs` | writes one batch, then completes its answers |
//! | `writer_thread.rs` | the thread that commits batches and expires leases |

pub mod group;
pub(super) mod journal_writer;
#[cfg(test)]
mod journal_writer_tests;
pub(super) mod locked;
pub(super) mod writer_thread;
