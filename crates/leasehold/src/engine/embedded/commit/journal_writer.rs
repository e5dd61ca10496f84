//! Writes one batch to the journal, and then completes its replies.
//!
//! The thread that holds the lock on [`JournalWriter`] writes: the writer thread, or a server thread that would
//! otherwise have to wake the writer thread and be woken by it. Waking a thread costs as much as ten commands.
//!
//! # Laws
//!
//! 1. One batch is under way at a time, and batches are durable in the order in which they were decided.
//! 2. After a write or a sync that failed nothing is written any more, and no answer is given as if it were.

use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::time::Duration;

use super::super::errors::BUG_IN_ENGINE;
use super::super::journal::Journal;
use super::super::journal::frame::FrameKind;
use super::super::maintenance::{MaintenanceJob, MaintenanceProgress};
use super::completion::{CompletionBatcher, ReplyTo, Stopped};
use super::group::Batch;
use super::shared::{EngineShared, EngineState};

/// When an idle engine writes the proof of its last batch. The promise is 50 ms.
const PROOF_AFTER: Duration = Duration::from_millis(30);

/// See the module. Its lock is always taken before the lock of the book.
pub struct JournalWriter {
    pub journal: Journal,
    /// To the maintenance thread; none before that thread runs and after it was told to end.
    pub jobs: Option<mpsc::Sender<MaintenanceJob>>,
    pub progress: Arc<MaintenanceProgress>,
}

/// Writes the gathered batch on the calling thread, if it can do so at once. `false`: the writer thread must do it,
/// because another thread is writing, or the disk is slow and more replies should be gathered first.
pub fn try_write_on_this_thread(writer: &Mutex<JournalWriter>, shared: &EngineShared) -> bool {
    let Ok(mut writer) = writer.try_lock() else { return false };
    // The engine is handed out a moment before its threads run. A job for the maintenance thread must wait until then:
    // without a queue to send it to, it would look as if that thread had died.
    if writer.jobs.is_none() {
        return false;
    }
    let state = shared.lock();
    if !state.lifecycle.may_write() || state.sync_stats.is_slow() {
        return false;
    }
    if !state.group.has_work() {
        return true;
    }
    // After a failure the writer thread tells everybody: `write` has woken it.
    if writer.write(shared, state).is_ok() {
        let state = shared.lock();
        // A grant whose caller was gone has been released, which may have granted the next waiter. That is work which
        // is not written yet, and nobody else knows of it.
        if state.group.has_work() {
            shared.wake_writer_for_work(state)
        } else {
            shared.wake_writer_for_deadlines(state)
        }
    }
    true
}

impl JournalWriter {
    pub fn new(journal: Journal) -> Self {
        Self { journal, jobs: None, progress: Arc::default() }
    }

    /// Above which token more must be reserved; none if enough are reserved.
    pub fn tokens_wanted(&self, state: &EngineState) -> Option<u64> {
        state.group.tokens_wanted(self.journal.reserve_mark())
    }

    /// Writes the gathered batch, and completes its replies. A panic stops the engine as a failed disk does, on
    /// whichever thread it happens. The engine has stopped before the lock on this writer is released.
    ///
    /// # Errors
    ///
    /// The disk failed: callers of this batch were told that its outcome is unknown, and the engine stops.
    pub fn write(&mut self, shared: &EngineShared, state: MutexGuard<'_, EngineState>) -> io::Result<()> {
        let written = std::panic::catch_unwind(AssertUnwindSafe(|| self.write_batch(shared, state)));
        let result = written.unwrap_or_else(|_| {
            shared.lock().lifecycle.doubt();
            Err(io::Error::other(BUG_IN_ENGINE))
        });
        result.inspect_err(|error| shared.fail(error))
    }

    fn write_batch(&mut self, shared: &EngineShared, mut state: MutexGuard<'_, EngineState>) -> io::Result<()> {
        let mut batch = InFlightBatch(state.group.seal());
        let snapshot = self.journal.wants_snapshot()
            && !batch.0.facts.is_empty()
            && !self.progress.snapshot_asked.swap(true, Ordering::AcqRel);
        if snapshot {
            state.group.book.begin_snapshot();
        }
        let tokens_wanted = self.tokens_wanted(&state);
        let prealloc_asked = self.progress.prealloc_asked.load(Ordering::Acquire);
        let prealloc = if prealloc_asked { None } else { state.group.book.prealloc_request() };
        drop(state);
        let began = shared.clock.machine().now();
        let result = self.commit(shared, &batch.0, tokens_wanted);
        let took = shared.clock.machine().now().since(began);
        if let Err(error) = result {
            // In this order: a caller that learns of the failure and asks again must find a stopped engine.
            shared.fail(&error);
            batch.give_up(&format!("the disk failed: {error}"));
            return Err(error);
        }
        self.complete(shared, &mut batch.0, took);
        if snapshot {
            self.journal.snapshot_begun();
            self.send_job(MaintenanceJob::Snapshot(self.journal.position()))?;
        }
        // One job of this kind at a time.
        let random = shared.random().is_running_low();
        if (prealloc.is_some() || random) && !self.progress.prealloc_asked.swap(true, Ordering::AcqRel) {
            self.send_job(MaintenanceJob::Prealloc { request: prealloc, random })?;
        }
        if !self.journal.wants_spare() {
            self.progress.spare_asked.store(false, Ordering::Release);
        } else if !self.progress.spare_asked.swap(true, Ordering::AcqRel) {
            self.send_job(MaintenanceJob::Spare)?;
        }
        let size = self.progress.snapshot_size.swap(0, Ordering::AcqRel);
        if size > 0 {
            self.journal.snapshot_done(size);
        }
        Ok(())
    }

    /// Without the maintenance thread the journal would grow for ever: that stops the engine.
    fn send_job(&self, job: MaintenanceJob) -> io::Result<()> {
        let sent = self.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok());
        if sent { Ok(()) } else { Err(io::Error::other("the keeper of the journal died")) }
    }

    fn commit(&mut self, shared: &EngineShared, batch: &Batch<ReplyTo>, tokens_wanted: Option<u64>) -> io::Result<()> {
        if let Some(above) = tokens_wanted {
            self.journal.reserve_tokens(above)?;
        }
        if batch.facts.is_empty() && tokens_wanted.is_none() {
            return Ok(());
        }
        self.journal.commit(FrameKind::Facts, &batch.facts, shared.clock.now())?;
        Ok(())
    }

    /// Sends the replies of a durable batch. A grant whose caller is gone is released: nobody knows of it.
    fn complete(&self, shared: &EngineShared, batch: &mut Batch<ReplyTo>, took: Duration) {
        {
            let mut state = shared.lock();
            state.sync_stats.note_batch(batch.replies.len(), took);
            if !batch.facts.is_empty() {
                state.commits.seconds.add(took);
                let replies = batch.replies.len() as u64;
                state.commits.answers.add_value(replies, replies);
                state.proof_at = Some(shared.clock.now().plus(PROOF_AFTER));
            }
            state.group.settle(std::mem::take(&mut batch.facts), self.journal.token_ceiling());
        }
        // Events first: a caller that has its reply and then reads the events must find its own there.
        shared.event_log.append(&batch.news.0, batch.news.1);
        let mut unseen = Vec::new();
        let mut batcher = CompletionBatcher::default();
        for (reply_to, reply) in batch.replies.drain(..) {
            unseen.extend(reply_to.send(Ok(reply), &mut batcher));
        }
        drop(batcher);
        let mut state = shared.lock();
        for lease in unseen {
            state.release_unseen(lease, shared.clock.now());
        }
        state.group.return_replies(std::mem::take(&mut batch.replies));
    }
}

/// The batch that is being written. Callers that still wait for it when it is dropped are told that its outcome is
/// unknown: a panic must not leave a server thread waiting.
struct InFlightBatch(Batch<ReplyTo>);

impl InFlightBatch {
    fn give_up(&mut self, sentence: &str) {
        let sentence: Arc<str> = sentence.into();
        let mut batcher = CompletionBatcher::default();
        for (reply_to, _) in self.0.replies.drain(..) {
            reply_to.send(Err(Stopped::Unknown(sentence.clone())), &mut batcher);
        }
    }
}

impl Drop for InFlightBatch {
    fn drop(&mut self) {
        if !self.0.replies.is_empty() {
            self.give_up(BUG_IN_ENGINE);
        }
    }
}
