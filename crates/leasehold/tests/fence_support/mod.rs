//! What the tests of fences share.
#![allow(dead_code, unused_imports, reason = "no test uses all of it")]

pub mod object_server;
pub mod object_store;
pub mod race;
#[path = "../support/mod.rs"]
mod support;

pub use support::Dice;

use leasehold::{FencedLease, Leasehold, Mode};

/// An engine for the leases of a test.
pub async fn open_leases() -> (tempfile::TempDir, Leasehold) {
    let dir = tempfile::tempdir().expect("a place");
    let leasehold = Leasehold::open(&format!("embedded:{}", dir.path().display())).await.expect("it opens");
    (dir, leasehold)
}

/// One lease on all of these.
pub async fn lease_on(leasehold: &Leasehold, names: &[&str]) -> FencedLease {
    let mut acquire = leasehold.acquire(names[0]);
    for name in &names[1..] {
        acquire = acquire.and(*name, Mode::Exclusive);
    }
    acquire.fenced().await.expect("granted")
}
