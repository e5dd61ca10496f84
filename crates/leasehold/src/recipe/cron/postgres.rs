//! The ledger of runs on PostgreSQL: the functions `cron_begin` and `cron_finish`.

use leasehold_postgres::tokio_postgres::types::Type;
use leasehold_postgres::tokio_postgres::{Error as SqlError, Row};

use super::{
    CronBegun, CronEnd, CronRecorded, CronRun, CronSchedule, CronStart, MAX_AHEAD, RunState, from_unix_millis,
    token_number, unix_millis,
};
use crate::recipe::error::RecipeError;
use crate::recipe::store::postgres::{PostgresDatabase, STORE_NAME, SqlParameter};

/// OFFSET 0: the token is drawn once.
const BEGIN: &str = "SELECT tok, begun.outcome, begun.skipped, begun.missed, begun.lost
    FROM (SELECT coalesce($3, nextval('leasehold.recipe_token')) AS tok OFFSET 0) t,
        leasehold.cron_begin($1, to_timestamp($2 / 1000.0), tok, $4, $5,
            ARRAY(SELECT to_timestamp(at / 1000.0) FROM unnest($6) WITH ORDINALITY x(at, place) ORDER BY place),
            ARRAY(SELECT to_timestamp(at / 1000.0) FROM unnest($7) WITH ORDINALITY x(at, place) ORDER BY place),
            $8, make_interval(secs => $9), to_timestamp($10 / 1000.0)) begun";
const FINISH: &str = "SELECT leasehold.cron_finish($1, to_timestamp($2 / 1000.0), $3, $4, $5, $6)";
const SCHEDULE: &str = "SELECT name, spec, (extract(epoch FROM last_tick) * 1000)::bigint, token
    FROM leasehold.schedule WHERE name = $1";
const SCHEDULES: &str = "SELECT name, spec, (extract(epoch FROM last_tick) * 1000)::bigint, token
    FROM leasehold.schedule ORDER BY name LIMIT $1";
const RUNS: &str =
    "SELECT (extract(epoch FROM tick) * 1000)::bigint, (extract(epoch FROM upto) * 1000)::bigint, ticks, token,
        state, machine, (extract(epoch FROM started_at) * 1000)::bigint, (extract(epoch FROM ended_at) * 1000)::bigint,
        code, tail
    FROM leasehold.run WHERE name = $1 ORDER BY tick DESC LIMIT $2";

const REMOVE: &str = "WITH r AS (DELETE FROM leasehold.run WHERE name = $1)
    DELETE FROM leasehold.schedule WHERE name = $1 RETURNING 1";

impl PostgresDatabase {
    pub(super) async fn cron_remove(&self, name: &str) -> Result<bool, RecipeError> {
        Ok(!self.call("remove a schedule", REMOVE, &[(&name, Type::TEXT)]).await?.is_empty())
    }

    pub(super) async fn cron_begin(&self, start: &CronStart) -> Result<CronBegun, RecipeError> {
        let (tick, token) = (unix_millis(start.tick)?, token_number(start.token));
        let from = start.missed.iter().map(|missed| unix_millis(missed.from)).collect::<Result<Vec<_>, _>>()?;
        let upto = start.missed.iter().map(|missed| unix_millis(missed.upto)).collect::<Result<Vec<_>, _>>()?;
        let count: Vec<i32> =
            start.missed.iter().map(|missed| i32::try_from(missed.count).unwrap_or(i32::MAX)).collect();
        let ahead = MAX_AHEAD.as_secs_f64();
        let seen = start.seen.map(unix_millis).transpose()?;
        let parameters: [SqlParameter<'_>; 10] = [
            (&start.name, Type::TEXT),
            (&tick, Type::INT8),
            (&token, Type::INT8),
            (&start.machine, Type::TEXT),
            (&start.spec, Type::TEXT),
            (&from, Type::INT8_ARRAY),
            (&upto, Type::INT8_ARRAY),
            (&count, Type::INT4_ARRAY),
            (&ahead, Type::FLOAT8),
            (&seen, Type::INT8),
        ];
        let rows = self.call("begin a run", BEGIN, &parameters).await?;
        let row = rows.first().ok_or_else(|| corrupt("leasehold.cron_begin"))?;
        let number = |at| row.try_get::<_, i64>(at).map_err(|_| corrupt("leasehold.cron_begin"));
        let count = |at| number(at).map(|count| u32::try_from(count).unwrap_or(u32::MAX));
        Ok(match row.try_get::<_, Option<&str>>(1).ok().flatten() {
            Some("first") => CronBegun::First {
                token: number(0)?,
                recorded: CronRecorded { skipped: count(2)?, missed: count(3)?, lost: count(4)? },
            },
            Some("done") => CronBegun::Done,
            Some("stale") => CronBegun::Stale,
            Some("again") => CronBegun::Again,
            Some("early") => CronBegun::Early,
            _ => return Err(corrupt("leasehold.cron_begin")),
        })
    }

    pub(super) async fn cron_finish(&self, end: &CronEnd) -> Result<bool, RecipeError> {
        let state = end.state.as_str();
        let parameters: [SqlParameter<'_>; 6] = [
            (&end.name, Type::TEXT),
            (&end.tick, Type::INT8),
            (&end.token, Type::INT8),
            (&state, Type::TEXT),
            (&end.code, Type::INT4),
            (&end.tail, Type::TEXT),
        ];
        let rows = self.call("finish a run", FINISH, &parameters).await?;
        rows.first().and_then(|row| row.try_get(0).ok()).ok_or_else(|| corrupt("leasehold.cron_finish"))
    }

    pub(super) async fn cron_schedule(&self, name: &str) -> Result<Option<CronSchedule>, RecipeError> {
        let rows = self.call("read a schedule", SCHEDULE, &[(&name, Type::TEXT)]).await?;
        rows.first().map(read_schedule).transpose().map_err(|_| corrupt("leasehold.schedule"))
    }

    pub(super) async fn cron_schedules(&self, limit: u32) -> Result<Vec<CronSchedule>, RecipeError> {
        let limit = i64::from(limit);
        let rows = self.call("read the schedules", SCHEDULES, &[(&limit, Type::INT8)]).await?;
        rows.iter().map(read_schedule).collect::<Result<_, _>>().map_err(|_| corrupt("leasehold.schedule"))
    }

    pub(super) async fn cron_runs(&self, name: &str, limit: u32) -> Result<Vec<CronRun>, RecipeError> {
        let limit = i64::from(limit);
        let rows = self.call("read the runs", RUNS, &[(&name, Type::TEXT), (&limit, Type::INT8)]).await?;
        rows.iter().map(|row| read_run(row).ok().flatten().ok_or_else(|| corrupt("leasehold.run"))).collect()
    }
}

fn read_schedule(row: &Row) -> Result<CronSchedule, SqlError> {
    let last_tick = from_unix_millis(row.try_get(2)?);
    Ok(CronSchedule { name: row.try_get(0)?, spec: row.try_get(1)?, last_tick, token: row.try_get(3)? })
}

fn read_run(row: &Row) -> Result<Option<CronRun>, SqlError> {
    let Some(state) = RunState::from_word(row.try_get(4)?) else { return Ok(None) };
    Ok(Some(CronRun {
        tick: from_unix_millis(row.try_get(0)?),
        upto: from_unix_millis(row.try_get(1)?),
        ticks: u32::try_from(row.try_get::<_, i32>(2)?).unwrap_or(0),
        token: row.try_get(3)?,
        state,
        machine: row.try_get(5)?,
        started_at: from_unix_millis(row.try_get(6)?),
        ended_at: row.try_get::<_, Option<i64>>(7)?.map(from_unix_millis),
        code: row.try_get(8)?,
        tail: row.try_get(9)?,
    }))
}

fn corrupt(at: &str) -> RecipeError {
    RecipeError::corrupt(STORE_NAME, "the ledger of runs has the words that were agreed on", at)
}
