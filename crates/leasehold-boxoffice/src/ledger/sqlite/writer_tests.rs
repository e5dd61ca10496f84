//! Tests of the writer and syncer threads: when jobs are completed, and what happens when a job, a commit or a sync fails.

use std::fs::{File, OpenOptions};
use std::sync::Arc;
use std::sync::mpsc;

use leasehold::testkit::ManualClock;
use rusqlite::Connection;

use super::clock::LedgerClock;
use super::writer::{CommitOutcome, JobRun, WriterHandle, WriterJob};

type JobReport = (&'static str, Result<(), String>);

/// A job of a test: runs SQL, and reports its outcome.
struct SqlJob {
    name: &'static str,
    sql: &'static str,
    reports: Option<mpsc::Sender<JobReport>>,
    /// Held up here while it runs, if somebody wants it to be.
    gate: Option<mpsc::Receiver<()>>,
}

impl WriterJob for SqlJob {
    fn run(&mut self, db: &Connection, _: &LedgerClock) -> JobRun {
        if let Some(gate) = self.gate.take() {
            let _ = gate.recv();
        }
        if db.execute_batch(self.sql).is_ok() { JobRun::Complete } else { JobRun::PartiallyApplied }
    }

    fn complete(mut self: Box<Self>, fate: &CommitOutcome) {
        let fate = match fate {
            CommitOutcome::Durable => Ok(()),
            CommitOutcome::RolledBack(why) => Err(format!("undone: {why}")),
            CommitOutcome::Unknown(why) => Err(format!("unknown: {why}")),
        };
        self.send_report(fate);
    }
}

impl SqlJob {
    fn send_report(&mut self, fate: Result<(), String>) {
        if let Some(reports) = self.reports.take() {
            let _ = reports.send((self.name, fate));
        }
    }
}

/// A job that is dropped reports an unknown outcome.
impl Drop for SqlJob {
    fn drop(&mut self) {
        self.send_report(Err("unknown: it was dropped".into()));
    }
}

struct WriterFixture {
    writer: WriterHandle,
    reports: mpsc::Receiver<JobReport>,
    report: mpsc::Sender<JobReport>,
    time: Arc<LedgerClock>,
    dir: tempfile::TempDir,
}

impl WriterFixture {
    /// A writer over a fresh file. What it is given for its WAL may be another file, or none that can be synced.
    fn new(wal: Option<File>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let db = Connection::open(dir.path().join("x.db")).unwrap();
        db.execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; CREATE TABLE t (x INTEGER PRIMARY KEY);
             CREATE TABLE clock (id INTEGER PRIMARY KEY, boot BLOB, boottime INTEGER, moment INTEGER)",
        )
        .unwrap();
        let wal = wal.unwrap_or_else(|| OpenOptions::new().write(true).open(dir.path().join("x.db-wal")).unwrap());
        let time = Arc::new(LedgerClock::open(&db, ManualClock::new().shared()).unwrap());
        let writer = WriterHandle::start(db, wal, time.clone()).unwrap();
        let (report, reports) = mpsc::channel();
        Self { writer, reports, report, time, dir }
    }

    fn send(&self, name: &'static str, sql: &'static str, gate: Option<mpsc::Receiver<()>>) -> bool {
        self.writer.send(Box::new(SqlJob { name, sql, reports: Some(self.report.clone()), gate }))
    }

    fn count(&self) -> u64 {
        let db = Connection::open(self.dir.path().join("x.db")).unwrap();
        db.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).unwrap()
    }
}

/// Goal: a request that fails half-way leaves no trace, and those that were batched with it are not touched (law 2).
/// Method: the first is held up until the others wait, so that all of them are one batch.
#[test]
fn a_request_that_fails_is_alone_with_it() {
    let fixture = WriterFixture::new(None);
    let (open, gate) = mpsc::channel();
    assert!(fixture.send("first", "INSERT INTO t VALUES (1)", Some(gate)));
    assert!(fixture.send("half", "INSERT INTO t VALUES (2); INSERT INTO t VALUES (1)", None));
    assert!(fixture.send("last", "INSERT INTO t VALUES (3)", None));
    open.send(()).unwrap();
    let reports: Vec<JobReport> = fixture.reports.iter().take(3).collect();
    assert_eq!(reports, [("first", Ok(())), ("half", Ok(())), ("last", Ok(()))], "each has its own outcome, in order");
    assert_eq!(fixture.count(), 2, "the half one left nothing, the others are there");
    assert_eq!(fixture.writer.progress.commits(), 2, "each that changed something was committed alone");
}

/// Goal: requests that wait for one another share a commit.
#[test]
fn requests_that_wait_share_a_commit() {
    let fixture = WriterFixture::new(None);
    let (open, gate) = mpsc::channel();
    fixture.send("first", "INSERT INTO t VALUES (1)", Some(gate));
    fixture.send("second", "INSERT INTO t VALUES (2)", None);
    fixture.send("none", "SELECT 1", None);
    open.send(()).unwrap();
    assert_eq!(fixture.reports.iter().take(3).filter(|(_, fate)| fate.is_ok()).count(), 3);
    assert_eq!(fixture.writer.progress.commits(), 1);
}

/// Goal: what the disk did not take is answered as unknown, never as done; whoever comes later is not served, whoever
/// read meanwhile is not answered (laws 1 and 4). Method: a WAL that cannot be synced.
#[tokio::test]
async fn a_sync_that_fails_is_final() {
    let fixture = WriterFixture::new(Some(File::open("/dev/null").unwrap()));
    let progress = fixture.writer.progress.clone();
    assert!(progress.durable().await, "nothing is under way yet");
    fixture.send("first", "INSERT INTO t VALUES (1)", None);
    let (name, fate) = fixture.reports.recv().unwrap();
    assert_eq!(name, "first");
    assert!(fate.as_ref().is_err_and(|why| why.starts_with("unknown")), "{fate:?}");
    assert!(!progress.durable().await, "what can be read is not on disk, and never will be");
    // The writer finds out when it hands over the next one, which may have been written too; then it is closed.
    while fixture.send("later", "INSERT OR IGNORE INTO t VALUES (2)", None) {
        let (_, fate) = fixture.reports.recv().unwrap();
        assert!(fate.is_err(), "{fate:?}");
    }
    fixture.writer.stop().unwrap().join().unwrap();
}

/// Goal: what was sent before the end is served before the end.
#[test]
fn stopping_serves_what_was_sent() {
    let fixture = WriterFixture::new(None);
    let (open, gate) = mpsc::channel();
    fixture.send("first", "INSERT INTO t VALUES (1)", Some(gate));
    fixture.send("second", "INSERT INTO t VALUES (2)", None);
    let thread = fixture.writer.stop().unwrap();
    assert!(!fixture.send("late", "INSERT INTO t VALUES (3)", None), "it is closed");
    open.send(()).unwrap();
    thread.join().unwrap();
    let reports: Vec<JobReport> = fixture.reports.try_iter().filter(|(name, _)| *name != "late").collect();
    assert_eq!(reports, [("first", Ok(())), ("second", Ok(()))]);
    assert_eq!(fixture.count(), 2);
}

/// Goal: a writer that is dropped without a word serves what was sent, and its threads end: they have the file.
#[test]
fn a_dropped_writer_ends() {
    let WriterFixture { writer, reports, report, time, dir: _dir } = WriterFixture::new(None);
    writer.send(Box::new(SqlJob { name: "last", sql: "INSERT INTO t VALUES (1)", reports: Some(report), gate: None }));
    drop(writer);
    assert_eq!(reports.recv().unwrap(), ("last", Ok(())));
    // The writer's thread has the other handle, and lets it go when it ends.
    let ended = (0..3000).any(|_| {
        let ended = Arc::strong_count(&time) == 1;
        if !ended {
            std::thread::park_timeout(std::time::Duration::from_millis(10));
        }
        ended
    });
    assert!(ended, "the thread goes on without anybody who could ask it");
}
