//! Numbers and claims drawn from a seed, for tests that compare an engine with the book.

use std::time::Duration;

use crate::engine::{Claim, Mode, Want};

/// Request ids that claims share.
const REQUESTS: usize = 4;

/// Splitmix64: the same numbers from the same seed.
#[derive(Clone, Debug)]
pub struct SeededRandom(pub u64);

impl SeededRandom {
    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number below this one.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.draw() % bound as u64) as usize
    }

    /// True once in so many times.
    pub fn one_in(&mut self, bound: usize) -> bool {
        self.below(bound) == 0
    }

    /// One of these.
    pub fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

/// A claim on one to three of these names, each with its capacity for permits. Half of them wait, a third has a cap, a delay, a
/// request id. Spans are a few units long. The label is `n` and the number.
pub fn draw_claim(random: &mut SeededRandom, names: &[(&str, u32)], unit: Duration, number: u64) -> Claim {
    let count = *random.pick(&[1, 1, 1, 2, 2, 3]);
    let mut left: Vec<usize> = (0..names.len()).collect();
    let wants = (0..count).map(|_| {
        let (name, capacity) = names[left.remove(random.below(left.len()))];
        let mode = match random.below(6) {
            0..3 => Mode::Exclusive,
            3 => Mode::Shared,
            _ => Mode::Permits { count: 1 + random.below(capacity as usize) as u32, capacity },
        };
        Want { name: name.into(), mode }
    });
    let wants = wants.collect();
    let mut span = |from: u32, to: u32| unit * (from + random.below((to - from) as usize) as u32);
    let (ttl, wait, cap, delay) = (span(2, 12), span(1, 15), span(3, 15), span(1, 5));
    Claim {
        wait: if random.one_in(2) { wait } else { Duration::ZERO },
        max_hold: random.one_in(3).then_some(cap),
        delay: if random.one_in(3) { delay } else { Duration::ZERO },
        request: random.one_in(3).then(|| format!("r{}", random.below(REQUESTS))),
        ..Claim::new(wants, ttl, format!("n{number}"))
    }
}
