//! The directory of one run. A lab that was killed cannot remove its own: the next one does.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;

const PREFIX: &str = "leasehold-lab-";
/// Locked as long as the lab runs. The kernel gives the lock up, however the lab ends.
const LOCK: &str = "in-use";

/// A directory that goes when it is dropped.
pub struct RunDir {
    dir: TempDir,
    /// Dropped last.
    _lock: File,
}

impl RunDir {
    /// A new directory below this one. Removes those of labs that were killed.
    pub fn create(root: &Path) -> io::Result<Self> {
        remove_leftovers(root);
        let dir = tempfile::Builder::new().prefix(PREFIX).tempdir_in(root)?;
        // Under its name only when it is locked: another lab that starts must not take it for a leftover.
        let unnamed = dir.path().join("in-use.new");
        let lock = File::create_new(&unnamed)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        std::fs::rename(unnamed, dir.path().join(LOCK))?;
        Ok(Self { dir, _lock: lock })
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

/// Nothing here is worth an error: what cannot be removed now is there for the next lab.
fn remove_leftovers(root: &Path) {
    let own_user = rustix::process::geteuid().as_raw();
    for entry in std::fs::read_dir(root).into_iter().flatten().flatten() {
        let named = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        // Not through a link, and not what another user put there.
        let ours = entry.metadata().is_ok_and(|found| found.is_dir() && found.uid() == own_user);
        if named && ours && is_abandoned(&entry.path()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Whether its lab has ended. Without a lock file it is just being made.
fn is_abandoned(dir: &Path) -> bool {
    File::open(dir.join(LOCK)).is_ok_and(|lock| flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what a killed lab left goes, and what is in use, half made or somebody else's stays.
    #[test]
    fn leftovers_go_and_everything_else_stays() {
        let root = tempfile::tempdir().expect("a directory");
        let used = RunDir::create(root.path()).expect("a directory for a lab");
        let make = |name: &str, locked: bool| {
            let dir = root.path().join(name);
            std::fs::create_dir_all(dir.join("postgres")).expect("it can be made");
            if locked {
                std::fs::write(dir.join(LOCK), "").expect("it can be written");
            }
            dir
        };
        let (left, half_made) = (make("leasehold-lab-left", true), make("leasehold-lab-new", false));
        let other = make("another-left", true);
        let linked = root.path().join("leasehold-lab-link");
        std::os::unix::fs::symlink(&other, &linked).expect("a link");
        let next = RunDir::create(root.path()).expect("a directory for a lab");
        assert!(!left.exists());
        for kept in [used.path(), next.path(), &half_made, &other, &linked] {
            assert!(kept.exists(), "{}", kept.display());
        }
        let gone = next.path().to_owned();
        drop(next);
        assert!(!gone.exists());
    }
}
