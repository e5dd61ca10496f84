//! Where the bench runs: a directory that was named, or a fresh one that is gone afterwards; and the disk that
//! is measured beside it.

use std::path::{Path, PathBuf};

use anyhow::Context;
use tempfile::TempDir;

use super::disk::{self, DiskProbe};

/// One target of the bench, on a file system that keeps what it is given.
#[derive(Debug)]
pub struct EngineDir {
    /// The engine's directory.
    dir: PathBuf,
    /// The name of its file system.
    pub fs: String,
    /// A fresh directory: removed when this is dropped, also after Ctrl-C.
    temporary: Option<TempDir>,
}

impl EngineDir {
    /// A directory that was named. It may be in use for real work: the bench takes leases under names of
    /// its own and releases them.
    pub fn at(dir: PathBuf) -> anyhow::Result<Self> {
        // Asked of what exists, so that a directory in memory is refused before it is made.
        let existing = dir.ancestors().find(|path| path.exists()).unwrap_or(Path::new("."));
        let fs = disk::file_system(existing)?;
        Ok(Self { dir, fs, temporary: None })
    }

    /// A fresh directory under the current one.
    pub fn temporary() -> anyhow::Result<Self> {
        let here = std::env::current_dir().context("find the current directory")?;
        let fs = disk::file_system(&here)?;
        let temporary = tempfile::Builder::new()
            .prefix("leasehold-bench-")
            .tempdir_in(here)
            .context("make a directory for the bench in the current directory: give --url embedded:DIR for another")?;
        Ok(Self { dir: temporary.path().join("data"), fs, temporary: Some(temporary) })
    }

    /// How the library opens it.
    pub fn url(&self) -> String {
        format!("embedded:{}", self.dir.display())
    }

    /// The engine's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The disk of the engine. Its probe file is beside the engine's own files only where there is no
    /// directory of ours.
    pub fn disk(&self) -> Disk {
        let dir = self.temporary.as_ref().map_or(self.dir.as_path(), TempDir::path);
        Disk { dir: dir.to_owned(), fs: self.fs.clone() }
    }
}

/// A directory whose disk is measured beside the load.
#[derive(Clone, Debug)]
pub struct Disk {
    dir: PathBuf,
    /// The name of its file system.
    pub fs: String,
}

impl Disk {
    /// The directory of `--dir`, or the current one. A server keeps its data where it likes, so that only
    /// the caller knows which directory is on the same disk.
    pub fn for_server(dir: Option<&Path>) -> anyhow::Result<Self> {
        let dir = match dir {
            Some(dir) => dir.to_owned(),
            None => std::env::current_dir().context("find the current directory")?,
        };
        let fs = disk::file_system(&dir)?;
        Ok(Self { dir, fs })
    }

    /// A file to sync there.
    pub fn probe(&self) -> anyhow::Result<DiskProbe> {
        DiskProbe::new(&self.dir)
    }
}
