//! An index that stores four bytes a row, and never grows all at once.
//!
//! Rows are slots of a slab; hash and comparison come from the caller, who has the slab. The index is cut
//! into 64 tables, so that a table that doubles moves a sixty-fourth of the rows: at ten million rows a
//! single table would stop the book for half a second.

use hashbrown::HashTable;

const SHARDS: usize = 64;

#[derive(Debug)]
pub(super) struct Index {
    shards: Box<[HashTable<u32>]>,
}

impl Default for Index {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| HashTable::new()).collect() }
    }
}

impl Index {
    pub fn find(&self, hash: u64, mut is: impl FnMut(u32) -> bool) -> Option<u32> {
        self.shards[shard(hash)].find(hash, |row| is(*row)).copied()
    }

    /// Adds a row that is not there yet.
    pub fn insert(&mut self, hash: u64, row: u32, hash_of: impl Fn(u32) -> u64) {
        self.shards[shard(hash)].insert_unique(hash, row, |row| hash_of(*row));
    }

    pub fn remove(&mut self, hash: u64, row: u32) {
        let removed = self.shards[shard(hash)].find_entry(hash, |other| *other == row);
        match removed {
            Ok(entry) => drop(entry.remove()),
            Err(_) => unreachable!("a row leaves the index once"),
        }
    }

    /// Puts another row in the place of one with the same hash.
    pub fn replace(&mut self, hash: u64, row: u32, with: u32) {
        match self.shards[shard(hash)].find_mut(hash, |other| *other == row) {
            Some(place) => *place = with,
            None => unreachable!("a row is replaced while it is there"),
        }
    }
}

/// Bits that the tables use neither for the bucket (low) nor for the tag (top seven).
const fn shard(hash: u64) -> usize {
    (hash >> 48) as usize % SHARDS
}

/// A hash of tokens that keeps neighbours together: tokens are dense and not chosen by strangers, so the
/// row of a young lease is found in a cache line that its neighbours have just warmed.
pub(super) const fn hash_token(token: u64) -> u64 {
    let tag = token.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 57;
    (token >> 6) & 0xffff_ffff_ffff | (token % SHARDS as u64) << 48 | tag << 57
}
