//! Decide: each command, what it is answered, and which facts come of it.

use std::borrow::Cow;
use std::time::Duration;

use compact_str::CompactString;

use super::lease::{Lease, Phase, Request};
use super::line::Waiter;
use super::resource::{Demand, Place, Use};
use super::state::Row;
use super::{Book, due};
use crate::command::{Acquire, Effect, Granted, Held, Mode, Refusal, Renewed, Reply, Ticket, Want};
use crate::fact::{End, Fact, LeaseRecord, RequestMark, fingerprint};
use crate::planted::{self, Bug};
use crate::time::Time;
use crate::token::{LeaseKey, Secret, Token};

/// How many holders an acquire looks through for one that is over.
const LOOK_AT_ONCE: usize = 4096;

/// How many callers may wait for the answer to one request.
const JOINED: usize = 64;

/// How many impatient waiters an acquire sends home before it is decided; the tick takes the rest.
const DISMISS_AT_ONCE: u32 = 1024;

/// What a granted claim needs besides its resources: the same for one that came and one that waited.
struct Terms<'a> {
    ttl_ms: u64,
    max_hold_ms: Option<u64>,
    delay_ms: u64,
    holder: &'a str,
    request: Option<RequestMark<'a>>,
    secret: Secret,
    principal: &'a str,
    value: Option<&'a [u8]>,
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
        // Most claims are on one name that nobody uses: then there is nothing to look at twice.
        let unused = matches!(claim.wants, [want] if !long_way() && self.state.find_name(want.name).is_none());
        if !unused {
            self.collect_due(claim.wants, now);
            if let Err(sentence) = self.check_capacities(claim.wants) {
                return Reply::Invalid(sentence);
            }
        }
        let blocked = if unused { None } else { self.first_blocked(claim.wants) };
        let Some(blocked) = blocked else {
            if self.state.live + self.state.closing >= self.limits.leases {
                return Reply::Refused(Refusal::Quota(format!("{} leases", self.limits.leases)));
            }
            if let Some(refusal) = self.over_share(claim.principal) {
                return Reply::Refused(refusal);
            }
            let terms = Terms {
                ttl_ms: claim.ttl_ms,
                max_hold_ms: claim.max_hold_ms,
                delay_ms: claim.delay_ms,
                holder: claim.holder,
                request: mark,
                secret: claim.secret,
                principal: claim.principal,
                value: claim.value,
            };
            return self.grant(claim.wants, &terms, now).map_or(Reply::NoTokens, Reply::Granted);
        };
        if claim.wait_ms == 0 {
            return Reply::Refused(self.held(blocked, now));
        }
        self.enqueue(claim, mark, now)
    }

    /// The answer to a request id that was seen before.
    fn repeat(&mut self, mark: RequestMark<'_>, claim: &Acquire<'_>, now: Time) -> Option<Reply> {
        if planted::on(Bug::ForgetRequest) {
            return None;
        }
        let tag = self.state.request_tag(mark.scope, mark.id);
        if !planted::on(Bug::DoubleEnqueue)
            && let Some(slot) = self.line.find_request(tag, mark.scope, mark.id)
        {
            let waiter = self.line.get(slot);
            // Patience that is over but not collected yet: that place in line is gone, and refusals are not stored.
            if waiter.until > now {
                if waiter.request.as_ref().is_some_and(|r| r.fingerprint != mark.fingerprint) {
                    return Some(Reply::Refused(Refusal::Mismatch));
                }
                if waiter.tickets.len() >= JOINED || self.line.find_ticket(claim.ticket).is_some() {
                    return Some(Reply::Refused(Refusal::QueueFull(claim.wants[0].name.into())));
                }
                self.line.join(slot, claim.ticket, now.plus_millis(claim.wait_ms));
                return Some(Reply::Waiting);
            }
            let parts = self.dismiss(slot, now);
            self.serve(parts, now);
        }
        let (request, key, remaining, cap_at) = match self.state.find_request(mark.scope, mark.id)? {
            Row::Lease(slot) => {
                let lease = &self.state.leases[slot as usize];
                let live = lease.phase == Phase::Live && !due(lease, now);
                let remaining = if live { lease.expires_at.since(now) } else { Duration::ZERO };
                (lease.request(), lease.key(), remaining, lease.cap_at)
            }
            Row::Ending(row) => {
                let ending = self.state.endings.get(row);
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

    /// Ends what is over by time on these resources, so that nobody is refused because of the dead.
    fn collect_due(&mut self, wants: &[Want<'_>], now: Time) {
        for want in wants {
            let Some(slot) = self.state.find_name(want.name) else { continue };
            let resource = &self.state.resources[slot as usize];
            // A crowd of holders is looked through only when it is in the way, or fixes another capacity.
            let agreed = match want.mode {
                Mode::Permits { capacity, .. } => [0, capacity].contains(&resource.capacity()),
                _ => true,
            };
            if agreed && resource.admits(want.mode) {
                continue;
            }
            // Nobody is due before the wheel says so, to the millisecond; and a crowd has its limit, for the same
            // reason that a tick has one: the tick takes the rest.
            let next = self.state.wheel.next().map_or(u64::MAX, Time::as_nanos);
            if next >= now.as_nanos().saturating_add(1_000_000) {
                continue;
            }
            let dead: Vec<u32> = resource
                .holders()
                .take(LOOK_AT_ONCE)
                .filter(|holder| due(&self.state.leases[*holder as usize], now))
                .collect();
            for holder in dead {
                self.end_by_time(holder, now);
            }
        }
        self.serve_todo(now);
        // A claim whose patience is over is in nobody's way, collected or not.
        if self.line.len() > 0 {
            let mut budget = DISMISS_AT_ONCE;
            self.dismiss_due(&mut budget, now);
        }
    }

    /// The first resource that does not admit the claim now, or has an earlier claim before it.
    fn first_blocked(&self, wants: &[Want<'_>]) -> Option<u32> {
        wants.iter().find_map(|want| {
            let slot = self.state.find_name(want.name)?;
            let resource = &self.state.resources[slot as usize];
            let free = resource.admits(want.mode) && !resource.demand().blocks(want.mode, resource.held());
            (!free).then_some(slot)
        })
    }

    fn grant(&mut self, wants: &[Want<'_>], terms: &Terms<'_>, now: Time) -> Option<Granted> {
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

    fn enqueue(&mut self, claim: &Acquire<'_>, mark: Option<RequestMark<'_>>, now: Time) -> Reply {
        let full = |name: &str| Reply::Refused(Refusal::QueueFull(name.into()));
        if self.line.len() >= self.limits.waiters {
            return full(claim.wants[0].name);
        }
        for want in claim.wants {
            let queue = self.state.find_name(want.name).map_or(0, |s| self.state.resources[s as usize].queue_len());
            if queue >= self.limits.waiters_per_resource {
                return full(want.name);
            }
        }
        if self.line.waiting_of(claim.principal) >= self.limits.waiters_per_principal {
            let most = self.limits.waiters_per_principal;
            return Reply::Refused(Refusal::Quota(format!("{most} waiters of one key")));
        }
        if self.line.find_ticket(claim.ticket).is_some() {
            return Reply::Invalid("a ticket is used once".into());
        }
        let arrival = self.line.take_arrival();
        let parts: Vec<(u32, Mode)> =
            claim.wants.iter().map(|want| (self.state.open_resource(want.name), want.mode)).collect();
        let tag = mark.map(|mark| self.state.request_tag(mark.scope, mark.id));
        let waiter = self.line.add(
            Waiter {
                arrival,
                tickets: vec![claim.ticket],
                parts: parts.clone(),
                ttl_ms: claim.ttl_ms,
                max_hold_ms: claim.max_hold_ms,
                delay_ms: claim.delay_ms,
                holder: claim.holder.into(),
                request: mark.map(Request::from_mark),
                secret: claim.secret,
                principal: claim.principal.into(),
                since: now,
                until: now.plus_millis(claim.wait_ms),
            },
            tag,
        );
        for (resource, mode) in parts {
            self.state.resources[resource as usize].join_line(Place { arrival, waiter }, mode);
        }
        Reply::Waiting
    }

    pub(super) fn renew(&mut self, key: LeaseKey, ttl_ms: Option<u64>, now: Time) -> Reply {
        if let Some(ttl_ms) = ttl_ms
            && let Err(sentence) = self.limits.check_ttl(ttl_ms)
        {
            return Reply::Invalid(sentence);
        }
        let slot = match self.live(key, now) {
            Ok(slot) => slot,
            Err((refusal, _)) => return Reply::Refused(refusal),
        };
        let lease = &self.state.leases[slot as usize];
        let ttl_ms = ttl_ms.map_or(lease.ttl_ms, |ms| ms as u32);
        let cap_at = if planted::on(Bug::IgnoreCap) { Time::NEVER } else { lease.cap_at };
        let expires_at = now.plus_millis(ttl_ms.into()).min(cap_at);
        self.record(&Fact::Renewed { token: key.token, expires_at, ttl_ms });
        Reply::Renewed(Renewed { remaining: expires_at.since(now), renewable: renewable(cap_at, now) })
    }

    pub(super) fn release(&mut self, key: LeaseKey, now: Time) -> Reply {
        match self.live(key, now) {
            Ok(slot) => {
                self.end(slot, End::Released, "", now);
                self.serve_todo(now);
                Reply::Released(true)
            }
            Err((Refusal::Stale, Some(End::Released))) => Reply::Released(false),
            Err((Refusal::Stale, _)) if planted::on(Bug::ReleaseSuccessor) => {
                let live = |lease: &&Lease| lease.phase == Phase::Live && lease.token > key.token.get();
                let successor = self.state.leases.iter().filter(live).min_by_key(|lease| lease.token);
                if let Some(slot) = successor.and_then(|lease| self.state.find_token(lease.token))
                    && let Row::Lease(slot) = slot
                {
                    self.end(slot, End::Released, "", now);
                    self.serve_todo(now);
                }
                Reply::Refused(Refusal::Stale)
            }
            Err((refusal, _)) => Reply::Refused(refusal),
        }
    }

    /// The live lease that this key opens; or the refusal, and how the lease ended if that is known.
    ///
    /// A wrong secret and an unknown token are one answer: nobody learns which tokens are live by guessing.
    fn live(&mut self, key: LeaseKey, now: Time) -> Result<u32, (Refusal, Option<End>)> {
        let unknown = (Refusal::NotHeld, None);
        let any = planted::on(Bug::AnySecret);
        match self.state.find_token(key.token.get()) {
            None => Err(unknown),
            Some(Row::Ending(row)) => {
                let ending = self.state.endings.get(row);
                if !ending.secret.matches(&key.secret) {
                    return Err(unknown);
                }
                Err((Refusal::Stale, Some(ending.how)))
            }
            Some(Row::Lease(slot)) => {
                let lease = &self.state.leases[slot as usize];
                if !any && !lease.secret.matches(&key.secret) {
                    return Err(unknown);
                }
                if lease.phase == Phase::Closing {
                    return Err((Refusal::Stale, Some(End::Lapsed)));
                }
                if due(lease, now) && !planted::on(Bug::ReviveDue) {
                    self.end_by_time(slot, now);
                    self.serve_todo(now);
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
            if lease.phase == Phase::Live && !due(lease, now) {
                self.end(slot, End::Revoked, reason, now);
                ended += 1;
            } else {
                // An operator who wants it free does not wait out a closing delay.
                if lease.phase == Phase::Live {
                    self.end_by_time(slot, now);
                }
                if self.state.leases[slot as usize].phase == Phase::Closing {
                    self.reopen(slot);
                }
            }
        }
        self.serve_todo(now);
        Reply::Revoked(ended)
    }

    pub(super) fn cancel(&mut self, ticket: Ticket, now: Time) -> Reply {
        let Some(slot) = self.line.find_ticket(ticket) else { return Reply::Cancelled(false) };
        if planted::on(Bug::GhostGrant) {
            return Reply::Cancelled(true);
        }
        if self.line.leave(slot, ticket) {
            let parts = self.leave_line(slot).parts;
            let freed = parts.into_iter().map(|(resource, _)| resource).collect();
            if planted::on(Bug::LoseBaton) {
                return Reply::Cancelled(true);
            }
            self.serve(freed, now);
        }
        Reply::Cancelled(true)
    }

    pub(super) fn tick(&mut self, mut budget: u32, now: Time) -> Reply {
        self.serve_todo(now);
        loop {
            let leases = &self.state.leases;
            let Some(slot) = self.state.wheel.pop(now, &mut budget, |slot| deadline(&leases[slot as usize])) else {
                break;
            };
            match self.state.leases[slot as usize].phase {
                Phase::Closing => self.reopen(slot),
                _ => self.end_by_time(slot, now),
            }
            self.serve_todo(now);
        }
        self.dismiss_due(&mut budget, now);
        Reply::Ticked(self.next_expiry().is_some_and(|next| next <= now))
    }

    fn dismiss_due(&mut self, budget: &mut u32, now: Time) {
        while let Some(slot) = self.line.pop_due(now, budget) {
            let freed = self.dismiss(slot, now);
            self.serve(freed, now);
        }
    }

    pub(super) fn end_by_time(&mut self, slot: u32, now: Time) {
        if self.state.leases[slot as usize].phase == Phase::Closing {
            self.reopen(slot);
        } else {
            self.end(slot, End::Lapsed, "", now);
        }
    }

    pub(super) fn end(&mut self, slot: u32, how: End, reason: &str, now: Time) {
        let lease = &self.state.leases[slot as usize];
        let closed_until = match how {
            // Counted from the deadline, not from when somebody looked.
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
    fn over_share(&self, principal: &str) -> Option<Refusal> {
        let most = self.limits.leases_per_principal;
        let full = self.state.principals.leases(principal) >= most;
        full.then(|| Refusal::Quota(format!("{most} leases of one key")))
    }

    pub(super) fn serve_todo(&mut self, now: Time) {
        if !self.todo.is_empty() {
            let todo = std::mem::take(&mut self.todo);
            self.serve(todo, now);
        }
    }

    /// Looks at the queues of resources on which something was freed, and grants what has become possible.
    ///
    /// Nothing else can have become possible: a grant out of the queue is at least as much in the way of the
    /// others as the waiting claim was.
    fn serve(&mut self, mut todo: Vec<u32>, now: Time) {
        while let Some(resource) = todo.pop() {
            let mut ahead = Demand::default();
            let mut at = 0;
            while let Some(place) = self.state.resources[resource as usize].place(at) {
                let held = self.state.resources[resource as usize].held();
                if held == Use::Exclusive || ahead.exclusive > 0 {
                    break;
                }
                if self.line.until(place.waiter) <= now {
                    todo.extend(self.dismiss(place.waiter, now));
                    continue;
                }
                if self.grantable(place, resource, &ahead) {
                    if self.tokens_left() == 0 {
                        // Looked at again as soon as the shell has reserved more.
                        self.todo.push(resource);
                        self.todo.append(&mut todo);
                        return;
                    }
                    self.grant_waiter(place.waiter, &mut todo, now);
                    continue;
                }
                let mode = self.mode_on(place.waiter, resource);
                ahead.add(mode);
                at += 1;
            }
            self.state.close_resource_if_idle(resource);
        }
    }

    fn mode_on(&self, waiter: u32, resource: u32) -> Mode {
        let parts = &self.line.get(waiter).parts;
        parts.iter().find(|(slot, _)| *slot == resource).map_or(Mode::Exclusive, |(_, mode)| *mode)
    }

    /// Whether every resource admits the waiting claim and no earlier one conflicts with it on any of them.
    ///
    /// `ahead` adds up the earlier claims on the resource being served. The other queues are walked only when every
    /// resource has room: ten thousand claims that wait for something else must not be walked for each of them.
    fn grantable(&self, place: Place, served: u32, ahead: &Demand) -> bool {
        let parts = &self.line.get(place.waiter).parts;
        if !parts.iter().all(|(slot, mode)| self.state.resources[*slot as usize].admits(*mode)) {
            return false;
        }
        parts.iter().all(|(slot, mode)| {
            let resource = &self.state.resources[*slot as usize];
            if *slot == served {
                return !ahead.blocks(*mode, resource.held());
            }
            let mut ahead = Demand::default();
            for earlier in resource.line().take_while(|earlier| earlier.arrival < place.arrival) {
                ahead.add(self.mode_on(earlier.waiter, *slot));
                if ahead.blocks(*mode, resource.held()) {
                    return false;
                }
            }
            true
        })
    }

    fn grant_waiter(&mut self, slot: u32, todo: &mut Vec<u32>, now: Time) {
        let waiter = self.leave_line(slot);
        if self.state.live + self.state.closing >= self.limits.leases {
            todo.extend(waiter.parts.iter().map(|(resource, _)| *resource));
            let refusal = Refusal::Quota(format!("{} leases", self.limits.leases));
            return self.answer(waiter.tickets, Reply::Refused(refusal));
        }
        if let Some(refusal) = self.over_share(&waiter.principal) {
            todo.extend(waiter.parts.iter().map(|(resource, _)| *resource));
            return self.answer(waiter.tickets, Reply::Refused(refusal));
        }
        let names: Vec<CompactString> =
            waiter.parts.iter().map(|(slot, _)| self.state.resources[*slot as usize].name.clone()).collect();
        let wants: Vec<Want<'_>> =
            names.iter().zip(&waiter.parts).map(|(name, (_, mode))| Want { name, mode: *mode }).collect();
        let terms = Terms {
            ttl_ms: waiter.ttl_ms,
            max_hold_ms: waiter.max_hold_ms,
            delay_ms: waiter.delay_ms,
            holder: &waiter.holder,
            request: waiter.request.as_ref().map(|request| request.mark()),
            secret: waiter.secret,
            principal: &waiter.principal,
            value: None,
        };
        if let Some(granted) = self.grant(&wants, &terms, now) {
            self.answer(waiter.tickets, Reply::Granted(granted));
        }
    }

    /// Tells a waiter that its patience is over. Says which resources it stood in line for.
    fn dismiss(&mut self, slot: u32, now: Time) -> Vec<u32> {
        let waiter = self.line.get(slot);
        let arrival = waiter.arrival;
        let blocked = waiter.parts.iter().find(|(slot, mode)| {
            let resource = &self.state.resources[*slot as usize];
            !resource.admits(*mode) || resource.place(0).is_some_and(|first| first.arrival < arrival)
        });
        let blocked = blocked.unwrap_or(&waiter.parts[0]).0;
        let waiter = self.leave_line(slot);
        let refusal = self.held(blocked, now);
        self.answer(waiter.tickets, Reply::Refused(refusal));
        waiter.parts.into_iter().map(|(resource, _)| resource).collect()
    }

    /// Takes a waiter out of the line and out of every queue. Its resources stay open until served.
    fn leave_line(&mut self, slot: u32) -> Waiter {
        let state = &self.state;
        let waiter = self.line.take(slot, |request| state.request_tag(&request.scope, &request.id));
        for (resource, mode) in &waiter.parts {
            self.state.resources[*resource as usize].leave_line(waiter.arrival, *mode);
        }
        waiter
    }

    fn answer(&mut self, tickets: Vec<Ticket>, reply: Reply) {
        let mut tickets = tickets.into_iter();
        let Some(first) = tickets.next() else { return };
        for ticket in tickets {
            let reply = match &reply {
                Reply::Granted(granted) => Reply::Granted(*granted),
                Reply::Refused(refusal) => Reply::Refused(refusal.clone()),
                _ => unreachable!("a waiter is granted or refused"),
            };
            self.effects.push(Effect { ticket, reply });
        }
        self.effects.push(Effect { ticket: first, reply });
    }

    fn held(&self, slot: u32, now: Time) -> Refusal {
        let resource = &self.state.resources[slot as usize];
        let holder = resource
            .holders()
            .map(|holder| &self.state.leases[holder as usize])
            .find(|lease| lease.phase == Phase::Live && !due(lease, now));
        Refusal::Held(Box::new(Held {
            resource: resource.name.as_str().into(),
            holder: holder.map(|lease| lease.holder.as_str().into()),
            token: holder.map(Lease::token),
            remaining: holder.map(|lease| lease.expires_at.since(now)),
            queue_len: resource.queue_len(),
        }))
    }
}

/// Tests compare the two ways.
#[cfg(test)]
fn long_way() -> bool {
    super::long_way::on()
}

#[cfg(not(test))]
const fn long_way() -> bool {
    false
}

/// When the wheel should bring a lease up.
fn deadline(lease: &Lease) -> Time {
    if planted::on(Bug::LapseEarly) {
        return Time::from_nanos(lease.expires_at.as_nanos().saturating_sub(u64::from(lease.ttl_ms) * 125_000));
    }
    lease.expires_at
}

fn renewable(cap_at: Time, now: Time) -> Option<Duration> {
    (cap_at != Time::NEVER).then(|| cap_at.since(now))
}
