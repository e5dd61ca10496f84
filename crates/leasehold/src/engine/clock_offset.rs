//! How far the wall clock of another machine is from ours, as a few questions and their round trips tell.
//!
//! An answer was given between the question and its arrival, so the difference is known up to half a round trip. The shortest
//! round trip tells most, and is the one that counts.

use std::time::Duration;

use crate::clock::wall_micros;
use crate::engine::Finding;

/// How often a clock is read.
pub(crate) const CLOCK_PROBES: usize = 5;
/// By how much two clocks may part before somebody should look, besides a thousandth of the time that was measured.
const TOLERANCE: Duration = Duration::from_millis(50);

/// A clock that is compared with ours.
#[derive(Debug, Default)]
pub(crate) struct ClockProbes {
    /// Ours before, theirs, ours after, in microseconds since 1970.
    readings: Vec<(i64, i64, i64)>,
}

/// Another clock minus ours. The error is half a round trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClockOffset {
    micros: i64,
    error: i64,
    /// How long was measured.
    span: i64,
}

impl ClockProbes {
    /// Our clock, just before the other one is asked.
    pub fn start_probe() -> i64 {
        wall_micros()
    }

    /// Notes what the other clock showed, in microseconds since 1970.
    pub fn end_probe(&mut self, started: i64, theirs: i64) {
        self.readings.push((started, theirs, wall_micros()));
    }

    /// The difference; none without a reading that makes sense.
    pub fn offset(&self) -> Option<ClockOffset> {
        // A round trip of less than nothing: our own clock was set back meanwhile.
        let usable = || self.readings.iter().filter(|(before, _, after)| after >= before);
        let (before, theirs, after) = usable().min_by_key(|(before, _, after)| after - before).copied()?;
        let (first, last) = (usable().next()?.0, usable().next_back()?.2);
        let error = (after - before) / 2 + 1;
        Some(ClockOffset { micros: theirs.saturating_sub(before + (after - before) / 2), error, span: last - first })
    }
}

impl ClockOffset {
    /// This clock minus another one that was compared with the same clock of ours.
    pub const fn minus(self, other: Self) -> Self {
        let span = if self.span > other.span { self.span } else { other.span };
        Self { micros: self.micros.saturating_sub(other.micros), error: self.error + other.error, span }
    }

    /// Without its sign: for the largest of several.
    pub const fn distance(self) -> u64 {
        self.micros.unsigned_abs()
    }

    /// Whether they are certainly further apart than clocks that are kept by a time service.
    fn is_apart(self) -> bool {
        let tolerance = TOLERANCE.as_micros() as i64 + self.span / 1000;
        self.micros.saturating_abs().saturating_sub(self.error) > tolerance
    }

    /// What an operator should know: a warning where the clocks are apart.
    pub fn finding(self, setting: impl Into<String>, follows: &str) -> Finding {
        let found = format!("{:+.1} ms, give or take {:.1} ms", millis(self.micros), millis(self.error));
        if self.is_apart() {
            let sentence = format!("These two clocks are apart: one of them is not kept by a time service. {follows}");
            return Finding::warning(setting, found, format!("within {} ms", TOLERANCE.as_millis()), sentence);
        }
        Finding::note(setting, found, "The clocks of the two machines agree.")
    }
}

fn millis(micros: i64) -> f64 {
    micros as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::FindingKind;

    fn offset(readings: &[(i64, i64, i64)]) -> ClockOffset {
        ClockProbes { readings: readings.to_vec() }.offset().expect("readings")
    }

    /// Goal: the shortest round trip counts, and half of it is the error.
    #[test]
    fn the_shortest_round_trip_counts() {
        let found = offset(&[(0, 900_000, 400_000), (500_000, 512_000, 504_000), (600_000, 900_000, 700_000)]);
        assert_eq!(found, ClockOffset { micros: 10_000, error: 2_001, span: 700_000 });
        assert_eq!(ClockProbes::default().offset(), None);
        // Our own clock was set back during the second one.
        assert_eq!(offset(&[(10, 20, 30), (500, 90, 100)]).micros, 0);
        assert_eq!(ClockProbes { readings: vec![(500, 90, 100)] }.offset(), None);
    }

    /// Goal: a difference that the round trip could explain is no warning; 50 ms and a thousandth are the limit.
    #[test]
    fn only_a_certain_difference_is_a_warning() {
        for (found, apart) in [
            (ClockOffset { micros: 50_000, error: 1, span: 0 }, false),
            (ClockOffset { micros: 50_002, error: 1, span: 0 }, true),
            (ClockOffset { micros: -50_002, error: 1, span: 0 }, true),
            (ClockOffset { micros: 150_000, error: 120_000, span: 0 }, false),
            (ClockOffset { micros: 52_000, error: 1, span: 2_000_000 }, false),
            (ClockOffset { micros: 52_002, error: 1, span: 2_000_000 }, true),
            (ClockOffset { micros: i64::MIN, error: 1, span: 0 }, true),
        ] {
            let warned = found.finding("clock", "").kind == FindingKind::Warning;
            assert_eq!(warned, apart, "{found:?}");
        }
    }

    #[test]
    fn two_other_clocks_are_compared_through_ours() {
        let one = ClockOffset { micros: 40_000, error: 500, span: 10 };
        let other = ClockOffset { micros: -30_000, error: 700, span: 20 };
        let apart = one.minus(other);
        assert_eq!(apart, ClockOffset { micros: 70_000, error: 1_200, span: 20 });
        assert_eq!((apart.distance(), other.minus(one).distance()), (70_000, 70_000));
        assert_eq!(apart.finding("clock", "").found, "+70.0 ms, give or take 1.2 ms");
    }
}
