//! The one writer: a thread that owns the connection and commits many requests in one transaction.
//!
//! # Laws
//!
//! 1. Nothing is answered before the transaction that holds it is committed, synced: refusals too, since what they rest
//!    on may be in the same batch.
//! 2. A request that fails leaves no trace, and does not touch the others of its batch.
//! 3. A request that panics undoes its batch, and the next batch is served.
//! 4. A COMMIT that fails is final: its batch learns Indeterminate, later requests Unavailable. It is not tried again.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use rusqlite::Connection;

use super::time::Time;

/// The most requests in one transaction: bounds how long the first of them waits.
const BATCH: usize = 512;

/// What became of the transaction a request was in.
#[derive(Clone, Debug)]
pub(super) enum Fate {
    /// Committed and synced.
    Durable,
    /// Rolled back as a whole before COMMIT: nothing took effect.
    Undone(String),
    /// COMMIT failed: it may have taken effect.
    Unknown(String),
}

/// Tells who asked, once the fate of the batch is known.
pub(super) type Reply = Box<dyn FnOnce(&Fate) + Send>;

/// A request: changes what it changes, and leaves its answer for later. Without a connection it is not run at all.
pub(super) type Job = Box<dyn FnOnce(Option<&Connection>, &Time) -> Reply + Send>;

/// The way to the thread.
pub(super) struct Writer {
    /// Transactions that were committed.
    pub(super) commits: Arc<AtomicU64>,
    jobs: std::sync::Mutex<Option<Sender<Job>>>,
    thread: std::sync::Mutex<Option<JoinHandle<()>>>,
}

impl Writer {
    pub(super) fn start(connection: Connection, time: Arc<Time>) -> std::io::Result<Self> {
        let (sender, receiver) = channel();
        let commits = Arc::new(AtomicU64::new(0));
        let counter = commits.clone();
        let run = move || work(&connection, &time, &receiver, &counter);
        let thread = std::thread::Builder::new().name("boxoffice-ledger".into()).spawn(run)?;
        Ok(Self { commits, jobs: Some(sender).into(), thread: Some(thread).into() })
    }

    /// Hands a request over. `false`: the ledger is closed, or has failed.
    pub(super) fn send(&self, job: Job) -> bool {
        let jobs = self.jobs.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok())
    }

    /// Takes no more, and gives the thread to whoever waits for the rest.
    pub(super) fn stop(&self) -> Option<JoinHandle<()>> {
        self.jobs.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        self.thread.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take()
    }
}

fn work(connection: &Connection, time: &Time, jobs: &Receiver<Job>, commits: &AtomicU64) {
    while let Ok(first) = jobs.recv() {
        let fate = batch(connection, time, first, jobs, commits);
        if let Fate::Unknown(_) = fate {
            // Those that wait were not run; dropping the receiver makes later ones Unavailable.
            let stopped = Fate::Undone("the ledger stopped after a failed commit".into());
            while let Ok(job) = jobs.try_recv() {
                job(None, time)(&stopped);
            }
            return;
        }
    }
    // A tidy file for the next start; nothing depends on it.
    let _ = connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)");
}

fn batch(connection: &Connection, time: &Time, first: Job, jobs: &Receiver<Job>, commits: &AtomicU64) -> Fate {
    let mut replies: Vec<Reply> = Vec::new();
    let fate = match connection.execute_batch("BEGIN IMMEDIATE") {
        Ok(()) => {
            let before = connection.total_changes();
            let mut fell = run(first, connection, time, &mut replies);
            while fell.is_none() && replies.len() < BATCH && !connection.is_autocommit() {
                let Ok(job) = jobs.try_recv() else { break };
                fell = run(job, connection, time, &mut replies);
            }
            if let Some(why) = fell {
                return undo(connection, replies, why);
            }
            let changed = connection.total_changes() != before;
            commits.fetch_add(u64::from(changed), Ordering::Relaxed);
            commit(connection, time, changed)
        }
        Err(error) => {
            replies.push(first(None, time));
            Fate::Undone(error.to_string())
        }
    };
    for reply in replies {
        reply(&fate);
    }
    fate
}

/// Runs a request. A panic in it is an error of ours, and not the end of the ledger: what it left half done is known to
/// nobody, so the whole batch is undone. Who asked for it hears that the writer ended meanwhile.
fn run(job: Job, connection: &Connection, time: &Time, replies: &mut Vec<Reply>) -> Option<String> {
    match catch_unwind(AssertUnwindSafe(|| job(Some(connection), time))) {
        Ok(reply) => {
            replies.push(reply);
            None
        }
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Some(format!("a request of the same batch panicked: {}", text.unwrap_or("without a word")))
        }
    }
}

/// Rolls the batch back and tells all of it. A transaction that cannot be rolled back ends the ledger.
fn undo(connection: &Connection, replies: Vec<Reply>, why: String) -> Fate {
    let rolled_back = connection.is_autocommit() || connection.execute_batch("ROLLBACK").is_ok();
    let fate = if rolled_back { Fate::Undone(why) } else { Fate::Unknown(why) };
    replies.into_iter().for_each(|reply| reply(&fate));
    fate
}

fn commit(connection: &Connection, time: &Time, changed: bool) -> Fate {
    // A full disk or a failed read can end the transaction from within a statement: then all of it is undone.
    if connection.is_autocommit() {
        return Fate::Undone("SQLite rolled the transaction back".into());
    }
    // Refusals alone: all that they rest on is durable already, and nothing needs the disk.
    if !changed && connection.execute_batch("ROLLBACK").is_ok() {
        return Fate::Durable;
    }
    if let Err(error) = time.keep(connection) {
        let _ = connection.execute_batch("ROLLBACK");
        return Fate::Undone(error.to_string());
    }
    match connection.execute_batch("COMMIT") {
        Ok(()) => Fate::Durable,
        Err(error) => {
            let _ = connection.execute_batch("ROLLBACK");
            Fate::Unknown(error.to_string())
        }
    }
}
