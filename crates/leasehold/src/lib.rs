//! Leases with fencing tokens: temporary exclusive access to a named thing, in a form that stays safe
//! when a holder pauses too long.
//!
//! ```
//! use std::time::Duration;
//! use leasehold::{Leasehold, fence::Register};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let url = format!("embedded:{}", dir.path().display());
//! let leasehold = Leasehold::open(&url).await?;
//! let seat = Register::new("free");
//!
//! let lease = leasehold.acquire("seat-14").ttl(Duration::from_secs(30)).fenced().await?;
//! seat.write(&lease, "sold")?; // the register refuses a holder that woke up too late
//! lease.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # What is promised
//!
//! The order of tokens, the durability of every acknowledged answer, and expiry that is never early.
//! **Not** promised, here or by any lock anywhere: that a paused process stops. A check
//! beside the resource ([`fence`]) makes such a process harmless, and that check needs a token. So
//! there are two kinds of lease:
//!
//! | | for efficiency: [`Lease`] | for correctness: [`FencedLease`] |
//! | --- | --- | --- |
//! | a rare double run costs | wasted work | corrupt data, a double sale |
//! | engines that may serve it | all | those that promise fencing |
//! | has a token, opens a fenced write | no | yes |
//!
//! # A tour of the modules, in reading order
//!
//! - [`client`]: [`Leasehold`], the way in: open an engine by its URL, acquire, inspect, revoke.
//! - [`acquire`]: [`Acquire`], what is asked for, and how the answer becomes a guard.
//! - [`lease`]: the guards, and the three moments they know: safe, *danger*, *lost*.
//! - [`fence`]: the check beside the resource.
//! - [`mod@error`]: why there is no grant; one variant per thing to do next.
//! - [`clock`]: the only place that asks the machine what time it is.
//! - [`engine`]: the contract for what decides grants, and the engines.
//! - [`recipe`]: narrow alternatives to a lock.
//! - `advisory` (feature `postgres`): PostgreSQL's advisory locks, as they are.
//! - `testkit` (feature `testkit`): a clock set by hand, an engine that fails on order, text scenarios.
//! - `conformance` (feature `testkit`): the suite that every engine passes.
#![forbid(unsafe_code)]
// What engines and fences share is dead code in a build that has only some of them. Lints look at all features.
#![cfg_attr(
    not(all(
        feature = "embedded",
        feature = "tls",
        feature = "redis",
        feature = "postgres",
        feature = "sqlite",
        feature = "object",
        feature = "testkit"
    )),
    allow(dead_code, unused_imports)
)]

pub mod acquire;
#[cfg(feature = "postgres")]
pub mod advisory;
pub mod client;
pub mod clock;
#[cfg(any(test, feature = "testkit"))]
pub mod conformance;
pub mod engine;
pub mod error;
pub mod fence;
pub mod lease;
pub mod recipe;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;

#[cfg(test)]
mod tests;

pub use acquire::{Acquire, FencedAcquire, RunError};
pub use client::Leasehold;
pub use engine::{Grant, LeaseId, Mode, Promises, Renewal, Resource, Token};
pub use error::{Error, Refusal};
pub use lease::{FencedLease, Lease, Lost};
/// A moment, as a [`clock::Clock`] tells it.
pub use leasehold_core::Time;
