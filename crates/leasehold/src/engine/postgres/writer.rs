//! The write queue and its writers: operations that are queued together become one batch.
//!
//! # Laws
//!
//! 1. A writer never waits for the queue while it has operations that it may take: what is there is what the batch gets.
//! 2. No handle comes twice in a batch: the second operation on it stays in the queue.
//! 3. Every operation gets an answer: a verdict, or why there is none. The last writer closes the queue and answers what is
//!    left; a closed queue answers at once.
//! 4. A name is in one batch at a time: a second one would only wait for the lock of the first.
//! 5. A name whose lock somebody keeps delays only its own operations. They go in batches of their own, wait shortly, and
//!    fail together.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::Time;
use leasehold_postgres::tokio_postgres::types::Type;
use tokio::sync::{Notify, oneshot};

use super::batch::{OperationKind, Verdict, WriteOperation, run_batch};
use super::connection::{ConnectionRoute, EngineConnection, LockWait};
use super::ids::Bits;
use super::shared::{CLOSED, PostgresShared};
use super::sql_error::{BatchSplit, Cause, SqlFailure};
use crate::clock::Clock as _;

/// Operations in one batch. Each locks its names, and the server's table of locks is finite.
const MAX_BATCH: usize = 256;
/// Operations that a writer looks at in vain before it stops looking for those that it may take.
const MAX_PASSED: usize = 4096;
/// ResendTries of a batch that failed without an effect.
const MAX_TRIES: u32 = 3;
/// A batch that takes longer than its operations explain, while others are queued, calls for another writer: the commit is
/// slow, and a second one can go on beside it. A server that is busy is no reason. More and smaller batches are more work for
/// it: with 64 callers on two cores, four writers did 1.62 times the pairs of a bare client and two did 1.83.
const SLOW_COMMIT: Duration = Duration::from_millis(3);
/// What one operation of a batch may take on a busy server.
const OPERATION_TIME: Duration = Duration::from_micros(150);
/// A batch that takes this long keeps its writer from what is queued meanwhile.
const STUCK_BATCH: Duration = Duration::from_millis(20);
/// For how long after a wait for its lock has failed a name goes in batches of its own.
const KEPT_FOR: Duration = Duration::from_secs(5);
/// How often a stopped writer looks whether others have finished.
const STOPPED_PAUSE: Duration = Duration::from_millis(5);
/// Names of leases that this process granted, in each of two generations.
const MAX_NAMES_KEPT: usize = 32_768;

pub(super) type WriteResult = Result<Verdict, SqlFailure>;

struct QueuedOperation {
    operation: WriteOperation,
    /// The only name of the lease of a renewal and the like, if it is known.
    single_name: Option<String>,
    reply: oneshot::Sender<WriteResult>,
}

impl QueuedOperation {
    /// The names that it locks, as far as they are known here.
    fn names(&self) -> &[String] {
        match &self.operation.kind {
            OperationKind::Acquire { claim, .. } => &claim.names,
            _ => self.single_name.as_slice(),
        }
    }

    fn is_acquire(&self) -> bool {
        matches!(self.operation.kind, OperationKind::Acquire { .. })
    }

    /// Its caller sees this, or is seen to be gone: so that "not sent" is never said of what is.
    fn mark_sent(&self) {
        if let OperationKind::Acquire { sent, .. } = &self.operation.kind {
            sent.store(true, Ordering::SeqCst);
        }
    }

    fn refuse_abandoned(self) {
        let _ = self.reply.send(Err(SqlFailure::Away(Cause::new("its caller is gone"))));
    }

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
    /// Writers that are not helpers, and how many of them are in a batch that takes long.
    regular: usize,
    stuck: usize,
    /// Names in batches that are under way.
    busy: HashSet<String>,
    /// Names whose lock somebody kept a moment ago, and until when that is believed.
    kept: HashMap<String, Time>,
    /// Nobody writes any more.
    closed: bool,
}

/// What a writer takes from the queue at once.
struct TakenBatch {
    writes: Vec<QueuedOperation>,
    /// All of it is about one name, whose lock somebody keeps.
    kept: bool,
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
        let single_name = match &operation.kind {
            OperationKind::Acquire { .. } => None,
            _ => self.names().get(operation.handle).map(|name| String::from(&*name)),
        };
        let mut state = self.lock();
        if state.closed {
            let _ = reply.send(Err(SqlFailure::Away(Cause::new(CLOSED))));
        } else {
            state.pending.push_back(QueuedOperation { operation, single_name, reply });
            let all_stuck = state.all_stuck();
            drop(state);
            self.ready.notify_one();
            if all_stuck {
                self.help.notify_one();
            }
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

    /// Up to [`MAX_BATCH`] operations, without waiting. `kept_first`: those on a kept name come before others.
    fn take_batch(&self, now: Time, kept_first: bool) -> Option<TakenBatch> {
        let mut state = self.lock();
        state.kept.retain(|_, until| *until > now);
        for kept in [kept_first, !kept_first] {
            let writes = state.take_writes(kept);
            if !writes.is_empty() {
                state.busy.extend(known_names(&writes));
                return Some(TakenBatch { writes, kept });
            }
        }
        None
    }

    /// These operations are not under way any more.
    fn finish(&self, names: &[String]) {
        let mut state = self.lock();
        for name in names {
            state.busy.remove(name);
        }
        if !state.pending.is_empty() {
            self.ready.notify_one();
        }
    }

    /// Operations that were taken wait for their turn again, before all others.
    fn put_back(&self, writes: Vec<QueuedOperation>, failure: &SqlFailure) {
        let mut state = self.lock();
        for write in writes.into_iter().rev() {
            if state.closed {
                let _ = write.reply.send(Err(failure.clone()));
            } else {
                state.pending.push_front(write);
            }
        }
        drop(state);
        self.ready.notify_one();
    }

    /// A writer's batch takes long, or is over.
    fn set_stuck(&self, stuck: bool) {
        let mut state = self.lock();
        state.stuck = if stuck { state.stuck + 1 } else { state.stuck.saturating_sub(1) };
        if stuck && !state.pending.is_empty() {
            self.help.notify_one();
        }
    }

    fn is_empty(&self) -> bool {
        self.lock().pending.is_empty()
    }
}

impl QueueState {
    fn all_stuck(&self) -> bool {
        self.stuck >= self.regular
    }

    /// `kept`: operations on one name whose lock is kept; else those on all other names.
    fn take_writes(&mut self, kept: bool) -> Vec<QueuedOperation> {
        if kept && self.kept.is_empty() {
            return Vec::new();
        }
        let mut handles = HashSet::new();
        let mut target: Option<String> = None;
        let (mut taken, mut left) = (Vec::new(), VecDeque::new());
        while let Some(write) = self.pending.pop_front() {
            if taken.len() == MAX_BATCH || left.len() == MAX_PASSED {
                left.push_back(write);
                break;
            }
            if write.is_abandoned() {
                write.refuse_abandoned();
                continue;
            }
            // What is left keeps later operations on the same lease from overtaking it.
            let first = handles.insert(write.operation.handle);
            let names = write.names();
            let free = first && !names.iter().any(|name| self.busy.contains(name));
            let kept_name = names.iter().find(|name| self.kept.contains_key(*name));
            let wanted = match (kept, kept_name) {
                (false, name) => name.is_none(),
                (true, None) => false,
                (true, Some(name)) => {
                    if free && target.is_none() {
                        target = Some(name.clone());
                    }
                    target.as_ref().is_some_and(|target| names.contains(target))
                }
            };
            if free && wanted {
                write.mark_sent();
                if write.is_abandoned() {
                    write.refuse_abandoned();
                    continue;
                }
                taken.push(write);
            } else {
                left.push_back(write);
            }
        }
        while let Some(write) = left.pop_back() {
            self.pending.push_front(write);
        }
        taken
    }
}

/// One writer, from before it runs until it is gone: finished, or dropped with its runtime.
struct WriterGuard(Arc<PostgresShared>);

impl WriterGuard {
    fn new(shared: Arc<PostgresShared>, helper: bool) -> Self {
        {
            let mut state = shared.queue.lock();
            state.writers += 1;
            state.regular += usize::from(!helper);
        }
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
    let guard = WriterGuard::new(shared, helper);
    async move {
        write_batches(&guard.0, helper).await;
        drop(guard);
    }
}

async fn write_batches(shared: &Arc<PostgresShared>, helper: bool) {
    let mut writer = BatchWriter { shared: shared.clone(), connection: None };
    let queued = if helper { &shared.queue.help } else { &shared.queue.ready };
    let clock = shared.real_clock;
    let (mut more, mut kept_first) = (false, false);
    loop {
        if !more {
            tokio::select! {
                biased;
                () = queued.notified() => {}
                () = shared.stopped.cancelled() => {
                    if shared.queue.close_if_empty() {
                        return;
                    }
                    // What is left may wait for a batch of another writer.
                    clock.sleep_until(clock.now().plus(STOPPED_PAUSE)).await;
                }
            }
        }
        // Callers that are ready to ask do so now, and are in this batch.
        tokio::task::yield_now().await;
        let began = clock.now();
        let Some(batch) = shared.queue.take_batch(began, kept_first) else {
            more = false;
            continue;
        };
        // In turns: neither keeps the other from being sent.
        kept_first = !batch.kept;
        let explained =
            SLOW_COMMIT + OPERATION_TIME.saturating_mul(u32::try_from(batch.writes.len()).unwrap_or(u32::MAX));
        write_watched(shared, &mut writer, batch, helper).await;
        if clock.now().since(began) > explained && !shared.queue.is_empty() {
            shared.queue.help.notify_one();
        }
        more = !helper || shared.queue.lock().all_stuck();
    }
}

/// Calls for a helper while the batch takes long.
async fn write_watched(shared: &PostgresShared, writer: &mut BatchWriter, batch: TakenBatch, helper: bool) {
    let mut writing = std::pin::pin!(writer.write_batch(batch));
    if !helper {
        let stuck_at = shared.real_clock.now().plus(STUCK_BATCH);
        tokio::select! {
            biased;
            () = &mut writing => return,
            () = shared.real_clock.sleep_until(stuck_at) => {}
        }
        shared.queue.set_stuck(true);
    }
    writing.await;
    if !helper {
        shared.queue.set_stuck(false);
    }
}

struct BatchWriter {
    shared: Arc<PostgresShared>,
    connection: Option<EngineConnection>,
}

/// A batch, or what it was split into.
struct BatchPart {
    writes: Vec<QueuedOperation>,
    /// It has to wait for locks shortly, and is not split by names again.
    alone: bool,
    /// How often it was split by names.
    splits: u32,
}

impl BatchPart {
    fn single(write: QueuedOperation) -> Self {
        Self { writes: vec![write], alone: true, splits: 1 }
    }
}

fn known_names(writes: &[QueuedOperation]) -> Vec<String> {
    writes.iter().flat_map(QueuedOperation::names).cloned().collect()
}

/// Each operation by itself, with short waits: renewals and releases first.
fn split_to_singles(part: BatchPart, todo: &mut Vec<BatchPart>) {
    let (acquires, owned): (Vec<_>, Vec<_>) = part.writes.into_iter().partition(QueuedOperation::is_acquire);
    todo.extend(acquires.into_iter().rev().chain(owned.into_iter().rev()).map(BatchPart::single));
}

impl BatchWriter {
    async fn write_batch(&mut self, batch: TakenBatch) {
        // Parts of a batch that failed as a whole are batches of their own.
        let mut todo = vec![BatchPart { writes: batch.writes, alone: batch.kept, splits: 0 }];
        while let Some(mut part) = todo.pop() {
            let names = known_names(&part.writes);
            match self.write_with_tries(&part).await {
                Ok(verdicts) => {
                    if part.alone {
                        self.shared.queue.lock().kept.retain(|name, _| !names.contains(name));
                    }
                    self.answer(part.writes, verdicts);
                    self.shared.queue.finish(&names);
                }
                Err(SqlFailure::Again { split: BatchSplit::Halves, .. }) if part.writes.len() > 1 => {
                    let half = part.writes.split_off(part.writes.len() / 2);
                    todo.push(BatchPart { writes: half, ..part });
                    todo.push(part);
                }
                Err(failure) if failure.is_kept_lock() && !part.alone => {
                    self.split_by_names(part, &failure, &mut todo).await;
                }
                Err(failure) => {
                    if part.alone && failure.is_kept_lock() {
                        self.keep_names(&names);
                    }
                    for write in part.writes {
                        let _ = write.reply.send(Err(failure.clone()));
                    }
                    self.shared.queue.finish(&names);
                }
            }
        }
    }

    /// The locks of these names are kept by somebody: for a while they are not sent with others.
    fn keep_names(&self, names: &[String]) {
        let until = self.shared.real_clock.now().plus(KEPT_FOR);
        self.shared.queue.lock().kept.extend(names.iter().map(|name| (name.clone(), until)));
    }

    /// One of the operations waited for a lock that somebody keeps. Those that have nothing to do with it go on at once.
    async fn split_by_names(&mut self, part: BatchPart, failure: &SqlFailure, todo: &mut Vec<BatchPart>) {
        let names = known_names(&part.writes);
        let kept = match part.splits {
            0 => self.find_kept(&names).await,
            _ => None,
        };
        let Some(kept) = kept else { return split_to_singles(part, todo) };
        let (mut others, mut unknown, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
        for write in part.writes {
            let names = write.names();
            let (no_name, is_kept) = (names.is_empty(), names.iter().any(|name| kept.contains(name)));
            match (no_name, is_kept) {
                (true, _) => unknown.push(write),
                (_, true) => waiting.push(write),
                _ => others.push(write),
            }
        }
        todo.extend(unknown.into_iter().rev().map(BatchPart::single));
        if !others.is_empty() {
            todo.push(BatchPart { writes: others, alone: false, splits: 1 });
        }
        self.keep_names(&kept.into_iter().collect::<Vec<_>>());
        let names = known_names(&waiting);
        self.shared.queue.put_back(waiting, failure);
        self.shared.queue.finish(&names);
    }

    /// Which of these names are locked at this moment. None: it could not be asked.
    async fn find_kept(&mut self, names: &[String]) -> Option<HashSet<String>> {
        let connection = self.connection.as_ref()?;
        let text = "SELECT n FROM unnest($1::text[]) n WHERE NOT pg_try_advisory_xact_lock(@K, hashtext(n))";
        let text = self.shared.options().schema.in_sql(text);
        let rows = connection.query_text(&text, &[(&names, Type::TEXT_ARRAY)]).await.ok()?;
        rows.iter().map(|row| row.try_get(0).ok()).collect()
    }

    async fn write_with_tries(&mut self, part: &BatchPart) -> Result<HashMap<Bits, Verdict>, SqlFailure> {
        let operations: Vec<WriteOperation> = part.writes.iter().map(|write| write.operation.clone()).collect();
        let wait = if part.alone { LockWait::Short } else { LockWait::Long };
        let mut tries = 0;
        loop {
            tries += 1;
            match self.write_once(&operations, wait).await {
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

    async fn write_once(
        &mut self,
        operations: &[WriteOperation],
        wait: LockWait,
    ) -> Result<HashMap<Bits, Verdict>, SqlFailure> {
        let connection = match self.connection.take().filter(|connection| !connection.is_closed()) {
            Some(connection) => connection,
            None => self.shared.connector.open(ConnectionRoute::Statements, None).await?,
        };
        connection.set_lock_wait(wait).await?;
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
            let QueuedOperation { operation, reply, .. } = write;
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
