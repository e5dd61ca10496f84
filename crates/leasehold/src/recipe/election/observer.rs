//! Who leads, told whenever that changes.
//!
//! The engine's watch says *when* to look, and a look at the resource says *what* is true. So events that are repeated,
//! late or missing do no harm. Where there is no watch, the observer looks every third of the ttl.

use std::fmt;
use std::time::Duration;

use leasehold_core::Time;

use crate::client::Leasehold;
use crate::engine::{Resource, Seen, Token, Watch};
use crate::error::Error;

/// Beside a watch, a look is taken after so many intervals all the same: a stream may hang.
const LOOKS_SAVED_BY_WATCH: u32 = 3;

/// Who leads.
#[derive(Clone, Debug)]
pub struct ElectedLeader {
    /// What the leader published.
    pub value: String,
    /// The token of its term, where the engine promises fencing.
    pub token: Option<Token>,
    /// How long it had led when the engine was asked.
    pub since: Duration,
}

impl ElectedLeader {
    /// The term and the value, without the time that passes.
    fn same_as(&self, other: &Self) -> bool {
        self.token == other.token && self.value == other.value
    }
}

/// Tells who leads. See [`Election::observe`](super::Election::observe).
///
/// It tells the newest that is known, not every change: a leader that came and went between two looks is not told.
pub struct Observer {
    leasehold: Leasehold,
    resource: String,
    every: Duration,
    watching: WatchState,
    /// Something may have changed since the last look. Cleared only when a look has been answered.
    look_now: bool,
    /// When to look in any case.
    look_at: Time,
    /// Not told yet: the first answer is told whatever it is.
    told: Option<Option<ElectedLeader>>,
    highest: Option<Token>,
}

enum WatchState {
    NotYet,
    By(Watch),
    /// The engine has no watch, or not for us.
    Refused,
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").field("resource", &self.resource).field("told", &self.told).finish_non_exhaustive()
    }
}

impl Observer {
    pub(super) fn new(leasehold: Leasehold, resource: String, every: Duration) -> Self {
        let every = every.max(Duration::from_millis(1));
        Self {
            leasehold,
            resource,
            every,
            watching: WatchState::NotYet,
            look_now: true,
            look_at: Time::ZERO,
            told: None,
            highest: None,
        }
    }

    /// Who leads: at once when first asked, then whenever that changes. `None`: nobody. Dropping the future loses
    /// nothing.
    ///
    /// # Errors
    ///
    /// The engine could not be asked. Ask again: what was told last may be old, and the next look is not sooner than a
    /// third of the ttl.
    pub async fn next(&mut self) -> Result<Option<ElectedLeader>, Error> {
        loop {
            self.wait_for_a_reason().await;
            // Before the look: what happens after this is told by the stream.
            self.open_watch().await;
            let answer = self.leasehold.inspect(&self.resource).await;
            let now = self.leasehold.clock.now();
            self.look_now = false;
            self.look_at = now.plus(match self.watching {
                WatchState::By(_) => self.every.saturating_mul(LOOKS_SAVED_BY_WATCH),
                _ => self.every,
            });
            let seen = match answer {
                Ok(resource) => resource.and_then(leader_of),
                Err(error) => {
                    self.look_at = now.plus(self.every);
                    return Err(error);
                }
            };
            if self.is_news(seen.as_ref()) {
                return Ok(self.tell(seen));
            }
        }
    }

    /// Returns when it is time to look: something happened to the resource, or the interval is over.
    async fn wait_for_a_reason(&mut self) {
        let clock = self.leasehold.clock.clone();
        while !self.look_now && clock.now() < self.look_at {
            let WatchState::By(watch) = &mut self.watching else {
                clock.sleep_until(self.look_at).await;
                continue;
            };
            let seen = tokio::select! {
                biased;
                seen = watch.next() => seen,
                () = clock.sleep_until(self.look_at) => continue,
            };
            match seen {
                Ok(Seen::Events(events)) => {
                    self.look_now = events.iter().any(|event| event.resources.contains(&self.resource));
                }
                Ok(Seen::Reset(_)) => self.look_now = true,
                // The stream is over. The next look opens another one.
                Err(_) => {
                    self.watching = WatchState::NotYet;
                    self.look_at = self.look_at.min(clock.now().plus(self.every));
                }
            }
        }
    }

    async fn open_watch(&mut self) {
        if matches!(self.watching, WatchState::NotYet) {
            self.watching = match self.leasehold.engine.watch(None).await {
                Ok(watch) => WatchState::By(watch),
                Err(Error::Unavailable { .. } | Error::Indeterminate { .. }) => WatchState::NotYet,
                Err(_) => WatchState::Refused,
            };
        }
    }

    /// Remembers what is told.
    pub(super) fn tell(&mut self, seen: Option<ElectedLeader>) -> Option<ElectedLeader> {
        self.highest = self.highest.max(seen.as_ref().and_then(|leader| leader.token));
        self.told = Some(seen.clone());
        seen
    }

    pub(super) fn is_news(&self, seen: Option<&ElectedLeader>) -> bool {
        let goes_back = seen.is_some_and(|leader| leader.token < self.highest);
        let same = match (&self.told, seen) {
            (None, _) => false,
            (Some(None), None) => true,
            (Some(Some(told)), Some(seen)) => told.same_as(seen),
            _ => false,
        };
        !goes_back && !same
    }
}

fn leader_of(resource: Resource) -> Option<ElectedLeader> {
    let holding = resource.holders.into_iter().next()?;
    Some(ElectedLeader { value: holding.holder, token: holding.token, since: holding.since })
}
