//! Measures the disk: its file system, and the latency of fdatasync on it.

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

/// The size of the probe file. It is filled with zeros before the measurement: writing into allocated blocks changes
/// no metadata, as in the journal.
const PROBE_FILE_BYTES: u64 = 16 << 20;

/// Bytes written before each fdatasync.
const PROBE_WRITE_BYTES: usize = 512;

/// Limits of one half of the measurement: samples, and time.
const MAX_SAMPLES_PER_HALF: u32 = 1_000;
const MAX_TIME_PER_HALF: Duration = Duration::from_secs(1);

/// Names of file systems by their statfs magic number.
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

/// File systems without a disk: a figure measured there means nothing.
const IN_MEMORY_FILE_SYSTEMS: [&str; 3] = ["tmpfs", "ramfs", "hugetlbfs"];

/// Returns the name of a directory's file system.
///
/// # Errors
///
/// Bad usage if the file system is in memory: a durable engine cannot be measured there.
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
    pub fn new(dir: PathBuf, fs: String) -> Self {
        Self { dir, fs }
    }

    /// The directory of `--dir`, or the current one. Only the user knows which directory is on the disk of a server.
    pub fn for_server(dir: Option<&Path>) -> anyhow::Result<Self> {
        let dir = match dir {
            Some(dir) => dir.to_owned(),
            None => std::env::current_dir().context("find the current directory")?,
        };
        let fs = file_system(&dir)?;
        Ok(Self { dir, fs })
    }

    /// Creates a probe file in the directory.
    pub fn probe(&self) -> anyhow::Result<DiskProbe> {
        DiskProbe::new(&self.dir)
    }
}

/// A zero-filled file on which fdatasync is measured. Dropping the probe removes the file.
pub struct DiskProbe {
    file: File,
    path: PathBuf,
    offset: u64,
    /// Latencies of fdatasync, one histogram for each half.
    halves: Vec<LatencyHistogram>,
}

/// Latency of one fdatasync, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FdatasyncLatency {
    /// Over both halves.
    pub p50: f64,
    /// Over both halves.
    pub p99: f64,
    /// The p50 before the load.
    pub p50_before: f64,
    /// The p50 after the load.
    pub p50_after: f64,
}

impl FdatasyncLatency {
    /// Whether the disk was about as fast after the load as before. Only then is its latency a bound to compare with.
    /// Disks with a burst allowance are not steady.
    pub fn is_steady(&self) -> bool {
        let (low, high) = (self.p50_before.min(self.p50_after), self.p50_before.max(self.p50_after));
        high <= 2.0 * low
    }

    /// Warns on stderr if the disk was not steady.
    pub fn warn_if_unsteady(&self) {
        if !self.is_steady() {
            output::say("the disk changed its pace while we measured: the ratios mean little, try again");
        }
    }
}

impl DiskProbe {
    /// Creates the file, fills it with zeros and syncs it.
    pub fn new(dir: &Path) -> anyhow::Result<Self> {
        let path = dir.join(format!("leasehold-bench-probe-{}", std::process::id()));
        let file = create_zeroed_file(&path)
            .inspect_err(|_| drop(std::fs::remove_file(&path)))
            .with_context(|| format!("write a file of zeros to {}", path.display()))?;
        Ok(Self { file, path, offset: 0, halves: Vec::new() })
    }

    /// Measures one half: writes 512 bytes and times the fdatasync, again and again. It is called once before the load
    /// and once after it, so that a change of the disk's speed is noticed.
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

    /// The latency over both halves, and the p50 of each.
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
        // Best effort: the file holds only zeros, and its name says where it comes from.
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
