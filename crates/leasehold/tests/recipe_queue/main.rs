//! Queues on real PostgreSQL and SQLite: what they do, what they refuse, and what they keep under faults.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stdout)] // real servers live in real time

mod judge;
mod planted;
mod postgres_only;
mod suite;
mod suite_edges;
mod suite_keys;
mod support;
mod torture;
mod torture_sqlite;
mod worker;
