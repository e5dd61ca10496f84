//! One process per directory, by a lock on a file. The kernel releases it when the process dies.

use std::fs;
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

/// The lock is held until this is dropped.
#[derive(Debug)]
pub struct DirLock {
    _file: fs::File,
}

/// Why the directory could not be locked.
#[derive(Debug, thiserror::Error)]
pub enum DirLockError {
    /// Another process has it.
    #[error("the directory is in use by another process{}", .0.map_or_else(String::new, |pid| format!(" (pid {pid})")))]
    InUse(Option<u32>),
    /// The lock file could not be opened or locked.
    #[error("cannot lock the directory")]
    Io(#[source] io::Error),
}

impl DirLock {
    /// Takes the lock, or fails at once if another process has it.
    pub fn acquire(dir: &Path) -> Result<Self, DirLockError> {
        let mut file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(dir.join("LOCK"))
            .map_err(DirLockError::Io)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut text = String::new();
                let _ = file.read_to_string(&mut text);
                return Err(DirLockError::InUse(text.trim().parse().ok()));
            }
            Err(errno) => return Err(DirLockError::Io(errno.into())),
        }
        // The pid is for the error message of the next process; nothing depends on it.
        let _ = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| write!(file, "{}", std::process::id()));
        Ok(Self { _file: file })
    }
}
