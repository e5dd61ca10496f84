//! A wall clock that a test sets by hand, for a server that is a process of its own.
//!
//! The server is started with a small preloaded library (`frozen_clock.c`, compiled when it is needed), which reads the
//! time from a mapped file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// The library. It is compiled where it is needed, so it goes along in the binary.
const SOURCE: &str = include_str!("../frozen_clock.c");

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
        Self::try_new(&std::env::temp_dir(), micros)
            .expect("tests under a frozen clock need a C compiler (apt-get install gcc)")
    }

    /// As [`FrozenClock::new`], with its files in a new directory below this one.
    ///
    /// # Errors
    ///
    /// If there is no C compiler (then it is `NotFound`), or no place for the library.
    pub fn try_new(root: &Path, micros: u64) -> io::Result<Self> {
        let dir = root.join(format!("leasehold-clock-{:016x}", crate::random_number()?));
        std::fs::create_dir(&dir)?;
        let time = File::create(dir.join("time"))?;
        let clock = Self(Arc::new(ClockFiles { dir, time }));
        let source = clock.0.dir.join("frozen_clock.c");
        std::fs::write(&source, SOURCE)?;
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(clock.library()).arg(&source).arg("-ldl");
        let compiled = compiler.output()?;
        if !compiled.status.success() {
            return Err(io::Error::other(String::from_utf8_lossy(&compiled.stderr).into_owned()));
        }
        clock.try_set_micros(micros)?;
        Ok(clock)
    }

    /// Shows these microseconds since 1970 from now on.
    ///
    /// # Panics
    ///
    /// If the file cannot be written.
    pub fn set_micros(&self, micros: u64) {
        self.try_set_micros(micros).expect("the clock can be set");
    }

    /// As [`FrozenClock::set_micros`].
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn try_set_micros(&self, micros: u64) -> io::Result<()> {
        self.0.time.write_all_at(&micros.to_ne_bytes(), 0)
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
