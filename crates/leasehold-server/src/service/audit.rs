//! The audit log: what operators did to leases of others and to queues, wrong keys, and changes of the key file.
//!
//! Lines under the target `leasehold::audit`, at the level info, whatever the level of other lines. Keys appear by
//! their public ids. Secrets (keys, lease ids, values) never appear.

use leasehold::{Error, Token};

use super::denial::Denial;
use super::keys::KeyChange;
use super::pass::{Caller, PeerAddress};

/// Characters of one field: text from clients is cut here.
const MAX_FIELD_CHARS: usize = 1024;

/// Writes the audit log.
#[derive(Debug, Default)]
pub struct Audit;

impl Audit {
    /// An operator revoked leases.
    pub fn log_revoke(&self, caller: &Caller, name: &str, reason: &str, answer: &Result<usize, Error>) {
        self.log_operation("revoke", caller, &[name], reason, answer);
    }

    /// An operator raised the floor of tokens.
    pub fn log_raised_floor(&self, caller: &Caller, floor: Token, answer: &Result<Token, Error>) {
        let outcome = answer.as_ref().map_or_else(ToString::to_string, |_| "done".to_owned());
        tracing::info!(
            target: "leasehold::audit",
            what = "raise floor",
            key = %caller.principal.id,
            peer = %caller.peer,
            floor = floor.get(),
            outcome = truncate_text(&outcome),
        );
    }

    /// An operator changed a queue. `answer`: about how many dead letters it was.
    pub fn log_queue_order(&self, what: &str, caller: &Caller, queue: &str, answer: &Result<u64, Denial>) {
        let (count, outcome) = match answer {
            Ok(count) => (*count, "done".to_owned()),
            Err(denial) => (0, denial.sentence()),
        };
        tracing::info!(
            target: "leasehold::audit",
            what,
            key = %caller.principal.id,
            peer = %caller.peer,
            names = truncate_text(queue),
            count,
            outcome = truncate_text(&outcome),
        );
    }

    /// A caller freed Redis keys without showing their value.
    pub fn log_freed_keys(&self, caller: &Caller, names: &[&str], answer: &Result<usize, Error>) {
        self.log_operation("free", caller, names, "", answer);
    }

    /// A caller moved the end of Redis keys without showing their value.
    pub fn log_extended_keys(&self, caller: &Caller, names: &[&str], answer: &Result<usize, Error>) {
        self.log_operation("extend", caller, names, "", answer);
    }

    /// A key that is not known was shown. It is not logged: it may be the key of another server, or a password.
    pub fn log_wrong_key(&self, peer: PeerAddress) {
        tracing::info!(target: "leasehold::audit", what = "wrong key", peer = %peer);
    }

    /// The key file changed.
    pub fn log_keys_changed(&self, change: KeyChange) {
        tracing::info!(
            target: "leasehold::audit",
            what = "keys changed",
            added = change.added,
            removed = change.removed,
        );
    }

    fn log_operation(&self, what: &str, caller: &Caller, names: &[&str], reason: &str, answer: &Result<usize, Error>) {
        let (count, outcome) = match answer {
            Ok(count) => (*count, "done".to_owned()),
            Err(error) => (0, error.to_string()),
        };
        tracing::info!(
            target: "leasehold::audit",
            what,
            key = %caller.principal.id,
            peer = %caller.peer,
            names = truncate_text(&names.join(" ")),
            reason = truncate_text(reason),
            count,
            outcome = truncate_text(&outcome),
        );
    }
}

fn truncate_text(text: &str) -> &str {
    text.char_indices().nth(MAX_FIELD_CHARS).map_or(text, |(at, _)| &text[..at])
}
