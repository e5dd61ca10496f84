//! The book: every lease we know of, and the only code that may change one.
//!
//! ```text
//!   Command, now ──▶ Book::apply ──▶ Outcome { reply, effects }
//!                       │ decide: may refuse, changes nothing
//!                       │ evolve: may not refuse, changes state
//!                       └──▶ tape: the facts, encoded, for the journal
//! ```
//!
//! # Laws
//!
//! 1. At most one exclusive lease per resource is live at any `now`; shared and permit leases as their
//!    modes say. A claim on several resources is granted whole or not at all.
//! 2. Tokens strictly increase, never past the ceiling that the shell reserved.
//! 3. A lease is live on the half-open span `[granted_at, expires_at)`. One function compares (`due`).
//! 4. A lease that ended stays ended: renewing never revives, releasing never touches a successor.
//! 5. A claim is granted when every resource admits it and no earlier waiting claim conflicts with it on any
//!    of them. A waiting claim holds nothing, so there is no deadlock.
//!
//! # Not here
//!
//! Durability (the journal), wire formats (the server), clocks and randomness (the shell).

mod counters;
mod decide;
mod ended_leases;
mod index;
mod keys;
mod lease;
#[cfg(test)]
mod long_path_tests;
mod prealloc;
mod principals;
mod queue;
mod resource;
mod snapshot;
mod state;
mod view;
mod waiters;

use crate::command::{Command, Effect, Outcome};
use crate::fact::{End, Fact};
use crate::limits::Limits;
use crate::news;
use crate::time::Time;
use crate::wire::{MalformedRecord, WireReader};

pub use counters::{Counters, Histogram};
pub use keys::KeyView;
pub use prealloc::{Prealloc, PreallocRequest};
pub use state::ClockMark;
pub use view::{HoldingView, ResourceView, WaitingView};

use lease::LeaseEntry;
use state::{BookState, RowRef};
use waiters::WaitQueue;

/// A record that breaks a law: it is damaged, or not ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct InvariantViolation(pub &'static str);

impl From<MalformedRecord> for InvariantViolation {
    fn from(_: MalformedRecord) -> Self {
        Self("every record parses")
    }
}

/// See the module.
#[derive(Debug)]
pub struct Book {
    state: BookState,
    queue: WaitQueue,
    limits: Limits,
    now: Time,
    /// The highest token that may be given out: reserved on disk by the shell.
    ceiling: u64,
    /// A raised floor that the shell has not taken yet; 0 if there is none.
    floor: u64,
    tape: Vec<u8>,
    /// Events for watchers, encoded beside the tape; none if events are not kept.
    news: Option<PendingNews>,
    counters: Counters,
    effects: Vec<Effect>,
    /// Resources whose queue must be examined again.
    todo: Vec<u32>,
}

/// Events that the shell has not taken yet.
#[derive(Debug, Default)]
struct PendingNews {
    bytes: Vec<u8>,
    count: u64,
}

/// How many entries the book has, for gauges and checkers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Leases that are held.
    pub leases: usize,
    /// Lapsed leases whose resources are still closed.
    pub closing: usize,
    /// Claims that wait in a queue.
    pub waiters: usize,
    /// Ended leases that are remembered.
    pub endings: usize,
}

impl Book {
    /// An empty book. `seed` keys the hash tables, since clients choose the names: make it random.
    #[must_use]
    pub fn new(limits: Limits, seed: u64) -> Self {
        Self {
            state: BookState::new(limits.endings, seed),
            queue: WaitQueue::new(seed),
            limits,
            now: Time::ZERO,
            ceiling: 0,
            floor: 0,
            tape: Vec::new(),
            news: None,
            counters: Counters::default(),
            effects: Vec::new(),
            todo: Vec::new(),
        }
    }

    /// Decides a command at `now`. Facts go to the tape. No reply may leave before they are durable.
    pub fn apply(&mut self, command: Command<'_>, now: Time) -> Outcome {
        self.now = self.now.max(now);
        let now = self.now;
        let reply = match command {
            Command::Acquire(claim) => self.acquire(&claim, now),
            Command::Renew { lease, ttl_ms } => self.renew(lease, ttl_ms, now),
            Command::Relabel { lease, holder } => self.relabel(lease, holder, now),
            Command::Release { lease } => self.release(lease, now),
            Command::Revoke { name, reason } => self.revoke(name, reason, now),
            Command::Free(keys) => self.free(keys, now),
            Command::Extend { keys, push } => self.extend(keys, push, now),
            Command::Floor { raise } => self.ask_floor(raise),
            Command::Cancel { waiter_id } => self.cancel(waiter_id, now),
            Command::Tick { budget } => self.tick(budget, now),
        };
        Outcome { reply, effects: std::mem::take(&mut self.effects) }
    }

    /// Records that an engine started on this book. See [`Fact::Resumed`].
    pub fn resume(&mut self, mark: ClockMark, fresh: bool) {
        self.now = self.now.max(mark.at);
        self.record(&Fact::Resumed { at: mark.at, boot: mark.boot, boottime: mark.boottime, fresh });
    }

    /// Takes the facts recorded since the last call, encoded, and leaves `empty` for the next ones.
    pub fn take_tape(&mut self, empty: Vec<u8>) -> Vec<u8> {
        debug_assert!(empty.is_empty());
        std::mem::replace(&mut self.tape, empty)
    }

    /// The facts recorded since they were last taken, for checkers.
    #[must_use]
    pub fn tape(&self) -> &[u8] {
        &self.tape
    }

    /// Whether any facts wait to be taken.
    #[must_use]
    pub fn has_tape(&self) -> bool {
        !self.tape.is_empty()
    }

    /// Evolves by facts that were recorded before: replay. Calls `seen` with each.
    ///
    /// # Errors
    ///
    /// [`InvariantViolation`] if a fact does not parse or breaks a law.
    pub fn replay(&mut self, tape: &[u8], mut seen: impl FnMut(&Fact<'_>)) -> Result<(), InvariantViolation> {
        let mut reader = WireReader::new(tape);
        while reader.left() > 0 {
            let fact = Fact::decode(&mut reader)?;
            self.state.evolve(&fact)?;
            seen(&fact);
        }
        Ok(())
    }

    /// Moves the book's time forward to that of a journal frame.
    pub fn advance_to(&mut self, now: Time) {
        self.now = self.now.max(now);
    }

    /// Tokens may be given out up to here. The shell has made it durable in two places.
    pub fn set_ceiling(&mut self, ceiling: u64) {
        self.ceiling = ceiling;
    }

    /// The highest token that may be given out.
    #[must_use]
    pub const fn ceiling(&self) -> u64 {
        self.ceiling
    }

    /// How many tokens are left below the ceiling.
    #[must_use]
    pub const fn tokens_left(&self) -> u64 {
        self.ceiling.saturating_sub(self.state.last_token)
    }

    /// The newest token given out.
    #[must_use]
    pub const fn last_token(&self) -> u64 {
        self.state.last_token
    }

    /// Whether a raised floor waits to be taken.
    #[must_use]
    pub const fn has_floor(&self) -> bool {
        self.floor > self.state.last_token
    }

    /// Takes the floor that was asked for; 0 if there is none. The shell makes a ceiling above it durable, and only then
    /// calls [`Book::skip_tokens_to`]: skipping first would leave no token to grant until the ceiling is there.
    pub const fn take_floor(&mut self) -> u64 {
        std::mem::replace(&mut self.floor, 0)
    }

    /// Never gives out a token at or below this one again.
    pub fn skip_tokens_to(&mut self, token: u64) {
        self.state.last_token = self.state.last_token.max(token);
    }

    /// How the book's clock relates to the machine's clock, as of the last start.
    #[must_use]
    pub const fn clock(&self) -> ClockMark {
        self.state.clock
    }

    /// When [`Command::Tick`] next has something to do: at most a millisecond after the first deadline.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Time> {
        // Claims that only waited for tokens to be reserved are due at once.
        if !self.todo.is_empty() && self.tokens_left() > 0 {
            return Some(Time::ZERO);
        }
        match (self.state.wheel.next(), self.queue.wheel.next()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// The limits on claims.
    #[must_use]
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Counters since this book was opened.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How many entries there are.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts {
            leases: self.state.live,
            closing: self.state.closing,
            waiters: self.queue.len(),
            endings: self.state.ended_leases.len(),
        }
    }

    /// From now on, events are kept beside the tape, for [`Book::take_news`].
    pub fn keep_news(&mut self) {
        self.news.get_or_insert_default();
    }

    /// Takes the events since the last call, encoded, and how many they are. See [`crate::news`].
    pub fn take_news(&mut self) -> (Vec<u8>, u64) {
        self.news.as_mut().map_or_else(Default::default, |notes| {
            let taken = std::mem::take(notes);
            notes.bytes.reserve(taken.bytes.len().min(1 << 16));
            (taken.bytes, taken.count)
        })
    }

    fn count_fact(&mut self, fact: &Fact<'_>) {
        match fact {
            Fact::Granted(_) => self.counters.granted += 1,
            Fact::Ended { token, how, at, .. } => {
                match how {
                    End::Released => self.counters.released += 1,
                    End::Lapsed => self.counters.lapsed += 1,
                    End::Revoked => self.counters.revoked += 1,
                }
                if let Some(RowRef::Lease(slot)) = self.state.find_token(token.get()) {
                    self.counters.held.add(at.since(self.state.leases[slot as usize].granted_at));
                }
            }
            _ => {}
        }
    }

    /// Encodes the event for a fact. Called before the fact changes the state: afterwards the names of an ended lease
    /// are gone.
    fn encode_event(&mut self, fact: &Fact<'_>) {
        let Some(notes) = &mut self.news else { return };
        let out = &mut notes.bytes;
        match fact {
            Fact::Granted(record) => {
                let names = record.wants.iter().map(|want| want.name);
                news::encode(out, news::EventKind::Granted, record.token, record.granted_at, &record.holder, "", names);
            }
            Fact::Ended { token, how, at, reason, .. } => {
                let Some(RowRef::Lease(slot)) = self.state.find_token(token.get()) else { return };
                let lease = &self.state.leases[slot as usize];
                let parts = lease.parts.as_slice().iter();
                let names = parts.map(|part| self.state.resources[part.resource as usize].name.as_str());
                news::encode(out, (*how).into(), *token, *at, &lease.holder, reason, names);
            }
            Fact::Relabelled { token, holder } => {
                let Some(RowRef::Lease(slot)) = self.state.find_token(token.get()) else { return };
                let parts = self.state.leases[slot as usize].parts.as_slice().iter();
                let names = parts.map(|part| self.state.resources[part.resource as usize].name.as_str());
                news::encode(out, news::EventKind::Relabelled, *token, self.now, holder, "", names);
            }
            Fact::Freed { token, name } => {
                let Some(RowRef::Lease(slot)) = self.state.find_token(token.get()) else { return };
                let holder = &self.state.leases[slot as usize].holder;
                news::encode(out, news::EventKind::Released, *token, self.now, holder, "", [*name].into_iter());
            }
            Fact::Renewed { .. } | Fact::Reopened { .. } | Fact::Resumed { .. } => return,
        }
        notes.count += 1;
    }

    /// Applies the fact to the state and appends it to the tape. Nothing else changes durable state.
    fn record(&mut self, fact: &Fact<'_>) {
        self.count_fact(fact);
        self.encode_event(fact);
        // In this order: a fact that breaks a law must not reach the journal, even if the panic is caught.
        if let Err(InvariantViolation(law)) = self.state.evolve(fact) {
            panic!("decided a fact that breaks a law ({law}): {fact:?}");
        }
        fact.encode(&mut self.tape);
    }
}

/// Whether the lease is over by time. Only this function compares: two answers at the deadline would make two holders.
fn due(lease: &LeaseEntry, now: Time) -> bool {
    lease.expires_at <= now
}
