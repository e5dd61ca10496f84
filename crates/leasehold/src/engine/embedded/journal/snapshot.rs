//! A snapshot file: the whole book as it stood after one frame.
//!
//! ```text
//!  0 magic     4  "LHS1"
//!  4 crc       4  CRC-32C of bytes 8..64
//!  8 version   4  1
//! 12 frame     4  crc of the frame it stands after: the next frame names it
//! 16 sequence  8  of that frame
//! 24 ceiling   8
//! 32 time      8  the book's time
//! 40 zeros    24
//! 64 blocks:  length 4, crc 4 (CRC-32C of the records, continued from the block before), records
//!    an end:  length 0, crc 4 (CRC-32C of "end", continued likewise)
//! ```
//!
//! Written under another name, synced, renamed, and the directory synced: a file with the final name is whole.

use std::io;
use std::sync::Arc;

use super::damage::Damage;
use super::frame::{FRAME_ALIGN_BYTES, number32, number64};
use crate::engine::embedded::storage::{File, Storage};

const MAGIC: u32 = u32::from_le_bytes(*b"LHS1");
const VERSION: u32 = 1;
const END_MARK: &[u8] = b"end";

/// A position in the journal: after one frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct JournalPosition {
    /// The last frame it contains.
    pub sequence: u64,
    /// That frame's crc.
    pub crc: u32,
    /// The ceiling at that position.
    pub ceiling: u64,
    /// The book's time at that position.
    pub time: u64,
}

/// The file name of a snapshot.
pub fn name(sequence: u64) -> String {
    format!("snapshot-{sequence:016x}")
}

/// The sequence in a file name, if it is one of a snapshot.
pub fn sequence_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("snapshot-").filter(|digits| digits.len() == 16)?;
    u64::from_str_radix(digits, 16).ok()
}

/// Writes a snapshot, block by block.
pub struct SnapshotWriter {
    storage: Arc<dyn Storage>,
    file: Box<dyn File>,
    position: JournalPosition,
    crc: u32,
    at: u64,
}

const TEMP_FILE_NAME: &str = "snapshot.tmp";

impl SnapshotWriter {
    /// Begins a file that recovery ignores.
    pub fn begin(storage: Arc<dyn Storage>, position: JournalPosition) -> io::Result<Self> {
        if storage.list()?.iter().any(|name| name == TEMP_FILE_NAME) {
            storage.remove(TEMP_FILE_NAME)?;
        }
        let mut file = storage.create(TEMP_FILE_NAME)?;
        let mut head = [0; FRAME_ALIGN_BYTES];
        head[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        head[8..12].copy_from_slice(&VERSION.to_le_bytes());
        head[12..16].copy_from_slice(&position.crc.to_le_bytes());
        head[16..24].copy_from_slice(&position.sequence.to_le_bytes());
        head[24..32].copy_from_slice(&position.ceiling.to_le_bytes());
        head[32..40].copy_from_slice(&position.time.to_le_bytes());
        let crc = crc32c::crc32c(&head[8..]);
        head[4..8].copy_from_slice(&crc.to_le_bytes());
        file.write_at(&head, 0)?;
        Ok(Self { storage, file, position, crc, at: FRAME_ALIGN_BYTES as u64 })
    }

    /// Adds whole records.
    pub fn block(&mut self, records: &[u8]) -> io::Result<()> {
        if records.is_empty() {
            return Ok(());
        }
        self.crc = crc32c::crc32c_append(self.crc, records);
        self.write_block(records.len() as u32, records)
    }

    fn write_block(&mut self, length: u32, records: &[u8]) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(8 + records.len());
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&self.crc.to_le_bytes());
        bytes.extend_from_slice(records);
        self.file.write_at(&bytes, self.at)?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    /// Ends the file and gives it its name. Says how many bytes it has.
    pub fn finish(mut self) -> io::Result<u64> {
        self.crc = crc32c::crc32c_append(self.crc, END_MARK);
        self.write_block(0, &[])?;
        self.file.sync()?;
        self.storage.rename(TEMP_FILE_NAME, &name(self.position.sequence))?;
        self.storage.sync_dir()?;
        Ok(self.at)
    }
}

/// Reads a snapshot; hands each block of whole records to `each`. Anything unexpected is damage.
pub fn read(
    storage: &dyn Storage,
    sequence: u64,
    mut each: impl FnMut(&[u8]) -> Result<(), leasehold_core::book::InvariantViolation>,
) -> Result<(JournalPosition, u64), Damage> {
    let name = name(sequence);
    let file = storage.open(&name).map_err(|error| Damage::Io(format!("open {name}"), error))?;
    let length = file.len().map_err(|error| Damage::Io(format!("read {name}"), error))?;
    let broken = |offset: u64, law: &'static str| Damage::Broken { file: name.clone(), offset, law };
    let fill = |buffer: &mut [u8], at: u64| match file.read_at(buffer, at) {
        Ok(n) if n == buffer.len() => Ok(()),
        Ok(_) => Err(broken(at, "a snapshot is whole")),
        Err(error) => Err(Damage::Io(format!("read {name}"), error)),
    };
    let mut head = [0; FRAME_ALIGN_BYTES];
    fill(&mut head, 0)?;
    let mut crc = number32(&head, 4);
    if number32(&head, 0) != MAGIC || number32(&head, 8) != VERSION || crc != crc32c::crc32c(&head[8..]) {
        return Err(broken(0, "a snapshot's header matches its checksum"));
    }
    let position = JournalPosition {
        sequence: number64(&head, 16),
        crc: number32(&head, 12),
        ceiling: number64(&head, 24),
        time: number64(&head, 32),
    };
    if position.sequence != sequence {
        return Err(broken(0, "a snapshot has the name it was given"));
    }
    let mut at = FRAME_ALIGN_BYTES as u64;
    let mut records = Vec::new();
    loop {
        let mut lead = [0; 8];
        fill(&mut lead, at)?;
        let (size, expected) = (number32(&lead, 0) as usize, number32(&lead, 4));
        if size as u64 > length.saturating_sub(at + 8) {
            return Err(broken(at, "a snapshot's block fits in the file"));
        }
        records.resize(size, 0);
        fill(&mut records, at + 8)?;
        crc = crc32c::crc32c_append(crc, if size == 0 { END_MARK } else { &records });
        if crc != expected {
            return Err(broken(at, "a snapshot's block matches its checksum"));
        }
        if size == 0 {
            return Ok((position, at + 8));
        }
        each(&records).map_err(|law| broken(at, law.0))?;
        at += 8 + size as u64;
    }
}
