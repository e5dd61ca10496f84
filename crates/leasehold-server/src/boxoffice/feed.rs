//! The entries of an event, read from the ledger once for all streams.
//!
//! # Laws
//!
//! 1. Entries come in the order of their numbers, each once, without a gap. Missed ones are read from the ledger.
//! 2. The ledger is read once for each batch, however many streams are open.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_boxoffice::model::{AuditQuery, Entry, EventId};
use leasehold_boxoffice::{Error, Office};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::api::boxoffice::entry_json;
use leasehold_support::sync::lock;

/// Recent entries kept in memory.
const MAX_RECENT_ENTRIES: usize = 4096;
const MAX_ENTRIES_PER_READ: usize = 500;

/// An entry as the stream sends it.
#[derive(Clone, Debug)]
pub struct FeedEntry {
    /// Its number.
    pub seq: u64,
    /// Its data, one line of JSON.
    pub data: Arc<str>,
}

/// The recent entries of one event, and the task that reads them.
pub struct Feed {
    office: Office,
    event: EventId,
    recent: Mutex<VecDeque<FeedEntry>>,
    head: watch::Sender<u64>,
}

impl Feed {
    /// Starts the task that follows an event. The task ends when the feed is dropped.
    pub fn start(office: Office, event: EventId) -> Arc<Self> {
        let feed = Arc::new(Self { office, event, recent: Mutex::default(), head: watch::Sender::new(0) });
        let (weak, changes) = (Arc::downgrade(&feed), feed.office.changes(&feed.event));
        tokio::spawn(async move {
            let mut changes = changes;
            loop {
                let Some(feed) = weak.upgrade() else { return };
                let wanted = *changes.borrow_and_update();
                if feed.catch_up(wanted).await.is_err() {
                    // The ledger failed: try again shortly.
                    sleep_until(Instant::now() + Duration::from_millis(200)).await;
                    changes.mark_changed();
                }
                drop(feed);
                if changes.changed().await.is_err() {
                    return;
                }
            }
        });
        feed
    }

    async fn catch_up(&self, wanted: u64) -> Result<(), Error> {
        loop {
            let known = *self.head.borrow();
            // The first read starts near the end: a stream that needs older entries reads them itself.
            let since = if known == 0 { wanted.saturating_sub(MAX_ENTRIES_PER_READ as u64) } else { known };
            if since >= wanted {
                self.head.send_if_modified(|head| std::mem::replace(head, wanted.max(*head)) < wanted);
                return Ok(());
            }
            let entries = self.read_entries(since).await?;
            let Some(last) = entries.last().map(|entry| entry.seq) else { return Ok(()) };
            let mut recent = lock(&self.recent);
            recent.extend(entries);
            let over = recent.len().saturating_sub(MAX_RECENT_ENTRIES);
            recent.drain(..over);
            drop(recent);
            self.head.send_replace(last);
        }
    }

    async fn read_entries(&self, since: u64) -> Result<Vec<FeedEntry>, Error> {
        let query = AuditQuery { since, seat: None, limit: MAX_ENTRIES_PER_READ };
        let entries = self.office.audit(&self.event, query).await?;
        let feed_entry = |entry: Entry| FeedEntry { seq: entry.seq, data: entry_json(&entry).to_string().into() };
        Ok(entries.into_iter().map(feed_entry).collect())
    }

    /// Notified when there are more entries.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.head.subscribe()
    }

    /// The entries after a number, from memory or from the ledger; empty if there are none yet.
    ///
    /// # Errors
    ///
    /// The ledger does not answer.
    pub async fn entries_after(&self, since: u64) -> Result<Vec<FeedEntry>, Error> {
        {
            let recent = lock(&self.recent);
            match recent.front() {
                Some(first) if first.seq <= since + 1 => {
                    let skip = usize::try_from(since + 1 - first.seq).unwrap_or(usize::MAX);
                    return Ok(recent.iter().skip(skip).take(MAX_ENTRIES_PER_READ).cloned().collect());
                }
                _ => {}
            }
        }
        if *self.head.borrow() <= since {
            return Ok(Vec::new());
        }
        self.read_entries(since).await
    }
}
