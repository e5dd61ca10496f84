//! Queues on SQLite, as people look at them: status, dead letters, hot keys; and what an operator changes.

use std::time::Duration;

use rusqlite::{Connection, Row};

use super::rows::{COUNTED_JOBS, DeadJob, HotKey, QueueStatus};
use super::sqlite::{QueueRow, all, change, one};
use crate::recipe::error::{RecipeError, RecipeRefusal};
use crate::recipe::store::sqlite::Tick;

const NAMES: &str = "SELECT name FROM leasehold_queue WHERE ?1 IS NULL OR name = ?1 ORDER BY name";
const WAITING: &str = "SELECT count(*) FILTER (WHERE ready_at <= ?2), count(*) FILTER (WHERE ready_at > ?2),
        count(*) FILTER (WHERE attempt > 0), ?2 - min(ready_at) FILTER (WHERE ready_at <= ?2) FROM (
    SELECT * FROM (SELECT ready_at, attempt FROM leasehold_job
        WHERE queue_id = ?1 AND token = 0 AND ready_at <= ?2 LIMIT ?3)
    UNION ALL SELECT * FROM (SELECT ready_at, attempt FROM leasehold_job
        WHERE queue_id = ?1 AND token = 0 AND ready_at > ?2 LIMIT ?3))";
const TAKEN: &str =
    "SELECT (SELECT count(*) FROM (SELECT 1 FROM leasehold_job WHERE queue_id = ?1 AND until IS NOT NULL LIMIT ?3))
    + (SELECT count(*) FROM (SELECT 1 FROM leasehold_lane WHERE queue_id = ?1 AND token > 0 AND until > ?2 LIMIT ?3))";
const COUNT_DEAD: &str = "SELECT count(*) FROM (SELECT 1 FROM leasehold_dead_job WHERE queue_id = ?1 LIMIT ?2)";
const HOT_KEYS: &str =
    "SELECT key, count(*), ?2 - min(made_at) FROM leasehold_job WHERE queue_id = ?1 AND key IS NOT NULL
    GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT ?3";
const DEAD: &str = "SELECT job_id, attempt, key, error, ?2 - made_at, ?2 - died_at, body FROM leasehold_dead_job
    WHERE queue_id = ?1 ORDER BY died_at DESC, job_id DESC LIMIT ?3";
/// By id, not by death: whoever goes through all letters pages with this.
const DEAD_BELOW: &str = "SELECT job_id, attempt, key, error, ?2 - made_at, ?2 - died_at, body FROM leasehold_dead_job
    WHERE queue_id = ?1 AND job_id < ?4 ORDER BY job_id DESC LIMIT ?3";
const PAUSE: &str = "UPDATE leasehold_queue SET paused = ?2 WHERE name = ?1";
const DROP: &str = "DELETE FROM leasehold_dead_job WHERE job_id = ?1 AND queue_id = ?2";
const REVIVE: &str =
    "INSERT INTO leasehold_job (queue_id, priority, ready_at, made_at, max_attempts, key, dedupe, body)
    SELECT queue_id, iif(priority IN (SELECT value FROM json_each(?4)), priority, ?5), ?3, ?3, max_attempts, key, dedupe,
        body FROM leasehold_dead_job
    WHERE job_id = ?1 AND queue_id = ?2 ON CONFLICT DO NOTHING";
const NEXT_OF_LEVEL: &str = "SELECT min(ready_at) FROM leasehold_job
    WHERE queue_id = ?1 AND priority = ?2 AND token = 0 AND key IS NULL AND ready_at > ?3";
/// The first thousand: the poll finds the rest.
const NEXT_OF_KEYS: &str = "SELECT min(ready_at) FROM (SELECT ready_at FROM leasehold_job
    WHERE queue_id = ?1 AND key IS NOT NULL ORDER BY key, job_id LIMIT 1000) WHERE ready_at > ?2";

pub(super) fn status(db: &Connection, now: i64, name: Option<&str>) -> Result<Vec<QueueStatus>, RecipeError> {
    let names: Vec<String> = all(db, NAMES, [name], |row| row.get(0))?;
    names.iter().map(|name| status_of(db, now, &QueueRow::read(db, name)?)).collect()
}

fn status_of(db: &Connection, now: i64, queue: &QueueRow) -> Result<QueueStatus, RecipeError> {
    let counted = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get::<_, Option<i64>>(3)?));
    let waiting = one(db, WAITING, (queue.queue_id, now, COUNTED_JOBS), counted)?;
    let (ready, delayed, retried, oldest) = waiting.unwrap_or_default();
    Ok(QueueStatus {
        name: queue.name.clone(),
        by_key: queue.keyed,
        paused: queue.paused,
        ready,
        delayed,
        retried,
        taken: one(db, TAKEN, (queue.queue_id, now, COUNTED_JOBS), |row| row.get(0))?.unwrap_or_default(),
        dead: one(db, COUNT_DEAD, (queue.queue_id, COUNTED_JOBS), |row| row.get(0))?.unwrap_or_default(),
        oldest: oldest.map(span_of),
        sleepers: 0,
    })
}

pub(super) fn hot_keys(db: &Connection, now: i64, name: &str, most: i64) -> Result<Vec<HotKey>, RecipeError> {
    let queue = QueueRow::read(db, name)?;
    all(db, HOT_KEYS, (queue.queue_id, now, most), |row| {
        Ok(HotKey { key: row.get(0)?, jobs: row.get(1)?, oldest: span_of(row.get(2)?) })
    })
}

/// `below`: only letters with lower ids than this, the highest id first.
pub(super) fn dead(
    db: &Connection,
    now: i64,
    name: &str,
    most: i64,
    below: Option<i64>,
) -> Result<Vec<DeadJob>, RecipeError> {
    let queue = QueueRow::read(db, name)?;
    match below {
        None => all(db, DEAD, (queue.queue_id, now, most), read_dead),
        Some(id) => all(db, DEAD_BELOW, (queue.queue_id, now, most, id), read_dead),
    }
}

fn read_dead(row: &Row<'_>) -> rusqlite::Result<DeadJob> {
    Ok(DeadJob {
        job_id: row.get(0)?,
        attempt: row.get(1)?,
        key: row.get(2)?,
        error: row.get(3)?,
        age: span_of(row.get(4)?),
        dead_for: span_of(row.get(5)?),
        body: row.get(6)?,
    })
}

/// How many dead letters wait again. One whose dedupe id is in use stays a dead letter.
pub(super) fn revive(db: &Connection, tick: Tick, name: &str, jobs: &[i64]) -> Result<u64, RecipeError> {
    let queue = QueueRow::read(db, name)?;
    let mut sorted = jobs.to_vec();
    sorted.sort_unstable();
    // A level that is not served any more becomes the last one that is.
    let (levels, last) = (format!("{:?}", queue.levels), queue.levels.last().copied().unwrap_or(1));
    let mut revived = 0;
    for job in sorted {
        if change(db, REVIVE, (job, queue.queue_id, tick.now, &levels, last))? > 0 {
            revived += change(db, DROP, (job, queue.queue_id))?;
        }
    }
    Ok(u64::try_from(revived).unwrap_or(u64::MAX))
}

/// How many dead letters were removed.
pub(super) fn drop_dead(db: &Connection, name: &str, jobs: &[i64]) -> Result<u64, RecipeError> {
    let queue = QueueRow::read(db, name)?;
    let mut dropped = 0;
    for job in jobs {
        dropped += change(db, DROP, (job, queue.queue_id))?;
    }
    Ok(u64::try_from(dropped).unwrap_or(u64::MAX))
}

pub(super) fn pause(db: &Connection, name: &str, paused: bool) -> Result<(), RecipeError> {
    if change(db, PAUSE, (name, paused))? == 0 {
        return Err(RecipeRefusal::NoQueue { name: name.to_owned() }.into());
    }
    Ok(())
}

/// How long until the next job that is not ready yet is ready; none: there is none.
pub(super) fn next_ready(db: &Connection, now: i64, name: &str) -> Result<Option<Duration>, RecipeError> {
    let queue = QueueRow::read(db, name)?;
    let mut next: Option<i64> = one(db, NEXT_OF_KEYS, (queue.queue_id, now), |row| row.get(0))?.flatten();
    for level in &queue.levels {
        let of_level: Option<i64> = one(db, NEXT_OF_LEVEL, (queue.queue_id, level, now), |row| row.get(0))?.flatten();
        next = [next, of_level].into_iter().flatten().min();
    }
    Ok(next.map(|ready_at| span_of(ready_at.saturating_sub(now))))
}

fn span_of(millis: i64) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}
