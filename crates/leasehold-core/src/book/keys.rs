//! Leases as Redis clients see them: keys with a value, and whoever shows the value owns the key.
//!
//! # Laws
//!
//! 1. Only a lease taken with a value is a key that can be freed or pushed by name. Any other is refused with a
//!    sentence, or (when a value must be shown) is simply not the caller's.
//! 2. Freeing one key of a lease over several frees that key only.
//! 3. Pushing is all or nothing, and never takes time away from a key that was not named.

use std::fmt;

use subtle::ConstantTimeEq;

use super::lease::{LeaseEntry, LeasePhase};
use super::{Book, due};
use crate::command::{Keys, Push, Reply};
use crate::fact::{End, Fact};
use crate::time::Time;
use crate::token::Token;

/// A name as a Redis key. `Debug` hides the value: it proves ownership.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyView<'a> {
    /// What it shows; none for a lease that was not taken as a key.
    pub value: Option<&'a [u8]>,
    /// Life left.
    pub remaining: std::time::Duration,
    /// The fencing token.
    pub token: Token,
}

impl fmt::Debug for KeyView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyView")
            .field("remaining", &self.remaining)
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}

impl Book {
    /// These names will be asked for soon. Changes nothing: it brings their index lines into the cache, so that
    /// several names wait for memory once, not once each.
    pub fn prefetch(&self, names: &[&str]) {
        self.state.prefetch(names);
    }

    /// The name as a key at `now`; `None` when nobody holds it.
    #[must_use]
    pub fn key(&self, name: &str, now: Time) -> Option<KeyView<'_>> {
        let now = now.max(self.now);
        let resource = &self.state.resources[self.state.find_name(name)? as usize];
        let lease = resource
            .holders()
            .map(|slot| &self.state.leases[slot as usize])
            .find(|lease| lease.phase == LeasePhase::Live && !due(lease, now))?;
        Some(KeyView { value: lease.value(), remaining: lease.expires_at.since(now), token: lease.token() })
    }

    pub(super) fn free(&mut self, keys: Keys<'_>, now: Time) -> Reply {
        if let Err(sentence) = self.check_keys(keys, now) {
            return Reply::Invalid(sentence);
        }
        let mut freed = 0;
        for name in keys.names {
            let Some(slot) = self.owned(name, keys.value, now) else { continue };
            let lease = &self.state.leases[slot as usize];
            freed += 1;
            if lease.parts.as_slice().len() == 1 {
                self.end_lease(slot, End::Released, "", now);
            } else {
                let token = lease.token();
                if let Some(resource) = self.state.find_name(name) {
                    self.todo.push(resource);
                }
                self.record(&Fact::Freed { token, name });
            }
            self.examine_todo(now);
        }
        Reply::Freed(freed)
    }

    pub(super) fn extend(&mut self, keys: Keys<'_>, push: Push, now: Time) -> Reply {
        if let Err(sentence) = self.check_keys(keys, now) {
            return Reply::Invalid(sentence);
        }
        let mut pushed: Vec<(u32, u64)> = Vec::with_capacity(keys.names.len());
        // Only the owner of all of them gets this sentence: others get a refusal, as in Redis.
        let mut invalid = None;
        for name in keys.names {
            let Some(slot) = self.owned(name, keys.value, now) else { return Reply::Extended(0) };
            let lease = &self.state.leases[slot as usize];
            let ttl_ms = match push {
                Push::Set(ms) => ms,
                Push::Add(ms) => {
                    let left = lease.expires_at.since(now).as_nanos().div_ceil(1_000_000);
                    u64::try_from(left).unwrap_or(u64::MAX).saturating_add(ms)
                }
            };
            if let Err(sentence) = self.limits.check_ttl(ttl_ms) {
                invalid = Some(sentence);
            } else if (keys.value.is_none() || now.plus_millis(ttl_ms) < lease.expires_at)
                && !self.all_named(lease, keys.names)
            {
                // A key that was not named is never shortened. Without the value it is not prolonged either: it may be
                // somebody else's.
                invalid = Some(format!("{name} is held together with other keys: name all of them or none"));
            }
            if !pushed.iter().any(|(other, _)| *other == slot) {
                pushed.push((slot, ttl_ms));
            }
        }
        if let Some(sentence) = invalid {
            return Reply::Invalid(sentence);
        }
        for (slot, ttl_ms) in pushed {
            let lease = &self.state.leases[slot as usize];
            let (token, cap_at) = (lease.token(), lease.cap_at);
            let expires_at = now.plus_millis(ttl_ms).min(cap_at);
            self.record(&Fact::Renewed { token, expires_at, ttl_ms: ttl_ms as u32 });
        }
        Reply::Extended(keys.names.len())
    }

    fn all_named(&self, lease: &LeaseEntry, names: &[&str]) -> bool {
        lease.parts.as_slice().iter().all(|part| {
            let name = self.state.resources[part.resource as usize].name.as_str();
            names.contains(&name)
        })
    }

    /// Refuses invalid names, and leases that are not keys, before anything is changed.
    fn check_keys(&mut self, keys: Keys<'_>, now: Time) -> Result<(), String> {
        if keys.names.len() > self.limits.resources_per_claim {
            return Err(format!("at most {} keys at once, got {}", self.limits.resources_per_claim, keys.names.len()));
        }
        for name in keys.names {
            self.limits.check_name(name)?;
            if keys.value.is_none() && self.key(name, now).is_some_and(|key| key.value.is_none()) {
                return Err(format!("{name} is held by a lease that was not made by SET: it ends by its lease_id"));
            }
        }
        Ok(())
    }

    /// The live lease on this key, if it shows this value. Ends one that is over.
    fn owned(&mut self, name: &str, value: Option<&[u8]>, now: Time) -> Option<u32> {
        let resource = self.state.find_name(name)?;
        let slot = self.state.resources[resource as usize].holders().next()?;
        let lease = &self.state.leases[slot as usize];
        if lease.phase != LeasePhase::Live {
            return None;
        }
        if due(lease, now) {
            self.end_by_time(slot, now);
            self.examine_todo(now);
            return None;
        }
        let shown = lease.value()?;
        // The value proves ownership: it is compared like any secret.
        let same = value.is_none_or(|value| value.len() == shown.len() && bool::from(value.ct_eq(shown)));
        same.then_some(slot)
    }
}
