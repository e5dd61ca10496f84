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

/// A directory of the file system. Only its owner may read it: it holds lease secrets.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
}

impl Directory {
    /// Opens the directory; makes it if it is not there.
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
        Ok(Self { path })
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
        let file =
            fs::OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(self.path.join(name))?;
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
