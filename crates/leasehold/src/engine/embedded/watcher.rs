//! One watch on the engine's events: reads the [`super::events::EventLog`] at its own speed.

use std::sync::Arc;

use leasehold_core::news::News;
use leasehold_core::wire::WireReader;
use tokio::sync::watch;

use super::commit::shared::EngineShared;
use super::errors::{ENGINE, no_effect};
use super::events::{EventsRead, decoded_event};
use crate::engine::{Answer, EventId, Seen, Watching};
use crate::error::Error;

/// At most so many events are handed out at once.
const MAX_EVENTS_PER_READ: usize = 512;
/// At most so many batches are taken from the log at once.
const MAX_BATCHES_PER_READ: usize = 64;

pub(super) struct EventWatcher {
    shared: Arc<EngineShared>,
    newest: watch::Receiver<u64>,
    /// The next event to hand out; none before the reset that a watch begins with.
    next: Option<u64>,
}

impl EventWatcher {
    pub fn new(shared: Arc<EngineShared>, since: Option<EventId>) -> Self {
        let log = &shared.event_log;
        let newest = log.subscribe();
        let next = since.filter(|id| id.run == log.run && id.number <= log.newest()).map(|id| id.number + 1);
        Self { shared, newest, next }
    }

    fn reset_to(&mut self, newest: u64) -> Seen {
        self.next = Some(newest + 1);
        Seen::Reset(EventId { run: self.shared.event_log.run, number: newest })
    }

    /// What is there without waiting.
    fn read_available(&mut self) -> Result<Option<Seen>, Error> {
        let Some(next) = self.next else {
            let newest = self.shared.event_log.newest();
            return Ok(Some(self.reset_to(newest)));
        };
        match self.shared.event_log.read_from(next, MAX_BATCHES_PER_READ) {
            EventsRead::UpToDate => Ok(None),
            EventsRead::TooOld { newest } => Ok(Some(self.reset_to(newest))),
            EventsRead::Batches { encoded, first } => self.decode(&encoded, first, next).map(Some),
        }
    }

    fn decode(&mut self, batches: &[Arc<[u8]>], mut number: u64, next: u64) -> Result<Seen, Error> {
        let (now, run) = (self.shared.clock.now(), self.shared.event_log.run);
        let mut events = Vec::new();
        'batches: for batch in batches {
            let mut reader = WireReader::new(batch);
            while reader.left() > 0 {
                let news = News::decode(&mut reader).map_err(|_| Error::Corrupt {
                    engine: ENGINE,
                    law: "news parse".into(),
                    at: format!("event {number}"),
                })?;
                if number >= next {
                    events.push(decoded_event(EventId { run, number }, &news, now.since(news.at)));
                }
                number += 1;
                if events.len() == MAX_EVENTS_PER_READ {
                    break 'batches;
                }
            }
        }
        self.next = Some(number);
        Ok(Seen::Events(events))
    }
}

impl Watching for EventWatcher {
    fn next(&mut self) -> Answer<'_, Seen> {
        Box::pin(async move {
            loop {
                // Marked as seen before reading: an event that is appended in between wakes this watch again.
                self.newest.borrow_and_update();
                if let Some(seen) = self.read_available()? {
                    return Ok(seen);
                }
                if let Some(sentence) = self.shared.lock().lifecycle.refusal() {
                    return Err(no_effect("watch".into(), sentence));
                }
                if self.newest.changed().await.is_err() {
                    return Err(no_effect("watch".into(), "the engine is closed"));
                }
            }
        })
    }
}
