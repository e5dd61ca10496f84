//! The file that a ZooKeeper server starts from, changed: a directory whose counter has come near its end.
//!
//! ```text
//!   header, sessions, ACLs, { path, data, acl, stat }… ─▶ seal ─▶ digest ─▶ seal
//!   a seal: Adler-32 of everything before it (8 bytes), and the text "/"
//! ```

use std::io;
use std::path::{Path, PathBuf};

/// What follows the checksum of a seal.
const SEAL_END: [u8; 5] = [0, 0, 0, 1, b'/'];
/// Bytes of a stat before its `cversion`: two zxids, two times, the version of the data.
const BEFORE_CVERSION: usize = 4 * 8 + 4;

/// Sets the counter of a directory in the newest snapshot of a server that is down.
pub(crate) fn set_child_counter(data: &Path, directory: &str, next: i32) -> io::Result<()> {
    let file = newest_snapshot(&data.join("version-2"))?;
    let before = std::fs::read(&file)?;
    let mut after = before.clone();
    let at = cversion_at(&before, directory)
        .ok_or_else(|| io::Error::other(format!("{directory} is not in {}", file.display())))?;
    after[at..at + 4].copy_from_slice(&next.to_be_bytes());
    let seals = seals(&before);
    if seals.is_empty() {
        return Err(io::Error::other(format!("{} has no checksum that is known here", file.display())));
    }
    // Each one covers those before it.
    for seal in seals {
        let sum = i64::from(adler32(&after[..seal])).to_be_bytes();
        after[seal..seal + 8].copy_from_slice(&sum);
    }
    std::fs::write(&file, after)
}

fn newest_snapshot(dir: &Path) -> io::Result<PathBuf> {
    let mut found: Vec<(u64, PathBuf)> = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let zxid = path.file_name().and_then(|name| name.to_str()?.strip_prefix("snapshot."));
        if let Some(zxid) = zxid.and_then(|zxid| u64::from_str_radix(zxid, 16).ok()) {
            found.push((zxid, path));
        }
    }
    found.into_iter().max().map(|(_, path)| path).ok_or_else(|| io::Error::other("the server has no snapshot"))
}

fn read_i32(bytes: &[u8], at: usize) -> Option<i32> {
    bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).map(i32::from_be_bytes)
}

/// Where the counter of a node is: behind its path, its data and its ACL.
fn cversion_at(bytes: &[u8], path: &str) -> Option<usize> {
    let length = i32::try_from(path.len()).ok()?;
    let key = [&length.to_be_bytes(), path.as_bytes()].concat();
    let data = bytes.windows(key.len()).position(|part| part == key)? + key.len();
    let size = usize::try_from(read_i32(bytes, data)?).unwrap_or(0);
    let at = data + 4 + size + 8 + BEFORE_CVERSION;
    (at + 4 <= bytes.len()).then_some(at)
}

fn seals(bytes: &[u8]) -> Vec<usize> {
    let is_seal = |at: &usize| {
        bytes[at + 8..].starts_with(&SEAL_END) && bytes[*at..at + 8] == i64::from(adler32(&bytes[..*at])).to_be_bytes()
    };
    (0..bytes.len().saturating_sub(8 + SEAL_END.len() - 1)).filter(is_seal).collect()
}

fn adler32(bytes: &[u8]) -> u32 {
    let (mut low, mut high) = (1_u32, 0_u32);
    for byte in bytes {
        low = (low + u32::from(*byte)) % 65_521;
        high = (high + low) % 65_521;
    }
    (high << 16) | low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_the_definition() {
        assert_eq!(adler32(b"Wikipedia"), 0x11E6_0398);
    }
}
