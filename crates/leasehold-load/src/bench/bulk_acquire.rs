//! Acquires very many leases concurrently, for `--held` and `--lapse`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use indicatif::ProgressBar;
use leasehold::Leasehold;
use tokio::task::JoinSet;

use super::stop_signal::StopSignal;

/// Concurrent clients: enough that each sync of the journal commits a full batch.
pub const CONCURRENT_CLIENTS: usize = 512;

/// The error when leases are still being acquired at their common end.
pub const TOO_LATE_MESSAGE: &str = "the leases were not all taken before their common end: try again, or with fewer";

/// The prefix of every resource name. With its number, a name has 24 bytes.
pub const RESOURCE_PREFIX: &str = "bench/";

/// The name of the n-th resource: 24 bytes, the length for which memory per lease is stated.
pub fn resource_name(number: u64) -> String {
    format!("{RESOURCE_PREFIX}{number:018}")
}

/// The holder of the n-th lease: a label of 20 bytes.
pub fn holder_label(number: u64) -> String {
    format!("bench-host:{number:09}")
}

/// Acquires `count` leases. `ttl` is called before each acquire and returns `None` when it is too late.
/// Returns how many leases were acquired: fewer than `count` only after a stop signal.
pub async fn acquire_all(
    client: &Leasehold,
    count: u64,
    ttl: impl Fn() -> Option<Duration> + Clone + Send + 'static,
    stop: &StopSignal,
    bar: &ProgressBar,
) -> anyhow::Result<u64> {
    let next = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..CONCURRENT_CLIENTS {
        let (client, next, stop, ttl, bar) = (client.clone(), next.clone(), stop.clone(), ttl.clone(), bar.clone());
        tasks.spawn(async move {
            let mut taken = 0_u64;
            while !stop.is_requested() {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    break;
                }
                let ttl = ttl().context(TOO_LATE_MESSAGE)?;
                // The lease_id is dropped: holders keep it in their own memory, not the engine.
                client.acquire(resource_name(number)).ttl(ttl).holder(holder_label(number)).grant().await?;
                taken += 1;
                if taken.is_multiple_of(64) {
                    bar.inc(64);
                }
            }
            Ok::<_, anyhow::Error>(taken)
        });
    }
    let mut taken = 0;
    while let Some(done) = tasks.join_next().await {
        taken += done.context("run a client of the bench")??;
    }
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_holders_are_as_long_as_the_figure_says() {
        for number in [0, 999_999, 9_999_999] {
            assert_eq!((resource_name(number).len(), holder_label(number).len()), (24, 20));
        }
    }
}
