//! Interleavings of the writer thread and a server thread that no test outside the engine can force.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::{Acquire, Command, Reply, Secret, WaiterId, Want};

use super::super::engine::Embedded;
use super::super::events::EventLog;
use super::super::journal::JournalSizes;
use super::super::options::{Notice, Options};
use super::super::start::{Started, start};
use super::super::storage::{Directory, Storage};
use super::completion::{CompletionQueue, ReplyTo};
use super::journal_writer::{JournalWriter, try_write_on_this_thread};
use super::shared::EngineShared;
use super::writer_thread::WriterThread;
use crate::clock::SystemClock;

/// An engine on a real directory, whose threads do not run yet.
struct IdleEngine {
    shared: Arc<EngineShared>,
    journal_writer: Arc<Mutex<JournalWriter>>,
    storage: Arc<dyn Storage>,
    notices: Arc<Mutex<Vec<Notice>>>,
}

impl IdleEngine {
    fn open(dir: &Path, sizes: JournalSizes) -> Self {
        let storage: Arc<dyn Storage> = Arc::new(Directory::open(dir).unwrap());
        let options = Options { sizes, clock: SystemClock::shared(), ..Options::default() };
        let Started { group, clock, journal, identity } = start(&storage, &options, Box::new(|| 7), |_, _| {}).unwrap();
        let shared = EngineShared::new(group, clock, EventLog::new(1, 0), journal.reserve_mark(), identity);
        let journal_writer = Arc::new(Mutex::new(JournalWriter::new(journal)));
        Self { shared: Arc::new(shared), journal_writer, storage, notices: Arc::default() }
    }

    fn start_threads(&self, segment_bytes: u64) -> std::thread::JoinHandle<()> {
        let notices = self.notices.clone();
        let writer = WriterThread {
            shared: self.shared.clone(),
            journal_writer: self.journal_writer.clone(),
            storage: self.storage.clone(),
            segment_bytes,
            notices: Arc::new(move |notice| notices.lock().unwrap().push(notice)),
            lock: None,
        };
        std::thread::spawn(move || writer.run())
    }

    fn submit_acquire(&self, completions: &Arc<CompletionQueue>, name: &str) {
        let mut state = self.shared.lock();
        let waiter_id = state.group.new_waiter_id();
        let wants = [Want::exclusive(name)];
        let claim = claim(&wants, waiter_id, Secret::new([1; 16]));
        let reply_to = || ReplyTo::CompletionQueue { completions: completions.clone(), tag: 1 };
        let reply = state.group.submit(Command::Acquire(claim), reply_to, self.shared.clock.now());
        assert!(reply.is_none(), "a grant waits for the disk");
    }
}

fn claim<'a>(wants: &'a [Want<'a>], waiter_id: WaiterId, secret: Secret) -> Acquire<'a> {
    Acquire::new(waiter_id, wants, 60_000, "ada", secret)
}

/// Goal: a server thread that writes before the engine's threads run leaves its batch to the writer thread. It could
/// not ask the maintenance thread for the next segment, and would stop a sound engine. Method: a first segment that is
/// more than half full after one batch; write before the threads run; then start them.
#[test]
fn a_write_before_the_threads_run_is_left_to_the_writer_thread() {
    let dir = tempfile::tempdir().unwrap();
    let engine = IdleEngine::open(dir.path(), JournalSizes { segment: 256, ..JournalSizes::default() });
    let completions = CompletionQueue::new(|| {});
    engine.submit_acquire(&completions, "seat");
    assert!(!try_write_on_this_thread(&engine.journal_writer, &engine.shared));
    let thread = engine.start_threads(128 << 10);
    engine.shared.stop();
    thread.join().unwrap();
    let mut answers = Vec::new();
    completions.take(&mut answers);
    assert!(matches!(answers[..], [(1, Ok(Reply::Granted(_)))]), "{answers:?}");
    assert_eq!(*engine.notices.lock().unwrap(), []);
}

/// Goal: the same by [`Embedded::lock_for_batch`], with many leases.
/// Method: an engine whose threads start late, and a batch that fills more than half of a segment, so that the
/// maintenance thread would be asked for the next one.
#[test]
fn a_locked_batch_before_the_threads_run_is_left_to_the_writer_thread() {
    let dir = tempfile::tempdir().unwrap();
    let sizes = JournalSizes { segment: 64 << 10, ..JournalSizes::default() };
    let idle = IdleEngine::open(dir.path(), sizes);
    let engine = Embedded {
        shared: idle.shared.clone(),
        journal_writer: idle.journal_writer.clone(),
        writer_thread: Mutex::new(None),
        dir: None,
    };
    let completions = CompletionQueue::new(|| {});
    let mut locked = engine.lock_for_batch();
    for number in 0..200 {
        let name = format!("{number}-{}", "n".repeat(200));
        let wants = [Want::exclusive(&name)];
        let claim = claim(&wants, WaiterId(0), locked.secret());
        locked.acquire(claim, &completions, number).expect("it runs");
    }
    locked.write();
    assert!(idle.shared.lock().lifecycle.may_write() && completions.is_empty(), "nothing was written, nothing failed");
    *engine.writer_thread.lock().unwrap() = Some(idle.start_threads(sizes.segment));
    drop(engine); // writes what was gathered
    let mut answers = Vec::new();
    completions.take(&mut answers);
    assert_eq!(answers.iter().filter(|(_, answer)| matches!(answer, Ok(Reply::Granted(_)))).count(), 200);
}

/// Goal: after a server thread has found the disk broken, a writer thread that is about to close writes no closing
/// frame. Method: hold the journal writer's lock as that server thread does while the engine is asked to close, then
/// fail.
#[test]
fn a_close_after_a_failed_write_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let engine = IdleEngine::open(dir.path(), JournalSizes::default());
    let thread = engine.start_threads(128 << 10);
    let writer = loop {
        let writer = engine.journal_writer.lock().unwrap();
        if writer.jobs.is_some() {
            break writer;
        }
    };
    engine.shared.stop();
    // Time for the writer thread to come to the lock; should it be late, it learns of the failure before.
    #[expect(clippy::disallowed_methods, reason = "a real thread must get somewhere, and nothing says when it has")]
    std::thread::sleep(Duration::from_millis(50));
    let sequence = writer.journal.position().sequence;
    engine.shared.fail(&io::Error::other("no more disk"));
    drop(writer);
    thread.join().unwrap();
    let written = engine.journal_writer.lock().unwrap().journal.position().sequence;
    assert_eq!(written, sequence, "a frame was written after the failure");
    let notices = engine.notices.lock().unwrap();
    assert!(matches!(&notices[..], [Notice::Failed(why)] if why.contains("no more disk")), "{notices:?}");
}
