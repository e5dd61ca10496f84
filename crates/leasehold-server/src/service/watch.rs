//! A watch under a prefix, filtered by what one caller may see.

use std::sync::Arc;

use leasehold::Error;
use leasehold::engine::{Event, EventId, Seen, Watch};

use super::{Caller, Denial, Service};

/// An open watch. See [`super::Service::watch`].
pub struct Watcher {
    service: Arc<Service>,
    caller: Caller,
    prefix: String,
    /// The id of the last event that was delivered.
    prev: Option<EventId>,
    stream: Watch,
}

/// One message of a watch.
#[derive(Clone, Debug)]
pub enum WatchUpdate {
    /// An event, and the id before it under this prefix.
    Event(Event, EventId),
    /// There is a gap before this id: read the whole state, and go on from here.
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

    /// Waits for the next events under the prefix: at least one. Dropping the future loses nothing.
    ///
    /// # Errors
    ///
    /// The engine stopped, or the caller's key was revoked meanwhile.
    pub async fn next(&mut self) -> Result<Vec<WatchUpdate>, Denial> {
        loop {
            let seen = tokio::select! {
                biased;
                () = self.caller.principal.until_revoked() => return Err(Denial::Unauthorized),
                seen = self.stream.next() => seen.map_err(Denial::Engine)?,
            };
            let updates = self.visible_updates(seen)?;
            if !updates.is_empty() {
                return Ok(updates);
            }
        }
    }

    fn visible_updates(&mut self, seen: Seen) -> Result<Vec<WatchUpdate>, Denial> {
        let events = match seen {
            Seen::Reset(id) => {
                self.prev = Some(id);
                return Ok(vec![WatchUpdate::Reset(id)]);
            }
            Seen::Events(events) => events,
        };
        let mut updates = Vec::new();
        for mut event in events {
            // A lease over several resources is shown with those that the caller may see.
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
            updates.push(WatchUpdate::Event(event, prev));
        }
        Ok(updates)
    }

    /// The caller of the watch.
    pub fn caller(&self) -> &Caller {
        &self.caller
    }

    /// The prefix of the watch.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }
}
