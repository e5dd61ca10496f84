//! The disk as a trait, as little of it as the journal needs: a test can be a disk that crashes.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// One flat directory.
pub trait Storage: Send + Sync + 'static {
    /// Names of the files in it.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Opens a file that exists.
    fn open(&self, name: &str) -> io::Result<Box<dyn File>>;
    /// Creates a file that does not.
    fn create(&self, name: &str) -> io::Result<Box<dyn File>>;
    /// Gives a file another name, replacing what had it. Durable after [`Storage::sync_dir`].
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file. Durable after [`Storage::sync_dir`].
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes creations, renames and removals durable.
    fn sync_dir(&self) -> io::Result<()>;
}

/// One file.
#[allow(clippy::len_without_is_empty, reason = "nobody asks a journal file whether it is empty")]
pub trait File: Send {
    /// Its length.
    fn len(&self) -> io::Result<u64>;
    /// Fills the buffer from `at`, less at the end of the file. Says how much.
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize>;
    /// Writes all of it at `at`. Durable after [`File::sync`].
    fn write_at(&mut self, bytes: &[u8], at: u64) -> io::Result<()>;
    /// Makes what was written durable. After an error nothing is known: it must not be tried again.
    fn sync(&mut self) -> io::Result<()>;
}

/// What the files of the engine may be used for. Only their owner may read them: they hold lease secrets.
const PRIVATE_FILE_MODE: u32 = 0o600;

/// A directory of the file system.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    /// The permissions of new files, before the process's umask.
    file_mode: u32,
}

impl Directory {
    /// Opens a directory of the engine; makes it, for its owner alone, if it is not there.
    ///
    /// An empty directory is made durable with all its parents, even if it existed: the process that made it may have
    /// died before it did so.
    pub fn open(path: &Path) -> io::Result<Self> {
        if !path.is_dir() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        }
        let path = std::path::absolute(path)?;
        if fs::read_dir(&path)?.next().is_none() {
            for ancestor in path.ancestors().skip(1) {
                // A parent that cannot be read or synced was not made by us.
                let Ok(dir) = fs::File::open(ancestor) else { break };
                match dir.sync_all() {
                    Err(error)
                        if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::ReadOnlyFilesystem) =>
                    {
                        break;
                    }
                    other => other?,
                }
            }
        }
        Ok(Self { path, file_mode: PRIVATE_FILE_MODE })
    }

    /// A directory that is there, of somebody else.
    pub fn existing(path: &Path, file_mode: u32) -> io::Result<Self> {
        Ok(Self { path: std::path::absolute(path)?, file_mode })
    }

    /// Opens a file that exists, without the permission to write to it.
    pub fn open_to_read(&self, name: &str) -> io::Result<Box<dyn File>> {
        Ok(Box::new(RealFile(fs::File::open(self.path.join(name))?)))
    }
}

impl Storage for Directory {
    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn File>> {
        let file = fs::OpenOptions::new().read(true).write(true).open(self.path.join(name))?;
        Ok(Box::new(RealFile(file)))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn File>> {
        let mut options = fs::OpenOptions::new();
        let options = options.read(true).write(true).create_new(true).mode(self.file_mode);
        let file = options.open(self.path.join(name))?;
        Ok(Box::new(RealFile(file)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path.join(name))
    }

    fn sync_dir(&self) -> io::Result<()> {
        fs::File::open(&self.path)?.sync_all()
    }
}

struct RealFile(fs::File);

impl File for RealFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            match self.0.read_at(&mut buffer[done..], at + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write_at(&mut self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, at)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.0.sync_data()
    }
}
