//! Recovery: snapshot, then every frame after it, and a verdict on where the record ends.
//!
//! # What is a torn tail, and what is damage
//!
//! The writer has one frame under way at a time: it writes a frame only when every earlier one is durable,
//! and says so in it (`proven`). So where the record stops, at the frame that should be number *n*:
//!
//! - If anything says that *n* was durable (a later frame anywhere, the ceiling file, a snapshot), then it is
//!   **damage**: refused, with file and offset.
//! - Otherwise *n* was never proven. What is left of it is **cut**, and the cut is reported.
//!
//! Recovery writes nothing, so a crash inside it changes nothing.

use std::io;

use leasehold_core::planted::{self, Bug};
use leasehold_core::{Book, Fact, Time};

use super::ceiling::{CeilingFile, Peek};
use super::damage::Damage;
use super::frame::{self, FRAME_ALIGN_BYTES, FrameKind};
use super::identity;
use super::segment::{self, SealedSegment};
use super::snapshot::{self, JournalPosition};
use crate::engine::embedded::storage::{File, Storage};

/// Where and how much of an unproven tail was left behind.
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
    /// The highest ceiling in either home.
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
    /// What was left behind.
    pub cut: Option<Cut>,
    /// The record ends with an orderly close.
    pub closed: bool,
    /// The identity of the directory; none if it was never opened, or last by a version that made none.
    pub identity: Option<String>,
}

/// Reads everything. `seen` is shown each fact, with the sequence of its frame.
pub fn recover(
    storage: &dyn Storage,
    book: &mut Book,
    mut seen: impl FnMut(u64, &Fact<'_>),
) -> Result<Recovered, Damage> {
    let io = |attempt: &str, error: io::Error| Damage::Io(attempt.into(), error);
    let mut names = storage.list().map_err(|error| io("list the directory", error))?;
    names.sort();
    let second_home = CeilingFile::peek(storage).map_err(|error| io("read ceiling", error))?;
    let second = second_home.known();

    let mut found = Recovered {
        position: JournalPosition::default(),
        ceiling: 0,
        snapshot: None,
        segments: Vec::new(),
        tail: None,
        last_frame: None,
        last_id: 0,
        proven: 0,
        cut: None,
        closed: false,
        identity: identity::read(storage)?,
    };
    let mut ceiling_known = second.is_some();
    if let Some(sequence) = names.iter().filter_map(|name| snapshot::sequence_of(name)).max() {
        let (position, size) = snapshot::read(storage, sequence, |records| book.restore(records))?;
        found.position = position;
        found.snapshot = Some((sequence, size));
        book.advance_to(Time::from_nanos(position.time));
        ceiling_known = true;
    }

    let mut proven = second.map_or(0, |ceiling| ceiling.proven).max(found.position.sequence);
    let mut journal_ceiling = found.position.ceiling;
    // Where the record stopped, for the message: file and offset.
    let mut stopped: Option<(String, u64)> = None;
    let mut last_bytes: Vec<u8> = Vec::new();
    for id in names.iter().filter_map(|name| segment::id_of(name)) {
        let name = segment::name(id);
        let file = storage.open(&name).map_err(|error| io(&format!("open {name}"), error))?;
        let bytes = read_all(file.as_ref()).map_err(|error| io(&format!("read {name}"), error))?;
        found.last_id = id;
        let header = bytes.first_chunk::<FRAME_ALIGN_BYTES>().and_then(segment::read_header);
        // A segment gets its name when all of it is durable: one without a header, or a shorter one, is damage.
        let Some(segment::Header { id: own_id, epoch, size }) = header else {
            return Err(Damage::Broken { file: name, offset: 0, law: "a segment's header matches its checksum" });
        };
        if own_id != id {
            return Err(Damage::Broken { file: name, offset: 16, law: "a segment has the name it was given" });
        }
        if bytes.len() as u64 != size {
            let offset = bytes.len() as u64;
            return Err(Damage::Broken { file: name, offset, law: "a segment is as long as it was made" });
        }
        let mut at = FRAME_ALIGN_BYTES;
        let mut last = None;
        let mut last_frame = None;
        while let Some(frame) = bytes.get(at..).and_then(frame::decode).filter(|frame| frame.head.epoch == epoch) {
            let head = frame.head;
            let next = found.position.sequence + 1;
            if head.sequence > next {
                let (file, offset) = stopped.unwrap_or((name, at as u64));
                return Err(Damage::Broken { file, offset, law: "no frame is missing" });
            }
            if head.sequence == next {
                if head.previous != found.position.crc {
                    return Err(Damage::Broken {
                        file: name,
                        offset: at as u64,
                        law: "each frame names the one before",
                    });
                }
                book.replay(frame.payload, |fact| seen(head.sequence, fact)).map_err(|law| Damage::Broken {
                    file: name.clone(),
                    offset: at as u64,
                    law: law.0,
                })?;
                book.advance_to(Time::from_nanos(head.time));
                journal_ceiling = head.ceiling;
                ceiling_known = true;
                proven = proven.max(head.proven);
                found.position =
                    JournalPosition { sequence: next, crc: frame.crc, ceiling: head.ceiling, time: head.time };
                found.closed = head.kind == FrameKind::Closed;
                last_frame = Some(at..at + frame.size);
            }
            last = Some(head.sequence);
            at += frame.size;
        }
        if let Some(place) = last_frame {
            found.last_frame = bytes.get(place.clone()).map(|frame| (id, place.start as u64, frame.to_vec()));
        }
        if let Some(last) = last {
            found.segments.push(SealedSegment { id, last, used: at as u64 });
            // What was cut in an earlier life is history: the record goes on after it.
            found.cut = None;
        }
        // The record may go on in the next segment; only the last place where it stopped matters.
        if last.is_some() || stopped.is_none() {
            found.tail = Some((id, epoch, at as u64));
            stopped = Some((name.clone(), at as u64));
            last_bytes = bytes;
        } else if find_frame(&bytes, epoch, found.position.sequence + 1).is_some() {
            // Its first frame is bad and later ones are whole.
            return Err(Damage::Broken { file: name, offset: FRAME_ALIGN_BYTES as u64, law: "no frame is missing" });
        } else if bytes[FRAME_ALIGN_BYTES..].iter().any(|byte| *byte != 0) {
            // A torn first frame: the segment is spent, and the cut is here.
            found.cut = Some(cut(&name, &bytes, FRAME_ALIGN_BYTES));
        }
    }
    found.ceiling = journal_ceiling.max(second.map_or(0, |ceiling| ceiling.tokens));

    if let Some((name, at)) = &stopped {
        let rest = *at as usize;
        let epoch = found.tail.map_or(0, |(_, epoch, _)| epoch);
        let later = find_frame(last_bytes.get(rest..).unwrap_or(&[]), epoch, found.position.sequence + 1);
        if later.is_some() && !planted::on(Bug::CutAnywhere) {
            return Err(Damage::Broken {
                file: name.clone(),
                offset: *at,
                law: "a durable frame matches its checksum",
            });
        }
        let torn = cut(name, &last_bytes, rest);
        if torn.bytes > 0 {
            found.cut = Some(torn);
        }
    }
    if proven > found.position.sequence && !planted::on(Bug::CutAnywhere) {
        let (file, offset) = stopped.unwrap_or(("ceiling".into(), 0));
        return Err(Damage::Broken { file, offset, law: "what was proven durable is there" });
    }
    found.proven = proven;
    if found.cut.is_some() {
        found.tail = None;
    }
    if !ceiling_known && (second_home == Peek::Unreadable || found.cut.is_some()) {
        let law = "the token ceiling can be read in one of its two homes";
        return Err(Damage::Broken { file: "ceiling".into(), offset: 0, law });
    }
    Ok(found)
}

/// How many bytes from `at` on are not zeros, up to the last that is not.
fn cut(name: &str, bytes: &[u8], at: usize) -> Cut {
    let rest = bytes.get(at..).unwrap_or(&[]);
    let torn = rest.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    Cut { file: name.into(), offset: at as u64, bytes: torn as u64 }
}

/// Looks for any whole frame that is not older than `sequence`: lengths in between cannot be trusted.
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
