//! The fence of PostgreSQL tables, on a real server: the table of cases, schedules, statements, keys, partitions, installs,
//! holes, dumps, a pooler, and races.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stdout)] // a real server lives in real time

mod cases;
mod holes;
mod installs;
mod keys;
mod moves;
mod partitions;
mod pooler;
mod race;
mod restore;
mod roles;
mod schedules;
mod statements;
mod support;
mod writes;
