//! A resource in use: who has it, and who waits for it.
//!
//! The common case, one exclusive holder and nobody waiting, is 40 bytes. Everything else is behind one
//! pointer and is freed when it is no longer needed.

use std::collections::VecDeque;

use compact_str::CompactString;

use crate::command::Mode;

pub(super) const NIL: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct ResourceEntry {
    pub name: CompactString,
    first: u32,
    extra: Option<Box<ResourceExtras>>,
}

/// How the resource is held now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    Free,
    Exclusive,
    Shared,
    Permits { used: u32 },
}

#[derive(Debug)]
struct ResourceExtras {
    held: Use,
    /// Zero until a permit claim sets it.
    capacity: u32,
    /// Holders after the first.
    more: Vec<u32>,
    queue: VecDeque<QueuePlace>,
    demand: Demand,
}

/// One entry of a queue: the order of arrival, and the slot of the waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueuePlace {
    pub arrival: u64,
    pub waiter: u32,
}

/// What some waiting claims want of one resource, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Demand {
    pub exclusive: u32,
    pub shared: u32,
    pub permits: u64,
}

impl Demand {
    pub fn add(&mut self, mode: Mode) {
        match mode {
            Mode::Exclusive => self.exclusive += 1,
            Mode::Shared => self.shared += 1,
            Mode::Permits { count, .. } => self.permits += u64::from(count),
        }
    }

    fn subtract(&mut self, mode: Mode) {
        match mode {
            Mode::Exclusive => self.exclusive -= 1,
            Mode::Shared => self.shared -= 1,
            Mode::Permits { count, .. } => self.permits -= u64::from(count),
        }
    }

    /// Whether these earlier claims conflict with this one: it would not be admitted beside them.
    pub fn blocks(&self, mode: Mode, held: Use) -> bool {
        if self.exclusive > 0 {
            return true;
        }
        match mode {
            Mode::Exclusive => self.shared > 0 || self.permits > 0,
            Mode::Shared => self.permits > 0,
            Mode::Permits { count, capacity } => {
                let used = if let Use::Permits { used } = held { u64::from(used) } else { 0 };
                self.shared > 0 || (self.permits > 0 && used + self.permits + u64::from(count) > u64::from(capacity))
            }
        }
    }
}

impl ResourceEntry {
    pub fn new(name: &str) -> Self {
        Self { name: name.into(), first: NIL, extra: None }
    }

    pub fn current_use(&self) -> Use {
        match &self.extra {
            Some(extra) => extra.held,
            None if self.first == NIL => Use::Free,
            None => Use::Exclusive,
        }
    }

    /// Whether the present holders leave room for this claim.
    pub fn admits(&self, mode: Mode) -> bool {
        match (self.current_use(), mode) {
            (Use::Free, _) | (Use::Shared, Mode::Shared) => true,
            (Use::Permits { used }, Mode::Permits { count, capacity }) => {
                used.checked_add(count).is_some_and(|sum| sum <= capacity)
            }
            _ => false,
        }
    }

    /// Whether neither the holders nor those who wait are in the way of a new claim.
    pub fn grants_at_once(&self, mode: Mode) -> bool {
        self.admits(mode) && !self.demand().blocks(mode, self.current_use())
    }

    /// The capacity, once a permit claim has set it.
    pub fn capacity(&self) -> u32 {
        self.extra.as_ref().map_or(0, |extra| extra.capacity)
    }

    pub fn holders(&self) -> impl Iterator<Item = u32> + '_ {
        let more = self.extra.as_ref().map_or(&[][..], |extra| &extra.more);
        (self.first != NIL).then_some(self.first).into_iter().chain(more.iter().copied())
    }

    pub fn holder_count(&self) -> usize {
        let more = self.extra.as_ref().map_or(0, |extra| extra.more.len());
        usize::from(self.first != NIL) + more
    }

    pub fn is_idle(&self) -> bool {
        self.first == NIL && self.queue_len() == 0
    }

    /// Adds a holder. The caller has checked [`Self::admits`].
    pub fn add_holder(&mut self, lease: u32, mode: Mode) {
        if self.first == NIL && self.extra.is_none() && mode == Mode::Exclusive {
            self.first = lease;
            return;
        }
        let first = self.first;
        let extra = self.extra_mut();
        extra.held = match (extra.held, mode) {
            (_, Mode::Exclusive) => Use::Exclusive,
            (_, Mode::Shared) => Use::Shared,
            (Use::Permits { used }, Mode::Permits { count, .. }) => Use::Permits { used: used.saturating_add(count) },
            (_, Mode::Permits { count, .. }) => Use::Permits { used: count },
        };
        if let Mode::Permits { capacity, .. } = mode {
            extra.capacity = capacity;
        }
        if first == NIL {
            self.first = lease;
        } else {
            extra.more.push(lease);
        }
    }

    /// Removes a holder.
    pub fn remove_holder(&mut self, lease: u32, mode: Mode) {
        if self.first == lease {
            self.first = self.extra.as_mut().and_then(|extra| extra.more.pop()).unwrap_or(NIL);
        } else if let Some(extra) = &mut self.extra
            && let Some(at) = extra.more.iter().position(|other| *other == lease)
        {
            extra.more.swap_remove(at);
        }
        let empty = self.first == NIL;
        if let Some(extra) = &mut self.extra {
            extra.held = match (extra.held, mode) {
                _ if empty => Use::Free,
                (Use::Permits { used }, Mode::Permits { count, .. }) => Use::Permits { used: used - count },
                (held, _) => held,
            };
        }
        self.free_unused();
    }

    pub fn queue_len(&self) -> usize {
        self.extra.as_ref().map_or(0, |extra| extra.queue.len())
    }

    pub fn demand(&self) -> Demand {
        self.extra.as_ref().map_or_else(Demand::default, |extra| extra.demand)
    }

    pub fn place(&self, at: usize) -> Option<QueuePlace> {
        self.extra.as_ref()?.queue.get(at).copied()
    }

    pub fn queue(&self) -> impl Iterator<Item = QueuePlace> + '_ {
        self.extra.iter().flat_map(|extra| extra.queue.iter().copied())
    }

    pub fn join_queue(&mut self, place: QueuePlace, mode: Mode) {
        let extra = self.extra_mut();
        extra.queue.push_back(place);
        extra.demand.add(mode);
        if let Mode::Permits { capacity, .. } = mode {
            extra.capacity = capacity;
        }
    }

    pub fn leave_queue(&mut self, arrival: u64, mode: Mode) {
        if let Some(extra) = &mut self.extra
            && let Ok(at) = extra.queue.binary_search_by_key(&arrival, |place| place.arrival)
        {
            extra.queue.remove(at);
            extra.demand.subtract(mode);
        }
        self.free_unused();
    }

    fn extra_mut(&mut self) -> &mut ResourceExtras {
        let held = if self.first == NIL { Use::Free } else { Use::Exclusive };
        self.extra.get_or_insert_with(|| {
            Box::new(ResourceExtras {
                held,
                capacity: 0,
                more: Vec::new(),
                queue: VecDeque::new(),
                demand: Demand::default(),
            })
        })
    }

    /// Frees what a resource with one exclusive holder and no queue does not need.
    fn free_unused(&mut self) {
        if let Some(extra) = &self.extra
            && extra.queue.is_empty()
            && extra.more.is_empty()
            && matches!(extra.held, Use::Free | Use::Exclusive)
        {
            self.extra = None;
        }
    }
}
