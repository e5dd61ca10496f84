//! The two threads that write the SQLite file: the writer thread owns the connection and runs many jobs in one
//! transaction; the syncer thread makes committed transactions durable and completes their jobs.
//!
//! ```text
//!   jobs ──▶ writer thread: BEGIN, run, run, … COMMIT ──▶ syncer thread: fdatasync of the WAL, complete the jobs
//!                  ▲                                            │
//!                  └────────────────── Synced ◀────────────────┘
//! ```
//!
//! While the syncer syncs one batch, the writer runs the next one. The writer commits it when the sync is done. So the
//! slower the disk, the larger the batches.
//!
//! # Laws
//!
//! 1. No job is completed before its transaction is on disk. This includes refusals and reads: they may depend on rows
//!    of a batch that is not yet durable.
//! 2. A job that fails leaves no trace and does not affect the others of its batch: the batch is rolled back, and each
//!    job is run again in a transaction of its own.
//! 3. A job that panics rolls its batch back. The writer thread goes on with the next batch.
//! 4. A COMMIT or a sync that fails is final: its jobs get Indeterminate, later jobs Unavailable. It is not retried.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rusqlite::Connection;
use tokio::sync::watch;

use super::clock::LedgerClock;

/// The most jobs in one transaction. It bounds how long the first of them waits.
const MAX_BATCH_JOBS: usize = 512;

/// How the transaction of a job ended.
#[derive(Clone, Debug)]
pub(super) enum CommitOutcome {
    /// The result of the job is final, and everything it depends on is on disk.
    Durable,
    /// Rolled back before COMMIT: nothing took effect.
    RolledBack(String),
    /// COMMIT or the sync failed: it may have taken effect.
    Unknown(String),
}

/// How one run of a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobRun {
    /// All of its statements were applied, or none.
    Complete,
    /// It failed, and some of its statements may be applied.
    PartiallyApplied,
}

/// Work for the writer thread. It keeps its result until the transaction is durable.
pub(super) trait WriterJob: Send {
    /// Runs it inside an open transaction. It may be run again after that transaction was rolled back.
    fn run(&mut self, db: &Connection, time: &LedgerClock) -> JobRun;
    /// Sends the result to the caller, once the outcome of the transaction is known. It may never have been run.
    fn complete(self: Box<Self>, outcome: &CommitOutcome);
}

type WriterJobs = Vec<Box<dyn WriterJob>>;

enum WriterMessage {
    Job(Box<dyn WriterJob>),
    /// The syncer made the last committed batch durable, or failed.
    Synced,
    Stop,
}

/// What the writer sends to the syncer: jobs to complete, and whether a sync is needed first.
struct CommittedBatch {
    jobs: WriterJobs,
    outcome: CommitOutcome,
    /// The number of the transaction; none: it changed nothing and needs no sync.
    number: Option<u64>,
}

/// Which transactions are visible and which are durable, for the reader connections.
#[derive(Debug)]
pub(super) struct CommitProgress {
    /// The number of the last transaction that may be visible.
    begun: AtomicU64,
    /// The number of the last transaction that is on disk.
    synced: watch::Receiver<u64>,
}

impl CommitProgress {
    /// Waits until every transaction that may be visible now is on disk. `false`: the sync failed, and it never will be.
    pub(super) async fn durable(&self) -> bool {
        let seen = self.begun.load(Ordering::SeqCst);
        self.synced.clone().wait_for(|synced| *synced >= seen).await.is_ok()
    }

    /// How many transactions were committed that changed something.
    pub(super) fn commits(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }
}

/// Sends jobs to the writer thread, and stops it.
pub(super) struct WriterHandle {
    pub(super) progress: Arc<CommitProgress>,
    messages: Mutex<Option<Sender<WriterMessage>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl WriterHandle {
    /// Starts both threads. `wal` is the file that commits are written to.
    pub(super) fn start(connection: Connection, wal: File, time: Arc<LedgerClock>) -> std::io::Result<Self> {
        let (messages, incoming) = channel();
        let (committed, to_sync) = channel();
        let (synced, watched) = watch::channel(0);
        let progress = Arc::new(CommitProgress { begun: AtomicU64::new(0), synced: watched });
        let idle = messages.clone();
        let syncer = std::thread::Builder::new().name("boxoffice-disk".into());
        let syncer = syncer.spawn(move || run_syncer(&wal, &to_sync, &synced, &idle))?;
        let writer = WriterThread { connection, time, incoming, committed, progress: progress.clone(), syncing: false };
        let work = move || {
            let tidy = writer.run();
            let joined = syncer.join();
            if let (Some(connection), Ok(())) = (tidy, joined) {
                // Leaves a short WAL for the next start; nothing depends on it.
                let _ = connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)");
            }
        };
        let thread = std::thread::Builder::new().name("boxoffice-ledger".into()).spawn(work)?;
        Ok(Self { progress, messages: Some(messages).into(), thread: Some(thread).into() })
    }

    /// Queues a job. `false`: the ledger is closed, or has failed.
    pub(super) fn send(&self, job: Box<dyn WriterJob>) -> bool {
        let messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.as_ref().is_some_and(|messages| messages.send(WriterMessage::Job(job)).is_ok())
    }

    /// Accepts no more jobs. The caller may join the thread, which first runs what is queued.
    pub(super) fn stop(&self) -> Option<JoinHandle<()>> {
        if let Some(messages) = self.messages.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = messages.send(WriterMessage::Stop);
        }
        self.thread.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// A ledger that is dropped without `close` leaves no thread behind that has the file open.
impl Drop for WriterHandle {
    fn drop(&mut self) {
        drop(self.stop());
    }
}

/// The ledger has failed for good: law 4.
struct LedgerFailed;

/// How the jobs of one open transaction ran so far.
enum BatchRun {
    /// All of them ran.
    Complete,
    /// One failed: the transaction must be rolled back.
    PartiallyApplied,
    /// One panicked and was dropped: the transaction must be rolled back.
    Panicked(String),
}

/// State of the writer thread.
struct WriterThread {
    connection: Connection,
    time: Arc<LedgerClock>,
    incoming: Receiver<WriterMessage>,
    committed: Sender<CommittedBatch>,
    progress: Arc<CommitProgress>,
    /// The syncer is at work on a batch.
    syncing: bool,
}

impl WriterThread {
    /// Runs jobs until it is stopped, and returns the connection. `None`: the ledger failed.
    fn run(mut self) -> Option<Connection> {
        let mut stopped = false;
        while !stopped {
            match self.incoming.recv() {
                Ok(WriterMessage::Job(first)) => match self.run_batch(first) {
                    Ok(stop) => stopped = stop,
                    Err(LedgerFailed) => {
                        // Queued jobs were not run. Later sends fail, since the receiver is dropped.
                        let failed = CommitOutcome::RolledBack("the ledger stopped after a failed commit".into());
                        while let Ok(message) = self.incoming.try_recv() {
                            if let WriterMessage::Job(job) = message {
                                job.complete(&failed);
                            }
                        }
                        return None;
                    }
                },
                Ok(WriterMessage::Synced) => self.syncing = false,
                Ok(WriterMessage::Stop) | Err(_) => stopped = true,
            }
        }
        Some(self.connection)
    }

    /// Runs and commits one transaction, which begins with this job. Returns whether to stop after it.
    fn run_batch(&mut self, first: Box<dyn WriterJob>) -> Result<bool, LedgerFailed> {
        let mut jobs = vec![first];
        if let Err(error) = self.connection.execute_batch("BEGIN IMMEDIATE") {
            self.send_to_syncer(jobs, CommitOutcome::RolledBack(error.to_string()), None)?;
            return Ok(false);
        }
        let before = self.connection.total_changes();
        let mut stop = false;
        loop {
            let ran = run_last(&mut jobs, &self.connection, &self.time);
            match ran {
                BatchRun::Complete => {}
                BatchRun::PartiallyApplied => {
                    self.roll_back(&mut jobs)?;
                    jobs.into_iter().try_for_each(|job| self.run_alone(job))?;
                    return Ok(stop);
                }
                BatchRun::Panicked(why) => {
                    self.roll_back(&mut jobs)?;
                    self.send_to_syncer(jobs, CommitOutcome::RolledBack(why), None)?;
                    return Ok(stop);
                }
            }
            match self.next_job(jobs.len(), self.connection.total_changes() != before, &mut stop) {
                Some(job) => jobs.push(job),
                None => break,
            }
        }
        self.commit(jobs, before)?;
        Ok(stop)
    }

    /// The next job of a batch that has so many; none: the batch is complete.
    fn next_job(&mut self, so_far: usize, changed: bool, stop: &mut bool) -> Option<Box<dyn WriterJob>> {
        while so_far < MAX_BATCH_JOBS && !*stop {
            let message = match self.incoming.try_recv() {
                Ok(message) => message,
                // The syncer still has the last batch: until it is done, more jobs may join this one.
                Err(TryRecvError::Empty) if self.syncing && changed => self.incoming.recv().ok()?,
                Err(_) => return None,
            };
            match message {
                WriterMessage::Job(job) => return Some(job),
                WriterMessage::Synced => self.syncing = false,
                WriterMessage::Stop => *stop = true,
            }
        }
        None
    }

    /// Runs a job of a rolled back batch in a transaction of its own (law 2).
    fn run_alone(&mut self, job: Box<dyn WriterJob>) -> Result<(), LedgerFailed> {
        let mut jobs = vec![job];
        if let Err(error) = self.connection.execute_batch("BEGIN IMMEDIATE") {
            return self.send_to_syncer(jobs, CommitOutcome::RolledBack(error.to_string()), None);
        }
        let before = self.connection.total_changes();
        match run_last(&mut jobs, &self.connection, &self.time) {
            BatchRun::Complete => self.commit(jobs, before),
            BatchRun::PartiallyApplied => {
                self.roll_back(&mut jobs)?;
                self.send_to_syncer(jobs, CommitOutcome::Durable, None)
            }
            BatchRun::Panicked(_) => self.roll_back(&mut jobs),
        }
    }

    /// Commits a transaction whose jobs all ran.
    fn commit(&mut self, mut jobs: WriterJobs, before: u64) -> Result<(), LedgerFailed> {
        // Nothing was changed (refusals and stored answers): no sync is needed for this transaction itself.
        if self.connection.total_changes() == before {
            self.roll_back(&mut jobs)?;
            return self.send_to_syncer(jobs, CommitOutcome::Durable, None);
        }
        if let Err(error) = self.time.persist(&self.connection) {
            self.roll_back(&mut jobs)?;
            return self.send_to_syncer(jobs, CommitOutcome::RolledBack(error.to_string()), None);
        }
        // The number rises before COMMIT: a reader that sees the transaction also sees its number.
        let number = self.progress.begun.fetch_add(1, Ordering::SeqCst) + 1;
        match self.connection.execute_batch("COMMIT") {
            Ok(()) => self.send_to_syncer(jobs, CommitOutcome::Durable, Some(number)),
            Err(error) => {
                let _ = self.connection.execute_batch("ROLLBACK");
                let _ = self.send_to_syncer(jobs, CommitOutcome::Unknown(error.to_string()), None);
                Err(LedgerFailed)
            }
        }
    }

    /// Rolls the transaction back. If that fails, the ledger has failed.
    fn roll_back(&mut self, jobs: &mut WriterJobs) -> Result<(), LedgerFailed> {
        // A full disk or a failed read makes SQLite roll back by itself, within a statement.
        if self.connection.is_autocommit() {
            return Ok(());
        }
        let Err(error) = self.connection.execute_batch("ROLLBACK") else { return Ok(()) };
        let _ = self.send_to_syncer(std::mem::take(jobs), CommitOutcome::Unknown(error.to_string()), None);
        Err(LedgerFailed)
    }

    /// Sends a batch to the syncer. Batches are completed in the order in which they were decided.
    fn send_to_syncer(
        &mut self,
        jobs: WriterJobs,
        outcome: CommitOutcome,
        number: Option<u64>,
    ) -> Result<(), LedgerFailed> {
        self.syncing |= number.is_some();
        match self.committed.send(CommittedBatch { jobs, outcome, number }) {
            Ok(()) => Ok(()),
            // A sync has failed: the rows of this batch may be on disk all the same.
            Err(unsent) => {
                let unknown = CommitOutcome::Unknown("an earlier sync failed".into());
                unsent.0.jobs.into_iter().for_each(|job| job.complete(&unknown));
                Err(LedgerFailed)
            }
        }
    }
}

/// Runs the last job. A panic in it is caught, and the job is dropped: its caller gets Indeterminate.
fn run_last(jobs: &mut WriterJobs, connection: &Connection, time: &LedgerClock) -> BatchRun {
    let Some(job) = jobs.last_mut() else { return BatchRun::Complete };
    match catch_unwind(AssertUnwindSafe(|| job.run(connection, time))) {
        Ok(JobRun::Complete) if connection.is_autocommit() => BatchRun::PartiallyApplied,
        Ok(JobRun::Complete) => BatchRun::Complete,
        Ok(JobRun::PartiallyApplied) => BatchRun::PartiallyApplied,
        Err(panic) => {
            jobs.pop();
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            BatchRun::Panicked(format!("a request of the same batch panicked: {}", text.unwrap_or("without a word")))
        }
    }
}

/// The syncer thread: syncs the WAL for all batches that are queued, then completes their jobs.
fn run_syncer(
    wal: &File,
    committed: &Receiver<CommittedBatch>,
    synced: &watch::Sender<u64>,
    idle: &Sender<WriterMessage>,
) {
    while let Ok(first) = committed.recv() {
        let mut batches = vec![first];
        batches.extend(committed.try_iter());
        let last = batches.iter().filter_map(|batch| batch.number).max();
        let failed = last.and_then(|_| wal.sync_data().err());
        if let Some(last) = last {
            if failed.is_none() {
                synced.send_replace(last);
            }
            // Even after a failure: the writer may be waiting for it, and then finds that this thread has ended.
            let _ = idle.send(WriterMessage::Synced);
        }
        let unknown = failed.map(|error| CommitOutcome::Unknown(error.to_string()));
        let complete_batch = |batch: CommittedBatch, outcome: Option<&CommitOutcome>| {
            batch.jobs.into_iter().for_each(|job| job.complete(outcome.unwrap_or(&batch.outcome)));
        };
        batches.into_iter().for_each(|batch| complete_batch(batch, unknown.as_ref()));
        if let Some(outcome) = unknown {
            // Batches that the writer sent before it noticed the failure.
            committed.try_iter().for_each(|batch| complete_batch(batch, Some(&outcome)));
            return;
        }
    }
}
