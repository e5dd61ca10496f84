//! The press: takes what gathered at the desk to the disk, and then lets the answers go.
//!
//! Whoever holds it writes: the writer's thread, or a server's own thread that would otherwise have to wake the writer
//! and be woken by it. Waking a thread costs as much as ten commands.
//!
//! # Laws
//!
//! 1. One batch is under way at a time, and batches are durable in the order in which they were decided.
//! 2. After a write or a sync that failed nothing is written any more, and no answer is given as if it were.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, mpsc};
use std::time::Duration;

use leasehold_core::planted::{self, Bug};

use super::super::journal::Journal;
use super::super::journal::frame::FrameKind;
use super::super::maintenance::{MaintenanceJob, MaintenanceProgress};
use super::group::Batch;
use super::writer_thread::{BUG, CompletionBatcher, EngineShared, EngineState, ReplyTo, Stopped, release_unseen};

/// An idle engine proves its last batch within 50 ms.
const PROOF_AFTER: Duration = Duration::from_millis(30);

/// See the module.
pub struct JournalWriter {
    pub journal: Journal,
    /// To the keeper; none before it runs and after it was let go.
    pub jobs: Option<mpsc::Sender<MaintenanceJob>>,
    pub progress: Arc<MaintenanceProgress>,
}

/// How fast the disk is, and how many were answered last.
#[derive(Clone, Copy, Debug, Default)]
pub struct SyncStats {
    pub crowd: usize,
    pub sync: Duration,
}

impl SyncStats {
    /// The crowd shrinks slowly: a batch that came too early must not make all later ones small.
    fn note(&mut self, answers: usize, took: Duration) {
        self.crowd = answers.max(self.crowd - self.crowd.div_ceil(8));
        self.sync = if self.sync.is_zero() { took } else { (self.sync * 7 + took) / 8 };
    }
}

impl JournalWriter {
    pub fn new(journal: Journal) -> Self {
        Self { journal, jobs: None, progress: Arc::default() }
    }

    /// Above which token more are to be reserved, if more are.
    pub fn tokens_wanted(&self, state: &EngineState) -> Option<u64> {
        state.group.tokens_wanted(self.journal.reserve_mark())
    }

    /// Writes all that has gathered, and lets its answers go.
    ///
    /// # Errors
    ///
    /// The disk failed: whoever waited for this batch was told that its outcome is unknown, and the engine must stop.
    pub fn write(&mut self, shared: &EngineShared, mut state: MutexGuard<'_, EngineState>) -> io::Result<()> {
        let mut batch = InFlightBatch(state.group.seal());
        let snapshot = self.journal.wants_snapshot()
            && !batch.0.facts.is_empty()
            && !self.progress.snapshot_asked.swap(true, Ordering::AcqRel);
        if snapshot {
            state.group.book.begin_snapshot();
        }
        let tokens_wanted = self.tokens_wanted(&state);
        let order = if self.progress.supply_asked.load(Ordering::Acquire) { None } else { state.group.book.order() };
        drop(state);
        let began = shared.clock.machine().now();
        if planted::on(Bug::PressPanics) {
            panic!("planted");
        }
        if planted::on(Bug::NewsBeforeSync) {
            shared.event_log.append(&batch.0.news.0, batch.0.news.1);
        }
        let result = self.commit(shared, &batch.0, tokens_wanted);
        let took = shared.clock.machine().now().since(began);
        if let Err(error) = result {
            // In this order: whoever learns of it and asks again must be told that the engine has stopped.
            shared.fail(&error);
            batch.give_up(&format!("the disk failed: {error}"));
            return Err(error);
        }
        self.deliver(shared, &mut batch.0, took);
        if snapshot {
            self.journal.snapshot_begun();
            self.ask(MaintenanceJob::Snapshot(self.journal.point()))?;
        }
        // While it is at it, it is not asked again.
        let bits = shared.random().wants();
        if (order.is_some() || bits) && !self.progress.supply_asked.swap(true, Ordering::AcqRel) {
            self.ask(MaintenanceJob::Supply(order, bits))?;
        }
        if !self.journal.wants_spare() {
            self.progress.spare_asked.store(false, Ordering::Release);
        } else if !self.progress.spare_asked.swap(true, Ordering::AcqRel) {
            self.ask(MaintenanceJob::Spare)?;
        }
        let size = self.progress.snapshot_size.swap(0, Ordering::AcqRel);
        if size > 0 {
            self.journal.snapshot_done(size);
        }
        Ok(())
    }

    /// Without a keeper the journal would grow for ever, and nobody would know.
    fn ask(&self, job: MaintenanceJob) -> io::Result<()> {
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

    /// Lets the answers go. A grant whose caller is gone is ended: nobody knows of it.
    fn deliver(&self, shared: &EngineShared, batch: &mut Batch<ReplyTo>, took: Duration) {
        {
            let mut state = shared.lock();
            state.sync_stats.note(batch.answers.len(), took);
            if !batch.facts.is_empty() {
                state.commits.seconds.add(took);
                let answers = batch.answers.len() as u64;
                state.commits.answers.add_value(answers, answers);
                state.proof_at = Some(shared.clock.now().plus(PROOF_AFTER));
            }
            state.group.settle(std::mem::take(&mut batch.facts), self.journal.token_ceiling());
        }
        // Watchers first: whoever has an answer and then looks at what happened must find it there.
        if !planted::on(Bug::NewsBeforeSync) {
            shared.event_log.append(&batch.news.0, batch.news.1);
        }
        let mut ghosts = Vec::new();
        let mut batcher = CompletionBatcher::default();
        for (address, reply) in batch.answers.drain(..) {
            ghosts.extend(address.send(Ok(reply), &mut batcher));
        }
        drop(batcher);
        let mut state = shared.lock();
        for lease in ghosts {
            release_unseen(&mut state, lease, shared.clock.now());
        }
        state.group.return_answers(std::mem::take(&mut batch.answers));
    }
}

/// A batch on its way. Whoever still waits for it when it is dropped learns that nobody knows what became of it: a panic
/// must not leave a thread waiting that speaks for many.
struct InFlightBatch(Batch<ReplyTo>);

impl InFlightBatch {
    fn give_up(&mut self, sentence: &str) {
        let sentence: Arc<str> = sentence.into();
        let mut batcher = CompletionBatcher::default();
        for (address, _) in self.0.answers.drain(..) {
            address.send(Err(Stopped::Unknown(sentence.clone())), &mut batcher);
        }
    }
}

impl Drop for InFlightBatch {
    fn drop(&mut self) {
        if !self.0.answers.is_empty() {
            self.give_up(BUG);
        }
    }
}
