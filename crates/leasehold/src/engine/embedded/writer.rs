//! The writer: one thread that takes what gathered at the desk to the disk, and then lets the answers go.
//!
//! While a batch is being synced the next one gathers: that is group commit. The keeper beside it prepares
//! segments and writes snapshots, off the path of every answer.

use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use leasehold_core::book::Spread;
use leasehold_core::{Command, LeaseKey, Reply, Time};
use tokio::sync::oneshot;

use super::Notice;
use super::boot::BookClock;
use super::desk::{Batch, Desk};
use super::journal::frame::Kind;
use super::journal::snapshot::{Point, Writer as SnapshotWriter};
use super::journal::{Journal, Shared, keep};
use super::lock::DirLock;
use super::newsroom::Newsroom;
use super::random::random_u64;
use super::storage::Storage;
use super::till::Tray;

/// How many due leases are collected before others get their turn.
const TICK: u32 = 2048;
/// Lease slots that a snapshot looks at in one step.
const SNAPSHOT_STEP: usize = 2048;
/// An idle engine proves its last batch within 50 ms.
const PROOF_AFTER: Duration = Duration::from_millis(30);
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
pub(super) enum Address {
    /// To one caller who waits for nothing else.
    Caller {
        to: oneshot::Sender<Result<Reply, Stopped>>,
        /// The claim has a request id: if its caller is gone, a retry may come for the lease.
        retried: bool,
    },
    /// To a thread that speaks for many.
    Tray { tray: Arc<Tray>, tag: u64 },
}

impl Address {
    /// For an answer that nobody waits for.
    pub fn nowhere() -> Self {
        Self::Caller { to: oneshot::channel().0, retried: true }
    }

    /// The lease of a grant that nobody waits for any more and nobody will come again for.
    fn send(self, answer: Result<Reply, Stopped>) -> Option<LeaseKey> {
        match self {
            Self::Caller { to, retried } => match to.send(answer) {
                Err(Ok(Reply::Granted(granted))) if !retried && !granted.repeated => Some(granted.lease),
                _ => None,
            },
            Self::Tray { tray, tag } => {
                tray.put(tag, answer);
                None
            }
        }
    }
}

/// What callers and the writer share.
pub(super) struct Counter {
    state: Mutex<State>,
    wake: Condvar,
    pub clock: BookClock,
    pub newsroom: Newsroom,
}

pub(super) struct State {
    pub desk: Desk<Address>,
    /// The sentence that callers are told, once the engine has stopped.
    pub stopped: Option<Arc<str>>,
    stopping: bool,
    /// The book may be half changed.
    in_doubt: bool,
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
    pub seconds: Spread,
    /// Answers that left together.
    pub answers: Spread,
}

impl Counter {
    pub fn new(desk: Desk<Address>, clock: BookClock, newsroom: Newsroom) -> Self {
        let state = State {
            desk,
            stopped: None,
            stopping: false,
            in_doubt: false,
            asleep_until: None,
            crowd: 0,
            commits: Commits::default(),
        };
        Self { state: Mutex::new(state), wake: Condvar::new(), clock, newsroom }
    }

    /// A panic while the book was being changed leaves it in doubt: then nothing is written any more.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| {
            let mut state = poisoned.into_inner();
            state.stopped.get_or_insert_with(|| "the engine stopped because of a bug in it".into());
            state.in_doubt = true;
            state
        })
    }

    /// Wakes the writer if it sleeps and there is something to do before it would wake by itself.
    pub fn nudge(&self, mut state: MutexGuard<'_, State>) {
        let Some(until) = state.asleep_until else { return };
        let enough = state.desk.has_work() && state.desk.answers_waiting() >= state.crowd;
        if enough || state.desk.book.next_expiry().is_some_and(|next| next < until) {
            state.asleep_until = None;
            drop(state);
            self.wake.notify_one();
        }
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

/// What the keeper is asked to do.
enum Job {
    Spare,
    Snapshot(Point),
}

/// Set by the keeper, read by the writer.
#[derive(Default)]
struct Progress {
    spare_asked: AtomicBool,
    snapshot_asked: AtomicBool,
    snapshot_size: AtomicU64,
}

/// Everything the writer's thread owns.
pub(super) struct Writer {
    pub counter: Arc<Counter>,
    pub journal: Journal,
    pub storage: Arc<dyn Storage>,
    pub segment: u64,
    pub notices: Arc<dyn Fn(Notice) + Send + Sync>,
    pub lock: Option<DirLock>,
}

/// What to write next.
enum Next {
    Batch(Batch<Address>, bool),
    Proof,
    Stop,
    /// Nothing may be written any more.
    InDoubt,
}

impl Writer {
    /// Runs until it is asked to stop or the disk fails.
    pub fn run(mut self) {
        let progress = Arc::new(Progress::default());
        let (jobs, queue) = mpsc::channel();
        let keeper = Keeper {
            counter: self.counter.clone(),
            storage: self.storage.clone(),
            shelf: self.journal.shelf(),
            segment: self.segment,
            notices: self.notices.clone(),
            progress: progress.clone(),
        };
        let keeping = std::thread::Builder::new().name("leasehold-keeper".into()).spawn(move || keeper.run(&queue));
        let result = match &keeping {
            Err(error) => Err(io::Error::other(format!("the keeper cannot start: {error}"))),
            // A panic ends in the same orderly stop as a failed disk: everybody is told, and the directory is let
            // go of last.
            Ok(_) => std::panic::catch_unwind(AssertUnwindSafe(|| self.write_until_stopped(&jobs, &progress)))
                .unwrap_or_else(|_| Err(io::Error::other("a bug in the engine"))),
        };
        drop(jobs);
        let finished = match result {
            Ok(()) => self.close(),
            Err(error) => Err(error),
        };
        let sentence: Arc<str> = match &finished {
            Ok(()) => "the engine is closed".into(),
            Err(error) => format!("the engine stopped because the disk failed: {error}").into(),
        };
        let mut state = self.counter.lock();
        state.stopped = Some(sentence.clone());
        let (in_line, unsettled) = state.desk.give_up();
        drop(state);
        for address in in_line {
            address.send(Err(Stopped::NoEffect(sentence.clone())));
        }
        for address in unsettled {
            address.send(Err(Stopped::Unknown(sentence.clone())));
        }
        self.counter.newsroom.stop();
        if let Err(error) = finished {
            (self.notices)(Notice::Failed(error.to_string()));
        }
        if let Ok(keeping) = keeping {
            let _ = keeping.join();
        }
        // Only now may another process have the directory.
        drop(self.lock.take());
    }

    fn write_until_stopped(&mut self, jobs: &mpsc::Sender<Job>, progress: &Progress) -> io::Result<()> {
        let mut proof_at = None;
        let mut pace = Pace::default();
        loop {
            let next = self.next(proof_at, pace, progress);
            match next {
                Next::Stop => return Ok(()),
                Next::InDoubt => return Err(io::Error::other("a bug in the engine")),
                Next::Proof => {
                    self.journal.prove()?;
                    proof_at = None;
                }
                Next::Batch(mut batch, snapshot) => {
                    let began = self.counter.clock.machine().now();
                    let result = self.commit(&batch);
                    let took = self.counter.clock.machine().now().since(began);
                    pace.note(batch.answers.len(), took);
                    if let Err(error) = result {
                        let sentence: Arc<str> = format!("the disk failed: {error}").into();
                        for (address, _) in batch.answers.drain(..) {
                            address.send(Err(Stopped::Unknown(sentence.clone())));
                        }
                        return Err(error);
                    }
                    if !batch.facts.is_empty() {
                        proof_at = Some(self.counter.clock.now().plus(PROOF_AFTER));
                    }
                    self.deliver(batch, took);
                    if snapshot {
                        self.journal.snapshot_begun();
                        jobs.send(Job::Snapshot(self.journal.point())).map_err(|_| keeper_died())?;
                    }
                    if !self.journal.wants_spare() {
                        progress.spare_asked.store(false, Ordering::Release);
                    } else if !progress.spare_asked.swap(true, Ordering::AcqRel) {
                        jobs.send(Job::Spare).map_err(|_| keeper_died())?;
                    }
                    let size = progress.snapshot_size.swap(0, Ordering::AcqRel);
                    if size > 0 {
                        self.journal.snapshot_done(size);
                    }
                }
            }
        }
    }

    /// Waits for something to write, and seals it.
    fn next(&self, proof_at: Option<Time>, pace: Pace, progress: &Progress) -> Next {
        let mut state = self.counter.lock();
        let mut gathered = false;
        loop {
            if state.in_doubt {
                return Next::InDoubt;
            }
            let now = self.counter.clock.now();
            if state.desk.book.next_expiry().is_some_and(|next| next <= now) {
                state.desk.tick(TICK, now);
            }
            if state.desk.has_work() || self.wants_tokens(&state) {
                // Those who were just answered are about to come again: on a slow disk one sync for all of
                // them is worth waiting a quarter of a sync.
                if !gathered && state.desk.answers_waiting() < pace.crowd && pace.sync >= SLOW_SYNC {
                    gathered = true;
                    state.crowd = pace.crowd;
                    state = self.sleep(state, now.plus(pace.sync / 4), now);
                    continue;
                }
                let batch = state.desk.seal();
                let snapshot = self.journal.wants_snapshot()
                    && !batch.facts.is_empty()
                    && !progress.snapshot_asked.swap(true, Ordering::AcqRel);
                if snapshot {
                    state.desk.book.begin_snapshot();
                }
                return Next::Batch(batch, snapshot);
            }
            if state.stopping {
                return Next::Stop;
            }
            if proof_at.is_some_and(|at| at <= now) {
                return Next::Proof;
            }
            let mut until = now.plus(NAP);
            for due in [state.desk.book.next_expiry(), proof_at].into_iter().flatten() {
                until = until.min(due);
            }
            state = self.sleep(state, until, now);
        }
    }

    fn sleep<'a>(&self, mut state: MutexGuard<'a, State>, until: Time, now: Time) -> MutexGuard<'a, State> {
        state.asleep_until = Some(until);
        let nap = until.since(now).max(Duration::from_micros(50));
        let woken = self.counter.wake.wait_timeout_while(state, nap, |state| state.asleep_until.is_some());
        let mut state = woken.unwrap_or_else(PoisonError::into_inner).0;
        state.asleep_until = None;
        state.crowd = 0;
        state
    }

    fn wants_tokens(&self, state: &State) -> bool {
        state.desk.book.tokens_left() < self.journal.reserve_mark()
    }

    fn commit(&mut self, batch: &Batch<Address>) -> io::Result<()> {
        let wants_tokens = {
            let state = self.counter.lock();
            self.wants_tokens(&state)
        };
        if wants_tokens {
            self.journal.reserve_tokens()?;
        }
        if batch.facts.is_empty() && !wants_tokens {
            return Ok(());
        }
        let time = self.counter.clock.now();
        self.journal.commit(Kind::Facts, &batch.facts, time)?;
        Ok(())
    }

    /// Lets the answers go. A grant whose caller is gone is ended: nobody knows of it.
    fn deliver(&self, mut batch: Batch<Address>, took: Duration) {
        {
            let mut state = self.counter.lock();
            if !batch.facts.is_empty() {
                state.commits.seconds.add(took);
                let answers = batch.answers.len() as u64;
                state.commits.answers.add_value(answers, answers);
            }
            state.desk.book.set_ceiling(self.journal.token_ceiling());
            state.desk.settle(std::mem::take(&mut batch.facts));
        }
        // Watchers first: whoever has an answer and then looks at what happened must find it there.
        self.counter.newsroom.publish(&batch.news.0, batch.news.1);
        let mut ghosts = Vec::new();
        for (address, reply) in batch.answers.drain(..) {
            ghosts.extend(address.send(Ok(reply)));
        }
        let mut state = self.counter.lock();
        for lease in ghosts {
            release_unseen(&mut state, lease, self.counter.clock.now());
        }
        state.desk.return_answers(batch.answers);
    }

    fn close(&mut self) -> io::Result<()> {
        let last = self.counter.lock().desk.book.last_token();
        let time = self.counter.clock.now();
        self.journal.close(last, time)
    }
}

/// A sync that takes this long is worth gathering for; on a faster disk waiting costs more than it saves.
const SLOW_SYNC: Duration = Duration::from_micros(150);

/// How fast the disk is, and how many were answered last.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    crowd: usize,
    sync: Duration,
}

impl Pace {
    /// The crowd shrinks slowly: a batch that came too early must not make all later ones small.
    fn note(&mut self, answers: usize, took: Duration) {
        self.crowd = answers.max(self.crowd - self.crowd.div_ceil(8));
        self.sync = if self.sync.is_zero() { took } else { (self.sync * 7 + took) / 8 };
    }
}

/// Ends a lease that nobody waits for; the answer goes nowhere.
pub(super) fn release_unseen(state: &mut State, lease: LeaseKey, now: Time) {
    state.desk.submit(Command::Release { lease }, Address::nowhere, now);
}

/// Without a keeper the journal would grow for ever, and nobody would know.
fn keeper_died() -> io::Error {
    io::Error::other("the keeper of the journal died")
}

struct Keeper {
    counter: Arc<Counter>,
    storage: Arc<dyn Storage>,
    shelf: Shared,
    segment: u64,
    notices: Arc<dyn Fn(Notice) + Send + Sync>,
    progress: Arc<Progress>,
}

impl Keeper {
    fn run(self, queue: &mpsc::Receiver<Job>) {
        for job in queue {
            let result = match job {
                Job::Spare => {
                    // Asked once for each segment: a disk that is full now is not asked again after every batch.
                    keep::prepare_spare(self.storage.as_ref(), &self.shelf, self.segment, random_u64())
                }
                Job::Snapshot(point) => {
                    let result = self.snapshot(point);
                    self.counter.lock().desk.book.abandon_snapshot();
                    self.progress.snapshot_asked.store(false, Ordering::Release);
                    result
                }
            };
            // The writer meets the same disk soon enough, and it is the one who decides what follows.
            if let Err(error) = result {
                (self.notices)(Notice::Delayed(error.to_string()));
            }
        }
    }

    fn snapshot(&self, point: Point) -> io::Result<()> {
        let mut writer = SnapshotWriter::begin(self.storage.clone(), point)?;
        let mut block = Vec::new();
        loop {
            block.clear();
            let done = self.counter.lock().desk.book.step_snapshot(SNAPSHOT_STEP, &mut block);
            writer.block(&block)?;
            if done {
                break;
            }
        }
        let size = writer.finish()?;
        self.progress.snapshot_size.store(size, Ordering::Release);
        keep::retire(self.storage.as_ref(), &self.shelf, point.sequence)
    }
}
