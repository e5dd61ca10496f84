//! The engine's methods: each submits a command, or reads the book, and waits until the result is durable.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use leasehold_core::book::{Counters, Counts, ResourceView};
use leasehold_core::{Book, Command, Keys as CoreKeys, Reply, WaiterId};

use super::commit::call::{SubmittedCommand, read_durable, submit_command};
use super::commit::journal_writer::JournalWriter;
use super::commit::locked::LockedEngine;
use super::commit::shared::{Commits, EngineShared};
use super::errors::{ENGINE, no_effect};
use super::examine::examine_directory;
use super::watcher::EventWatcher;
use crate::engine::from_book::{acquire, grant, key, millis, refused, resource, wants};
use crate::engine::{
    Answer, AttemptText, Claim, Engine, EngineProfile, Event, EventId, Finding, Grant, Key, Keys, LeaseId, Promises,
    Push, Query, Renewal, Resource, Token, Watch,
};
use crate::error::Error;

/// Resources that a listing reads before it releases the lock of the book.
const RESOURCES_PER_SCAN: usize = 4096;

/// What this engine swears to.
pub const PROMISES: Promises =
    Promises { engine: ENGINE, durable: true, fencing: true, fair: true, never_early: true, outlives_process: true };

/// What it promises at best, which is what it promises always.
pub const PROFILE: EngineProfile = EngineProfile { url: "embedded:DIR", best: PROMISES, needs: &[] };

/// The embedded engine over one directory. See the module.
pub struct Embedded {
    pub(super) shared: Arc<EngineShared>,
    pub(super) journal_writer: Arc<Mutex<JournalWriter>>,
    /// Taken by the first who joins it.
    pub(super) writer_thread: Mutex<Option<JoinHandle<()>>>,
    /// None on a disk that a test made.
    pub(super) dir: Option<PathBuf>,
}

impl fmt::Debug for Embedded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Embedded").finish_non_exhaustive()
    }
}

impl Embedded {
    /// Locks the book for many commands. See [`LockedEngine`].
    pub fn lock_for_batch(&self) -> LockedEngine<'_> {
        LockedEngine::new(&self.shared, &self.journal_writer)
    }

    fn submit<'c>(&self, retried: bool, build: impl FnOnce(WaiterId) -> Command<'c>) -> SubmittedCommand<'_> {
        submit_command(&self.shared, retried, build)
    }

    async fn read<T>(&self, attempt: AttemptText<'_>, read: impl FnOnce(&Book) -> T) -> Result<T, Error> {
        read_durable(&self.shared, attempt, read).await
    }

    /// How many leases, closing resources, waiters and remembered ended leases there are.
    ///
    /// # Errors
    ///
    /// Unavailable when the engine has stopped.
    pub async fn counts(&self) -> Result<Counts, Error> {
        self.read(&|| "count".into(), Book::counts).await
    }

    /// Counters since the engine was opened, statistics of its commits, and how many entries the book has now. Never
    /// waits for the disk.
    pub fn tally(&self) -> (Counters, Commits, Counts) {
        let state = self.shared.lock();
        (*state.group.book.counters(), state.commits, state.group.book.counts())
    }

    /// The newest `most` leases that lapsed or were revoked, newest first, as far as they are still kept: of those that
    /// cover a resource for which `sees` is true.
    pub fn recent_losses(&self, most: usize, sees: impl Fn(&str) -> bool) -> Vec<Event> {
        self.shared.event_log.recent_losses(most, sees, self.shared.clock.now())
    }

    async fn acquire_with(&self, claim: Claim, value: Option<&[u8]>) -> Result<Grant, Error> {
        let wants = wants(&claim);
        let secret = self.shared.new_secret();
        let build = |waiter_id| Command::Acquire(acquire(&claim, &wants, value, waiter_id, secret));
        let attempt = || format!("acquire {}", claim.wants.first().map_or("", |want| &want.name));
        match self.submit(claim.request.is_some(), build).reply(&attempt).await? {
            Reply::Granted(granted) => Ok(grant(&granted)),
            other => Err(refused(other, ENGINE, attempt)),
        }
    }
}

impl Engine for Embedded {
    fn promises(&self) -> Promises {
        PROMISES
    }

    fn acquire(&self, claim: Claim) -> Answer<'_, Grant> {
        Box::pin(async move { self.acquire_with(claim, None).await })
    }

    fn renew<'a>(&'a self, lease: &'a LeaseId, ttl: Option<Duration>) -> Answer<'a, Renewal> {
        Box::pin(async move {
            let lease = key(lease)?;
            let attempt = || format!("renew lease {}", lease.token);
            let build = |_| Command::Renew { lease, ttl_ms: ttl.map(millis) };
            match self.submit(true, build).reply(&attempt).await? {
                Reply::Renewed(renewed) => Ok(Renewal { remaining: renewed.remaining, renewable: renewed.renewable }),
                other => Err(refused(other, ENGINE, attempt)),
            }
        })
    }

    fn relabel<'a>(&'a self, lease: &'a LeaseId, holder: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            let lease = key(lease)?;
            let attempt = || format!("relabel lease {}", lease.token);
            match self.submit(true, |_| Command::Relabel { lease, holder }).reply(&attempt).await? {
                Reply::Relabelled => Ok(()),
                other => Err(refused(other, ENGINE, attempt)),
            }
        })
    }

    fn release<'a>(&'a self, lease: &'a LeaseId) -> Answer<'a, bool> {
        Box::pin(async move {
            let lease = key(lease)?;
            let attempt = || format!("release lease {}", lease.token);
            match self.submit(true, |_| Command::Release { lease }).reply(&attempt).await? {
                Reply::Released(first) => Ok(first),
                other => Err(refused(other, ENGINE, attempt)),
            }
        })
    }

    fn revoke<'a>(&'a self, name: &'a str, reason: &'a str) -> Answer<'a, usize> {
        Box::pin(async move {
            let attempt = || format!("revoke {name}");
            match self.submit(true, |_| Command::Revoke { name, reason }).reply(&attempt).await? {
                Reply::Revoked(count) => Ok(count),
                other => Err(refused(other, ENGINE, attempt)),
            }
        })
    }

    fn inspect<'a>(&'a self, name: &'a str) -> Answer<'a, Option<Resource>> {
        Box::pin(async move {
            let now = self.shared.clock.now();
            let read = |book: &Book| book.limits().check_name(name).map(|()| book.inspect(name, now));
            let view = self.read(&|| format!("inspect {name}"), read).await?.map_err(Error::Invalid)?;
            Ok(view.map(resource))
        })
    }

    fn list(&self, query: Query) -> Answer<'_, Vec<Resource>> {
        Box::pin(async move {
            let attempt = || format!("list {}", query.prefix);
            let mut first: BTreeMap<String, ResourceView> = BTreeMap::new();
            let mut cursor = Some(0);
            while let Some(from) = cursor {
                let now = self.shared.clock.now();
                cursor = self
                    .read(&attempt, |book| {
                        book.scan(from, RESOURCES_PER_SCAN, &query.prefix, now, |view| {
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
            match self.submit(true, |_| Command::Floor { raise: floor }).reply(&attempt).await? {
                Reply::Floor(floor) => Ok(floor),
                other => Err(refused(other, ENGINE, attempt)),
            }
        })
    }

    fn identity(&self) -> Answer<'_, Option<String>> {
        Box::pin(async move {
            match self.shared.lock().lifecycle.refusal() {
                Some(sentence) => Err(no_effect("read the identity".into(), sentence)),
                None => Ok(Some(self.shared.identity.clone())),
            }
        })
    }

    fn examine(&self) -> Answer<'_, Vec<Finding>> {
        Box::pin(async move {
            match self.shared.lock().lifecycle.refusal() {
                Some(sentence) => Err(no_effect("examine the engine".into(), sentence)),
                None => Ok(self.dir.as_deref().map_or_else(Vec::new, examine_directory)),
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
            let thread = self.writer_thread.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(thread) = thread {
                let _ = tokio::task::spawn_blocking(move || thread.join()).await;
            }
            Ok(())
        })
    }
}

impl Keys for Embedded {
    fn set<'a>(&'a self, claim: Claim, value: &'a [u8]) -> Answer<'a, Grant> {
        Box::pin(self.acquire_with(claim, Some(value)))
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
            self.read(&|| format!("look at {name}"), read).await?.map_err(Error::Invalid)
        })
    }

    fn free<'a>(&'a self, names: &'a [&'a str], value: Option<&'a [u8]>) -> Answer<'a, usize> {
        Box::pin(async move {
            let attempt = || format!("free {}", names.join(" "));
            match self.submit(true, |_| Command::Free(CoreKeys { names, value })).reply(&attempt).await? {
                Reply::Freed(count) => Ok(count),
                other => Err(refused(other, ENGINE, attempt)),
            }
        })
    }

    fn extend<'a>(&'a self, names: &'a [&'a str], value: Option<&'a [u8]>, push: Push) -> Answer<'a, usize> {
        Box::pin(async move {
            let attempt = || format!("extend {}", names.join(" "));
            let keys = CoreKeys { names, value };
            match self.submit(true, |_| Command::Extend { keys, push }).reply(&attempt).await? {
                Reply::Extended(count) => Ok(count),
                other => Err(refused(other, ENGINE, attempt)),
            }
        })
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.shared.stop();
        // Short: the batch under way, and the closing frame. Otherwise the directory would stay locked for a moment
        // after the engine was dropped.
        if let Some(thread) = self.writer_thread.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }
}
