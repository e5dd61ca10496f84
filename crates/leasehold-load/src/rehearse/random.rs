//! A seeded random generator: the same seed gives the same buyers with the same wishes.

use std::time::Duration;

/// The SplitMix64 generator.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// The generator of one buyer. Generators with different numbers are independent.
    pub fn new(seed: u64, number: u64) -> Self {
        let mut random = Self(seed ^ 0x1ea5_e401_d000_0002);
        random.0 = random.next_u64().wrapping_add(number.wrapping_mul(0xd134_2543_de82_ef95));
        random
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, or zero if `end` is zero.
    pub fn below(&mut self, end: usize) -> usize {
        let end = u64::try_from(end).unwrap_or(u64::MAX);
        if end == 0 { 0 } else { usize::try_from(self.next_u64() % end).unwrap_or(0) }
    }

    /// A number in `[0, 1)`.
    #[allow(clippy::cast_precision_loss, reason = "53 bits are exact")]
    pub fn next_fraction(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// True with this probability.
    pub fn chance(&mut self, share: f64) -> bool {
        self.next_fraction() < share
    }

    /// An exponentially distributed time with this mean, capped at eight times the mean.
    pub fn exponential(&mut self, mean: Duration) -> Duration {
        let times = -(1.0 - self.next_fraction()).ln();
        mean.mul_f64(times.min(8.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a seed is a run, and chance is fair enough to be called so.
    #[test]
    fn the_same_seed_is_the_same_chance() {
        let draw = |seed, number| {
            let mut random = SplitMix64::new(seed, number);
            (0..8).map(|_| random.next_u64()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7, 3), draw(7, 3));
        assert_ne!(draw(7, 3), draw(7, 4));
        assert_ne!(draw(7, 3), draw(8, 3));
        let mut random = SplitMix64::new(1, 1);
        let hits = (0..10_000).filter(|_| random.chance(0.25)).count();
        assert!((2_200..2_800).contains(&hits), "{hits}");
        let mean: Duration =
            (0..10_000).map(|_| random.exponential(Duration::from_millis(100))).sum::<Duration>() / 10_000;
        assert!((90..110).contains(&mean.as_millis()), "{mean:?}");
        assert!((0..1_000).all(|_| random.below(3) < 3) && random.below(0) == 0);
    }
}
