//! A table that refuses a holder that woke up too late, whoever the client is: here SQLite, where it needs no server.
//!
//! `cargo run --package leasehold --features sqlite --example fenced_table`

#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "an example shows what it does, and waits")]

use std::time::Duration;

use leasehold::Leasehold;
use leasehold::fence::FenceError;
use leasehold::fence::sqlite::{SqliteFence, SqliteInstallOptions, install};
use rusqlite::Connection;

const SELL: &str = "UPDATE seats SET owner = ?1 WHERE seat_id = 14";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let leasehold = Leasehold::open(&format!("embedded:{}", directory.path().join("leases").display())).await?;
    let mut shop = Connection::open(directory.path().join("shop.sqlite"))?;
    shop.execute_batch(
        "CREATE TABLE seats (seat_id INTEGER PRIMARY KEY, owner TEXT); INSERT INTO seats VALUES (14, 'free')",
    )?;

    // Once, beside the migrations: `leasehold fence install` does the same. Row 14 is the resource seat/14.
    let what =
        SqliteInstallOptions { table: "seats".into(), keys: vec!["seat_id".into()], resource: Some("seat/{}".into()) };
    install(&mut shop, &what)?;
    let without = shop.execute(SELL, ["eve"]);
    println!("eve has no token: {}", without.as_ref().err().map_or("admitted".into(), ToString::to_string));
    assert!(without.is_err(), "the table refuses a write without a token");

    let fence = SqliteFence::attach(&shop)?;
    // Ada does not renew: she is about to pause, as a process does that swaps or collects garbage.
    let ttl = Duration::from_millis(200);
    let ada = leasehold.acquire("seat/14").ttl(ttl).renewing(false).holder("ada").fenced().await?;
    tokio::time::sleep(ttl * 2).await;
    let bob = leasehold.acquire("seat/14").ttl(ttl).holder("bob").fenced().await?;
    fence.write(&bob, &mut shop, |tx| Ok(tx.execute(SELL, ["bob"])?))?;
    println!("bob has token {} and wrote", bob.token());

    let late = fence.write(&ada, &mut shop, |tx| Ok(tx.execute(SELL, ["ada"])?));
    println!("ada writes too late: {}", late.as_ref().err().map_or("admitted".into(), ToString::to_string));
    assert!(matches!(late, Err(FenceError::Refused(_))), "the table refuses a stale token");
    let owner: String = shop.query_row("SELECT owner FROM seats WHERE seat_id = 14", [], |row| row.get(0))?;
    assert_eq!(owner, "bob", "and bob's write stands");

    bob.release().await?;
    leasehold.close().await?;
    Ok(())
}
