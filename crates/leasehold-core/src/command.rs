//! What can be asked of the book, and what it answers.
//!
//! Commands borrow what the caller already has, so that a refused command costs no allocation.

use core::fmt;
use core::time::Duration;

use crate::token::{LeaseKey, Secret, Token};

/// How a resource is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Mode {
    /// Nobody beside me.
    Exclusive,
    /// Many readers, no exclusive holder.
    Shared,
    /// `count` of `capacity` permits.
    Permits {
        /// How many this claim takes.
        count: u32,
        /// How many there are; set by the first claim on the resource.
        capacity: u32,
    },
}

/// One resource of a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Want<'a> {
    /// The resource.
    pub name: &'a str,
    /// How it is wanted.
    pub mode: Mode,
}

/// The id of an acquire that may have to wait. Chosen by the shell, unique among waiters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub struct WaiterId(pub u64);

/// A request id, scoped to who asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestId<'a> {
    /// The principal.
    pub scope: &'a str,
    /// The same in every retry.
    pub id: &'a str,
}

/// A claim on one or more resources, all or nothing. Times are whole milliseconds. `Debug` hides the value.
#[derive(Clone, Copy)]
pub struct Acquire<'a> {
    /// Who to answer if this waits.
    pub waiter_id: WaiterId,
    /// What is wanted.
    pub wants: &'a [Want<'a>],
    /// Asked life.
    pub ttl_ms: u64,
    /// How long to wait in the queue; zero does not wait.
    pub wait_ms: u64,
    /// Renewals never push the end past grant + this.
    pub max_hold_ms: Option<u64>,
    /// How long the resources stay closed after a lapse.
    pub delay_ms: u64,
    /// Public label of who holds it.
    pub holder: &'a str,
    /// Makes a retry have one effect.
    pub request: Option<RequestId<'a>>,
    /// The secret that the lease gets if it is granted. Random, from the shell: the core has no randomness.
    pub secret: Secret,
    /// Who it is counted for; empty where principals are not distinguished.
    pub principal: &'a str,
    /// What the holder's key shows: only a lease taken as a Redis key has one, and it proves ownership there.
    pub value: Option<&'a [u8]>,
}

impl<'a> Want<'a> {
    /// The resource for one holder alone.
    #[must_use]
    pub const fn exclusive(name: &'a str) -> Self {
        Self { name, mode: Mode::Exclusive }
    }
}

impl<'a> Acquire<'a> {
    /// A claim that does not wait, without a cap, a delay, a request id, a principal or a value.
    #[must_use]
    pub const fn new(waiter_id: WaiterId, wants: &'a [Want<'a>], ttl_ms: u64, holder: &'a str, secret: Secret) -> Self {
        Self {
            waiter_id,
            wants,
            ttl_ms,
            wait_ms: 0,
            max_hold_ms: None,
            delay_ms: 0,
            holder,
            request: None,
            secret,
            principal: "",
            value: None,
        }
    }
}

impl fmt::Debug for Acquire<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire")
            .field("waiter_id", &self.waiter_id)
            .field("wants", &self.wants)
            .field("ttl_ms", &self.ttl_ms)
            .field("wait_ms", &self.wait_ms)
            .field("max_hold_ms", &self.max_hold_ms)
            .field("delay_ms", &self.delay_ms)
            .field("holder", &self.holder)
            .field("request", &self.request)
            .field("principal", &self.principal)
            .finish_non_exhaustive()
    }
}

/// Names as Redis clients use them: keys with a value, whoever shows the value owns the key. `Debug` hides it.
#[derive(Clone, Copy)]
pub struct Keys<'a> {
    /// Which.
    pub names: &'a [&'a str],
    /// Only keys with this value; without it every key that has one.
    pub value: Option<&'a [u8]>,
}

impl fmt::Debug for Keys<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").field("names", &self.names).finish_non_exhaustive()
    }
}

/// How far the end of a key is pushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Push {
    /// To now + this.
    Set(u64),
    /// By this.
    Add(u64),
}

/// What can be asked of the book.
#[derive(Clone, Copy, Debug)]
pub enum Command<'a> {
    /// Take resources, all or nothing.
    Acquire(Acquire<'a>),
    /// Push the end; the last ttl if none is given.
    Renew {
        /// Which, and the proof.
        lease: LeaseKey,
        /// Asked life, in milliseconds.
        ttl_ms: Option<u64>,
    },
    /// Give it another public label, by its owner.
    Relabel {
        /// Which, and the proof.
        lease: LeaseKey,
        /// The new label.
        holder: &'a str,
    },
    /// End it, by its owner.
    Release {
        /// Which, and the proof.
        lease: LeaseKey,
    },
    /// End every lease on a resource, by an operator.
    Revoke {
        /// The resource.
        name: &'a str,
        /// Why, for the record.
        reason: &'a str,
    },
    /// Free keys, as Redis deletes them: one of several frees that one only.
    Free(Keys<'a>),
    /// Push the end of keys, all or none of them; a key alone may also be shortened.
    Extend {
        /// Which.
        keys: Keys<'a>,
        /// How far, in milliseconds.
        push: Push,
    },
    /// Say below what no token will come any more; with a token, first let no token at or below it come. The raise is in
    /// force when the shell has made it durable: see [`crate::Book::take_floor`].
    Floor {
        /// How far to raise it; none only asks.
        raise: Option<Token>,
    },
    /// The caller of a waiting acquire is gone.
    Cancel {
        /// The id that the acquire had.
        waiter_id: WaiterId,
    },
    /// Time has passed: end what is due, at most `budget` of it.
    Tick {
        /// How many to end at most.
        budget: u32,
    },
}

/// What the book decided, and what the caller of it must now do.
#[derive(Debug, PartialEq)]
pub struct Outcome {
    /// The answer to this command.
    pub reply: Reply,
    /// Replies to waiting claims that this command decided.
    pub effects: Vec<Effect>,
}

/// Work for the shell: a reply to an acquire that waited.
#[derive(Debug, PartialEq)]
pub struct Effect {
    /// Who waited.
    pub waiter_id: WaiterId,
    /// The answer: granted or refused.
    pub reply: Reply,
}

/// The answer to a command.
#[derive(Debug, PartialEq)]
pub enum Reply {
    /// The claim is granted, or was granted to an earlier try of the same request.
    Granted(Granted),
    /// The claim waits; the answer comes as an [`Effect`].
    Waiting,
    /// The end was pushed.
    Renewed(Renewed),
    /// The lease has its new label.
    Relabelled,
    /// `true`: this command ended the lease; `false`: it had been released before.
    Released(bool),
    /// How many leases were ended.
    Revoked(usize),
    /// How many keys were freed.
    Freed(usize),
    /// How many keys had their end pushed: all that were named, or none.
    Extended(usize),
    /// No token below this one will come any more.
    Floor(Token),
    /// Whether it was still waiting.
    Cancelled(bool),
    /// What was due has been ended; `true`: there is more.
    Ticked(bool),
    /// A considered no.
    Refused(Refusal),
    /// It can never succeed as written.
    Invalid(String),
    /// The reserved tokens are used up until the shell reserves more. No effect; ask again.
    NoTokens,
}

/// A granted claim.
#[derive(Clone, Copy, Debug)]
pub struct Granted {
    /// Token and secret.
    pub lease: LeaseKey,
    /// Life left; zero if a repeated request's lease has ended.
    pub remaining: Duration,
    /// How far renewals can still push the end; none without a cap.
    pub renewable: Option<Duration>,
    /// This answers a repeated request; nothing new was granted.
    pub repeated: bool,
}

impl PartialEq for Granted {
    fn eq(&self, other: &Self) -> bool {
        self.lease.token == other.lease.token
            && self.lease.secret.matches(&other.lease.secret)
            && (self.remaining, self.renewable, self.repeated) == (other.remaining, other.renewable, other.repeated)
    }
}

/// A renewed lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewed {
    /// Life left.
    pub remaining: Duration,
    /// How far renewals can still push the end; none without a cap.
    pub renewable: Option<Duration>,
}

/// The considered no.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Somebody holds it, or waits for it and came earlier.
    Held(Box<HeldDetails>),
    /// It was yours and has ended: it lapsed or was revoked.
    Stale,
    /// Not known: it never was, or is forgotten, or the proof is wrong. One answer for all three.
    NotHeld,
    /// Too many wait for this resource, or in all.
    QueueFull(String),
    /// Too many leases.
    Quota(String),
    /// The request id was used before with another body.
    Mismatch,
}

/// What is in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldDetails {
    /// The first resource of the claim that does not admit it.
    pub resource: String,
    /// Who has it; none when only a queue or a closing delay is in the way.
    pub holder: Option<String>,
    /// The holder's token.
    pub token: Option<Token>,
    /// How long it can still be held without renewal.
    pub remaining: Option<Duration>,
    /// How many wait for it.
    pub queue_len: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::book::KeyView;
    use crate::token::Token;

    /// Goal: what proves ownership is not printed by whoever prints a command or a key: a value is the secret of a lock
    /// that was taken by SET.
    #[test]
    fn debug_hides_values_and_secrets() {
        let (value, secret) = (Some(&b"hunter2"[..]), Secret::new([0xab; 16]));
        let acquire = Acquire { value, ..Acquire::new(WaiterId(1), &[], 1, "ada", secret) };
        let keys = Keys { names: &["seat"], value };
        let view = KeyView { value, remaining: Duration::ZERO, token: Token::new(7).expect("above zero") };
        let all = format!("{acquire:?} {keys:?} {view:?} {:?} {:?}", Command::Acquire(acquire), Command::Free(keys));
        assert!(all.contains("ada") && all.contains("seat") && all.contains('7'), "{all}");
        for bytes in [&b"hunter2"[..], &[0xab; 16]] {
            let listed = format!("{bytes:?}");
            assert!(!all.contains(listed.trim_matches(['[', ']'])), "{all}");
        }
        assert!(!all.contains("hunter2") && !all.contains("abab"), "{all}");
    }
}
