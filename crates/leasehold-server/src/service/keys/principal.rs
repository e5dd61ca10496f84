//! Principals: what the bearer of a key may do and touch.
//!
//! # Laws
//!
//! 1. A principal sees and touches no name outside its prefixes.
//! 2. A principal that was revoked stays so: a changed key is another principal.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio_util::sync::CancellationToken;

use super::role::Roles;
use crate::service::rate::Rate;

/// The rights of one key.
#[derive(Debug)]
pub struct Principal {
    /// Public name of the key; empty for everybody on a server without keys.
    pub id: String,
    /// The operations it may call.
    pub roles: Roles,
    /// The names it may touch: those that begin with one of these. Empty: all. Sorted, none begins with another.
    pub prefixes: Vec<String>,
    /// Its rate limit; none for no limit.
    pub rate: Option<Rate>,
    /// Its rate limit for lease ids that are not known.
    pub guesses: Rate,
    /// The key was revoked while its connections are open. Set by [`Principal::revoke`] alone.
    pub revoked: AtomicBool,
    /// Cancelled by the revocation: wakes the tasks that wait for this principal.
    gone: CancellationToken,
}

impl Principal {
    /// A principal with these roles and prefixes.
    pub fn new(id: String, roles: Roles, mut prefixes: Vec<String>, rate: Option<Rate>) -> Self {
        prefixes.sort();
        prefixes.dedup_by(|later, earlier| later.starts_with(earlier.as_str()));
        if prefixes.iter().any(String::is_empty) {
            prefixes.clear();
        }
        Self {
            id,
            roles,
            prefixes,
            rate,
            guesses: Rate::new(100, 1000),
            revoked: AtomicBool::new(false),
            gone: CancellationToken::new(),
        }
    }

    /// Revokes all rights at once and for good, and wakes the tasks that wait.
    pub fn revoke(&self) {
        self.revoked.store(true, Ordering::Relaxed);
        self.gone.cancel();
    }

    /// Resolves when the key is revoked.
    pub async fn until_revoked(&self) {
        self.gone.cancelled().await;
    }

    /// Whether it may see and touch this name.
    pub fn sees(&self, name: &str) -> bool {
        self.prefixes.is_empty() || self.prefixes.iter().any(|prefix| name.starts_with(prefix.as_str()))
    }

    /// The prefixes under `asked` that it may see, in order.
    pub fn seen_under(&self, asked: &str) -> Vec<String> {
        if self.sees(asked) {
            return vec![asked.to_owned()];
        }
        self.prefixes.iter().filter(|prefix| prefix.starts_with(asked)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn holder_of(prefixes: Vec<String>) -> Principal {
        Principal::new("k".into(), Roles::all(), prefixes, None)
    }

    proptest! {
        /// Goal: no listing shows a name outside the prefixes, nor hides or repeats one inside.
        /// Method: names and prefixes over a tiny alphabet, so that they meet; a plain model beside it.
        #[test]
        fn nothing_is_seen_outside_the_prefixes(
            prefixes in prop::collection::vec("[ab/]{0,4}", 0..4),
            asked in "[ab/]{0,4}",
            name in "[ab/]{0,6}",
        ) {
            let mine = prefixes.is_empty() || prefixes.iter().any(|prefix| name.starts_with(prefix.as_str()));
            let principal = holder_of(prefixes);
            prop_assert_eq!(principal.sees(&name), mine);
            let shown = principal.seen_under(&asked).iter().filter(|prefix| name.starts_with(prefix.as_str())).count();
            prop_assert_eq!(shown, usize::from(mine && name.starts_with(asked.as_str())));
        }

        /// Goal: pages follow each other, because the prefixes of a listing come in order.
        #[test]
        fn prefixes_of_a_listing_are_in_order(prefixes in prop::collection::vec("[ab/]{0,4}", 0..6)) {
            let under = holder_of(prefixes).seen_under("");
            prop_assert!(under.windows(2).all(|pair| pair[0] < pair[1] && !pair[1].starts_with(pair[0].as_str())));
        }
    }

    /// Goal: who waits in the name of a key hears of its end.
    #[tokio::test]
    async fn a_revoked_principal_wakes_those_who_wait() {
        let principal = holder_of(Vec::new());
        let waits = std::pin::pin!(principal.until_revoked());
        principal.revoke();
        waits.await;
        assert!(principal.revoked.load(Ordering::Relaxed));
    }
}
