//! Recipes over leases of either kind: for efficiency, or for correctness.

use std::future::Future;

use crate::acquire::Acquire;
use crate::error::Error;
use crate::lease::{FencedLease, Lease};

mod sealed {
    pub trait Sealed {}

    impl Sealed for crate::lease::Lease {}
    impl Sealed for crate::lease::FencedLease {}
}

/// A [`Lease`] or a [`FencedLease`]. A recipe that is generic over it has a token exactly where the lease has one.
pub trait LeaseKind: sealed::Sealed + Send + Sync + Sized + 'static {
    /// The part that both kinds have.
    fn as_lease(&self) -> &Lease;

    /// Asks for a lease of this kind.
    fn ask_for(claim: Acquire) -> impl Future<Output = Result<Self, Error>> + Send;

    /// Ends the lease at the engine: see [`Lease::release`].
    fn end(self) -> impl Future<Output = Result<bool, Error>> + Send;
}

impl LeaseKind for Lease {
    fn as_lease(&self) -> &Lease {
        self
    }

    async fn ask_for(claim: Acquire) -> Result<Self, Error> {
        claim.await
    }

    async fn end(self) -> Result<bool, Error> {
        self.release().await
    }
}

impl LeaseKind for FencedLease {
    fn as_lease(&self) -> &Lease {
        self
    }

    async fn ask_for(claim: Acquire) -> Result<Self, Error> {
        claim.fenced().await
    }

    async fn end(self) -> Result<bool, Error> {
        self.release().await
    }
}
