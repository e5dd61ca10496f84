//! The files as the operating system has them: the disk of the journal, with the permissions of the file that is
//! replaced, and a lock.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::steps::FileNames;
use crate::engine::embedded::storage::{Directory, File, Storage};

/// What a new file may be used for, before the process's umask.
const NEW_FILE_MODE: u32 = 0o666;

/// A directory that exists.
pub(super) struct RealFiles {
    directory: Directory,
    path: PathBuf,
    names: FileNames,
}

impl RealFiles {
    pub fn open(dir: &Path, names: &FileNames) -> io::Result<Self> {
        let directory = Directory::existing(dir, NEW_FILE_MODE)?;
        Ok(Self { directory, path: dir.to_owned(), names: names.clone() })
    }
}

impl Storage for RealFiles {
    fn list(&self) -> io::Result<Vec<String>> {
        self.directory.list()
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn File>> {
        // For reading: the user of a file may have no permission to write to it, and a rename needs none.
        self.directory.open_to_read(name)
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn File>> {
        let file = self.directory.create(name)?;
        if name == self.names.data_temp
            && let Ok(replaced) = fs::metadata(self.path.join(&self.names.data))
        {
            fs::set_permissions(self.path.join(name), replaced.permissions())?;
        }
        Ok(file)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.directory.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.directory.remove(name)
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.directory.sync_dir()
    }
}

/// The lock of one file, held until this is dropped. The kernel releases it when the process dies.
#[derive(Debug)]
pub(super) struct FileLock {
    _file: fs::File,
}

impl FileLock {
    /// Takes the lock; none if another writer has it.
    pub fn try_take(path: &Path) -> io::Result<Option<Self>> {
        let file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(NEW_FILE_MODE)
            .open(path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        }
        // Whoever removed the lock file made a second lock possible: the one that has the name counts.
        let named = fs::metadata(path).ok().map(|named| (named.dev(), named.ino()));
        let locked = file.metadata().map(|locked| (locked.dev(), locked.ino()))?;
        Ok((named == Some(locked)).then_some(Self { _file: file }))
    }
}
