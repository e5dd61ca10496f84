//! A watch under a prefix, as one caller may see it.

use std::sync::Arc;

use leasehold::Error;
use leasehold::engine::{Event, EventId, Seen, Watch};

use super::{Caller, Denial, Service};

/// A watch that is under way. See [`Service::watch`].
pub struct Watcher {
    service: Arc<Service>,
    caller: Caller,
    prefix: String,
    /// The last that was told.
    prev: Option<EventId>,
    stream: Watch,
}

/// What is told.
#[derive(Clone, Debug)]
pub enum WatchUpdate {
    /// This happened; the id before it under this prefix is beside it.
    Event(Event, EventId),
    /// There is a gap before this id: look at the whole, and go on from here.
    Reset(EventId),
}

impl Watcher {
    pub(super) fn new(
        service: Arc<Service>,
        caller: Caller,
        prefix: String,
        since: Option<EventId>,
        stream: Watch,
    ) -> Self {
        Self { service, caller, prefix, prev: since, stream }
    }

    /// Waits for what happens next under the prefix: at least one. Dropping the future loses nothing.
    ///
    /// # Errors
    ///
    /// The engine stopped, or the caller's key was revoked meanwhile.
    pub async fn next(&mut self) -> Result<Vec<WatchUpdate>, Denial> {
        loop {
            let seen = tokio::select! {
                biased;
                () = self.caller.principal.gone() => return Err(Denial::Unauthorized),
                seen = self.stream.next() => seen.map_err(Denial::Engine)?,
            };
            let told = self.filter(seen)?;
            if !told.is_empty() {
                return Ok(told);
            }
        }
    }

    fn filter(&mut self, seen: Seen) -> Result<Vec<WatchUpdate>, Denial> {
        let events = match seen {
            Seen::Reset(id) => {
                self.prev = Some(id);
                return Ok(vec![WatchUpdate::Reset(id)]);
            }
            Seen::Events(events) => events,
        };
        let mut told = Vec::new();
        for mut event in events {
            // A lease over several resources is told of with those that may be seen.
            event.resources.retain(|name| name.starts_with(&self.prefix) && self.caller.principal.sees(name));
            if event.resources.is_empty() {
                continue;
            }
            let prev = self.prev.replace(event.id).ok_or_else(|| {
                Denial::Engine(Error::Corrupt {
                    engine: self.service.promises().engine,
                    law: "a watch begins with a reset or where it was asked to".into(),
                    at: event.id.to_string(),
                })
            })?;
            told.push(WatchUpdate::Event(event, prev));
        }
        Ok(told)
    }

    /// Who watches.
    pub fn caller(&self) -> &Caller {
        &self.caller
    }

    /// Under which prefix.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }
}
