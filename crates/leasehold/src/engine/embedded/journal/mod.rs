//! The journal: facts on disk, in frames, in segments; and the snapshots that bound it.
//!
//! ```text
//!   batch of facts ──▶ frame ──▶ one write ──▶ one fdatasync ──▶ answers may leave
//! ```
//!
//! # Laws
//!
//! 1. A frame is written only when every frame before it is durable, and it says so.
//! 2. A failed write or sync is final: the journal refuses everything after it and never syncs again.
//! 3. A token is given out only below a ceiling that is durable in both of its places: a frame and the ceiling file.
//! 4. A segment is removed or reused only when a durable snapshot holds all that is in it.
//!
//! # The seam
//!
//! Another store, a shared one, can stand in its place (as a trait `JournalStore`) if it answers these calls. The
//! journal writer, the maintenance thread and the start of the engine make no others:
//!
//! - Start: [`recover::recover`] reads the record into a book, [`Journal::start`] makes what was read durable,
//!   [`identity::make`] names a new directory.
//! - Each batch: [`Journal::reserve_tokens`] if tokens run short ([`Journal::reserve_mark`]), then [`Journal::commit`].
//!   After it [`Journal::token_ceiling`] is durable.
//! - Idle: [`Journal::prove`], a second proof that the last frame is durable.
//! - Snapshots: [`Journal::wants_snapshot`], [`Journal::position`], [`Journal::snapshot_begun`],
//!   [`Journal::snapshot_done`]. [`snapshot::SnapshotWriter`] writes one, [`segment_pool::retire_segments`] trims.
//! - Segments, which only a store on disk has: [`Journal::segments`], [`Journal::wants_spare`],
//!   [`segment_pool::prepare_spare`].
//! - End: [`Journal::close`] gives back the tokens that were not given out.
//!
//! Below it is [`super::storage::Storage`]: files and syncs, which a test replaces by a crashing disk.

pub mod ceiling;
mod damage;
pub mod frame;
pub mod identity;
pub mod recover;
pub mod segment;
pub mod segment_pool;
pub mod snapshot;

use std::io;
use std::sync::{Arc, Mutex};

use leasehold_core::{Time, Token};

use super::storage::Storage;
use ceiling::{Ceiling, CeilingFile};
pub use damage::Damage;
use frame::{FRAME_ALIGN_BYTES, FrameHead, FrameKind};
use recover::Recovered;
use segment::{SealedSegment, Segment};
use segment_pool::{SegmentPool, SharedSegmentPool, lock};
use snapshot::JournalPosition;

/// Sizes that tests make small.
#[derive(Clone, Copy, Debug)]
pub struct JournalSizes {
    /// Bytes of a segment.
    pub segment: u64,
    /// A snapshot is due when the journal since the last one is this long, or as long as that snapshot.
    pub snapshot_after: u64,
    /// Tokens reserved at first; doubled each time, up to 32 times this.
    pub tokens: u64,
}

impl Default for JournalSizes {
    fn default() -> Self {
        Self { segment: 16 << 20, snapshot_after: 64 << 20, tokens: 1 << 17 }
    }
}

/// The size of the segment that is made while the engine opens: a small one is ready sooner, and read sooner at the
/// next start. Later segments are large, and the maintenance thread prepares them.
const FIRST_SEGMENT_BYTES: u64 = 1 << 20;

/// The open journal. Written by one thread at a time.
pub struct Journal {
    storage: Arc<dyn Storage>,
    segments: SharedSegmentPool,
    sizes: JournalSizes,
    current: Segment,
    offset: u64,
    position: JournalPosition,
    ceiling: CeilingFile,
    reserve: u64,
    /// Journal written since the last snapshot began.
    since_snapshot: u64,
    snapshot_size: u64,
    buffer: Vec<u8>,
    failed: bool,
    epochs: Box<dyn FnMut() -> u64 + Send>,
}

impl Journal {
    /// Continues the record where recovery found its end. Everything recovered is made durable first: a process that
    /// was killed may have left whole frames that are in the page cache only.
    pub fn start(
        storage: Arc<dyn Storage>,
        sizes: JournalSizes,
        found: &Recovered,
        mut epochs: Box<dyn FnMut() -> u64 + Send>,
    ) -> io::Result<Self> {
        remove_unused_files(storage.as_ref(), found)?;
        sync_recovered_files(storage.as_ref(), found)?;
        let ceiling = CeilingFile::open(storage.as_ref())?;
        storage.sync_dir()?;

        let snapshot = found.snapshot.map_or(0, |(sequence, _)| sequence);
        let tail = found.tail.filter(|(id, ..)| found.segments.last().is_some_and(|sealed| sealed.id == *id));
        let mut segments = SegmentPool { last_id: found.last_id, ..SegmentPool::default() };
        for sealed in found.segments.iter().filter(|sealed| tail.is_none_or(|(id, ..)| id != sealed.id)) {
            if sealed.last <= snapshot {
                segments.retired.push(segment::name(sealed.id));
            } else {
                segments.sealed.push_back(*sealed);
            }
        }
        let (current, offset) = match tail {
            Some((id, epoch, offset)) => {
                let file = storage.open(&segment::name(id))?;
                let size = file.len()?;
                (Segment { id, epoch, size, file }, offset)
            }
            None => {
                segments.last_id += 1;
                let size = sizes.segment.min(FIRST_SEGMENT_BYTES);
                let fresh = segment::prepare(storage.as_ref(), segments.last_id, epochs(), size, None)?;
                (fresh, FRAME_ALIGN_BYTES as u64)
            }
        };
        let since_snapshot = found.segments.iter().filter(|sealed| sealed.last > snapshot).map(|s| s.used).sum();
        Ok(Self {
            storage,
            segments: Arc::new(Mutex::new(segments)),
            sizes,
            current,
            offset,
            position: JournalPosition { ceiling: found.ceiling, ..found.position },
            ceiling,
            reserve: sizes.tokens,
            since_snapshot,
            snapshot_size: found.snapshot.map_or(0, |(_, size)| size),
            buffer: Vec::new(),
            failed: false,
            epochs,
        })
    }

    /// Writes one frame and makes it durable.
    pub fn commit(&mut self, kind: FrameKind, payload: &[u8], time: Time) -> io::Result<JournalPosition> {
        self.refuse_after_failure()?;
        let result = self.try_commit(kind, payload, time);
        self.failed |= result.is_err();
        result
    }

    fn refuse_after_failure(&self) -> io::Result<()> {
        if self.failed {
            return Err(io::Error::other("an earlier write failed; nothing is written after that"));
        }
        Ok(())
    }

    fn try_commit(&mut self, kind: FrameKind, payload: &[u8], time: Time) -> io::Result<JournalPosition> {
        let size = frame::size_of(payload.len()) as u64;
        if self.offset + size > self.current.size {
            self.rotate(size)?;
        }
        let head = FrameHead {
            kind,
            epoch: self.current.epoch,
            sequence: self.position.sequence + 1,
            // One frame is under way at a time: all before it are durable.
            proven: self.position.sequence,
            ceiling: self.position.ceiling,
            time: time.as_nanos(),
            previous: self.position.crc,
        };
        let crc = frame::encode(&head, payload, &mut self.buffer);
        self.current.file.write_at(&self.buffer, self.offset)?;
        self.current.file.sync()?;
        self.offset += size;
        self.since_snapshot += size;
        self.position = JournalPosition { sequence: head.sequence, crc, ceiling: head.ceiling, time: head.time };
        if self.buffer.capacity() > 8 << 20 {
            self.buffer = Vec::new();
        }
        Ok(self.position)
    }

    fn rotate(&mut self, frame: u64) -> io::Result<()> {
        let mut segments = lock(&self.segments);
        let wanted = self.sizes.segment.max(frame + FRAME_ALIGN_BYTES as u64);
        let next = match segments.spare.take() {
            Some(spare) if spare.size >= wanted => spare,
            unfit => {
                if let Some(unfit) = unfit {
                    segments.retired.push(segment::name(unfit.id));
                }
                segments.last_id += 1;
                segment::prepare(self.storage.as_ref(), segments.last_id, (self.epochs)(), wanted, None)?
            }
        };
        segments.sealed.push_back(SealedSegment {
            id: self.current.id,
            last: self.position.sequence,
            used: self.offset,
        });
        drop(segments);
        // Otherwise the loss of this whole segment would look like a record that ends before it.
        self.ceiling.write(Ceiling { tokens: self.position.ceiling, proven: self.position.sequence })?;
        self.current = next;
        self.offset = FRAME_ALIGN_BYTES as u64;
        Ok(())
    }

    /// Reserves more tokens, above this one at least, in the ceiling file; the next frame carries the ceiling too. They
    /// may be given out when that frame is durable.
    pub fn reserve_tokens(&mut self, above: u64) -> io::Result<()> {
        let last = self.position.ceiling.max(above);
        let tokens = last.saturating_add(self.reserve).min(Token::MAX.get()).max(last);
        self.reserve = (self.reserve * 2).min(self.sizes.tokens * 32);
        self.put_ceiling(tokens)
    }

    fn put_ceiling(&mut self, tokens: u64) -> io::Result<()> {
        self.refuse_after_failure()?;
        let result = self.ceiling.write(Ceiling { tokens, proven: self.position.sequence });
        self.failed |= result.is_err();
        result?;
        self.position.ceiling = tokens;
        Ok(())
    }

    /// Writes to the ceiling file that every frame so far is durable. Until then nothing proves the last frame: damage
    /// to it could not be told from a torn write.
    pub fn prove(&mut self) -> io::Result<()> {
        self.put_ceiling(self.position.ceiling)
    }

    /// Writes the closing frame: gives back the tokens that were reserved and not given out.
    pub fn close(&mut self, last_token: u64, time: Time) -> io::Result<()> {
        let reserved = self.position.ceiling;
        self.position.ceiling = last_token;
        if let Err(error) = self.commit(FrameKind::Closed, &[], time) {
            self.position.ceiling = reserved;
            return Err(error);
        }
        self.put_ceiling(last_token)
    }

    /// When fewer tokens than this are left, more should be reserved.
    pub const fn reserve_mark(&self) -> u64 {
        self.reserve / 4
    }

    /// How far tokens are reserved, counting the frame that is written next.
    pub const fn token_ceiling(&self) -> u64 {
        self.position.ceiling
    }

    /// The last durable frame.
    pub const fn position(&self) -> JournalPosition {
        self.position
    }

    /// Whether the next segment should be made ready: more than half of this one is used.
    pub fn wants_spare(&self) -> bool {
        self.offset > self.current.size / 2 && lock(&self.segments).spare.is_none()
    }

    /// Whether a snapshot is due.
    pub fn wants_snapshot(&self) -> bool {
        self.since_snapshot > self.sizes.snapshot_after.max(self.snapshot_size)
    }

    /// A snapshot was begun at the last frame.
    pub const fn snapshot_begun(&mut self) {
        self.since_snapshot = 0;
    }

    /// A snapshot of this size is durable.
    pub const fn snapshot_done(&mut self, size: u64) {
        self.snapshot_size = size;
    }

    /// For the maintenance thread.
    pub fn segments(&self) -> SharedSegmentPool {
        self.segments.clone()
    }
}

/// Removes what recovery did not use: older snapshots, unfinished files, and segments without a frame in them.
fn remove_unused_files(storage: &dyn Storage, found: &Recovered) -> io::Result<()> {
    // The name of the snapshot that was found may be in the cache only: make it durable before others are removed.
    storage.sync_dir()?;
    for name in storage.list()? {
        // Prepared and never written to, or used only for a frame that was cut.
        let unused = segment::id_of(&name).is_some_and(|id| found.segments.iter().all(|used| used.id != id));
        let old = snapshot::sequence_of(&name).is_some_and(|s| found.snapshot.is_some_and(|(newest, _)| s < newest));
        if unused || old || name.starts_with("spare-") || name.ends_with(".tmp") {
            storage.remove(&name)?;
        }
    }
    Ok(())
}

/// Makes durable what recovery has read.
fn sync_recovered_files(storage: &dyn Storage, found: &Recovered) -> io::Result<()> {
    for sealed in &found.segments {
        let mut file = storage.open(&segment::name(sealed.id))?;
        // If the sync of the last frame failed, the kernel still shows the frame and counts it as clean, though it
        // never reached the disk. Writing it again makes it dirty again, so that this sync writes it.
        if let Some((_, offset, frame)) = found.last_frame.as_ref().filter(|(id, ..)| *id == sealed.id) {
            file.write_at(frame, *offset)?;
        }
        file.sync()?;
    }
    if let Some((sequence, _)) = found.snapshot {
        storage.open(&snapshot::name(sequence))?.sync()?;
    }
    Ok(())
}
