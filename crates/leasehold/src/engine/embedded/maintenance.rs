//! The maintenance thread: prepares segments, memory and random bytes, and writes snapshots, so that no answer waits
//! for it.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

use leasehold_core::book::PreallocRequest;

use super::commit::shared::EngineShared;
use super::journal::segment_pool::{SharedSegmentPool, prepare_spare, retire_segments};
use super::journal::snapshot::{JournalPosition, SnapshotWriter};
use super::options::Notice;
use super::random::{RandomPool, random_u64};
use super::storage::Storage;

/// Lease slots that a snapshot reads before it releases the lock of the book.
const SLOTS_PER_SNAPSHOT_STEP: usize = 2048;

/// A job for the maintenance thread.
pub(super) enum MaintenanceJob {
    /// Prepare the next segment.
    Spare,
    Snapshot(JournalPosition),
    /// Allocate what the book will need soon, and random bytes if they run short: see [`PreallocRequest`].
    Prealloc {
        request: Option<PreallocRequest>,
        random: bool,
    },
}

/// Which jobs are under way. The journal writer sets a flag when it sends a job; the maintenance thread clears it, but
/// for `spare_asked`, which the journal writer clears when the next segment is in use.
#[derive(Default)]
pub(super) struct MaintenanceProgress {
    pub spare_asked: AtomicBool,
    pub snapshot_asked: AtomicBool,
    pub prealloc_asked: AtomicBool,
    /// Bytes of a snapshot that became durable; 0 if there is none since the journal writer looked.
    pub snapshot_size: AtomicU64,
}

pub(super) struct JournalMaintenance {
    pub shared: Arc<EngineShared>,
    pub storage: Arc<dyn Storage>,
    pub segments: SharedSegmentPool,
    pub segment_bytes: u64,
    pub notices: Arc<dyn Fn(Notice) + Send + Sync>,
    pub progress: Arc<MaintenanceProgress>,
}

impl JournalMaintenance {
    /// Runs until the sender of the queue is dropped.
    pub fn run(self, queue: &mpsc::Receiver<MaintenanceJob>) {
        for job in queue {
            // The journal writer meets the same disk soon enough, and decides what follows.
            if let Err(error) = self.run_job(job) {
                (self.notices)(Notice::Delayed(error.to_string()));
            }
        }
    }

    fn run_job(&self, job: MaintenanceJob) -> io::Result<()> {
        match job {
            // Asked once for each segment: a disk that is full now is not asked again after every batch.
            MaintenanceJob::Spare => {
                prepare_spare(self.storage.as_ref(), &self.segments, self.segment_bytes, random_u64())
            }
            MaintenanceJob::Snapshot(position) => {
                let result = self.write_snapshot(position);
                self.shared.lock().group.book.abandon_snapshot();
                self.progress.snapshot_asked.store(false, Ordering::Release);
                result
            }
            MaintenanceJob::Prealloc { request, random } => {
                if random {
                    // Before the lock is taken, or every grant would wait for it.
                    let fetched = RandomPool::fetch();
                    self.shared.random().keep_ready(fetched);
                }
                if let Some(request) = request {
                    let made = request.make();
                    let unused = self.shared.lock().group.book.add_prealloc(made);
                    // Freed after the lock is released.
                    drop(unused);
                }
                self.progress.prealloc_asked.store(false, Ordering::Release);
                Ok(())
            }
        }
    }

    fn write_snapshot(&self, position: JournalPosition) -> io::Result<()> {
        let mut writer = SnapshotWriter::begin(self.storage.clone(), position)?;
        let mut block = Vec::new();
        loop {
            block.clear();
            let done = self.shared.lock().group.book.step_snapshot(SLOTS_PER_SNAPSHOT_STEP, &mut block);
            writer.block(&block)?;
            if done {
                break;
            }
        }
        let size = writer.finish()?;
        self.progress.snapshot_size.store(size, Ordering::Release);
        retire_segments(self.storage.as_ref(), &self.segments, position.sequence)
    }
}
