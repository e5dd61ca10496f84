//! A real disk with a gate before every sync: a batch can be held up between its decision and its answers.

use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use leasehold::engine::embedded::storage::{Directory, File, Storage};
use leasehold::testkit::ManualClock;

/// What stands before the syncs.
pub struct SyncBarrier {
    state: Mutex<State>,
    turned: Condvar,
    clock: ManualClock,
    /// How long a sync takes by that clock.
    takes: Duration,
}

#[derive(Default)]
struct State {
    closed: bool,
    /// Threads that want to sync, and stand before the closed gate.
    held: usize,
}

impl SyncBarrier {
    /// An open gate before syncs that take so long.
    pub fn new(clock: ManualClock, takes: Duration) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), turned: Condvar::new(), clock, takes })
    }

    pub fn close(&self) {
        self.state.lock().unwrap().closed = true;
    }

    pub fn open(&self) {
        self.state.lock().unwrap().closed = false;
        self.turned.notify_all();
    }

    /// Whether a batch is held up.
    pub fn holds_one(&self) -> bool {
        self.state.lock().unwrap().held > 0
    }

    fn pass(&self) {
        // The keeper prepares files that nobody waits for.
        if std::thread::current().name() == Some("leasehold-keeper") {
            return;
        }
        let mut state = self.state.lock().unwrap();
        state.held += usize::from(state.closed);
        while state.closed {
            state = self.turned.wait(state).unwrap();
        }
        state.held = 0;
        drop(state);
        self.clock.advance(self.takes);
    }
}

/// The disk.
pub struct BarrierDisk {
    disk: Directory,
    gate: Arc<SyncBarrier>,
}

impl BarrierDisk {
    pub fn new(path: &Path, gate: Arc<SyncBarrier>) -> Arc<Self> {
        Arc::new(Self { disk: Directory::open(path).unwrap(), gate })
    }

    fn gated(&self, file: Box<dyn File>) -> Box<dyn File> {
        Box::new(BarrierFile { file, gate: self.gate.clone() })
    }
}

impl Storage for BarrierDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        self.disk.list()
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn File>> {
        self.disk.open(name).map(|file| self.gated(file))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn File>> {
        self.disk.create(name).map(|file| self.gated(file))
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
    gate: Arc<SyncBarrier>,
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
        self.gate.pass();
        self.file.sync()
    }
}
