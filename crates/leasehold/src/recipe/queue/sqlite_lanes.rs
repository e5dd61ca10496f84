//! Queues by key on SQLite: the row of a key's lane decides who has it.
//!
//! As in [`super::sqlite`], each call has the write lock of the file.

use std::time::Duration;

use rusqlite::{Connection, Row, named_params};

use super::limits::to_millis;
use super::rows::{ClaimedJob, FailedJob, LaneAnswer, LaneAsk, Nacked};
use super::sqlite::{QueueRow, Settled, all, change, one, settle};
use crate::recipe::error::{RecipeError, RecipeRefusal};
use crate::recipe::store::sqlite::Tick;

/// Keys that one claim looks at. Beyond that the caller asks again, from where this call stopped.
const MAX_KEYS_SEEN: usize = 200;
/// A lane that nobody has had for so long is forgotten.
const FORGET_LANE_AFTER_MS: i64 = 3_600_000;

const NEXT_KEY: &str = "SELECT key, ready_at FROM leasehold_job WHERE queue_id = ?1 AND key > ?2 AND key IS NOT NULL
    ORDER BY key, job_id LIMIT 1";
const TAKE_LANE: &str = "INSERT INTO leasehold_lane (queue_id, key, token, until, worker)
    VALUES (:queue, :key, :token, :until, :worker)
    ON CONFLICT (queue_id, key) DO UPDATE SET token = excluded.token, until = excluded.until, worker = excluded.worker
    WHERE until <= :now";
const FREE_LANE: &str = "UPDATE leasehold_lane SET token = 0, until = ?4
    WHERE queue_id = ?1 AND key = ?2 AND token = ?3 AND ?3 > 0";
/// The first job that is ready. In order it is the first of its key: one that is not ready holds up the key.
const HEAD: &str = "SELECT job_id, attempt, max_attempts, coalesce(error, 'lapsed') FROM leasehold_job
    WHERE queue_id = ?1 AND key = ?2 AND ready_at <= ?3 ORDER BY job_id LIMIT 1";
const JOBS: &str = "SELECT job_id, attempt, made_at, body, ready_at <= ?3 FROM leasehold_job
    WHERE queue_id = ?1 AND key = ?2 AND (?5 OR ready_at <= ?3) ORDER BY job_id LIMIT ?4";
const COUNT_TRY: &str = "UPDATE leasehold_job SET attempt = attempt + 1 WHERE job_id = ?1";
const HAS_LANE: &str = "SELECT 1 FROM leasehold_lane WHERE queue_id = ?1 AND key = ?2 AND token = ?3 AND ?3 > 0";
const END: &str = "DELETE FROM leasehold_job WHERE job_id = ?1 AND queue_id = ?2 AND key = ?3";
const OF_LANE: &str =
    "SELECT attempt, max_attempts FROM leasehold_job WHERE job_id = ?1 AND queue_id = ?2 AND key = ?3";
const EXTEND: &str = "UPDATE leasehold_lane SET until = ?4
    WHERE queue_id = ?1 AND key = ?2 AND token = ?3 AND ?3 > 0 AND until > ?5";
const FORGET: &str = "DELETE FROM leasehold_lane WHERE queue_id = ?1 AND until < ?2";

/// Takes keys that nobody has, from the cursor on and round, and the jobs at their heads.
pub(super) fn lane_claim(db: &Connection, tick: Tick, name: &str, ask: &LaneAsk) -> Result<LaneAnswer, RecipeError> {
    let queue = QueueRow::read(db, name)?;
    let mut answer = LaneAnswer::default();
    let (mut cursor, mut wrapped, mut taken, mut seen) = (ask.after.clone(), false, 0, 0);
    while taken < ask.keys && seen < MAX_KEYS_SEEN && !queue.paused {
        seen += 1;
        let head = one(db, NEXT_KEY, (queue.queue_id, &cursor), |row| Ok((row.get(0)?, row.get(1)?)))?;
        let Some((key, ready_at)): Option<(String, i64)> = head else {
            if wrapped || ask.after.is_empty() {
                break;
            }
            (wrapped, cursor) = (true, String::new());
            continue;
        };
        cursor.clone_from(&key);
        if wrapped && key > ask.after {
            break;
        }
        if queue.in_order && ready_at > tick.now {
            continue;
        }
        // To take a key and free it again is a write, which wakes every worker that sleeps on the file.
        if !queue.in_order && one(db, HEAD, (queue.queue_id, &key, tick.now), |_| Ok(()))?.is_none() {
            continue;
        }
        let jobs = claim_key(db, tick, &queue, &key, ask)?;
        taken += usize::from(!jobs.is_empty());
        answer.jobs.extend(jobs);
    }
    if taken < ask.keys && seen >= MAX_KEYS_SEEN {
        answer.go_on_after = Some(cursor);
    }
    Ok(answer)
}

/// Takes one key, if nobody has it. No jobs: it was not taken.
fn claim_key(
    db: &Connection,
    tick: Tick,
    queue: &QueueRow,
    key: &str,
    ask: &LaneAsk,
) -> Result<Vec<ClaimedJob>, RecipeError> {
    let until = tick.now.saturating_add(ask.visible.map_or(queue.visible, to_millis));
    let lane = named_params! {
        ":queue": queue.queue_id, ":key": key, ":token": tick.token, ":until": until, ":worker": ask.worker,
        ":now": tick.now,
    };
    if change(db, TAKE_LANE, lane)? == 0 {
        return Ok(Vec::new());
    }
    bury_exhausted_heads(db, tick, queue, key)?;
    let mut jobs = Vec::new();
    let wanted = (queue.queue_id, key, tick.now, ask.jobs_per_key, queue.in_order);
    let rows = all(db, JOBS, wanted, |row: &Row<'_>| {
        let job = ClaimedJob {
            job_id: row.get(0)?,
            token: tick.token,
            attempt: row.get(1)?,
            ready_at: None,
            made_at: row.get::<_, i64>(2)?.saturating_mul(1000),
            key: Some(key.to_owned()),
            body: row.get(3)?,
        };
        Ok((job, row.get::<_, bool>(4)?))
    })?;
    // In order, one that is not ready yet holds up those behind it.
    jobs.extend(rows.into_iter().take_while(|(_, ready)| *ready).map(|(job, _)| job));
    match jobs.first_mut() {
        // Only the first was surely tried.
        Some(head) => {
            change(db, COUNT_TRY, [head.job_id])?;
            head.attempt = head.attempt.saturating_add(1);
        }
        None => {
            change(db, FREE_LANE, (queue.queue_id, key, tick.token, tick.now))?;
        }
    }
    Ok(jobs)
}

/// Jobs at the head that were tried often enough under workers that died.
fn bury_exhausted_heads(db: &Connection, tick: Tick, queue: &QueueRow, key: &str) -> Result<(), RecipeError> {
    let read = |row: &Row<'_>| {
        Ok((Settled { job_id: row.get(0)?, attempt: row.get(1)?, most: row.get(2)?, after: None }, row.get(3)?))
    };
    while let Some((job, why)) = one(db, HEAD, (queue.queue_id, key, tick.now), read)? {
        if job.attempt < job.most {
            break;
        }
        let why: String = why;
        settle(db, tick, queue, &job, &why, true)?;
    }
    Ok(())
}

/// Ends jobs of a key; `free`: the claim on the key too.
pub(super) fn lane_ack(
    db: &Connection,
    tick: Tick,
    name: &str,
    lane: (&str, i64),
    jobs: &[i64],
    free: bool,
) -> Result<(), RecipeError> {
    let queue = QueueRow::read(db, name)?;
    let (key, token) = lane;
    if one(db, HAS_LANE, (queue.queue_id, key, token), |_| Ok(()))?.is_none() {
        return Err(RecipeRefusal::Stale { what: format!("delivery {token} of key {key}") }.into());
    }
    for job in jobs {
        change(db, END, (job, queue.queue_id, key))?;
    }
    if free {
        change(db, FREE_LANE, (queue.queue_id, key, token, tick.now))?;
    }
    Ok(())
}

/// Gives a job of a key back, and frees the key.
pub(super) fn lane_nack(
    db: &Connection,
    tick: Tick,
    name: &str,
    key: &str,
    failed: &FailedJob,
) -> Result<Nacked, RecipeError> {
    let queue = QueueRow::read(db, name)?;
    if change(db, FREE_LANE, (queue.queue_id, key, failed.token, tick.now))? == 0 {
        return Ok(Nacked::Stale);
    }
    let job = one(db, OF_LANE, (failed.job_id, queue.queue_id, key), |row| Ok((row.get(0)?, row.get(1)?)))?;
    let Some((attempt, most)) = job else { return Ok(Nacked::Stale) };
    let settled = Settled::from_failed(failed, attempt, most);
    settle(db, tick, &queue, &settled, &failed.why, failed.kill)
}

/// Whether the key is still ours.
pub(super) fn lane_extend(
    db: &Connection,
    tick: Tick,
    name: &str,
    lane: (&str, i64),
    visible: Duration,
) -> Result<bool, RecipeError> {
    let queue = QueueRow::read(db, name)?;
    let until = tick.now.saturating_add(to_millis(visible));
    Ok(change(db, EXTEND, (queue.queue_id, lane.0, lane.1, until, tick.now))? > 0)
}

/// Forgets lanes that nobody has had for long. Their tokens are behind those of the file's clock.
pub(super) fn forget_lanes(db: &Connection, tick: Tick, queue: &QueueRow) -> Result<(), RecipeError> {
    change(db, FORGET, (queue.queue_id, tick.now.saturating_sub(FORGET_LANE_AFTER_MS))).map(drop)
}
