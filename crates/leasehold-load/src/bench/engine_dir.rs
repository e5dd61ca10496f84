//! Where the bench runs: a directory that was named, or a fresh one that is gone afterwards; and the disk that
//! is measured beside it.

use std::path::{Path, PathBuf};

use anyhow::Context;
use tempfile::TempDir;

use super::disk::{self, Disk};

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
        Disk::new(dir.to_owned(), self.fs.clone())
    }
}
