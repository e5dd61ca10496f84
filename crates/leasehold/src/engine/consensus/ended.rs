//! A bounded memory of leases that ended, by their public id.
//!
//! # Laws
//!
//! 1. The first ending of a lease stays: a lease ends once.
//! 2. It never holds more than its capacity; the oldest endings go first.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::lease_id::PublicId;

/// Endings that one process remembers.
pub(crate) const REMEMBERED_ENDINGS: usize = 65_536;

/// How a lease ended, as its owner is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HowEnded {
    /// By its owner: a second release answers `false`.
    Released,
    /// It lapsed or was revoked.
    Stale,
}

/// See the module.
pub(crate) struct RememberedEndings {
    capacity: usize,
    inner: Mutex<EndedTable>,
}

#[derive(Default)]
struct EndedTable {
    by_id: HashMap<PublicId, HowEnded>,
    oldest_first: VecDeque<PublicId>,
}

impl RememberedEndings {
    pub fn new(capacity: usize) -> Self {
        Self { capacity, inner: Mutex::default() }
    }

    pub fn insert(&self, public: PublicId, how: HowEnded) {
        let mut table = self.lock();
        if self.capacity == 0 || table.by_id.contains_key(&public) {
            return;
        }
        while table.oldest_first.len() >= self.capacity {
            let Some(oldest) = table.oldest_first.pop_front() else { break };
            table.by_id.remove(&oldest);
        }
        table.by_id.insert(public, how);
        table.oldest_first.push_back(public);
    }

    pub fn get(&self, public: &PublicId) -> Option<HowEnded> {
        self.lock().by_id.get(public).copied()
    }

    fn lock(&self) -> MutexGuard<'_, EndedTable> {
        // Nothing panics with the lock held; a table of endings stays usable anyway.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn id(number: u8) -> PublicId {
        PublicId([number; 16])
    }

    #[test]
    fn the_first_ending_of_a_lease_stays() {
        let ended = RememberedEndings::new(REMEMBERED_ENDINGS);
        assert_eq!(ended.get(&id(1)), None);
        ended.insert(id(1), HowEnded::Released);
        ended.insert(id(1), HowEnded::Stale);
        assert_eq!(ended.get(&id(1)), Some(HowEnded::Released));
    }

    proptest! {
        /// Goal: exactly the last endings are remembered, as they were told first.
        #[test]
        fn the_oldest_endings_go_first(told in prop::collection::vec((0..12_u8, any::<bool>()), 0..60), capacity in 0..6_usize) {
            let ended = RememberedEndings::new(capacity);
            let mut model: Vec<(u8, HowEnded)> = Vec::new();
            for (number, released) in told {
                let how = if released { HowEnded::Released } else { HowEnded::Stale };
                ended.insert(id(number), how);
                if model.iter().all(|(known, _)| *known != number) {
                    model.push((number, how));
                    let surplus = model.len().saturating_sub(capacity);
                    model.drain(..surplus);
                }
            }
            let model: HashMap<u8, HowEnded> = model.into_iter().collect();
            for number in 0..12 {
                prop_assert_eq!(ended.get(&id(number)), model.get(&number).copied(), "{}", number);
            }
        }
    }
}
