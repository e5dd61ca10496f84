//! Queues on real PostgreSQL and SQLite: what they do, what they refuse, and what they keep under faults.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stdout)] // real servers live in real time

mod cuts;
mod judge;
mod locked;
mod planted;
mod postgres_only;
mod suite;
mod suite_edges;
mod suite_keys;
mod support;
mod torture;
mod torture_sqlite;
mod worker;

use leasehold::recipe::Store;
use suite::run_suite;
use support::cluster;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_suite_on_postgres() {
    let database = cluster().database().await;
    let store = Store::open(&cluster().url(&database)).await.unwrap();
    run_suite(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_suite_on_sqlite() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&format!("sqlite:{}/recipes.db", dir.path().display())).await.unwrap();
    run_suite(&store).await;
}
