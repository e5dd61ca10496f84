//! The desk: the book, and the answers that wait for the disk.
//!
//! ```text
//!   submit ──▶ book ──▶ answers of this batch ──▶ seal ──▶ journal ──▶ settle ──▶ answers leave
//! ```
//!
//! No thread and no lock in here: the engine drives it from two threads, the simulator from none.
//!
//! # Laws
//!
//! 1. No answer leaves before every fact the book had recorded when it was decided is durable. That goes for
//!    refusals and reads too: a "no" because of a grant that a crash then forgets would be a lie.
//! 2. SealedSegment batches are settled in order, one at a time.
//! 3. A raised floor is in force before its answer leaves, and a ceiling above it is durable before that.

use std::collections::HashMap;

use leasehold_core::planted::{self, Bug};
use leasehold_core::{Book, Command, Effect, Reply, Time, Token, WaiterId};

/// A batch on its way to the disk.
#[derive(Debug)]
pub struct Batch<A> {
    /// The facts; empty when only answers wait.
    pub facts: Vec<u8>,
    /// What may be told when they are durable, and to whom.
    pub answers: Vec<(A, Reply)>,
    /// What watchers may be told then, encoded, and how many pieces.
    pub news: (Vec<u8>, u64),
}

/// See the module. `A` is where an answer goes.
#[derive(Debug)]
pub struct GroupCommit<A> {
    /// The book. Change it through [`GroupCommit::submit`] only.
    pub book: Book,
    waiting: HashMap<WaiterId, A>,
    answers: Vec<(A, Reply)>,
    next_waiter_id: u64,
    /// A sealed batch is not settled yet.
    in_flight: bool,
    /// The floor that the sealed batch raises; 0 if it raises none.
    floor: u64,
    /// Buffers to write the next facts and answers into.
    idle_facts: Vec<u8>,
    idle_answers: Vec<(A, Reply)>,
}

impl<A> GroupCommit<A> {
    /// A desk over a recovered book.
    pub fn new(book: Book) -> Self {
        Self {
            book,
            waiting: HashMap::new(),
            answers: Vec::new(),
            next_waiter_id: 0,
            in_flight: false,
            floor: 0,
            idle_facts: Vec::new(),
            idle_answers: Vec::new(),
        }
    }

    /// A waiter_id that was never used.
    pub const fn waiter_id(&mut self) -> WaiterId {
        self.next_waiter_id += 1;
        WaiterId(self.next_waiter_id)
    }

    /// Decides a command. The answer comes back at once if nothing it rests on is still on its way to the
    /// disk; otherwise it goes to `to`, later.
    pub fn submit(&mut self, command: Command<'_>, to: impl FnOnce() -> A, now: Time) -> Option<Reply> {
        let waiter_id = match &command {
            Command::Acquire(claim) => Some(claim.waiter_id),
            _ => None,
        };
        let outcome = self.book.apply(command, now);
        self.post(outcome.effects);
        match (outcome.reply, waiter_id) {
            (Reply::Waiting, Some(waiter_id)) => {
                self.waiting.insert(waiter_id, to());
                None
            }
            (reply, _) => self.answer(reply, to),
        }
    }

    /// Hands out a reading of the book as it stands: at once, or when what it shows is durable.
    pub fn answer(&mut self, reply: Reply, to: impl FnOnce() -> A) -> Option<Reply> {
        let read = matches!(reply, Reply::Refused(_) | Reply::Ticked(_));
        if self.is_settled() || (read && planted::on(Bug::ReadAhead)) || planted::on(Bug::ReplyBeforeSync) {
            return Some(reply);
        }
        self.answers.push((to(), reply));
        None
    }

    /// Whether somebody waits under this waiter_id.
    pub fn is_waiting(&self, waiter_id: WaiterId) -> bool {
        self.waiting.contains_key(&waiter_id)
    }

    /// Whether all that the book knows is durable.
    pub fn is_settled(&self) -> bool {
        !self.in_flight && !self.book.has_tape() && !self.book.has_floor()
    }

    /// Above which token more must be reserved before the sealed batch is settled, if more must be: fewer than `mark`
    /// are left, or its floor takes them. None when every token there can be is reserved.
    pub fn tokens_wanted(&self, mark: u64) -> Option<u64> {
        let floor = if planted::on(Bug::FloorNotReserved) { 0 } else { self.floor };
        let above = floor.max(self.book.last_token());
        let ceiling = self.book.ceiling();
        (ceiling.saturating_sub(above) < mark && ceiling < Token::MAX.get()).then_some(above)
    }

    /// Collects what is due by time; nobody waits for this answer.
    pub fn tick(&mut self, budget: u32, now: Time) {
        let outcome = self.book.apply(Command::Tick { budget }, now);
        self.post(outcome.effects);
    }

    /// The caller of a waiting acquire went away. `false`: it is not waiting any more.
    pub fn cancel(&mut self, waiter_id: WaiterId, now: Time) -> bool {
        if self.waiting.remove(&waiter_id).is_none() {
            return false;
        }
        let outcome = self.book.apply(Command::Cancel { waiter_id }, now);
        self.post(outcome.effects);
        true
    }

    fn post(&mut self, effects: Vec<Effect>) {
        for Effect { waiter_id, reply } in effects {
            if let Some(to) = self.waiting.remove(&waiter_id) {
                self.answers.push((to, reply));
            }
        }
    }

    /// How many answers wait for the next batch.
    pub fn answers_waiting(&self) -> usize {
        self.answers.len()
    }

    /// Whether there is anything to write or to tell.
    pub fn has_work(&self) -> bool {
        self.book.has_tape() || !self.answers.is_empty()
    }

    /// Takes all that has gathered. It must be settled or failed before the next is sealed.
    pub fn seal(&mut self) -> Batch<A> {
        assert!(!self.in_flight, "one batch is under way at a time");
        self.in_flight = true;
        self.floor = self.book.take_floor();
        let empty = std::mem::take(&mut self.idle_facts);
        let answers = std::mem::take(&mut self.idle_answers);
        Batch {
            facts: self.book.take_tape(empty),
            answers: std::mem::replace(&mut self.answers, answers),
            news: self.book.take_news(),
        }
    }

    /// The batch is durable, and so is `ceiling`: its answers may leave. Takes back the buffer of its facts.
    pub fn settle(&mut self, mut facts: Vec<u8>, ceiling: u64) {
        self.in_flight = false;
        self.book.set_ceiling(ceiling);
        self.book.skip_tokens_to(std::mem::take(&mut self.floor));
        facts.clear();
        // A burst must not keep its memory for ever.
        if facts.capacity() <= 4 << 20 {
            self.idle_facts = facts;
        }
    }

    /// Gives back the buffer that a batch's answers left from.
    pub fn return_answers(&mut self, answers: Vec<(A, Reply)>) {
        if answers.is_empty() && answers.capacity() <= 1 << 16 {
            self.idle_answers = answers;
        }
    }

    /// The engine stops: everybody who waits, in line or for the disk. The first had no effect yet.
    pub fn give_up(&mut self) -> (Vec<A>, Vec<A>) {
        let in_line = self.waiting.drain().map(|(_, to)| to).collect();
        let unsettled = self.answers.drain(..).map(|(to, _)| to).collect();
        (in_line, unsettled)
    }
}
