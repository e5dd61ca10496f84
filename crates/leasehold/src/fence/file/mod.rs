//! A local file, fenced: the highest token stands in a file beside it, and goes to disk first.
//!
//! ```
//! use leasehold::Leasehold;
//! use leasehold::fence::file::FencedFile;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let url = format!("embedded:{}", dir.path().join("leases").display());
//! # let path = dir.path().join("report.csv");
//! let leasehold = Leasehold::open(&url).await?;
//! let report = FencedFile::new("report", &path)?;
//!
//! let lease = leasehold.acquire("report").fenced().await?;
//! report.write(&lease, "seat,owner\n14,ada\n").await?;
//! assert_eq!(std::fs::read_to_string(&path)?, "seat,owner\n14,ada\n"); // readers need nothing of ours
//! # lease.release().await?;
//! # Ok(())
//! # }
//! ```
//!
//! Beside `NAME` are `.NAME.fence` (`token:mark`), `.NAME.lock` (locked by who writes, never removed) and, after a crash,
//! `.NAME.data.tmp` or `.NAME.fence.tmp`, which the next writer replaces.
//!
//! # Laws
//!
//! Those of the steps, in `steps`: the fence first, by rename, nothing acknowledged before it is on disk. And: the
//! check, the memory and the write happen under one lock of the operating system, which a process that dies gives up.
//!
//! # Not here
//!
//! Network file systems: what their locks and renames are worth is the server's matter. Whoever writes the file without
//! asking: the operating system does not know the fence. Owners and extended attributes of the file: a write keeps its
//! permission bits, and nothing else.

mod real;
#[doc(hidden)]
pub mod steps;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use self::real::{FileLock, RealFiles};
use self::steps::{FileChange, FileNames, StepError, read_fence, write_under_fence};
use super::{FenceError, FenceKind, FenceSetting, FenceToken, counters};
use crate::clock::{Clock, SystemClock};
use crate::engine::embedded::storage::Storage;
use crate::error::BoxError;
use crate::lease::FencedLease;

/// How long a write waits for another writer by default.
const DEFAULT_WAIT: Duration = Duration::from_secs(10);
/// The first pause before the lock is tried again, and the longest.
const FIRST_PAUSE: Duration = Duration::from_micros(500);
const MAX_PAUSE: Duration = Duration::from_millis(20);

/// A file that refuses stale writers that ask it. See the module.
pub struct FencedFile {
    shared: Arc<SharedFile>,
    wait: Duration,
    clock: Arc<dyn Clock>,
}

struct SharedFile {
    resource: String,
    dir: PathBuf,
    names: FileNames,
    /// The token whose fence this process knows to be on disk; 0 for none.
    durable_token: AtomicU64,
    /// A sync failed: what is on disk is unknown, and a second sync would not tell.
    sync_failed: AtomicBool,
    /// In place of the real disk: one whose syncs fail.
    #[cfg(any(test, feature = "testkit"))]
    test_disk: Option<Box<dyn Storage>>,
}

impl fmt::Debug for FencedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.shared.dir.join(&self.shared.names.data);
        f.debug_struct("FencedFile")
            .field("resource", &self.shared.resource)
            .field("path", &path)
            .finish_non_exhaustive()
    }
}

impl FencedFile {
    /// The file at `path`, written by who holds a lease on `resource`. Its directory exists; the file may not.
    ///
    /// # Errors
    ///
    /// [`FenceError::Invalid`]: the path names no file in a directory that exists, or a symbolic link.
    pub fn new(resource: impl Into<String>, path: impl AsRef<Path>) -> Result<Self, FenceError> {
        let path = path.as_ref();
        let invalid = |sentence: String| FenceError::Invalid(sentence);
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| invalid(format!("{} names no file, in UTF-8", path.display())))?;
        if path.is_symlink() {
            return Err(invalid(format!(
                "{} is a symbolic link: name the file itself, which has the fence",
                path.display()
            )));
        }
        let dir = match path.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir,
            _ => Path::new("."),
        };
        let dir = std::path::absolute(dir).ok().filter(|dir| dir.is_dir());
        let dir = dir.ok_or_else(|| invalid(format!("the directory of {} does not exist", path.display())))?;
        let shared = SharedFile {
            resource: resource.into(),
            dir,
            names: FileNames::new(name),
            durable_token: AtomicU64::new(0),
            sync_failed: AtomicBool::new(false),
            #[cfg(any(test, feature = "testkit"))]
            test_disk: None,
        };
        Ok(Self { shared: Arc::new(shared), wait: DEFAULT_WAIT, clock: SystemClock::shared() })
    }

    /// As [`FencedFile::new`], on a disk that plants a fault.
    ///
    /// # Errors
    ///
    /// As [`FencedFile::new`].
    #[cfg(any(test, feature = "testkit"))]
    pub fn new_on(disk: impl Storage, resource: impl Into<String>, path: impl AsRef<Path>) -> Result<Self, FenceError> {
        let mut file = Self::new(resource, path)?;
        let shared = Arc::get_mut(&mut file.shared).ok_or_else(|| FenceError::Invalid("a file in use".into()))?;
        shared.test_disk = Some(Box::new(disk));
        Ok(file)
    }

    /// How long a write waits for another writer; by default 10 s. A writer that is paused inside of its write makes
    /// all others wait: after this long they are told so.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Replaces the whole file.
    ///
    /// The work goes on in a thread of the runtime when the future is dropped.
    ///
    /// A lease for efficiency has no token, and opens no fenced write:
    ///
    /// ```compile_fail,E0308
    /// use leasehold::{Lease, fence::file::FencedFile};
    ///
    /// async fn save(file: &FencedFile, lease: &Lease) {
    ///     let _ = file.write(lease, "text").await; // expected `&FencedLease`, found `&Lease`
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// [`FenceError::Refused`]: a later holder has written, or the lease does not cover the resource.
    pub async fn write(&self, lease: &FencedLease, bytes: impl Into<Vec<u8>>) -> Result<(), FenceError> {
        self.change_file(&FenceSetting::for_lease(lease)?, FileChange::Replace(bytes.into())).await
    }

    /// Replaces the file by what `edit` makes of it, under the lock; `None` is a file that is not there.
    ///
    /// # Errors
    ///
    /// As [`FencedFile::write`]; [`FenceError::Work`] if `edit` fails.
    pub async fn update<F>(&self, lease: &FencedLease, edit: F) -> Result<(), FenceError>
    where
        F: FnOnce(Option<Vec<u8>>) -> Result<Vec<u8>, BoxError> + Send + 'static,
    {
        self.change_file(&FenceSetting::for_lease(lease)?, FileChange::Edit(Box::new(edit))).await
    }

    /// Removes the file. Its fence stays: an older holder cannot bring it back.
    ///
    /// # Errors
    ///
    /// As [`FencedFile::write`].
    pub async fn remove(&self, lease: &FencedLease) -> Result<(), FenceError> {
        self.change_file(&FenceSetting::for_lease(lease)?, FileChange::Remove).await
    }

    /// As the writes above, under whatever is shown: for tables of cases and races.
    ///
    /// # Errors
    ///
    /// As [`FencedFile::write`].
    #[cfg(any(test, feature = "testkit"))]
    pub async fn change_shown(&self, shown: &FenceSetting, change: FileChange<'static>) -> Result<(), FenceError> {
        self.change_file(shown, change).await
    }

    /// What the fence remembers, for people and tests.
    ///
    /// # Errors
    ///
    /// [`FenceError::Unavailable`], or [`FenceError::Corrupt`].
    pub fn highest(&self) -> Result<Option<FenceToken>, FenceError> {
        let files = RealFiles::open(&self.shared.dir, &self.shared.names);
        let read = files.map_err(StepError::NoEffect).and_then(|files| read_fence(&files, &self.shared.names));
        read.map_err(|error| self.shared.explain(error))
    }

    async fn change_file(&self, setting: &FenceSetting, change: FileChange<'static>) -> Result<(), FenceError> {
        let picked = setting.pick_for(&self.shared.resource);
        let shown = picked.inspect_err(|_| counters::count_rejected(FenceKind::File))?;
        let lock = self.take_lock().await?;
        let shared = self.shared.clone();
        // The lock goes along: it is held until the last step is done, whatever becomes of this future.
        let work = tokio::task::spawn_blocking(move || shared.write_locked(&lock, shown, change));
        let done = work.await.unwrap_or_else(|gone| Err(StepError::Unknown(io::Error::other(gone))));
        match &done {
            Ok(()) => counters::count_admitted(FenceKind::File),
            Err(StepError::Refused(_)) => counters::count_rejected(FenceKind::File),
            Err(_) => {}
        }
        done.map_err(|error| self.shared.explain(error))
    }

    /// Takes the lock of the file, trying again until the wait is over: a lock call that blocks could not be given up.
    async fn take_lock(&self) -> Result<FileLock, FenceError> {
        let end = self.clock.now().plus(self.wait);
        let mut pause = FIRST_PAUSE;
        loop {
            let taken = FileLock::try_take(&self.shared.dir.join(&self.shared.names.lock));
            if let Some(lock) = taken.map_err(|error| self.shared.explain(StepError::NoEffect(error)))? {
                return Ok(lock);
            }
            let now = self.clock.now();
            if now >= end {
                let busy = io::Error::new(io::ErrorKind::TimedOut, "another writer has the lock of the file");
                return Err(self.shared.explain(StepError::NoEffect(busy)));
            }
            self.clock.sleep_until(now.plus(pause).min(end)).await;
            pause = (pause * 2).min(MAX_PAUSE);
        }
    }
}

impl SharedFile {
    fn write_locked(&self, _lock: &FileLock, shown: FenceToken, change: FileChange<'_>) -> Result<(), StepError> {
        if self.sync_failed.load(Ordering::Acquire) {
            let failed = io::Error::other("an earlier sync failed, and what is on disk is unknown: look at the disk");
            return Err(StepError::NoEffect(failed));
        }
        let real;
        let disk: &dyn Storage = match self.test_disk() {
            Some(disk) => disk,
            None => {
                real = RealFiles::open(&self.dir, &self.names).map_err(StepError::NoEffect)?;
                &real
            }
        };
        let token = shown.token.get();
        let durable = self.durable_token.load(Ordering::Acquire) == token;
        let done = write_under_fence(disk, &self.names, &self.resource, shown, durable, change);
        match &done {
            Ok(()) => self.durable_token.store(token, Ordering::Release),
            Err(StepError::SyncFailed(_) | StepError::Unknown(_)) => self.sync_failed.store(true, Ordering::Release),
            Err(_) => {}
        }
        done
    }

    #[cfg(any(test, feature = "testkit"))]
    fn test_disk(&self) -> Option<&dyn Storage> {
        self.test_disk.as_deref()
    }

    #[cfg(not(any(test, feature = "testkit")))]
    fn test_disk(&self) -> Option<&dyn Storage> {
        None
    }

    fn explain(&self, error: StepError) -> FenceError {
        let attempt = || format!("write {}", self.dir.join(&self.names.data).display());
        let kind = FenceKind::File;
        match error {
            StepError::Refused(refusal) => refusal.into(),
            StepError::Corrupt => {
                FenceError::Corrupt { kind, at: self.dir.join(&self.names.fence).display().to_string() }
            }
            StepError::Work(source) => FenceError::Work(source),
            StepError::NoEffect(source) | StepError::SyncFailed(source) => {
                FenceError::Unavailable { kind, attempt: attempt(), source: source.into() }
            }
            StepError::Unknown(source) => FenceError::Indeterminate { kind, attempt: attempt(), source: source.into() },
        }
    }
}
