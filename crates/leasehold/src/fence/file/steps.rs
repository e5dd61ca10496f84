//! The steps of one write, in the order that a crash may cut anywhere.
//!
//! ```text
//! read fence, decide · data -> temp, sync · [fence -> temp, sync, rename, sync dir] · rename data, sync dir
//! ```
//!
//! # Laws
//!
//! 1. The fence is durable before the data can be seen. A crash between the two leaves a fence above the data, and the
//!    old holder is out. The other order would let it back in.
//! 2. Data and fence change by rename: a reader sees all of one write or all of another.
//! 3. Nothing is acknowledged before the directory is synced.
//!
//! The caller holds the lock of the file.

use std::io;

use crate::engine::embedded::storage::Storage;
use crate::error::BoxError;
use crate::fence::{FenceRefusal, FenceToken, decide};

/// No fence is longer: 19 digits, a colon and 16 more.
const MAX_FENCE_BYTES: u64 = 64;

/// The names of a file and of what stands beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileNames {
    /// The data.
    pub data: String,
    /// `token:mark`.
    pub fence: String,
    /// Locked by who writes; never removed.
    pub lock: String,
    /// The next data.
    pub data_temp: String,
    /// The next fence.
    pub fence_temp: String,
}

impl FileNames {
    /// For the file of this name.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            data: name.to_owned(),
            fence: format!(".{name}.fence"),
            lock: format!(".{name}.lock"),
            data_temp: format!(".{name}.data.tmp"),
            fence_temp: format!(".{name}.fence.tmp"),
        }
    }
}

/// What becomes of the file.
pub enum FileChange<'a> {
    /// These bytes.
    Replace(Vec<u8>),
    /// What this makes of the bytes that are there.
    Edit(FileEdit<'a>),
    /// No file.
    Remove,
}

/// Gets the file as it is, none if it is not there, and gives it as it shall be.
pub type FileEdit<'a> = Box<dyn FnOnce(Option<Vec<u8>>) -> Result<Vec<u8>, BoxError> + Send + 'a>;

/// Why a step failed.
#[derive(Debug)]
pub enum StepError {
    /// The fence refused.
    Refused(FenceRefusal),
    /// The fence is no fence.
    Corrupt,
    /// The caller's change failed: nothing was written.
    Work(BoxError),
    /// The data are as they were.
    NoEffect(io::Error),
    /// A sync failed before the data were renamed: they are as they were, and the disk cannot be trusted.
    SyncFailed(io::Error),
    /// The data may be the new ones, now or after a crash.
    Unknown(io::Error),
}

/// One write. See the module.
///
/// `fence_is_durable`: this process has seen the fence of this very token durable, so that it needs no sync of its own.
///
/// # Errors
///
/// [`StepError`] says whether anything was written.
pub fn write_under_fence(
    disk: &dyn Storage,
    names: &FileNames,
    resource: &str,
    shown: FenceToken,
    fence_is_durable: bool,
    change: FileChange<'_>,
) -> Result<(), StepError> {
    let kept = read_fence(disk, names)?;
    let remember = decide(kept, shown).into_result(resource).map_err(StepError::Refused)?;
    let new = match change {
        FileChange::Replace(bytes) => Some(bytes),
        FileChange::Remove => None,
        FileChange::Edit(edit) => {
            let old = read_whole(disk, &names.data, u64::MAX).map_err(StepError::NoEffect)?;
            Some(edit(old).map_err(StepError::Work)?)
        }
    };
    if let Some(bytes) = &new {
        write_temp(disk, &names.data_temp, bytes)?;
    }
    if remember {
        write_temp(disk, &names.fence_temp, shown.to_string().as_bytes())?;
        disk.rename(&names.fence_temp, &names.fence).map_err(StepError::NoEffect)?;
    }
    if remember || !fence_is_durable {
        // An equal fence may be that of a process that died between its rename and its sync.
        disk.sync_dir().map_err(StepError::SyncFailed)?;
    }
    let changed = match new {
        Some(_) => disk.rename(&names.data_temp, &names.data),
        None => ignore_missing(disk.remove(&names.data)),
    };
    changed.map_err(StepError::Unknown)?;
    disk.sync_dir().map_err(StepError::Unknown)
}

/// What the fence remembers.
///
/// # Errors
///
/// [`StepError::Corrupt`], or [`StepError::NoEffect`] if it cannot be read.
pub fn read_fence(disk: &dyn Storage, names: &FileNames) -> Result<Option<FenceToken>, StepError> {
    let Some(bytes) = read_whole(disk, &names.fence, MAX_FENCE_BYTES).map_err(StepError::NoEffect)? else {
        return Ok(None);
    };
    let text = std::str::from_utf8(&bytes).ok();
    text.and_then(|text| text.parse().ok()).map(Some).ok_or(StepError::Corrupt)
}

/// The bytes of a file, up to a limit; none if it is not there.
fn read_whole(disk: &dyn Storage, name: &str, limit: u64) -> io::Result<Option<Vec<u8>>> {
    let file = match disk.open(name) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let length = usize::try_from(file.len()?.min(limit)).map_err(|_| io::ErrorKind::FileTooLarge)?;
    let mut bytes = vec![0; length];
    let count = file.read_at(&mut bytes, 0)?;
    bytes.truncate(count);
    Ok(Some(bytes))
}

/// A whole file under a name of its own, on disk. What a writer that died left there goes first.
fn write_temp(disk: &dyn Storage, name: &str, bytes: &[u8]) -> Result<(), StepError> {
    ignore_missing(disk.remove(name)).map_err(StepError::NoEffect)?;
    let mut file = disk.create(name).map_err(StepError::NoEffect)?;
    file.write_at(bytes, 0).map_err(StepError::NoEffect)?;
    file.sync().map_err(StepError::SyncFailed)
}

/// A file that is not there need not be removed.
fn ignore_missing(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
