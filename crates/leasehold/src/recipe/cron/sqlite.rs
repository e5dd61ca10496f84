//! The ledger of runs in a file of SQLite.

use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::{
    CronBegun, CronEnd, CronRecorded, CronRun, CronSchedule, CronStart, MAX_AHEAD, RunState, from_unix_millis,
    token_number, unix_millis,
};
use crate::recipe::error::RecipeError;
use crate::recipe::store::sqlite::{STORE_NAME, SqliteDatabase, Tick, sqlite_error};

const UPSERT: &str = "INSERT INTO leasehold_schedule AS x VALUES (?1, ?2, ?3, ?4)
    ON CONFLICT (name) DO UPDATE SET token = excluded.token, last_tick = excluded.last_tick, spec = excluded.spec
    WHERE x.token <= excluded.token AND x.last_tick < excluded.last_tick AND x.last_tick = ?5 RETURNING 1";
const LAST_TICK: &str = "SELECT last_tick, token FROM leasehold_schedule WHERE name = ?1";
const LOST: &str =
    "UPDATE leasehold_run SET state = 'lost', ended_at = ?3 WHERE name = ?1 AND state = 'running' AND token < ?2";
const MISSED: &str = "INSERT INTO leasehold_run (name, tick, upto, ticks, token, state, machine, started_at, ended_at)
    VALUES (?1, ?2, ?3, ?4, ?5, CASE WHEN EXISTS (SELECT 1 FROM leasehold_run r WHERE r.name = ?1 AND r.ended_at > ?3
        AND r.state IN ('ok', 'failed')) THEN 'skipped' ELSE 'missed' END, ?6, ?7, ?7) RETURNING state";
const RUNNING: &str = "INSERT INTO leasehold_run (name, tick, upto, token, state, machine, started_at)
    VALUES (?1, ?2, ?2, ?3, 'running', ?4, ?5)";
/// The newest 10,000 rows are kept. Which tick is next is told by leasehold_schedule alone.
const FORGET: &str = "DELETE FROM leasehold_run WHERE name = ?1 AND state <> 'running' AND tick IN
    (SELECT r.tick FROM leasehold_run r WHERE r.name = ?1 ORDER BY r.tick DESC LIMIT 100 OFFSET 10000)";
const FINISH: &str = "UPDATE leasehold_run SET state = ?4, code = ?5, tail = ?6, ended_at = ?7
    WHERE name = ?1 AND tick = ?2 AND token = ?3 AND state = 'running'";
const SCHEDULE: &str = "SELECT name, spec, last_tick, token FROM leasehold_schedule WHERE name = ?1";
const SCHEDULES: &str = "SELECT name, spec, last_tick, token FROM leasehold_schedule ORDER BY name LIMIT ?1";
const RUNS: &str = "SELECT tick, upto, ticks, token, state, machine, started_at, ended_at, code, tail
    FROM leasehold_run WHERE name = ?1 ORDER BY tick DESC LIMIT ?2";

const ATTEMPT_BEGIN: &str = "begin a run";

impl SqliteDatabase {
    pub(super) async fn cron_begin(&self, start: &CronStart) -> Result<CronBegun, RecipeError> {
        let start = start.clone();
        self.write(ATTEMPT_BEGIN, move |db, clock| begin_at(db, &start, clock)).await
    }

    pub(super) async fn cron_finish(&self, end: CronEnd) -> Result<bool, RecipeError> {
        const ATTEMPT: &str = "finish a run";
        let work = move |db: &Connection, clock: Tick| {
            let CronEnd { name, tick, token, state, code, tail } = &end;
            let values = params![name, tick, token, state.as_str(), code, tail, clock.now];
            db.execute(FINISH, values).map(|rows| rows > 0).map_err(|error| sqlite_error(&error, ATTEMPT))
        };
        self.write(ATTEMPT, work).await
    }

    pub(super) async fn cron_remove(&self, name: &str) -> Result<bool, RecipeError> {
        const ATTEMPT: &str = "remove a schedule";
        let name = name.to_owned();
        let remove = move |db: &Connection| {
            db.execute("DELETE FROM leasehold_run WHERE name = ?1", [&name])?;
            db.execute("DELETE FROM leasehold_schedule WHERE name = ?1", [&name]).map(|rows| rows > 0)
        };
        self.write(ATTEMPT, move |db, _| remove(db).map_err(|error| sqlite_error(&error, ATTEMPT))).await
    }

    pub(super) async fn cron_schedule(&self, name: &str) -> Result<Option<CronSchedule>, RecipeError> {
        const ATTEMPT: &str = "read a schedule";
        let name = name.to_owned();
        let work = move |db: &Connection, _| {
            db.query_row(SCHEDULE, [name], read_schedule).optional().map_err(|error| sqlite_error(&error, ATTEMPT))
        };
        self.read(ATTEMPT, work).await
    }

    pub(super) async fn cron_schedules(&self, limit: u32) -> Result<Vec<CronSchedule>, RecipeError> {
        const ATTEMPT: &str = "read the schedules";
        let work = move |db: &Connection, _| {
            let read = || -> rusqlite::Result<Vec<CronSchedule>> {
                db.prepare_cached(SCHEDULES)?.query_map([limit], read_schedule)?.collect()
            };
            read().map_err(|error| sqlite_error(&error, ATTEMPT))
        };
        self.read(ATTEMPT, work).await
    }

    pub(super) async fn cron_runs(&self, name: &str, limit: u32) -> Result<Vec<CronRun>, RecipeError> {
        const ATTEMPT: &str = "read the runs";
        let name = name.to_owned();
        let work = move |db: &Connection, _| {
            let mut statement = db.prepare_cached(RUNS)?;
            let rows = statement.query_map(params![name, limit], read_run)?;
            rows.collect::<rusqlite::Result<Vec<Option<CronRun>>>>()
        };
        let work = move |db: &Connection, now| work(db, now).map_err(|error| sqlite_error(&error, ATTEMPT));
        let law = "the ledger of runs has the words that were agreed on";
        let rows = self.read(ATTEMPT, work).await?;
        rows.into_iter().map(|run| run.ok_or_else(|| RecipeError::corrupt(STORE_NAME, law, "leasehold_run"))).collect()
    }
}

/// As `cron_begin` of PostgreSQL, inside one transaction.
fn begin_at(db: &Connection, start: &CronStart, clock: Tick) -> Result<CronBegun, RecipeError> {
    let sql = |error: rusqlite::Error| sqlite_error(&error, ATTEMPT_BEGIN);
    let CronStart { name, machine, spec, .. } = start;
    let tick = unix_millis(start.tick)?;
    let ahead = i64::try_from(MAX_AHEAD.as_millis()).unwrap_or(i64::MAX);
    if tick > clock.now.saturating_add(ahead) {
        return Ok(CronBegun::Early);
    }
    let token = token_number(start.token).unwrap_or(clock.token);
    let seen = start.seen.map(unix_millis).transpose()?;
    let taken = db.query_row(UPSERT, params![name, token, tick, spec, seen], |_| Ok(())).optional().map_err(sql)?;
    if taken.is_none() {
        let found = db.query_row(LAST_TICK, [name], |row| Ok((row.get(0)?, row.get(1)?)));
        let (last, newest): (i64, i64) = found.map_err(sql)?;
        return Ok(match () {
            () if last >= tick => CronBegun::Done,
            () if newest > token => CronBegun::Stale,
            () => CronBegun::Again,
        });
    }
    let lost = db.execute(LOST, params![name, token, clock.now]).map_err(sql)?;
    let mut recorded = CronRecorded { lost: u32::try_from(lost).unwrap_or(u32::MAX), ..CronRecorded::default() };
    for missed in &start.missed {
        let (from, upto) = (unix_millis(missed.from)?, unix_millis(missed.upto)?);
        let values = params![name, from, upto, missed.count, token, machine, clock.now];
        let state: String = db.query_row(MISSED, values, |row| row.get(0)).map_err(sql)?;
        let ticks = if state == RunState::Skipped.as_str() { &mut recorded.skipped } else { &mut recorded.missed };
        *ticks = ticks.saturating_add(missed.count);
    }
    db.execute(RUNNING, params![name, tick, token, machine, clock.now]).map_err(sql)?;
    db.execute(FORGET, [name]).map_err(sql)?;
    Ok(CronBegun::First { token, recorded })
}

fn read_schedule(row: &Row<'_>) -> rusqlite::Result<CronSchedule> {
    let last_tick = from_unix_millis(row.get(2)?);
    Ok(CronSchedule { name: row.get(0)?, spec: row.get(1)?, last_tick, token: row.get(3)? })
}

fn read_run(row: &Row<'_>) -> rusqlite::Result<Option<CronRun>> {
    let Some(state) = RunState::from_word(&row.get::<_, String>(4)?) else { return Ok(None) };
    Ok(Some(CronRun {
        tick: from_unix_millis(row.get(0)?),
        upto: from_unix_millis(row.get(1)?),
        ticks: row.get(2)?,
        token: row.get(3)?,
        state,
        machine: row.get(5)?,
        started_at: from_unix_millis(row.get(6)?),
        ended_at: row.get::<_, Option<i64>>(7)?.map(from_unix_millis),
        code: row.get(8)?,
        tail: row.get(9)?,
    }))
}
