//! Moments between the writer and a locked that no outsider can bring about at will.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_core::{Acquire, Command, Mode, Reply, Secret, Want};

use super::journal::Sizes;
use super::newsroom::Newsroom;
use super::storage::{Directory, Storage};
use super::till::CompletionQueue;
use super::writer::{Counter, ReplyTo, Writer};
use super::{Notice, Options, Started, start};
use crate::clock::SystemClock;

/// An engine that nobody runs yet, on a real directory.
fn counter(dir: &std::path::Path, sizes: Sizes) -> (Arc<Counter>, Arc<dyn Storage>) {
    let storage: Arc<dyn Storage> = Arc::new(Directory::open(dir).unwrap());
    let options = Options { sizes, clock: SystemClock::shared(), ..Options::default() };
    let Started { desk, clock, journal, identity } = start(&storage, &options, Box::new(|| 7), |_, _| {}).unwrap();
    (Arc::new(Counter::new(desk, clock, Newsroom::new(1, 0), journal, identity)), storage)
}

fn take(counter: &Counter, completions: &Arc<CompletionQueue>, name: &str) {
    let mut state = counter.lock();
    let waiter_id = state.desk.waiter_id();
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
    let reply = state.desk.submit(Command::Acquire(claim), to, counter.clock.now());
    assert!(reply.is_none(), "a grant waits for the disk");
}

fn run(counter: &Arc<Counter>, storage: Arc<dyn Storage>) -> (std::thread::JoinHandle<()>, Arc<Mutex<Vec<Notice>>>) {
    let heard: Arc<Mutex<Vec<Notice>>> = Arc::default();
    let notices = heard.clone();
    let notices = Arc::new(move |notice| notices.lock().unwrap().push(notice));
    let writer = Writer { counter: counter.clone(), storage, segment: 128 << 10, notices, lock: None };
    (std::thread::spawn(move || writer.run()), heard)
}

/// Goal: a locked that comes before the writer has begun leaves its batch to it: it could not ask the keeper for the
/// next segment, and would stop a sound engine.
/// Method: a first segment that is more than half full after one batch; write before anybody runs; then let it run.
#[test]
fn a_till_before_the_writer_leaves_it_to_the_writer() {
    let dir = tempfile::tempdir().unwrap();
    let (counter, storage) = counter(dir.path(), Sizes { segment: 256, ..Sizes::default() });
    let completions = CompletionQueue::new(|| {});
    take(&counter, &completions, "seat");
    assert!(!counter.write_here());
    let (writer, heard) = run(&counter, storage);
    counter.stop();
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
    let (counter, storage) = counter(dir.path(), Sizes::default());
    let (writer, heard) = run(&counter, storage);
    let press = loop {
        let press = counter.press.lock().unwrap();
        if press.jobs.is_some() {
            break press;
        }
    };
    counter.stop();
    // Time for the writer to come to the press; should it be late, it learns of the failure before.
    #[expect(clippy::disallowed_methods, reason = "a real thread must get somewhere, and nothing says when it has")]
    std::thread::sleep(Duration::from_millis(50));
    let point = press.journal.point().sequence;
    counter.fail(&io::Error::other("no more disk"));
    drop(press);
    writer.join().unwrap();
    assert_eq!(counter.press.lock().unwrap().journal.point().sequence, point, "a frame was written after the failure");
    let heard = heard.lock().unwrap();
    assert!(matches!(&heard[..], [Notice::Failed(why)] if why.contains("no more disk")), "{heard:?}");
}
