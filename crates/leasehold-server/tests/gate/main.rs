//! `leasehold gate` as a process, in front of a real HTTP service that records what reaches it.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test: it panics when something is wrong, and prints figures"
)]

#[path = "../common/mod.rs"]
mod common;

mod bench;
mod bodies;
mod edges;
mod hostile;
mod order;
mod process;
mod public;
mod race;
mod rule;
mod upstream;
mod wire;
