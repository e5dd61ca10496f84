//! The steps of the file fence on a disk that loses its power between any two of them.
//!
//! Every write of a short history is cut at every operation, and of what was not synced every prefix of the directory's
//! changes and none, half or all of each file may survive. Whatever is left: the data are whole, the fence is not behind
//! them, what was acknowledged is there, and the old holder is out where a newer one can be seen.

use std::io;

use leasehold::engine::embedded::storage::{File, Storage};
use leasehold::fence::file::steps::{FileChange, FileNames, StepError, read_fence, write_under_fence};
use leasehold::fence::{FenceToken, decide};
use leasehold_torture::disk::{Faults, SimDisk};

const RESOURCE: &str = "seat/14";
const OLD: &str = "41:aaaaaaaaaaaaaaaa";
const NEW: &str = "42:bbbbbbbbbbbbbbbb";

/// How a file is written: by the steps, or by steps with a fault in them.
type WriteFile = fn(&SimDisk, &str, Option<&str>) -> Result<(), StepError>;

fn names() -> FileNames {
    FileNames::new("seat")
}

fn shown(text: &str) -> FenceToken {
    text.parse().expect("a token")
}

fn write_on(disk: &dyn Storage, token: &str, data: Option<&str>) -> Result<(), StepError> {
    let change = data.map_or(FileChange::Remove, |data| FileChange::Replace(data.into()));
    write_under_fence(disk, &names(), RESOURCE, shown(token), false, change)
}

fn real(disk: &SimDisk, token: &str, data: Option<&str>) -> Result<(), StepError> {
    write_on(disk, token, data)
}

/// Planted: the data are seen before the fence.
fn data_before_fence(disk: &SimDisk, token: &str, data: Option<&str>) -> Result<(), StepError> {
    let names = names();
    let kept = read_fence(disk, &names)?;
    decide(kept, shown(token)).into_result(RESOURCE).map_err(StepError::Refused)?;
    let put = |temp: &str, to: &str, text: &str| -> io::Result<()> {
        let _ = disk.remove(temp);
        let mut file = disk.create(temp)?;
        file.write_at(text.as_bytes(), 0)?;
        file.sync()?;
        disk.rename(temp, to)?;
        disk.sync_dir()
    };
    match data {
        Some(data) => put(&names.data_temp, &names.data, data),
        None => disk.remove(&names.data).and_then(|()| disk.sync_dir()),
    }
    .and_then(|()| put(&names.fence_temp, &names.fence, token))
    .map_err(StepError::Unknown)
}

/// Planted: syncs of the directory, or of files, do nothing.
struct LazyDisk {
    disk: SimDisk,
    skips_dir: bool,
}

struct LazyFile {
    file: Box<dyn File>,
    skips: bool,
}

impl Storage for LazyDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        self.disk.list()
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn File>> {
        self.disk.open(name)
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn File>> {
        Ok(Box::new(LazyFile { file: self.disk.create(name)?, skips: !self.skips_dir }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }

    fn sync_dir(&self) -> io::Result<()> {
        if self.skips_dir { Ok(()) } else { self.disk.sync_dir() }
    }
}

impl File for LazyFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        self.file.read_at(buffer, at)
    }

    fn write_at(&mut self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.file.write_at(bytes, at)
    }

    fn sync(&mut self) -> io::Result<()> {
        if self.skips { Ok(()) } else { self.file.sync() }
    }
}

fn no_dir_sync(disk: &SimDisk, token: &str, data: Option<&str>) -> Result<(), StepError> {
    write_on(&LazyDisk { disk: disk.clone(), skips_dir: true }, token, data)
}

fn no_file_sync(disk: &SimDisk, token: &str, data: Option<&str>) -> Result<(), StepError> {
    write_on(&LazyDisk { disk: disk.clone(), skips_dir: false }, token, data)
}

/// Every disk that may be left when the power fails now, and the one that a kill of the process leaves.
fn images(disk: &SimDisk) -> Vec<SimDisk> {
    let choices = disk.choices();
    let mut kept: Vec<Vec<usize>> = vec![Vec::new()];
    for length in &choices.writes {
        let survive = [0, length / 2, *length];
        kept = kept.iter().flat_map(|kept| survive.map(|more| [kept.as_slice(), &[more]].concat())).collect();
    }
    let mut images = vec![disk.after_kill()];
    for dir in 0..=choices.dir {
        images.extend(kept.iter().map(|kept| disk.after_crash(dir, kept)));
    }
    images
}

fn data_on(disk: &SimDisk) -> Option<String> {
    let names = names();
    disk.names().contains(&names.data).then(|| String::from_utf8_lossy(&disk.bytes(&names.data)).into_owned())
}

/// What must hold of a disk; `acknowledged`: the new write was.
fn check(
    disk: &SimDisk,
    write: WriteFile,
    before: Option<&str>,
    after: Option<&str>,
    acknowledged: bool,
) -> Result<(), String> {
    let data = data_on(disk);
    let fence = read_fence(disk, &names()).map_err(|_| "the fence is torn".to_owned())?;
    let is_new = data.as_deref() == after;
    if !is_new && (acknowledged || data.as_deref() != before) {
        return Err(format!("data {data:?}, acknowledged {acknowledged}"));
    }
    if is_new && fence != Some(shown(NEW)) {
        return Err(format!("data of the new holder under fence {fence:?}"));
    }
    let next = disk.after_kill();
    let late = write(&next, OLD, Some("late"));
    if fence == Some(shown(NEW)) && !matches!(late, Err(StepError::Refused(_))) {
        return Err(format!("the old holder was let in: {late:?}"));
    }
    let next = disk.after_kill();
    write(&next, NEW, Some("newest")).map_err(|error| format!("the newest holder: {error:?}"))?;
    if data_on(&next).as_deref() == Some("newest") { Ok(()) } else { Err("the newest write is not there".into()) }
}

/// Plays a write of the new holder on a disk where the old one has written, cut at every operation. Says how many disks
/// were looked at, and what was wrong with the first that was wrong.
fn play(write: WriteFile, after: Option<&str>, again: bool) -> (usize, Option<String>) {
    let before = if again { "first of the new holder" } else { "old" };
    let begin = || {
        let disk = SimDisk::default();
        write(&disk, OLD, Some("old")).expect("admitted");
        if again {
            write(&disk, NEW, Some(before)).expect("admitted");
        }
        disk
    };
    let mut looked = 0;
    for crash_in in 0.. {
        let disk = begin();
        disk.set_faults(Faults { crash_in: Some(crash_in), ..Faults::default() });
        let done = write(&disk, NEW, after);
        let acknowledged = done.is_ok();
        assert!(acknowledged || disk.has_crashed(), "{done:?}");
        for image in images(&disk) {
            looked += 1;
            if let Err(wrong) = check(&image, write, Some(before), after, acknowledged) {
                return (looked, Some(format!("crash at {crash_in}: {wrong}")));
            }
        }
        if acknowledged {
            break;
        }
    }
    (looked, None)
}

/// Goal: the laws of the steps, over every power failure of a raising write, an equal write and a removal.
#[test]
fn a_power_failure_lets_nobody_back_in() {
    let mut looked_at = 0;
    for after in [Some("new data"), None] {
        for again in [false, true] {
            let (looked, wrong) = play(real, after, again);
            assert_eq!(wrong, None, "{after:?}, again {again}");
            looked_at += looked;
        }
    }
    assert!(looked_at > 100, "{looked_at} disks");
}

/// Goal: the check above sees each fault.
#[test]
fn planted_faults_are_seen() {
    let faults: [(&str, WriteFile); 3] = [
        ("data before fence", data_before_fence),
        ("no sync of the directory", no_dir_sync),
        ("no sync of files", no_file_sync),
    ];
    for (name, write) in faults {
        let (looked, wrong) = play(write, Some("new data"), false);
        assert!(wrong.is_some(), "{name}: not seen on {looked} disks");
    }
}

/// Goal: an operation that fails before the data are renamed leaves them, and says so.
#[test]
fn a_failed_write_has_no_effect() {
    for faults in [Faults { fail_write: true, ..Faults::default() }, Faults { fail_sync: true, ..Faults::default() }] {
        let disk = SimDisk::default();
        real(&disk, OLD, Some("old")).expect("admitted");
        disk.set_faults(faults);
        let failed = real(&disk, NEW, Some("new data"));
        assert!(matches!(failed, Err(StepError::NoEffect(_) | StepError::SyncFailed(_))), "{failed:?}");
        assert_eq!(data_on(&disk).as_deref(), Some("old"));
    }
}
