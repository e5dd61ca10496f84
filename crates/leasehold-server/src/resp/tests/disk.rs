//! A real disk with a barrier before every sync: a test can stop a batch between its decision and its replies.

use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use leasehold::engine::embedded::storage::{Directory, File, Storage};
use leasehold::testkit::ManualClock;

/// While it is closed, no sync begins.
pub struct SyncBarrier {
    state: Mutex<BarrierState>,
    opened: Condvar,
    clock: ManualClock,
    /// How long a sync takes by that clock.
    sync_takes: Duration,
}

#[derive(Default)]
struct BarrierState {
    closed: bool,
    /// Threads that wait for the closed barrier.
    held: usize,
}

impl SyncBarrier {
    /// An open barrier. By `clock` each sync takes this long.
    pub fn new(clock: ManualClock, sync_takes: Duration) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), opened: Condvar::new(), clock, sync_takes })
    }

    pub fn close(&self) {
        self.state.lock().unwrap().closed = true;
    }

    pub fn open(&self) {
        self.state.lock().unwrap().closed = false;
        self.opened.notify_all();
    }

    /// Whether a sync waits.
    pub fn holds_a_sync(&self) -> bool {
        self.state.lock().unwrap().held > 0
    }

    fn wait(&self) {
        // No batch waits for the files that this thread prepares.
        if std::thread::current().name() == Some("leasehold-keeper") {
            return;
        }
        let mut state = self.state.lock().unwrap();
        state.held += usize::from(state.closed);
        while state.closed {
            state = self.opened.wait(state).unwrap();
        }
        state.held = 0;
        drop(state);
        self.clock.advance(self.sync_takes);
    }
}

/// A directory whose files sync behind the barrier.
pub struct BarrierDisk {
    disk: Directory,
    barrier: Arc<SyncBarrier>,
}

impl BarrierDisk {
    pub fn new(path: &Path, barrier: Arc<SyncBarrier>) -> Arc<Self> {
        Arc::new(Self { disk: Directory::open(path).unwrap(), barrier })
    }

    fn with_barrier(&self, file: Box<dyn File>) -> Box<dyn File> {
        Box::new(BarrierFile { file, barrier: self.barrier.clone() })
    }
}

impl Storage for BarrierDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        self.disk.list()
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn File>> {
        self.disk.open(name).map(|file| self.with_barrier(file))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn File>> {
        self.disk.create(name).map(|file| self.with_barrier(file))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.disk.sync_dir()
    }
}

struct BarrierFile {
    file: Box<dyn File>,
    barrier: Arc<SyncBarrier>,
}

impl File for BarrierFile {
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
        self.barrier.wait();
        self.file.sync()
    }
}
