//! Moments between the writer and a locked that no outsider can bring about at will.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::{Acquire, Command, Mode, Reply, Secret, Want};

use super::super::events::EventLog;
use super::super::journal::JournalSizes;
use super::super::storage::{Directory, Storage};
use super::super::{Notice, Options, Started, start};
use super::locked::CompletionQueue;
use super::writer_thread::{EngineShared, ReplyTo, WriterThread};
use crate::clock::SystemClock;

/// An engine that nobody runs yet, on a real directory.
fn shared(dir: &std::path::Path, sizes: JournalSizes) -> (Arc<EngineShared>, Arc<dyn Storage>) {
    let storage: Arc<dyn Storage> = Arc::new(Directory::open(dir).unwrap());
    let options = Options { sizes, clock: SystemClock::shared(), ..Options::default() };
    let Started { group, clock, journal, identity } = start(&storage, &options, Box::new(|| 7), |_, _| {}).unwrap();
    (Arc::new(EngineShared::new(group, clock, EventLog::new(1, 0), journal, identity)), storage)
}

fn take(shared: &EngineShared, completions: &Arc<CompletionQueue>, name: &str) {
    let mut state = shared.lock();
    let waiter_id = state.group.waiter_id();
    let claim = Acquire {
        waiter_id,
        wants: &[Want { name, mode: Mode::Exclusive }],
        ttl_ms: 60_000,
        wait_ms: 0,
        max_hold_ms: None,
        delay_ms: 0,
        holder: "locked",
        request: None,
        secret: Secret::new([1; 16]),
        principal: "",
        value: None,
    };
    let to = || ReplyTo::CompletionQueue { completions: completions.clone(), tag: 1 };
    let reply = state.group.submit(Command::Acquire(claim), to, shared.clock.now());
    assert!(reply.is_none(), "a grant waits for the disk");
}

fn run(
    shared: &Arc<EngineShared>,
    storage: Arc<dyn Storage>,
) -> (std::thread::JoinHandle<()>, Arc<Mutex<Vec<Notice>>>) {
    let heard: Arc<Mutex<Vec<Notice>>> = Arc::default();
    let notices = heard.clone();
    let notices = Arc::new(move |notice| notices.lock().unwrap().push(notice));
    let writer = WriterThread { shared: shared.clone(), storage, segment: 128 << 10, notices, lock: None };
    (std::thread::spawn(move || writer.run()), heard)
}

/// Goal: a locked that comes before the writer has begun leaves its batch to it: it could not ask the keeper for the
/// next segment, and would stop a sound engine.
/// Method: a first segment that is more than half full after one batch; write before anybody runs; then let it run.
#[test]
fn a_till_before_the_writer_leaves_it_to_the_writer() {
    let dir = tempfile::tempdir().unwrap();
    let (shared, storage) = shared(dir.path(), JournalSizes { segment: 256, ..JournalSizes::default() });
    let completions = CompletionQueue::new(|| {});
    take(&shared, &completions, "seat");
    assert!(!shared.write_here());
    let (writer, heard) = run(&shared, storage);
    shared.stop();
    writer.join().unwrap();
    let mut answers = Vec::new();
    completions.take(&mut answers);
    assert!(matches!(answers[..], [(1, Ok(Reply::Granted(_)))]), "{answers:?}");
    assert_eq!(*heard.lock().unwrap(), []);
}

/// Goal: after a locked has found the disk broken, a writer that is about to close writes no closing frame over it.
/// Method: hold the press as that locked does while the engine is asked to close, then fail.
#[test]
fn a_close_after_a_till_failed_is_no_close() {
    let dir = tempfile::tempdir().unwrap();
    let (shared, storage) = shared(dir.path(), JournalSizes::default());
    let (writer, heard) = run(&shared, storage);
    let journal_writer = loop {
        let journal_writer = shared.journal_writer.lock().unwrap();
        if journal_writer.jobs.is_some() {
            break journal_writer;
        }
    };
    shared.stop();
    // Time for the writer to come to the press; should it be late, it learns of the failure before.
    #[expect(clippy::disallowed_methods, reason = "a real thread must get somewhere, and nothing says when it has")]
    std::thread::sleep(Duration::from_millis(50));
    let point = journal_writer.journal.point().sequence;
    shared.fail(&io::Error::other("no more disk"));
    drop(journal_writer);
    writer.join().unwrap();
    assert_eq!(
        shared.journal_writer.lock().unwrap().journal.point().sequence,
        point,
        "a frame was written after the failure"
    );
    let heard = heard.lock().unwrap();
    assert!(matches!(&heard[..], [Notice::Failed(why)] if why.contains("no more disk")), "{heard:?}");
}
