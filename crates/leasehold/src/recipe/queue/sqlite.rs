//! The calls of a queue on SQLite. Each runs inside an open transaction that has the write lock, after its [`Tick`]: so no
//! row changes between two statements of a call.

use std::time::Duration;

use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension as _, Params, Row, named_params};

use super::limits::to_millis;
use super::rows::{ClaimedJob, FailedJob, Nacked, NewJob, Pushed, QueueFacts, QueueSettings, TurnAnswer, TurnAsk};
use crate::recipe::error::{RecipeError, RecipeRefusal};
use crate::recipe::store::sqlite::{STORE_NAME, Tick, sqlite_error};

const QUEUE: &str = "SELECT queue_id, keyed, in_order, levels, visible, max_attempts, backoff_base, backoff_cap, paused
    FROM leasehold_queue WHERE name = ?1";
const MAKE: &str = "INSERT INTO leasehold_queue
        (name, keyed, in_order, levels, visible, max_attempts, backoff_base, backoff_cap)
    VALUES (:name, :keyed, coalesce(:in_order, 1), coalesce(:levels, '[1]'), coalesce(:visible, 30000),
        coalesce(:attempts, 20), coalesce(:base, 1000), coalesce(:cap, 3600000))
    ON CONFLICT (name) DO UPDATE SET in_order = coalesce(:in_order, in_order), levels = coalesce(:levels, levels),
        visible = coalesce(:visible, visible), max_attempts = coalesce(:attempts, max_attempts),
        backoff_base = coalesce(:base, backoff_base), backoff_cap = coalesce(:cap, backoff_cap)
    WHERE keyed = excluded.keyed AND (:levels IS NULL OR NOT EXISTS (SELECT 1 FROM leasehold_job j
        WHERE j.queue_id = leasehold_queue.queue_id AND j.priority NOT IN (SELECT value FROM json_each(:levels))))";
const INSERT: &str = "INSERT INTO leasehold_job
        (queue_id, priority, ready_at, made_at, max_attempts, key, dedupe, body)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
    ON CONFLICT (queue_id, dedupe) WHERE dedupe IS NOT NULL DO NOTHING RETURNING job_id";
const AGAIN: &str = "UPDATE leasehold_job SET again = 1 WHERE queue_id = ?1 AND dedupe = ?2 AND token > 0";
const TWIN: &str = "SELECT job_id FROM leasehold_job WHERE queue_id = ?1 AND dedupe = ?2";
const END: &str = "DELETE FROM leasehold_job WHERE job_id = ?1 AND token = ?2 AND ?2 > 0
    RETURNING again, queue_id, priority, max_attempts, dedupe, body";
/// Asked for again while it ran: it waits once more, as a new job.
const RUN_AGAIN: &str = "INSERT INTO leasehold_job (queue_id, priority, ready_at, made_at, max_attempts, dedupe, body)
    VALUES (?1, ?2, ?3, ?3, ?4, ?5, ?6)";
/// They come back at different moments of a second: a job that kills its workers must not take the same others along each time.
const LAPSED: &str = "SELECT job_id, attempt, max_attempts, 'lapsed under ' || coalesce(worker, 'a worker'),
        random() & 1023
    FROM leasehold_job WHERE queue_id = ?1 AND until IS NOT NULL AND until <= ?2 LIMIT 1000";
const CLAIM: &str = "UPDATE leasehold_job
    SET token = :token, attempt = attempt + 1, until = :now + :visible, worker = :worker WHERE job_id IN (
        SELECT job_id FROM leasehold_job WHERE queue_id = :queue AND priority = :level AND token = 0 AND key IS NULL
            AND ready_at <= :now ORDER BY ready_at LIMIT :jobs)
    RETURNING job_id, token, attempt, ready_at, made_at, body";
const EXTEND: &str = "UPDATE leasehold_job SET until = ?3 WHERE job_id = ?1 AND token = ?2 AND ?2 > 0 AND until > ?4";
const HERE: &str = "SELECT 1 FROM leasehold_job WHERE job_id = ?1 AND queue_id = ?2";
const TAKEN: &str = "SELECT job_id, attempt, max_attempts, queue_id FROM leasehold_job
    WHERE job_id = ?1 AND token = ?2 AND ?2 > 0";
const BURY: &str =
    "INSERT INTO leasehold_dead_job (job_id, token, ready_at, made_at, until, queue_id, priority, attempt,
        max_attempts, again, key, dedupe, worker, error, body, died_at)
    SELECT job_id, token, ready_at, made_at, until, queue_id, priority, attempt, max_attempts, again, key, dedupe,
        worker, substr(?2, 1, 2000), body, ?3 FROM leasehold_job WHERE job_id = ?1";
const REMOVE: &str = "DELETE FROM leasehold_job WHERE job_id = ?1
    RETURNING again, queue_id, priority, max_attempts, dedupe, body";
const RETRY: &str = "UPDATE leasehold_job SET token = 0, until = NULL, worker = NULL, again = 0, attempt = :attempt,
    error = substr(:why, 1, 2000), ready_at = :now + coalesce(:after,
        CAST(:backoff * (0.5 + (random() & 1023) / 2048.0) AS INTEGER)) WHERE job_id = :job";

/// A queue, as its row says.
#[derive(Debug)]
pub(super) struct QueueRow {
    pub name: String,
    pub queue_id: i64,
    pub keyed: bool,
    pub in_order: bool,
    pub levels: Vec<i16>,
    pub visible: i64,
    pub max_attempts: i64,
    pub backoff_base: i64,
    pub backoff_cap: i64,
    pub paused: bool,
}

impl QueueRow {
    /// The queue of this name.
    pub fn read(db: &Connection, name: &str) -> Result<Self, RecipeError> {
        let no_queue = || RecipeRefusal::NoQueue { name: name.to_owned() };
        Self::find(db, name)?.ok_or_else(|| no_queue().into())
    }

    /// The queue of this name, if there is one.
    pub fn find(db: &Connection, name: &str) -> Result<Option<Self>, RecipeError> {
        let read = |row: &Row<'_>| {
            let levels: String = row.get(3)?;
            let queue = Self {
                name: name.to_owned(),
                queue_id: row.get(0)?,
                keyed: row.get(1)?,
                in_order: row.get(2)?,
                levels: Vec::new(),
                visible: row.get(4)?,
                max_attempts: row.get(5)?,
                backoff_base: row.get(6)?,
                backoff_cap: row.get(7)?,
                paused: row.get(8)?,
            };
            Ok((queue, levels))
        };
        let found = one(db, QUEUE, [name], read)?;
        let with_levels = |(queue, text): (Self, String)| {
            let levels: Vec<i16> = serde_json::from_str(&text).map_err(|_| {
                RecipeError::corrupt(STORE_NAME, "the levels of a queue are numbers", format!("queue {name}"))
            })?;
            Ok(Self { levels, ..queue })
        };
        found.map(with_levels).transpose()
    }

    /// What a worker must know.
    pub fn facts(&self) -> QueueFacts {
        let visible = Duration::from_millis(u64::try_from(self.visible).unwrap_or(0));
        QueueFacts { keyed: self.keyed, visible, levels: self.levels.clone() }
    }

    /// The span before the next try, before chance shortens it.
    fn backoff(&self, attempt: i64) -> i64 {
        let doublings = attempt.clamp(1, 31) - 1;
        self.backoff_base.saturating_mul(1 << doublings).min(self.backoff_cap)
    }
}

/// Makes a queue, or changes the settings that are given. `false`: there is one that cannot become this.
pub(super) fn make(db: &Connection, name: &str, settings: &QueueSettings) -> Result<bool, RecipeError> {
    let levels = settings.levels.as_ref().map(|levels| format!("{levels:?}"));
    let changed = change(
        db,
        MAKE,
        named_params! {
            ":name": name, ":keyed": settings.keyed, ":in_order": settings.in_order, ":levels": levels,
            ":visible": settings.visible.map(to_millis), ":attempts": settings.max_attempts,
            ":base": settings.backoff_base.map(to_millis), ":cap": settings.backoff_cap.map(to_millis),
        },
    )?;
    Ok(changed > 0)
}

/// Whether a job is of the kind that the queue takes.
fn check_fits(queue: &QueueRow, job: &NewJob) -> Result<(), RecipeError> {
    let name = &queue.name;
    let sentence = match (queue.keyed, &job.key, &job.dedupe) {
        (true, None, _) => format!("queue {name} is by key: a job needs a key"),
        (false, Some(_), _) => format!("queue {name} is not by key: a job takes no key"),
        (true, _, Some(_)) => format!("queue {name} is by key: a job takes no dedupe id"),
        _ if queue.levels.contains(&job.priority) => return Ok(()),
        _ => {
            let levels: Vec<String> = queue.levels.iter().map(ToString::to_string).collect();
            format!("queue {name} has no level {}: its levels are {}", job.priority, levels.join(", "))
        }
    };
    Err(RecipeError::Invalid(sentence))
}

pub(super) fn push(db: &Connection, tick: Tick, name: &str, job: &NewJob) -> Result<Pushed, RecipeError> {
    let queue = QueueRow::read(db, name)?;
    check_fits(&queue, job)?;
    let ready_at = tick.now.saturating_add(to_millis(job.delay));
    let attempts = job.max_attempts.map_or(queue.max_attempts, i64::from);
    let values = (queue.queue_id, job.priority, ready_at, tick.now, attempts, &job.key, &job.dedupe, &job.body);
    if let Some(job_id) = one(db, INSERT, values, |row| row.get(0))? {
        return Ok(Pushed { job_id, fresh: true });
    }
    // A worker that has it may have read the old state: once more after it.
    change(db, AGAIN, (queue.queue_id, &job.dedupe))?;
    let twin = one(db, TWIN, (queue.queue_id, &job.dedupe), |row| row.get(0))?;
    let missing = || RecipeError::corrupt(STORE_NAME, "a dedupe id that is taken has a job", format!("queue {name}"));
    Ok(Pushed { job_id: twin.ok_or_else(missing)?, fresh: false })
}

/// Acknowledges, collects what lapsed, claims.
pub(super) fn turn(db: &Connection, tick: Tick, name: &str, ask: &TurnAsk) -> Result<TurnAnswer, RecipeError> {
    let mut answer = TurnAnswer { stale: ack(db, tick, &ask.done, ask.done_token)?, ..TurnAnswer::default() };
    let queue = QueueRow::read(db, name)?;
    answer.lapsed = collect_lapsed(db, tick, &queue)?;
    if queue.paused {
        return Ok(answer);
    }
    let visible = ask.visible.map_or(queue.visible, to_millis);
    for level in ask.levels.as_ref().unwrap_or(&queue.levels) {
        let wanted = ask.jobs.saturating_sub(answer.jobs.len());
        if wanted == 0 {
            break;
        }
        let values = named_params! {
            ":token": tick.token, ":now": tick.now, ":visible": visible, ":worker": ask.worker,
            ":queue": queue.queue_id, ":level": level, ":jobs": wanted,
        };
        let claimed = |row: &Row<'_>| {
            Ok(ClaimedJob {
                job_id: row.get(0)?,
                token: row.get(1)?,
                attempt: row.get(2)?,
                ready_at: Some(row.get::<_, i64>(3)?.saturating_mul(1000)),
                made_at: row.get::<_, i64>(4)?.saturating_mul(1000),
                key: None,
                body: row.get(5)?,
            })
        };
        answer.jobs.extend(all(db, CLAIM, values, claimed)?);
    }
    Ok(answer)
}

/// Those of the jobs that are in this queue.
pub(super) fn only_here(db: &Connection, name: &str, jobs: &[i64]) -> Result<Vec<i64>, RecipeError> {
    let queue = QueueRow::read(db, name)?;
    let mut here = Vec::new();
    for job in jobs {
        here.extend(one(db, HERE, (job, queue.queue_id), |_| Ok(*job))?);
    }
    Ok(here)
}

/// Ends deliveries of one token, and returns those that were stale.
pub(super) fn ack(db: &Connection, tick: Tick, jobs: &[i64], token: i64) -> Result<Vec<i64>, RecipeError> {
    let mut stale = Vec::new();
    for job in jobs {
        match one(db, END, (job, token), EndedJob::read)? {
            None => stale.push(*job),
            Some(ended) => ended.run_again_if_asked(db, tick)?,
        }
    }
    Ok(stale)
}

/// A job whose row is gone.
struct EndedJob {
    /// Somebody asked for it while it ran.
    again: bool,
    queue: i64,
    level: i64,
    attempts: i64,
    dedupe: Value,
    body: Value,
}

impl EndedJob {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            again: row.get(0)?,
            queue: row.get(1)?,
            level: row.get(2)?,
            attempts: row.get(3)?,
            dedupe: row.get(4)?,
            body: row.get(5)?,
        })
    }

    fn run_again_if_asked(self, db: &Connection, tick: Tick) -> Result<(), RecipeError> {
        if self.again {
            change(db, RUN_AGAIN, (self.queue, self.level, tick.now, self.attempts, self.dedupe, self.body))?;
        }
        Ok(())
    }
}

/// Ends a delivery in the transaction of its effects. A stale one is an error, so that the transaction is rolled back.
pub(super) fn finish(db: &Connection, tick: Tick, job: i64, token: i64) -> Result<(), RecipeError> {
    if ack(db, tick, &[job], token)?.is_empty() {
        return Ok(());
    }
    Err(RecipeRefusal::Stale { what: format!("delivery {token} of job {job}") }.into())
}

pub(super) fn nack(db: &Connection, tick: Tick, name: &str, failed: &FailedJob) -> Result<Nacked, RecipeError> {
    let queue = QueueRow::read(db, name)?;
    let taken = one(db, TAKEN, (failed.job_id, failed.token), |row| Ok((row.get(1)?, row.get(2)?)))?;
    let Some((attempt, most)) = taken else { return Ok(Nacked::Stale) };
    let settled = Settled::from_failed(failed, attempt, most);
    settle(db, tick, &queue, &settled, &failed.why, failed.kill)
}

/// Returns those that are still ours.
pub(super) fn extend(
    db: &Connection,
    tick: Tick,
    jobs: &[i64],
    token: i64,
    visible: Duration,
) -> Result<Vec<i64>, RecipeError> {
    let until = tick.now.saturating_add(to_millis(visible));
    let mut ours = Vec::new();
    for job in jobs {
        if change(db, EXTEND, (job, token, until, tick.now))? > 0 {
            ours.push(*job);
        }
    }
    Ok(ours)
}

/// A job whose delivery ended without success.
pub(super) struct Settled {
    pub job_id: i64,
    pub attempt: i64,
    /// How often it may be tried.
    pub most: i64,
    /// When to try again; none: by the backoff of the queue.
    pub after: Option<i64>,
}

impl Settled {
    /// `attempt`: as the row has it.
    pub fn from_failed(failed: &FailedJob, attempt: i64, most: i64) -> Self {
        let attempt = attempt.saturating_add(i64::from(failed.tries)).max(0);
        Self { job_id: failed.job_id, attempt, most, after: failed.after.map(to_millis) }
    }
}

/// The job waits again, or is buried.
pub(super) fn settle(
    db: &Connection,
    tick: Tick,
    queue: &QueueRow,
    job: &Settled,
    why: &str,
    kill: bool,
) -> Result<Nacked, RecipeError> {
    if kill || job.attempt >= job.most {
        change(db, BURY, (job.job_id, why, tick.now))?;
        if let Some(ended) = one(db, REMOVE, [job.job_id], EndedJob::read)? {
            ended.run_again_if_asked(db, tick)?;
        }
        return Ok(Nacked::Dead);
    }
    let values = named_params! {
        ":why": why, ":now": tick.now, ":after": job.after, ":backoff": queue.backoff(job.attempt), ":job": job.job_id,
        ":attempt": job.attempt,
    };
    change(db, RETRY, values)?;
    Ok(Nacked::Retry)
}

/// Deliveries whose time is over: their jobs wait again, or are buried.
pub(super) fn collect_lapsed(db: &Connection, tick: Tick, queue: &QueueRow) -> Result<u32, RecipeError> {
    let lapsed: Vec<(Settled, String)> = all(db, LAPSED, (queue.queue_id, tick.now), |row| {
        let after = Some(row.get(4)?);
        Ok((Settled { job_id: row.get(0)?, attempt: row.get(1)?, most: row.get(2)?, after }, row.get(3)?))
    })?;
    for (job, why) in &lapsed {
        settle(db, tick, queue, job, why, false)?;
    }
    Ok(u32::try_from(lapsed.len()).unwrap_or(u32::MAX))
}

/// The first row, if there is one.
pub(super) fn one<T>(
    db: &Connection,
    sql: &str,
    values: impl Params,
    read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<Option<T>, RecipeError> {
    let asked = db.prepare_cached(sql).and_then(|mut statement| statement.query_row(values, read).optional());
    asked.map_err(|error| sqlite_error(&error, "use a queue"))
}

/// All rows.
pub(super) fn all<T>(
    db: &Connection,
    sql: &str,
    values: impl Params,
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<Vec<T>, RecipeError> {
    let asked = db.prepare_cached(sql).and_then(|mut statement| statement.query_map(values, read)?.collect());
    asked.map_err(|error| sqlite_error(&error, "use a queue"))
}

/// How many rows were changed.
pub(super) fn change(db: &Connection, sql: &str, values: impl Params) -> Result<usize, RecipeError> {
    let done = db.prepare_cached(sql).and_then(|mut statement| statement.execute(values));
    done.map_err(|error| sqlite_error(&error, "use a queue"))
}
