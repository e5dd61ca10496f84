//! Laws 1, 2 and 4 on SQLite, statement by statement, with a clock set by hand.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::time::Duration;

use rusqlite::Connection;

use super::rows::{FailedJob, LaneAsk, Nacked, NewJob, QueueSettings, SINCE_EVER, TurnAsk};
use super::{sqlite, sqlite_lanes};
use crate::recipe::error::RecipeError;
use crate::recipe::store::sqlite::Tick;

const VISIBLE_MS: i64 = 1000;

/// A store in memory, and the time in it.
struct Scene {
    db: Connection,
    tick: Tick,
}

impl Scene {
    fn with_queue(keyed: bool) -> Self {
        let db = Connection::open_in_memory().unwrap();
        db.execute_batch(include_str!("../store/sqlite/step_1/clock.sql")).unwrap();
        db.execute_batch(include_str!("../store/sqlite/step_1/queue.sql")).unwrap();
        let visible = Some(Duration::from_millis(1000));
        let settings = QueueSettings { keyed, visible, max_attempts: Some(3), ..QueueSettings::default() };
        assert!(sqlite::make(&db, "q", &settings).unwrap());
        Self { db, tick: Tick { token: 0, now: 1_000_000 } }
    }

    /// The next call, so much later.
    fn later(&mut self, millis: i64) -> Tick {
        self.tick = Tick { token: self.tick.token + 1, now: self.tick.now + millis };
        self.tick
    }

    fn push(&mut self, key: Option<&str>) -> i64 {
        let key = key.map(str::to_owned);
        let body = "1".to_owned();
        let job = NewJob { body, delay: Duration::ZERO, priority: 1, key, dedupe: None, max_attempts: None };
        let tick = self.later(1);
        sqlite::push(&self.db, tick, "q", &job).unwrap().job_id
    }

    /// Claims one job: its token.
    fn take(&mut self, after_millis: i64) -> Option<i64> {
        let (token, jobs) = self.take_many(after_millis, 1);
        jobs.first().map(|_| token)
    }

    /// Collects what has lapsed, and waits until it is ready.
    fn collect_lapsed(&mut self, after_millis: i64) {
        self.take_many(after_millis, 0);
        self.later(1024);
    }

    /// Claims up to so many jobs: their token and they.
    fn take_many(&mut self, after_millis: i64, jobs: usize) -> (i64, Vec<i64>) {
        let tick = self.later(after_millis);
        let ask = TurnAsk { jobs, ..turn_ask() };
        let taken = sqlite::turn(&self.db, tick, "q", &ask).unwrap().jobs;
        (tick.token, taken.iter().map(|job| job.job_id).collect())
    }

    fn count(&self, table: &str) -> i64 {
        self.db.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
    }

    /// Claims one key: its token and its jobs.
    fn take_key(&mut self, after_millis: i64) -> Option<(i64, Vec<i64>)> {
        let tick = self.later(after_millis);
        let ask = LaneAsk { keys: 1, jobs_per_key: 2, visible: None, worker: "ada".into(), after: String::new() };
        let jobs = sqlite_lanes::lane_claim(&self.db, tick, "q", &ask).unwrap().jobs;
        jobs.first().map(|first| (first.token, jobs.iter().map(|job| job.job_id).collect()))
    }
}

fn turn_ask() -> TurnAsk {
    TurnAsk {
        jobs: 1,
        done: Vec::new(),
        done_token: 0,
        visible: None,
        worker: "ada".into(),
        since: SINCE_EVER,
        levels: None,
    }
}

fn failed(job_id: i64, token: i64, key: Option<&str>) -> FailedJob {
    FailedJob {
        job_id,
        token,
        key: key.map(str::to_owned),
        why: "no".into(),
        after: Some(Duration::ZERO),
        kill: false,
        tries: 0,
    }
}

fn is_stale(answer: Result<(), RecipeError>) -> bool {
    answer.is_err_and(|error| error.refusal().is_some())
}

/// Goal: whoever had a job before changes nothing, by none of the calls.
#[test]
fn an_older_token_changes_nothing() {
    let mut scene = Scene::with_queue(false);
    let job = scene.push(None);
    let old = scene.take(1).unwrap();
    assert_eq!(scene.take(VISIBLE_MS - 2), None, "it is ada's until its time is over");
    scene.collect_lapsed(2);
    let new = scene.take(1).unwrap();
    assert!(new > old);
    let tick = scene.later(1);
    assert_eq!(sqlite::ack(&scene.db, tick, &[job], old).unwrap(), [job]);
    assert_eq!(sqlite::nack(&scene.db, tick, "q", &failed(job, old, None)).unwrap(), Nacked::Stale);
    let span = Duration::from_secs(9);
    assert_eq!(sqlite::extend(&scene.db, tick, &[job], old, span).unwrap(), Vec::<i64>::new());
    assert!(is_stale(sqlite::finish(&scene.db, tick, job, old)));
    assert_eq!(sqlite::extend(&scene.db, tick, &[job], new, span).unwrap(), [job]);
    assert_eq!(scene.take(8000), None, "it was extended");
    let tick = scene.later(1);
    assert_eq!(sqlite::ack(&scene.db, tick, &[job], new).unwrap(), Vec::<i64>::new());
    assert_eq!(sqlite::ack(&scene.db, tick, &[job], new).unwrap(), [job], "it is gone");
    assert_eq!(sqlite::ack(&scene.db, tick, &[job], 0).unwrap(), [job], "0 is no token");
}

/// Goal: a delivery whose time is over cannot be extended, but its work, if nobody else has the job, counts.
#[test]
fn a_late_ack_of_the_newest_token_counts() {
    let mut scene = Scene::with_queue(false);
    let job = scene.push(None);
    let token = scene.take(1).unwrap();
    let tick = scene.later(VISIBLE_MS);
    assert_eq!(sqlite::extend(&scene.db, tick, &[job], token, Duration::from_secs(1)).unwrap(), Vec::<i64>::new());
    assert_eq!(sqlite::ack(&scene.db, tick, &[job], token).unwrap(), Vec::<i64>::new());
}

/// Goal: a job that lapses under worker after worker is buried.
#[test]
fn a_job_that_kills_workers_is_buried() {
    let mut scene = Scene::with_queue(false);
    scene.push(None);
    for _ in 0..3 {
        assert!(scene.take(1).is_some());
        scene.collect_lapsed(VISIBLE_MS);
    }
    assert_eq!(scene.take(1), None);
    assert_eq!((scene.count("leasehold_dead_job"), scene.count("leasehold_job")), (1, 0));
}

/// Goal: jobs that were taken together with one that kills its workers survive it.
/// Method: ten jobs are taken together. Whoever takes the first dies; whoever takes others only acknowledges them. Looked for
/// each millisecond.
#[test]
fn a_job_that_kills_workers_buries_no_other() {
    let mut scene = Scene::with_queue(false);
    let jobs: Vec<i64> = (0..10).map(|_| scene.push(None)).collect();
    for _ in 0..10_000 {
        let (token, taken) = scene.take_many(1, 10);
        if !taken.contains(&jobs[0]) {
            assert_eq!(sqlite::ack(&scene.db, scene.tick, &taken, token).unwrap(), Vec::<i64>::new());
        }
    }
    assert_eq!((scene.count("leasehold_dead_job"), scene.count("leasehold_job")), (1, 0), "it alone is buried");
}

/// Goal: by key the same, and the jobs come in their order.
#[test]
fn an_older_claim_on_a_key_changes_nothing() {
    let mut scene = Scene::with_queue(true);
    let jobs = [scene.push(Some("a")), scene.push(Some("a")), scene.push(Some("a"))];
    let (old, first) = scene.take_key(1).unwrap();
    assert_eq!(first, jobs[..2]);
    assert_eq!(scene.take_key(VISIBLE_MS - 2), None);
    let (new, again) = scene.take_key(2).unwrap();
    assert!(new > old && again == jobs[..2]);
    let (tick, db) = (scene.later(1), &scene.db);
    assert!(is_stale(sqlite_lanes::lane_ack(db, tick, "q", ("a", old), &jobs, true)));
    assert_eq!(sqlite_lanes::lane_nack(db, tick, "q", "a", &failed(jobs[0], old, Some("a"))).unwrap(), Nacked::Stale);
    assert!(!sqlite_lanes::lane_extend(db, tick, "q", ("a", old), Duration::from_secs(9)).unwrap());
    assert!(sqlite_lanes::lane_extend(db, tick, "q", ("a", new), Duration::from_secs(9)).unwrap());
    sqlite_lanes::lane_ack(db, tick, "q", ("a", new), &jobs[..2], true).unwrap();
    assert!(is_stale(sqlite_lanes::lane_ack(db, tick, "q", ("a", new), &jobs, true)), "it was freed");
    assert_eq!(scene.take_key(1).unwrap().1, jobs[2..]);
}
