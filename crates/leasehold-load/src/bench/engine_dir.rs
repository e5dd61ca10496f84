//! The directory of the embedded engine: one that was named, or a temporary one.

use std::path::{Path, PathBuf};

use anyhow::Context;
use tempfile::TempDir;

use super::disk::{self, Disk};

/// The directory of an embedded engine, on a file system that has a disk.
#[derive(Debug)]
pub struct EngineDir {
    dir: PathBuf,
    /// The name of its file system.
    pub fs: String,
    /// The temporary directory around `dir`. Dropping it removes both, even after Ctrl-C.
    temporary: Option<TempDir>,
}

impl EngineDir {
    /// A directory that was named. It may be in use for real work: the bench acquires leases under names of its own and
    /// releases them.
    pub fn at(dir: PathBuf) -> anyhow::Result<Self> {
        // The nearest existing ancestor is checked, so that a directory in memory is refused before it is created.
        let existing = dir.ancestors().find(|path| path.exists()).unwrap_or(Path::new("."));
        let fs = disk::file_system(existing)?;
        Ok(Self { dir, fs, temporary: None })
    }

    /// A temporary directory below the current one.
    pub fn temporary() -> anyhow::Result<Self> {
        let here = std::env::current_dir().context("find the current directory")?;
        let fs = disk::file_system(&here)?;
        let temporary = tempfile::Builder::new()
            .prefix("leasehold-bench-")
            .tempdir_in(here)
            .context("make a directory for the bench in the current directory: give --url embedded:DIR for another")?;
        Ok(Self { dir: temporary.path().join("data"), fs, temporary: Some(temporary) })
    }

    /// The URL with which the library opens the engine.
    pub fn url(&self) -> String {
        format!("embedded:{}", self.dir.display())
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The disk of the engine. The probe file lies in the temporary directory if there is one, else among the engine's
    /// files.
    pub fn disk(&self) -> Disk {
        let dir = self.temporary.as_ref().map_or(self.dir.as_path(), TempDir::path);
        Disk::new(dir.to_owned(), self.fs.clone())
    }
}
