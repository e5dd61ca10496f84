//! Segments in and out of use, shared by the journal and the maintenance thread.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::segment::{self, SealedSegment, Segment};
use super::snapshot;
use crate::engine::embedded::storage::Storage;

/// Retired segments that are kept for reuse.
const MAX_RETIRED_SEGMENTS: usize = 2;

/// See the module.
#[derive(Default)]
pub struct SegmentPool {
    /// Ready for the journal to write to.
    pub(super) spare: Option<Segment>,
    /// Full segments that only a snapshot can free.
    pub(super) sealed: VecDeque<SealedSegment>,
    /// Names of segments whose frames no recovery needs; the maintenance thread reuses or removes them.
    pub(super) retired: Vec<String>,
    pub(super) last_id: u64,
}

/// The pool under its lock.
pub type SharedSegmentPool = Arc<Mutex<SegmentPool>>;

pub(super) fn lock(pool: &SharedSegmentPool) -> MutexGuard<'_, SegmentPool> {
    pool.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes the next segment ready, from a retired one if there is one. A crash anywhere in it loses nothing.
pub fn prepare_spare(storage: &dyn Storage, pool: &SharedSegmentPool, size: u64, epoch: u64) -> io::Result<()> {
    let (id, old) = {
        let mut pool = lock(pool);
        if pool.spare.is_some() {
            return Ok(());
        }
        pool.last_id += 1;
        (pool.last_id, pool.retired.pop())
    };
    let spare = segment::prepare(storage, id, epoch, size, old.as_deref())?;
    let mut pool = lock(pool);
    // The journal may have gone past it meanwhile: segments are used in the order of their ids.
    if pool.last_id == id && pool.spare.is_none() {
        pool.spare = Some(spare);
    } else {
        pool.retired.push(segment::name(id));
    }
    Ok(())
}

/// After the snapshot at `sequence` is durable: removes older snapshots, and retires the segments it covers. A crash
/// anywhere in it loses nothing.
pub fn retire_segments(storage: &dyn Storage, pool: &SharedSegmentPool, sequence: u64) -> io::Result<()> {
    let surplus = {
        let mut pool = lock(pool);
        while let Some(sealed) = pool.sealed.front().copied().filter(|sealed| sealed.last <= sequence) {
            pool.sealed.pop_front();
            pool.retired.push(segment::name(sealed.id));
        }
        let keep = pool.retired.len().min(MAX_RETIRED_SEGMENTS);
        pool.retired.split_off(keep)
    };
    for name in surplus {
        storage.remove(&name)?;
    }
    for name in storage.list()? {
        if snapshot::sequence_of(&name).is_some_and(|other| other < sequence) {
            storage.remove(&name)?;
        }
    }
    storage.sync_dir()
}
