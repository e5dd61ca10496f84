//! Group commit: the book, and the replies that wait until their facts are durable.
//!
//! ```text
//!   submit ──▶ book ──▶ replies of this batch ──▶ seal ──▶ journal ──▶ settle ──▶ replies leave
//! ```
//!
//! No thread, no lock and no file in here: the engine drives it under its lock, the simulator from one thread.
//!
//! # Laws
//!
//! 1. No reply leaves before every fact the book had recorded when it was decided is durable. This holds
//!    for refusals and reads too: a refusal because of a grant that a crash then forgets would be wrong.
//! 2. Sealed batches are settled in order, one at a time.
//! 3. A raised floor is in force before its reply leaves, and a ceiling above it is durable before that.

use std::collections::HashMap;

use leasehold_core::{Book, Command, Effect, Reply, Time, Token, WaiterId};

/// Larger buffers are freed instead of kept for the next batch.
const MAX_IDLE_FACT_BYTES: usize = 4 << 20;
const MAX_IDLE_REPLIES: usize = 1 << 16;

/// A batch on its way to the disk.
#[derive(Debug)]
pub struct Batch<A> {
    /// The facts; empty when only replies wait.
    pub facts: Vec<u8>,
    /// The replies to send when the facts are durable, and where to.
    pub replies: Vec<(A, Reply)>,
    /// The events for watchers, encoded, and how many. Published when the facts are durable.
    pub news: (Vec<u8>, u64),
}

/// See the module. `A` says where a reply goes.
#[derive(Debug)]
pub struct GroupCommit<A> {
    /// The book. Change it through [`GroupCommit::submit`] only.
    pub book: Book,
    /// Claims that wait in a queue of the book.
    waiting: HashMap<WaiterId, A>,
    /// Answers of the batch that is being gathered.
    replies: Vec<(A, Reply)>,
    next_waiter_id: u64,
    /// A sealed batch is not settled yet.
    in_flight: bool,
    /// The floor that the sealed batch raises; 0 if it raises none.
    floor: u64,
    /// Empty buffers of an earlier batch, for the next one.
    idle_facts: Vec<u8>,
    idle_replies: Vec<(A, Reply)>,
}

impl<A> GroupCommit<A> {
    /// Over a recovered book, with nothing gathered.
    pub fn new(book: Book) -> Self {
        Self {
            book,
            waiting: HashMap::new(),
            replies: Vec::new(),
            next_waiter_id: 0,
            in_flight: false,
            floor: 0,
            idle_facts: Vec::new(),
            idle_replies: Vec::new(),
        }
    }

    /// An id that no waiter has had.
    pub const fn new_waiter_id(&mut self) -> WaiterId {
        self.next_waiter_id += 1;
        WaiterId(self.next_waiter_id)
    }

    /// Decides a command. Returns the reply if all it rests on is durable; otherwise the reply goes to `to`, later.
    pub fn submit(&mut self, command: Command<'_>, to: impl FnOnce() -> A, now: Time) -> Option<Reply> {
        let waiter_id = match &command {
            Command::Acquire(claim) => Some(claim.waiter_id),
            _ => None,
        };
        let outcome = self.book.apply(command, now);
        self.take_effects(outcome.effects);
        match (outcome.reply, waiter_id) {
            (Reply::Waiting, Some(waiter_id)) => {
                self.waiting.insert(waiter_id, to());
                None
            }
            (reply, _) => self.reply_when_durable(reply, to),
        }
    }

    /// Replies from the book as it stands: returns the reply if all the book knows is durable, otherwise adds it to the
    /// batch.
    pub fn reply_when_durable(&mut self, reply: Reply, to: impl FnOnce() -> A) -> Option<Reply> {
        if self.is_settled() {
            return Some(reply);
        }
        self.replies.push((to(), reply));
        None
    }

    /// Whether this waiter is in a queue.
    pub fn is_waiting(&self, waiter_id: WaiterId) -> bool {
        self.waiting.contains_key(&waiter_id)
    }

    /// Whether all that the book knows is durable.
    pub fn is_settled(&self) -> bool {
        !self.in_flight && !self.book.has_tape() && !self.book.has_floor()
    }

    /// Above which token more must be reserved before the sealed batch is settled. More are needed when fewer than
    /// `mark` are left, or its floor takes them. None if enough are reserved, or every token there can be.
    pub fn tokens_wanted(&self, mark: u64) -> Option<u64> {
        let above = self.floor.max(self.book.last_token());
        let ceiling = self.book.ceiling();
        (ceiling.saturating_sub(above) < mark && ceiling < Token::MAX.get()).then_some(above)
    }

    /// Ends what is due by time, up to `budget`; nobody waits for the reply.
    pub fn tick(&mut self, budget: u32, now: Time) {
        let outcome = self.book.apply(Command::Tick { budget }, now);
        self.take_effects(outcome.effects);
    }

    /// The caller of a waiting acquire is gone. `false`: it is not waiting any more.
    pub fn cancel(&mut self, waiter_id: WaiterId, now: Time) -> bool {
        if self.waiting.remove(&waiter_id).is_none() {
            return false;
        }
        let outcome = self.book.apply(Command::Cancel { waiter_id }, now);
        self.take_effects(outcome.effects);
        true
    }

    fn take_effects(&mut self, effects: Vec<Effect>) {
        for Effect { waiter_id, reply } in effects {
            if let Some(to) = self.waiting.remove(&waiter_id) {
                self.replies.push((to, reply));
            }
        }
    }

    /// How many replies wait for the next batch.
    pub fn replies_waiting(&self) -> usize {
        self.replies.len()
    }

    /// Whether there are facts to write or replies to send.
    pub fn has_work(&self) -> bool {
        self.book.has_tape() || !self.replies.is_empty()
    }

    /// Takes the gathered batch. It must be settled, or the engine stopped, before the next one is sealed.
    pub fn seal(&mut self) -> Batch<A> {
        assert!(!self.in_flight, "one batch is under way at a time");
        self.in_flight = true;
        self.floor = self.book.take_floor();
        let empty = std::mem::take(&mut self.idle_facts);
        let replies = std::mem::take(&mut self.idle_replies);
        Batch {
            facts: self.book.take_tape(empty),
            replies: std::mem::replace(&mut self.replies, replies),
            news: self.book.take_news(),
        }
    }

    /// The sealed batch is durable, and so is `ceiling`: its replies may leave. Takes back the buffer of its facts.
    pub fn settle(&mut self, mut facts: Vec<u8>, ceiling: u64) {
        self.in_flight = false;
        self.book.set_ceiling(ceiling);
        self.book.skip_tokens_to(std::mem::take(&mut self.floor));
        facts.clear();
        // A burst must not keep its memory for ever.
        if facts.capacity() <= MAX_IDLE_FACT_BYTES {
            self.idle_facts = facts;
        }
    }

    /// Takes back the buffer of a batch's replies.
    pub fn return_replies(&mut self, replies: Vec<(A, Reply)>) {
        if replies.is_empty() && replies.capacity() <= MAX_IDLE_REPLIES {
            self.idle_replies = replies;
        }
    }

    /// The engine stops. Returns those who wait in a queue, which had no effect, and those who wait for the disk.
    pub fn give_up(&mut self) -> (Vec<A>, Vec<A>) {
        let waiting = self.waiting.drain().map(|(_, to)| to).collect();
        let unsettled = self.replies.drain(..).map(|(to, _)| to).collect();
        (waiting, unsettled)
    }
}
