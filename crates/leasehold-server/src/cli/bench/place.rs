//! Where the bench runs: a directory that was named, or a fresh one that is gone afterwards.

use std::path::{Path, PathBuf};

use anyhow::Context;
use tempfile::TempDir;

use super::disk;
use crate::cli::exit::Failure;
use crate::cli::target::Target;

/// One target of the bench, on a file system that keeps what it is given.
#[derive(Debug)]
pub struct Place {
    /// The engine's directory.
    dir: PathBuf,
    /// The name of its file system.
    pub fs: String,
    /// A fresh directory: removed when this is dropped, also after Ctrl-C.
    fresh: Option<TempDir>,
}

impl Place {
    /// The directory a URL names. It may be in use for real work: the bench takes leases under names of
    /// its own and releases them.
    pub fn named(url: &str) -> anyhow::Result<Self> {
        let Target::Embedded(dir) = Target::parse(url)? else {
            return Err(Failure::usage("bench measures embedded:DIR"));
        };
        // Asked of what exists, so that a directory in memory is refused before it is made.
        let existing = dir.ancestors().find(|path| path.exists()).unwrap_or(Path::new("."));
        let fs = disk::file_system(existing)?;
        Ok(Self { dir, fs, fresh: None })
    }

    /// A fresh directory under the current one.
    pub fn fresh() -> anyhow::Result<Self> {
        let here = std::env::current_dir().context("find the current directory")?;
        let fs = disk::file_system(&here)?;
        let fresh = tempfile::Builder::new()
            .prefix("leasehold-bench-")
            .tempdir_in(here)
            .context("make a directory for the bench in the current directory: give --url embedded:DIR for another")?;
        Ok(Self { dir: fresh.path().join("data"), fs, fresh: Some(fresh) })
    }

    /// How the library opens it.
    pub fn url(&self) -> String {
        format!("embedded:{}", self.dir.display())
    }

    /// The engine's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where the probe file goes: the same file system, and beside the engine's own files only where
    /// there is no directory of ours.
    pub fn probe_dir(&self) -> &Path {
        self.fresh.as_ref().map_or(&self.dir, TempDir::path)
    }
}
