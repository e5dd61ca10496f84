//! Names as Redis keys, for the lock clients that exist: a lease with a value, and whoever shows the value owns it.

use std::time::Duration;

pub use leasehold_core::Push;

use super::{Answer, Claim, Grant};
use crate::engine::Token;

/// What an engine offers that can keep a value beside a lease.
pub trait Keys: Send + Sync {
    /// Takes the names of the claim as keys with this value. The claim is exclusive and does not wait.
    fn set<'a>(&'a self, claim: Claim, value: &'a [u8]) -> Answer<'a, Grant>;

    /// The name as a key; none when nobody holds it.
    fn get<'a>(&'a self, name: &'a str) -> Answer<'a, Option<Key>>;

    /// Frees keys: those with this value, or without one any that were taken as keys. Says how many.
    ///
    /// Freeing one key of a lease over several frees that key only.
    fn free<'a>(&'a self, names: &'a [&'a str], value: Option<&'a [u8]>) -> Answer<'a, usize>;

    /// Pushes the end of keys, all or none of them. Says how many: all, or zero.
    fn extend<'a>(&'a self, names: &'a [&'a str], value: Option<&'a [u8]>, push: Push) -> Answer<'a, usize>;
}

/// A name as a key.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    /// What it shows; none for a lease that was not taken as a key.
    pub value: Option<Vec<u8>>,
    /// Life left.
    pub remaining: Duration,
    /// The fencing token.
    pub token: Option<Token>,
}

impl std::fmt::Debug for Key {
    /// Without the value: it proves ownership.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Key").field("remaining", &self.remaining).field("token", &self.token).finish_non_exhaustive()
    }
}
