//! Random operations: the functions in PostgreSQL against the book, answer by answer.
//!
//! Both run under one clock that is set by hand (`now_us()` is replaced). The test does what the engine does for waiting
//! claims: it checks them when they are due, as replies and messages say, and gives them up when their patience ends.
//! What is granted is then read from the tables, so that a message that was not sent is a difference.
//!
//! `LEASEHOLD_FUZZ_SEED` repeats a run, `LEASEHOLD_FUZZ_OPERATIONS` makes it longer.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stdout)] // a real server lives in real time

mod batch;
mod compare;
mod operations;
mod trial;

use std::future::poll_fn;

use leasehold::engine::postgres::{SchemaName, migration_sql};
use leasehold_core::{Book, Limits};
use leasehold_harness::postgres::Cluster;
use operations::Dice;
use tokio::sync::mpsc::unbounded_channel;
use tokio_postgres::{AsyncMessage, NoTls};
use trial::{OPERATIONS_PER_TRIAL, Trial};

const QUEUE_LIMIT: usize = 4;
/// Claims never span two groups of names, so that operations on different groups in one batch have no order.
const GROUPS: [[&str; 3]; 3] = [["a1", "a2", "a3"], ["b1", "b2", "b3"], ["c1", "c2", "c3"]];

async fn fresh_database(cluster: &Cluster) -> String {
    let database = cluster.database().await;
    let schema = SchemaName::new("leasehold_engine").unwrap();
    cluster.execute(&database, &migration_sql(&schema)).await;
    let now = "CREATE OR REPLACE FUNCTION leasehold_engine.now_us() RETURNS bigint LANGUAGE sql VOLATILE AS \
               $$ SELECT current_setting('leasehold.now')::bigint $$";
    cluster.execute(&database, now).await;
    database
}

async fn run_trial(cluster: &Cluster, database: &str, seed: u64, watched: bool) -> usize {
    let (sql, mut connection) = tokio_postgres::connect(&cluster.url(database), NoTls).await.unwrap();
    let (to, messages) = unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(note) = message
                && note.channel() == "leasehold_fuzz"
            {
                let _ = to.send(note.payload().to_owned());
            }
        }
    });
    let reset = format!(
        "LISTEN leasehold_fuzz; SELECT set_config('leasehold.now', '1000000000', false);
         TRUNCATE leasehold_engine.lease, leasehold_engine.resource, leasehold_engine.shared_holder, leasehold_engine.queue, leasehold_engine.process, leasehold_engine.event;
         UPDATE leasehold_engine.watch_state SET until = 0;
         INSERT INTO leasehold_engine.process VALUES (1, 'leasehold_fuzz', 4611686018427387904), (2, 'leasehold_fuzz', 4611686018427387904), (0, 'x', 0);
         {}",
        if watched { "UPDATE leasehold_engine.watch_state SET until = 4611686018427387904" } else { "" }
    );
    sql.batch_execute(&reset).await.unwrap();
    let limits = Limits { waiters_per_resource: QUEUE_LIMIT, ..Limits::default() };
    let mut book = Book::new(limits, seed);
    book.set_ceiling(u64::MAX);
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for _ in 0..8 {
        dice.below(2);
    }
    let unit_ms = *dice.pick(&[1, 10]);
    let mut trial = Trial {
        sql,
        messages,
        book,
        dice,
        now_us: 1_000_000_000,
        unit_ms,
        known: vec![],
        waiter_ids: 0,
        handles: 0,
        log: String::new(),
        grants: 0,
    };
    trial.log = format!("seed {seed} watched {watched}\n");
    trial.run().await;
    trial.grants
}

fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("a number"))
}

async fn fuzz(watched: bool) {
    let cluster = Cluster::start(&["fsync=off"]);
    let database = fresh_database(&cluster).await;
    let first = from_environment("LEASEHOLD_FUZZ_SEED", 1);
    let operations = from_environment("LEASEHOLD_FUZZ_OPERATIONS", 5_000);
    let trials = operations.div_ceil(OPERATIONS_PER_TRIAL as u64);
    let mut grants = 0;
    for seed in first..first + trials {
        grants += run_trial(&cluster, &database, seed, watched).await;
    }
    println!("{} operations, {grants} grants, watched {watched}: no difference", trials * OPERATIONS_PER_TRIAL as u64);
}

/// Goal: the functions in PostgreSQL decide as the book does.
/// Method: random operations against both, compared answer by answer.
#[tokio::test]
async fn the_functions_decide_as_the_book_does() {
    fuzz(false).await;
}

/// Goal: the same while somebody watches: then every operation goes one by one.
/// Method: the same operations, with a watch that never ends.
#[tokio::test]
async fn the_functions_decide_as_the_book_does_while_watched() {
    fuzz(true).await;
}
