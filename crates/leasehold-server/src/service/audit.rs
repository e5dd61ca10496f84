//! What people did to other people's leases, and who came to the door, written down.
//!
//! Lines under the target `leasehold::audit`, at the level info, whatever the level of the rest. Keys are named by
//! their public ids. No secret comes here: no key, no lease id, no value.

use leasehold::{Error, Token};

use super::keys::KeyChange;
use super::pass::{Caller, PeerAddress};

/// Text by strangers is cut here: an audit line is a line.
const MAX_FIELD_CHARS: usize = 1024;

/// Where it is written.
#[derive(Debug, Default)]
pub struct Audit;

impl Audit {
    /// An operator ended leases.
    pub fn revoked(&self, caller: &Caller, name: &str, reason: &str, answer: &Result<usize, Error>) {
        self.record("revoke", caller, &[name], reason, answer);
    }

    /// An operator raised the floor of tokens.
    pub fn raised(&self, caller: &Caller, floor: Token, answer: &Result<Token, Error>) {
        let outcome = answer.as_ref().map_or_else(ToString::to_string, |_| "done".to_owned());
        tracing::info!(
            target: "leasehold::audit",
            what = "raise floor",
            key = %caller.principal.id,
            peer = %caller.peer,
            floor = floor.get(),
            outcome = truncate(&outcome),
        );
    }

    /// Somebody freed keys without showing their value.
    pub fn freed(&self, caller: &Caller, names: &[&str], answer: &Result<usize, Error>) {
        self.record("free", caller, names, "", answer);
    }

    /// Somebody moved the end of keys without showing their value.
    pub fn pushed(&self, caller: &Caller, names: &[&str], answer: &Result<usize, Error>) {
        self.record("extend", caller, names, "", answer);
    }

    /// Somebody showed a key that is not known. Which one is nobody's business: it may be the right one of another
    /// server, or a password.
    pub fn wrong_key(&self, peer: PeerAddress) {
        tracing::info!(target: "leasehold::audit", what = "wrong key", peer = %peer);
    }

    /// The list of keys changed.
    pub fn keys_changed(&self, change: KeyChange) {
        tracing::info!(
            target: "leasehold::audit",
            what = "keys changed",
            added = change.added,
            removed = change.removed,
        );
    }

    fn record(&self, what: &str, caller: &Caller, names: &[&str], reason: &str, answer: &Result<usize, Error>) {
        let (count, outcome) = match answer {
            Ok(count) => (*count, "done".to_owned()),
            Err(error) => (0, error.to_string()),
        };
        tracing::info!(
            target: "leasehold::audit",
            what,
            key = %caller.principal.id,
            peer = %caller.peer,
            names = truncate(&names.join(" ")),
            reason = truncate(reason),
            count,
            outcome = truncate(&outcome),
        );
    }
}

fn truncate(text: &str) -> &str {
    text.char_indices().nth(MAX_FIELD_CHARS).map_or(text, |(at, _)| &text[..at])
}
