//! The keeper: prepares segments, memory and random bits, and writes snapshots, beside the writer and off the path of every
//! answer.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

use leasehold_core::book::PreallocRequest;

use super::Notice;
use super::commit::writer_thread::EngineShared;
use super::journal::snapshot::{JournalPosition, SnapshotWriter};
use super::journal::{Shared, keep};
use super::random::{RandomPool, random_u64};
use super::storage::Storage;

/// Lease slots that a snapshot looks at in one step.
const SNAPSHOT_STEP: usize = 2048;

/// What the keeper is asked to do.
pub(super) enum MaintenanceJob {
    Spare,
    Snapshot(JournalPosition),
    /// What the book will need soon, and random bits if they are wanted: see [`leasehold_core::book::PreallocRequest`].
    Supply(Option<PreallocRequest>, bool),
}

/// Set by the keeper, read by whoever writes.
#[derive(Default)]
pub(super) struct MaintenanceProgress {
    pub spare_asked: AtomicBool,
    pub snapshot_asked: AtomicBool,
    pub supply_asked: AtomicBool,
    pub snapshot_size: AtomicU64,
}

pub(super) struct JournalMaintenance {
    pub shared: Arc<EngineShared>,
    pub storage: Arc<dyn Storage>,
    pub shelf: Shared,
    pub segment: u64,
    pub notices: Arc<dyn Fn(Notice) + Send + Sync>,
    pub progress: Arc<MaintenanceProgress>,
}

impl JournalMaintenance {
    pub fn run(self, queue: &mpsc::Receiver<MaintenanceJob>) {
        for job in queue {
            let result = match job {
                MaintenanceJob::Spare => {
                    // Asked once for each segment: a disk that is full now is not asked again after every batch.
                    keep::prepare_spare(self.storage.as_ref(), &self.shelf, self.segment, random_u64())
                }
                MaintenanceJob::Snapshot(point) => {
                    let result = self.snapshot(point);
                    self.shared.lock().group.book.abandon_snapshot();
                    self.progress.snapshot_asked.store(false, Ordering::Release);
                    result
                }
                MaintenanceJob::Supply(order, bits) => {
                    if bits {
                        // Before the lock is taken, or everybody who is granted something would wait for it.
                        let drawn = RandomPool::draw();
                        self.shared.random().keep_ready(drawn);
                    }
                    if let Some(order) = order {
                        let supply = order.make();
                        // What came too late is dropped after the lock.
                        let left = self.shared.lock().group.book.supply(supply);
                        drop(left);
                    }
                    self.progress.supply_asked.store(false, Ordering::Release);
                    Ok(())
                }
            };
            // The writer meets the same disk soon enough, and it is the one who decides what follows.
            if let Err(error) = result {
                (self.notices)(Notice::Delayed(error.to_string()));
            }
        }
    }

    fn snapshot(&self, point: JournalPosition) -> io::Result<()> {
        let mut writer = SnapshotWriter::begin(self.storage.clone(), point)?;
        let mut block = Vec::new();
        loop {
            block.clear();
            let done = self.shared.lock().group.book.step_snapshot(SNAPSHOT_STEP, &mut block);
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
