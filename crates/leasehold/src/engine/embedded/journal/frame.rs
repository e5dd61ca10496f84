//! A frame: one batch of facts on disk, with what proves it.
//!
//! ```text
//!  0 magic      4  "LHF1"
//!  4 crc        4  CRC-32C of bytes 8.. of the header and of the payload
//!  8 length     4  of the payload
//! 12 kind       4  0 facts, 1 closed
//! 16 epoch      8  of the segment: stale bytes of another life never parse
//! 24 sequence   8
//! 32 proven     8  every sequence up to this one was durable before this frame was written
//! 40 ceiling    8  tokens up to here may have been given out
//! 48 time       8  the book's time, in nanoseconds
//! 56 previous   4  crc of the frame before: the order is part of the proof
//! 60 zero       4
//! 64 payload, then zeros up to a multiple of 64
//! ```
//!
//! All numbers are little-endian.

/// Bytes of a header, and what everything is aligned to.
pub const FRAME_ALIGN_BYTES: usize = 64;

const MAGIC: u32 = u32::from_le_bytes(*b"LHF1");

/// What a frame is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum FrameKind {
    /// Facts of one batch.
    Facts = 0,
    /// The engine was closed in good order; the ceiling is what was really given out.
    Closed = 1,
}

/// The head of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHead {
    /// What it is for.
    pub kind: FrameKind,
    /// Of the segment it stands in.
    pub epoch: u64,
    /// Frames count from one, without gaps.
    pub sequence: u64,
    /// Durable before this was written.
    pub proven: u64,
    /// Tokens up to here may have been given out.
    pub ceiling: u64,
    /// The book's time.
    pub time: u64,
    /// CRC of the frame before.
    pub previous: u32,
}

/// A frame that was found whole.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Its head.
    pub head: FrameHead,
    /// Its CRC, for the next one to name.
    pub crc: u32,
    /// The facts.
    pub payload: &'a [u8],
    /// Bytes it takes in the segment.
    pub size: usize,
}

/// Bytes that a frame with this payload takes.
pub const fn size_of(payload: usize) -> usize {
    FRAME_ALIGN_BYTES + payload.next_multiple_of(FRAME_ALIGN_BYTES)
}

/// Writes the frame to `out` (which is emptied first). Says its CRC.
pub fn encode(head: &FrameHead, payload: &[u8], out: &mut Vec<u8>) -> u32 {
    out.clear();
    out.reserve(size_of(payload.len()));
    out.extend_from_slice(&MAGIC.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    out.extend_from_slice(&(head.kind as u32).to_le_bytes());
    for number in [head.epoch, head.sequence, head.proven, head.ceiling, head.time] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.extend_from_slice(&head.previous.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(payload);
    let crc = crc32c::crc32c(&out[8..]);
    out[4..8].copy_from_slice(&crc.to_le_bytes());
    out.resize(size_of(payload.len()), 0);
    crc
}

/// The frame at the beginning of these bytes, if there is a whole one. No length is believed before it is checked.
pub fn decode(bytes: &[u8]) -> Option<Frame<'_>> {
    let head = bytes.first_chunk::<FRAME_ALIGN_BYTES>()?;
    if number32(head, 0) != MAGIC {
        return None;
    }
    let length = number32(head, 8) as usize;
    let whole = bytes.get(..FRAME_ALIGN_BYTES.checked_add(length)?)?;
    let crc = number32(head, 4);
    if crc32c::crc32c(&whole[8..]) != crc {
        return None;
    }
    let kind = match number32(head, 12) {
        0 => FrameKind::Facts,
        1 => FrameKind::Closed,
        _ => return None,
    };
    Some(Frame {
        head: FrameHead {
            kind,
            epoch: number64(head, 16),
            sequence: number64(head, 24),
            proven: number64(head, 32),
            ceiling: number64(head, 40),
            time: number64(head, 48),
            previous: number32(head, 56),
        },
        crc,
        payload: &whole[FRAME_ALIGN_BYTES..],
        size: size_of(length),
    })
}

pub(super) fn number32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

pub(super) fn number64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}
