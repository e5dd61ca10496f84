//! The fences over a real journal, on a disk that waits or fails on order.

use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use leasehold::engine::embedded::journal::JournalSizes;
use leasehold::engine::embedded::storage::{Directory, File, Storage};
use leasehold::fence::FenceToken;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::fences::{FenceTimes, Fences, Flight};
use super::machine::{GateRefusal, OnStuck};
use super::memory::{MemoryError, MemoryWriter, SIZES};
use super::metrics::GateMetrics;
use super::run::start_writer;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SyncMode {
    Works,
    Waits,
    Fails,
}

#[derive(Clone)]
struct SyncSwitch(Arc<(Mutex<SyncMode>, Condvar)>);

impl SyncSwitch {
    fn new() -> Self {
        Self(Arc::new((Mutex::new(SyncMode::Works), Condvar::new())))
    }

    fn set(&self, mode: SyncMode) {
        *self.0.0.lock().unwrap() = mode;
        self.0.1.notify_all();
    }

    fn pass(&self) -> io::Result<()> {
        let mode = self.0.0.lock().unwrap();
        let mode = self.0.1.wait_while(mode, |mode| *mode == SyncMode::Waits).unwrap();
        if *mode == SyncMode::Fails { Err(io::Error::other("a sync that fails on order")) } else { Ok(()) }
    }
}

/// A directory whose syncs obey a switch.
struct SwitchedDisk {
    directory: Directory,
    switch: SyncSwitch,
}

struct SwitchedFile {
    file: Box<dyn File>,
    switch: SyncSwitch,
}

impl SwitchedDisk {
    fn wrap(&self, file: Box<dyn File>) -> Box<dyn File> {
        Box::new(SwitchedFile { file, switch: self.switch.clone() })
    }
}

impl Storage for SwitchedDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        self.directory.list()
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn File>> {
        self.directory.open(name).map(|file| self.wrap(file))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn File>> {
        self.directory.create(name).map(|file| self.wrap(file))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.directory.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.directory.remove(name)
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.directory.sync_dir()
    }
}

impl File for SwitchedFile {
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
        self.switch.pass()?;
        self.file.sync()
    }
}

/// Fences over a disk with a switch.
struct Rig {
    fences: Arc<Fences>,
    switch: SyncSwitch,
    writer: std::thread::JoinHandle<()>,
    failure: oneshot::Receiver<io::Error>,
}

impl Rig {
    fn open(dir: &Path, sizes: JournalSizes) -> Self {
        let switch = SyncSwitch::new();
        let disk = SwitchedDisk { directory: Directory::open(dir).unwrap(), switch: switch.clone() };
        let (writer, machine) = MemoryWriter::open_on(Arc::new(disk), OnStuck::Refuse, sizes).unwrap();
        let times = FenceTimes { drain: Duration::from_secs(30), settle: Duration::ZERO };
        let fences = Fences::new(machine, times, OnStuck::Refuse, Arc::new(GateMetrics::default()));
        let (writer, failure) = start_writer(writer, fences.clone()).unwrap();
        Self { fences, switch, writer, failure }
    }

    async fn enter(&self, token: u64, resource: &str) -> Result<Flight, GateRefusal> {
        self.fences.enter(&[resource.into()], shown(token)).await
    }

    fn close(self) {
        self.fences.close();
        self.writer.join().unwrap();
    }
}

fn shown(token: u64) -> FenceToken {
    token.to_string().parse().unwrap()
}

/// Goal: nothing goes on before its token is synced, a second request of the same lease neither; and refusals do not
/// wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_admitted_before_its_token_is_durable() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::open(dir.path(), SIZES);
    drop(rig.enter(1, "a").await.unwrap());
    rig.switch.set(SyncMode::Waits);
    {
        let (first, second) = (rig.enter(2, "a"), rig.enter(2, "a"));
        tokio::pin!(first, second);
        assert!(timeout(Duration::from_millis(100), &mut first).await.is_err());
        assert!(timeout(Duration::from_millis(100), &mut second).await.is_err());
        let stale = rig.enter(1, "a").await.err();
        assert!(matches!(stale, Some(GateRefusal::Rule { .. })), "{stale:?}");
        rig.switch.set(SyncMode::Works);
        let flights = (first.await.unwrap(), second.await.unwrap());
        assert_eq!(rig.fences.sizes(), (1, 2));
        drop(flights);
    }
    rig.close();
}

/// Goal: a failed sync is final: what waits is refused as unavailable, what comes too, and the gate learns of it. What
/// was durable before is there after a restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_sync_stops_the_gate() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::open(dir.path(), SIZES);
    drop(rig.enter(7, "a").await.unwrap());
    rig.switch.set(SyncMode::Fails);
    assert_eq!(rig.enter(8, "a").await.err(), Some(GateRefusal::Failed));
    assert!(rig.fences.has_failed());
    rig.switch.set(SyncMode::Works);
    // Even the lease that is durable: the memory of what comes next is gone.
    assert_eq!(rig.enter(8, "a").await.err(), Some(GateRefusal::Failed));
    assert_eq!(rig.enter(7, "b").await.err(), Some(GateRefusal::Failed));
    let Rig { failure, writer, .. } = rig;
    assert_eq!(failure.await.unwrap().to_string(), "a sync that fails on order");
    writer.join().unwrap();
    let rig = Rig::open(dir.path(), SIZES);
    assert!(matches!(rig.enter(6, "a").await.err(), Some(GateRefusal::Rule { .. })));
    drop(rig.enter(8, "a").await.unwrap());
    rig.close();
}

/// Goal: requests under way have a limit, those that are refused leave nothing, and room comes back when one leaves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_under_way_are_limited() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::open(dir.path(), SIZES);
    let mut flights = vec![rig.enter(1, "a").await.unwrap()];
    while flights.len() < 20_000 {
        flights.push(rig.enter(1, "a").await.unwrap());
    }
    for _ in 0..3 {
        assert_eq!(rig.enter(1, "a").await.err(), Some(GateRefusal::Full));
        // Not even a higher token is remembered.
        assert_eq!(rig.enter(2, "b").await.err(), Some(GateRefusal::Full));
    }
    assert_eq!(rig.fences.sizes(), (1, 20_000));
    flights.pop();
    drop(rig.enter(1, "a").await.unwrap());
    drop(flights);
    assert_eq!(rig.fences.sizes(), (1, 0));
    rig.close();
}

/// Goal: snapshots bound the journal, and a restart remembers every resource through them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshots_bound_the_journal_and_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let sizes = JournalSizes { segment: 8 << 10, snapshot_after: 16 << 10, tokens: 1 };
    let rig = Rig::open(dir.path(), sizes);
    // Raised once: soon only a snapshot knows of it.
    drop(rig.enter(1, "once").await.unwrap());
    for token in 1..=40 {
        for resource in 0..20 {
            drop(rig.enter(token * 100 + resource, &format!("seat/{resource}")).await.unwrap());
        }
    }
    rig.close();
    let names = Directory::open(dir.path()).unwrap().list().unwrap();
    let count = |prefix: &str| names.iter().filter(|name| name.starts_with(prefix)).count();
    assert_eq!(count("snapshot-"), 1, "{names:?}");
    assert!(count("journal-") <= 8, "{names:?}");
    let rig = Rig::open(dir.path(), sizes);
    assert_eq!(rig.fences.sizes(), (21, 0));
    let mut kept = Vec::new();
    rig.fences.copy_fences(0, 100, |resource, token| kept.push((resource.to_owned(), token.token.get())));
    kept.sort_by_key(|(_, token)| *token);
    let seats = (0..20).map(|at| (format!("seat/{at}"), 4_000 + at));
    let expected: Vec<_> = std::iter::once(("once".to_owned(), 1)).chain(seats).collect();
    assert_eq!(kept, expected);
    rig.close();
}

/// Goal: a damaged memory is refused, not forgotten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_memory_is_not_opened() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::open(dir.path(), SIZES);
    for token in 1..10 {
        drop(rig.enter(token, "a").await.unwrap());
    }
    rig.close();
    let name =
        Directory::open(dir.path()).unwrap().list().unwrap().into_iter().find(|name| name.starts_with("journal-"));
    let path = dir.path().join(name.unwrap());
    let mut bytes = std::fs::read(&path).unwrap();
    // In the payload of the second frame: a segment begins with 64 bytes, a frame has 64 and then its payload.
    bytes[64 + 128 + 64 + 1] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let disk = Arc::new(Directory::open(dir.path()).unwrap());
    let opened = MemoryWriter::open_on(disk, OnStuck::Refuse, SIZES).err();
    assert!(matches!(opened, Some(MemoryError::Damaged(_))), "{opened:?}");
}

/// Goal: a crash in the middle of the very first write leaves a memory that opens, and forgets only that write.
#[test]
fn a_torn_first_write_is_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let open = || MemoryWriter::open_on(Arc::new(Directory::open(dir.path()).unwrap()), OnStuck::Refuse, SIZES);
    drop(open().unwrap());
    let names = Directory::open(dir.path()).unwrap().list().unwrap();
    let name = names.into_iter().find(|name| name.starts_with("journal-")).unwrap();
    let path = dir.path().join(name);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[64..100].fill(7);
    std::fs::write(&path, bytes).unwrap();
    let (_, machine) = open().unwrap();
    assert_eq!(machine.fence_count(), 0);
}
