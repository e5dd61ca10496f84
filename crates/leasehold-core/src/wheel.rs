//! The timer: which entry is due next, in constant time.
//!
//! A hierarchical timing wheel of one-millisecond ticks: eight levels of 64 slots, which is
//! more than 64 bits of nanoseconds need. Entries are indices into the caller's table; the links are here, twelve
//! bytes each.
//!
//! # Laws
//!
//! 1. Nothing comes out before its deadline.
//! 2. Work is done in steps of the caller's choosing: a million entries due in one millisecond are a
//!    million small steps, and so is moving them down a level. Falling behind is harmless, since the book
//!    compares deadlines itself; the wheel only decides when they are looked at.
//! 3. A deadline that moved later (a renewal) costs nothing until its old slot comes up: the wheel asks
//!    for the deadline again and puts the entry where it now belongs.

use crate::block_vec::BlockVec;
use crate::time::Time;

const NIL: u32 = u32::MAX;
/// 48 bits of milliseconds: the last moment that a [`Time`] can name has 45.
const LEVELS: usize = 8;
const SLOTS_PER_LEVEL: usize = 64;
/// What was due already when it was armed; the slots come before it.
const PENDING: u16 = (LEVELS * SLOTS_PER_LEVEL) as u16;
const NO_LIST: u16 = u16::MAX;
const NANOS_PER_TICK: u64 = 1_000_000;
#[derive(Clone, Copy, Debug)]
struct Node {
    prev: u32,
    next: u32,
    list: u16,
}

const UNLINKED: Node = Node { prev: NIL, next: NIL, list: NO_LIST };

/// See the module.
#[derive(Debug)]
pub struct Wheel {
    nodes: BlockVec<Node>,
    heads: Vec<u32>,
    occupied: [u64; LEVELS],
    tick: u64,
}

impl Default for Wheel {
    fn default() -> Self {
        Self { nodes: BlockVec::default(), heads: vec![NIL; PENDING as usize + 1], occupied: [0; LEVELS], tick: 0 }
    }
}

impl Wheel {
    /// Arms the entry; if it is armed already, moves it.
    pub fn arm(&mut self, entry: u32, deadline: Time) {
        self.disarm(entry);
        let list = self.list_for(ceil_tick(deadline));
        self.link(entry, list);
    }

    /// Takes the entry off the wheel; harmless if it is not on it.
    pub fn disarm(&mut self, entry: u32) {
        let at = entry as usize;
        while at >= self.nodes.len() {
            self.nodes.push(UNLINKED);
        }
        let node = self.nodes[at];
        if node.list == NO_LIST {
            return;
        }
        match node.prev {
            NIL => self.heads[node.list as usize] = node.next,
            prev => self.nodes[prev as usize].next = node.next,
        }
        if node.next != NIL {
            self.nodes[node.next as usize].prev = node.prev;
        }
        if self.heads[node.list as usize] == NIL {
            self.mark_empty(node.list);
        }
        self.nodes[at] = UNLINKED;
    }

    /// Takes out the next entry that is due at `now`, spending at most what is left of `budget`.
    ///
    /// `deadline` says where an entry stands by now. `None` means nothing is due, or the budget is spent.
    pub fn pop(&mut self, now: Time, budget: &mut u32, deadline: impl Fn(u32) -> Time) -> Option<u32> {
        let to = now.as_nanos() / NANOS_PER_TICK;
        loop {
            let (start, list) = self.next_list()?;
            if start > to {
                // Nothing starts between here and there, so the hand may move without passing anyone.
                self.tick = self.tick.max(to);
                return None;
            }
            self.tick = self.tick.max(start);
            *budget = budget.checked_sub(1)?;
            let entry = self.heads[list as usize];
            self.disarm(entry);
            let due = deadline(entry);
            if due <= now {
                return Some(entry);
            }
            let list = self.list_for(ceil_tick(due).max(self.tick + 1));
            self.link(entry, list);
        }
    }

    /// When to look again: at most a tick after the first deadline, possibly before it. `None` when empty.
    #[must_use]
    pub fn next(&self) -> Option<Time> {
        self.next_list().map(|(start, _)| Time::from_nanos(start.saturating_mul(NANOS_PER_TICK)))
    }

    /// The first list with anything in it, and the tick it starts at.
    fn next_list(&self) -> Option<(u64, u16)> {
        if self.heads[PENDING as usize] != NIL {
            return Some((self.tick, PENDING));
        }
        // A slot under the hand on a higher level is being moved down; what is left of it comes first.
        for level in (1..LEVELS).rev() {
            let slot = (self.tick >> (6 * level)) & 63;
            if self.occupied[level] >> slot & 1 == 1 {
                return Some((self.tick, (level * SLOTS_PER_LEVEL) as u16 + slot as u16));
            }
        }
        for level in 0..LEVELS {
            let shift = 6 * level as u32;
            let hand = (self.tick >> shift) & 63;
            // Slots behind the hand are empty: entries on a level share all higher bits with the hand.
            let ahead = self.occupied[level] >> hand;
            if ahead != 0 {
                let slot = hand + u64::from(ahead.trailing_zeros());
                let block = (self.tick >> shift) & !63;
                return Some(((block | slot) << shift, (level * SLOTS_PER_LEVEL) as u16 + slot as u16));
            }
        }
        None
    }

    fn list_for(&self, tick: u64) -> u16 {
        if tick <= self.tick {
            return PENDING;
        }
        let apart = tick ^ self.tick;
        let level = ((63 - apart.leading_zeros()) / 6) as usize;
        let slot = (tick >> (6 * level)) & 63;
        (level * SLOTS_PER_LEVEL) as u16 + slot as u16
    }

    fn link(&mut self, entry: u32, list: u16) {
        let head = self.heads[list as usize];
        self.nodes[entry as usize] = Node { prev: NIL, next: head, list };
        if head != NIL {
            self.nodes[head as usize].prev = entry;
        }
        self.heads[list as usize] = entry;
        if list != PENDING {
            self.occupied[list as usize / SLOTS_PER_LEVEL] |= 1 << (list as usize % SLOTS_PER_LEVEL);
        }
    }

    fn mark_empty(&mut self, list: u16) {
        if list != PENDING {
            self.occupied[list as usize / SLOTS_PER_LEVEL] &= !(1 << (list as usize % SLOTS_PER_LEVEL));
        }
    }
}

/// Rounded up: a deadline in the middle of a tick is not due at its beginning.
const fn ceil_tick(deadline: Time) -> u64 {
    deadline.as_nanos().div_ceil(NANOS_PER_TICK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn drain(wheel: &mut Wheel, now: Time, deadlines: &BTreeMap<u32, Time>) -> Vec<u32> {
        let mut out = Vec::new();
        let mut budget = u32::MAX;
        while let Some(entry) = wheel.pop(now, &mut budget, |entry| deadlines[&entry]) {
            out.push(entry);
        }
        out
    }

    #[derive(Clone, Debug)]
    enum WheelStep {
        Arm(u32, u64),
        Postpone(u32, u64),
        Disarm(u32),
        Advance(u64, u32),
    }

    fn step() -> impl Strategy<Value = WheelStep> {
        let span = prop_oneof![0..200u64, 0..100_000_000u64, 0..(1u64 << 45), any::<u64>().prop_map(|n| n >> 1)];
        prop_oneof![
            (0..20u32, span.clone()).prop_map(|(e, d)| WheelStep::Arm(e, d)),
            (0..20u32, span.clone()).prop_map(|(e, d)| WheelStep::Postpone(e, d)),
            (0..20u32).prop_map(WheelStep::Disarm),
            (span, 1..40u32).prop_map(|(d, b)| WheelStep::Advance(d, b)),
        ]
    }

    proptest! {
        /// Goal: with any budget, nothing early, nothing lost, and `next` never after the first deadline.
        #[test]
        fn the_wheel_agrees_with_a_sorted_map(steps in proptest::collection::vec(step(), 1..200)) {
            let mut wheel = Wheel::default();
            let mut model: BTreeMap<u32, Time> = BTreeMap::new();
            let mut now = 0u64;
            for step in steps {
                match step {
                    WheelStep::Arm(entry, after) => {
                        let at = Time::from_nanos(now.saturating_add(after));
                        wheel.arm(entry, at);
                        model.insert(entry, at);
                    }
                    // As a renewal does: the deadline moves later and the wheel is not told.
                    WheelStep::Postpone(entry, after) => {
                        if let Some(at) = model.get_mut(&entry) {
                            *at = Time::from_nanos(at.as_nanos().saturating_add(after));
                        }
                    }
                    WheelStep::Disarm(entry) => {
                        wheel.disarm(entry);
                        model.remove(&entry);
                    }
                    WheelStep::Advance(by, mut budget) => {
                        now = now.saturating_add(by).min(u64::MAX >> 2);
                        let at = Time::from_nanos(now);
                        while let Some(entry) = wheel.pop(at, &mut budget, |e| model[&e]) {
                            let due = model.remove(&entry);
                            prop_assert!(due.is_some_and(|due| due <= at), "early or unknown");
                        }
                        if budget > 0 {
                            // Within the tick of `now` a deadline may still be ahead of the hand.
                            let floor = Time::from_nanos(now / NANOS_PER_TICK * NANOS_PER_TICK);
                            prop_assert!(model.values().all(|due| *due > floor), "late");
                        }
                    }
                }
                if let Some(first) = model.values().min() {
                    let next = wheel.next().expect("armed entries have a next");
                    let cap = Time::from_nanos(first.as_nanos().div_ceil(NANOS_PER_TICK).saturating_mul(NANOS_PER_TICK));
                    prop_assert!(next <= cap || next.as_nanos() / NANOS_PER_TICK <= now / NANOS_PER_TICK);
                } else {
                    prop_assert!(wheel.next().is_none());
                }
            }
        }
    }

    #[test]
    fn a_deadline_between_two_ticks_is_not_early() {
        let mut wheel = Wheel::default();
        let deadlines = BTreeMap::from([(0, Time::from_nanos(1_500_000))]);
        wheel.arm(0, deadlines[&0]);
        assert!(drain(&mut wheel, Time::from_nanos(1_499_999), &deadlines).is_empty());
        assert_eq!(drain(&mut wheel, Time::from_millis(2), &deadlines), [0]);
    }

    #[test]
    fn deadlines_at_the_edges_of_the_span_come_out_once() {
        for power in [30, 31, 36, 42, 43] {
            for off in [-1i64, 0, 1] {
                let tick = (1u64 << power).saturating_add_signed(off);
                let deadlines = BTreeMap::from([(3, Time::from_nanos(tick.saturating_mul(NANOS_PER_TICK)))]);
                let mut wheel = Wheel::default();
                wheel.arm(3, deadlines[&3]);
                let due = deadlines[&3];
                assert!(drain(&mut wheel, Time::from_nanos(due.as_nanos() - 1), &deadlines).is_empty(), "{tick}");
                assert_eq!(drain(&mut wheel, due, &deadlines), [3], "{tick}");
                assert!(wheel.next().is_none());
            }
        }
    }
}
