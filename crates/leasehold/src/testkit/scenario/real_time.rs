//! Plays lines to an engine in real time.
//!
//! # Laws
//!
//! 1. A line that comes before a moment at which something is due is played at least a tolerance before it; one at or
//!    after that moment at least a tolerance after it.
//! 2. Lines keep their order, with time between two of them for what the first one sets off.
//!
//! A moment is a line plus spans that it starts: a ttl, a patience, then the ttl of whoever is served next. Where it falls
//! in real time depends on when its line is played, so that the times of all lines are found together: each law is a
//! smallest distance between two lines.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::parse::{ScenarioAction, ScenarioLine, Wrong};
use super::participants::Participants;
use super::stretch::{RealTimePace, TimeStretch};
use crate::clock::{Clock as _, SystemClock};
use crate::engine::Engine;

/// A line so close before a moment is there to show what is so until that moment.
const NEAR: Duration = Duration::from_millis(10);
/// Moments so long after the last line could still come before it when lines are moved apart.
const AFTER_END: Duration = Duration::from_secs(2);

/// A smallest distance in nanoseconds: line `to` comes at least so long after line `from`. Below zero: at most so long before.
struct Distance {
    from: usize,
    to: usize,
    nanos: i128,
}

pub(super) async fn play(lines: &[ScenarioLine], engine: Arc<dyn Engine>, pace: RealTimePace) -> Result<(), Wrong> {
    let times = schedule(lines, pace)?;
    let mut people = Participants::new(engine, TimeStretch::real_time(pace));
    let start = SystemClock.now();
    for (line, time) in lines.iter().zip(times) {
        SystemClock.sleep_until(start.plus(time)).await;
        let late = SystemClock.now().since(start.plus(time));
        let wrong = |message: String| {
            let also = if late > pace.tolerance / 2 { format!(" (played {late:?} late)") } else { String::new() };
            (line.number, format!("{message}{also}"))
        };
        let seen = people.act(line).await.map_err(wrong)?;
        people.check(line, &seen).map_err(wrong)?;
    }
    people.check_end().map_err(|message| (lines.last().map_or(0, |line| line.number), message))
}

/// When each line is played, since the start.
fn schedule(lines: &[ScenarioLine], pace: RealTimePace) -> Result<Vec<Duration>, Wrong> {
    let distances = distances(lines, pace);
    let mut times = vec![0_i128; lines.len()];
    // The longest ways from the start, as Bellman and Ford find them.
    for _ in 0..=lines.len() {
        let mut changed = None;
        for distance in &distances {
            let least = times[distance.from] + distance.nanos;
            if times[distance.to] < least {
                times[distance.to] = least;
                changed = Some(distance.to);
            }
        }
        match changed {
            None => return Ok(times.iter().map(|nanos| from_nanos(*nanos)).collect()),
            Some(_) if times[0] > 0 => break,
            Some(_) => {}
        }
    }
    let message = format!("its lines and moments cannot be {:?} apart: play it slower", pace.tolerance);
    Err((0, message))
}

fn distances(lines: &[ScenarioLine], pace: RealTimePace) -> Vec<Distance> {
    let stretch = TimeStretch::real_time(pace);
    let (tolerance, settle) = (nanos(pace.tolerance), nanos(pace.tolerance / 4));
    let sums: Vec<BTreeSet<Duration>> = lines.iter().map(|line| sums(line, lines)).collect();
    let mut found = Vec::new();
    for (to, line) in lines.iter().enumerate().skip(1) {
        found.push(Distance { from: to - 1, to, nanos: settle });
        let mut least = nanos(stretch.real(line.at - lines[0].at));
        for (from, before) in lines.iter().enumerate().take(to) {
            for sum in &sums[from] {
                let span = nanos(stretch.real(*sum));
                if before.at + *sum <= line.at {
                    found.push(Distance { from, to, nanos: span + tolerance });
                    continue;
                }
                found.push(Distance { from: to, to: from, nanos: tolerance - span });
                if before.at + *sum - line.at < NEAR {
                    // Room for several such lines.
                    least -= tolerance * 3 / 2;
                }
            }
        }
        // What is just before a moment is played sooner than the script says, and all else no sooner.
        found.push(Distance { from: 0, to, nanos: least });
    }
    found
}

/// Every span after which something may be due because of this line.
fn sums(line: &ScenarioLine, lines: &[ScenarioLine]) -> BTreeSet<Duration> {
    let end = lines.last().map_or(Duration::ZERO, |line| line.at) + AFTER_END;
    let later = spans_of_waiters(lines);
    let mut found = BTreeSet::new();
    let mut todo: Vec<Duration> = first_spans(line, lines);
    while let Some(sum) = todo.pop() {
        if line.at.saturating_add(sum) <= end && found.insert(sum) {
            todo.extend(later.iter().map(|span| sum.saturating_add(*span)));
        }
    }
    found.remove(&Duration::ZERO);
    found
}

/// What a line starts by itself; zero where it only lets others in.
fn first_spans(line: &ScenarioLine, lines: &[ScenarioLine]) -> Vec<Duration> {
    match (&line.act, line.expected.word) {
        (Some(ScenarioAction::Acquire(asked)), "waiting") => vec![asked.wait],
        (Some(ScenarioAction::Acquire(asked)), "granted") => {
            let ends = [Some(asked.ttl), asked.max_hold];
            ends.into_iter().flatten().flat_map(|end| [end, end + asked.delay]).collect()
        }
        (Some(ScenarioAction::Renew { ttl, .. }), "renewed") => ttl.map_or_else(|| ttls(lines), |ttl| vec![ttl]),
        (Some(_), "released" | "revoked" | "cancelled") => vec![Duration::ZERO],
        _ => Vec::new(),
    }
}

/// Whoever waits is served because of another line, and its lease starts then.
fn spans_of_waiters(lines: &[ScenarioLine]) -> Vec<Duration> {
    let mut found = BTreeSet::new();
    for line in lines {
        if let (Some(ScenarioAction::Acquire(asked)), "waiting") = (&line.act, line.expected.word) {
            found.extend([asked.ttl, asked.ttl + asked.delay]);
            found.extend(asked.max_hold);
        }
    }
    found.into_iter().collect()
}

/// A renewal that names no ttl has the one before.
fn ttls(lines: &[ScenarioLine]) -> Vec<Duration> {
    let ttl = |line: &ScenarioLine| match &line.act {
        Some(ScenarioAction::Acquire(asked)) => Some(asked.ttl),
        Some(ScenarioAction::Renew { ttl, .. }) => *ttl,
        _ => None,
    };
    lines.iter().filter_map(ttl).collect()
}

fn nanos(span: Duration) -> i128 {
    i128::try_from(span.as_nanos()).unwrap_or(i128::MAX / 4)
}

fn from_nanos(nanos: i128) -> Duration {
    Duration::from_nanos(u64::try_from(nanos.max(0)).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn played_at(text: &str) -> Vec<u128> {
        let pace = RealTimePace {
            second: Duration::from_secs(1),
            tolerance: Duration::from_millis(400),
            any_order_together: false,
            longest: Duration::MAX,
        };
        let (_, lines) = super::super::parse::script(text).expect("a script");
        schedule(&lines, pace).expect("there is room").iter().map(Duration::as_millis).collect()
    }

    /// Goal: no line is near a moment at which something is due, whenever that moment really is.
    /// Method: a lapse, and a cap that starts with a line that had to be moved.
    #[test]
    fn lines_keep_away_from_moments() {
        let text = "at 0s ada acquire a ttl=10s -> granted\n\
            at 9999ms bob acquire a ttl=10s -> held\n\
            at 10s bob acquire a ttl=10s max_hold=4s -> granted\n\
            at 10s cy inspect a -> held\n\
            at 14s cy inspect a -> free\n";
        assert_eq!(played_at(text), [0, 9_399, 10_400, 10_500, 14_800]);
    }

    /// Goal: a script that has no room for the tolerance is refused, instead of being played by luck.
    #[test]
    fn a_script_without_room_is_refused() {
        let text = "at 0s ada acquire a ttl=1s -> granted\nat 999ms bob inspect a -> held\n";
        let (_, lines) = super::super::parse::script(text).expect("a script");
        let pace = |tolerance| RealTimePace {
            second: Duration::from_secs(1),
            tolerance,
            any_order_together: false,
            longest: Duration::MAX,
        };
        assert!(schedule(&lines, pace(Duration::from_millis(400))).is_ok());
        assert!(schedule(&lines, pace(Duration::from_millis(900))).is_err());
    }
}
