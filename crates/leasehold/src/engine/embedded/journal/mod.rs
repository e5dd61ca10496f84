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
//! 3. A token is given out only below a ceiling that is durable in both of its homes.
//! 4. A segment is removed or reused only when a durable snapshot holds all that is in it.

pub mod ceiling;
pub mod frame;
pub mod identity;
pub mod recover;
pub mod segment;
pub mod snapshot;

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use leasehold_core::planted::{self, Bug};
use leasehold_core::{Time, Token};

use super::storage::Storage;
use ceiling::{Ceiling, CeilingFile};
use frame::{FrameHead, FrameKind, UNIT};
use recover::{Recovered, SealedSegment};
use segment::Segment;
use snapshot::JournalPosition;

/// Why the record cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Damage {
    /// The disk did not answer.
    #[error("{0}")]
    Io(String, #[source] io::Error),
    /// What is there breaks a law.
    #[error("{file} at offset {offset}: {law}")]
    Broken {
        /// The file.
        file: String,
        /// Where in it.
        offset: u64,
        /// The law.
        law: &'static str,
    },
}

/// JournalSizes that tests make small.
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

/// The segment made while somebody waits for the engine to open: a small one is ready sooner, and read sooner by
/// the next who opens it. Whoever writes much goes on to the large ones that the keeper prepares.
const FIRST_SEGMENT: u64 = 1 << 20;

/// What the writer and the keeper share: segments in and out of use.
#[derive(Default)]
pub struct Shelf {
    /// Ready for the writer.
    spare: Option<Segment>,
    /// Full segments that only a snapshot can free.
    sealed: VecDeque<SealedSegment>,
    /// Held by no record any more; the keeper reuses or removes them.
    retired: Vec<String>,
    last_id: u64,
}

/// The shelf, shared.
pub type Shared = Arc<Mutex<Shelf>>;

/// The writer's end.
pub struct Journal {
    storage: Arc<dyn Storage>,
    shelf: Shared,
    sizes: JournalSizes,
    current: Segment,
    offset: u64,
    point: JournalPosition,
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
    /// Takes up the record where recovery left it. Everything recovered is made durable first: a process that
    /// was killed may have left frames that are whole but in the cache only.
    pub fn start(
        storage: Arc<dyn Storage>,
        sizes: JournalSizes,
        found: &Recovered,
        mut epochs: Box<dyn FnMut() -> u64 + Send>,
    ) -> io::Result<Self> {
        // A snapshot that was found may have its name in the cache only: not before it is durable may others go.
        storage.sync_dir()?;
        for name in storage.list()? {
            // Prepared and never written to, or spent on a frame that was cut.
            let unused = segment::id_of(&name).is_some_and(|id| found.segments.iter().all(|used| used.id != id));
            let old =
                snapshot::sequence_of(&name).is_some_and(|s| found.snapshot.is_some_and(|(newest, _)| s < newest));
            if unused || old || name.starts_with("spare-") || name.ends_with(".tmp") {
                storage.remove(&name)?;
            }
        }
        for sealed in &found.segments {
            let mut file = storage.open(&segment::name(sealed.id))?;
            // If the sync of the last frame failed, the kernel shows it to us and counts it as clean, though
            // it never reached the disk. Written again it is dirty again, and this sync means something.
            if let Some((_, offset, frame)) = found.last_frame.as_ref().filter(|(id, ..)| *id == sealed.id) {
                file.write_at(frame, *offset)?;
            }
            file.sync()?;
        }
        if let Some((sequence, _)) = found.snapshot {
            storage.open(&snapshot::name(sequence))?.sync()?;
        }
        let ceiling = CeilingFile::open(storage.as_ref())?;
        storage.sync_dir()?;

        let mut shelf = Shelf { last_id: found.last_id, ..Shelf::default() };
        let snapshot = found.snapshot.map_or(0, |(sequence, _)| sequence);
        let tail = found.tail.filter(|(id, ..)| found.segments.last().is_some_and(|sealed| sealed.id == *id));
        for sealed in &found.segments {
            if tail.is_some_and(|(id, ..)| id == sealed.id) {
                continue;
            }
            if sealed.last <= snapshot {
                shelf.retired.push(segment::name(sealed.id));
            } else {
                shelf.sealed.push_back(*sealed);
            }
        }
        let (current, offset) = match tail {
            Some((id, epoch, offset)) => {
                let file = storage.open(&segment::name(id))?;
                let size = file.len()?;
                (Segment { id, epoch, size, file }, offset)
            }
            None => {
                shelf.last_id += 1;
                let size = sizes.segment.min(FIRST_SEGMENT);
                let fresh = segment::prepare(storage.as_ref(), shelf.last_id, epochs(), size, None)?;
                (fresh, UNIT as u64)
            }
        };
        let since_snapshot = found.segments.iter().filter(|sealed| sealed.last > snapshot).map(|s| s.used).sum();
        Ok(Self {
            storage,
            shelf: Arc::new(Mutex::new(shelf)),
            sizes,
            current,
            offset,
            point: JournalPosition { ceiling: found.ceiling, ..found.point },
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
            sequence: self.point.sequence + 1,
            // One frame is under way at a time: all before it are durable.
            proven: self.point.sequence,
            ceiling: self.point.ceiling,
            time: time.as_nanos(),
            previous: self.point.crc,
        };
        let crc = frame::encode(&head, payload, &mut self.buffer);
        self.current.file.write_at(&self.buffer, self.offset)?;
        if !planted::on(Bug::RetrySync) {
            self.current.file.sync()?;
        } else if self.current.file.sync().is_err() {
            // The kernel has already marked the pages clean: this sync succeeds and means nothing.
            self.current.file.sync()?;
        }
        self.offset += size;
        self.since_snapshot += size;
        self.point = JournalPosition { sequence: head.sequence, crc, ceiling: head.ceiling, time: head.time };
        if self.buffer.capacity() > 8 << 20 {
            self.buffer = Vec::new();
        }
        Ok(self.point)
    }

    fn rotate(&mut self, frame: u64) -> io::Result<()> {
        let mut shelf = lock(&self.shelf);
        let wanted = self.sizes.segment.max(frame + UNIT as u64);
        let next = match shelf.spare.take() {
            Some(spare) if spare.size >= wanted => spare,
            unfit => {
                if let Some(unfit) = unfit {
                    shelf.retired.push(segment::name(unfit.id));
                }
                shelf.last_id += 1;
                segment::prepare(self.storage.as_ref(), shelf.last_id, (self.epochs)(), wanted, None)?
            }
        };
        shelf.sealed.push_back(SealedSegment { id: self.current.id, last: self.point.sequence, used: self.offset });
        drop(shelf);
        // The loss of a whole segment would otherwise look like a record that ends before it.
        self.ceiling.write(Ceiling { tokens: self.point.ceiling, proven: self.point.sequence })?;
        self.current = next;
        self.offset = UNIT as u64;
        Ok(())
    }

    /// Reserves more tokens in the second home, above this one at least; the next frame carries the ceiling in the
    /// first. They may be given out when that frame is durable.
    pub fn reserve_tokens(&mut self, above: u64) -> io::Result<()> {
        let last = self.point.ceiling.max(above);
        let tokens = last.saturating_add(self.reserve).min(Token::MAX.get()).max(last);
        self.reserve = (self.reserve * 2).min(self.sizes.tokens * 32);
        self.put_ceiling(tokens)
    }

    fn put_ceiling(&mut self, tokens: u64) -> io::Result<()> {
        self.refuse_after_failure()?;
        let result = self.ceiling.write(Ceiling { tokens, proven: self.point.sequence });
        self.failed |= result.is_err();
        result?;
        self.point.ceiling = tokens;
        Ok(())
    }

    /// Writes down, beside the journal, that every frame so far is durable. Until then the last frame has no
    /// witness: damage to it could not be told from a torn write.
    pub fn prove(&mut self) -> io::Result<()> {
        self.put_ceiling(self.point.ceiling)
    }

    /// Closes in good order: hands back the tokens that were reserved and not given out.
    pub fn close(&mut self, last_token: u64, time: Time) -> io::Result<()> {
        let reserved = self.point.ceiling;
        self.point.ceiling = last_token;
        if let Err(error) = self.commit(FrameKind::Closed, &[], time) {
            self.point.ceiling = reserved;
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
        self.point.ceiling
    }

    /// The last durable frame.
    pub const fn point(&self) -> JournalPosition {
        self.point
    }

    /// Whether the next segment should be made ready: more than half of this one is used.
    pub fn wants_spare(&self) -> bool {
        self.offset > self.current.size / 2 && lock(&self.shelf).spare.is_none()
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

    /// For the keeper.
    pub fn shelf(&self) -> Shared {
        self.shelf.clone()
    }
}

/// The keeper's work: never on the path of an answer. Each call is one step that may crash anywhere.
pub mod keep {
    use super::*;

    /// Makes the next segment ready, from a retired one if there is one.
    pub fn prepare_spare(storage: &dyn Storage, shelf: &Shared, size: u64, epoch: u64) -> io::Result<()> {
        let (id, old) = {
            let mut shelf = lock(shelf);
            if shelf.spare.is_some() {
                return Ok(());
            }
            shelf.last_id += 1;
            (shelf.last_id, shelf.retired.pop())
        };
        let spare = segment::prepare(storage, id, epoch, size, old.as_deref())?;
        let mut shelf = lock(shelf);
        // The writer may have gone past it meanwhile: segments are used in the order of their ids.
        if shelf.last_id == id && shelf.spare.is_none() {
            shelf.spare = Some(spare);
        } else {
            shelf.retired.push(segment::name(id));
        }
        Ok(())
    }

    /// After a snapshot is durable: older snapshots go, segments it covers are retired; a few are kept for reuse.
    pub fn retire(storage: &dyn Storage, shelf: &Shared, sequence: u64) -> io::Result<()> {
        let surplus = {
            let mut shelf = lock(shelf);
            while let Some(sealed) = shelf.sealed.front().copied().filter(|sealed| sealed.last <= sequence) {
                shelf.sealed.pop_front();
                shelf.retired.push(segment::name(sealed.id));
            }
            let keep = shelf.retired.len().min(2);
            shelf.retired.split_off(keep)
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
}

fn lock(shelf: &Shared) -> std::sync::MutexGuard<'_, Shelf> {
    shelf.lock().unwrap_or_else(PoisonError::into_inner)
}
