//! An engine with nothing in it but the book: no disk, no thread, no randomness.
//!
//! # Promises
//!
//! Fencing, fair, never early: what the book alone can keep.
//!
//! # Does not promise
//!
//! Durability: it is gone with the process. Secrecy: its secrets are drawn from a counter.
//!
//! # Clock
//!
//! A [`ManualClock`]. When the book hears that time has passed is the author's choice: see [`TickTiming`].
//!
//! # Token
//!
//! The book's counter, from 1.
//!
//! # On lost connection
//!
//! There is none to lose.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use leasehold_core::{Book, Command, Effect, Limits, Reply, Secret, WaiterId};
use tokio::sync::{oneshot, watch};

use super::ManualClock;
use crate::clock::Clock;
use crate::engine::from_book::{self, acquire, grant, key, millis, resource, wants};
use crate::engine::{
    Answer, Claim, Engine, EventId, Finding, Grant, Keys, LeaseId, Promise, Promises, Query, Renewal, Resource, Token,
    Watch,
};
use crate::error::Error;

const ENGINE: &str = "core";

/// How many were made: no two have the same identity.
static ENGINES_MADE: AtomicU64 = AtomicU64::new(1);

/// When the book hears that time has passed. Answers must not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TickTiming {
    /// At once, before whatever is asked next: what is due has been collected.
    Prompt,
    /// After whatever is asked next, when waiting claims are polled: what is due has not been
    /// collected yet, and the book must find out by comparing.
    Late,
}

/// The book as an engine. See the module.
pub struct CoreEngine(Arc<CoreShared>);

struct CoreShared {
    clock: ManualClock,
    state: Mutex<CoreState>,
    /// Counts the steps of the clock, so that waiting claims read the book ([`TickTiming::Late`]).
    steps: watch::Sender<u64>,
    /// Which of the engines in this process it is.
    identity: String,
}

struct CoreState {
    book: Book,
    waiting: HashMap<WaiterId, oneshot::Sender<Reply>>,
    waiter_ids: u64,
    closed: bool,
}

impl fmt::Debug for CoreEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CoreEngine").finish_non_exhaustive()
    }
}

impl CoreEngine {
    /// An empty book under this clock.
    #[must_use]
    pub fn new(clock: &ManualClock, limits: Limits, pace: TickTiming) -> Arc<Self> {
        let mut book = Book::new(limits, 0);
        book.set_ceiling(u64::MAX);
        let state = CoreState { book, waiting: HashMap::new(), waiter_ids: 0, closed: false };
        let shared = Arc::new(CoreShared {
            clock: clock.clone(),
            state: Mutex::new(state),
            steps: watch::Sender::new(0),
            identity: format!("core-{}", ENGINES_MADE.fetch_add(1, Ordering::Relaxed)),
        });
        let weak: Weak<CoreShared> = Arc::downgrade(&shared);
        clock.on_step(Box::new(move || {
            if let Some(shared) = weak.upgrade() {
                match pace {
                    TickTiming::Prompt => shared.tick(),
                    TickTiming::Late => shared.steps.send_modify(|steps| *steps += 1),
                }
            }
        }));
        Arc::new(Self(shared))
    }
}

impl CoreShared {
    fn lock(&self) -> MutexGuard<'_, CoreState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self, attempt: &str) -> Result<MutexGuard<'_, CoreState>, Error> {
        let state = self.lock();
        if state.closed { Err(unavailable(attempt)) } else { Ok(state) }
    }

    fn tick(&self) {
        let now = self.clock.now();
        let mut state = self.lock();
        while state.apply(Command::Tick { budget: 64 }, now) == Reply::Ticked(true) {}
    }

    /// Decides a command that cannot wait.
    fn apply_command(&self, attempt: &str, command: Command<'_>) -> Result<Reply, Error> {
        let now = self.clock.now();
        Ok(self.open(attempt)?.apply(command, now))
    }

    fn submit(&self, attempt: &str, claim: &Claim) -> Result<CoreSubmitted<'_>, Error> {
        let now = self.clock.now();
        let wants = wants(claim);
        let mut state = self.open(attempt)?;
        state.waiter_ids += 1;
        let waiter_id = WaiterId(state.waiter_ids);
        let claimed = acquire(claim, &wants, None, waiter_id, secret(waiter_id.0));
        let reply = state.apply(Command::Acquire(claimed), now);
        if reply != Reply::Waiting {
            return Ok(CoreSubmitted::Answered(reply));
        }
        let (to, from) = oneshot::channel();
        state.waiting.insert(waiter_id, to);
        Ok(CoreSubmitted::QueuedClaim(QueuedClaim {
            shared: self,
            waiter_id,
            from,
            retried: claim.request.is_some(),
            done: false,
        }))
    }
}

impl CoreState {
    fn apply(&mut self, command: Command<'_>, now: leasehold_core::Time) -> Reply {
        let outcome = self.book.apply(command, now);
        // There is no journal: the facts go nowhere, and a floor is in force at once.
        drop(self.book.take_tape(Vec::new()));
        let floor = self.book.take_floor();
        self.book.skip_tokens_to(floor);
        for Effect { waiter_id, reply } in outcome.effects {
            if let Some(to) = self.waiting.remove(&waiter_id) {
                // A waiting claim is removed under the same lock, so its receiver exists.
                let _ = to.send(reply);
            }
        }
        outcome.reply
    }
}

enum CoreSubmitted<'a> {
    Answered(Reply),
    QueuedClaim(QueuedClaim<'a>),
}

/// A waiting claim. Dropping it leaves the queue, or releases the grant that nobody will see.
struct QueuedClaim<'a> {
    shared: &'a CoreShared,
    waiter_id: WaiterId,
    from: oneshot::Receiver<Reply>,
    retried: bool,
    done: bool,
}

impl Drop for QueuedClaim<'_> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let now = self.shared.clock.now();
        let mut state = self.shared.lock();
        if state.waiting.remove(&self.waiter_id).is_some() {
            state.apply(Command::Cancel { waiter_id: self.waiter_id }, now);
        } else if let Ok(Reply::Granted(granted)) = self.from.try_recv()
            && !self.retried
        {
            state.apply(Command::Release { lease: granted.lease }, now);
        }
    }
}

impl Engine for CoreEngine {
    fn promises(&self) -> Promises {
        Promises {
            engine: ENGINE,
            durable: false,
            fencing: true,
            fair: true,
            never_early: true,
            outlives_process: false,
        }
    }

    fn acquire(&self, claim: Claim) -> Answer<'_, Grant> {
        Box::pin(async move {
            let mut steps = self.0.steps.subscribe();
            let mut place = match self.0.submit("acquire", &claim)? {
                CoreSubmitted::Answered(reply) => return granted(reply),
                CoreSubmitted::QueuedClaim(place) => place,
            };
            loop {
                tokio::select! {
                    biased;
                    reply = &mut place.from => {
                        place.done = true;
                        return granted(reply.map_err(|_| unavailable("acquire"))?);
                    }
                    // Cannot fail: the sender is a field of self.
                    _ = steps.changed() => self.0.tick(),
                }
            }
        })
    }

    fn renew<'a>(&'a self, lease: &'a LeaseId, ttl: Option<Duration>) -> Answer<'a, Renewal> {
        Box::pin(async move {
            let command = Command::Renew { lease: key(lease)?, ttl_ms: ttl.map(millis) };
            match self.0.apply_command("renew", command)? {
                Reply::Renewed(renewed) => Ok(Renewal { remaining: renewed.remaining, renewable: renewed.renewable }),
                other => Err(refused(other)),
            }
        })
    }

    fn relabel<'a>(&'a self, lease: &'a LeaseId, holder: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            match self.0.apply_command("relabel", Command::Relabel { lease: key(lease)?, holder })? {
                Reply::Relabelled => Ok(()),
                other => Err(refused(other)),
            }
        })
    }

    fn release<'a>(&'a self, lease: &'a LeaseId) -> Answer<'a, bool> {
        Box::pin(async move {
            match self.0.apply_command("release", Command::Release { lease: key(lease)? })? {
                Reply::Released(first) => Ok(first),
                other => Err(refused(other)),
            }
        })
    }

    fn revoke<'a>(&'a self, name: &'a str, reason: &'a str) -> Answer<'a, usize> {
        Box::pin(async move {
            match self.0.apply_command("revoke", Command::Revoke { name, reason })? {
                Reply::Revoked(count) => Ok(count),
                other => Err(refused(other)),
            }
        })
    }

    fn inspect<'a>(&'a self, name: &'a str) -> Answer<'a, Option<Resource>> {
        Box::pin(async move {
            let now = self.0.clock.now();
            let book = &self.0.open("inspect")?.book;
            book.limits().check_name(name).map_err(Error::Invalid)?;
            Ok(book.inspect(name, now).map(resource))
        })
    }

    fn list(&self, query: Query) -> Answer<'_, Vec<Resource>> {
        Box::pin(async move {
            let now = self.0.clock.now();
            let state = self.0.open("list")?;
            let mut found = BTreeMap::new();
            let mut cursor = Some(0);
            while let Some(from) = cursor {
                cursor = state.book.scan(from, 64, &query.prefix, now, |view| {
                    found.insert(view.name.clone(), resource(view));
                });
            }
            let after = |name: &String| query.after.as_ref().is_none_or(|after| name > after);
            Ok(found.into_iter().filter(|(name, _)| after(name)).map(|(_, r)| r).take(query.limit).collect())
        })
    }

    fn raise_floor(&self, floor: Option<Token>) -> Answer<'_, Token> {
        Box::pin(async move {
            match self.0.apply_command("raise the floor", Command::Floor { raise: floor })? {
                Reply::Floor(floor) => Ok(floor),
                other => Err(refused(other)),
            }
        })
    }

    fn identity(&self) -> Answer<'_, Option<String>> {
        Box::pin(async move {
            let _open = self.0.open("read the identity")?;
            Ok(Some(self.0.identity.clone()))
        })
    }

    fn examine(&self) -> Answer<'_, Vec<Finding>> {
        Box::pin(async move {
            let _open = self.0.open("examine the engine")?;
            let sentence = "everything is in the memory of this process";
            let both = [Promise::Durable, Promise::OutlivesProcess];
            Ok(vec![Finding::denies(&both, "storage", "memory", "a disk", sentence)])
        })
    }

    fn watch(&self, _since: Option<EventId>) -> Answer<'_, Watch> {
        Box::pin(async { Err(Error::Invalid("the reference engine cannot be watched".into())) })
    }

    fn keys(&self) -> Option<&dyn Keys> {
        None
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            let mut state = self.0.lock();
            state.closed = true;
            // Waiting claims learn that the engine is closed.
            state.waiting.clear();
            Ok(())
        })
    }
}

fn granted(reply: Reply) -> Result<Grant, Error> {
    match reply {
        Reply::Granted(granted) => Ok(grant(&granted)),
        other => Err(refused(other)),
    }
}

fn refused(reply: Reply) -> Error {
    from_book::refused(reply, ENGINE, || "ask the book".into())
}

fn unavailable(attempt: &str) -> Error {
    Error::Unavailable { engine: ENGINE, attempt: attempt.into(), source: "the engine is closed".into() }
}

/// Bits that look random and are the same in every run.
fn secret(number: u64) -> Secret {
    let mix = |seed: u64| {
        let mut bits = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits ^ (bits >> 31)
    };
    Secret::new(((u128::from(mix(number)) << 64) | u128::from(mix(!number))).to_be_bytes())
}
