//! Opens a directory: locks it, recovers the book, and starts the writer thread.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

use super::commit::journal_writer::JournalWriter;
use super::commit::shared::EngineShared;
use super::commit::writer_thread::WriterThread;
use super::dir_lock::DirLock;
use super::engine::Embedded;
use super::errors::{ENGINE, no_effect};
use super::events::EventLog;
use super::journal::Damage;
use super::options::Options;
use super::random::random_u64;
use super::start::{Started, start};
use super::storage::{Directory, Storage};
use crate::error::Error;

impl Embedded {
    /// Opens the directory, and makes it if it is not there. It belongs to this process until it is closed.
    ///
    /// # Errors
    ///
    /// Unavailable if another process has it or the disk does not answer; Corrupt if the record is damaged.
    pub async fn open(dir: impl AsRef<Path>, options: Options) -> Result<Arc<Self>, Error> {
        let dir = dir.as_ref().to_owned();
        let attempt = format!("open embedded:{}", dir.display());
        let place = dir.clone();
        Self::open_on_writer_thread(attempt, Some(place), move || prepare_directory(&dir, options)).await
    }

    /// Opens a disk that a test made, which nobody else has.
    #[doc(hidden)]
    pub async fn open_on(storage: Arc<dyn Storage>, options: Options) -> Result<Arc<Self>, Error> {
        let attempt = "open embedded: on a disk of its own";
        Self::open_on_writer_thread(attempt.into(), None, move || prepare(storage, None, options, attempt)).await
    }

    async fn open_on_writer_thread(
        attempt: String,
        dir: Option<PathBuf>,
        prepare: impl FnOnce() -> Result<WriterThread, Error> + Send + 'static,
    ) -> Result<Arc<Self>, Error> {
        let (ready, opened) = oneshot::channel();
        // The writer thread also opens the directory: a slow disk must not block the thread of the caller.
        let thread = std::thread::Builder::new()
            .name("leasehold-writer".into())
            .spawn(move || match prepare() {
                Ok(writer) => {
                    // If the caller is gone, dropping the OpenedEngine stops the engine.
                    drop(ready.send(Ok(OpenedEngine::new(&writer))));
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
        let Some((shared, journal_writer)) = opened.0.take() else { unreachable!("an opened engine is taken once") };
        Ok(Arc::new(Self { shared, journal_writer, writer_thread: Mutex::new(Some(thread)), dir }))
    }
}

/// Locks the directory and recovers it.
fn prepare_directory(dir: &Path, options: Options) -> Result<WriterThread, Error> {
    let attempt = format!("open embedded:{}", dir.display());
    let unavailable = |source| Error::Unavailable { engine: ENGINE, attempt: attempt.clone(), source };
    let storage: Arc<dyn Storage> = Arc::new(Directory::open(dir).map_err(|error| unavailable(Box::new(error) as _))?);
    let lock = DirLock::acquire(dir).map_err(|error| unavailable(Box::new(error) as _))?;
    prepare(storage, Some(lock), options, &attempt).map_err(|error| match error {
        Error::Corrupt { engine, law, at } => Error::Corrupt { engine, law, at: dir.join(at).display().to_string() },
        other => other,
    })
}

/// Recovers the book, and makes all that the writer thread needs. Nothing runs yet.
fn prepare(
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
    let shared = Arc::new(EngineShared::new(group, clock, event_log, journal.reserve_mark(), identity));
    let weak = Arc::downgrade(&shared);
    options.clock.on_step(Box::new(move || {
        if let Some(shared) = weak.upgrade() {
            shared.wake_writer();
        }
    }));
    let journal_writer = Arc::new(Mutex::new(JournalWriter::new(journal)));
    let segment_bytes = options.sizes.segment;
    Ok(WriterThread { shared, journal_writer, storage, segment_bytes, notices: options.notices, lock })
}

/// A running engine on its way to the caller that opened it. A caller that gave up must not leave it running.
struct OpenedEngine(Option<(Arc<EngineShared>, Arc<Mutex<JournalWriter>>)>);

impl OpenedEngine {
    fn new(writer: &WriterThread) -> Self {
        Self(Some((writer.shared.clone(), writer.journal_writer.clone())))
    }
}

impl Drop for OpenedEngine {
    fn drop(&mut self) {
        if let Some((shared, _)) = &self.0 {
            shared.stop();
        }
    }
}
