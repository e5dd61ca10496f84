//! Randomness from the operating system, and from nowhere else.

/// Random bytes from the operating system, fetched many at a time. While the engine is busy the maintenance thread
/// fetches them beforehand: 16 bytes take the system longer than a lookup in the book takes.
pub(super) struct RandomPool {
    bits: Vec<u8>,
    used: usize,
    spare: Option<Vec<u8>>,
}

/// Bytes for 256 leases, when none were fetched beforehand; and for 4,096, by the maintenance thread.
const SMALL_DRAW_BYTES: usize = 4 << 10;
const LARGE_DRAW_BYTES: usize = 64 << 10;

impl RandomPool {
    pub const fn new() -> Self {
        Self { bits: Vec::new(), used: 0, spare: None }
    }

    pub fn next_secret(&mut self) -> [u8; 16] {
        if self.used == self.bits.len() {
            self.bits = self.spare.take().unwrap_or_else(|| fetch_bytes(SMALL_DRAW_BYTES));
            self.used = 0;
        }
        let taken = std::array::from_fn(|i| std::mem::take(&mut self.bits[self.used + i]));
        self.used += 16;
        taken
    }

    /// Whether more should be fetched beforehand: half of the bytes are used.
    pub const fn is_running_low(&self) -> bool {
        self.spare.is_none() && self.used > 0 && self.used * 2 >= self.bits.len()
    }

    /// Keeps bytes of [`RandomPool::fetch`] for later.
    pub fn keep_ready(&mut self, bits: Vec<u8>) {
        debug_assert_eq!(bits.len(), LARGE_DRAW_BYTES);
        self.spare.get_or_insert(bits);
    }

    /// Fetches bytes for later.
    pub fn fetch() -> Vec<u8> {
        fetch_bytes(LARGE_DRAW_BYTES)
    }
}

fn fetch_bytes(many: usize) -> Vec<u8> {
    let mut bits = vec![0; many];
    fill_random(&mut bits);
    bits
}

fn fill_random(bits: &mut [u8]) {
    // A machine without randomness cannot make secrets, and there is nothing to fall back on.
    getrandom::fill(bits).expect("the operating system gives random bits");
}

pub(super) fn random_u64() -> u64 {
    let mut bits = [0; 8];
    fill_random(&mut bits);
    u64::from_le_bytes(bits)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Goal: no secret is given twice, wherever its bits come from.
    #[test]
    fn no_bits_come_twice() {
        let mut pool = RandomPool::new();
        let mut seen = HashSet::from([pool.next_secret()]);
        assert!(!pool.is_running_low(), "an engine that grants little has enough");
        for round in 0..3 {
            for _ in 0..LARGE_DRAW_BYTES / 16 + 200 {
                assert!(seen.insert(pool.next_secret()));
            }
            if round < 2 {
                assert!(pool.is_running_low());
                pool.keep_ready(RandomPool::fetch());
                assert!(!pool.is_running_low());
            }
        }
        assert!(!seen.contains(&[0; 16]), "what was used is blotted out, and never given");
    }
}
