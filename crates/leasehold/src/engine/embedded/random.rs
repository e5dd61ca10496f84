//! Randomness from the operating system, and from nowhere else.

/// Random bits from the operating system, fetched many at a time: one system call serves 256 leases.
pub(super) struct RandomPool {
    bits: [u8; 4096],
    used: usize,
}

impl RandomPool {
    pub const fn new() -> Self {
        Self { bits: [0; 4096], used: 4096 }
    }

    pub fn take(&mut self) -> [u8; 16] {
        if self.used == self.bits.len() {
            fill_random(&mut self.bits);
            self.used = 0;
        }
        let taken = std::array::from_fn(|i| std::mem::take(&mut self.bits[self.used + i]));
        self.used += 16;
        taken
    }
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
