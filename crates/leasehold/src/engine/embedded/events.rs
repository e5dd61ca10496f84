//! Recent events, kept in memory for watchers.
//!
//! The journal writer appends the events of a batch when the batch is durable, before its replies leave. Watchers read
//! at their own speed. A watcher that falls behind what is kept gets a reset; nobody waits for a slow watcher.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::Time;
use leasehold_core::news::{EventKind, News};
use leasehold_core::wire::WireReader;
use tokio::sync::watch;

use crate::engine::{Event, EventId};

#[derive(Debug)]
pub(super) struct EventLog {
    /// Random for each run of the engine.
    pub run: u64,
    retained: Mutex<RetainedEvents>,
    /// The number of the newest event; wakes watchers.
    newest: watch::Sender<u64>,
}

#[derive(Debug)]
struct RetainedEvents {
    batches: VecDeque<EventBatch>,
    bytes: usize,
    max_bytes: usize,
    /// The number of the next event.
    next: u64,
}

/// The events of one batch, encoded.
#[derive(Debug)]
struct EventBatch {
    /// The number of its first event.
    first: u64,
    encoded: Arc<[u8]>,
}

/// What is kept from an event on.
pub(super) enum EventsRead {
    /// Nothing happened since.
    UpToDate,
    /// The event is not kept any more.
    TooOld { newest: u64 },
    /// Encoded batches; the first one contains the event.
    Batches {
        encoded: Vec<Arc<[u8]>>,
        /// The number of the first event in the first batch.
        first: u64,
    },
}

impl EventLog {
    pub fn new(run: u64, max_bytes: usize) -> Self {
        let retained = RetainedEvents { batches: VecDeque::new(), bytes: 0, max_bytes, next: 1 };
        Self { run, retained: Mutex::new(retained), newest: watch::Sender::new(0) }
    }

    /// Whether events are kept at all.
    pub fn is_open(&self) -> bool {
        self.lock().max_bytes > 0
    }

    fn lock(&self) -> MutexGuard<'_, RetainedEvents> {
        self.retained.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends the events of a durable batch, and wakes watchers.
    pub fn append(&self, encoded: &[u8], count: u64) {
        if count == 0 {
            return;
        }
        let newest = {
            let mut retained = self.lock();
            let first = retained.next;
            retained.next += count;
            retained.bytes += encoded.len();
            retained.batches.push_back(EventBatch { first, encoded: encoded.into() });
            while retained.bytes > retained.max_bytes && retained.batches.len() > 1 {
                if let Some(old) = retained.batches.pop_front() {
                    retained.bytes -= old.encoded.len();
                }
            }
            retained.next - 1
        };
        if self.newest.receiver_count() > 0 {
            self.newest.send_replace(newest);
        }
    }

    /// Up to `max_batches` batches, from the one that contains event `from`.
    pub fn read_from(&self, from: u64, max_batches: usize) -> EventsRead {
        let retained = self.lock();
        if from >= retained.next {
            return EventsRead::UpToDate;
        }
        let oldest = retained.batches.front().map_or(retained.next, |batch| batch.first);
        if from < oldest {
            return EventsRead::TooOld { newest: retained.next - 1 };
        }
        let at = retained.batches.partition_point(|batch| batch.first <= from) - 1;
        let encoded = retained.batches.range(at..).take(max_batches).map(|batch| batch.encoded.clone()).collect();
        EventsRead::Batches { encoded, first: retained.batches[at].first }
    }

    /// The newest `most` leases that lapsed or were revoked, of those that cover a resource which the reader `sees`.
    pub fn recent_losses(&self, most: usize, sees: impl Fn(&str) -> bool, now: Time) -> Vec<Event> {
        let batches: Vec<(u64, Arc<[u8]>)> =
            self.lock().batches.iter().map(|batch| (batch.first, batch.encoded.clone())).collect();
        let mut found = Vec::new();
        for (first, encoded) in batches.into_iter().rev() {
            let mut reader = WireReader::new(&encoded);
            let mut here = Vec::new();
            let mut number = first;
            while let Ok(news) = News::decode(&mut reader) {
                if matches!(news.kind, EventKind::Lapsed | EventKind::Revoked)
                    && news.names.iter().any(|name| sees(name))
                {
                    here.push(decoded_event(EventId { run: self.run, number }, &news, now.since(news.at)));
                }
                number += 1;
            }
            found.extend(here.into_iter().rev());
            if found.len() >= most {
                break;
            }
        }
        found.truncate(most);
        found
    }

    /// The engine has stopped: watchers wake and learn it.
    pub fn wake_watchers(&self) {
        self.newest.send_modify(|_| {});
    }

    /// Wakes when an event is appended.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }

    /// The number of the newest event; 0 before the first.
    pub fn newest(&self) -> u64 {
        self.lock().next - 1
    }
}

pub(super) fn decoded_event(id: EventId, news: &News<'_>, ago: Duration) -> Event {
    Event {
        id,
        kind: news.kind,
        token: Some(news.token),
        holder: news.holder.into(),
        resources: news.names.iter().map(|name| (*name).to_owned()).collect(),
        reason: news.reason.into(),
        ago,
    }
}
