//! The writer thread of a file: calls that are queued together share one transaction and one sync.
//!
//! ```text
//!   calls ──▶ writer thread: BEGIN IMMEDIATE, (SAVEPOINT, tick, work) … COMMIT ──▶ answers
//! ```
//!
//! Unlike the ledger of the box office, the file is shared with other processes: SQLite syncs at each COMMIT itself, and a
//! file that another process locks for too long is an error of the calls and not of the store.
//!
//! # Laws
//!
//! 1. No call is answered before its transaction is on disk.
//! 2. A call that fails or panics leaves no trace, and does not affect the others of its batch.
//! 3. A COMMIT that fails makes its calls Indeterminate.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

use rusqlite::Connection;
use tokio::sync::oneshot;

use super::{STORE_NAME, Tick, sqlite_error};
use crate::recipe::error::RecipeError;

/// The most calls in one transaction. It bounds how long the first of them waits.
const MAX_BATCH_CALLS: usize = 256;

/// How the transaction of a call ended.
enum BatchEnd {
    Committed,
    RolledBack(String),
    Unknown(String),
}

/// Sends the answer, once the end of the transaction is known.
type SendAnswer = Box<dyn FnOnce(&BatchEnd) + Send>;
/// Runs a call in the open transaction. True: it changed a row.
type WriterCall = Box<dyn FnOnce(&Connection) -> (bool, SendAnswer) + Send>;

/// Sends calls to the writer thread, and ends it.
pub(super) struct StoreWriter {
    calls: Mutex<Option<Sender<WriterCall>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl StoreWriter {
    pub fn start(connection: Connection) -> std::io::Result<Self> {
        let (calls, incoming) = channel();
        let thread = std::thread::Builder::new().name("recipe-store".into());
        let thread = thread.spawn(move || run_writer(&connection, &incoming))?;
        Ok(Self { calls: Some(calls).into(), thread: Some(thread).into() })
    }

    /// Queues a call, and waits until it is on disk.
    pub async fn write<T: Send + 'static>(
        &self,
        attempt: &str,
        work: impl FnOnce(&Connection, Tick) -> Result<T, RecipeError> + Send + 'static,
    ) -> Result<T, RecipeError> {
        let (sender, receiver) = oneshot::channel();
        let text = attempt.to_owned();
        let call: WriterCall = Box::new(move |db| {
            let (changed, outcome) = match run_call(db, &text, work) {
                Ok((value, changed)) => (changed, Ok(value)),
                Err(error) => (false, Err(error)),
            };
            let answer: SendAnswer = Box::new(move |end| {
                let _ = sender.send(match end {
                    BatchEnd::Committed => outcome,
                    BatchEnd::RolledBack(why) => Err(RecipeError::unavailable(STORE_NAME, &text, why.clone())),
                    BatchEnd::Unknown(why) => Err(RecipeError::indeterminate(STORE_NAME, &text, why.clone())),
                });
            });
            (changed, answer)
        });
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if calls.is_none_or(|calls| calls.send(call).is_err()) {
            return Err(RecipeError::unavailable(STORE_NAME, attempt, "the store is closed"));
        }
        receiver
            .await
            .unwrap_or_else(|_| Err(RecipeError::indeterminate(STORE_NAME, attempt, "the writer thread ended")))
    }

    /// Takes no more calls, and waits until those that are queued are done.
    pub async fn close(&self) {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).take();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }
}

/// Runs until all senders are gone.
fn run_writer(db: &Connection, incoming: &Receiver<WriterCall>) {
    while let Ok(first) = incoming.recv() {
        run_batch(db, first, incoming);
    }
}

fn run_batch(db: &Connection, first: WriterCall, incoming: &Receiver<WriterCall>) {
    let begun = db.execute_batch("BEGIN IMMEDIATE");
    let mut batch_changed = false;
    let mut answers = Vec::new();
    let mut next = Some(first);
    while let Some(call) = next.take() {
        // A full disk or a failed read makes SQLite roll back by itself: what comes after it has no transaction.
        let (changed, answer) = call(db);
        batch_changed |= changed;
        answers.push(answer);
        // Where BEGIN failed, whatever is queued is answered too: each would wait for the same lock once more.
        if answers.len() < MAX_BATCH_CALLS && (!db.is_autocommit() || begun.is_err()) {
            next = incoming.try_recv().ok();
        }
    }
    let end = match begun {
        Err(error) => BatchEnd::RolledBack(error.to_string()),
        Ok(()) if db.is_autocommit() => BatchEnd::RolledBack("SQLite rolled the transaction back".into()),
        Ok(()) if !batch_changed => roll_back(db),
        Ok(()) => match db.execute_batch("COMMIT") {
            Ok(()) => BatchEnd::Committed,
            Err(error) => {
                let _ = db.execute_batch("ROLLBACK");
                BatchEnd::Unknown(error.to_string())
            }
        },
    };
    answers.into_iter().for_each(|answer| answer(&end));
}

/// Nothing was changed, so there is nothing to sync.
fn roll_back(db: &Connection) -> BatchEnd {
    match db.execute_batch("ROLLBACK") {
        Ok(()) => BatchEnd::Committed,
        Err(error) => BatchEnd::RolledBack(error.to_string()),
    }
}

/// One call within the open transaction. Says whether it changed a row.
fn run_call<T>(
    db: &Connection,
    attempt: &str,
    work: impl FnOnce(&Connection, Tick) -> Result<T, RecipeError>,
) -> Result<(T, bool), RecipeError> {
    if db.is_autocommit() {
        // BEGIN failed: the whole batch is answered with its error.
        return Err(RecipeError::unavailable(STORE_NAME, attempt, "there is no transaction"));
    }
    let sql = |error: rusqlite::Error| sqlite_error(&error, attempt);
    db.execute_batch("SAVEPOINT one_call").map_err(sql)?;
    let ran = catch_unwind(AssertUnwindSafe(|| {
        let tick = Tick::take(db, attempt)?;
        let before = db.total_changes();
        work(db, tick).map(|value| (value, db.total_changes() != before))
    }));
    let done = ran.unwrap_or_else(|_| Err(RecipeError::unavailable(STORE_NAME, attempt, "the call panicked")));
    let end = match &done {
        Ok((_, true)) => "RELEASE one_call",
        _ => "ROLLBACK TO one_call; RELEASE one_call",
    };
    if !db.is_autocommit() {
        db.execute_batch(end).map_err(sql)?;
    }
    done
}
