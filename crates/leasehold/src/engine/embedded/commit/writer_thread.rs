//! The writer thread: commits batches, expires leases, and closes the journal.
//!
//! While a batch is being synced the next one gathers: that is group commit. A server thread may write a batch by
//! itself ([`super::journal_writer::try_write_on_this_thread`]); deadlines and the end of the engine are left to this
//! thread.

use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::time::Duration;

use super::super::dir_lock::DirLock;
use super::super::errors::BUG_IN_ENGINE;
use super::super::maintenance::JournalMaintenance;
use super::super::options::Notice;
use super::super::storage::Storage;
use super::completion::{CompletionBatcher, Stopped};
use super::journal_writer::JournalWriter;
use super::shared::EngineShared;

/// How many due leases are expired before the lock of the book is released.
const EXPIRED_PER_TICK: u32 = 2048;
/// The longest sleep: the clock of the condition variable does not count suspend, the book's clock does.
const SLEEP_AT_MOST: Duration = Duration::from_secs(1);

/// What the writer thread owns.
pub struct WriterThread {
    pub shared: Arc<EngineShared>,
    pub journal_writer: Arc<Mutex<JournalWriter>>,
    pub storage: Arc<dyn Storage>,
    pub segment_bytes: u64,
    pub notices: Arc<dyn Fn(Notice) + Send + Sync>,
    pub lock: Option<DirLock>,
}

enum NextStep {
    Write,
    Proof,
    Stop,
    /// Nothing may be written any more, and this is why.
    Fail(io::Error),
}

impl WriterThread {
    /// Runs until the engine is asked to stop or the disk fails.
    pub fn run(mut self) {
        let (jobs, queue) = mpsc::channel();
        let maintenance = {
            let mut writer = self.lock_journal();
            writer.jobs = Some(jobs);
            JournalMaintenance {
                shared: self.shared.clone(),
                storage: self.storage.clone(),
                segments: writer.journal.segments(),
                segment_bytes: self.segment_bytes,
                notices: self.notices.clone(),
                progress: writer.progress.clone(),
            }
        };
        let maintaining =
            std::thread::Builder::new().name("leasehold-keeper".into()).spawn(move || maintenance.run(&queue));
        let result = match &maintaining {
            Err(error) => Err(io::Error::other(format!("the keeper cannot start: {error}"))),
            // A panic ends in the same orderly stop as a failed disk: everybody is told, and the directory is unlocked
            // last.
            Ok(_) => std::panic::catch_unwind(AssertUnwindSafe(|| self.write_until_stopped()))
                .unwrap_or_else(|_| Err(io::Error::other(BUG_IN_ENGINE))),
        };
        self.end(result);
        if let Ok(maintaining) = maintaining {
            let _ = maintaining.join();
        }
        // Only now may another process have the directory.
        drop(self.lock.take());
    }

    /// Closes the journal if nothing failed, and tells everybody who still waits.
    fn end(&self, result: io::Result<()>) {
        // Held to the end: no other thread writes after this.
        let mut writer = self.lock_journal();
        writer.jobs = None;
        let finished = result.and_then(|()| self.check_writable()).and_then(|()| self.close_journal(&mut writer));
        let mut state = self.shared.lock();
        let sentence = state.lifecycle.end(&finished);
        let (waiting, unsettled) = state.group.give_up();
        drop(state);
        drop(writer);
        let mut batcher = CompletionBatcher::default();
        for reply_to in waiting {
            reply_to.send(Err(Stopped::NoEffect(sentence.clone())), &mut batcher);
        }
        for reply_to in unsettled {
            reply_to.send(Err(Stopped::Unknown(sentence.clone())), &mut batcher);
        }
        drop(batcher);
        self.shared.event_log.wake_watchers();
        if let Err(error) = finished {
            (self.notices)(Notice::Failed(error.to_string()));
        }
    }

    /// Locks the journal writer. A panic under this lock leaves everything in doubt.
    fn lock_journal(&self) -> MutexGuard<'_, JournalWriter> {
        self.journal_writer.lock().unwrap_or_else(|poisoned| {
            self.shared.lock().lifecycle.doubt();
            poisoned.into_inner()
        })
    }

    /// Another thread may have written, and found the disk broken, since this thread last looked.
    fn check_writable(&self) -> io::Result<()> {
        self.shared.lock().lifecycle.check_writable()
    }

    fn write_until_stopped(&self) -> io::Result<()> {
        loop {
            match self.next_step() {
                NextStep::Stop => return Ok(()),
                NextStep::Fail(error) => return Err(error),
                NextStep::Proof => {
                    let mut writer = self.lock_journal();
                    if self.check_writable().is_ok() {
                        writer.journal.prove().inspect_err(|error| self.shared.fail(error))?;
                    }
                    self.shared.lock().proof_at = None;
                }
                NextStep::Write => {
                    let mut writer = self.lock_journal();
                    let state = self.shared.lock();
                    // Another thread may have written it meanwhile, or have found the disk broken.
                    let wanted = state.group.has_work() || writer.tokens_wanted(&state).is_some();
                    if wanted && state.lifecycle.may_write() {
                        writer.write(&self.shared, state)?;
                    }
                }
            }
        }
    }

    /// Sleeps until there is something to do.
    fn next_step(&self) -> NextStep {
        let mut state = self.shared.lock();
        let mut gathered = false;
        loop {
            if let Err(error) = state.lifecycle.check_writable() {
                return NextStep::Fail(error);
            }
            let now = self.shared.clock.now();
            if state.group.book.next_expiry().is_some_and(|next| next <= now) {
                state.group.tick(EXPIRED_PER_TICK, now);
            }
            if state.group.has_work() || state.group.tokens_wanted(self.shared.reserve_mark).is_some() {
                // Callers that were just answered are about to send their next command. On a slow disk one sync for all
                // of them is worth waiting a quarter of a sync.
                let stats = state.sync_stats;
                if !gathered && state.group.replies_waiting() < stats.recent_replies && stats.is_slow() {
                    gathered = true;
                    let until = now.plus(stats.sync_time / 4);
                    state = self.shared.sleep_until(state, until, stats.recent_replies, now);
                    continue;
                }
                return NextStep::Write;
            }
            if state.lifecycle.may_close() {
                return NextStep::Stop;
            }
            if state.proof_at.is_some_and(|at| at <= now) {
                return NextStep::Proof;
            }
            let mut until = now.plus(SLEEP_AT_MOST);
            for due in [state.group.book.next_expiry(), state.proof_at].into_iter().flatten() {
                until = until.min(due);
            }
            state = self.shared.sleep_until(state, until, 0, now);
        }
    }

    fn close_journal(&self, writer: &mut JournalWriter) -> io::Result<()> {
        let last = self.shared.lock().group.book.last_token();
        writer.journal.close(last, self.shared.clock.now())
    }
}
