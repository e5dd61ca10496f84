//! Batches: requests that are queued together share one transaction.
//!
//! # Laws
//!
//! 1. No request is answered before its transaction is committed. This includes refusals: they may depend on writes of
//!    the same batch.
//! 2. A request that makes its transaction fail (a deadlock, a lock timeout, a broken law) does not fail the others:
//!    each request of the batch is retried in a transaction of its own.
//! 3. One worker at a time holds the queue: it takes a batch, loads and decides it, and releases the queue when COMMIT is
//!    sent. Requests that arrive meanwhile share the next transaction. A worker that is held up by a lock or a slow
//!    server for [`MAX_TURN_TIME`] releases the queue early.
//! 4. Retries are bounded. A COMMIT whose answer is lost is not retried.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, OwnedMutexGuard, mpsc};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::batch_state::LockHints;
use super::error::PostgresError;
use super::job::{BatchJob, TransactionOutcome};
use super::session::SessionPool;
use super::{lock, store};

/// The most requests in one transaction. It bounds how long the first of them waits.
const MAX_BATCH_REQUESTS: usize = 128;
/// How long a worker may hold the queue while it gets a connection, locks and loads.
const MAX_TURN_TIME: Duration = Duration::from_millis(20);
/// How often a request is tried in a transaction of its own.
pub(super) const MAX_TRANSACTION_ATTEMPTS: usize = 10;

/// Requests that no worker has taken yet.
pub(super) type JobQueue = Arc<Mutex<mpsc::UnboundedReceiver<Box<dyn BatchJob>>>>;

/// The lock on the queue: see law 3.
pub(super) type QueueTurn = OwnedMutexGuard<mpsc::UnboundedReceiver<Box<dyn BatchJob>>>;

/// A worker task: runs batches until the queue is closed and empty.
pub(super) async fn run_worker(sessions: Arc<SessionPool>, queue: JobQueue) {
    let mut later = JoinSet::new();
    loop {
        let mut jobs = Vec::new();
        let mut turn = queue.clone().lock_owned().await;
        if turn.recv_many(&mut jobs, MAX_BATCH_REQUESTS).await == 0 {
            break;
        }
        for (job, hints) in run_together(&sessions, jobs, turn).await {
            later.spawn(run_alone(sessions.clone(), job, hints));
        }
        while later.try_join_next().is_some() {}
    }
    later.join_all().await;
}

/// Runs all jobs in one transaction. Returns those that must be retried alone, with their hints.
async fn run_together(
    sessions: &SessionPool,
    mut jobs: Vec<Box<dyn BatchJob>>,
    turn: QueueTurn,
) -> Vec<(Box<dyn BatchJob>, LockHints)> {
    let (outcome, set_aside) = run_transaction(sessions, &mut jobs, &LockHints::default(), Some(turn)).await;
    let again = match &outcome {
        // One job may have failed the transaction for all.
        TransactionOutcome::RolledBack(error) => {
            error.is_server_error() || matches!(error, PostgresError::Corrupt { .. })
        }
        _ => false,
    };
    let mut set_aside = set_aside.into_iter().peekable();
    let mut later = Vec::new();
    for (at, job) in jobs.into_iter().enumerate() {
        let hints = set_aside.next_if(|(which, _)| *which == at).map(|(_, hints)| hints);
        match hints {
            Some(hints) => later.push((job, hints)),
            None if again => later.push((job, LockHints::default())),
            None => job.complete(&outcome),
        }
    }
    later
}

/// Runs one job in a transaction of its own, and retries while others conflict with it.
pub(super) async fn run_alone(sessions: Arc<SessionPool>, job: Box<dyn BatchJob>, mut hints: LockHints) {
    let mut jobs = vec![job];
    let mut last = TransactionOutcome::RolledBack(PostgresError::TooManyRetries(MAX_TRANSACTION_ATTEMPTS));
    for _ in 0..MAX_TRANSACTION_ATTEMPTS {
        let (outcome, set_aside) = run_transaction(&sessions, &mut jobs, &hints, None).await;
        if let Some((_, more)) = set_aside.into_iter().next() {
            hints.extend(more);
            continue;
        }
        last = outcome;
        match &last {
            TransactionOutcome::RolledBack(error) if error.is_retryable() => {}
            _ => break,
        }
    }
    for job in jobs {
        job.complete(&last);
    }
}

/// One transaction: lock, load, decide, store, commit. Returns its outcome, and which jobs were set aside with which
/// hints.
async fn run_transaction(
    sessions: &SessionPool,
    jobs: &mut [Box<dyn BatchJob>],
    hints: &LockHints,
    mut turn: Option<QueueTurn>,
) -> (TransactionOutcome, Vec<(usize, LockHints)>) {
    let loaded = {
        let load = async {
            let mut session = sessions.session().await.map_err(|error| (error, None))?;
            match lock::load(&mut session, jobs, hints).await {
                Ok(state) => Ok((session, state)),
                Err(error) => Err((error, Some(session))),
            }
        };
        let mut load = pin!(load);
        match timeout(MAX_TURN_TIME, &mut load).await {
            Ok(loaded) => loaded,
            Err(_) => {
                turn = None;
                load.await
            }
        }
    };
    let (mut session, mut state) = match loaded {
        Ok(loaded) => loaded,
        Err((error, session)) => {
            drop(turn);
            if let Some(mut session) = session {
                session.roll_back(Some(&error)).await;
            }
            return (TransactionOutcome::RolledBack(error), vec![]);
        }
    };
    let mut set_aside = Vec::new();
    for (at, job) in jobs.iter_mut().enumerate() {
        match state.decide_job(&mut **job) {
            Ok(hints) if hints.is_empty() => {}
            Ok(hints) => set_aside.push((at, hints)),
            Err(error) => {
                drop(turn);
                session.roll_back(Some(&error)).await;
                return (TransactionOutcome::RolledBack(error), vec![]);
            }
        }
    }
    if !state.changes.any {
        drop(turn);
        // Refusals and stored answers depend only on what was committed before.
        session.roll_back(None).await;
        return (TransactionOutcome::Durable, set_aside);
    }
    (store::commit(&mut session, state.changes, state.now, turn).await, set_aside)
}
