//! Waiting claims: joining a queue, leaving it, and granting when something was freed.
//!
//! # Laws
//!
//! 1. A waiting claim is granted when every resource admits it and no earlier one conflicts with it on any of them.
//! 2. When a claim leaves its queues (granted, cancelled or timed out), those queues are re-examined.
//!
//! # Not here
//!
//! Where waiters are stored ([`super::waiters`]), and how a claim is granted ([`super::decide`]).

use compact_str::CompactString;

use super::Book;
use super::decide::GrantTerms;
use super::lease::StoredRequest;
use super::resource::{Demand, QueuePlace, Use};
use super::waiters::WaiterEntry;
use crate::command::{Acquire, Effect, Mode, Refusal, Reply, WaiterId, Want};
use crate::fact::RequestMark;
use crate::time::Time;

impl Book {
    pub(super) fn enqueue(&mut self, claim: &Acquire<'_>, mark: Option<RequestMark<'_>>, now: Time) -> Reply {
        let full = |name: &str| Reply::Refused(Refusal::QueueFull(name.into()));
        if self.queue.len() >= self.limits.waiters {
            return full(claim.wants[0].name);
        }
        for want in claim.wants {
            let queue = self.state.find_name(want.name).map_or(0, |s| self.state.resources[s as usize].queue_len());
            if queue >= self.limits.waiters_per_resource {
                return full(want.name);
            }
        }
        if self.queue.waiting_of(claim.principal) >= self.limits.waiters_per_principal {
            let most = self.limits.waiters_per_principal;
            return Reply::Refused(Refusal::Quota(format!("{most} waiters of one key")));
        }
        if self.queue.find_waiter(claim.waiter_id).is_some() {
            return Reply::Invalid("a waiter_id is used once".into());
        }
        let arrival = self.queue.take_arrival();
        let parts: Vec<(u32, Mode)> =
            claim.wants.iter().map(|want| (self.state.open_resource(want.name), want.mode)).collect();
        let tag = mark.map(|mark| self.state.request_tag(mark.scope, mark.id));
        let waiter = self.queue.add(
            WaiterEntry {
                arrival,
                waiter_ids: vec![claim.waiter_id],
                parts: parts.clone(),
                ttl_ms: claim.ttl_ms,
                max_hold_ms: claim.max_hold_ms,
                delay_ms: claim.delay_ms,
                holder: claim.holder.into(),
                request: mark.map(StoredRequest::from_mark),
                secret: claim.secret,
                principal: claim.principal.into(),
                since: now,
                until: now.plus_millis(claim.wait_ms),
            },
            tag,
        );
        for (resource, mode) in parts {
            self.state.resources[resource as usize].join_queue(QueuePlace { arrival, waiter }, mode);
        }
        Reply::Waiting
    }

    pub(super) fn cancel(&mut self, waiter_id: WaiterId, now: Time) -> Reply {
        let Some(slot) = self.queue.find_waiter(waiter_id) else { return Reply::Cancelled(false) };
        if self.queue.leave_joined(slot, waiter_id) {
            let parts = self.leave_queue(slot).parts;
            let freed = parts.into_iter().map(|(resource, _)| resource).collect();
            self.examine_queues(freed, now);
        }
        Reply::Cancelled(true)
    }

    pub(super) fn dismiss_due(&mut self, budget: &mut u32, now: Time) {
        while let Some(slot) = self.queue.pop_due(now, budget) {
            let freed = self.dismiss(slot, now);
            self.examine_queues(freed, now);
        }
    }

    pub(super) fn examine_todo(&mut self, now: Time) {
        if !self.todo.is_empty() {
            let todo = std::mem::take(&mut self.todo);
            self.examine_queues(todo, now);
        }
    }

    /// Examines the queues of resources on which something was freed, and grants what has become possible.
    ///
    /// No other queue needs it: a granted claim blocks at least as much as the same claim did while it waited.
    pub(super) fn examine_queues(&mut self, mut todo: Vec<u32>, now: Time) {
        while let Some(resource) = todo.pop() {
            let mut ahead = Demand::default();
            let mut at = 0;
            while let Some(place) = self.state.resources[resource as usize].place(at) {
                let held = self.state.resources[resource as usize].current_use();
                if held == Use::Exclusive || ahead.exclusive > 0 {
                    break;
                }
                if self.queue.until(place.waiter) <= now {
                    todo.extend(self.dismiss(place.waiter, now));
                    continue;
                }
                if self.grantable(place, resource, &ahead) {
                    if self.tokens_left() == 0 {
                        // Examined again when the shell has reserved more tokens.
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
        let parts = &self.queue.get(waiter).parts;
        parts.iter().find(|(slot, _)| *slot == resource).map_or(Mode::Exclusive, |(_, mode)| *mode)
    }

    /// Whether every resource admits the waiting claim and no earlier one conflicts with it on any of them.
    ///
    /// `ahead` adds up the earlier claims in the queue being examined. The other queues are walked only when every
    /// resource has room: otherwise each of ten thousand waiting claims would walk all others.
    fn grantable(&self, place: QueuePlace, served: u32, ahead: &Demand) -> bool {
        let parts = &self.queue.get(place.waiter).parts;
        if !parts.iter().all(|(slot, mode)| self.state.resources[*slot as usize].admits(*mode)) {
            return false;
        }
        parts.iter().all(|(slot, mode)| {
            let resource = &self.state.resources[*slot as usize];
            if *slot == served {
                return !ahead.blocks(*mode, resource.current_use());
            }
            let mut ahead = Demand::default();
            for earlier in resource.queue().take_while(|earlier| earlier.arrival < place.arrival) {
                ahead.add(self.mode_on(earlier.waiter, *slot));
                if ahead.blocks(*mode, resource.current_use()) {
                    return false;
                }
            }
            true
        })
    }

    fn grant_waiter(&mut self, slot: u32, todo: &mut Vec<u32>, now: Time) {
        let waiter = self.leave_queue(slot);
        if self.state.live + self.state.closing >= self.limits.leases {
            todo.extend(waiter.parts.iter().map(|(resource, _)| *resource));
            let refusal = Refusal::Quota(format!("{} leases", self.limits.leases));
            return self.reply_to_waiters(waiter.waiter_ids, Reply::Refused(refusal));
        }
        if let Some(refusal) = self.over_share(&waiter.principal) {
            todo.extend(waiter.parts.iter().map(|(resource, _)| *resource));
            return self.reply_to_waiters(waiter.waiter_ids, Reply::Refused(refusal));
        }
        let names: Vec<CompactString> =
            waiter.parts.iter().map(|(slot, _)| self.state.resources[*slot as usize].name.clone()).collect();
        let wants: Vec<Want<'_>> =
            names.iter().zip(&waiter.parts).map(|(name, (_, mode))| Want { name, mode: *mode }).collect();
        let terms = GrantTerms {
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
            self.counters.waited += 1;
            self.reply_to_waiters(waiter.waiter_ids, Reply::Granted(granted));
        }
    }

    /// Refuses a waiter whose wait is over. Returns the resources it waited for.
    pub(super) fn dismiss(&mut self, slot: u32, now: Time) -> Vec<u32> {
        let waiter = self.queue.get(slot);
        let arrival = waiter.arrival;
        let blocked = waiter.parts.iter().find(|(slot, mode)| {
            let resource = &self.state.resources[*slot as usize];
            !resource.admits(*mode) || resource.place(0).is_some_and(|first| first.arrival < arrival)
        });
        let blocked = blocked.unwrap_or(&waiter.parts[0]).0;
        let waiter = self.leave_queue(slot);
        let refusal = self.held_refusal(blocked, now);
        self.reply_to_waiters(waiter.waiter_ids, Reply::Refused(refusal));
        waiter.parts.into_iter().map(|(resource, _)| resource).collect()
    }

    /// Removes a waiter from every queue. Its resources are not closed before their queues are examined.
    fn leave_queue(&mut self, slot: u32) -> WaiterEntry {
        let state = &self.state;
        let waiter = self.queue.remove(slot, |request| state.request_tag(&request.scope, &request.id));
        for (resource, mode) in &waiter.parts {
            self.state.resources[*resource as usize].leave_queue(waiter.arrival, *mode);
        }
        waiter
    }

    fn reply_to_waiters(&mut self, waiter_ids: Vec<WaiterId>, reply: Reply) {
        let mut waiter_ids = waiter_ids.into_iter();
        let Some(first) = waiter_ids.next() else { return };
        for waiter_id in waiter_ids {
            let reply = match &reply {
                Reply::Granted(granted) => Reply::Granted(*granted),
                Reply::Refused(refusal) => Reply::Refused(refusal.clone()),
                _ => unreachable!("a waiter is granted or refused"),
            };
            self.effects.push(Effect { waiter_id, reply });
        }
        self.effects.push(Effect { waiter_id: first, reply });
    }
}
