//! Recipes that need no store, on real engines and real databases.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stdout)] // real servers live in real time

mod election;
mod optimistic;
mod row;
mod several;
mod unique;
