//! What callers, the writer thread and the maintenance thread share: the book under its lock, and the writer's wake-up.

use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::book::Histogram;
use leasehold_core::{Command, LeaseKey, Secret, Time};

use super::super::book_clock::BookClock;
use super::super::events::EventLog;
use super::super::random::RandomPool;
use super::completion::ReplyTo;
use super::group::GroupCommit;
use super::lifecycle::Lifecycle;

/// A sync that takes this long is slow: on such a disk the writer waits a little for more replies before it syncs. On a
/// faster disk waiting costs more than it saves: a short sleep lasts a tenth of a millisecond too long, as long as a
/// sync.
const SLOW_SYNC_FROM: Duration = Duration::from_millis(1);
/// The shortest sleep of the writer thread.
const SLEEP_AT_LEAST: Duration = Duration::from_micros(50);

/// See the module. Lock order: the journal writer's lock, then `state`.
pub struct EngineShared {
    state: Mutex<EngineState>,
    /// Wakes the writer thread, which waits with `state`.
    wake: Condvar,
    pub clock: BookClock,
    pub event_log: EventLog,
    /// More tokens are reserved when fewer than this are left.
    pub reserve_mark: u64,
    random: Mutex<RandomPool>,
    /// The identity of the directory.
    pub identity: String,
}

/// What the lock of the book protects.
pub struct EngineState {
    pub group: GroupCommit<ReplyTo>,
    pub lifecycle: Lifecycle,
    pub sync_stats: SyncStats,
    /// When an idle engine writes the proof of its last batch.
    pub proof_at: Option<Time>,
    /// The writer thread sleeps until then. None while it runs: then nobody needs to wake it.
    asleep_until: Option<Time>,
    /// While the writer thread sleeps: how many replies must wait before it is woken for them.
    wake_at_replies: usize,
    pub commits: Commits,
}

/// How fast the disk is, and how many callers come together.
#[derive(Clone, Copy, Debug, Default)]
pub struct SyncStats {
    /// Answers of recent batches.
    pub recent_replies: usize,
    /// Average time of a write and its sync.
    pub sync_time: Duration,
}

impl SyncStats {
    /// Notes a batch. `recent_replies` shrinks slowly: one small batch must not make all later ones small.
    pub fn note_batch(&mut self, replies: usize, took: Duration) {
        self.recent_replies = replies.max(self.recent_replies - self.recent_replies.div_ceil(8));
        self.sync_time = if self.sync_time.is_zero() { took } else { (self.sync_time * 7 + took) / 8 };
    }

    /// Whether it is worth waiting for more replies before a sync.
    pub fn is_slow(&self) -> bool {
        self.sync_time >= SLOW_SYNC_FROM
    }
}

/// How long commits took, and how many replies each completed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Commits {
    /// From the write to the end of the sync.
    pub seconds: Histogram,
    /// Answers completed by one commit.
    pub answers: Histogram,
}

impl EngineShared {
    pub fn new(
        group: GroupCommit<ReplyTo>,
        clock: BookClock,
        event_log: EventLog,
        reserve_mark: u64,
        identity: String,
    ) -> Self {
        let state = EngineState {
            group,
            lifecycle: Lifecycle::default(),
            sync_stats: SyncStats::default(),
            proof_at: None,
            asleep_until: None,
            wake_at_replies: 0,
            commits: Commits::default(),
        };
        let random = Mutex::new(RandomPool::new());
        Self { state: Mutex::new(state), wake: Condvar::new(), clock, event_log, reserve_mark, random, identity }
    }

    /// The pool that secrets come from.
    pub fn random(&self) -> MutexGuard<'_, RandomPool> {
        self.random.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A secret for a lease.
    pub fn new_secret(&self) -> Secret {
        Secret::new(self.random().next_secret())
    }

    /// Locks the book. A panic under this lock may have left the book half changed: then nothing is written any more.
    pub fn lock(&self) -> MutexGuard<'_, EngineState> {
        self.state.lock().unwrap_or_else(|poisoned| {
            let mut state = poisoned.into_inner();
            state.lifecycle.doubt();
            state
        })
    }

    /// Unlocks the book, and wakes the writer thread if it sleeps and has something to do before it would wake by
    /// itself.
    pub fn wake_writer_for_work(&self, mut state: MutexGuard<'_, EngineState>) {
        let Some(until) = state.asleep_until else { return };
        let enough = state.group.has_work() && state.group.replies_waiting() >= state.wake_at_replies;
        if enough || state.group.book.next_expiry().is_some_and(|next| next < until) {
            state.asleep_until = None;
            drop(state);
            self.wake.notify_one();
        }
    }

    /// Unlocks the book, and wakes the writer thread for deadlines only: the calling thread writes the batch itself.
    pub fn wake_writer_for_deadlines(&self, mut state: MutexGuard<'_, EngineState>) {
        let Some(until) = state.asleep_until else { return };
        let due = [state.group.book.next_expiry(), state.proof_at];
        if due.into_iter().flatten().any(|due| due < until) {
            state.asleep_until = None;
            drop(state);
            self.wake.notify_one();
        }
    }

    /// Wakes the writer thread: it looks at the clock and at the lifecycle again.
    pub fn wake_writer(&self) {
        self.lock().asleep_until = None;
        self.wake.notify_one();
    }

    /// Puts the writer thread to sleep. It is woken at `until`, or earlier when `wake_at_replies` replies wait.
    pub fn sleep_until<'a>(
        &'a self,
        mut state: MutexGuard<'a, EngineState>,
        until: Time,
        wake_at_replies: usize,
        now: Time,
    ) -> MutexGuard<'a, EngineState> {
        state.asleep_until = Some(until);
        state.wake_at_replies = wake_at_replies;
        let span = until.since(now).max(SLEEP_AT_LEAST);
        let woken = self.wake.wait_timeout_while(state, span, |state| state.asleep_until.is_some());
        let mut state = woken
            .unwrap_or_else(|poisoned| {
                let mut woken = poisoned.into_inner();
                woken.0.lifecycle.doubt();
                woken
            })
            .0;
        state.asleep_until = None;
        state.wake_at_replies = 0;
        state
    }

    /// The disk failed: nothing is written any more, and the writer thread tells everybody.
    pub fn fail(&self, error: &io::Error) {
        self.lock().lifecycle.fail(error);
        self.wake_writer();
    }

    /// Takes no more commands, and asks the writer thread to finish those that were taken.
    pub fn stop(&self) {
        self.lock().lifecycle.stop();
        self.wake_writer();
    }
}

impl EngineState {
    /// Ends a lease whose caller is gone; the reply is discarded.
    pub fn release_unseen(&mut self, lease: LeaseKey, now: Time) {
        self.group.submit(Command::Release { lease }, ReplyTo::nowhere, now);
    }
}
