//! The write queue and its writers: operations that are queued together become one batch.
//!
//! # Laws
//!
//! 1. A writer never waits for the queue while it has operations: what is there is what the batch gets.
//! 2. No handle comes twice in a batch: the second operation on it stays in the queue.
//! 3. Every operation gets an answer: a verdict, or why there is none. The last writer closes the queue and answers what is
//!    left; a closed queue answers at once.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

use super::batch::{OperationKind, Verdict, WriteOperation, run_batch};
use super::connection::{ConnectionRoute, EngineConnection};
use super::ids::Bits;
use super::shared::{CLOSED, PostgresShared};
use super::sql_error::{BatchSplit, Cause, SqlFailure};
use crate::clock::Clock as _;

/// Operations in one batch. Each locks its names, and the server's table of locks is finite.
const MAX_BATCH: usize = 256;
/// ResendTries of a batch that failed without an effect.
const MAX_TRIES: u32 = 3;
/// A batch that takes longer than this while others are queued calls for another writer.
const SLOW_BATCH: Duration = Duration::from_millis(1);
/// Names of leases that this process granted, in each of two generations.
const MAX_NAMES_KEPT: usize = 32_768;

pub(super) type WriteResult = Result<Verdict, SqlFailure>;

struct QueuedOperation {
    operation: WriteOperation,
    reply: oneshot::Sender<WriteResult>,
}

impl QueuedOperation {
    /// An acquire that nobody waits for need not be sent.
    fn is_abandoned(&self) -> bool {
        matches!(&self.operation.kind, OperationKind::Acquire { gone, .. } if gone.load(Ordering::SeqCst))
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct WriteQueue {
    state: Mutex<QueueState>,
    /// Something was queued.
    ready: Notify,
    /// Something is queued, and commits are slow.
    help: Notify,
    names: Mutex<SingleNames>,
}

#[derive(Default)]
struct QueueState {
    pending: VecDeque<QueuedOperation>,
    writers: usize,
    /// Nobody writes any more.
    closed: bool,
}

/// The only name of leases that this process granted without a request id. It saves the server a look.
#[derive(Default)]
struct SingleNames {
    newer: HashMap<Bits, Arc<str>>,
    older: HashMap<Bits, Arc<str>>,
}

impl SingleNames {
    fn get(&self, handle: Bits) -> Option<Arc<str>> {
        self.newer.get(&handle).or_else(|| self.older.get(&handle)).cloned()
    }

    fn insert(&mut self, handle: Bits, name: &str) {
        if self.newer.len() >= MAX_NAMES_KEPT {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(handle, name.into());
    }

    fn remove(&mut self, handle: Bits) {
        self.newer.remove(&handle);
        self.older.remove(&handle);
    }
}

impl WriteQueue {
    /// Queues an operation. It is carried out even if nobody waits for its answer.
    pub fn submit(&self, operation: WriteOperation) -> oneshot::Receiver<WriteResult> {
        let (reply, receiver) = oneshot::channel();
        let mut state = self.lock();
        if state.closed {
            let _ = reply.send(Err(SqlFailure::Away(Cause::new(CLOSED))));
        } else {
            state.pending.push_back(QueuedOperation { operation, reply });
            drop(state);
            self.ready.notify_one();
        }
        receiver
    }

    /// Takes nothing more, and answers what nobody has begun.
    pub fn close(&self) {
        let left = {
            let mut state = self.lock();
            state.closed = true;
            std::mem::take(&mut state.pending)
        };
        for write in left {
            let _ = write.reply.send(Err(SqlFailure::Away(Cause::new(CLOSED))));
        }
    }

    /// Closes the queue if there is nothing left to write.
    fn close_if_empty(&self) -> bool {
        let mut state = self.lock();
        state.closed |= state.pending.is_empty();
        state.closed
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn names(&self) -> MutexGuard<'_, SingleNames> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Up to [`MAX_BATCH`] operations, without waiting.
    fn take_batch(&self) -> Vec<QueuedOperation> {
        let pending = &mut self.lock().pending;
        let mut handles = HashSet::new();
        let (mut taken, mut left) = (Vec::new(), VecDeque::new());
        while let Some(write) = pending.pop_front() {
            if taken.len() == MAX_BATCH {
                left.push_back(write);
                break;
            }
            if write.is_abandoned() {
                let _ = write.reply.send(Err(SqlFailure::Away(Cause::new("its caller is gone"))));
                continue;
            }
            if handles.insert(write.operation.handle) {
                taken.push(write);
            } else {
                left.push_back(write);
            }
        }
        while let Some(write) = left.pop_back() {
            pending.push_front(write);
        }
        taken
    }

    fn is_empty(&self) -> bool {
        self.lock().pending.is_empty()
    }
}

/// One writer, from before it runs until it is gone: finished, or dropped with its runtime.
struct WriterGuard(Arc<PostgresShared>);

impl WriterGuard {
    fn new(shared: Arc<PostgresShared>) -> Self {
        shared.queue.lock().writers += 1;
        Self(shared)
    }
}

impl Drop for WriterGuard {
    fn drop(&mut self) {
        let last = {
            let mut state = self.0.queue.lock();
            state.writers -= 1;
            state.writers == 0
        };
        if last {
            self.0.queue.close();
        }
    }
}

/// Writes batches until the engine stops. `helper`: only while commits are slow.
pub(super) fn run_writer(shared: Arc<PostgresShared>, helper: bool) -> impl Future<Output = ()> + Send {
    let guard = WriterGuard::new(shared);
    async move {
        write_batches(&guard.0, helper).await;
        drop(guard);
    }
}

async fn write_batches(shared: &Arc<PostgresShared>, helper: bool) {
    let mut writer = BatchWriter { shared: shared.clone(), connection: None };
    loop {
        let queued = if helper { &shared.queue.help } else { &shared.queue.ready };
        if helper || shared.queue.is_empty() {
            tokio::select! {
                biased;
                () = queued.notified() => {}
                () = shared.stopped.cancelled() => {
                    if shared.queue.close_if_empty() {
                        return;
                    }
                }
            }
        }
        // Callers that are ready to ask do so now, and are in this batch.
        tokio::task::yield_now().await;
        let batch = shared.queue.take_batch();
        if batch.is_empty() {
            continue;
        }
        let began = shared.real_clock.now();
        writer.write_batch(batch).await;
        if shared.real_clock.now().since(began) > SLOW_BATCH && !shared.queue.is_empty() {
            shared.queue.help.notify_one();
        }
    }
}

struct BatchWriter {
    shared: Arc<PostgresShared>,
    connection: Option<EngineConnection>,
}

impl BatchWriter {
    async fn write_batch(&mut self, batch: Vec<QueuedOperation>) {
        // Parts of a batch that failed as a whole are batches of their own.
        let mut todo = vec![batch];
        while let Some(mut batch) = todo.pop() {
            match self.write_with_tries(&batch).await {
                Ok(verdicts) => self.answer(batch, verdicts),
                Err(SqlFailure::Again { split: BatchSplit::Halves, .. }) if batch.len() > 1 => {
                    let half = batch.split_off(batch.len() / 2);
                    todo.push(half);
                    todo.push(batch);
                }
                Err(SqlFailure::Again { split: BatchSplit::Singles, .. }) if batch.len() > 1 => {
                    todo.extend(batch.into_iter().rev().map(|write| vec![write]));
                }
                Err(failure) => {
                    for write in batch {
                        let _ = write.reply.send(Err(failure.clone()));
                    }
                }
            }
        }
    }

    async fn write_with_tries(&mut self, batch: &[QueuedOperation]) -> Result<HashMap<Bits, Verdict>, SqlFailure> {
        let operations: Vec<WriteOperation> = batch.iter().map(|write| write.operation.clone()).collect();
        let mut tries = 0;
        loop {
            tries += 1;
            match self.write_once(&operations).await {
                Err(SqlFailure::Again { split: BatchSplit::Whole, .. }) if tries < MAX_TRIES => {
                    self.shared.backoff(tries).await;
                }
                Err(SqlFailure::Again { split: BatchSplit::Halves, .. })
                    if operations.len() == 1 && tries < MAX_TRIES =>
                {
                    self.shared.backoff(tries).await;
                }
                answer => return answer,
            }
        }
    }

    async fn write_once(&mut self, operations: &[WriteOperation]) -> Result<HashMap<Bits, Verdict>, SqlFailure> {
        let connection = match self.connection.take().filter(|connection| !connection.is_closed()) {
            Some(connection) => connection,
            None => self.shared.connector.open(ConnectionRoute::Statements, None).await?,
        };
        let names = {
            let kept = self.shared.queue.names();
            operations
                .iter()
                .filter(|operation| !matches!(operation.kind, OperationKind::Acquire { .. }))
                .filter_map(|operation| Some((operation.handle, kept.get(operation.handle)?)))
                .collect()
        };
        let limit = i32::try_from(self.shared.options().limits.waiters_per_resource).unwrap_or(i32::MAX);
        let answer = run_batch(&connection, operations, &names, self.shared.process, limit).await;
        if !answer.as_ref().is_err_and(SqlFailure::ends_connection) {
            self.connection = Some(connection);
        }
        answer
    }

    fn answer(&self, batch: Vec<QueuedOperation>, mut verdicts: HashMap<Bits, Verdict>) {
        for write in batch {
            let QueuedOperation { operation, reply } = write;
            let Some(verdict) = verdicts.remove(&operation.handle) else {
                let _ = reply.send(Err(SqlFailure::Unknown(Cause::new("the batch has no verdict on this operation"))));
                continue;
            };
            match &operation.kind {
                // With a request id another process may take another name under the same handle later.
                OperationKind::Acquire { claim, .. }
                    if verdict.word == b'G' && claim.is_single() && claim.fingerprint.is_none() =>
                {
                    self.shared.queue.names().insert(operation.handle, &claim.names[0]);
                }
                OperationKind::Acquire { .. } => {}
                _ if verdict.word != b'R' => self.shared.queue.names().remove(operation.handle),
                _ => {}
            }
            let _ = reply.send(Ok(verdict));
        }
    }
}
