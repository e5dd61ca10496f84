//! The ceiling file: the second place of the token ceiling, and of the sequence proven durable.
//!
//! Two slots, 4096 bytes apart, written in turn, so that a torn write leaves the other one whole:
//!
//! ```text
//!  0 magic       4  "LHC1"
//!  4 crc         4  CRC-32C of bytes 8..32
//!  8 generation  8  the higher one is the newer
//! 16 ceiling     8
//! 24 proven      8
//! ```

use std::io;

use super::frame::{number32, number64};
use crate::engine::embedded::storage::{File, Storage};

const FILE_NAME: &str = "ceiling";
const MAGIC: u32 = u32::from_le_bytes(*b"LHC1");
const SLOT_BYTES: u64 = 4096;
const RECORD_BYTES: usize = 32;

/// What the file says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ceiling {
    /// Tokens up to here may have been given out.
    pub tokens: u64,
    /// Frames up to here were durable when this was written.
    pub proven: u64,
}

/// The open file.
pub struct CeilingFile {
    file: Box<dyn File>,
    generation: u64,
}

/// What can be read of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peek {
    /// There is none, or nothing was ever written to it whole.
    Blank,
    /// Something was written, and no slot of it is whole.
    Unreadable,
    /// The newest slot that is whole.
    Known(Ceiling),
}

impl Peek {
    /// The ceiling, if it can be read.
    pub const fn known(self) -> Option<Ceiling> {
        match self {
            Self::Known(ceiling) => Some(ceiling),
            Self::Blank | Self::Unreadable => None,
        }
    }
}

impl CeilingFile {
    /// Opens the file to write; makes it if there is none.
    pub fn open(storage: &dyn Storage) -> io::Result<Self> {
        if !exists(storage)? {
            let mut file = storage.create(FILE_NAME)?;
            file.write_at(&vec![0; 2 * SLOT_BYTES as usize], 0)?;
            file.sync()?;
            storage.sync_dir()?;
            return Ok(Self { file, generation: 0 });
        }
        let mut file = storage.open(FILE_NAME)?;
        // What a killed process wrote may still be in the cache only.
        file.sync()?;
        let generation = newest(file.as_ref())?.map_or(0, |(generation, _)| generation);
        Ok(Self { file, generation })
    }

    /// What the file says, for recovery: writes nothing.
    pub fn peek(storage: &dyn Storage) -> io::Result<Peek> {
        if !exists(storage)? {
            return Ok(Peek::Blank);
        }
        let file = storage.open(FILE_NAME)?;
        if let Some((_, ceiling)) = newest(file.as_ref())? {
            return Ok(Peek::Known(ceiling));
        }
        // The very first write may be torn, and then nothing was given out under it. Once there were two
        // writes, one of them is whole, unless the file is damaged.
        let mut bytes = vec![0; 2 * SLOT_BYTES as usize];
        file.read_at(&mut bytes, 0)?;
        let written = bytes.chunks(SLOT_BYTES as usize).filter(|slot| slot.iter().any(|byte| *byte != 0)).count();
        Ok(if written < 2 { Peek::Blank } else { Peek::Unreadable })
    }

    /// Writes the next slot and syncs it.
    pub fn write(&mut self, ceiling: Ceiling) -> io::Result<()> {
        self.generation += 1;
        let mut bytes = [0; RECORD_BYTES];
        bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.generation.to_le_bytes());
        bytes[16..24].copy_from_slice(&ceiling.tokens.to_le_bytes());
        bytes[24..32].copy_from_slice(&ceiling.proven.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[8..]);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        self.file.write_at(&bytes, self.generation % 2 * SLOT_BYTES)?;
        self.file.sync()
    }
}

fn exists(storage: &dyn Storage) -> io::Result<bool> {
    Ok(storage.list()?.iter().any(|name| name == FILE_NAME))
}

fn newest(file: &dyn File) -> io::Result<Option<(u64, Ceiling)>> {
    let mut newest = None;
    for slot in 0..2 {
        let mut bytes = [0; RECORD_BYTES];
        let whole = file.read_at(&mut bytes, slot * SLOT_BYTES)? == RECORD_BYTES
            && number32(&bytes, 0) == MAGIC
            && number32(&bytes, 4) == crc32c::crc32c(&bytes[8..]);
        if whole {
            let generation = number64(&bytes, 8);
            let ceiling = Ceiling { tokens: number64(&bytes, 16), proven: number64(&bytes, 24) };
            if newest.is_none_or(|(newest, _)| generation > newest) {
                newest = Some((generation, ceiling));
            }
        }
    }
    Ok(newest)
}
