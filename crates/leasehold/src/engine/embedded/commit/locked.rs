//! Many commands under one lock, for a thread that serves many connections.
//!
//! ```text
//!   server thread ──▶ LockedEngine: submit, submit, … ──▶ GroupCommit ──▶ journal ──▶ CompletionQueue ──▶ server thread
//! ```
//!
//! Commands are decided as by the engine's own methods: by the same [`super::group::GroupCommit`], and no reply leaves
//! before it is durable.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use leasehold_core::book::KeyView;
use leasehold_core::{Acquire, Command, LeaseKey, Reply, Secret, Time, WaiterId};

use super::completion::{CompletionQueue, ReplyTo, Stopped};
use super::journal_writer::{JournalWriter, try_write_on_this_thread};
use super::shared::{EngineShared, EngineState};

/// The lock of the book, held for a number of commands. Drop it soon: nobody else decides anything meanwhile.
pub struct LockedEngine<'a> {
    shared: &'a EngineShared,
    journal_writer: &'a Mutex<JournalWriter>,
    state: Option<MutexGuard<'a, EngineState>>,
    now: Time,
}

impl fmt::Debug for LockedEngine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockedEngine").field("now", &self.now).finish_non_exhaustive()
    }
}

impl<'a> LockedEngine<'a> {
    pub(in super::super) fn new(shared: &'a EngineShared, journal_writer: &'a Mutex<JournalWriter>) -> Self {
        let state = shared.lock();
        // Read under the lock: the book's time never goes back from one command to the next.
        let now = shared.clock.now();
        LockedEngine { shared, journal_writer, state: Some(state), now }
    }
}

impl LockedEngine<'_> {
    /// Unlocks the book and writes the gathered batch on this thread: its replies are in their queues when this
    /// returns, and no thread is woken for it. On a slow disk, or while another thread writes, the writer thread does
    /// it later.
    pub fn write(mut self) {
        let shared = self.shared;
        if let Some(state) = self.state.take() {
            shared.wake_writer_for_deadlines(state);
        }
        if !try_write_on_this_thread(self.journal_writer, shared) {
            shared.wake_writer_for_work(shared.lock());
        }
    }

    fn state(&mut self) -> &mut EngineState {
        self.state.as_mut().expect("the guard is taken only when this value is consumed")
    }

    /// Why the engine takes no commands any more; none while it does.
    pub fn stopped(&mut self) -> Option<Stopped> {
        self.state().lifecycle.refusal().map(|sentence| Stopped::NoEffect(sentence.into()))
    }

    /// A secret for a lease.
    pub fn secret(&self) -> Secret {
        self.shared.new_secret()
    }

    /// Decides an acquire. The waiter's id is for [`LockedEngine::cancel`], should the claim wait.
    ///
    /// # Errors
    ///
    /// [`Stopped`] if the engine takes no commands any more.
    pub fn acquire(
        &mut self,
        claim: Acquire<'_>,
        completions: &Arc<CompletionQueue>,
        tag: u64,
    ) -> Result<(Option<Reply>, WaiterId), Stopped> {
        let waiter_id = self.state().group.new_waiter_id();
        let reply = self.submit(Command::Acquire(Acquire { waiter_id, ..claim }), completions, tag)?;
        Ok((reply, waiter_id))
    }

    /// Decides a command. If it returns no reply, the reply comes to `completions` with this tag.
    ///
    /// # Errors
    ///
    /// [`Stopped`] if the engine takes no commands any more.
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
        let reply_to = || ReplyTo::CompletionQueue { completions: completions.clone(), tag };
        Ok(self.state().group.submit(command, reply_to, now))
    }

    /// These names will be asked for soon: see [`leasehold_core::Book::prefetch`].
    pub fn prefetch(&mut self, names: &[&str]) {
        self.state().group.book.prefetch(names);
    }

    /// Refuses a name that no resource can have.
    ///
    /// # Errors
    ///
    /// One sentence that says why.
    pub fn check_name(&mut self, name: &str) -> Result<(), String> {
        self.state().group.book.limits().check_name(name)
    }

    /// The name as a Redis key, as the book has it now. It may be shown only when [`LockedEngine::settle`] says so.
    pub fn key(&mut self, name: &str) -> Option<KeyView<'_>> {
        let now = self.now;
        self.state().group.book.key(name, now)
    }

    /// Whether all that was read so far is durable. If not, `Reply::Ticked` comes to `completions` when it is.
    ///
    /// # Errors
    ///
    /// [`Stopped`] if the engine takes no commands any more.
    pub fn settle(&mut self, completions: &Arc<CompletionQueue>, tag: u64) -> Result<bool, Stopped> {
        if let Some(stopped) = self.stopped() {
            return Err(stopped);
        }
        let reply_to = || ReplyTo::CompletionQueue { completions: completions.clone(), tag };
        Ok(self.state().group.reply_when_durable(Reply::Ticked(false), reply_to).is_some())
    }

    /// Whether this waiter is still in a queue.
    pub fn is_waiting(&mut self, waiter_id: WaiterId) -> bool {
        self.state().group.is_waiting(waiter_id)
    }

    /// The caller of a waiting acquire is gone. `false`: the acquire was decided already.
    pub fn cancel(&mut self, waiter_id: WaiterId) -> bool {
        let now = self.now;
        self.state().group.cancel(waiter_id, now)
    }

    /// Ends a lease whose caller was gone before the reply could be sent.
    pub fn release_unseen(&mut self, lease: LeaseKey) {
        let now = self.now;
        self.state().release_unseen(lease, now);
    }
}

impl Drop for LockedEngine<'_> {
    fn drop(&mut self) {
        if let Some(state) = self.state.take() {
            self.shared.wake_writer_for_work(state);
        }
    }
}
