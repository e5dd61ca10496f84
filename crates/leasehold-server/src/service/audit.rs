//! What people did to other people's leases, written down.

use leasehold::Error;

use super::pass::Caller;

/// Where it is written.
#[derive(Debug, Default)]
pub struct Audit;

impl Audit {
    /// An operator ended leases.
    pub fn revoked(&self, caller: &Caller, name: &str, reason: &str, answer: &Result<usize, Error>) {
        self.note("revoke", caller, name, reason, answer);
    }

    /// Somebody freed keys without showing their value.
    pub fn freed(&self, caller: &Caller, names: &[&str], answer: &Result<usize, Error>) {
        self.note("free", caller, &names.join(" "), "", answer);
    }

    /// Somebody moved the end of keys without showing their value.
    pub fn pushed(&self, caller: &Caller, names: &[&str], answer: &Result<usize, Error>) {
        self.note("extend", caller, &names.join(" "), "", answer);
    }

    fn note(&self, what: &str, caller: &Caller, names: &str, reason: &str, answer: &Result<usize, Error>) {
        let outcome = match answer {
            Ok(count) => format!("{count}"),
            Err(error) => error.to_string(),
        };
        tracing::info!(
            target: "leasehold::audit",
            what,
            key = %caller.principal.id,
            peer = %caller.peer,
            names,
            reason,
            outcome,
        );
    }
}
