//! The most recently ended leases: a retried acquire, release or renew is answered from them.

use super::lease::StoredRequest;
use crate::fact::End;
use crate::token::Secret;

/// A lease that has ended.
#[derive(Clone, Debug)]
pub(super) struct EndedLease {
    pub token: u64,
    pub secret: Secret,
    pub how: End,
    pub request: Option<Box<StoredRequest>>,
}

/// A ring buffer: the newest replaces the oldest.
#[derive(Debug)]
pub(super) struct EndedLeases {
    ring: Vec<EndedLease>,
    capacity: usize,
    /// Where the next one goes, once the ring is full.
    next: usize,
}

impl EndedLeases {
    pub fn new(capacity: usize) -> Self {
        Self { ring: Vec::new(), capacity: capacity.max(1), next: 0 }
    }

    pub fn get(&self, row: u32) -> &EndedLease {
        &self.ring[row as usize]
    }

    /// The row of the next ended lease, and the one it replaces.
    pub fn next_row(&self) -> (u32, Option<&EndedLease>) {
        if self.ring.len() < self.capacity {
            (self.ring.len() as u32, None)
        } else {
            (self.next as u32, Some(&self.ring[self.next]))
        }
    }

    pub fn push(&mut self, ending: EndedLease) {
        if self.ring.len() < self.capacity {
            self.ring.push(ending);
        } else {
            self.ring[self.next] = ending;
            self.next = (self.next + 1) % self.capacity;
        }
    }

    pub fn len(&self) -> usize {
        self.ring.len()
    }

    /// From the oldest to the newest.
    pub fn iter(&self) -> impl Iterator<Item = &EndedLease> {
        let (young, old) = self.ring.split_at(self.next);
        old.iter().chain(young)
    }
}
