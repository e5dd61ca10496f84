//! The writer: one thread that sees to it that what gathers at the desk is written, and that what is due is collected.
//!
//! While a batch is being synced the next one gathers: that is group commit. The writing itself is done by the press,
//! which a server's thread may also use by itself.

use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use leasehold_core::book::Histogram;
use leasehold_core::{Command, LeaseKey, Reply, Time};
use tokio::sync::oneshot;

use super::super::Notice;
use super::super::book_clock::BookClock;
use super::super::dir_lock::DirLock;
use super::super::events::EventLog;
use super::super::journal::Journal;
use super::super::maintenance::JournalMaintenance;
use super::super::random::RandomPool;
use super::super::storage::Storage;
use super::group::GroupCommit;
use super::journal_writer::{JournalWriter, SyncStats};
use super::locked::CompletionQueue;

/// How many due leases are collected before others get their turn.
const TICK: u32 = 2048;
/// Longest sleep: the condition variable's clock does not count suspend, ours does.
const NAP: Duration = Duration::from_secs(1);

/// Why no answer comes.
#[derive(Clone, Debug)]
pub enum Stopped {
    /// The command had no effect.
    NoEffect(Arc<str>),
    /// Its facts may or may not be on the disk.
    Unknown(Arc<str>),
}

/// Where an answer goes.
pub enum ReplyTo {
    /// To one caller who waits for nothing else.
    Caller {
        to: oneshot::Sender<Result<Reply, Stopped>>,
        /// The claim has a request id: if its caller is gone, a retry may come for the lease.
        retried: bool,
    },
    /// To a thread that speaks for many.
    CompletionQueue { completions: Arc<CompletionQueue>, tag: u64 },
}

impl ReplyTo {
    /// For an answer that nobody waits for.
    pub fn nowhere() -> Self {
        Self::Caller { to: oneshot::channel().0, retried: true }
    }

    /// The lease of a grant that nobody waits for any more and nobody will come again for.
    pub fn send(self, answer: Result<Reply, Stopped>, batcher: &mut CompletionBatcher) -> Option<LeaseKey> {
        match self {
            Self::Caller { to, retried } => match to.send(answer) {
                Err(Ok(Reply::Granted(granted))) if !retried && !granted.repeated => Some(granted.lease),
                _ => None,
            },
            Self::CompletionQueue { completions, tag } => {
                batcher.add(completions, tag, answer);
                None
            }
        }
    }
}

/// Answers on their way to batcher, gathered so that each completions is filled at once.
#[derive(Default)]
pub struct CompletionBatcher {
    completions: Option<Arc<CompletionQueue>>,
    answers: Vec<(u64, Result<Reply, Stopped>)>,
}

impl CompletionBatcher {
    fn add(&mut self, completions: Arc<CompletionQueue>, tag: u64, answer: Result<Reply, Stopped>) {
        if self.completions.as_ref().is_none_or(|other| !Arc::ptr_eq(other, &completions)) {
            self.put();
            self.completions = Some(completions);
        }
        self.answers.push((tag, answer));
    }

    fn put(&mut self) {
        if let Some(completions) = self.completions.take() {
            completions.put(&mut self.answers);
        }
    }
}

impl Drop for CompletionBatcher {
    fn drop(&mut self) {
        self.put();
    }
}

/// What callers and the writer share.
pub struct EngineShared {
    state: Mutex<EngineState>,
    wake: Condvar,
    pub clock: BookClock,
    pub event_log: EventLog,
    /// Whoever holds it writes. Always taken before the state.
    pub journal_writer: Mutex<JournalWriter>,
    /// More tokens are reserved when fewer than this are left.
    reserve_mark: u64,
    random: Mutex<RandomPool>,
    /// The identity of the directory.
    pub identity: String,
}

pub struct EngineState {
    pub group: GroupCommit<ReplyTo>,
    /// The sentence that callers are told, once the engine has stopped.
    pub stopped: Option<Arc<str>>,
    stopping: bool,
    /// The book may be half changed.
    in_doubt: bool,
    /// A write or a sync failed: the sentence. Nothing is written any more.
    failed: Option<Arc<str>>,
    /// How fast the disk is, and how many were answered last.
    pub sync_stats: SyncStats,
    /// When an idle engine proves its last batch.
    pub proof_at: Option<Time>,
    /// The writer sleeps until then; nobody wakes it otherwise.
    asleep_until: Option<Time>,
    /// While it sleeps: how many answers must wait before it is woken for them.
    crowd: usize,
    /// How long commits took, and how many answers each let go.
    pub commits: Commits,
}

/// How long commits took, and how many answers each let go.
#[derive(Clone, Copy, Debug, Default)]
pub struct Commits {
    /// From the write to the end of the sync.
    pub seconds: Histogram,
    /// Answers that left together.
    pub answers: Histogram,
}

impl EngineShared {
    pub fn new(
        group: GroupCommit<ReplyTo>,
        clock: BookClock,
        event_log: EventLog,
        journal: Journal,
        identity: String,
    ) -> Self {
        let state = EngineState {
            group,
            stopped: None,
            stopping: false,
            in_doubt: false,
            failed: None,
            sync_stats: SyncStats::default(),
            proof_at: None,
            asleep_until: None,
            crowd: 0,
            commits: Commits::default(),
        };
        let reserve_mark = journal.reserve_mark();
        let journal_writer = Mutex::new(JournalWriter::new(journal));
        let random = Mutex::new(RandomPool::new());
        Self {
            state: Mutex::new(state),
            wake: Condvar::new(),
            clock,
            event_log,
            journal_writer,
            reserve_mark,
            random,
            identity,
        }
    }

    /// Where secrets come from.
    pub fn random(&self) -> MutexGuard<'_, RandomPool> {
        self.random.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A panic while the book was being changed leaves it in doubt: then nothing is written any more.
    pub fn lock(&self) -> MutexGuard<'_, EngineState> {
        self.state.lock().unwrap_or_else(|poisoned| {
            let mut state = poisoned.into_inner();
            state.stopped.get_or_insert_with(|| "the engine stopped because of a bug in it".into());
            state.in_doubt = true;
            state
        })
    }

    /// Wakes the writer if it sleeps and there is something to do before it would wake by itself.
    pub fn nudge(&self, mut state: MutexGuard<'_, EngineState>) {
        let Some(until) = state.asleep_until else { return };
        let enough = state.group.has_work() && state.group.answers_waiting() >= state.crowd;
        if enough || state.group.book.next_expiry().is_some_and(|next| next < until) {
            state.asleep_until = None;
            drop(state);
            self.wake.notify_one();
        }
    }

    /// Wakes the writer only for what is due: whoever calls this writes what has gathered.
    pub fn nudge_for_time(&self, mut state: MutexGuard<'_, EngineState>) {
        let Some(until) = state.asleep_until else { return };
        let due = [state.group.book.next_expiry(), state.proof_at];
        if due.into_iter().flatten().any(|due| due < until) {
            state.asleep_until = None;
            drop(state);
            self.wake.notify_one();
        }
    }

    /// Writes what has gathered, on this thread. `false`: it must be left to the writer, which may be writing, or knows
    /// how to gather for a slow disk.
    pub fn write_here(&self) -> bool {
        let Ok(mut journal_writer) = self.journal_writer.try_lock() else { return false };
        // The engine is handed out a moment before its writer and keeper run: whatever the keeper would be asked for
        // must wait for it, and not be taken for its death.
        if journal_writer.jobs.is_none() {
            return false;
        }
        let state = self.lock();
        if state.failed.is_some() || state.in_doubt || state.sync_stats.sync >= SLOW_SYNC {
            return false;
        }
        if !state.group.has_work() {
            return true;
        }
        // If not, the writer tells everybody: it was woken for it.
        if self.write_with(&mut journal_writer, state).is_ok() {
            let state = self.lock();
            // A grant that nobody waited for was ended, and whoever stood behind it was granted: that is not
            // written yet, and nobody else was told of it.
            if state.group.has_work() { self.nudge(state) } else { self.nudge_for_time(state) }
        }
        true
    }

    /// Writes what has gathered; a failure is known to everybody before the press is let go of. A panic ends in the same
    /// orderly stop, on whichever thread it comes.
    fn write_with(&self, journal_writer: &mut JournalWriter, state: MutexGuard<'_, EngineState>) -> io::Result<()> {
        let written = std::panic::catch_unwind(AssertUnwindSafe(|| journal_writer.write(self, state)));
        let result = written.unwrap_or_else(|_| {
            self.lock().in_doubt = true;
            Err(io::Error::other(BUG))
        });
        result.inspect_err(|error| self.fail(error))
    }

    /// The disk failed: nothing is written any more, and the writer tells everybody.
    pub fn fail(&self, error: &io::Error) {
        let mut state = self.lock();
        let sentence: Arc<str> = error.to_string().into();
        state.stopped.get_or_insert_with(|| format!("the engine stopped because the disk failed: {sentence}").into());
        state.failed = Some(sentence);
        drop(state);
        self.wake();
    }

    /// Makes the writer look at the clock again.
    pub fn wake(&self) {
        self.lock().asleep_until = None;
        self.wake.notify_one();
    }

    /// Takes no more commands, and asks the writer to finish those it has.
    pub fn stop(&self) {
        let mut state = self.lock();
        state.stopping = true;
        state.stopped.get_or_insert_with(|| "the engine is closed".into());
        drop(state);
        self.wake();
    }
}

/// Everything the writer's thread owns.
pub struct WriterThread {
    pub shared: Arc<EngineShared>,
    pub storage: Arc<dyn Storage>,
    pub segment: u64,
    pub notices: Arc<dyn Fn(Notice) + Send + Sync>,
    pub lock: Option<DirLock>,
}

/// What to do next.
enum Next {
    Write,
    Proof,
    Stop,
    /// Nothing may be written any more, and this is why.
    Fail(String),
}

impl WriterThread {
    /// Runs until it is asked to stop or the disk fails.
    pub fn run(mut self) {
        let (jobs, queue) = mpsc::channel();
        let maintenance = {
            let mut journal_writer = self.journal_writer();
            journal_writer.jobs = Some(jobs);
            JournalMaintenance {
                shared: self.shared.clone(),
                storage: self.storage.clone(),
                shelf: journal_writer.journal.shelf(),
                segment: self.segment,
                notices: self.notices.clone(),
                progress: journal_writer.progress.clone(),
            }
        };
        let keeping =
            std::thread::Builder::new().name("leasehold-keeper".into()).spawn(move || maintenance.run(&queue));
        let result = match &keeping {
            Err(error) => Err(io::Error::other(format!("the keeper cannot start: {error}"))),
            // A panic ends in the same orderly stop as a failed disk: everybody is told, and the directory is let
            // go of last.
            Ok(_) => std::panic::catch_unwind(AssertUnwindSafe(|| self.write_until_stopped()))
                .unwrap_or_else(|_| Err(io::Error::other(BUG))),
        };
        // Held to the end: nobody else writes after this.
        let mut journal_writer = self.journal_writer();
        journal_writer.jobs = None;
        let finished = result.and_then(|()| self.unbroken()).and_then(|()| self.close(&mut journal_writer));
        let sentence: Arc<str> = match &finished {
            Ok(()) => "the engine is closed".into(),
            Err(error) => format!("the engine stopped because the disk failed: {error}").into(),
        };
        let mut state = self.shared.lock();
        state.stopped = Some(sentence.clone());
        // Also when all went well: after the closing frame nothing may follow.
        state.failed.get_or_insert_with(|| sentence.clone());
        let (in_line, unsettled) = state.group.give_up();
        drop(state);
        drop(journal_writer);
        let mut batcher = CompletionBatcher::default();
        for address in in_line {
            address.send(Err(Stopped::NoEffect(sentence.clone())), &mut batcher);
        }
        for address in unsettled {
            address.send(Err(Stopped::Unknown(sentence.clone())), &mut batcher);
        }
        drop(batcher);
        self.shared.event_log.stop();
        if let Err(error) = finished {
            (self.notices)(Notice::Failed(error.to_string()));
        }
        if let Ok(keeping) = keeping {
            let _ = keeping.join();
        }
        // Only now may another process have the directory.
        drop(self.lock.take());
    }

    /// The press; after a panic while it wrote, everything is in doubt.
    fn journal_writer(&self) -> MutexGuard<'_, JournalWriter> {
        self.shared.journal_writer.lock().unwrap_or_else(|poisoned| {
            self.shared.lock().in_doubt = true;
            poisoned.into_inner()
        })
    }

    /// Whoever wrote last, while this thread already wanted to close, may have found the disk broken.
    fn unbroken(&self) -> io::Result<()> {
        let state = self.shared.lock();
        match &state.failed {
            Some(sentence) => Err(io::Error::other(sentence.to_string())),
            None if state.in_doubt => Err(io::Error::other(BUG)),
            None => Ok(()),
        }
    }

    fn write_until_stopped(&self) -> io::Result<()> {
        loop {
            match self.next() {
                Next::Stop => return Ok(()),
                Next::Fail(sentence) => return Err(io::Error::other(sentence)),
                Next::Proof => {
                    let mut journal_writer = self.journal_writer();
                    if self.unbroken().is_ok() {
                        journal_writer.journal.prove().inspect_err(|error| self.shared.fail(error))?;
                    }
                    self.shared.lock().proof_at = None;
                }
                Next::Write => {
                    let mut journal_writer = self.journal_writer();
                    let state = self.shared.lock();
                    // Somebody else may have written it meanwhile, or have found the disk broken.
                    let wanted = state.group.has_work() || journal_writer.tokens_wanted(&state).is_some();
                    if wanted && state.failed.is_none() && !state.in_doubt {
                        self.shared.write_with(&mut journal_writer, state)?;
                    }
                }
            }
        }
    }

    /// Waits for something to do.
    fn next(&self) -> Next {
        let mut state = self.shared.lock();
        let mut gathered = false;
        loop {
            if state.in_doubt {
                return Next::Fail(BUG.into());
            }
            if let Some(sentence) = &state.failed {
                return Next::Fail(sentence.to_string());
            }
            let now = self.shared.clock.now();
            if state.group.book.next_expiry().is_some_and(|next| next <= now) {
                state.group.tick(TICK, now);
            }
            if state.group.has_work() || state.group.tokens_wanted(self.shared.reserve_mark).is_some() {
                // Those who were just answered are about to come again: on a slow disk one sync for all of
                // them is worth waiting a quarter of a sync.
                let SyncStats { crowd, sync } = state.sync_stats;
                if !gathered && state.group.answers_waiting() < crowd && sync >= SLOW_SYNC {
                    gathered = true;
                    state.crowd = crowd;
                    state = self.sleep(state, now.plus(sync / 4), now);
                    continue;
                }
                return Next::Write;
            }
            if state.stopping {
                return Next::Stop;
            }
            if state.proof_at.is_some_and(|at| at <= now) {
                return Next::Proof;
            }
            let mut until = now.plus(NAP);
            for due in [state.group.book.next_expiry(), state.proof_at].into_iter().flatten() {
                until = until.min(due);
            }
            state = self.sleep(state, until, now);
        }
    }

    fn sleep<'a>(&self, mut state: MutexGuard<'a, EngineState>, until: Time, now: Time) -> MutexGuard<'a, EngineState> {
        state.asleep_until = Some(until);
        let nap = until.since(now).max(Duration::from_micros(50));
        let woken = self.shared.wake.wait_timeout_while(state, nap, |state| state.asleep_until.is_some());
        let mut state = woken
            .unwrap_or_else(|poisoned| {
                let mut woken = poisoned.into_inner();
                woken.0.in_doubt = true;
                woken
            })
            .0;
        state.asleep_until = None;
        state.crowd = 0;
        state
    }

    fn close(&self, journal_writer: &mut JournalWriter) -> io::Result<()> {
        let last = self.shared.lock().group.book.last_token();
        journal_writer.journal.close(last, self.shared.clock.now())
    }
}

/// What is said when a law of ours was broken.
pub const BUG: &str = "a bug in the engine";

/// A sync that takes this long is worth gathering for. On a faster disk waiting costs more than it saves: a short sleep
/// lasts a tenth of a millisecond longer than it was asked to, as long as another sync.
const SLOW_SYNC: Duration = Duration::from_millis(1);

/// Ends a lease that nobody waits for; the answer goes nowhere.
pub fn release_unseen(state: &mut EngineState, lease: LeaseKey, now: Time) {
    state.group.submit(Command::Release { lease }, ReplyTo::nowhere, now);
}

#[cfg(test)]
mod tests {
    use leasehold_core::{Acquire, Mode, WaiterId, Want};

    use super::super::super::random::random_u64;
    use super::super::super::storage::Directory;
    use super::super::super::{CompletionQueue, Embedded, Options, Started, start};
    use super::*;

    /// Goal: a server's thread that writes before the keeper runs leaves it to the writer, and does not stop the engine.
    /// Method: an engine whose writer is started late, and a batch that fills more than half of a segment, so that the
    /// keeper would be asked for the next one.
    #[test]
    fn what_comes_before_the_keeper_waits_for_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let storage: Arc<dyn Storage> = Arc::new(Directory::open(dir.path()).expect("it opens"));
        let mut options = Options::default();
        options.sizes.segment = 64 << 10;
        let Started { group, clock, journal, identity } =
            start(&storage, &options, Box::new(random_u64), |_, _| {}).expect("it starts");
        let shared = Arc::new(EngineShared::new(group, clock, EventLog::new(1, 0), journal, identity));
        let engine = Embedded { shared: shared.clone(), writer: Mutex::new(None) };
        let completions = CompletionQueue::new(|| {});
        let mut locked = engine.lock_for_batch();
        for number in 0..200 {
            let name = format!("{number}-{}", "n".repeat(200));
            let claim = Acquire {
                waiter_id: WaiterId(0),
                wants: &[Want { name: &name, mode: Mode::Exclusive }],
                ttl_ms: 60_000,
                wait_ms: 0,
                max_hold_ms: None,
                delay_ms: 0,
                holder: "ada",
                request: None,
                secret: locked.secret(),
                principal: "",
                value: None,
            };
            locked.acquire(claim, &completions, number).expect("it runs");
        }
        locked.write();
        assert!(shared.lock().failed.is_none() && completions.is_empty(), "nothing was written, nothing failed");
        let segment = options.sizes.segment;
        let notices = options.notices.clone();
        let writer = WriterThread { shared: shared.clone(), storage, segment, notices, lock: None };
        let thread = std::thread::spawn(move || writer.run());
        *engine.writer.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        drop(engine); // finishes what there is
        let mut answers = Vec::new();
        completions.take(&mut answers);
        assert_eq!(answers.iter().filter(|(_, answer)| matches!(answer, Ok(Reply::Granted(_)))).count(), 200);
    }
}
