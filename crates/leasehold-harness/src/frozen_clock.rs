//! A wall clock that a test sets by hand, for a server that is a process of its own.
//!
//! The server is started with a small preloaded library (`frozen_clock.c`, compiled when it is needed), which reads the
//! time from a mapped file.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// A wall clock set by hand. Clones are the same clock.
#[derive(Clone, Debug)]
pub struct FrozenClock(Arc<ClockFiles>);

#[derive(Debug)]
struct ClockFiles {
    dir: PathBuf,
    time: File,
}

impl FrozenClock {
    /// A clock that shows these microseconds since 1970.
    ///
    /// # Panics
    ///
    /// If there is no C compiler, or no place for the library.
    #[must_use]
    pub fn new(micros: u64) -> Self {
        let dir = std::env::temp_dir().join(format!("leasehold-clock-{:016x}", crate::random_number()));
        std::fs::create_dir_all(&dir).expect("a directory can be made");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("frozen_clock.c");
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(dir.join("frozen_clock.so"))
            .arg(&source)
            .arg("-ldl")
            .output()
            .expect("there is no C compiler, and tests under a frozen clock need one: apt-get install gcc");
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        let time = File::create(dir.join("time")).expect("a file can be made");
        let clock = Self(Arc::new(ClockFiles { dir, time }));
        clock.set_micros(micros);
        clock
    }

    /// Shows these microseconds since 1970 from now on.
    ///
    /// # Panics
    ///
    /// If the file cannot be written.
    pub fn set_micros(&self, micros: u64) {
        self.0.time.write_all_at(&micros.to_ne_bytes(), 0).expect("the clock can be set");
    }

    /// The library to preload.
    #[must_use]
    pub fn library(&self) -> PathBuf {
        self.0.dir.join("frozen_clock.so")
    }

    /// The file that holds the time.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        self.0.dir.join("time")
    }
}

impl Drop for ClockFiles {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
