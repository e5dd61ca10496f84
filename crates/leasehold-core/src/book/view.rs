//! What everybody may see of a resource: no secret in it.

use std::time::Duration;

use super::lease::Phase;
use super::resource::{Resource, Use};
use super::{Book, due};
use crate::command::Mode;
use crate::time::Time;
use crate::token::Token;

/// At most this many waiters are shown one by one; the rest are counted.
const SHOWN: usize = 100;

/// One resource in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceView {
    /// Its name.
    pub name: String,
    /// How it is held, or wanted by the head of the queue.
    pub mode: Mode,
    /// Who has it.
    pub holders: Vec<HoldingView>,
    /// The first of those who wait.
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

/// One place in line.
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
        self.view(&self.state.resources[slot as usize], now.max(self.now))
    }

    /// Shows the resources of the next `count` slots from `cursor`, unordered. Says where to go on; `None` at the end.
    ///
    /// A listing of millions is made of many short looks, so that it never stops the book.
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
                && let Some(view) = self.view(resource, now.max(self.now))
            {
                show(view);
            }
        }
        (end < self.state.resources.len()).then_some(end)
    }

    fn view(&self, resource: &Resource, now: Time) -> Option<ResourceView> {
        let leases =
            || resource.holders().map(|slot| &self.state.leases[slot as usize]).filter(|lease| !due(lease, now));
        let queue_len = resource.queue_len();
        if queue_len == 0 && leases().next().is_none() {
            return None;
        }
        let holders = leases()
            .filter(|lease| lease.phase == Phase::Live)
            .map(|lease| HoldingView {
                holder: lease.holder.as_str().into(),
                token: lease.token(),
                since: now.since(lease.granted_at),
                remaining: lease.expires_at.since(now),
            })
            .collect();
        let waiters = resource
            .line()
            .take(SHOWN)
            .map(|place| {
                let waiter = self.line.get(place.waiter);
                WaitingView { holder: waiter.holder.as_str().into(), waiting: now.since(waiter.since) }
            })
            .collect();
        let mode = match resource.held() {
            Use::Exclusive => Mode::Exclusive,
            Use::Shared => Mode::Shared,
            Use::Permits { used } => Mode::Permits { count: used, capacity: resource.capacity() },
            Use::Free => self.head_mode(resource),
        };
        Some(ResourceView { name: resource.name.as_str().into(), mode, holders, waiters, queue_len })
    }

    fn head_mode(&self, resource: &Resource) -> Mode {
        let Some(place) = resource.place(0) else { return Mode::Exclusive };
        let name = &resource.name;
        let parts = &self.line.get(place.waiter).parts;
        parts
            .iter()
            .find(|(slot, _)| self.state.resources[*slot as usize].name == *name)
            .map_or(Mode::Exclusive, |(_, mode)| *mode)
    }
}
