//! API keys: their roles, and the prefixes that they may touch.
//!
//! ```text
//!   keys.toml ──▶ KeyFile ──▶ KeyRing ◀── the key of a request ──▶ Principal
//! ```
//!
//! # Laws
//!
//! 1. A server stores digests of keys, never keys: reading `keys.toml` reveals none.
//! 2. The time to refuse a wrong key says nothing about which keys exist.
//! 3. A key ring that has had keys never becomes open again in the same process: revoking the last key lets nobody in.
//! 4. A revoked key has no rights from the moment the key ring is replaced, on every connection.
//!
//! # Not here
//!
//! Which verb needs which role (`verb`), rate limits (`rate`), when the file is read (`serve::keys`).

pub mod file;
mod principal;
mod role;
pub mod secret;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock};

use subtle::ConstantTimeEq;

use super::Denial;
use super::rate::Rate;
use super::verb::Verb;
use file::{KeyFile, KeyRecord};
pub use principal::Principal;
pub use role::{Role, Roles};
use secret::KeyDigest;

/// Every key the server knows.
pub struct KeyRing {
    table: RwLock<Arc<KeyTable>>,
}

struct KeyTable {
    /// The principal of callers without a key, on a server without keys.
    anybody: Option<Arc<Principal>>,
    /// By the first 8 bytes of the digest, which nobody can choose without the key.
    known: HashMap<u64, KnownKey>,
}

#[derive(Clone)]
struct KnownKey {
    record: KeyRecord,
    principal: Arc<Principal>,
}

/// What a new key file changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyChange {
    /// Keys that are known now and were not.
    pub added: usize,
    /// Keys that lost their rights, those with changed rights included.
    pub removed: usize,
}

impl KeyRing {
    /// A server without keys: every caller may do everything.
    pub fn open() -> Arc<Self> {
        let everybody = Principal::new(String::new(), Roles::all(), Vec::new(), None);
        Self::with_table(KeyTable { anybody: Some(Arc::new(everybody)), known: HashMap::new() })
    }

    /// A server with these keys; without any, one that is open.
    pub fn from_file(file: &KeyFile) -> Arc<Self> {
        if file.keys.is_empty() {
            return Self::open();
        }
        let known = file.keys.iter().map(|record| (record.hash.head(), KnownKey::from_record(record))).collect();
        Self::with_table(KeyTable { anybody: None, known })
    }

    fn with_table(table: KeyTable) -> Arc<Self> {
        Arc::new(Self { table: RwLock::new(Arc::new(table)) })
    }

    /// Replaces the keys. A key that is gone or changed is revoked; an unchanged key keeps its principal.
    pub fn replace(&self, file: &KeyFile) -> KeyChange {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if file.keys.is_empty() && table.anybody.is_some() {
            return KeyChange::default();
        }
        let mut change = KeyChange::default();
        let mut known = HashMap::with_capacity(file.keys.len());
        for record in &file.keys {
            let head = record.hash.head();
            let kept = table.known.get(&head).filter(|known| known.record == *record).cloned();
            change.added += usize::from(kept.is_none());
            known.insert(head, kept.unwrap_or_else(|| KnownKey::from_record(record)));
        }
        let old = std::mem::replace(&mut *table, Arc::new(KeyTable { anybody: None, known }));
        // Callers without a key lose their rights first: the server has keys now.
        old.anybody.iter().for_each(|anybody| anybody.revoke());
        for (head, before) in &old.known {
            let stays = table.known.get(head).is_some_and(|now| Arc::ptr_eq(&now.principal, &before.principal));
            if !stays {
                before.principal.revoke();
                change.removed += 1;
            }
        }
        change
    }

    fn table(&self) -> Arc<KeyTable> {
        self.table.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether a key is needed.
    pub fn are_needed(&self) -> bool {
        self.table().anybody.is_none()
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.table().known.len()
    }

    /// The principal of callers without a key; none on a server with keys.
    pub fn anybody(&self) -> Option<Arc<Principal>> {
        self.table().anybody.clone()
    }

    /// The principal of this key. Takes the same time whether the key exists or not.
    pub fn find_principal(&self, key: &str) -> Option<Arc<Principal>> {
        let table = self.table();
        if table.anybody.is_some() {
            return table.anybody.clone();
        }
        let shown = KeyDigest::of_key(key)?;
        let known = table.known.get(&shown.head());
        let stored = known.map_or(&KeyDigest::OF_NO_KEY, |known| &known.record.hash);
        let same = stored.bytes().ct_eq(shown.bytes());
        known.filter(|_| bool::from(same)).map(|known| known.principal.clone())
    }

    /// Why this principal may not do this to these resources; none if it may.
    pub fn check_access(&self, principal: &Principal, verb: Verb, names: &[&str]) -> Option<Denial> {
        if principal.revoked.load(Ordering::Relaxed) {
            return Some(Denial::Unauthorized);
        }
        let role = verb.role();
        if !principal.roles.allow(role) {
            let sentence = format!("{} takes a key with the role {}", verb.word(), role.word());
            return Some(Denial::Forbidden(sentence));
        }
        // A key with prefixes does not see how busy others are.
        if verb == Verb::Metrics && !principal.prefixes.is_empty() {
            return Some(Denial::Forbidden("metrics count every resource: they take a key without prefixes".into()));
        }
        // There is one counter of tokens for all names.
        if verb == Verb::RaiseFloor && !principal.prefixes.is_empty() {
            return Some(Denial::Forbidden(
                "the floor is that of every resource: it takes a key without prefixes".into(),
            ));
        }
        // The same sentence for every name: it must not reveal whether the resource exists.
        names
            .iter()
            .any(|name| !principal.sees(name))
            .then(|| Denial::Forbidden("this key may not touch resources outside its prefixes".into()))
    }
}

impl KnownKey {
    fn from_record(record: &KeyRecord) -> Self {
        let roles = Roles::from_roles(record.roles.iter().copied());
        let rate = record.rate.map(|rate| Rate::new(rate.get(), rate.get()));
        let principal = Principal::new(record.id.clone(), roles, record.prefixes.clone(), rate);
        Self { record: record.clone(), principal: Arc::new(principal) }
    }
}

impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyRing").field("keys", &self.len()).field("open", &!self.are_needed()).finish()
    }
}

#[cfg(test)]
mod tests;
