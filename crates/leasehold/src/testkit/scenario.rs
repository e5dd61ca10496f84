//! Scenarios: text scripts that a non-Rust reader can review, run against any engine.
//!
//! ```text
//! # A hold that lapses can be sold to someone else, once.
//! at 0ms      ada  acquire seat-14 ttl=10s   -> granted token=a
//! at 9999ms   bob  acquire seat-14 ttl=10s   -> held
//! at 10000ms  bob  acquire seat-14 ttl=10s   -> granted token=b > a
//! at 10001ms  ada  write   seat-14 token=a   -> stale
//! ```
//!
//! # The language
//!
//! One step a line: when, who, what, and what comes of it. Lines that begin with `#` are for people.
//! Times count from the start of the script and never fall. Who is a name; `bob/2` is bob again, over a
//! second connection.
//!
//! | what | means |
//! | --- | --- |
//! | `acquire a,b ttl=10s [wait=5s] [shared \| permits=1/3] [max_hold=1m] [delay=2s] [request=r1]` | a claim on all of them |
//! | `renew a [ttl=10s] [token=x]`, `release a [token=x]` | the lease that this person last got on `a`, or the one called `x` |
//! | `revoke a [reason=word]` | the operator's order |
//! | `write a token=x` | a write to the fenced register beside `a` |
//! | `inspect a` | a look |
//! | `cancel` | this person's waiting acquire is dropped |
//! | nothing | what has become of this person's waiting acquire? |
//!
//! What comes of it is one of
//!
//! - `granted [token=x [> y | = y]] [remaining=10s] [renewable=1m]`: `x` names the token from here on;
//! - `waiting`: no answer yet. A later line without a verb says what came of it, or `cancel` ends it;
//! - `held [by=ada | by=ada,bob | by=nobody] [queue=2] [waiters=cy,dan] [on=a] [remaining=10s]`, and `free`;
//! - `renewed [remaining=10s] [renewable=1m]`, `released`, `already_released`, `revoked 2`, `cancelled`;
//! - `accepted`, `stale`, `not_held`, `invalid`, `mismatch`, `queue_full`, `quota`.
//!
//! What a line does not mention is not looked at. A script must say how every waiting acquire ends.
//! A line `with waiters_per_resource=2` before the first step asks for an engine with that limit.
//!
//! # Time
//!
//! Between two lines the clock stops at every moment at which something could be due (any time in the
//! script plus any span in it, and so on), and everybody acts before it moves on. A line with a verb is run
//! as soon as its moment has come, *without* waiting until the engine has collected what is due then: an
//! engine that is a little late must give the same answers.
//!
//! # Real time
//!
//! An engine whose clock cannot be set plays in real time ([`Scenario::run_in_real_time`]). No line is then closer to a
//! moment at which something is due than a tolerance: the player moves the lines apart. Spans are compared with that
//! tolerance.

mod outcome;
mod parse;
mod participants;
mod real_time;
mod runner;
mod stretch;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use leasehold_core::Limits;

use super::ManualClock;
use crate::engine::Engine;
use parse::ScenarioLine;
use runner::ScenarioRunner;
pub use stretch::RealTimePace;

/// A script that parsed.
#[derive(Clone, Debug)]
pub struct Scenario {
    file: String,
    limits: Limits,
    lines: Vec<ScenarioLine>,
}

/// A line that does not parse, or came out differently.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ScenarioFailure {
    /// The script.
    pub file: String,
    /// Its line, counted from 1; zero when it is about the whole file.
    pub line: usize,
    /// What is wrong.
    pub message: String,
}

impl fmt::Display for ScenarioFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.message)
    }
}

impl Scenario {
    /// Reads a script; `file` is what failures call it.
    ///
    /// # Errors
    ///
    /// The first line that does not parse.
    ///
    /// # Examples
    ///
    /// ```
    /// use leasehold::testkit::scenario::Scenario;
    ///
    /// let wrong = Scenario::parse("seat.txt", "# A seat.\nat 0ms ada grab seat-14 -> granted").unwrap_err();
    /// assert!(wrong.to_string().starts_with("seat.txt:2: "));
    /// ```
    pub fn parse(file: &str, text: &str) -> Result<Self, ScenarioFailure> {
        let failed = |(line, message)| ScenarioFailure { file: file.into(), line, message };
        let (limits, lines) = parse::script(text).map_err(failed)?;
        Ok(Self { file: file.into(), limits, lines })
    }

    /// Reads every `*.txt` of a directory, in order of name.
    ///
    /// # Errors
    ///
    /// A directory that cannot be read or has no script in it, or the first line that does not parse.
    pub fn load_all(dir: &Path) -> Result<Vec<Self>, ScenarioFailure> {
        let whole =
            |path: &Path, message: String| ScenarioFailure { file: path.display().to_string(), line: 0, message };
        let entries = std::fs::read_dir(dir).map_err(|error| whole(dir, error.to_string()))?;
        let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.retain(|path| path.extension().is_some_and(|end| end == "txt"));
        paths.sort();
        if paths.is_empty() {
            return Err(whole(dir, "there is no scenario here".into()));
        }
        let load = |path: &std::path::PathBuf| {
            let text = std::fs::read_to_string(path).map_err(|error| whole(path, error.to_string()))?;
            Self::parse(&path.display().to_string(), &text)
        };
        paths.iter().map(load).collect()
    }

    /// What failures call it.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The limits that the engine should be opened with.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Plays the script to an engine that nobody else uses, and that runs under this clock.
    ///
    /// # Errors
    ///
    /// The first line that came out differently.
    pub async fn run(&self, engine: Arc<dyn Engine>, clock: &ManualClock) -> Result<(), ScenarioFailure> {
        let failed = |(line, message)| ScenarioFailure { file: self.file.clone(), line, message };
        ScenarioRunner::play(&self.lines, engine, clock).await.map_err(failed)
    }

    /// Plays the script in real time to an engine on whose resources nobody else acts.
    ///
    /// # Errors
    ///
    /// The first line that came out differently.
    pub async fn run_in_real_time(&self, engine: Arc<dyn Engine>, pace: RealTimePace) -> Result<(), ScenarioFailure> {
        let failed = |(line, message)| ScenarioFailure { file: self.file.clone(), line, message };
        real_time::play(&self.lines, engine, pace).await.map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CoreEngine, TickTiming};
    use super::*;

    async fn play(text: &str) -> Result<(), String> {
        let clock = ManualClock::new();
        let script = Scenario::parse("test.txt", text).map_err(|failure| failure.to_string())?;
        let engine = CoreEngine::new(&clock, script.limits().clone(), TickTiming::Prompt);
        script.run(engine, &clock).await.map_err(|failure| failure.to_string())
    }

    /// Goal: the example of the module is a script, and it is true.
    /// Method: play it.
    #[tokio::test]
    async fn the_example_plays() {
        let text = "# A hold that lapses can be sold to someone else, once.\n\
            at 0ms      ada  acquire seat-14 ttl=10s   -> granted token=a\n\
            at 9999ms   bob  acquire seat-14 ttl=10s   -> held\n\
            at 10000ms  bob  acquire seat-14 ttl=10s   -> granted token=b > a\n\
            at 10000ms  bob  write   seat-14 token=b   -> accepted\n\
            at 10001ms  ada  write   seat-14 token=a   -> stale\n";
        assert_eq!(play(text).await, Ok(()));
    }

    /// Goal: a line nobody can read fails by file and line, whatever is wrong with it.
    /// Method: one mistake each, on line 2.
    #[test]
    fn an_unparsable_line_names_file_and_line() {
        for line in [
            "at 0ms ada",
            "ada acquire seat ttl=1s -> granted",
            "at 5x ada acquire seat ttl=1s -> granted",
            "at 0ms ada grab seat -> granted",
            "at 0ms ada acquire seat -> granted",
            "at 0ms ada acquire ttl=1s -> granted",
            "at 0ms ada acquire seat ttl=1s colour=red -> granted",
            "at 0ms ada acquire seat ttl=1s permits=3 -> granted",
            "at 0ms ada acquire seat ttl=1s -> delighted",
            "at 0ms ada acquire seat ttl=1s -> granted queue=1",
            "at 0ms ada acquire seat ttl=1s -> granted token=b >",
            "at 0ms ada acquire seat ttl=1s -> granted > a",
            "at 0ms ada release seat ttl=1s -> released",
            "at 0ms ada revoke seat reason=x -> revoked many",
            "at 0ms ada write seat -> accepted",
            "with patience=2",
        ] {
            let failure = Scenario::parse("seat.txt", &format!("# A seat.\n{line}\n")).unwrap_err();
            assert_eq!((failure.file.as_str(), failure.line), ("seat.txt", 2), "{line}: {failure}");
        }
        let falling = "at 2s ada inspect a -> free\nat 1s ada inspect a -> free\n";
        assert_eq!(Scenario::parse("seat.txt", falling).unwrap_err().line, 2);
        assert_eq!(Scenario::parse("seat.txt", "# Nothing happens.\n").unwrap_err().line, 0);
    }

    /// Goal: an outcome that differs is told in the words of the script.
    /// Method: expect the wrong word, the wrong detail, the wrong order of tokens.
    #[tokio::test]
    async fn a_different_outcome_fails_in_the_words_of_the_script() {
        let first = "at 0s ada acquire a ttl=10s -> granted token=a\n";
        for (line, message) in [
            (
                "at 1s bob acquire a ttl=1s -> granted",
                "test.txt:2: expected granted, got held on=a by=ada queue=0 remaining=9s",
            ),
            (
                "at 1s bob acquire a ttl=1s -> held by=cy",
                "test.txt:2: expected by=cy, got held on=a by=ada queue=0 remaining=9s",
            ),
            ("at 1s bob acquire b ttl=1s -> granted token=b = a", "test.txt:2: expected token b = a, got 3 and 2"),
            ("at 1s bob acquire b ttl=1s -> granted token=b > c", "test.txt:2: no token is called c yet"),
            (
                "at 1s bob acquire a ttl=1s wait=1s -> waiting",
                "test.txt:2: bob still waits at the end: say what came of it",
            ),
            ("at 1s bob -> granted", "test.txt:2: bob does not wait for anything"),
        ] {
            assert_eq!(play(&format!("{first}{line}\n")).await, Err(message.to_owned()));
        }
    }
}
