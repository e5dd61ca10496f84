//! Recipes over leases of either kind: for efficiency, or for correctness.

use std::future::Future;
use std::ops::Deref;

use crate::acquire::Acquire;
use crate::engine::Token;
use crate::error::Error;
use crate::lease::{FencedLease, Lease};

mod sealed {
    pub trait Sealed {}

    impl Sealed for crate::lease::Lease {}
    impl Sealed for crate::lease::FencedLease {}
    impl Sealed for super::StrongestLease {}
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

/// The strongest form of a lease that the engine offers: for those who work on every engine, and use a token where there is one.
#[derive(Debug)]
#[must_use = "a dropped lease is no longer renewed, and lapses with its ttl"]
pub enum StrongestLease {
    /// With a token, which a fence can compare.
    Fenced(FencedLease),
    /// Of an engine without tokens.
    Plain(Lease),
}

impl StrongestLease {
    /// The token, where the engine has tokens.
    #[must_use]
    pub fn token(&self) -> Option<Token> {
        match self {
            Self::Fenced(lease) => Some(lease.token()),
            Self::Plain(_) => None,
        }
    }
}

impl Deref for StrongestLease {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        match self {
            Self::Fenced(lease) => lease,
            Self::Plain(lease) => lease,
        }
    }
}

impl LeaseKind for StrongestLease {
    fn as_lease(&self) -> &Lease {
        self
    }

    async fn ask_for(claim: Acquire) -> Result<Self, Error> {
        if claim.has_fencing() { claim.fenced().await.map(Self::Fenced) } else { claim.await.map(Self::Plain) }
    }

    async fn end(self) -> Result<bool, Error> {
        match self {
            Self::Fenced(lease) => lease.release().await,
            Self::Plain(lease) => lease.release().await,
        }
    }
}
