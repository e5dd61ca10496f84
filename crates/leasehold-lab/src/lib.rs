//! `leasehold lab`: the classic failures of distributed locks, on real processes and real servers, and their cure.
//!
//! ```text
//!   lab ──▶ orders over pipes ──▶ actors (this binary again, one process each) ──▶ server, Redis, SQLite
//!    └───── SIGSTOP, SIGCONT, kill -9, a proxy that cuts ────────┘
//! ```
//!
//! A lab asserts what it shows: if the failure or the cure did not show, its exit code is 1.
//!
//! Read in this order:
//!
//! - [`command`]: the command line, and what it prints.
//! - `labs`: one file for each lab, written as a story.
//! - `stage`: the processes and directories of a run, and the recording of what happens.
//! - `actor`, `order`: the other side of the pipe.
//! - `seat`: the resource, a table in SQLite, with and without its fence.
//! - `timeline`, `print`, `report`: what happened, as text and as a picture.
//!
//! # Laws
//!
//! 1. Nothing outlives a run: no process, no directory, even after Ctrl-C or the death of an actor.
//! 2. A lab uses free ports and a directory of its own.
//! 3. What was not seen is never said.
//!
//! # Not here
//!
//! Randomised schedules (`leasehold torture`). A lab plays one schedule that is known to fail.

#![forbid(unsafe_code)]

mod actor;
pub mod command;
mod labs;
mod order;
mod print;
mod report;
mod seat;
mod stage;
mod timeline;
