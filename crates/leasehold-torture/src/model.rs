//! The reference model: leases and waiters by definition, in the plainest code that says it.
//!
//! It shares nothing with the book but the vocabulary. Slow and obvious is the point.

use std::collections::BTreeMap;

use leasehold_core::{End, Mode, Push};

use crate::history::{KeyRequest, OpId, Recorded};

/// A lease by definition.
#[derive(Clone, Debug)]
pub struct ModelLease {
    /// What it covers.
    pub wants: Vec<(String, Mode)>,
    /// Its end, by the book.
    pub expires_at: u64,
    cap_at: u64,
    ttl: u64,
    /// Lapsed; its resources are closed until `expires_at`.
    pub closing: bool,
    /// Who it is counted for.
    pub principal: String,
    /// What its keys show.
    pub value: Option<String>,
    /// Its label.
    pub holder: String,
}

/// A waiting claim by definition.
#[derive(Clone, Debug)]
pub struct ModelWaiter {
    /// The operation that waits.
    pub op: OpId,
    /// What it wants.
    pub wants: Vec<(String, Mode)>,
    /// When the wait ends, by the book's clock.
    pub until: u64,
}

/// Which law a fact breaks, by the file name of the invariant.
pub type BrokenInvariant = (&'static str, String);

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct ReferenceModel {
    /// Leases by token.
    pub leases: BTreeMap<u64, ModelLease>,
    /// Waiting claims, in order of arrival.
    pub waiters: Vec<ModelWaiter>,
    last_token: u64,
}

impl ReferenceModel {
    /// Follows a fact, and says which law it breaks.
    pub fn follow(&mut self, fact: &Recorded) -> Result<(), BrokenInvariant> {
        match fact {
            Recorded::Granted { .. } => self.follow_grant(fact),
            Recorded::Renewed { token, expires_at, ttl } => match self.leases.get_mut(token) {
                Some(lease) if !lease.closing => {
                    lease.expires_at = *expires_at;
                    lease.ttl = *ttl;
                    if *expires_at > lease.cap_at {
                        return Err(("cap", format!("lease {token} renewed past its cap")));
                    }
                    Ok(())
                }
                _ => Err(("no_resurrection", format!("lease {token} renewed after its end"))),
            },
            Recorded::Relabelled { token, holder } => match self.leases.get_mut(token) {
                Some(lease) if !lease.closing => {
                    lease.holder.clone_from(holder);
                    Ok(())
                }
                _ => Err(("no_resurrection", format!("lease {token} relabelled after its end"))),
            },
            Recorded::Ended { token, how, at, closed_until } => {
                let Some(lease) = self.leases.get_mut(token).filter(|lease| !lease.closing) else {
                    return Err(("exclusion", format!("lease {token} ended twice")));
                };
                let early = *how == End::Lapsed && *at < lease.expires_at;
                let deadline = lease.expires_at;
                if *closed_until > *at {
                    lease.closing = true;
                    lease.expires_at = *closed_until;
                } else {
                    self.leases.remove(token);
                }
                if early {
                    return Err(("never_early", format!("lease {token} lapsed at {at}, its end is {deadline}")));
                }
                Ok(())
            }
            Recorded::Freed { token, name } => {
                let Some(lease) = self.leases.get_mut(token).filter(|lease| !lease.closing) else {
                    return Err(("exclusion", format!("lease {token} freed {name} after its end")));
                };
                let before = lease.wants.len();
                lease.wants.retain(|(held, _)| held != name);
                if lease.wants.len() + 1 != before || lease.wants.is_empty() {
                    return Err(("exclusion", format!("lease {token} freed {name}, which it did not have to give")));
                }
                Ok(())
            }
            Recorded::Reopened { token } => {
                self.leases.remove(token);
                Ok(())
            }
            Recorded::Resumed { at, fresh } => {
                if *fresh {
                    for lease in self.leases.values_mut().filter(|lease| lease.expires_at > *at && !lease.closing) {
                        lease.expires_at = at.saturating_add(lease.ttl).min(lease.cap_at).max(lease.expires_at);
                    }
                }
                Ok(())
            }
        }
    }

    fn follow_grant(&mut self, fact: &Recorded) -> Result<(), BrokenInvariant> {
        let Recorded::Granted { token, wants, expires_at, cap_at, ttl, at, principal, value, holder, .. } = fact else {
            unreachable!("called for grants only")
        };
        let mut broken = None;
        if *token <= self.last_token {
            broken = Some(("token_order", format!("token {token} after {}", self.last_token)));
        }
        if *expires_at > *cap_at || *expires_at > at.saturating_add(*ttl) {
            broken = Some(("cap", format!("lease {token} is granted past its cap or ttl")));
        }
        for (name, mode) in wants {
            if let Err(why) = self.admits(name, *mode) {
                let law = if *mode == Mode::Exclusive { "exclusion" } else { "readers_and_permits" };
                broken = Some((law, format!("{mode:?} on {name} granted with token {token}, but {why}")));
            }
        }
        self.last_token = self.last_token.max(*token);
        let lease = ModelLease {
            wants: wants.clone(),
            expires_at: *expires_at,
            cap_at: *cap_at,
            ttl: *ttl,
            closing: false,
            principal: principal.clone(),
            value: value.clone(),
            holder: holder.clone(),
        };
        self.leases.insert(*token, lease);
        broken.map_or(Ok(()), Err)
    }

    /// How many leases are counted for a principal: those whose resources are still closed too.
    #[must_use]
    pub fn leases_of(&self, principal: &str) -> usize {
        self.leases.values().filter(|lease| lease.principal == principal).count()
    }

    /// The tokens on a resource that somebody has at this moment, in order.
    #[must_use]
    pub fn tokens_on(&self, name: &str, now: u64) -> Vec<u64> {
        let here = |lease: &ModelLease| {
            !lease.closing && lease.expires_at > now && lease.wants.iter().any(|(held, _)| held == name)
        };
        self.leases.iter().filter(|(_, lease)| here(lease)).map(|(token, _)| *token).collect()
    }

    /// The key of this name as somebody may use it who shows this value.
    fn owned(&self, name: &str, value: Option<&str>, now: u64) -> Option<&ModelLease> {
        let lease = &self.leases[self.tokens_on(name, now).first()?];
        let shown = lease.value.as_deref()?;
        value.is_none_or(|value| value == shown).then_some(lease)
    }

    /// A key that was not taken as one cannot be meant without a value.
    fn invalid(&self, keys: &KeyRequest, now: u64) -> bool {
        let plain = |name: &String| self.tokens_on(name, now).iter().any(|token| self.leases[token].value.is_none());
        keys.value.is_none() && keys.names.iter().any(plain)
    }

    /// How many keys a free must free; none if it must be called invalid.
    #[must_use]
    pub fn would_free(&self, keys: &KeyRequest, now: u64) -> Option<usize> {
        let owned = |name: &&String| self.owned(name, keys.value.as_deref(), now).is_some();
        (!self.invalid(keys, now)).then(|| keys.names.iter().filter(owned).count())
    }

    /// How many keys an extend must push; none if it must be called invalid.
    #[must_use]
    pub fn would_extend(&self, keys: &KeyRequest, push: Push, now: u64) -> Option<usize> {
        if self.invalid(keys, now) {
            return None;
        }
        // A caller that does not own all of them is refused first: only the owner learns more.
        let owned: Option<Vec<&ModelLease>> =
            keys.names.iter().map(|name| self.owned(name, keys.value.as_deref(), now)).collect();
        let Some(owned) = owned else { return Some(0) };
        for lease in owned {
            let shorter = matches!(push, Push::Set(ms) if now + ms * 1_000_000 < lease.expires_at);
            if (shorter || keys.value.is_none()) && lease.wants.iter().any(|(held, _)| !keys.names.contains(held)) {
                return None;
            }
        }
        Some(keys.names.len())
    }

    /// Whether anything on these names is over by time and not collected yet.
    #[must_use]
    pub fn is_due(&self, names: &[String], now: u64) -> bool {
        let on = |lease: &ModelLease| lease.wants.iter().any(|(held, _)| names.contains(held));
        self.leases.values().any(|lease| lease.expires_at <= now && on(lease))
    }

    /// Whether the holders leave room; if not, why.
    pub fn admits(&self, name: &str, mode: Mode) -> Result<(), String> {
        let mut permits = 0;
        for (token, lease) in &self.leases {
            for (held, as_mode) in lease.wants.iter().filter(|(held, _)| held == name) {
                match (as_mode, mode) {
                    (Mode::Shared, Mode::Shared) => {}
                    (Mode::Permits { count, .. }, Mode::Permits { .. }) => permits += u64::from(*count),
                    _ => return Err(format!("lease {token} holds {held} as {as_mode:?}")),
                }
            }
        }
        match mode {
            Mode::Permits { count, capacity } if permits + u64::from(count) > u64::from(capacity) => {
                Err(format!("{permits} of {capacity} permits are out"))
            }
            _ => Ok(()),
        }
    }

    /// The first earlier waiting claim that conflicts with this one, if there is one.
    pub fn conflicting_before(&self, wants: &[(String, Mode)], op: OpId, now: u64) -> Option<OpId> {
        for (name, mode) in wants {
            let mut ahead = 0;
            for waiter in self.waiters.iter().take_while(|waiter| waiter.op != op).filter(|w| w.until > now) {
                for (_, other) in waiter.wants.iter().filter(|(other, _)| other == name) {
                    match (other, mode) {
                        (Mode::Shared, Mode::Shared) => {}
                        (Mode::Permits { count: earlier, .. }, Mode::Permits { count, capacity }) => {
                            ahead += u64::from(*earlier);
                            let out = self.permits_out(name);
                            if out + ahead + u64::from(*count) > u64::from(*capacity) {
                                return Some(waiter.op);
                            }
                        }
                        _ => return Some(waiter.op),
                    }
                }
            }
        }
        None
    }

    fn permits_out(&self, name: &str) -> u64 {
        let wants = self.leases.values().flat_map(|lease| &lease.wants);
        wants
            .filter(|(held, _)| held == name)
            .map(|(_, mode)| if let Mode::Permits { count, .. } = mode { u64::from(*count) } else { 0 })
            .sum()
    }

    /// A waiting claim that could be granted and is not. One whose wait ended within this very millisecond
    /// may still block others: deadlines are checked every millisecond.
    pub fn forgotten(&self, now: u64) -> Option<OpId> {
        let looked = now / 1_000_000 * 1_000_000;
        let able = |waiter: &&ModelWaiter| {
            waiter.until > now
                && waiter.wants.iter().all(|(name, mode)| self.admits(name, *mode).is_ok())
                && self.conflicting_before(&waiter.wants, waiter.op, looked).is_none()
        };
        self.waiters.iter().find(able).map(|waiter| waiter.op)
    }
}
