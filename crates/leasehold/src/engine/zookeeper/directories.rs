//! Which directories are there, as far as this process knows: a first guess that saves a request, and never decides.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How many are remembered. Then all are forgotten: a wrong guess costs one request.
const REMEMBERED: usize = 1 << 16;

/// See the module.
#[derive(Default)]
pub(super) struct KnownDirectories {
    /// Hashes of names. Two names with the same hash are a wrong guess.
    hashes: Mutex<HashSet<u64>>,
    hasher: RandomState,
}

impl KnownDirectories {
    fn lock(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.hashes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_known(&self, name: &str) -> bool {
        self.lock().contains(&self.hasher.hash_one(name))
    }

    pub fn insert(&self, name: &str) {
        let mut hashes = self.lock();
        if hashes.len() >= REMEMBERED {
            hashes.clear();
        }
        hashes.insert(self.hasher.hash_one(name));
    }

    /// The directory is not there. Whether it was known.
    pub fn forget(&self, name: &str) -> bool {
        self.lock().remove(&self.hasher.hash_one(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the memory is bounded, and forgets what it is told to forget.
    #[test]
    fn the_memory_is_bounded() {
        let known = KnownDirectories::default();
        for number in 0..REMEMBERED + 10 {
            known.insert(&number.to_string());
        }
        assert!(known.lock().len() <= 10);
        assert!(known.forget(&(REMEMBERED + 9).to_string()));
        assert!(!known.is_known(&(REMEMBERED + 9).to_string()));
        assert!(!known.forget("0"));
    }
}
