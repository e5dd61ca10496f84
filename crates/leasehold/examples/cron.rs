//! A cron slot: every machine starts the job at the same minute, one of them runs it.
//!
//! The name has the minute in it, and the lease is kept until long after that minute. A machine whose clock is behind
//! still finds the slot taken. `leasehold::recipe::cron` does this with a ledger: what ran, what was missed, what was lost.
//!
//! `cargo run --package leasehold --example cron`

#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "an example shows what it does, and waits")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::{Error, Leasehold, Refusal};
use tokio::task::JoinSet;

/// Longer than the clocks of the machines differ.
const SLOT_KEPT_FOR: Duration = Duration::from_secs(600);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let leasehold = Leasehold::open(&format!("embedded:{}", directory.path().display())).await?;
    let runs = Arc::new(AtomicUsize::new(0));
    for minute in ["2026-11-17T03:00Z", "2026-11-17T03:01Z"] {
        let machines: JoinSet<_> =
            (1..=5).map(|machine| start(leasehold.clone(), machine, minute, runs.clone())).collect();
        for started in machines.join_all().await {
            started?;
        }
    }
    assert_eq!(runs.load(Ordering::SeqCst), 2, "five machines, two minutes, two runs");
    leasehold.close().await?;
    Ok(())
}

/// Runs the job, if this machine has the slot.
async fn start(leasehold: Leasehold, machine: u32, minute: &'static str, runs: Arc<AtomicUsize>) -> Result<(), Error> {
    let slot = format!("cron/nightly-report/{minute}");
    // `grant` gives no guard: the lease stays when this process ends, which is what a slot is for.
    let asked = leasehold.acquire(slot).ttl(SLOT_KEPT_FOR).holder(format!("machine-{machine}"));
    match asked.grant().await {
        Ok(grant) => {
            println!("{minute}: machine {machine} runs it, token {}", grant.token.map_or(0, |token| token.get()));
            runs.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }
        Err(Error::Refused(Refusal::Held { .. })) => Ok(()),
        Err(error) => Err(error),
    }
}
