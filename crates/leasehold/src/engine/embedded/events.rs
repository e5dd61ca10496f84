//! The newsroom: what happened lately, kept for those who watch.
//!
//! The writer publishes a batch's news when the batch is durable, before its answers leave. Watchers read at their own
//! pace; whoever falls behind what is kept learns it by a reset, and nobody waits for a slow reader.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use leasehold_core::Time;
use leasehold_core::news::{Kind, News};
use leasehold_core::wire::Reader;
use tokio::sync::watch;

use super::commit::writer_thread::EngineShared;
use super::{ENGINE, no_effect};
use crate::engine::{Answer, Event, EventId, Seen, Watching};
use crate::error::Error;

/// At most so many events are handed to a watcher at once.
const AT_ONCE: usize = 512;

#[derive(Debug)]
pub(super) struct EventLog {
    run: u64,
    kept: Mutex<RetainedEvents>,
    /// The number of the newest event; closed when the engine stops.
    newest: watch::Sender<u64>,
}

#[derive(Debug)]
struct RetainedEvents {
    /// By batch.
    batches: VecDeque<EventBatch>,
    bytes: usize,
    most_bytes: usize,
    /// The number of the next event.
    next: u64,
}

#[derive(Debug)]
struct EventBatch {
    first: u64,
    news: Arc<[u8]>,
}

/// What a watcher finds when it looks.
enum EventsRead {
    Nothing,
    Gone { newest: u64 },
    Sheets(Vec<Arc<[u8]>>, u64),
}

impl EventLog {
    pub fn new(run: u64, most_bytes: usize) -> Self {
        let kept = RetainedEvents { batches: VecDeque::new(), bytes: 0, most_bytes, next: 1 };
        Self { run, kept: Mutex::new(kept), newest: watch::Sender::new(0) }
    }

    /// Whether anything is kept at all.
    pub fn is_open(&self) -> bool {
        self.kept().most_bytes > 0
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, RetainedEvents> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A batch is durable, and this is what happened in it.
    pub fn append(&self, news: &[u8], count: u64) {
        if count == 0 {
            return;
        }
        let newest = {
            let mut kept = self.kept();
            let first = kept.next;
            kept.next += count;
            kept.bytes += news.len();
            kept.batches.push_back(EventBatch { first, news: news.into() });
            while kept.bytes > kept.most_bytes && kept.batches.len() > 1 {
                if let Some(old) = kept.batches.pop_front() {
                    kept.bytes -= old.news.len();
                }
            }
            kept.next - 1
        };
        if self.newest.receiver_count() > 0 {
            self.newest.send_replace(newest);
        }
    }

    /// The sheets that hold event `from` and later ones, and the number of the first event on them.
    fn look(&self, from: u64, most: usize) -> EventsRead {
        let kept = self.kept();
        if from >= kept.next {
            return EventsRead::Nothing;
        }
        let oldest = kept.batches.front().map_or(kept.next, |batch| batch.first);
        if from < oldest {
            return EventsRead::Gone { newest: kept.next - 1 };
        }
        let at = kept.batches.partition_point(|batch| batch.first <= from) - 1;
        let batches: Vec<_> = kept.batches.range(at..).take(most).map(|batch| batch.news.clone()).collect();
        EventsRead::Sheets(batches, kept.batches[at].first)
    }

    pub fn recent_losses(&self, most: usize, sees: impl Fn(&str) -> bool, now: Time) -> Vec<Event> {
        let batches: Vec<(u64, Arc<[u8]>)> =
            self.kept().batches.iter().map(|batch| (batch.first, batch.news.clone())).collect();
        let mut found = Vec::new();
        for (first, batch) in batches.into_iter().rev() {
            let mut reader = Reader::new(&batch);
            let mut here = Vec::new();
            let mut number = first;
            while let Ok(news) = News::decode(&mut reader) {
                if matches!(news.kind, Kind::Lapsed | Kind::Revoked) && news.names.iter().any(|name| sees(name)) {
                    here.push(event(EventId { run: self.run, number }, &news, now.since(news.at)));
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

    /// The engine has stopped: watchers come and learn it.
    pub fn stop(&self) {
        self.newest.send_modify(|_| {});
    }

    fn newest(&self) -> u64 {
        self.kept().next - 1
    }
}

/// One who watches.
pub(super) struct EventWatcher {
    shared: Arc<EngineShared>,
    newest: watch::Receiver<u64>,
    /// The next event to tell; none before the reset that a watch begins with.
    next: Option<u64>,
}

impl EventWatcher {
    pub fn new(shared: Arc<EngineShared>, since: Option<EventId>) -> Self {
        let room = &shared.event_log;
        let newest = room.newest.subscribe();
        let next = since.filter(|id| id.run == room.run && id.number <= room.newest()).map(|id| id.number + 1);
        Self { shared, newest, next }
    }

    fn reset(&mut self, newest: u64) -> Seen {
        self.next = Some(newest + 1);
        Seen::Reset(EventId { run: self.shared.event_log.run, number: newest })
    }

    fn look(&mut self) -> Result<Option<Seen>, Error> {
        let Some(next) = self.next else {
            let newest = self.shared.event_log.newest();
            return Ok(Some(self.reset(newest)));
        };
        match self.shared.event_log.look(next, 64) {
            EventsRead::Nothing => Ok(None),
            EventsRead::Gone { newest } => Ok(Some(self.reset(newest))),
            EventsRead::Sheets(batches, first) => self.read(&batches, first, next).map(Some),
        }
    }

    fn read(&mut self, batches: &[Arc<[u8]>], mut number: u64, next: u64) -> Result<Seen, Error> {
        let (now, run) = (self.shared.clock.now(), self.shared.event_log.run);
        let mut events = Vec::new();
        'batches: for batch in batches {
            let mut reader = Reader::new(batch);
            while reader.left() > 0 {
                let news = News::decode(&mut reader).map_err(|_| Error::Corrupt {
                    engine: ENGINE,
                    law: "news parse".into(),
                    at: format!("event {number}"),
                })?;
                if number >= next {
                    events.push(event(EventId { run, number }, &news, now.since(news.at)));
                }
                number += 1;
                if events.len() == AT_ONCE {
                    break 'batches;
                }
            }
        }
        self.next = Some(number);
        Ok(Seen::Events(events))
    }
}

fn event(id: EventId, news: &News<'_>, ago: std::time::Duration) -> Event {
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

impl Watching for EventWatcher {
    fn next(&mut self) -> Answer<'_, Seen> {
        Box::pin(async move {
            loop {
                // Marked as seen before looking: what is published in between wakes us again.
                self.newest.borrow_and_update();
                if let Some(seen) = self.look()? {
                    return Ok(seen);
                }
                let stopped = self.shared.lock().stopped.clone();
                if let Some(sentence) = stopped {
                    return Err(no_effect("watch".into(), &sentence));
                }
                if self.newest.changed().await.is_err() {
                    return Err(no_effect("watch".into(), "the engine is closed"));
                }
            }
        })
    }
}
