//! `keys.toml`: the API keys, in the data directory.
//!
//! # Laws
//!
//! 1. The file is replaced as a whole (temporary file, sync, rename, sync of the directory): a reader sees the old or
//!    the new list, even after a power loss.
//! 2. One writer at a time, by an exclusive `flock` on the directory: two `key create` lose neither key.
//! 3. A file with any error is refused as a whole, with the line. No key is dropped silently.
//! 4. A file that others may write is refused: whoever writes it can give themselves every right.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::num::NonZeroU32;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use leasehold_core::Limits;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::Role;
use super::secret::{KeyDigest, is_id};
use crate::config::toml_sentence;

/// The name of the file in the data directory.
pub const KEY_FILE_NAME: &str = "keys.toml";
/// A larger file is not a key file.
const MAX_KEY_FILE_BYTES: u64 = 64 << 20;
const FILE_HEADER: &str = "\
# API keys of this server: digests, no secrets. Written by `leasehold key`; a running server reads it again within a
# second of every change.

";

/// The list of keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyFile {
    /// Every key.
    #[serde(default, rename = "key")]
    pub keys: Vec<KeyRecord>,
}

/// One key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename = "Record", deny_unknown_fields)]
pub struct KeyRecord {
    /// Its public name.
    pub id: String,
    /// What proves it.
    pub hash: KeyDigest,
    /// What it may do.
    pub roles: Vec<Role>,
    /// What it may touch; empty for everything.
    #[serde(default)]
    pub prefixes: Vec<String>,
    /// Requests a second; none for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<NonZeroU32>,
    /// For people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// When it was made, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub created: String,
}

/// Why the key file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// The file cannot be read or written.
    #[error("{attempt} {}", path.display())]
    Io {
        /// What was tried.
        attempt: &'static str,
        /// The file.
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// It is not a list of keys.
    #[error("the list of keys {} is damaged, and no key is let in by guessing: {why}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong, with its line.
        why: String,
    },
}

/// Identifies one version of the file without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStamp {
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileStamp {
    /// The stamp of the file now; none if it does not exist or cannot be read.
    pub fn read(dir: &Path) -> Option<Self> {
        let meta = fs::metadata(dir.join(KEY_FILE_NAME)).ok()?;
        Some(Self {
            inode: meta.ino(),
            size: meta.size(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        })
    }
}

impl KeyFile {
    /// Reads the list; no file is an empty one.
    ///
    /// # Errors
    ///
    /// It cannot be read, or is damaged.
    pub fn load(dir: &Path) -> Result<Self, KeyFileError> {
        let path = dir.join(KEY_FILE_NAME);
        let unreadable = |source| KeyFileError::Io { attempt: "read", path: path.clone(), source };
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(unreadable(error)),
        };
        let damaged = |why: String| KeyFileError::Damaged { path: path.clone(), why };
        if file.metadata().map_err(unreadable)?.mode() & 0o022 != 0 {
            return Err(damaged("others may write it: chmod 600, and look who did".into()));
        }
        let mut text = String::new();
        file.take(MAX_KEY_FILE_BYTES).read_to_string(&mut text).map_err(unreadable)?;
        Self::parse(&text).map_err(damaged)
    }

    /// Reads the text of a list.
    fn parse(text: &str) -> Result<Self, String> {
        let file: Self = toml::from_str(text).map_err(|error| toml_sentence(&error, text))?;
        file.check()?;
        Ok(file)
    }

    fn check(&self) -> Result<(), String> {
        let (mut ids, mut heads) = (HashSet::new(), HashSet::new());
        for record in &self.keys {
            let id = record.id.escape_debug();
            if !is_id(&record.id) {
                return Err(format!("{id} is no id of a key"));
            }
            record.check().map_err(|why| format!("key {id}: {why}"))?;
            if !ids.insert(&record.id) || !heads.insert(record.hash.head()) {
                return Err(format!("key {id} is there twice"));
            }
        }
        Ok(())
    }

    /// Changes the file under the directory lock. Creates the directory if needed.
    ///
    /// # Errors
    ///
    /// It cannot be read or written, is damaged, or `change` says no; then it is as it was.
    pub fn change<T>(dir: &Path, change: impl FnOnce(&mut Self) -> anyhow::Result<T>) -> anyhow::Result<T> {
        let io = |attempt, source| KeyFileError::Io { attempt, path: dir.to_owned(), source };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(|error| io("make", error))?;
        let lock = File::open(dir).map_err(|error| io("open", error))?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|error| io("lock", error.into()))?;
        let mut file = Self::load(dir)?;
        let done = change(&mut file)?;
        file.check().map_err(anyhow::Error::msg)?;
        file.store(dir, &lock).map_err(|source| KeyFileError::Io {
            attempt: "write",
            path: dir.join(KEY_FILE_NAME),
            source,
        })?;
        Ok(done)
    }

    fn store(&self, dir: &Path, lock: &File) -> io::Result<()> {
        let text = toml::to_string(self).map_err(io::Error::other)?;
        let temporary = dir.join(format!("{KEY_FILE_NAME}.tmp"));
        // A leftover of a crash: the directory lock says that no other writer uses it.
        let _ = fs::remove_file(&temporary);
        let written = (|| {
            let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
            file.write_all(FILE_HEADER.as_bytes())?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            chown_to_directory_owner(lock, &file)?;
            fs::rename(&temporary, dir.join(KEY_FILE_NAME))
        })();
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written?;
        lock.sync_all()
    }
}

/// Root may create keys for a server that runs as another user, and that user must be able to read them.
fn chown_to_directory_owner(dir: &File, file: &File) -> io::Result<()> {
    let (dir, own) = (dir.metadata()?, file.metadata()?);
    if !rustix::process::geteuid().is_root() || (dir.uid(), dir.gid()) == (own.uid(), own.gid()) {
        return Ok(());
    }
    let (owner, group) = (rustix::fs::Uid::from_raw(dir.uid()), rustix::fs::Gid::from_raw(dir.gid()));
    Ok(rustix::fs::fchown(file, Some(owner), Some(group))?)
}

impl KeyRecord {
    /// Refuses what would be no key: without a role, with a prefix that is no name.
    ///
    /// # Errors
    ///
    /// The sentence.
    pub fn check(&self) -> Result<(), String> {
        if self.roles.is_empty() {
            return Err("it has no role".into());
        }
        let limits = Limits::default();
        self.prefixes.iter().try_for_each(|prefix| limits.check_name(prefix))?;
        if self.note.len() > 256 || self.note.chars().any(char::is_control) {
            return Err("a note is one line of at most 256 bytes".into());
        }
        Ok(())
    }
}

impl Serialize for Role {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.word())
    }
}

impl<'de> Deserialize<'de> for Role {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let word = String::deserialize(deserializer)?;
        Self::named(&word).ok_or_else(|| {
            let words = Self::ALL.map(Self::word).join(", ");
            serde::de::Error::custom(format!("there is no role {word:?}: the roles are {words}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::secret::NewKey;
    use super::*;

    fn record(roles: &[Role], prefixes: &[&str]) -> KeyRecord {
        KeyRecord {
            rate: NonZeroU32::new(7),
            note: "for \"ci\" = [tests]".into(),
            created: "2026-01-01T00:00:00.000Z".into(),
            ..NewKey::random().unwrap().record(roles, prefixes)
        }
    }

    /// Goal: what was written is read back, and the file is for its owner alone.
    #[test]
    fn what_was_written_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new");
        let (one, two) = (record(&[Role::Lease, Role::Read], &["a/", "ü"]), record(&[Role::Admin], &[]));
        for record in [&one, &two] {
            KeyFile::change(&path, |file| {
                file.keys.push(record.clone());
                Ok(())
            })
            .unwrap();
        }
        assert_eq!(KeyFile::load(&path).unwrap().keys, [one, two]);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&path.join(KEY_FILE_NAME))), (0o700, 0o600));
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1, "nothing is left beside it");
    }

    /// Goal: many writers at once lose no key.
    #[test]
    fn writers_take_turns() {
        let dir = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..5 {
                        KeyFile::change(dir.path(), |file| {
                            file.keys.push(record(&[Role::Read], &[]));
                            Ok(())
                        })
                        .unwrap();
                    }
                });
            }
        });
        assert_eq!(KeyFile::load(dir.path()).unwrap().keys.len(), 40);
    }

    /// Goal: whatever is wrong with the file, all of it is refused with a sentence that helps.
    #[test]
    fn a_damaged_list_is_refused_as_a_whole() {
        let good = toml::to_string(&KeyFile { keys: vec![record(&[Role::Lease], &["a/"])] }).unwrap();
        assert!(KeyFile::parse(&good).is_ok());
        let table = [
            (good.replace("[[key]]", "[[kex]]"), "line 1"),
            (good.replace("lease", "leese"), "no role \"leese\""),
            (good.replace("[\"lease\"]", "[]"), "no role"),
            (good.replace("sha256:", "md5:"), "sha256"),
            (good.replace("rate = 7", "rate = 0"), "line"),
            (good.replace("\"a/\"", "\"\""), "empty"),
            (good.replace("note", "nose"), "nose"),
            (format!("{good}\n{good}"), "twice"),
            (good[..good.len() / 2].to_owned(), ""),
            (good.replace("id = \"", "id = \"X"), "no id"),
        ];
        for (text, part) in table {
            let why = KeyFile::parse(&text).expect_err(&text);
            assert!(why.contains(part) && !why.contains('\n'), "{part:?} in {why:?}");
        }
    }

    /// Goal: a list that others may write is not believed.
    #[test]
    fn a_list_that_others_may_write_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        KeyFile::change(dir.path(), |_| Ok(())).unwrap();
        assert!(KeyFile::load(dir.path()).is_ok());
        fs::set_permissions(dir.path().join(KEY_FILE_NAME), fs::Permissions::from_mode(0o620)).unwrap();
        assert!(matches!(KeyFile::load(dir.path()), Err(KeyFileError::Damaged { .. })));
    }

    /// Goal: keys made by root can be read by whoever owns the directory.
    #[test]
    fn keys_made_by_root_belong_to_the_owner_of_the_directory() {
        if !rustix::process::geteuid().is_root() {
            return; // Nobody else can give a file away.
        }
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(dir.path(), Some(12_345), Some(23_456)).unwrap();
        KeyFile::change(dir.path(), |_| Ok(())).unwrap();
        let meta = fs::metadata(dir.path().join(KEY_FILE_NAME)).unwrap();
        assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o777), (12_345, 23_456, 0o600));
    }

    /// Goal: every change can be seen without reading the file.
    #[test]
    fn every_change_has_another_stamp() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(FileStamp::read(dir.path()), None);
        let mut seen = Vec::new();
        for _ in 0..50 {
            KeyFile::change(dir.path(), |_| Ok(())).unwrap();
            seen.push(FileStamp::read(dir.path()).unwrap());
        }
        assert!(seen.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
