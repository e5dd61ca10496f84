//! The locked: many commands under one lock, for a thread that speaks for many connections.
//!
//! ```text
//!   server thread ──▶ LockedEngine: submit, submit, … ──▶ desk ──▶ journal ──▶ CompletionQueue: answers, one wake-up for a batch
//! ```
//!
//! Nothing here is decided differently from [`super::super::Embedded`]'s own methods: the same desk, the same law that no answer
//! leaves before it is durable.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leasehold_core::book::KeyView;
use leasehold_core::{Acquire, Command, LeaseKey, Reply, Secret, Time, WaiterId};

use super::super::{ENGINE, Embedded, no_effect, refused, unknown};
use super::writer_thread::{EngineState, ReplyTo, Stopped, release_unseen};
use crate::error::Error;

/// Where answers are put for a thread that speaks for many.
pub struct CompletionQueue {
    answers: Mutex<Vec<(u64, Result<Reply, Stopped>)>>,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue").finish_non_exhaustive()
    }
}

impl CompletionQueue {
    /// An empty completions. `wake` is called when something was put into it, from another thread; it must not block.
    #[must_use]
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { answers: Mutex::new(Vec::new()), wake: Box::new(wake) })
    }

    /// Puts answers into it: all of a batch at once, since whoever is woken takes what is there.
    pub fn put(&self, batch: &mut Vec<(u64, Result<Reply, Stopped>)>) {
        if !batch.is_empty() {
            self.answers.lock().unwrap_or_else(PoisonError::into_inner).append(batch);
            (self.wake)();
        }
    }

    /// Whether no answer has come.
    pub fn is_empty(&self) -> bool {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Takes every answer that has come, and leaves `empty` for the next ones.
    pub fn take(&self, empty: &mut Vec<(u64, Result<Reply, Stopped>)>) {
        debug_assert!(empty.is_empty());
        std::mem::swap(&mut *self.answers.lock().unwrap_or_else(PoisonError::into_inner), empty);
    }
}

/// The error in a reply that is not the answer that was hoped for.
pub fn refusal(reply: Reply, attempt: &str) -> Error {
    refused(reply, ENGINE, || attempt.to_owned())
}

impl Stopped {
    /// The error that a caller is told.
    pub fn into_error(self, attempt: &str) -> Error {
        match self {
            Self::NoEffect(sentence) => no_effect(attempt.to_owned(), &sentence),
            Self::Unknown(sentence) => unknown(attempt.to_owned(), &sentence),
        }
    }
}

/// The desk, held for a number of commands. Let go of it soon: nobody else decides anything meanwhile.
pub struct LockedEngine<'a> {
    engine: &'a Embedded,
    state: Option<MutexGuard<'a, EngineState>>,
    now: Time,
}

impl fmt::Debug for LockedEngine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockedEngine").field("now", &self.now).finish_non_exhaustive()
    }
}

impl Embedded {
    /// Opens the locked.
    pub fn lock_for_batch(&self) -> LockedEngine<'_> {
        let state = self.shared.lock();
        // Read under the lock: the book's time never goes back from one command to the next.
        let now = self.shared.clock.now();
        LockedEngine { engine: self, state: Some(state), now }
    }
}

impl LockedEngine<'_> {
    /// Closes the locked and writes what has gathered, on this very thread: its answers are in the completions when this
    /// returns. Nobody is woken for it. On a slow disk, or while another thread writes, the writer does it later.
    pub fn write(mut self) {
        let engine = self.engine;
        if let Some(state) = self.state.take() {
            engine.shared.nudge_for_time(state);
        }
        if !engine.shared.write_here() {
            engine.shared.nudge(engine.shared.lock());
        }
    }

    fn state(&mut self) -> &mut EngineState {
        self.state.as_mut().expect("the guard leaves with the locked")
    }

    /// Why the engine does not answer any more, if it does not.
    pub fn stopped(&mut self) -> Option<Stopped> {
        self.state().stopped.clone().map(Stopped::NoEffect)
    }

    /// A secret for a lease.
    pub fn secret(&self) -> Secret {
        self.engine.secret()
    }

    /// Decides an acquire. The waiter_id is for [`LockedEngine::cancel`], should it wait.
    ///
    /// # Errors
    ///
    /// [`Stopped`] if the engine does not answer any more.
    pub fn acquire(
        &mut self,
        claim: Acquire<'_>,
        completions: &Arc<CompletionQueue>,
        tag: u64,
    ) -> Result<(Option<Reply>, WaiterId), Stopped> {
        let waiter_id = self.state().group.waiter_id();
        let reply = self.submit(Command::Acquire(Acquire { waiter_id, ..claim }), completions, tag)?;
        Ok((reply, waiter_id))
    }

    /// Decides a command. Without a reply the answer comes to the completions, under this tag.
    ///
    /// # Errors
    ///
    /// [`Stopped`] if the engine does not answer any more.
    pub fn submit(
        &mut self,
        command: Command<'_>,
        completions: &Arc<CompletionQueue>,
        tag: u64,
    ) -> Result<Option<Reply>, Stopped> {
        if let Some(stopped) = self.stopped() {
            return Err(stopped);
        }
        let now = self.now;
        Ok(self.state().group.submit(
            command,
            || ReplyTo::CompletionQueue { completions: completions.clone(), tag },
            now,
        ))
    }

    /// These names will be asked for soon: see [`leasehold_core::Book::prefetch`].
    pub fn prefetch(&mut self, names: &[&str]) {
        self.state().group.book.prefetch(names);
    }

    /// Refuses a name that nothing can have.
    ///
    /// # Errors
    ///
    /// One sentence that says why.
    pub fn check_name(&mut self, name: &str) -> Result<(), String> {
        self.state().group.book.limits().check_name(name)
    }

    /// The name as a Redis key, as the book has it now. To be told only when [`LockedEngine::settle`] says so.
    pub fn key(&mut self, name: &str) -> Option<KeyView<'_>> {
        let now = self.now;
        self.state().group.book.key(name, now)
    }

    /// Whether all that was read so far is durable; if not, a `Ticked` comes to the completions when it is.
    ///
    /// # Errors
    ///
    /// [`Stopped`] if the engine does not answer any more.
    pub fn settle(&mut self, completions: &Arc<CompletionQueue>, tag: u64) -> Result<bool, Stopped> {
        if let Some(stopped) = self.stopped() {
            return Err(stopped);
        }
        let settled = self
            .state()
            .group
            .answer(Reply::Ticked(false), || ReplyTo::CompletionQueue { completions: completions.clone(), tag });
        Ok(settled.is_some())
    }

    /// Whether this waiter_id stands in line.
    pub fn is_waiting(&mut self, waiter_id: WaiterId) -> bool {
        self.state().group.is_waiting(waiter_id)
    }

    /// The caller of a waiting acquire went away. `false`: it was answered already.
    pub fn cancel(&mut self, waiter_id: WaiterId) -> bool {
        let now = self.now;
        self.state().group.cancel(waiter_id, now)
    }

    /// Ends a lease whose caller went away before it could be told.
    pub fn release_unseen(&mut self, lease: LeaseKey) {
        let now = self.now;
        release_unseen(self.state(), lease, now);
    }
}

impl Drop for LockedEngine<'_> {
    fn drop(&mut self) {
        if let Some(state) = self.state.take() {
            self.engine.shared.nudge(state);
        }
    }
}
