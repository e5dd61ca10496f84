//! A disk that can crash: durable bytes, and operations that a crash may keep, lose or tear.
//!
//! - A write since the last sync of its file may be there, not be there, or be there up to any byte.
//! - Creations, renames and removals since the last sync of the directory survive up to some point in order.
//! - A sync that fails leaves its writes readable and marked clean: a later sync does not save them. (So does
//!   Linux: <https://lwn.net/Articles/752063/>.)

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use leasehold::engine::embedded::storage::{File, Storage};

#[derive(Clone, Debug)]
struct PendingWrite {
    at: u64,
    bytes: Vec<u8>,
}

#[derive(Clone, Debug, Default)]
struct Inode {
    durable: Vec<u8>,
    cached: Vec<u8>,
    pending: Vec<PendingWrite>,
}

#[derive(Clone, Debug)]
enum DirOp {
    Link(String, usize),
    Unlink(String),
    Rename(String, String),
}

/// What may go wrong next.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// This many operations from now, the machine stops.
    pub crash_in: Option<u64>,
    /// The next write fails.
    pub fail_write: bool,
    /// The next sync fails.
    pub fail_sync: bool,
}

#[derive(Clone, Debug, Default)]
struct DiskState {
    inodes: Vec<Inode>,
    durable_dir: BTreeMap<String, usize>,
    dir: BTreeMap<String, usize>,
    pending_dir: Vec<DirOp>,
    faults: Faults,
    crashed: bool,
    operations: u64,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct SimDisk(Arc<Mutex<DiskState>>);

/// What a crash may choose: how many directory operations survive, and how many bytes of each pending write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choices {
    /// Directory operations pending.
    pub dir: usize,
    /// Length of each pending write, in order, over all files.
    pub writes: Vec<usize>,
}

impl SimDisk {
    fn lock(&self) -> std::sync::MutexGuard<'_, DiskState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Arms faults.
    pub fn set_faults(&self, faults: Faults) {
        self.lock().faults = faults;
    }

    /// Whether the machine has stopped.
    #[must_use]
    pub fn has_crashed(&self) -> bool {
        self.lock().crashed
    }

    /// How many operations there were, for enumerating crash points.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.lock().operations
    }

    /// What a crash at this moment could choose.
    #[must_use]
    pub fn choices(&self) -> Choices {
        let inner = self.lock();
        Choices {
            dir: inner.pending_dir.len(),
            writes: inner.inodes.iter().flat_map(|inode| inode.pending.iter().map(|write| write.bytes.len())).collect(),
        }
    }

    /// The disk after a power failure: `dir` directory operations survive, and of each pending write so many bytes.
    #[must_use]
    pub fn after_crash(&self, dir: usize, kept: &[usize]) -> Self {
        let inner = self.lock();
        let mut next =
            DiskState { inodes: inner.inodes.clone(), durable_dir: inner.durable_dir.clone(), ..DiskState::default() };
        for op in inner.pending_dir.iter().take(dir) {
            apply(&mut next.durable_dir, op);
        }
        next.dir = next.durable_dir.clone();
        let mut kept = kept.iter();
        for inode in &mut next.inodes {
            for write in std::mem::take(&mut inode.pending) {
                let length = kept.next().copied().unwrap_or(0).min(write.bytes.len());
                write_into(&mut inode.durable, &write.bytes[..length], write.at);
            }
            inode.cached = inode.durable.clone();
        }
        Self(Arc::new(Mutex::new(next)))
    }

    /// The disk after a process was killed and the machine went on: everything written is there, not all durable.
    #[must_use]
    pub fn after_kill(&self) -> Self {
        let mut inner = self.lock().clone();
        inner.faults = Faults::default();
        inner.crashed = false;
        Self(Arc::new(Mutex::new(inner)))
    }

    /// The bytes of a file as they are now.
    #[must_use]
    pub fn bytes(&self, name: &str) -> Vec<u8> {
        let inner = self.lock();
        inner.dir.get(name).map_or_else(Vec::new, |inode| inner.inodes[*inode].cached.clone())
    }

    /// Another disk, with everything durable and one file replaced.
    #[must_use]
    pub fn with_bytes(&self, name: &str, bytes: Vec<u8>) -> Self {
        let mut inner = self.lock().clone();
        inner.faults = Faults::default();
        inner.crashed = false;
        for inode in &mut inner.inodes {
            inode.pending.clear();
            inode.durable = inode.cached.clone();
        }
        if let Some(inode) = inner.dir.get(name).copied() {
            inner.inodes[inode].durable = bytes.clone();
            inner.inodes[inode].cached = bytes;
        }
        Self(Arc::new(Mutex::new(inner)))
    }

    /// Names of the files.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.lock().dir.keys().cloned().collect()
    }
}

impl DiskState {
    /// Every operation passes here: the machine may stop before it.
    fn operate(&mut self) -> io::Result<()> {
        if self.crashed {
            return Err(io::Error::other("the machine has stopped"));
        }
        self.operations += 1;
        if let Some(left) = &mut self.faults.crash_in {
            if *left == 0 {
                self.crashed = true;
                return Err(io::Error::other("the machine has stopped"));
            }
            *left -= 1;
        }
        Ok(())
    }
}

fn apply(dir: &mut BTreeMap<String, usize>, op: &DirOp) {
    match op {
        DirOp::Link(name, inode) => {
            dir.insert(name.clone(), *inode);
        }
        DirOp::Unlink(name) => {
            dir.remove(name);
        }
        DirOp::Rename(from, to) => {
            if let Some(inode) = dir.remove(from) {
                dir.insert(to.clone(), inode);
            }
        }
    }
}

fn write_into(bytes: &mut Vec<u8>, piece: &[u8], at: u64) {
    if piece.is_empty() {
        return;
    }
    let end = at as usize + piece.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[at as usize..end].copy_from_slice(piece);
}

impl Storage for SimDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        let inner = self.lock();
        if inner.crashed {
            return Err(io::Error::other("the machine has stopped"));
        }
        Ok(inner.dir.keys().cloned().collect())
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn File>> {
        let inner = self.lock();
        let inode = *inner.dir.get(name).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        drop(inner);
        Ok(Box::new(SimFile { disk: self.clone(), inode }))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn File>> {
        let mut inner = self.lock();
        inner.operate()?;
        if inner.dir.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        inner.inodes.push(Inode::default());
        let inode = inner.inodes.len() - 1;
        inner.dir.insert(name.into(), inode);
        inner.pending_dir.push(DirOp::Link(name.into(), inode));
        drop(inner);
        Ok(Box::new(SimFile { disk: self.clone(), inode }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut inner = self.lock();
        inner.operate()?;
        let op = DirOp::Rename(from.into(), to.into());
        if !inner.dir.contains_key(from) {
            return Err(io::ErrorKind::NotFound.into());
        }
        apply(&mut inner.dir, &op);
        inner.pending_dir.push(op);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut inner = self.lock();
        inner.operate()?;
        inner.dir.remove(name).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        inner.pending_dir.push(DirOp::Unlink(name.into()));
        Ok(())
    }

    fn sync_dir(&self) -> io::Result<()> {
        let mut inner = self.lock();
        inner.operate()?;
        inner.pending_dir.clear();
        inner.durable_dir = inner.dir.clone();
        Ok(())
    }
}

struct SimFile {
    disk: SimDisk,
    inode: usize,
}

impl File for SimFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.lock().inodes[self.inode].cached.len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        let inner = self.disk.lock();
        let bytes = inner.inodes[self.inode].cached.get(at as usize..).unwrap_or(&[]);
        let count = bytes.len().min(buffer.len());
        buffer[..count].copy_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn write_at(&mut self, bytes: &[u8], at: u64) -> io::Result<()> {
        let mut inner = self.disk.lock();
        // A machine that stops in the middle of a write leaves it pending, to be torn anywhere.
        let stopping = inner.faults.crash_in == Some(0);
        let result = inner.operate();
        if result.is_ok() || stopping {
            if std::mem::take(&mut inner.faults.fail_write) {
                // Half of it may have got there.
                let half = bytes[..bytes.len() / 2].to_vec();
                write_into(&mut inner.inodes[self.inode].cached, &half, at);
                inner.inodes[self.inode].pending.push(PendingWrite { at, bytes: half });
                return Err(io::Error::from_raw_os_error(28));
            }
            let inode = &mut inner.inodes[self.inode];
            write_into(&mut inode.cached, bytes, at);
            inode.pending.push(PendingWrite { at, bytes: bytes.to_vec() });
        }
        result
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut inner = self.disk.lock();
        inner.operate()?;
        if std::mem::take(&mut inner.faults.fail_sync) {
            inner.inodes[self.inode].pending.clear();
            return Err(io::Error::from_raw_os_error(5));
        }
        let inode = &mut inner.inodes[self.inode];
        for write in std::mem::take(&mut inode.pending) {
            write_into(&mut inode.durable, &write.bytes, write.at);
        }
        Ok(())
    }
}
