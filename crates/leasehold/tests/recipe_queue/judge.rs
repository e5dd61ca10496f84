//! The judge of queues on PostgreSQL: triggers record what happens to jobs and lanes in the very transactions that do it, and
//! a reader compares that with the laws.
//!
//! A session says who it is by its `application_name`, which is also the label of its worker. A worker that calls the
//! functions by hand also says, in the setting `judge.shown`, which token it shows.

use std::collections::{BTreeMap, BTreeSet};

use tokio_postgres::Client;

pub const INSTALL: &str = "
CREATE SCHEMA judge;
CREATE TABLE judge.event (
  seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, xid bigint NOT NULL DEFAULT txid_current(),
  over boolean NOT NULL DEFAULT false, kind text NOT NULL, job_id bigint, key text, token bigint, before bigint, worker text,
  by text NOT NULL DEFAULT current_setting('application_name'),
  shown bigint DEFAULT nullif(current_setting('judge.shown', true), '')::bigint, number bigint);
CREATE TABLE judge.pushed (number bigint NOT NULL);
CREATE TABLE judge.effect (job_id bigint NOT NULL, token bigint NOT NULL);
CREATE TABLE judge.refused (worker text NOT NULL);
CREATE TABLE judge.state (id bigint PRIMARY KEY, version bigint NOT NULL);
CREATE TABLE judge.seen (id bigint NOT NULL, version bigint NOT NULL);
CREATE FUNCTION judge.see_job() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE l leasehold.lane;
BEGIN
  IF TG_OP = 'INSERT' THEN
    INSERT INTO judge.event (kind, job_id, key, number) VALUES ('push', NEW.job_id, NEW.key, NEW.body::text::bigint);
  ELSIF TG_OP = 'DELETE' AND OLD.key IS NULL THEN
    INSERT INTO judge.event (kind, job_id, token, over, worker)
    VALUES ('gone', OLD.job_id, OLD.token, coalesce(OLD.until <= clock_timestamp(), true), OLD.worker);
  ELSIF TG_OP = 'DELETE' THEN
    SELECT * INTO l FROM leasehold.lane x WHERE x.queue_id = OLD.queue_id AND x.key = OLD.key;
    INSERT INTO judge.event (kind, job_id, key, token, over, worker)
    VALUES ('gone', OLD.job_id, OLD.key, l.token, coalesce(l.until <= clock_timestamp(), true), l.worker);
  ELSIF NEW.token > 0 AND NEW.token <> OLD.token THEN
    INSERT INTO judge.event (kind, job_id, token, before, worker) VALUES ('claim', NEW.job_id, NEW.token, OLD.token, NEW.worker);
  ELSIF OLD.token > 0 AND NEW.token = 0 THEN
    INSERT INTO judge.event (kind, job_id, token, over, worker)
    VALUES ('back', OLD.job_id, OLD.token, OLD.until <= clock_timestamp(), OLD.worker);
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER judge AFTER INSERT OR UPDATE OR DELETE ON leasehold.job FOR EACH ROW EXECUTE FUNCTION judge.see_job();
CREATE FUNCTION judge.see_lane() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    INSERT INTO judge.event (kind, key, token, before, over, worker) VALUES ('take', NEW.key, NEW.token, 0, true, NEW.worker);
  ELSIF NEW.token > 0 AND NEW.token <> OLD.token THEN
    INSERT INTO judge.event (kind, key, token, before, over, worker)
    VALUES ('take', NEW.key, NEW.token, OLD.token, OLD.until <= clock_timestamp(), NEW.worker);
  ELSIF NEW.token = 0 AND OLD.token > 0 THEN
    INSERT INTO judge.event (kind, key, token, over, worker)
    VALUES ('free', OLD.key, OLD.token, OLD.until <= clock_timestamp(), OLD.worker);
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER judge AFTER INSERT OR UPDATE ON leasehold.lane FOR EACH ROW EXECUTE FUNCTION judge.see_lane();
CREATE FUNCTION judge.see_dead() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN INSERT INTO judge.event (kind, job_id, key) VALUES ('dead', NEW.job_id, NEW.key); RETURN NULL; END $$;
CREATE TRIGGER judge AFTER INSERT ON leasehold.dead_job FOR EACH ROW EXECUTE FUNCTION judge.see_dead();
";

/// What was recorded, and what is wrong with it.
#[derive(Debug, Default)]
pub struct Verdict {
    pub pushed: usize,
    pub claims: usize,
    pub lapsed: usize,
    pub refused: i64,
    pub violations: Vec<String>,
}

struct Event {
    xid: i64,
    over: bool,
    kind: String,
    job: Option<i64>,
    key: Option<String>,
    token: i64,
    before: i64,
    worker: Option<String>,
    by: String,
    shown: Option<i64>,
    number: Option<i64>,
}

impl Event {
    /// Whether the session that did it is the one that had the delivery, and showed its token if it showed one.
    fn by_holder(&self) -> bool {
        self.worker.as_deref() == Some(&self.by) && self.shown.is_none_or(|shown| shown == self.token)
    }
}

/// What is known of a job while its events are read.
#[derive(Default)]
struct JobState {
    pushed: bool,
    /// Of a plain queue: the token of the delivery; 0: waits.
    taken: i64,
    highest: i64,
    gone: Option<(i64, i64)>,
}

/// Reads what was recorded. `drained`: nothing may be left.
pub async fn judge(client: &Client, drained: bool) -> Verdict {
    let rows = client
        .query("SELECT xid, over, kind, job_id, key, token, before, worker, by, shown, number FROM judge.event ORDER BY seq", &[])
        .await
        .unwrap();
    let events: Vec<Event> = rows
        .iter()
        .map(|row| Event {
            xid: row.get(0),
            over: row.get(1),
            kind: row.get(2),
            job: row.get(3),
            key: row.get(4),
            token: row.get::<_, Option<i64>>(5).unwrap_or(0),
            before: row.get::<_, Option<i64>>(6).unwrap_or(0),
            worker: row.get(7),
            by: row.get(8),
            shown: row.get(9),
            number: row.get(10),
        })
        .collect();
    let mut verdict = Verdict::default();
    let jobs = judge_jobs(&events, &mut verdict);
    judge_lanes(&events, &mut verdict);
    judge_order(&events, &mut verdict);
    judge_effects(client, &jobs, &mut verdict).await;
    judge_pushes(client, &events, &mut verdict).await;
    judge_changes(client, &mut verdict).await;
    if drained {
        for (job, state) in jobs.iter().filter(|(_, state)| state.gone.is_none()) {
            verdict.violations.push(format!("job {job} never ended (pushed: {})", state.pushed));
        }
    }
    verdict.refused = client.query_one("SELECT count(*) FROM judge.refused", &[]).await.unwrap().get(0);
    verdict
}

/// Law 1 and 2: one delivery at a time, tokens rise, only the holder ends one before its time is over.
fn judge_jobs(events: &[Event], verdict: &mut Verdict) -> BTreeMap<i64, JobState> {
    let buried: BTreeSet<(i64, i64)> =
        events.iter().filter(|event| event.kind == "dead").filter_map(|event| Some((event.xid, event.job?))).collect();
    let mut jobs: BTreeMap<i64, JobState> = BTreeMap::new();
    for event in events {
        let Some(id) = event.job.filter(|_| event.kind != "dead") else { continue };
        let job = jobs.entry(id).or_default();
        let mut wrong = |what: &str| {
            let (kind, token, by, worker, shown) = (&event.kind, event.token, &event.by, &event.worker, event.shown);
            verdict
                .violations
                .push(format!("job {id}: {what}: {kind} token {token} of {worker:?} by {by} showing {shown:?}"));
        };
        if job.gone.is_some() {
            wrong("something happened after its end");
        }
        match event.kind.as_str() {
            "push" => (job.pushed, verdict.pushed) = (true, verdict.pushed + 1),
            "claim" => {
                verdict.claims += 1;
                if job.taken != 0 || event.before != 0 {
                    wrong("claimed while another has it");
                }
                if event.token <= job.highest {
                    wrong("a later delivery has a lower token");
                }
                (job.taken, job.highest) = (event.token, event.token);
            }
            "back" => {
                verdict.lapsed += usize::from(event.over);
                if !event.over && !event.by_holder() {
                    wrong("taken away before its time was over");
                }
                job.taken = 0;
            }
            "gone" => {
                let dead = buried.contains(&(event.xid, id));
                if event.token == 0 && !dead {
                    wrong("ended without a delivery");
                }
                // A dead letter of a lapsed delivery may be made by anybody; by key the lane is freed or taken first.
                if !(event.by_holder() || dead && (event.over || event.key.is_some())) {
                    wrong("ended by a stale worker");
                }
                job.gone = Some((event.xid, event.token));
            }
            _ => {}
        }
    }
    jobs
}

/// By key: one claim at a time, tokens rise, only the holder frees it before its time is over.
fn judge_lanes(events: &[Event], verdict: &mut Verdict) {
    let mut lanes: BTreeMap<&str, (i64, i64)> = BTreeMap::new();
    for event in events.iter().filter(|event| event.job.is_none()) {
        let key = event.key.as_deref().unwrap_or_default();
        let (token, highest) = lanes.entry(key).or_default();
        if event.kind == "take" {
            verdict.claims += 1;
            verdict.lapsed += usize::from(event.before != 0);
            if event.before != 0 && !event.over {
                verdict.violations.push(format!("key {key}: taken while {} has it", event.before));
            }
            if event.token <= *highest {
                verdict.violations.push(format!("key {key}: token {} after {highest}", event.token));
            }
            (*token, *highest) = (event.token, event.token);
        } else {
            if !event.by_holder() {
                verdict.violations.push(format!("key {key}: freed by {} showing {:?}", event.by, event.shown));
            }
            *token = 0;
        }
    }
}

/// Law 4: jobs of a key end in the order of their ids. The rows of one statement have no order among themselves.
fn judge_order(events: &[Event], verdict: &mut Verdict) {
    let mut ended: BTreeMap<&str, Vec<(i64, i64)>> = BTreeMap::new();
    for event in events.iter().filter(|event| event.kind == "gone") {
        if let (Some(key), Some(job)) = (&event.key, event.job) {
            ended.entry(key).or_default().push((event.xid, job));
        }
    }
    for (key, ends) in ended {
        let mut last = 0;
        for statement in ends.chunk_by(|one, other| one.0 == other.0) {
            let jobs: Vec<i64> = statement.iter().map(|(_, job)| *job).collect();
            if jobs.iter().min().is_some_and(|first| *first < last) {
                verdict.violations.push(format!("key {key}: {jobs:?} ended after {last}"));
            }
            last = jobs.into_iter().max().unwrap_or(last);
        }
    }
}

/// Effects in the transaction of the end: at most one for a job, under the token that ended it.
async fn judge_effects(client: &Client, jobs: &BTreeMap<i64, JobState>, verdict: &mut Verdict) {
    let mut seen = BTreeSet::new();
    for row in client.query("SELECT job_id, token FROM judge.effect", &[]).await.unwrap() {
        let (job, token): (i64, i64) = (row.get(0), row.get(1));
        if !seen.insert(job) {
            verdict.violations.push(format!("job {job} has two effects"));
        }
        if jobs.get(&job).and_then(|job| job.gone).is_none_or(|(_, ended)| ended != token) {
            verdict.violations.push(format!("job {job} has an effect under token {token}, which did not end it"));
        }
    }
}

/// Of jobs with a dedupe id `d<id>`: a transaction changes a state and pushes. After the last one that was committed a run begins,
/// reads the state and comes to its end, or a job still waits for that.
async fn judge_changes(client: &Client, verdict: &mut Verdict) {
    let unseen = "SELECT s.id, s.version FROM judge.state s
        WHERE s.version > coalesce((SELECT max(version) FROM judge.seen x WHERE x.id = s.id), 0)
        AND NOT EXISTS (SELECT FROM leasehold.job j WHERE j.dedupe = 'd' || s.id)";
    for row in client.query(unseen, &[]).await.unwrap() {
        let (id, version): (i64, i64) = (row.get(0), row.get(1));
        verdict.violations.push(format!("change {version} of d{id} was seen by no run"));
    }
}

/// A job is there if and only if the transaction that pushed it was committed. Jobs with a dedupe id have numbers below zero.
async fn judge_pushes(client: &Client, events: &[Event], verdict: &mut Verdict) {
    let mut recorded: Vec<i64> = events
        .iter()
        .filter(|event| event.kind == "push")
        .filter_map(|event| event.number)
        .filter(|number| *number >= 0)
        .collect();
    let rows = client.query("SELECT number FROM judge.pushed ORDER BY number", &[]).await.unwrap();
    let committed: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
    recorded.sort_unstable();
    if recorded != committed {
        verdict.violations.push(format!("pushed {} jobs, committed {} pushes", recorded.len(), committed.len()));
    }
}
