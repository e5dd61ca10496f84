//! What a gate remembers over a restart: the journal of the embedded engine, with one kind of fact.
//!
//! ```text
//!   raise ──▶ batch ──▶ one frame ──▶ one fdatasync ──▶ durable: its requests may go on
//!             (what comes while a batch is synced is the next batch)
//! ```
//!
//! A fact is a resource and the token it was raised to. The snapshot is the map of all resources.
//!
//! # Laws
//!
//! 1. Nothing is called durable before the frame that holds it is synced.
//! 2. A failed write or sync is final: the gate forwards nothing any more, and ends.
//! 3. One process per directory.
//!
//! # Why a snapshot may be newer than its position
//!
//! It is copied in steps while fences rise. Facts only raise, so a fence in it is at least as high as at its position,
//! and facts that are replayed over it change nothing that is higher.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use leasehold::engine::embedded::dir_lock::{DirLock, DirLockError};
use leasehold::engine::embedded::journal::frame::FrameKind;
use leasehold::engine::embedded::journal::recover::{ReplayTarget, recover_into};
use leasehold::engine::embedded::journal::segment_pool::{SharedSegmentPool, prepare_spare, retire_segments};
use leasehold::engine::embedded::journal::snapshot::{JournalPosition, SnapshotWriter};
use leasehold::engine::embedded::journal::{Damage, Journal, JournalSizes};
use leasehold::engine::embedded::storage::{Directory, Storage};
use leasehold::fence::FenceToken;
use leasehold_core::Time;
use leasehold_core::book::InvariantViolation;
use leasehold_core::wire::{WireReader, put_str};
use leasehold_support::time::stopwatch;

use super::fences::{Fences, WriterTask};
use super::machine::{GateMachine, OnStuck, Raise};

/// The journal has a directory of its own inside the data directory: the data directory may be that of a server, too.
const SUBDIRECTORY: &str = "gate";
/// A raise is small, and so is what a busy gate remembers.
pub const SIZES: JournalSizes = JournalSizes { segment: 4 << 20, snapshot_after: 16 << 20, tokens: 1 };
/// After this long without a raise the last frame is proven durable a second time: see `journal::recover`.
const PROOF_AFTER: Duration = Duration::from_millis(50);
/// Fences that a snapshot copies under one lock.
const FENCES_PER_SNAPSHOT_STEP: usize = 2048;

/// Why the memory cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// Another process has it.
    #[error("{0}")]
    Locked(#[source] DirLockError),
    /// The disk does not answer.
    #[error("{attempt}")]
    Disk {
        /// What was tried.
        attempt: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// What is there breaks a law.
    #[error("{0}")]
    Damaged(#[source] Damage),
}

/// The open journal, before its thread runs.
pub struct MemoryWriter {
    storage: Arc<dyn Storage>,
    journal: Journal,
    segment_bytes: u64,
    _lock: Option<DirLock>,
}

/// Jobs that must not delay a raise.
enum MemoryJob {
    Spare,
    Snapshot(JournalPosition),
}

#[derive(Default)]
struct JobProgress {
    spare_asked: AtomicBool,
    snapshot_asked: AtomicBool,
    /// Bytes of a snapshot that became durable; 0 if there is none since the writer looked.
    snapshot_size: AtomicU64,
}

impl MemoryWriter {
    /// Opens the memory in a data directory, and reads what it remembers.
    ///
    /// # Errors
    ///
    /// [`MemoryError`].
    pub fn open(data: &Path, on_stuck: OnStuck) -> Result<(Self, GateMachine), MemoryError> {
        let dir = data.join(SUBDIRECTORY);
        let disk = |source| MemoryError::Disk { attempt: format!("open {}", dir.display()), source };
        let storage: Arc<dyn Storage> = Arc::new(Directory::open(&dir).map_err(disk)?);
        let lock = DirLock::acquire(&dir).map_err(MemoryError::Locked)?;
        let (mut writer, machine) = Self::open_on(storage, on_stuck, SIZES)?;
        writer._lock = Some(lock);
        Ok((writer, machine))
    }

    /// Opens the memory on a disk that nobody else has.
    ///
    /// # Errors
    ///
    /// [`MemoryError`].
    pub fn open_on(
        storage: Arc<dyn Storage>,
        on_stuck: OnStuck,
        sizes: JournalSizes,
    ) -> Result<(Self, GateMachine), MemoryError> {
        let mut machine = GateMachine::new(on_stuck);
        let found = recover_into(storage.as_ref(), &mut machine).map_err(|damage| match damage {
            Damage::Io(attempt, source) => MemoryError::Disk { attempt, source },
            broken @ Damage::Broken { .. } => MemoryError::Damaged(broken),
        })?;
        if let Some(cut) = &found.cut {
            tracing::warn!(
                "{} at offset {}: {} bytes of a write that was never finished were cut off",
                cut.file,
                cut.offset,
                cut.bytes
            );
        }
        let disk = |source| MemoryError::Disk { attempt: "make the journal ready".into(), source };
        let mut journal = Journal::start(storage.clone(), sizes, &found, Box::new(random_epoch)).map_err(disk)?;
        // Without a second proof from the beginning, a first frame that is torn could not be told from a lost record.
        journal.prove().map_err(disk)?;
        Ok((Self { storage, journal, segment_bytes: sizes.segment, _lock: None }, machine))
    }

    /// Writes batches until the fences are closed. The error is final.
    ///
    /// # Errors
    ///
    /// A write or a sync failed.
    pub fn run(mut self, fences: &Arc<Fences>) -> io::Result<()> {
        let (jobs, queue) = mpsc::channel();
        let progress = Arc::new(JobProgress::default());
        let maintenance = MemoryMaintenance {
            storage: self.storage.clone(),
            segments: self.journal.segments(),
            segment_bytes: self.segment_bytes,
            fences: fences.clone(),
            progress: progress.clone(),
        };
        let thread =
            std::thread::Builder::new().name("leasehold-gate-jobs".into()).spawn(move || maintenance.run(&queue))?;
        let written = self.write_until_closed(fences, &jobs, &progress);
        drop(jobs);
        let _ = thread.join();
        written
    }

    fn write_until_closed(
        &mut self,
        fences: &Fences,
        jobs: &mpsc::Sender<MemoryJob>,
        progress: &JobProgress,
    ) -> io::Result<()> {
        let mut unproven = false;
        let mut payload = Vec::new();
        loop {
            match fences.next_task(unproven.then_some(PROOF_AFTER)) {
                WriterTask::Write(raises) => {
                    let began = stopwatch();
                    payload.clear();
                    raises.iter().for_each(|raise| put_raise(&mut payload, raise));
                    self.journal.commit(FrameKind::Facts, &payload, Time::ZERO)?;
                    unproven = true;
                    fences.raises_durable(raises.last().map_or(0, |raise| raise.number), began.elapsed());
                    self.ask_for_maintenance(jobs, progress);
                }
                WriterTask::Prove => {
                    self.journal.prove()?;
                    unproven = false;
                }
                WriterTask::Close => return self.journal.close(0, Time::ZERO),
            }
        }
    }

    fn ask_for_maintenance(&mut self, jobs: &mpsc::Sender<MemoryJob>, progress: &JobProgress) {
        match self.journal.wants_spare() {
            // Asked once for each segment: a full disk is not asked again after every batch.
            true if !progress.spare_asked.swap(true, Ordering::AcqRel) => drop(jobs.send(MemoryJob::Spare)),
            true => {}
            false => progress.spare_asked.store(false, Ordering::Release),
        }
        let size = progress.snapshot_size.swap(0, Ordering::AcqRel);
        if size > 0 {
            self.journal.snapshot_done(size);
        }
        if self.journal.wants_snapshot() && !progress.snapshot_asked.swap(true, Ordering::AcqRel) {
            self.journal.snapshot_begun();
            let _ = jobs.send(MemoryJob::Snapshot(self.journal.position()));
        }
    }
}

/// The thread beside the writer.
struct MemoryMaintenance {
    storage: Arc<dyn Storage>,
    segments: SharedSegmentPool,
    segment_bytes: u64,
    fences: Arc<Fences>,
    progress: Arc<JobProgress>,
}

impl MemoryMaintenance {
    fn run(&self, queue: &mpsc::Receiver<MemoryJob>) {
        for job in queue {
            let done = match job {
                MemoryJob::Spare => {
                    prepare_spare(self.storage.as_ref(), &self.segments, self.segment_bytes, random_epoch())
                }
                MemoryJob::Snapshot(position) => {
                    let written = self.write_snapshot(position);
                    self.progress.snapshot_asked.store(false, Ordering::Release);
                    written
                }
            };
            // The writer meets the same disk soon enough, and decides what follows.
            if let Err(error) = done {
                tracing::warn!("the memory of the gate could not be tidied up, it grows until that works: {error}");
            }
        }
    }

    fn write_snapshot(&self, position: JournalPosition) -> io::Result<()> {
        let mut writer = SnapshotWriter::begin(self.storage.clone(), position)?;
        let (mut start, mut block) = (0, Vec::new());
        loop {
            block.clear();
            let copied = self.fences.copy_fences(start, FENCES_PER_SNAPSHOT_STEP, |resource, kept| {
                put_fact(&mut block, resource, kept);
            });
            if copied == 0 {
                break;
            }
            writer.block(&block)?;
            start += copied;
        }
        self.progress.snapshot_size.store(writer.finish()?, Ordering::Release);
        retire_segments(self.storage.as_ref(), &self.segments, position.sequence)
    }
}

impl ReplayTarget for GateMachine {
    fn restore_block(&mut self, records: &[u8]) -> Result<(), InvariantViolation> {
        replay_facts(self, records)
    }

    fn replay_payload(&mut self, _: u64, payload: &[u8]) -> Result<(), InvariantViolation> {
        replay_facts(self, payload)
    }

    fn advance_to(&mut self, _: Time) {}
}

fn put_raise(out: &mut Vec<u8>, raise: &Raise) {
    put_fact(out, &raise.resource, raise.shown);
}

/// The token as text, as everywhere: `42:0123456789abcdef`.
fn put_fact(out: &mut Vec<u8>, resource: &str, kept: FenceToken) {
    put_str(out, resource);
    put_str(out, &kept.to_string());
}

fn replay_facts(machine: &mut GateMachine, bytes: &[u8]) -> Result<(), InvariantViolation> {
    let mut reader = WireReader::new(bytes);
    while reader.left() > 0 {
        let resource = reader.str()?;
        let kept = reader.str()?.parse().map_err(|_| InvariantViolation("a fact of the gate has a token"))?;
        machine.restore_fence(resource, kept);
    }
    Ok(())
}

/// Distinguishes the lives of a segment. Without randomness the gate must not write.
fn random_epoch() -> u64 {
    getrandom::u64().expect("the operating system has random bytes")
}
