//! The key file, read at the start and after every change.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::Clock;

use crate::service::audit::Audit;
use crate::service::keys::KeyRing;
use crate::service::keys::file::{FileStamp, KeyFile, KeyFileError};
use leasehold_support::exit::{CORRUPT, Failure, UNAVAILABLE};

/// How often the file is checked: twice within the second that a revoke may take.
const KEY_FILE_CHECK_EVERY: Duration = Duration::from_millis(400);

/// Reads the key file at the start.
///
/// # Errors
///
/// Exit code 8 if it is damaged, 4 if it cannot be read.
pub fn load_keys(data: &Path) -> anyhow::Result<KeyFile> {
    KeyFile::load(data).map_err(|bad| match bad {
        KeyFileError::Damaged { .. } => Failure::coded(CORRUPT, bad.to_string()),
        KeyFileError::Io { ref source, .. } => Failure::coded(UNAVAILABLE, format!("{bad}: {source}")),
    })
}

/// Watches the key file.
pub struct KeyFileWatcher {
    data: PathBuf,
    ring: Arc<KeyRing>,
    clock: Arc<dyn Clock>,
}

impl KeyFileWatcher {
    /// Updates this key ring.
    pub fn new(data: PathBuf, ring: Arc<KeyRing>, clock: Arc<dyn Clock>) -> Self {
        Self { data, ring, clock }
    }

    /// Watches until dropped. The first round reads the file again: it may have changed since the start.
    pub async fn run(self) {
        let mut seen = None;
        let mut unreadable = false;
        let mut at = self.clock.now();
        loop {
            let data = self.data.clone();
            // On the blocking pool: a disk may hang.
            let checked = tokio::task::spawn_blocking(move || read_if_changed(&data, seen)).await;
            if let Ok((stamp, Some(read))) = checked {
                seen = stamp_to_remember(stamp, &read);
                // Logged once, not every round.
                if !(seen.is_none() && unreadable) {
                    self.apply_key_file(read);
                }
                unreadable = seen.is_none();
            }
            at = at.plus(KEY_FILE_CHECK_EVERY).max(self.clock.now());
            self.clock.sleep_until(at).await;
        }
    }

    fn apply_key_file(&self, read: Result<KeyFile, KeyFileError>) {
        match read {
            Ok(file) => {
                let change = self.ring.replace(&file);
                if change != Default::default() {
                    Audit.log_keys_changed(change);
                    if self.ring.len() == 0 {
                        tracing::warn!("the last key is gone: nobody is let in until there is one, or until a restart");
                    }
                }
            }
            Err(bad) => {
                let cause = std::error::Error::source(&bad).map(|cause| format!(": {cause}")).unwrap_or_default();
                tracing::warn!("the keys stay as they were: {bad}{cause}");
            }
        }
    }
}

/// The stamp of the file, and its content if the stamp differs from the last one.
fn read_if_changed(
    data: &Path,
    seen: Option<Option<FileStamp>>,
) -> (Option<FileStamp>, Option<Result<KeyFile, KeyFileError>>) {
    // The stamp is read first: a change between the two reads is noticed in the next round.
    let stamp = FileStamp::read(data);
    let changed = seen != Some(stamp);
    (stamp, changed.then(|| KeyFile::load(data)))
}

/// The stamp to compare with in the next round. None after a failed read: it is repeated even if the file does not
/// change, so that a revoked key does not stay valid.
fn stamp_to_remember(stamp: Option<FileStamp>, read: &Result<KeyFile, KeyFileError>) -> Option<Option<FileStamp>> {
    (!matches!(read, Err(KeyFileError::Io { .. }))).then_some(stamp)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a list that could not be read is read again though it did not change; one that was read is not, damaged or
    /// not.
    #[test]
    fn what_could_not_be_read_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("keys.toml"), "").unwrap();
        let read_again = |read: &dyn Fn() -> Result<KeyFile, KeyFileError>| {
            let (stamp, _) = read_if_changed(dir.path(), None);
            read_if_changed(dir.path(), stamp_to_remember(stamp, &read())).1.is_some()
        };
        let path = dir.path().to_owned();
        let no_descriptor = || std::io::Error::from_raw_os_error(24);
        assert!(read_again(&|| Err(KeyFileError::Io { attempt: "read", path: path.clone(), source: no_descriptor() })));
        assert!(!read_again(&|| Err(KeyFileError::Damaged { path: path.clone(), why: String::new() })));
        assert!(!read_again(&|| Ok(KeyFile::default())));
    }
}
