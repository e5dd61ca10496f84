//! Watches: the stream of events of an engine.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

pub use leasehold_core::news::EventKind;

use super::Answer;
use crate::engine::Token;

/// A watch that is under way.
pub type Watch = Box<dyn Watching>;

/// A stream of what happens.
///
/// # Laws
///
/// 1. In order, each once, and without a gap after the last [`Seen::Reset`] or the `since` that was asked for.
/// 2. Only durable events are sent.
/// 3. Where events are missing (too old, or the engine was restarted) there is a [`Seen::Reset`]: read the
///    whole with [`super::Engine::list`] *after* it arrives, and go on from its id. Events between the two may
///    be in the list already: compare tokens.
pub trait Watching: Send {
    /// Waits for the next that happens. Dropping the future loses nothing.
    fn next(&mut self) -> Answer<'_, Seen>;
}

/// What a watch tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// These happened next, in this order; at least one.
    Events(Vec<Event>),
    /// There is a gap before this id.
    Reset(EventId),
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its place in the order of all events.
    pub id: EventId,
    /// What happened.
    pub kind: EventKind,
    /// The lease's token, where the engine has any.
    pub token: Option<Token>,
    /// Whose it is or was.
    pub holder: String,
    /// What it covers or covered.
    pub resources: Vec<String>,
    /// The operator's reason; empty but for a revoke.
    pub reason: String,
    /// How long ago.
    pub ago: Duration,
}

/// Names an event: which run of the engine, and the number in it. Text form: hex, dash, decimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventId {
    /// Random for each run: numbers of another run mean nothing.
    pub run: u64,
    /// Rises with every event, not always by one.
    pub number: u64,
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{}", self.run, self.number)
    }
}

/// The text is not an event id.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not an event id")]
pub struct NotAnEventId;

impl FromStr for EventId {
    type Err = NotAnEventId;

    fn from_str(text: &str) -> Result<Self, NotAnEventId> {
        let (run, number) = text.split_once('-').ok_or(NotAnEventId)?;
        if run.len() != 16 || number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(NotAnEventId);
        }
        let run = u64::from_str_radix(run, 16).map_err(|_| NotAnEventId)?;
        Ok(Self { run, number: number.parse().map_err(|_| NotAnEventId)? })
    }
}
