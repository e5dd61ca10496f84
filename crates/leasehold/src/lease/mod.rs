//! The guards: a lease that renews itself, and its three moments.
//!
//! ```text
//!   sent         renewal due       danger              lost
//!    ├──────────────┼────────────────┼───────────────────┤
//!    0             1/3              2/3           end of validity
//! ```
//!
//! All three are counted from **before** the request was sent (of the acquire, then of each renewal
//! that succeeded), by a clock that counts suspend. So a guard may think itself lost a little too
//! early, and never too late.
//!
//! # Not here
//!
//! Any stop of your code. A guard can tell you that the lease is lost; a process that is paused hears
//! nothing. Where that matters, take a [`FencedLease`] and let the resource check its token.

mod renew;

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::engine::{LeaseId, Renewal, Token};
use crate::error::Error;
pub(crate) use renew::{LeaseTimes, RenewalTask, SharedLease};

/// A lease for efficiency: a rare double run would cost only wasted work.
///
/// It renews itself in the background every third of its ttl, unless told otherwise. Dropping it stops
/// the renewals and lets the ttl finish, without any I/O; [`release`](Lease::release) ends it at once.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let leasehold = leasehold::Leasehold::open(&format!("embedded:{}", dir.path().display())).await?;
/// # async fn next_page() -> Option<u32> { None }
/// let lease = leasehold.acquire("crawler").await?;
/// loop {
///     tokio::select! {
///         why = lease.lost() => return Err(format!("stop: {why}").into()),
///         page = next_page() => if page.is_none() { break },
///     }
/// }
/// lease.release().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a dropped lease is no longer renewed, and lapses with its ttl"]
pub struct Lease {
    held: Arc<SharedLease>,
    /// Stops the renewals when the guard goes, whichever way it goes.
    keeper: RenewalTask,
}

impl Lease {
    pub(crate) fn new(held: Arc<SharedLease>, keeper: RenewalTask) -> Self {
        Self { held, keeper }
    }

    pub(crate) fn held(&self) -> &SharedLease {
        &self.held
    }

    /// The secret that proves it: whoever has it can renew and release.
    #[must_use]
    pub fn lease_id(&self) -> &LeaseId {
        &self.held.lease_id
    }

    /// What it covers.
    #[must_use]
    pub fn resources(&self) -> &[String] {
        &self.held.resources
    }

    /// Whether every resource is held exclusively: neither shared, nor by permits. Only such a lease may write through a
    /// [`fence`](crate::fence).
    #[must_use]
    pub fn is_exclusive(&self) -> bool {
        self.held.exclusive
    }

    /// The public label of who holds it.
    #[must_use]
    pub fn holder(&self) -> &str {
        &self.held.holder
    }

    /// How long the lease can be proven without another renewal; zero once it is lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.held.remaining()
    }

    /// Not yet in danger: new work may be started.
    #[must_use]
    pub fn is_safe(&self) -> bool {
        self.held.is_safe()
    }

    /// Not lost. True now says nothing of the next instant: what must not happen late belongs behind
    /// a fence.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.held.is_live()
    }

    /// Completes when renewal is overdue, at two thirds of the validity: stop starting new work.
    ///
    /// A renewal that succeeds later makes the lease safe again, and a new call waits anew. Completes at
    /// once when the lease is lost.
    pub async fn danger(&self) {
        self.held.danger().await;
    }

    /// Completes when the lease can no longer be proven, and says why: stop now.
    ///
    /// Needs nothing but the clock, so it also completes when renewals are off or the engine is gone.
    pub async fn lost(&self) -> Lost {
        self.held.lost().await
    }

    /// Cancelled when the lease is lost; also when it is released or the guard is dropped, because from
    /// then on nobody keeps it up. Cancelling it yourself has no effect on the lease.
    #[must_use]
    pub fn cancellation(&self) -> CancellationToken {
        self.keeper.cancellation()
    }

    /// Renews now, beside the renewals in the background.
    ///
    /// # Errors
    ///
    /// Refused with `Stale` when the lease is lost, also when the engine's yes came after the
    /// validity was over: a guard that said *lost* never takes it back. Unavailable and Indeterminate
    /// change nothing: the validity known so far stands.
    pub async fn renew(&self) -> Result<Renewal, Error> {
        self.held.renew().await
    }

    /// Ends the lease at the engine. `true`: this call ended it. `false`: it had been released before.
    ///
    /// # Errors
    ///
    /// Refused with `Stale` or `NotHeld` when it had ended otherwise. On Unavailable or Indeterminate the
    /// engine may still hold it, until its ttl finishes at the latest: whatever the answer, the guard is
    /// gone and renews no more. To try again, keep a clone of [`lease_id`](Lease::lease_id) and use
    /// [`Leasehold::release`](crate::Leasehold::release).
    pub async fn release(self) -> Result<bool, Error> {
        let Self { held, keeper } = self;
        // First: nothing must renew what is being released. A renewal that is on its way already does no
        // harm, since no engine revives a lease that ended.
        drop(keeper);
        held.engine.release(&held.lease_id).await
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("resources", &self.held.resources)
            .field("holder", &self.held.holder)
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

/// A lease for correctness: it has a token, and opens fenced writes.
///
/// Only an engine that promises fencing gives one: see [`Acquire::fenced`](crate::Acquire::fenced).
/// Everything a [`Lease`] can do, it can do too.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let leasehold = leasehold::Leasehold::open(&format!("embedded:{}", dir.path().display())).await?;
/// let first = leasehold.acquire("seat-14").fenced().await?;
/// let earlier = first.token();
/// first.release().await?;
///
/// let second = leasehold.acquire("seat-14").fenced().await?;
/// assert!(second.token() > earlier);
/// # second.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a dropped lease is no longer renewed, and lapses with its ttl"]
pub struct FencedLease {
    lease: Lease,
    token: Token,
}

impl FencedLease {
    pub(crate) fn new(lease: Lease, token: Token) -> Self {
        Self { lease, token }
    }

    pub(crate) fn into_lease(self) -> Lease {
        self.lease
    }

    /// The fencing token: higher than that of every earlier lease on these resources, the same through
    /// all renewals. Public; send it along with every write.
    #[must_use]
    pub fn token(&self) -> Token {
        self.token
    }

    /// Ends the lease at the engine: see [`Lease::release`].
    ///
    /// # Errors
    ///
    /// As [`Lease::release`].
    pub async fn release(self) -> Result<bool, Error> {
        self.lease.release().await
    }
}

impl Deref for FencedLease {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}

/// Why a lease can no longer be proven.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Lost {
    /// It could not be renewed in time. The engine may have granted it to another.
    #[error("the lease lapsed: it could not be renewed in time")]
    Lapsed,
    /// The engine said that it ended: it lapsed there, was revoked, or was released elsewhere.
    #[error("the engine says that the lease has ended")]
    Stale,
    /// It reached its `max_hold`: no renewal can push the end further.
    #[error("the lease reached the longest time it may be held")]
    Capped,
}
