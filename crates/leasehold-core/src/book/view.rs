//! What anybody may see of a resource: no secret in it.

use std::time::Duration;

use super::lease::LeasePhase;
use super::resource::{ResourceEntry, Use};
use super::{Book, due};
use crate::command::Mode;
use crate::time::Time;
use crate::token::Token;

/// At most this many waiters are shown one by one, and holders in a listing; the rest are counted.
const MAX_WAITERS_SHOWN: usize = 100;

/// At most this many holders are shown of one resource that was asked for by name. A hundred thousand holders would
/// make one answer of many megabytes, under the lock that every grant needs.
const MAX_HOLDERS_SHOWN: usize = 1000;

/// One resource in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceView {
    /// Its name.
    pub name: String,
    /// How it is held, or wanted by the head of the queue.
    pub mode: Mode,
    /// The first holders.
    pub holders: Vec<HoldingView>,
    /// How many hold it. If not all are shown, some may be due and not ended yet.
    pub holders_total: usize,
    /// The first waiters.
    pub waiters: Vec<WaitingView>,
    /// How many wait.
    pub queue_len: usize,
}

/// One lease on a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldingView {
    /// Public label.
    pub holder: String,
    /// Names the lease.
    pub token: Token,
    /// How long it has been held.
    pub since: Duration,
    /// Life left without renewal.
    pub remaining: Duration,
}

/// One waiting claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingView {
    /// Public label.
    pub holder: String,
    /// How long it has waited.
    pub waiting: Duration,
}

impl Book {
    /// What is known of a resource at `now`; `None` when nobody holds or awaits it.
    #[must_use]
    pub fn inspect(&self, name: &str, now: Time) -> Option<ResourceView> {
        let slot = self.state.find_name(name)?;
        self.view(&self.state.resources[slot as usize], MAX_HOLDERS_SHOWN, now.max(self.now))
    }

    /// Shows the resources of the next `count` slots from `cursor`, unordered. Says where to go on; `None` at the end.
    ///
    /// A listing of millions is made of many short steps, so that the book's lock is never held for long.
    pub fn scan(
        &self,
        cursor: usize,
        count: usize,
        prefix: &str,
        now: Time,
        mut show: impl FnMut(ResourceView),
    ) -> Option<usize> {
        let end = cursor.saturating_add(count).min(self.state.resources.len());
        for resource in (cursor..end).map(|at| &self.state.resources[at]) {
            if !resource.name.is_empty()
                && resource.name.starts_with(prefix)
                && let Some(view) = self.view(resource, MAX_WAITERS_SHOWN, now.max(self.now))
            {
                show(view);
            }
        }
        (end < self.state.resources.len()).then_some(end)
    }

    fn view(&self, resource: &ResourceEntry, most: usize, now: Time) -> Option<ResourceView> {
        let leases =
            || resource.holders().map(|slot| &self.state.leases[slot as usize]).filter(|lease| !due(lease, now));
        let queue_len = resource.queue_len();
        if queue_len == 0 && leases().next().is_none() {
            return None;
        }
        let mut live = leases().filter(|lease| lease.phase == LeasePhase::Live).map(|lease| HoldingView {
            holder: lease.holder.as_str().into(),
            token: lease.token(),
            since: now.since(lease.granted_at),
            remaining: lease.expires_at.since(now),
        });
        let holders: Vec<HoldingView> = live.by_ref().take(most).collect();
        let holders_total = if live.next().is_none() { holders.len() } else { resource.holder_count() };
        let waiters = resource
            .queue()
            .take(MAX_WAITERS_SHOWN)
            .map(|place| {
                let waiter = self.queue.get(place.waiter);
                WaitingView { holder: waiter.holder.as_str().into(), waiting: now.since(waiter.since) }
            })
            .collect();
        let mode = match resource.current_use() {
            Use::Exclusive => Mode::Exclusive,
            Use::Shared => Mode::Shared,
            Use::Permits { used } => Mode::Permits { count: used, capacity: resource.capacity() },
            Use::Free => self.head_mode(resource),
        };
        Some(ResourceView { name: resource.name.as_str().into(), mode, holders, holders_total, waiters, queue_len })
    }

    fn head_mode(&self, resource: &ResourceEntry) -> Mode {
        let Some(place) = resource.place(0) else { return Mode::Exclusive };
        let name = &resource.name;
        let parts = &self.queue.get(place.waiter).parts;
        parts
            .iter()
            .find(|(slot, _)| self.state.resources[*slot as usize].name == *name)
            .map_or(Mode::Exclusive, |(_, mode)| *mode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Acquire, Command, Reply, WaiterId, Want};
    use crate::limits::Limits;
    use crate::token::Secret;

    /// Goal: a crowd on one name makes no huge answer: the first are shown, all are counted.
    /// Method: more readers than are shown, then all but one of them over by time.
    #[test]
    fn a_crowd_is_shown_in_part_and_counted_whole() {
        let mut book = Book::new(Limits::default(), 3);
        book.set_ceiling(10_000);
        let (crowd, start) = (MAX_HOLDERS_SHOWN + 500, Time::from_millis(1));
        for at in 0..crowd {
            let claim = Acquire::new(
                WaiterId(at as u64 + 1),
                &[Want { name: "hall", mode: Mode::Shared }],
                if at == crowd - 1 { 2_000 } else { 1_000 },
                "reader",
                Secret::new([1; 16]),
            );
            assert!(matches!(book.apply(Command::Acquire(claim), start).reply, Reply::Granted(_)));
        }
        let seen = book.inspect("hall", start).expect("it is held");
        assert_eq!((seen.holders.len(), seen.holders_total), (MAX_HOLDERS_SHOWN, crowd));
        let mut listed = Vec::new();
        book.scan(0, 10, "", start, |view| listed.push((view.holders.len(), view.holders_total)));
        assert_eq!(listed, [(MAX_WAITERS_SHOWN, crowd)]);
        let late = start.plus_millis(1_000);
        let seen = book.inspect("hall", late).expect("one is left");
        assert_eq!((seen.holders.len(), seen.holders_total), (1, 1), "who is over is not counted");
    }
}
