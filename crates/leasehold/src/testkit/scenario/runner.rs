//! Plays lines to an engine under a clock that is set by hand.

#![allow(clippy::disallowed_methods)] // a real-time limit, so that an answer that never comes fails the script

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::Time;

use super::super::ManualClock;
use super::parse::{ScenarioAction, ScenarioLine, Wrong};
use super::participants::{Acquiring, MAX_REPLY_WAIT, PROBE, Participants, poll_once};
use super::stretch::TimeStretch;
use crate::clock::Clock;
use crate::engine::{Claim, Engine, Want};
use crate::error::{Error, Refusal};

/// See the module.
pub(super) struct ScenarioRunner {
    people: Participants,
    clock: ManualClock,
    /// What the clock showed when the script began.
    base: Time,
    /// How far the script has come.
    now: Duration,
}

impl ScenarioRunner {
    pub async fn play(lines: &[ScenarioLine], engine: Arc<dyn Engine>, clock: &ManualClock) -> Result<(), Wrong> {
        let day = Duration::from_secs(24 * 3600);
        let held = engine.acquire(probe_claim(day, Duration::ZERO)).await;
        held.map_err(|error| (0, format!("the engine is not ready: {error}")))?;
        let people = Participants::new(engine, TimeStretch::NONE);
        let mut runner = Self { people, clock: clock.clone(), base: clock.now(), now: Duration::ZERO };
        let moments = moments(lines);
        for line in lines {
            runner.step(line, &moments).await.map_err(|message| (line.number, message))?;
        }
        runner.people.check_end().map_err(|message| (lines.last().map_or(0, |line| line.number), message))
    }

    async fn step(&mut self, line: &ScenarioLine, moments: &BTreeSet<Duration>) -> Result<(), String> {
        for moment in moments.range(self.now..line.at) {
            self.move_to(*moment).await?.settle().await?;
        }
        let due = self.move_to(line.at).await?;
        // A line that reads waits until the engine has caught up; a verb may come before that.
        let seen = if matches!(line.act, None | Some(ScenarioAction::Inspect { .. })) {
            due.settle().await?;
            self.people.act(line).await?
        } else {
            let seen = self.people.act(line).await?;
            due.settle().await?;
            seen
        };
        self.people.check(line, &seen)
    }

    /// Moves the clock. What it returns tells when the engine has acted on all that is due by then.
    async fn move_to(&mut self, at: Duration) -> Result<Due, String> {
        if at <= self.now {
            return Ok(Due(None));
        }
        let engine = self.people.engine.clone();
        let claim = probe_claim(Duration::from_secs(1), at - self.now);
        let mut probe: Acquiring = Box::pin(async move { engine.acquire(claim).await });
        if let Some(answer) = poll_once(&mut probe).await {
            return Err(format!("the script's own acquire does not wait: {answer:?}"));
        }
        self.now = at;
        self.clock.set(self.base.plus(at));
        Ok(Due(Some(probe)))
    }
}

/// What is due at the moment that the clock has come to.
///
/// The engine refuses the probe in the same step in which it ends what else is due, and last: after that refusal all
/// other waiters have been answered.
struct Due(Option<Acquiring>);

impl Due {
    async fn settle(self) -> Result<(), String> {
        let Some(probe) = self.0 else { return Ok(()) };
        match tokio::time::timeout(MAX_REPLY_WAIT, probe).await {
            Ok(Err(Error::Refused(Refusal::Held { .. }))) => Ok(()),
            Ok(other) => Err(format!("the script's own acquire was not sent home: {other:?}")),
            Err(_) => Err(format!("the engine did nothing for {MAX_REPLY_WAIT:?} after the clock moved")),
        }
    }
}

fn probe_claim(ttl: Duration, wait: Duration) -> Claim {
    Claim { wait, ..Claim::new(vec![Want::exclusive(PROBE)], ttl, "the script") }
}

/// Every moment at which something could be due: the lines, and any spans of the script after them.
fn moments(lines: &[ScenarioLine]) -> BTreeSet<Duration> {
    let spans: BTreeSet<Duration> = lines.iter().flat_map(ScenarioLine::spans).filter(|span| !span.is_zero()).collect();
    let end = lines.last().map_or(Duration::ZERO, |line| line.at);
    let mut found: BTreeSet<Duration> = lines.iter().map(|line| line.at).collect();
    // The probe's wait has the same limit as any other.
    found.extend((1..24).map(|hour| Duration::from_secs(hour * 3600)).take_while(|hour| *hour < end));
    let mut todo: Vec<Duration> = found.iter().copied().collect();
    while let Some(moment) = todo.pop() {
        for later in spans.iter().map(|span| moment.saturating_add(*span)) {
            if later <= end && found.insert(later) {
                todo.push(later);
            }
        }
    }
    found
}
