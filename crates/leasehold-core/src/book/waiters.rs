//! The claims that wait, and how they are found. In memory only: after a restart callers must ask again.

use std::collections::HashMap;

use compact_str::CompactString;
use foldhash::fast::FixedState;

use super::index::Index;
use super::lease::StoredRequest;
use crate::command::{Mode, WaiterId};
use crate::time::Time;
use crate::token::Secret;
use crate::wheel::Wheel;

/// A claim that waits.
#[derive(Debug)]
pub(super) struct WaiterEntry {
    /// Order of arrival, over all resources.
    pub arrival: u64,
    /// Whom to reply to: more than one when a retried request joined.
    pub waiter_ids: Vec<WaiterId>,
    pub parts: Vec<(u32, Mode)>,
    pub ttl_ms: u64,
    pub max_hold_ms: Option<u64>,
    pub delay_ms: u64,
    pub holder: CompactString,
    pub request: Option<Box<StoredRequest>>,
    pub secret: Secret,
    pub principal: CompactString,
    pub since: Time,
    /// When the wait ends.
    pub until: Time,
}

#[derive(Debug)]
pub(super) struct WaitQueue {
    waiters: Vec<Option<WaiterEntry>>,
    free: Vec<u32>,
    waiter_ids: HashMap<WaiterId, u32, FixedState>,
    /// How many claims of each principal wait.
    principals: HashMap<CompactString, usize, FixedState>,
    requests: Index,
    pub wheel: Wheel,
    next_arrival: u64,
}

impl WaitQueue {
    pub fn new(seed: u64) -> Self {
        Self {
            waiters: Vec::new(),
            free: Vec::new(),
            waiter_ids: HashMap::with_hasher(FixedState::with_seed(seed)),
            principals: HashMap::with_hasher(FixedState::with_seed(seed)),
            requests: Index::default(),
            wheel: Wheel::default(),
            next_arrival: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.waiters.len() - self.free.len()
    }

    pub fn get(&self, slot: u32) -> &WaiterEntry {
        self.waiters[slot as usize].as_ref().expect("a place in a queue leads to a waiter")
    }

    pub fn until(&self, slot: u32) -> Time {
        self.get(slot).until
    }

    pub const fn take_arrival(&mut self) -> u64 {
        self.next_arrival += 1;
        self.next_arrival
    }

    pub fn add(&mut self, waiter: WaiterEntry, request: Option<u32>) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.waiters.push(None);
            self.waiters.len() as u32 - 1
        });
        for waiter_id in &waiter.waiter_ids {
            self.waiter_ids.insert(*waiter_id, slot);
        }
        *self.principals.entry(waiter.principal.clone()).or_default() += 1;
        self.wheel.arm(slot, waiter.until);
        self.waiters[slot as usize] = Some(waiter);
        if let Some(tag) = request {
            self.requests.insert(tag, slot);
        }
        slot
    }

    pub fn remove(&mut self, slot: u32, tag: impl Fn(&StoredRequest) -> u32) -> WaiterEntry {
        let waiter = self.waiters[slot as usize].take().expect("a waiter leaves once");
        for waiter_id in &waiter.waiter_ids {
            self.waiter_ids.remove(waiter_id);
        }
        if let Some(request) = &waiter.request {
            self.requests.remove(tag(request), slot);
        }
        if let Some(waiting) = self.principals.get_mut(&waiter.principal) {
            *waiting -= 1;
            if *waiting == 0 {
                self.principals.remove(&waiter.principal);
            }
        }
        self.wheel.disarm(slot);
        self.free.push(slot);
        waiter
    }

    pub fn waiting_of(&self, principal: &str) -> usize {
        self.principals.get(principal).copied().unwrap_or(0)
    }

    pub fn find_waiter(&self, waiter_id: WaiterId) -> Option<u32> {
        self.waiter_ids.get(&waiter_id).copied()
    }

    pub fn find_request(&self, tag: u32, scope: &str, id: &str) -> Option<u32> {
        self.requests.find(tag, |row| {
            self.get(row).request.as_ref().is_some_and(|request| request.scope == scope && request.id == id)
        })
    }

    /// A retried request joins its first try; the longer wait counts.
    pub fn join(&mut self, slot: u32, waiter_id: WaiterId, until: Time) {
        let waiter = self.waiters[slot as usize].as_mut().expect("a joined waiter is there");
        waiter.waiter_ids.push(waiter_id);
        waiter.until = waiter.until.max(until);
        self.waiter_ids.insert(waiter_id, slot);
    }

    /// One caller of a joined request is gone. `true` when it was the last.
    pub fn leave_joined(&mut self, slot: u32, waiter_id: WaiterId) -> bool {
        let waiter = self.waiters[slot as usize].as_mut().expect("a leaving waiter is there");
        if waiter.waiter_ids.len() == 1 {
            return true;
        }
        waiter.waiter_ids.retain(|other| *other != waiter_id);
        self.waiter_ids.remove(&waiter_id);
        false
    }

    /// Takes the next waiter whose wait is over at `now` off the wheel; it is still in its queues.
    pub fn pop_due(&mut self, now: Time, budget: &mut u32) -> Option<u32> {
        let waiters = &self.waiters;
        self.wheel.pop(now, budget, |slot| waiters[slot as usize].as_ref().expect("the wheel leads to a waiter").until)
    }
}
