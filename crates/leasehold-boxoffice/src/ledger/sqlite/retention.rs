//! Deletes old answers and holds, in portions: each is a job of its own, so that other jobs run in between.

use rusqlite::{Connection, params};

use super::load::SqliteResult;

/// The most rows that one job scans.
const ROWS_PER_JOB: u64 = 1000;

/// Deletes some of the answers stored before this moment. Returns how many; zero: there are no more.
pub(super) fn forget_answers(db: &Connection, until: u64) -> SqliteResult<u64> {
    let sql = "DELETE FROM answers WHERE key IN (SELECT key FROM answers WHERE at < ?1 LIMIT ?2)";
    Ok(db.prepare_cached(sql)?.execute([until, ROWS_PER_JOB])? as u64)
}

/// Deletes some of the holds that ended between these moments. Returns how many, and where to continue.
///
/// Holds with a payment stay: money may still come for them, or has come.
pub(super) fn forget_holds(db: &Connection, from: u64, until: u64) -> SqliteResult<(u64, Option<u64>)> {
    let sql = "SELECT count(*), max(expires_at) FROM (SELECT expires_at FROM holds
               WHERE live = 0 AND expires_at >= ?1 AND expires_at < ?2 ORDER BY expires_at LIMIT ?3)";
    let looked_at =
        db.prepare_cached(sql)?.query_row([from, until, ROWS_PER_JOB], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let (count, Some(last)): (u64, Option<u64>) = looked_at else { return Ok((0, None)) };
    let sql = "DELETE FROM holds WHERE live = 0 AND expires_at >= ?1 AND expires_at <= ?2
               AND NOT EXISTS (SELECT 1 FROM payments p WHERE p.hold_id = holds.hold_id)
               AND body ->> 'payment_ref' IS NULL";
    let gone = db.prepare_cached(sql)?.execute(params![from, last])?;
    Ok((gone as u64, (count == ROWS_PER_JOB).then_some(last + 1)))
}
