//! The embedded engine: the book in memory, its facts on disk. The default.
//!
//! # Promises
//!
//! Durable: nothing is answered before the batch that holds it is on disk (one write, one fdatasync).
//! Fencing: one counter of tokens for all resources, reserved ahead in two places, never reused.
//! Fair: waiters are served in order of arrival. Never early, and a lease outlives the process that took it.
//!
//! # Does not promise
//!
//! To survive the loss of the disk: there is one copy. PreallocRequest among waiting *processes* ([`Visitor`]).
//! The queue: a restart forgets who waited, and their callers learn Unavailable.
//!
//! # Clock
//!
//! `CLOCK_BOOTTIME`, which counts suspend. After a restart on the same boot remaining times are exact; on
//! another boot each live lease has its last ttl once more. The wall clock is never asked.
//!
//! # Token
//!
//! A counter below a ceiling that is durable in the journal and in a second file before any token under it
//! is given out. After a crash the counter goes on above the ceiling; an orderly close hands back the rest. A raised
//! floor needs no record of its own: it is answered when it is below such a ceiling, and close writes the counter.
//!
//! # On lost connection
//!
//! There is none to lose. A failed write or sync stops the engine: calls in flight are Indeterminate, later
//! ones Unavailable, and the sync is never tried again.

mod book_clock;
#[doc(hidden)]
pub mod commit;
mod dir_lock;
mod events;
#[doc(hidden)]
pub mod journal;
mod maintenance;
mod options;
mod random;
mod start;
#[doc(hidden)]
pub mod storage;
mod visitor;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use leasehold_core::book::ResourceView;
pub use leasehold_core::book::{Counters, Counts, Histogram};
use leasehold_core::{Book, Command, Keys as CoreKeys, Reply, Secret, WaiterId};
use tokio::sync::oneshot;

use super::from_book::{acquire, grant, key, millis, refused, resource, wants};
use super::{
    Answer, Claim, Engine, Event, EventId, Grant, Key, Keys, LeaseId, Promises, Push, Query, Renewal, Resource, Token,
    Watch,
};
use crate::error::Error;
#[doc(hidden)]
pub use book_clock::BookClock;
pub use commit::locked::{CompletionQueue, LockedEngine, refusal};
pub use commit::writer_thread::{Commits, Stopped};
use commit::writer_thread::{EngineShared, ReplyTo, WriterThread};
use dir_lock::{DirLock, DirLockError};
use events::{EventLog, EventWatcher};
use journal::Damage;
pub use options::{Notice, Options};
use random::random_u64;
#[doc(hidden)]
pub use start::{Started, start};
use storage::{Directory, Storage};
pub use visitor::Visitor;

const ENGINE: &str = "embedded";

/// What this engine swears to.
pub const PROMISES: Promises =
    Promises { engine: ENGINE, durable: true, fencing: true, fair: true, never_early: true, outlives_process: true };

/// The embedded engine over one directory. See the module.
pub struct Embedded {
    shared: Arc<EngineShared>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl fmt::Debug for Embedded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Embedded").finish_non_exhaustive()
    }
}

impl Embedded {
    /// Opens the directory, and makes it if it is not there. It belongs to this process until it is closed.
    ///
    /// # Errors
    ///
    /// Unavailable if another process has it or the disk does not answer; Corrupt if the record is damaged.
    pub async fn open(dir: impl AsRef<Path>, options: Options) -> Result<Arc<Self>, Error> {
        let dir = dir.as_ref().to_owned();
        let attempt = format!("open embedded:{}", dir.display());
        Self::open_by(attempt, move || Self::take_directory(&dir, options)).await
    }

    /// Opens a disk that a test made, which nobody else has.
    #[doc(hidden)]
    pub async fn open_on(storage: Arc<dyn Storage>, options: Options) -> Result<Arc<Self>, Error> {
        let attempt = "open embedded: on a disk of its own";
        Self::open_by(attempt.into(), move || Self::take_up(storage, None, options, attempt)).await
    }

    async fn open_by(
        attempt: String,
        take_up: impl FnOnce() -> Result<WriterThread, Error> + Send + 'static,
    ) -> Result<Arc<Self>, Error> {
        let (ready, opened) = oneshot::channel();
        // The writer's thread opens the directory too: whoever only waits for it is not held up by a slow disk.
        let thread = std::thread::Builder::new()
            .name("leasehold-writer".into())
            .spawn(move || match take_up() {
                Ok(writer) => {
                    // If nobody takes it, it stops the engine as it is dropped.
                    drop(ready.send(Ok(OpenedEngine(Some(writer.shared.clone())))));
                    writer.run();
                }
                Err(error) => drop(ready.send(Err(error))),
            })
            .map_err(|error| Error::Unavailable {
                engine: ENGINE,
                attempt: attempt.clone(),
                source: Box::new(error),
            })?;
        let mut opened = opened.await.unwrap_or_else(|_| Err(no_effect(attempt, "the writer's thread died")))?;
        let Some(shared) = opened.0.take() else { unreachable!("an opened engine is taken once") };
        let writer = Mutex::new(Some(thread));
        Ok(Arc::new(Self { shared, writer }))
    }

    fn take_directory(dir: &Path, options: Options) -> Result<WriterThread, Error> {
        let attempt = format!("open embedded:{}", dir.display());
        let unavailable = |source| Error::Unavailable { engine: ENGINE, attempt: attempt.clone(), source };
        let storage: Arc<dyn Storage> =
            Arc::new(Directory::open(dir).map_err(|error| unavailable(Box::new(error) as _))?);
        let lock = DirLock::take(dir).map_err(|error| unavailable(Box::new(error) as _))?;
        Self::take_up(storage, Some(lock), options, &attempt).map_err(|error| match error {
            Error::Corrupt { engine, law, at } => {
                Error::Corrupt { engine, law, at: dir.join(at).display().to_string() }
            }
            other => other,
        })
    }

    fn take_up(
        storage: Arc<dyn Storage>,
        lock: Option<DirLock>,
        options: Options,
        attempt: &str,
    ) -> Result<WriterThread, Error> {
        let damaged = |damage| match damage {
            damage @ Damage::Io(..) => {
                Error::Unavailable { engine: ENGINE, attempt: attempt.into(), source: Box::new(damage) }
            }
            Damage::Broken { file, offset, law } => {
                Error::Corrupt { engine: ENGINE, law: law.into(), at: format!("{file} offset {offset}") }
            }
        };
        let Started { mut group, clock, journal, identity } =
            start(&storage, &options, Box::new(random_u64), |_, _| {}).map_err(damaged)?;
        let event_log = EventLog::new(random_u64(), options.news_bytes);
        if event_log.is_open() {
            group.book.keep_news();
        }
        let shared = Arc::new(EngineShared::new(group, clock, event_log, journal, identity));
        let weak = Arc::downgrade(&shared);
        options.clock.on_step(Box::new(move || {
            if let Some(shared) = weak.upgrade() {
                shared.wake();
            }
        }));
        let segment = options.sizes.segment;
        Ok(WriterThread { shared, storage, segment, notices: options.notices, lock })
    }

    /// Submits a command; `retried` if its caller may come again for the answer.
    fn submit<'c>(&self, retried: bool, build: impl FnOnce(WaiterId) -> Command<'c>) -> SubmittedCommand<'_> {
        let now = self.shared.clock.now();
        let mut state = self.shared.lock();
        if let Some(sentence) = &state.stopped {
            return SubmittedCommand::Stopped(sentence.clone());
        }
        let waiter_id = state.group.waiter_id();
        let mut receiver = None;
        let to = || {
            let (to, from) = oneshot::channel();
            receiver = Some(from);
            ReplyTo::Caller { to, retried }
        };
        let reply = state.group.submit(build(waiter_id), to, now);
        self.shared.nudge(state);
        match (reply, receiver) {
            (Some(reply), _) => SubmittedCommand::Answered(reply),
            (None, Some(from)) => SubmittedCommand::PendingReply(PendingReply {
                shared: &self.shared,
                waiter_id,
                from,
                retried,
                done: false,
            }),
            (None, None) => unreachable!("an answer comes now or later"),
        }
    }

    /// Waits until all that the book knows at this moment is durable.
    async fn settled<T>(&self, attempt: AttemptText<'_>, read: impl FnOnce(&Book) -> T) -> Result<T, Error> {
        let (value, receiver) = {
            let mut state = self.shared.lock();
            if let Some(sentence) = &state.stopped {
                return Err(no_effect(attempt(), sentence));
            }
            let value = read(&state.group.book);
            let mut receiver = None;
            state.group.answer(Reply::Ticked(false), || {
                let (to, from) = oneshot::channel();
                receiver = Some(from);
                ReplyTo::Caller { to, retried: true }
            });
            self.shared.nudge(state);
            (value, receiver)
        };
        if let Some(receiver) = receiver {
            match receiver.await {
                Ok(Ok(_)) => {}
                // A reading changes nothing, whatever became of what it read.
                Ok(Err(Stopped::NoEffect(sentence) | Stopped::Unknown(sentence))) => {
                    return Err(no_effect(attempt(), &sentence));
                }
                Err(_) => return Err(no_effect(attempt(), "the engine went away")),
            }
        }
        Ok(value)
    }

    /// How many leases, closing resources, waiters and remembered endings there are.
    ///
    /// # Errors
    ///
    /// Unavailable when the engine has stopped.
    pub async fn counts(&self) -> Result<Counts, Error> {
        self.settled(&|| "count".into(), Book::counts).await
    }

    /// What happened since the engine was opened, added up, and how its commits went. Never waits for the disk.
    pub fn tally(&self) -> (Counters, Commits, Counts) {
        let state = self.shared.lock();
        (*state.group.book.tally(), state.commits, state.group.book.counts())
    }

    /// The newest `most` leases that lapsed or were revoked, newest first, as far as they are still known: of those that
    /// cover a resource which whoever asks `sees`.
    pub fn recent_losses(&self, most: usize, sees: impl Fn(&str) -> bool) -> Vec<Event> {
        self.shared.event_log.recent_losses(most, sees, self.shared.clock.now())
    }

    async fn take(&self, claim: Claim, value: Option<&[u8]>) -> Result<Grant, Error> {
        let wants = wants(&claim);
        let secret = self.secret();
        let build = |waiter_id| Command::Acquire(acquire(&claim, &wants, value, waiter_id, secret));
        let attempt = || format!("acquire {}", claim.wants.first().map_or("", |want| &want.name));
        match self.submit(claim.request.is_some(), build).answer(&attempt).await? {
            Reply::Granted(granted) => Ok(grant(&granted)),
            other => Err(refused(other, ENGINE, attempt)),
        }
    }

    fn secret(&self) -> Secret {
        Secret::new(self.shared.random().take())
    }
}

/// A running engine on its way to whoever opened it. Who gives up waiting for it must not leave it running.
struct OpenedEngine(Option<Arc<EngineShared>>);

impl Drop for OpenedEngine {
    fn drop(&mut self) {
        if let Some(shared) = &self.0 {
            shared.stop();
        }
    }
}

/// Says what was tried, for the error message; nothing is formatted when nothing goes wrong.
type AttemptText<'a> = &'a (dyn Fn() -> String + Sync);

/// A command that was decided.
enum SubmittedCommand<'a> {
    /// All it rests on is durable.
    Answered(Reply),
    /// In line, or on its way to the disk.
    PendingReply(PendingReply<'a>),
    /// The engine is not running.
    Stopped(Arc<str>),
}

impl SubmittedCommand<'_> {
    async fn answer(self, attempt: AttemptText<'_>) -> Result<Reply, Error> {
        let mut pending = match self {
            Self::Answered(reply) => return Ok(reply),
            Self::Stopped(sentence) => return Err(no_effect(attempt(), &sentence)),
            Self::PendingReply(pending) => pending,
        };
        let answer = (&mut pending.from).await;
        pending.done = true;
        match answer {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(Stopped::NoEffect(sentence))) => Err(no_effect(attempt(), &sentence)),
            Ok(Err(Stopped::Unknown(sentence))) => Err(unknown(attempt(), &sentence)),
            Err(_) => Err(unknown(attempt(), "the engine went away")),
        }
    }
}

/// An answer that is awaited. Dropping it leaves the queue, or ends the grant that nobody will see.
struct PendingReply<'a> {
    shared: &'a EngineShared,
    waiter_id: WaiterId,
    from: oneshot::Receiver<Result<Reply, Stopped>>,
    retried: bool,
    done: bool,
}

impl Drop for PendingReply<'_> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let mut state = self.shared.lock();
        let now = self.shared.clock.now();
        if !state.group.cancel(self.waiter_id, now) {
            // Decided already. If the answer is not here yet, the writer finds nobody to give it to.
            self.from.close();
            if let Ok(Ok(Reply::Granted(granted))) = self.from.try_recv()
                && !self.retried
                && !granted.repeated
            {
                commit::writer_thread::release_unseen(&mut state, granted.lease, now);
            }
        }
        self.shared.nudge(state);
    }
}

impl Engine for Embedded {
    fn promises(&self) -> Promises {
        PROMISES
    }

    fn acquire(&self, claim: Claim) -> Answer<'_, Grant> {
        Box::pin(async move { self.take(claim, None).await })
    }

    fn renew<'a>(&'a self, lease: &'a LeaseId, ttl: Option<Duration>) -> Answer<'a, Renewal> {
        Box::pin(async move {
            let lease = key(lease)?;
            let attempt = || format!("renew lease {}", lease.token);
            let build = |_| Command::Renew { lease, ttl_ms: ttl.map(millis) };
            match self.submit(true, build).answer(&attempt).await? {
                Reply::Renewed(renewed) => Ok(Renewal { remaining: renewed.remaining, renewable: renewed.renewable }),
                other => Err(refused(other, ENGINE, attempt)),
            }
        })
    }

    fn release<'a>(&'a self, lease: &'a LeaseId) -> Answer<'a, bool> {
        Box::pin(async move {
            let lease = key(lease)?;
            let attempt = || format!("release lease {}", lease.token);
            match self.submit(true, |_| Command::Release { lease }).answer(&attempt).await? {
                Reply::Released(first) => Ok(first),
                other => Err(refused(other, ENGINE, attempt)),
            }
        })
    }

    fn revoke<'a>(&'a self, name: &'a str, reason: &'a str) -> Answer<'a, usize> {
        Box::pin(async move {
            let attempt = || format!("revoke {name}");
            match self.submit(true, |_| Command::Revoke { name, reason }).answer(&attempt).await? {
                Reply::Revoked(count) => Ok(count),
                other => Err(refused(other, ENGINE, attempt)),
            }
        })
    }

    fn inspect<'a>(&'a self, name: &'a str) -> Answer<'a, Option<Resource>> {
        Box::pin(async move {
            let now = self.shared.clock.now();
            let read = |book: &Book| book.limits().check_name(name).map(|()| book.inspect(name, now));
            let view = self.settled(&|| format!("inspect {name}"), read).await?.map_err(Error::Invalid)?;
            Ok(view.map(resource))
        })
    }

    fn list(&self, query: Query) -> Answer<'_, Vec<Resource>> {
        /// Resources looked at before others get their turn.
        const LOOK: usize = 4096;
        Box::pin(async move {
            let attempt = || format!("list {}", query.prefix);
            let mut first: BTreeMap<String, ResourceView> = BTreeMap::new();
            let mut cursor = Some(0);
            while let Some(from) = cursor {
                let now = self.shared.clock.now();
                cursor = self
                    .settled(&attempt, |book| {
                        book.scan(from, LOOK, &query.prefix, now, |view| {
                            if query.after.as_ref().is_none_or(|after| view.name > *after) {
                                first.insert(view.name.clone(), view);
                                if first.len() > query.limit {
                                    first.pop_last();
                                }
                            }
                        })
                    })
                    .await?;
            }
            Ok(first.into_values().map(resource).collect())
        })
    }

    fn raise_floor(&self, floor: Option<Token>) -> Answer<'_, Token> {
        Box::pin(async move {
            let attempt =
                || floor.map_or_else(|| "read the floor".into(), |floor| format!("raise the floor to {floor}"));
            match self.submit(true, |_| Command::Floor { raise: floor }).answer(&attempt).await? {
                Reply::Floor(floor) => Ok(floor),
                other => Err(refused(other, ENGINE, attempt)),
            }
        })
    }

    fn identity(&self) -> Answer<'_, Option<String>> {
        Box::pin(async move {
            match &self.shared.lock().stopped {
                Some(sentence) => Err(no_effect("read the identity".into(), sentence)),
                None => Ok(Some(self.shared.identity.clone())),
            }
        })
    }

    fn watch(&self, since: Option<EventId>) -> Answer<'_, Watch> {
        Box::pin(async move {
            if !self.shared.event_log.is_open() {
                return Err(Error::Invalid("this engine was opened without news: nobody can watch it".into()));
            }
            Ok(Box::new(EventWatcher::new(self.shared.clone(), since)) as Watch)
        })
    }

    fn keys(&self) -> Option<&dyn Keys> {
        Some(self)
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            self.shared.stop();
            let thread = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(thread) = thread {
                let _ = tokio::task::spawn_blocking(move || thread.join()).await;
            }
            Ok(())
        })
    }
}

impl Keys for Embedded {
    fn set<'a>(&'a self, claim: Claim, value: &'a [u8]) -> Answer<'a, Grant> {
        Box::pin(self.take(claim, Some(value)))
    }

    fn get<'a>(&'a self, name: &'a str) -> Answer<'a, Option<Key>> {
        Box::pin(async move {
            let now = self.shared.clock.now();
            let read = |book: &Book| {
                book.limits().check_name(name)?;
                Ok(book.key(name, now).map(|key| Key {
                    value: key.value.map(Into::into),
                    remaining: key.remaining,
                    token: Some(key.token),
                }))
            };
            self.settled(&|| format!("look at {name}"), read).await?.map_err(Error::Invalid)
        })
    }

    fn free<'a>(&'a self, names: &'a [&'a str], value: Option<&'a [u8]>) -> Answer<'a, usize> {
        Box::pin(async move {
            let attempt = || format!("free {}", names.join(" "));
            match self.submit(true, |_| Command::Free(CoreKeys { names, value })).answer(&attempt).await? {
                Reply::Freed(count) => Ok(count),
                other => Err(refused(other, ENGINE, attempt)),
            }
        })
    }

    fn extend<'a>(&'a self, names: &'a [&'a str], value: Option<&'a [u8]>, push: Push) -> Answer<'a, usize> {
        Box::pin(async move {
            let attempt = || format!("extend {}", names.join(" "));
            let keys = CoreKeys { names, value };
            match self.submit(true, |_| Command::Extend { keys, push }).answer(&attempt).await? {
                Reply::Extended(count) => Ok(count),
                other => Err(refused(other, ENGINE, attempt)),
            }
        })
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.shared.stop();
        // Short: the batch under way, and the closing frame. Without it the directory would stay locked
        // for a moment after its owner is gone.
        if let Some(thread) = self.writer.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }
}

fn no_effect(attempt: String, sentence: &str) -> Error {
    Error::Unavailable { engine: ENGINE, attempt, source: sentence.into() }
}

fn unknown(attempt: String, sentence: &str) -> Error {
    Error::Indeterminate { engine: ENGINE, attempt, source: sentence.into() }
}
