//! The identity of the directory: public text that tells this engine from every other one.
//!
//! One line: 32 hex digits, a space, their CRC-32C as 8 hex digits, a newline. The file gets its name when its content is
//! durable, so a crash leaves a whole one or none.

use std::io;

use super::damage::Damage;
use crate::engine::embedded::storage::Storage;

const FILE_NAME: &str = "identity";
const TEMP_FILE_NAME: &str = "identity.tmp";
const IDENTITY_DIGITS: usize = 32;
const FILE_BYTES: usize = IDENTITY_DIGITS + 1 + 8 + 1;

/// The identity, if the directory has one: writes nothing.
pub fn read(storage: &dyn Storage) -> Result<Option<String>, Damage> {
    let io = |error| Damage::Io(format!("read {FILE_NAME}"), error);
    if !storage.list().map_err(io)?.iter().any(|name| name == FILE_NAME) {
        return Ok(None);
    }
    // One byte more than it has, to see a longer file.
    let mut bytes = [0; FILE_BYTES + 1];
    let length = storage.open(FILE_NAME).and_then(|file| file.read_at(&mut bytes, 0)).map_err(io)?;
    // A new identity in place of a damaged one would look like another engine to its clients.
    let law = "the identity matches its checksum";
    let broken = || Damage::Broken { file: FILE_NAME.into(), offset: 0, law };
    parse(&bytes[..length]).map(Some).ok_or_else(broken)
}

/// Makes the identity from random bits, and makes it durable.
pub fn make(storage: &dyn Storage, bits: [u64; 2]) -> io::Result<String> {
    let identity = format!("{:016x}{:016x}", bits[0], bits[1]);
    let mut file = storage.create(TEMP_FILE_NAME)?;
    file.write_at(line(&identity).as_bytes(), 0)?;
    file.sync()?;
    storage.rename(TEMP_FILE_NAME, FILE_NAME)?;
    storage.sync_dir()?;
    Ok(identity)
}

fn line(identity: &str) -> String {
    format!("{identity} {:08x}\n", crc32c::crc32c(identity.as_bytes()))
}

fn parse(bytes: &[u8]) -> Option<String> {
    let identity = std::str::from_utf8(bytes.get(..IDENTITY_DIGITS)?).ok()?;
    let hex = identity.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    (hex && bytes == line(identity).as_bytes()).then(|| identity.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: no damaged identity is taken for another one. Method: flip every bit, cut at every byte, add a byte.
    #[test]
    fn a_damaged_identity_does_not_parse() {
        let whole = line("00112233445566778899aabbccddeeff").into_bytes();
        assert_eq!(parse(&whole).as_deref(), Some("00112233445566778899aabbccddeeff"));
        for bit in 0..whole.len() * 8 {
            let mut damaged = whole.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(parse(&damaged), None, "bit {bit}");
        }
        for length in 0..whole.len() {
            assert_eq!(parse(&whole[..length]), None, "{length} bytes");
        }
        assert_eq!(parse(&[&whole[..], b"\n"].concat()), None);
    }
}
