//! Queues on SQLite under faults: several processes share the file, and are killed and stopped past their deliveries. As in
//! [`crate::torture`], triggers record what happens in the same transactions.
//!
//! A trigger sees the token of the row, not the one that was shown. So workers that call the functions one by one write down
//! which token they showed and were told to be the right one (`judge_shown`): it must be that of the row.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use leasehold::recipe::Store;
use leasehold::recipe::queue::Queue;
use leasehold::recipe::queue::calls::{QueueCalls, TurnAsk};
use rusqlite::Connection;

use crate::torture::{Faults, Workers, read_number};
use crate::worker::{Chance, VISIBLE, turn_ask};

const DEFAULT_JOBS: i64 = 60;
const KEYS: i64 = 7;

const INSTALL: &str = "
CREATE TABLE judge_event (seq INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT, job_id INTEGER, key TEXT, token INTEGER,
  before INTEGER, over INTEGER, number INTEGER);
CREATE TABLE judge_effect (job_id INTEGER, token INTEGER);
CREATE TABLE judge_refused (job_id INTEGER);
CREATE TABLE judge_shown (how TEXT, job_id INTEGER, token INTEGER);
CREATE TRIGGER judge_push AFTER INSERT ON leasehold_job BEGIN
  INSERT INTO judge_event (kind, job_id, key, number) VALUES ('push', NEW.job_id, NEW.key, CAST(NEW.body AS INTEGER)); END;
CREATE TRIGGER judge_job AFTER UPDATE OF token ON leasehold_job WHEN NEW.token <> OLD.token BEGIN
  INSERT INTO judge_event (kind, job_id, token, before, over) VALUES (iif(NEW.token > 0, 'claim', 'back'), NEW.job_id,
    max(NEW.token, OLD.token), iif(NEW.token > 0, OLD.token, 0), coalesce(NEW.error LIKE 'lapsed under %', 0)); END;
CREATE TRIGGER judge_gone AFTER DELETE ON leasehold_job BEGIN
  INSERT INTO judge_event (kind, job_id, key, token) VALUES ('gone', OLD.job_id, OLD.key, iif(OLD.key IS NULL, OLD.token,
    (SELECT token FROM leasehold_lane WHERE queue_id = OLD.queue_id AND key = OLD.key))); END;
CREATE TRIGGER judge_take AFTER INSERT ON leasehold_lane BEGIN
  INSERT INTO judge_event (kind, key, token, before, over) VALUES ('take', NEW.key, NEW.token, 0, 1); END;
CREATE TRIGGER judge_lane AFTER UPDATE OF token ON leasehold_lane WHEN NEW.token > 0 AND NEW.token <> OLD.token BEGIN
  INSERT INTO judge_event (kind, key, token, before, over) VALUES ('take', NEW.key, NEW.token, OLD.token,
    OLD.until <= (SELECT at FROM leasehold_clock)); END;
";

/// What is wrong with what was recorded.
fn judge_file(db: &Connection) -> Vec<String> {
    type Seen = (String, Option<i64>, Option<String>, i64, i64, bool);
    let sql = "SELECT kind, job_id, key, coalesce(token, 0), coalesce(before, 0), coalesce(over, 0) FROM judge_event ORDER BY seq";
    let read =
        |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?));
    let events: Vec<Seen> = db.prepare(sql).unwrap().query_map([], read).unwrap().map(Result::unwrap).collect();
    let mut wrong = Vec::new();
    let mut taken: BTreeMap<i64, i64> = BTreeMap::new();
    let mut highest: BTreeMap<i64, i64> = BTreeMap::new();
    let mut highest_of_key: BTreeMap<String, i64> = BTreeMap::new();
    let mut ended: BTreeMap<i64, i64> = BTreeMap::new();
    let mut last_of_key: BTreeMap<String, i64> = BTreeMap::new();
    let (mut pushed, mut given_back) = (BTreeSet::new(), BTreeSet::new());
    for (kind, job, key, token, before, over) in events {
        let at = format!("{kind} job {job:?} key {key:?} token {token} before {before}");
        match (kind.as_str(), job) {
            ("push", Some(job)) => drop(pushed.insert(job)),
            ("claim", Some(job)) => {
                if before != 0 || taken.insert(job, token).unwrap_or(0) != 0 {
                    wrong.push(format!("claimed while another has it: {at}"));
                }
                if highest.insert(job, token).unwrap_or(0) >= token {
                    wrong.push(format!("a later delivery has a lower token: {at}"));
                }
            }
            ("back", Some(job)) => {
                taken.insert(job, 0);
                // One that lapsed was given back by nobody.
                if !over {
                    given_back.insert((job, token));
                }
            }
            ("gone", Some(job)) => {
                let twice = ended.insert(job, token).is_some();
                if token == 0 || twice {
                    wrong.push(format!("ended without a delivery, or twice: {at}"));
                }
                if let Some(key) = key
                    && last_of_key.insert(key, job).unwrap_or(0) > job
                {
                    wrong.push(format!("out of order: {at}"));
                }
            }
            ("take", None) => {
                if before != 0 && !over {
                    wrong.push(format!("taken while another has it: {at}"));
                }
                if highest_of_key.insert(key.unwrap_or_default(), token).unwrap_or(0) >= token {
                    wrong.push(format!("a later claim has a lower token: {at}"));
                }
            }
            _ => wrong.push(format!("unknown: {at}")),
        }
    }
    wrong.extend(pushed.iter().filter(|job| !ended.contains_key(job)).map(|job| format!("job {job} is lost")));
    let mut shown = db.prepare("SELECT how, job_id, token FROM judge_shown").unwrap();
    for end in shown.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap() {
        let (how, job, token): (String, i64, i64) = end.unwrap();
        let ours = if how == "ack" { ended.get(&job) == Some(&token) } else { given_back.contains(&(job, token)) };
        if !ours {
            let row = ended.get(&job);
            wrong.push(format!("job {job}: {how} was taken under token {token}, and the row ended under {row:?}"));
        }
    }
    let mut effects = BTreeSet::new();
    let mut read = db.prepare("SELECT job_id, token FROM judge_effect").unwrap();
    for effect in read.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap() {
        let (job, token): (i64, i64) = effect.unwrap();
        if !effects.insert(job) || ended.get(&job) != Some(&token) {
            wrong.push(format!("job {job}: an effect under token {token}, ended by {:?}", ended.get(&job)));
        }
    }
    wrong
}

/// Pushes jobs into both queues. What was refused because the file is busy is pushed again: nothing happened.
async fn push_jobs(queues: [Queue; 2], jobs: i64, pace: Duration) {
    let [plain, keyed] = queues;
    for number in 0..jobs {
        while plain.push(&number).await.is_err() {}
        while keyed.push(&number).key(&format!("k{}", number % KEYS)).await.is_err() {}
        tokio::time::sleep(pace).await;
    }
}

/// Goal: the laws of the queue hold on a file that several processes share, while they are killed and stopped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_laws_hold_under_faults_on_sqlite() {
    let jobs = read_number("LEASEHOLD_QUEUE_JOBS", DEFAULT_JOBS);
    let seed = read_number("LEASEHOLD_QUEUE_SEED", 1).unsigned_abs();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("recipes.db");
    let url = format!("sqlite:{}", file.display());
    let store = Store::open(&url).await.unwrap();
    let plain = store.queue("plain").max_attempts(1000).visible(VISIBLE).open().await.unwrap();
    let keyed = store.queue("keyed").by_key().max_attempts(1000).visible(VISIBLE).open().await.unwrap();
    let db = Connection::open(&file).unwrap();
    db.busy_timeout(Duration::from_secs(10)).unwrap();
    db.execute_batch(INSTALL).unwrap();
    let mut workers = Workers::start(&url, &["sqlite", "sqlite", "sqlite-hand", "sqlite-hand"], seed * 1000);
    let (mut chance, mut faults) = (Chance::from_seed(seed), Faults::default());
    let start = Instant::now();
    let faults_for = Duration::from_millis(4000 + 30 * jobs.unsigned_abs());
    // A task of its own: a process that is stopped in the middle of a transaction makes every other writer wait.
    let pace = faults_for.mul_f64(0.7) / u32::try_from(jobs).unwrap_or(u32::MAX);
    let producer = tokio::spawn(push_jobs([plain.clone(), keyed], jobs, pace));
    loop {
        tokio::time::sleep(Duration::from_millis(20 + chance.below(100))).await;
        workers.wake(false);
        let at = chance.below(4) as usize;
        if start.elapsed() > faults_for {
            workers.wake(true);
            let left: i64 = db.query_row("SELECT count(*) FROM leasehold_job", [], |row| row.get(0)).unwrap();
            if left == 0 && producer.is_finished() {
                break;
            }
        // Those that make the calls one by one are seldom killed: stopped and woken, they show a token that is over.
        } else if chance.below(if at < 2 { 2 } else { 12 }) == 0 {
            workers.kill(at);
            faults.killed += 1;
        } else {
            workers.stop(at, VISIBLE.mul_f64(0.2 + chance.below(20) as f64 / 10.0));
            faults.stopped += 1;
        }
        assert!(start.elapsed() < faults_for + Duration::from_secs(60), "seed {seed}: not drained, {faults:?}");
    }
    drop(workers);
    let refused: i64 = db.query_row("SELECT count(*) FROM judge_refused", [], |row| row.get(0)).unwrap();
    let claims: i64 =
        db.query_row("SELECT count(*) FROM judge_event WHERE kind IN ('claim', 'take')", [], |row| row.get(0)).unwrap();
    println!("seed {seed}: {faults:?}, {} jobs, {claims} claims, {refused} refused", 2 * jobs);
    assert_eq!(judge_file(&db), Vec::<String>::new(), "seed {seed}");
    // Faults that did nothing would prove nothing.
    let taken_over = "SELECT count(*) FROM judge_event WHERE kind = 'take' AND before > 0";
    let taken_over: i64 = db.query_row(taken_over, [], |row| row.get(0)).unwrap();
    assert!(taken_over > 0 && faults.killed > 0, "seed {seed}: no key was taken over");
    let shown: i64 = db.query_row("SELECT count(*) FROM judge_shown", [], |row| row.get(0)).unwrap();
    assert!(shown > 0 && refused > 0, "seed {seed}: {shown} tokens were shown, {refused} were refused");
}

/// Takes the job that waits.
async fn take(calls: &QueueCalls, who: &str, visible: Duration) -> (i64, i64) {
    let ask = TurnAsk { jobs: 1, visible: Some(visible), ..turn_ask(who) };
    let jobs = calls.turn(ask).await.unwrap().jobs;
    let [job] = &jobs[..] else { panic!("{who} took {jobs:?}") };
    (job.job_id, job.token)
}

/// Goal: the judge sees an end by id alone, of a job that another has by now: acknowledged and given back, plain and by key.
/// Method: ada takes the job and is late, bob takes it over, ada ends it. The true store refuses her; the planted one ends what
/// has this id, and tells her that it was hers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_by_id_alone_is_seen_on_sqlite() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("recipes.db");
    let store = Store::open(&format!("sqlite:{}", file.display())).await.unwrap();
    let plain = store.queue("plain").max_attempts(1000).backoff(Duration::from_millis(1)).open().await.unwrap();
    let calls = store.queue_calls("plain").unwrap();
    let db = Connection::open(&file).unwrap();
    db.busy_timeout(Duration::from_secs(10)).unwrap();
    db.execute_batch(INSTALL).unwrap();
    for (planted, how) in [
        (None, "ack"),
        (Some("DELETE FROM leasehold_job WHERE job_id = ?1"), "ack"),
        (Some("UPDATE leasehold_job SET token = 0, until = NULL WHERE job_id = ?1"), "nack"),
    ] {
        plain.push(&1).await.unwrap();
        let (job, ada) = take(&calls, "ada", Duration::from_millis(20)).await;
        let bob = loop {
            tokio::time::sleep(Duration::from_millis(30)).await;
            calls.sweep().await.unwrap();
            let ready = "SELECT token = 0 AND ready_at <= unixepoch('subsec') * 1000 FROM leasehold_job";
            let ready: bool = db.query_row(ready, [], |row| row.get(0)).unwrap();
            if ready {
                break take(&calls, "bob", Duration::from_secs(60)).await.1;
            }
        };
        assert!(bob > ada);
        match planted {
            None => assert_eq!(calls.ack(vec![job], ada).await.unwrap().stale, [job], "stale"),
            Some(sql) => {
                assert_eq!(db.execute(sql, [job]).unwrap(), 1);
                db.execute("INSERT INTO judge_shown VALUES (?1, ?2, ?3)", (how, job, ada)).unwrap();
            }
        }
        // What is left of it ends as it should.
        let stale = calls.ack(vec![job], bob).await.unwrap().stale;
        if stale.is_empty() {
            db.execute("INSERT INTO judge_shown VALUES ('ack', ?1, ?2)", (job, bob)).unwrap();
        } else if how == "nack" {
            let (job, token) = take(&calls, "carol", Duration::from_secs(60)).await;
            assert!(calls.ack(vec![job], token).await.unwrap().stale.is_empty());
        }
        let found = judge_file(&db);
        match planted {
            None => assert_eq!(found, Vec::<String>::new()),
            Some(_) => assert!(
                matches!(&found[..], [one] if one.contains(&format!("{how} was taken under token {ada}"))),
                "{found:?}"
            ),
        }
        db.execute("DELETE FROM judge_shown WHERE token = ?1", [ada]).unwrap();
    }
}
