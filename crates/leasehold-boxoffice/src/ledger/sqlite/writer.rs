//! The one writer: a thread that owns the connection and commits many requests in one transaction, and a thread beside it
//! that brings what was committed to the disk.
//!
//! ```text
//!   requests ──▶ writer: BEGIN, run, run, … COMMIT ──▶ syncer: fdatasync of the WAL, answers
//!                  ▲                                      │
//!                  └──────────── the disk is idle ◀───────┘
//! ```
//!
//! While one batch is on its way to the disk the next one is run; it is committed when the disk is idle. So neither waits
//! for the other, and a batch is as large as the disk is slow.
//!
//! # Laws
//!
//! 1. Nothing is answered before the transaction that holds it is on disk, refusals and reads neither: what they rest on
//!    may be in a batch that is not.
//! 2. A request that fails leaves no trace, and does not touch the others of its batch: the batch is undone, and each of
//!    its requests is run again alone.
//! 3. A request that panics undoes its batch, and the next batch is served.
//! 4. A COMMIT or a sync that fails is final: those in it learn Indeterminate, later requests Unavailable. It is not
//!    tried again.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rusqlite::Connection;
use tokio::sync::watch;

use super::clock::LedgerClock;

/// The most requests in one transaction: bounds how long the first of them waits.
const MAX_BATCH_REQUESTS: usize = 512;

/// What became of the transaction a request was in.
#[derive(Clone, Debug)]
pub(super) enum CommitOutcome {
    /// What the request came to stands, and all that it rests on is on disk.
    Durable,
    /// Rolled back as a whole before COMMIT: nothing took effect.
    RolledBack(String),
    /// COMMIT or the sync failed: it may have taken effect.
    Unknown(String),
}

/// How a request was run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobRun {
    /// It did what it does, or nothing.
    Complete,
    /// It failed, and may have left something half done.
    PartiallyApplied,
}

/// A request: changes what it changes, and keeps its answer for later.
pub(super) trait WriterJob: Send {
    /// Runs it. It may be run again, after all that it did was undone.
    fn run(&mut self, db: &Connection, time: &LedgerClock) -> JobRun;
    /// Tells who asked, once the fate of the batch is known. It may never have been run.
    fn complete(self: Box<Self>, outcome: &CommitOutcome);
}

type WriterJobs = Vec<Box<dyn WriterJob>>;

enum WriterMessage {
    Job(Box<dyn WriterJob>),
    /// What was handed to the disk is there.
    Synced,
    Stop,
}

/// What the syncer gets: requests to be told, and whether the disk must be waited for.
struct CommittedBatch {
    jobs: WriterJobs,
    outcome: CommitOutcome,
    /// The number of the transaction; none: it changed nothing.
    number: Option<u64>,
}

/// How far transactions have come, for those who read beside the writer.
#[derive(Debug)]
pub(super) struct CommitProgress {
    /// The number of the last transaction that may be visible.
    begun: AtomicU64,
    /// The number of the last one that is on disk.
    synced: watch::Receiver<u64>,
}

impl CommitProgress {
    /// Comes to its end when all that can have been visible until now is on disk. `false`: it never will be.
    pub(super) async fn durable(&self) -> bool {
        let seen = self.begun.load(Ordering::SeqCst);
        self.synced.clone().wait_for(|synced| *synced >= seen).await.is_ok()
    }

    /// How many transactions were committed that changed something.
    pub(super) fn commits(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }
}

/// The way to the thread.
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
                // A tidy file for the next start; nothing depends on it.
                let _ = connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)");
            }
        };
        let thread = std::thread::Builder::new().name("boxoffice-ledger".into()).spawn(work)?;
        Ok(Self { progress, messages: Some(messages).into(), thread: Some(thread).into() })
    }

    /// Hands a request over. `false`: the ledger is closed, or has failed.
    pub(super) fn send(&self, job: Box<dyn WriterJob>) -> bool {
        let messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        messages.as_ref().is_some_and(|messages| messages.send(WriterMessage::Job(job)).is_ok())
    }

    /// Takes no more, and gives the thread to whoever waits for the rest.
    pub(super) fn stop(&self) -> Option<JoinHandle<()>> {
        if let Some(messages) = self.messages.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = messages.send(WriterMessage::Stop);
        }
        self.thread.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Whoever forgets to close it leaves no thread behind that has the file.
impl Drop for WriterHandle {
    fn drop(&mut self) {
        drop(self.stop());
    }
}

/// The ledger has failed for good: law 4.
struct LedgerFailed;

/// What became of requests that were run in one transaction, which is still open.
enum BatchRun {
    /// All of them were run.
    Complete,
    /// One failed: none of it may stay.
    PartiallyApplied,
    /// One panicked, and is gone: none of it may stay.
    Panicked(String),
}

/// The writer's side.
struct WriterThread {
    connection: Connection,
    time: Arc<LedgerClock>,
    incoming: Receiver<WriterMessage>,
    committed: Sender<CommittedBatch>,
    progress: Arc<CommitProgress>,
    /// The disk is at work.
    syncing: bool,
}

impl WriterThread {
    /// Serves until it is stopped, and then gives the connection back; or until it fails.
    fn run(mut self) -> Option<Connection> {
        let mut stopped = false;
        while !stopped {
            match self.incoming.recv() {
                Ok(WriterMessage::Job(first)) => match self.run_batch(first) {
                    Ok(stop) => stopped = stop,
                    Err(LedgerFailed) => {
                        // Those that wait were not run; later ones find nobody.
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

    /// One transaction, from its first request on. Says whether to stop after it.
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

    /// The next request of a batch that has so many; none: the batch ends here.
    fn next_job(&mut self, so_far: usize, changed: bool, stop: &mut bool) -> Option<Box<dyn WriterJob>> {
        while so_far < MAX_BATCH_REQUESTS && !*stop {
            let message = match self.incoming.try_recv() {
                Ok(message) => message,
                // The disk has the last batch still: until it is idle, others may join this one.
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

    /// A request of an undone batch, in a transaction of its own: what it fails with is its own affair.
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

    /// Ends a transaction in which all went well.
    fn commit(&mut self, mut jobs: WriterJobs, before: u64) -> Result<(), LedgerFailed> {
        // Refusals and repeated answers alone: nothing needs the disk but what went before.
        if self.connection.total_changes() == before {
            self.roll_back(&mut jobs)?;
            return self.send_to_syncer(jobs, CommitOutcome::Durable, None);
        }
        if let Err(error) = self.time.persist(&self.connection) {
            self.roll_back(&mut jobs)?;
            return self.send_to_syncer(jobs, CommitOutcome::RolledBack(error.to_string()), None);
        }
        // Counted first: whoever sees the transaction sees the number.
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

    /// Undoes the transaction. One that cannot be undone ends the ledger.
    fn roll_back(&mut self, jobs: &mut WriterJobs) -> Result<(), LedgerFailed> {
        // A full disk or a failed read can have ended it from within a statement.
        if self.connection.is_autocommit() {
            return Ok(());
        }
        let Err(error) = self.connection.execute_batch("ROLLBACK") else { return Ok(()) };
        let _ = self.send_to_syncer(std::mem::take(jobs), CommitOutcome::Unknown(error.to_string()), None);
        Err(LedgerFailed)
    }

    /// To the syncer, in order: what was decided later is never told earlier.
    fn send_to_syncer(
        &mut self,
        jobs: WriterJobs,
        outcome: CommitOutcome,
        number: Option<u64>,
    ) -> Result<(), LedgerFailed> {
        self.syncing |= number.is_some();
        match self.committed.send(CommittedBatch { jobs, outcome, number }) {
            Ok(()) => Ok(()),
            // A sync has failed: what is in this one may have come to the disk all the same.
            Err(unsent) => {
                let unknown = CommitOutcome::Unknown("an earlier sync failed".into());
                unsent.0.jobs.into_iter().for_each(|job| job.complete(&unknown));
                Err(LedgerFailed)
            }
        }
    }
}

/// Runs the last of them. A panic in it is an error of ours, and not the end of the ledger: what it left half done is
/// known to nobody. Who asked for it hears that the writer ended meanwhile.
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

/// The syncer's side: brings to the disk all that was committed until now, then tells those who asked.
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
            // Also after a failure: who waits for the disk shall find that there is none.
            let _ = idle.send(WriterMessage::Synced);
        }
        let unknown = failed.map(|error| CommitOutcome::Unknown(error.to_string()));
        let complete_batch = |batch: CommittedBatch, outcome: Option<&CommitOutcome>| {
            batch.jobs.into_iter().for_each(|job| job.complete(outcome.unwrap_or(&batch.outcome)));
        };
        batches.into_iter().for_each(|batch| complete_batch(batch, unknown.as_ref()));
        if let Some(outcome) = unknown {
            // What the writer hands over before it finds nobody here.
            committed.try_iter().for_each(|batch| complete_batch(batch, Some(&outcome)));
            return;
        }
    }
}
