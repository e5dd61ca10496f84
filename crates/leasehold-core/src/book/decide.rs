//! Decides each command: the reply, and the facts. Waiting claims are in [`super::queue`].

use std::borrow::Cow;
use std::time::Duration;

use super::lease::{LeaseEntry, LeasePhase};
use super::state::RowRef;
use super::{Book, due};
use crate::command::{Acquire, Granted, HeldDetails, Mode, Refusal, Renewed, Reply, Want};
use crate::fact::{End, Fact, LeaseRecord, RequestMark, fingerprint};
use crate::time::Time;
use crate::token::{LeaseKey, Secret, Token};

/// How many holders an acquire examines for one that is due.
const MAX_HOLDERS_EXAMINED: usize = 4096;

/// How many leases and waits that are over, on any resource, are ended before a claim is refused or waits; the tick ends the rest.
const MAX_ENDED_BEFORE_REFUSAL: u32 = 1024;

/// How many callers may wait for the reply to one request.
const MAX_JOINED_RETRIES: usize = 64;

/// How many waiters whose wait is over an acquire refuses before it is decided; the tick refuses the rest.
const MAX_WAITERS_DISMISSED: u32 = 1024;

/// What a granted claim needs besides its resources, whether it waited or not.
pub(super) struct GrantTerms<'a> {
    pub ttl_ms: u64,
    pub max_hold_ms: Option<u64>,
    pub delay_ms: u64,
    pub holder: &'a str,
    pub request: Option<RequestMark<'a>>,
    pub secret: Secret,
    pub principal: &'a str,
    pub value: Option<&'a [u8]>,
}

/// Why a claim is not granted.
enum Obstacle {
    /// The slot of a resource that does not admit it.
    Resource(u32),
    /// There are too many leases.
    Quota(Refusal),
}

impl Book {
    pub(super) fn acquire(&mut self, claim: &Acquire<'_>, now: Time) -> Reply {
        if let Err(sentence) = self.limits.check(claim) {
            return Reply::Invalid(sentence);
        }
        let mark = claim.request.map(|request| RequestMark {
            scope: request.scope,
            id: request.id,
            fingerprint: fingerprint(claim.wants, claim.ttl_ms, claim.max_hold_ms, claim.delay_ms),
        });
        if let Some(mark) = mark
            && let Some(reply) = self.repeat(mark, claim, now)
        {
            return reply;
        }
        // Most claims are on one unused name: then there is nothing to end, no queue and no capacity to check.
        let unused = matches!(claim.wants, [want] if !long_path_forced() && self.state.find_name(want.name).is_none());
        if !unused {
            self.collect_due(claim.wants, now);
            if let Err(sentence) = self.check_capacities(claim.wants) {
                return Reply::Invalid(sentence);
            }
        }
        let mut obstacle = self.find_obstacle(claim, unused);
        if obstacle.is_some() && self.next_expiry().is_some_and(|next| next <= now) {
            // What is over on other resources may keep an earlier waiter from its grant, or count as a lease.
            self.tick(MAX_ENDED_BEFORE_REFUSAL, now);
            obstacle = self.find_obstacle(claim, false);
        }
        match obstacle {
            None => {
                let terms = GrantTerms {
                    ttl_ms: claim.ttl_ms,
                    max_hold_ms: claim.max_hold_ms,
                    delay_ms: claim.delay_ms,
                    holder: claim.holder,
                    request: mark,
                    secret: claim.secret,
                    principal: claim.principal,
                    value: claim.value,
                };
                self.grant(claim.wants, &terms, now).map_or(Reply::NoTokens, Reply::Granted)
            }
            Some(Obstacle::Quota(refusal)) => Reply::Refused(refusal),
            Some(Obstacle::Resource(blocked)) if claim.wait_ms == 0 => Reply::Refused(self.held_refusal(blocked, now)),
            Some(Obstacle::Resource(_)) => self.enqueue(claim, mark, now),
        }
    }

    /// What is in the way of a claim. On an unused name nobody can be.
    fn find_obstacle(&self, claim: &Acquire<'_>, unused: bool) -> Option<Obstacle> {
        if !unused && let Some(blocked) = self.first_blocked(claim.wants) {
            return Some(Obstacle::Resource(blocked));
        }
        if self.state.live + self.state.closing >= self.limits.leases {
            return Some(Obstacle::Quota(Refusal::Quota(format!("{} leases", self.limits.leases))));
        }
        self.over_share(claim.principal).map(Obstacle::Quota)
    }

    /// The answer to a request id that was seen before.
    fn repeat(&mut self, mark: RequestMark<'_>, claim: &Acquire<'_>, now: Time) -> Option<Reply> {
        let tag = self.state.request_tag(mark.scope, mark.id);
        if let Some(slot) = self.queue.find_request(tag, mark.scope, mark.id) {
            let waiter = self.queue.get(slot);
            // A wait that is over but not ended yet does not count, and refusals are not stored.
            if waiter.until > now {
                if waiter.request.as_ref().is_some_and(|r| r.fingerprint != mark.fingerprint) {
                    return Some(Reply::Refused(Refusal::Mismatch));
                }
                if waiter.waiter_ids.len() >= MAX_JOINED_RETRIES || self.queue.find_waiter(claim.waiter_id).is_some() {
                    return Some(Reply::Refused(Refusal::QueueFull(claim.wants[0].name.into())));
                }
                self.queue.join(slot, claim.waiter_id, now.plus_millis(claim.wait_ms));
                return Some(Reply::Waiting);
            }
            let parts = self.dismiss(slot, now);
            self.examine_queues(parts, now);
        }
        let (request, key, remaining, cap_at) = match self.state.find_request(mark.scope, mark.id)? {
            RowRef::Lease(slot) => {
                let lease = &self.state.leases[slot as usize];
                let live = lease.phase == LeasePhase::Live && !due(lease, now);
                let remaining = if live { lease.expires_at.since(now) } else { Duration::ZERO };
                (lease.request(), lease.key(), remaining, lease.cap_at)
            }
            RowRef::Ended(row) => {
                let ending = self.state.ended_leases.get(row);
                let token = Token::new(ending.token)?;
                (ending.request.as_deref(), LeaseKey { token, secret: ending.secret }, Duration::ZERO, Time::NEVER)
            }
        };
        if request.is_some_and(|request| request.fingerprint != mark.fingerprint) {
            return Some(Reply::Refused(Refusal::Mismatch));
        }
        Some(Reply::Granted(Granted { lease: key, remaining, renewable: renewable(cap_at, now), repeated: true }))
    }

    fn check_capacities(&self, wants: &[Want<'_>]) -> Result<(), String> {
        for want in wants {
            let Mode::Permits { capacity, .. } = want.mode else { continue };
            let known =
                self.state.find_name(want.name).map_or(0, |slot| self.state.resources[slot as usize].capacity());
            if known != 0 && known != capacity {
                return Err(format!("{} has a capacity of {known} while it is in use, not {capacity}", want.name));
            }
        }
        Ok(())
    }

    /// Ends what is over by time on these resources, so that no claim is refused because of them.
    fn collect_due(&mut self, wants: &[Want<'_>], now: Time) {
        for want in wants {
            let Some(slot) = self.state.find_name(want.name) else { continue };
            let resource = &self.state.resources[slot as usize];
            // Holders are examined only when they block the claim, keep an earlier waiter that blocks it from its grant, or
            // fix another capacity.
            let agreed = match want.mode {
                Mode::Permits { capacity, .. } => [0, capacity].contains(&resource.capacity()),
                _ => true,
            };
            if agreed && resource.grants_at_once(want.mode) {
                continue;
            }
            // The wheel says, to the millisecond, when the next lease is due. The number examined is bounded as a tick
            // is; the tick ends the rest.
            let next = self.state.wheel.next().map_or(u64::MAX, Time::as_nanos);
            if next >= now.as_nanos().saturating_add(1_000_000) {
                continue;
            }
            let dead: Vec<u32> = resource
                .holders()
                .take(MAX_HOLDERS_EXAMINED)
                .filter(|holder| due(&self.state.leases[*holder as usize], now))
                .collect();
            for holder in dead {
                self.end_by_time(holder, now);
            }
        }
        self.examine_todo(now);
        // A claim whose wait is over blocks nobody, even before it is refused.
        if self.queue.len() > 0 {
            let mut budget = MAX_WAITERS_DISMISSED;
            self.dismiss_due(&mut budget, now);
        }
    }

    /// The first resource that does not admit the claim now, or has an earlier claim before it.
    fn first_blocked(&self, wants: &[Want<'_>]) -> Option<u32> {
        wants.iter().find_map(|want| {
            let slot = self.state.find_name(want.name)?;
            (!self.state.resources[slot as usize].grants_at_once(want.mode)).then_some(slot)
        })
    }

    pub(super) fn grant(&mut self, wants: &[Want<'_>], terms: &GrantTerms<'_>, now: Time) -> Option<Granted> {
        if self.tokens_left() == 0 {
            return None;
        }
        let token = Token::new(self.state.last_token + 1)?;
        let cap_at = terms.max_hold_ms.map_or(Time::NEVER, |ms| now.plus_millis(ms));
        let expires_at = now.plus_millis(terms.ttl_ms).min(cap_at);
        self.record(&Fact::Granted(LeaseRecord {
            token,
            secret: terms.secret,
            granted_at: now,
            expires_at,
            cap_at,
            ttl_ms: terms.ttl_ms as u32,
            delay_ms: terms.delay_ms as u32,
            holder: Cow::Borrowed(terms.holder),
            request: terms.request,
            principal: terms.principal,
            value: terms.value,
            wants: Cow::Borrowed(wants),
        }));
        Some(Granted {
            lease: LeaseKey { token, secret: terms.secret },
            remaining: expires_at.since(now),
            renewable: renewable(cap_at, now),
            repeated: false,
        })
    }

    /// No fact comes of it: the ceiling is what makes a floor durable.
    pub(super) fn ask_floor(&mut self, raise: Option<Token>) -> Reply {
        if raise > Some(Token::MAX_FLOOR) {
            return Reply::Invalid(format!("a floor is at most {}: too few tokens would be left", Token::MAX_FLOOR));
        }
        self.floor = self.floor.max(raise.map_or(0, Token::get));
        // Before the first grant there is no token at or below which none will come: then it is the first one.
        Reply::Floor(Token::new(self.floor.max(self.state.last_token)).unwrap_or(Token::MIN))
    }

    pub(super) fn renew(&mut self, key: LeaseKey, ttl_ms: Option<u64>, now: Time) -> Reply {
        if let Some(ttl_ms) = ttl_ms
            && let Err(sentence) = self.limits.check_ttl(ttl_ms)
        {
            return Reply::Invalid(sentence);
        }
        let slot = match self.find_live(key, now) {
            Ok(slot) => slot,
            Err((refusal, _)) => return Reply::Refused(refusal),
        };
        let lease = &self.state.leases[slot as usize];
        let ttl_ms = ttl_ms.map_or(lease.ttl_ms, |ms| ms as u32);
        let cap_at = lease.cap_at;
        let expires_at = now.plus_millis(ttl_ms.into()).min(cap_at);
        self.record(&Fact::Renewed { token: key.token, expires_at, ttl_ms });
        Reply::Renewed(Renewed { remaining: expires_at.since(now), renewable: renewable(cap_at, now) })
    }

    pub(super) fn relabel(&mut self, key: LeaseKey, holder: &str, now: Time) -> Reply {
        if let Err(sentence) = self.limits.check_holder(holder) {
            return Reply::Invalid(sentence);
        }
        match self.find_live(key, now) {
            Ok(_) => {
                self.record(&Fact::Relabelled { token: key.token, holder });
                Reply::Relabelled
            }
            Err((refusal, _)) => Reply::Refused(refusal),
        }
    }

    pub(super) fn release(&mut self, key: LeaseKey, now: Time) -> Reply {
        match self.find_live(key, now) {
            Ok(slot) => {
                self.end_lease(slot, End::Released, "", now);
                self.examine_todo(now);
                Reply::Released(true)
            }
            Err((Refusal::Stale, Some(End::Released))) => Reply::Released(false),
            Err((refusal, _)) => Reply::Refused(refusal),
        }
    }

    /// The live lease that this key opens; or the refusal, and how the lease ended if that is known.
    ///
    /// A wrong secret and an unknown token are one answer: nobody learns which tokens are live by guessing.
    fn find_live(&mut self, key: LeaseKey, now: Time) -> Result<u32, (Refusal, Option<End>)> {
        let unknown = (Refusal::NotHeld, None);
        match self.state.find_token(key.token.get()) {
            None => Err(unknown),
            Some(RowRef::Ended(row)) => {
                let ending = self.state.ended_leases.get(row);
                if !ending.secret.matches(&key.secret) {
                    return Err(unknown);
                }
                Err((Refusal::Stale, Some(ending.how)))
            }
            Some(RowRef::Lease(slot)) => {
                let lease = &self.state.leases[slot as usize];
                if !lease.secret.matches(&key.secret) {
                    return Err(unknown);
                }
                if lease.phase == LeasePhase::Closing {
                    return Err((Refusal::Stale, Some(End::Lapsed)));
                }
                if due(lease, now) {
                    self.end_by_time(slot, now);
                    self.examine_todo(now);
                    return Err((Refusal::Stale, Some(End::Lapsed)));
                }
                Ok(slot)
            }
        }
    }

    pub(super) fn revoke(&mut self, name: &str, reason: &str, now: Time) -> Reply {
        if let Err(sentence) = self.limits.check_name(name) {
            return Reply::Invalid(sentence);
        }
        if reason.trim().is_empty() || reason.len() > self.limits.holder_bytes {
            return Reply::Invalid(format!("a revoke gives a reason of 1 to {} bytes", self.limits.holder_bytes));
        }
        let Some(resource) = self.state.find_name(name) else { return Reply::Revoked(0) };
        let holders: Vec<u32> = self.state.resources[resource as usize].holders().collect();
        let mut ended = 0;
        for slot in holders {
            let lease = &self.state.leases[slot as usize];
            if lease.phase == LeasePhase::Live && !due(lease, now) {
                self.end_lease(slot, End::Revoked, reason, now);
                ended += 1;
            } else {
                // An operator who wants it free does not wait out a closing delay.
                if lease.phase == LeasePhase::Live {
                    self.end_by_time(slot, now);
                }
                if self.state.leases[slot as usize].phase == LeasePhase::Closing {
                    self.reopen(slot);
                }
            }
        }
        self.examine_todo(now);
        Reply::Revoked(ended)
    }

    pub(super) fn tick(&mut self, mut budget: u32, now: Time) -> Reply {
        self.examine_todo(now);
        loop {
            let leases = &self.state.leases;
            let Some(slot) = self.state.wheel.pop(now, &mut budget, |slot| deadline(&leases[slot as usize])) else {
                break;
            };
            match self.state.leases[slot as usize].phase {
                LeasePhase::Closing => self.reopen(slot),
                _ => self.end_by_time(slot, now),
            }
            self.examine_todo(now);
        }
        self.dismiss_due(&mut budget, now);
        Reply::Ticked(self.next_expiry().is_some_and(|next| next <= now))
    }

    pub(super) fn end_by_time(&mut self, slot: u32, now: Time) {
        if self.state.leases[slot as usize].phase == LeasePhase::Closing {
            self.reopen(slot);
        } else {
            self.end_lease(slot, End::Lapsed, "", now);
        }
    }

    pub(super) fn end_lease(&mut self, slot: u32, how: End, reason: &str, now: Time) {
        let lease = &self.state.leases[slot as usize];
        let closed_until = match how {
            // Counted from the deadline, not from when it was noticed.
            End::Lapsed if lease.delay_ms > 0 => lease.expires_at.plus_millis(lease.delay_ms.into()),
            _ => Time::ZERO,
        };
        let token = lease.token();
        self.todo.extend(lease.parts.as_slice().iter().map(|part| part.resource));
        self.record(&Fact::Ended { token, how, at: now, closed_until, reason });
    }

    fn reopen(&mut self, slot: u32) {
        let lease = &self.state.leases[slot as usize];
        let token = lease.token();
        self.todo.extend(lease.parts.as_slice().iter().map(|part| part.resource));
        self.record(&Fact::Reopened { token });
    }

    /// The refusal of one more lease for this principal, if it has its share.
    pub(super) fn over_share(&self, principal: &str) -> Option<Refusal> {
        let most = self.limits.leases_per_principal;
        let full = self.state.principals.leases(principal) >= most;
        full.then(|| Refusal::Quota(format!("{most} leases of one key")))
    }

    pub(super) fn held_refusal(&self, slot: u32, now: Time) -> Refusal {
        let resource = &self.state.resources[slot as usize];
        let holder = resource
            .holders()
            .map(|holder| &self.state.leases[holder as usize])
            .find(|lease| lease.phase == LeasePhase::Live && !due(lease, now));
        Refusal::Held(Box::new(HeldDetails {
            resource: resource.name.as_str().into(),
            holder: holder.map(|lease| lease.holder.as_str().into()),
            token: holder.map(LeaseEntry::token),
            remaining: holder.map(|lease| lease.expires_at.since(now)),
            queue_len: resource.queue_len(),
        }))
    }
}

/// Tests compare the short path with the long one.
#[cfg(test)]
fn long_path_forced() -> bool {
    super::long_path_tests::forced()
}

#[cfg(not(test))]
const fn long_path_forced() -> bool {
    false
}

/// When the wheel should return a lease.
fn deadline(lease: &LeaseEntry) -> Time {
    lease.expires_at
}

fn renewable(cap_at: Time, now: Time) -> Option<Duration> {
    (cap_at != Time::NEVER).then(|| cap_at.since(now))
}
