//! Recovery: reads the snapshot, then every frame after it, and decides where the record ends.
//!
//! # What is a torn tail, and what is damage
//!
//! The journal has one frame under way at a time: it writes a frame only when every earlier one is durable,
//! and says so in it (`proven`). So where the record stops, at the frame that should be number *n*:
//!
//! - If anything says that *n* was durable (a later frame anywhere, the ceiling file, a snapshot), then it is
//!   **damage**: refused, with file and offset.
//! - Otherwise *n* was never proven. What is left of it is **cut**, and the cut is reported.
//!
//! Recovery writes nothing, so a crash inside it changes nothing.

use std::io;

use leasehold_core::book::InvariantViolation;
use leasehold_core::{Book, Fact, Time};

use super::ceiling::{CeilingFile, Peek};
use super::damage::Damage;
use super::frame::{self, FRAME_ALIGN_BYTES, Frame, FrameKind};
use super::identity;
use super::segment::{self, SealedSegment};
use super::snapshot::{self, JournalPosition};
use crate::engine::embedded::storage::{File, Storage};

/// An unproven tail that was cut off: where, and how long.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cut {
    /// The segment.
    pub file: String,
    /// Where the record ends.
    pub offset: u64,
    /// How many bytes after that were not zero.
    pub bytes: u64,
}

/// What recovery found.
#[derive(Debug)]
pub struct Recovered {
    /// The last frame, and what the snapshot would say there.
    pub position: JournalPosition,
    /// The highest ceiling in either of its two places.
    pub ceiling: u64,
    /// The last snapshot, and its size.
    pub snapshot: Option<(u64, u64)>,
    /// Segments with frames, in order.
    pub segments: Vec<SealedSegment>,
    /// The last segment can be written on, at this offset: nothing but zeros follows.
    pub tail: Option<(u64, u64, u64)>,
    /// The last frame as it stands on disk: segment, offset, bytes.
    pub last_frame: Option<(u64, u64, Vec<u8>)>,
    /// The highest segment id in use.
    pub last_id: u64,
    /// Every frame up to here is proven durable by something that came after it.
    pub proven: u64,
    /// What was cut off.
    pub cut: Option<Cut>,
    /// The record ends with an orderly close.
    pub closed: bool,
    /// The identity of the directory; none if it was never opened, or last by a version that made none.
    pub identity: Option<String>,
}

/// What the record is read into. The journal knows frames and blocks; this knows what is in them.
pub trait ReplayTarget {
    /// Takes one block of whole records of the snapshot.
    ///
    /// # Errors
    ///
    /// The law that they break.
    fn restore_block(&mut self, records: &[u8]) -> Result<(), InvariantViolation>;

    /// Takes the payload of one frame.
    ///
    /// # Errors
    ///
    /// The law that it breaks.
    fn replay_payload(&mut self, sequence: u64, payload: &[u8]) -> Result<(), InvariantViolation>;

    /// The record says that it was this late.
    fn advance_to(&mut self, time: Time);
}

/// A book, and who wants to see each fact.
struct BookReplay<'a, S> {
    book: &'a mut Book,
    seen: S,
}

impl<S: FnMut(u64, &Fact<'_>)> ReplayTarget for BookReplay<'_, S> {
    fn restore_block(&mut self, records: &[u8]) -> Result<(), InvariantViolation> {
        self.book.restore(records)
    }

    fn replay_payload(&mut self, sequence: u64, payload: &[u8]) -> Result<(), InvariantViolation> {
        self.book.replay(payload, |fact| (self.seen)(sequence, fact))
    }

    fn advance_to(&mut self, time: Time) {
        self.book.advance_to(time);
    }
}

/// Reads everything into a book. `seen` is called with each fact, and the sequence of its frame.
pub fn recover(storage: &dyn Storage, book: &mut Book, seen: impl FnMut(u64, &Fact<'_>)) -> Result<Recovered, Damage> {
    recover_into(storage, &mut BookReplay { book, seen })
}

/// Reads everything.
pub fn recover_into(storage: &dyn Storage, target: &mut dyn ReplayTarget) -> Result<Recovered, Damage> {
    let mut names = storage.list().map_err(|error| io_damage("list the directory", error))?;
    names.sort();
    let mut recovery = RecoveryScan::new(storage, target)?;
    recovery.read_snapshot(&names)?;
    for id in names.iter().filter_map(|name| segment::id_of(name)) {
        recovery.read_segment(id)?;
    }
    recovery.finish()
}

/// A recovery under way.
struct RecoveryScan<'a> {
    storage: &'a dyn Storage,
    target: &'a mut dyn ReplayTarget,
    found: Recovered,
    ceiling_file: Peek,
    /// The ceiling of the last frame, or of the snapshot before the first.
    journal_ceiling: u64,
    /// The token ceiling was read in at least one of its two places.
    ceiling_known: bool,
    /// Where the record stopped so far: file and offset.
    stopped: Option<(String, u64)>,
    /// The segment in which it stopped.
    stopped_in: Vec<u8>,
}

impl<'a> RecoveryScan<'a> {
    fn new(storage: &'a dyn Storage, target: &'a mut dyn ReplayTarget) -> Result<Self, Damage> {
        let ceiling_file = CeilingFile::peek(storage).map_err(|error| io_damage("read ceiling", error))?;
        let known = ceiling_file.known();
        let found = Recovered {
            position: JournalPosition::default(),
            ceiling: 0,
            snapshot: None,
            segments: Vec::new(),
            tail: None,
            last_frame: None,
            last_id: 0,
            proven: known.map_or(0, |ceiling| ceiling.proven),
            cut: None,
            closed: false,
            identity: identity::read(storage)?,
        };
        let ceiling_known = known.is_some();
        let (stopped, stopped_in) = (None, Vec::new());
        Ok(Self { storage, target, found, ceiling_file, journal_ceiling: 0, ceiling_known, stopped, stopped_in })
    }

    /// The newest snapshot, if there is one.
    fn read_snapshot(&mut self, names: &[String]) -> Result<(), Damage> {
        let Some(sequence) = names.iter().filter_map(|name| snapshot::sequence_of(name)).max() else {
            return Ok(());
        };
        let (position, size) = snapshot::read(self.storage, sequence, |records| self.target.restore_block(records))?;
        self.found.position = position;
        self.found.snapshot = Some((sequence, size));
        self.found.proven = self.found.proven.max(position.sequence);
        self.target.advance_to(Time::from_nanos(position.time));
        self.journal_ceiling = position.ceiling;
        self.ceiling_known = true;
        Ok(())
    }

    fn read_segment(&mut self, id: u64) -> Result<(), Damage> {
        let name = segment::name(id);
        let file = self.storage.open(&name).map_err(|error| io_damage(&format!("open {name}"), error))?;
        let bytes = read_all(file.as_ref()).map_err(|error| io_damage(&format!("read {name}"), error))?;
        self.found.last_id = id;
        let epoch = check_header(&name, id, &bytes)?;
        let (end, last) = self.read_frames(&name, (id, epoch), &bytes)?;
        if let Some(last) = last {
            self.found.segments.push(SealedSegment { id, last, used: end as u64 });
            // An earlier start cut it already: the record continues after it.
            self.found.cut = None;
        }
        // The record may continue in the next segment; only the last place where it stopped matters.
        if last.is_some() || self.stopped.is_none() {
            self.found.tail = Some((id, epoch, end as u64));
            self.stopped = Some((name, end as u64));
            self.stopped_in = bytes;
        } else if find_frame(&bytes, epoch, self.found.position.sequence + 1).is_some() {
            // Its first frame is bad and later ones are whole.
            let offset = FRAME_ALIGN_BYTES as u64;
            return Err(Damage::Broken { file: name, offset, law: "no frame is missing" });
        } else if bytes[FRAME_ALIGN_BYTES..].iter().any(|byte| *byte != 0) {
            // A torn first frame: the segment is not used again, and the cut is here.
            self.found.cut = Some(cut(&name, &bytes, FRAME_ALIGN_BYTES));
        }
        Ok(())
    }

    /// Replays the frames of a segment. Returns where they end, and the sequence of the last.
    fn read_frames(
        &mut self,
        name: &str,
        (id, epoch): (u64, u64),
        bytes: &[u8],
    ) -> Result<(usize, Option<u64>), Damage> {
        let mut at = FRAME_ALIGN_BYTES;
        let mut last = None;
        let mut last_frame = None;
        while let Some(frame) = bytes.get(at..).and_then(frame::decode).filter(|frame| frame.head.epoch == epoch) {
            let next = self.found.position.sequence + 1;
            if frame.head.sequence > next {
                let (file, offset) = self.stopped.take().unwrap_or((name.into(), at as u64));
                return Err(Damage::Broken { file, offset, law: "no frame is missing" });
            }
            if frame.head.sequence == next {
                let broken = |law| Damage::Broken { file: name.into(), offset: at as u64, law };
                self.replay_frame(&frame).map_err(broken)?;
                last_frame = Some(at..at + frame.size);
            }
            last = Some(frame.head.sequence);
            at += frame.size;
        }
        if let Some(place) = last_frame {
            self.found.last_frame = bytes.get(place.clone()).map(|frame| (id, place.start as u64, frame.to_vec()));
        }
        Ok((at, last))
    }

    /// The error is the law that the frame breaks.
    fn replay_frame(&mut self, frame: &Frame<'_>) -> Result<(), &'static str> {
        let head = frame.head;
        if head.previous != self.found.position.crc {
            return Err("each frame names the one before");
        }
        self.target.replay_payload(head.sequence, frame.payload).map_err(|law| law.0)?;
        self.target.advance_to(Time::from_nanos(head.time));
        self.journal_ceiling = head.ceiling;
        self.ceiling_known = true;
        self.found.proven = self.found.proven.max(head.proven);
        self.found.position =
            JournalPosition { sequence: head.sequence, crc: frame.crc, ceiling: head.ceiling, time: head.time };
        self.found.closed = head.kind == FrameKind::Closed;
        Ok(())
    }

    /// Decides whether the record ends well, in a torn tail, or in damage.
    fn finish(mut self) -> Result<Recovered, Damage> {
        let ceiling = self.ceiling_file.known().map_or(0, |ceiling| ceiling.tokens);
        self.found.ceiling = self.journal_ceiling.max(ceiling);
        if let Some((name, at)) = &self.stopped {
            let rest = *at as usize;
            let epoch = self.found.tail.map_or(0, |(_, epoch, _)| epoch);
            let after = self.stopped_in.get(rest..).unwrap_or(&[]);
            let later = find_frame(after, epoch, self.found.position.sequence + 1);
            if later.is_some() {
                let law = "a durable frame matches its checksum";
                return Err(Damage::Broken { file: name.clone(), offset: *at, law });
            }
            let torn = cut(name, &self.stopped_in, rest);
            if torn.bytes > 0 {
                self.found.cut = Some(torn);
            }
        }
        if self.found.proven > self.found.position.sequence {
            let (file, offset) = self.stopped.unwrap_or(("ceiling".into(), 0));
            return Err(Damage::Broken { file, offset, law: "what was proven durable is there" });
        }
        if self.found.cut.is_some() {
            self.found.tail = None;
        }
        if !self.ceiling_known && (self.ceiling_file == Peek::Unreadable || self.found.cut.is_some()) {
            let law = "the token ceiling can be read in one of its two homes";
            return Err(Damage::Broken { file: "ceiling".into(), offset: 0, law });
        }
        Ok(self.found)
    }
}

/// The epoch of a segment whose header is sound. A segment gets its name when all of it is durable: one without a
/// header, or a shorter one, is damage.
fn check_header(name: &str, id: u64, bytes: &[u8]) -> Result<u64, Damage> {
    let broken = |offset, law| Err(Damage::Broken { file: name.into(), offset, law });
    let header = bytes.first_chunk::<FRAME_ALIGN_BYTES>().and_then(segment::read_header);
    let Some(segment::Header { id: own_id, epoch, size }) = header else {
        return broken(0, "a segment's header matches its checksum");
    };
    if own_id != id {
        return broken(16, "a segment has the name it was given");
    }
    if bytes.len() as u64 != size {
        return broken(bytes.len() as u64, "a segment is as long as it was made");
    }
    Ok(epoch)
}

fn io_damage(attempt: &str, error: io::Error) -> Damage {
    Damage::Io(attempt.into(), error)
}

/// How many bytes from `at` on are not zeros, up to the last that is not.
fn cut(name: &str, bytes: &[u8], at: usize) -> Cut {
    let rest = bytes.get(at..).unwrap_or(&[]);
    let torn = rest.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    Cut { file: name.into(), offset: at as u64, bytes: torn as u64 }
}

/// Searches for any whole frame that is not older than `sequence`: lengths in between cannot be trusted.
fn find_frame(bytes: &[u8], epoch: u64, sequence: u64) -> Option<usize> {
    (0..bytes.len()).step_by(FRAME_ALIGN_BYTES).find(|at| {
        frame::decode(&bytes[*at..]).is_some_and(|frame| frame.head.epoch == epoch && frame.head.sequence >= sequence)
    })
}

fn read_all(file: &dyn File) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; file.len()? as usize];
    let read = file.read_at(&mut bytes, 0)?;
    bytes.truncate(read);
    Ok(bytes)
}
