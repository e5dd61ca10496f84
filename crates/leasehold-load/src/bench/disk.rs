//! What the disk below can do: its file system, and how long one fdatasync takes there.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;

use super::latency::LatencyHistogram;
use leasehold_support::exit::Failure;
use leasehold_support::{output, time};

/// The size of the file that is synced, zero-filled beforehand: an allocated block whose size does not
/// change needs no metadata on disk, which is what the journal relies on.
const PROBE_FILE_BYTES: u64 = 16 << 20;

/// What is written before each sync.
const PROBE_WRITE_BYTES: usize = 512;

/// At most this many samples in one half of the measurement, and at most this long.
const MAX_SAMPLES_PER_HALF: u32 = 1_000;
const MAX_TIME_PER_HALF: Duration = Duration::from_secs(1);

/// File systems we have a name for, by the number statfs gives.
const FILE_SYSTEM_NAMES: [(u64, &str); 14] = [
    (0xef53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683e, "btrfs"),
    (0xf2f5_2010, "f2fs"),
    (0x2fc1_2fc1, "zfs"),
    (0xca45_1a4e, "bcachefs"),
    (0x794c_7630, "overlayfs"),
    (0x6969, "nfs"),
    (0xff53_4d42, "cifs"),
    (0x6573_5546, "fuse"),
    (0x0102_1997, "9p"),
    (0x0102_1994, "tmpfs"),
    (0x8584_58f6, "ramfs"),
    (0x9584_58f6, "hugetlbfs"),
];

/// Where nothing is ever on a disk, so that nothing measured there means anything.
const IN_MEMORY_FILE_SYSTEMS: [&str; 3] = ["tmpfs", "ramfs", "hugetlbfs"];

/// The file system of a directory.
///
/// # Errors
///
/// Bad usage, when it is one in memory: a durable engine measured there is a lie.
pub fn file_system(dir: &Path) -> anyhow::Result<String> {
    let stat = rustix::fs::statfs(dir).with_context(|| format!("ask for the file system of {}", dir.display()))?;
    let number = u64::try_from(stat.f_type).unwrap_or(0);
    let name = FILE_SYSTEM_NAMES.iter().find(|(known, _)| *known == number);
    let name = name.map_or_else(|| format!("{number:#x}"), |(_, name)| (*name).to_owned());
    if IN_MEMORY_FILE_SYSTEMS.contains(&name.as_str()) {
        let dir = dir.display();
        return Err(Failure::usage(format!(
            "{dir} is on {name}, which keeps nothing on disk: run the bench in a directory on a real file system"
        )));
    }
    Ok(name)
}

/// A directory whose disk is measured beside the load.
#[derive(Clone, Debug)]
pub struct Disk {
    dir: PathBuf,
    /// The name of its file system.
    pub fs: String,
}

impl Disk {
    /// A directory of a known file system.
    pub fn new(dir: PathBuf, fs: String) -> Self {
        Self { dir, fs }
    }

    /// The directory of `--dir`, or the current one. A server keeps its data where it likes, so that only
    /// the caller knows which directory is on the same disk.
    pub fn for_server(dir: Option<&Path>) -> anyhow::Result<Self> {
        let dir = match dir {
            Some(dir) => dir.to_owned(),
            None => std::env::current_dir().context("find the current directory")?,
        };
        let fs = file_system(&dir)?;
        Ok(Self { dir, fs })
    }

    /// A file to sync there.
    pub fn probe(&self) -> anyhow::Result<DiskProbe> {
        DiskProbe::new(&self.dir)
    }
}

/// A zero-filled file beside the engine's, on which fdatasync is measured. Dropping it removes it.
pub struct DiskProbe {
    file: File,
    path: PathBuf,
    offset: u64,
    /// Every fdatasync of each half.
    halves: Vec<LatencyHistogram>,
}

/// How long one fdatasync took, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FdatasyncLatency {
    /// Half of all were faster.
    pub p50: f64,
    /// All but one in a hundred were faster.
    pub p99: f64,
    /// The p50 of those before the load.
    pub p50_before: f64,
    /// The p50 of those after it.
    pub p50_after: f64,
}

impl FdatasyncLatency {
    /// Whether the disk was about as fast after the load as before: only then is there a bound to compare
    /// with. Disks with a burst allowance are not.
    pub fn is_steady(&self) -> bool {
        let (low, high) = (self.p50_before.min(self.p50_after), self.p50_before.max(self.p50_after));
        high <= 2.0 * low
    }

    /// Warns of a disk that was not.
    pub fn warn_if_unsteady(&self) {
        if !self.is_steady() {
            output::say("the disk changed its pace while we measured: the ratios mean little, try again");
        }
    }
}

impl DiskProbe {
    /// Makes the file and brings it to disk.
    pub fn new(dir: &Path) -> anyhow::Result<Self> {
        let path = dir.join(format!("leasehold-bench-probe-{}", std::process::id()));
        let file = create_zeroed_file(&path)
            .inspect_err(|_| drop(std::fs::remove_file(&path)))
            .with_context(|| format!("write a file of zeros to {}", path.display()))?;
        Ok(Self { file, path, offset: 0, halves: Vec::new() })
    }

    /// Measures one half: write 512 bytes, then time the fdatasync. Once before the load and once after,
    /// so that a disk which changes its pace meanwhile is seen from both sides.
    pub fn measure(&mut self) -> anyhow::Result<()> {
        let end = time::stopwatch() + MAX_TIME_PER_HALF;
        let mut half = LatencyHistogram::new()?;
        for _ in 0..MAX_SAMPLES_PER_HALF {
            self.file.write_all_at(&[0xa5; PROBE_WRITE_BYTES], self.offset).context("write to the probe file")?;
            let before = time::stopwatch();
            rustix::fs::fdatasync(&self.file).context("sync the probe file")?;
            let after = time::stopwatch();
            half.record(after.duration_since(before));
            self.offset = (self.offset + PROBE_WRITE_BYTES as u64) % PROBE_FILE_BYTES;
            if after >= end {
                break;
            }
        }
        self.halves.push(half);
        Ok(())
    }

    /// What was found in all halves together, and in the first and the last.
    pub fn latency(&self) -> anyhow::Result<FdatasyncLatency> {
        let mut all = LatencyHistogram::new()?;
        self.halves.iter().try_for_each(|half| all.merge(half))?;
        let p50 = |half: Option<&LatencyHistogram>| half.map_or(0.0, |half| half.quantile_us(0.5));
        let (p50_before, p50_after) = (p50(self.halves.first()), p50(self.halves.last()));
        Ok(FdatasyncLatency { p50: all.quantile_us(0.5), p99: all.quantile_us(0.99), p50_before, p50_after })
    }
}

impl Drop for DiskProbe {
    fn drop(&mut self) {
        // Best effort: the file is zeros, and its name says whose it is.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn create_zeroed_file(path: &Path) -> io::Result<File> {
    let mut file = File::create(path)?;
    let zeros = vec![0; 1 << 20];
    for _ in 0..PROBE_FILE_BYTES >> 20 {
        file.write_all(&zeros)?;
    }
    file.sync_all()?;
    Ok(file)
}
