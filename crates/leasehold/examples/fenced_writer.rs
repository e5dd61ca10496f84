//! The failure that a lock alone cannot prevent, and the check that does: a writer pauses, its lease lapses, another
//! writer takes over, and the first one wakes up and writes.
//!
//! `cargo run --package leasehold --example fenced_writer`

#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "an example shows what it does, and waits")]

use std::time::Duration;

use leasehold::Leasehold;
use leasehold::fence::Register;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let leasehold = Leasehold::open(&format!("embedded:{}", directory.path().display())).await?;
    // The resource. It remembers the highest token that it has seen.
    let balance = Register::new(100);
    let ttl = Duration::from_millis(200);

    // Ada does not renew: she is about to pause, as a process does that swaps or collects garbage.
    let ada = leasehold.acquire("account-7").ttl(ttl).renewing(false).holder("ada").fenced().await?;
    println!("ada has token {}", ada.token());
    tokio::time::sleep(ttl * 2).await;

    let bob = leasehold.acquire("account-7").ttl(ttl).holder("bob").fenced().await?;
    println!("ada's lease lapsed, bob has token {}", bob.token());
    balance.write(&bob, 80)?;

    // Ada wakes up and does not know that time has passed.
    let refused = balance.write(&ada, 90);
    println!("ada writes: {}", refused.as_ref().err().map_or("admitted".into(), ToString::to_string));
    assert!(refused.is_err(), "the resource refuses a stale token");
    assert_eq!(balance.read().1, 80, "and bob's write stands");

    bob.release().await?;
    leasehold.close().await?;
    Ok(())
}
