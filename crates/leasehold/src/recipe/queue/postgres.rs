//! The calls of a queue on PostgreSQL: one statement each, most of them a function of schema `leasehold`.

use std::error::Error as StdError;
use std::future::Future;
use std::time::Duration;

use leasehold_postgres::tokio_postgres::types::{
    FromSql, FromSqlOwned, IsNull, ToSql, Type, accepts, private::BytesMut, to_sql_checked,
};
use leasehold_postgres::tokio_postgres::{GenericClient, Row};

use super::limits::to_millis;
use super::rows::{
    ClaimedJob, DeadJob, Extended, FailedJob, HotKey, LaneAnswer, LaneAsk, NewJob, NotEnded, Pushed, QueueFacts,
    QueueSettings, QueueStatus, SINCE_EVER, TurnAnswer, TurnAsk,
};
use crate::recipe::error::RecipeError;
use crate::recipe::store::postgres::sql_error::{SqlEffect, recipe_error};
use crate::recipe::store::postgres::{PostgresDatabase, STORE_NAME, SqlParameter};

/// Microseconds from 1970 to 2000, where PostgreSQL begins to count.
const EPOCH_MICROS: i64 = 946_684_800_000_000;

const PUSH: &str = "SELECT job_id, fresh FROM leasehold.queue_push($1, $2::text::jsonb, $3::bigint * interval '1 ms',
    $4, $5, $6, $7)";
const TURN: &str = "SELECT job_id, token, attempt, ready_at, made_at, body::text
    FROM leasehold.queue_turn($1, $2, $3, $4, $5::bigint * interval '1 ms', $6, $7, $8)";
const ACK: &str = "SELECT job_id, locked FROM leasehold.queue_ack($1, $2, false)";
const HERE: &str = "SELECT j.job_id FROM leasehold.job j JOIN leasehold.queue q USING (queue_id)
    WHERE q.name = $1 AND j.job_id = ANY ($2)";
const FINISH: &str = "SELECT leasehold.queue_finish($1, $2)";
const NACK: &str = "SELECT leasehold.queue_nack($1, $2, $3, $4::bigint * interval '1 ms', $5, $6, false)";
const EXTEND: &str = "SELECT job_id, locked FROM leasehold.queue_extend($1, $2, $3::bigint * interval '1 ms')";
const SWEEP: &str = "SELECT leasehold.queue_sweep($1)";
const LANE_CLAIM: &str = "SELECT key, token, job_id, attempt, made_at, body::text
    FROM leasehold.lane_claim($1, $2, $3, $4::bigint * interval '1 ms', $5, $6)";
const LANE_ACK: &str = "SELECT leasehold.lane_ack($1, $2, $3, $4, $5, $6)";
const LANE_NACK: &str = "SELECT leasehold.lane_nack($1, $2, $3, $4, $5, $6::bigint * interval '1 ms', $7, $8, false)";
const LANE_EXTEND: &str = "SELECT leasehold.lane_extend($1, $2, $3, $4::bigint * interval '1 ms')";

/// No row: there is such a queue, and it is of the other kind or has jobs on a level that would not be served any more.
const MAKE: &str = "INSERT INTO leasehold.queue AS q
        (name, keyed, in_order, levels, visible, max_attempts, backoff_base, backoff_cap)
    VALUES ($1, $2, coalesce($3, true), coalesce($4, '{1}'), coalesce($5::bigint * interval '1 ms', '30 s'),
        coalesce($6, 20::smallint), coalesce($7::bigint * interval '1 ms', '1 s'), coalesce($8::bigint * interval '1 ms', '1 h'))
    ON CONFLICT (name) DO UPDATE SET in_order = coalesce($3, q.in_order), levels = coalesce($4, q.levels),
        visible = coalesce($5::bigint * interval '1 ms', q.visible), max_attempts = coalesce($6, q.max_attempts),
        backoff_base = coalesce($7::bigint * interval '1 ms', q.backoff_base),
        backoff_cap = coalesce($8::bigint * interval '1 ms', q.backoff_cap)
    WHERE q.keyed = excluded.keyed AND ($4 IS NULL OR NOT EXISTS
        (SELECT FROM leasehold.job j WHERE j.queue_id = q.queue_id AND j.priority <> ALL ($4)))
    RETURNING keyed, (extract(epoch FROM visible) * 1000)::bigint, levels";
const FACTS: &str =
    "SELECT keyed, (extract(epoch FROM visible) * 1000)::bigint, levels FROM leasehold.queue WHERE name = $1";
const PAUSE: &str = "UPDATE leasehold.queue SET paused = $2 WHERE name = $1 RETURNING queue_id";

/// Also removes what workers that died left behind.
const ARM: &str = "WITH q AS (SELECT queue_id FROM leasehold.queue WHERE name = $1),
    old AS (DELETE FROM leasehold.sleeper s USING q WHERE s.queue_id = q.queue_id AND s.channel <> $2
        AND s.until < clock_timestamp() - interval '1 min')
    INSERT INTO leasehold.sleeper SELECT queue_id, $2, clock_timestamp() + $3::bigint * interval '1 ms' FROM q
    ON CONFLICT (queue_id, channel) DO UPDATE SET until = excluded.until";
const DISARM: &str = "DELETE FROM leasehold.sleeper s USING leasehold.queue q
    WHERE q.name = $1 AND s.queue_id = q.queue_id AND s.channel = $2";

/// Milliseconds until the next job that is not ready yet is ready. Of a queue by key the first thousand jobs are looked at:
/// the poll finds the rest.
const NEXT_READY: &str = "SELECT (extract(epoch FROM least(
        (SELECT min(w.ready_at) FROM unnest(q.levels) p, LATERAL (
            SELECT j.ready_at FROM leasehold.job j WHERE j.queue_id = q.queue_id AND j.priority = p AND j.token = 0
                AND j.key IS NULL AND j.ready_at > now() ORDER BY j.ready_at LIMIT 1) w),
        (SELECT min(k.ready_at) FROM (SELECT j.ready_at FROM leasehold.job j WHERE j.queue_id = q.queue_id
            AND j.key IS NOT NULL ORDER BY j.key, j.job_id LIMIT 1000) k WHERE k.ready_at > now())
    ) - now()) * 1000)::bigint FROM leasehold.queue q WHERE q.name = $1";

const STATUS: &str = "SELECT q.name, q.keyed, q.paused, w.ready, w.delayed, w.retried, t.taken, d.dead, s.sleepers,
        (extract(epoch FROM clock_timestamp() - least(w.oldest, (
            SELECT min(o.ready_at) FROM unnest(q.levels) p, LATERAL (SELECT j.ready_at FROM leasehold.job j
                WHERE j.queue_id = q.queue_id AND j.priority = p AND j.token = 0 AND j.key IS NULL
                ORDER BY j.ready_at LIMIT 1) o WHERE o.ready_at <= clock_timestamp()))) * 1000)::bigint
    FROM leasehold.queue q,
    LATERAL (SELECT count(*) FILTER (WHERE x.ready_at <= clock_timestamp()) AS ready,
            count(*) FILTER (WHERE x.ready_at > clock_timestamp()) AS delayed,
            count(*) FILTER (WHERE x.attempt > 0) AS retried,
            min(x.ready_at) FILTER (WHERE x.ready_at <= clock_timestamp()) AS oldest FROM (
        (SELECT j.ready_at, j.attempt FROM leasehold.job j WHERE j.queue_id = q.queue_id AND j.token = 0
            AND j.key IS NULL AND j.ready_at <= clock_timestamp() LIMIT 10000)
        UNION ALL (SELECT j.ready_at, j.attempt FROM leasehold.job j WHERE j.queue_id = q.queue_id AND j.token = 0
            AND j.key IS NULL AND j.ready_at > clock_timestamp() LIMIT 10000)
        UNION ALL (SELECT j.ready_at, j.attempt FROM leasehold.job j WHERE j.queue_id = q.queue_id
            AND j.key IS NOT NULL AND j.ready_at <= clock_timestamp() LIMIT 10000)
        UNION ALL (SELECT j.ready_at, j.attempt FROM leasehold.job j WHERE j.queue_id = q.queue_id
            AND j.key IS NOT NULL AND j.ready_at > clock_timestamp() LIMIT 10000)) x) w,
    LATERAL (SELECT count(*) AS taken FROM (
        (SELECT FROM leasehold.job j WHERE j.queue_id = q.queue_id AND j.token > 0 LIMIT 10000)
        UNION ALL (SELECT FROM leasehold.lane l WHERE l.queue_id = q.queue_id AND l.token > 0
            AND l.until > clock_timestamp() LIMIT 10000)) x) t,
    LATERAL (SELECT count(*) AS dead FROM (
        SELECT FROM leasehold.dead_job j WHERE j.queue_id = q.queue_id LIMIT 10000) x) d,
    LATERAL (SELECT count(*) AS sleepers FROM leasehold.sleeper s WHERE s.queue_id = q.queue_id
        AND s.until > clock_timestamp()) s
    WHERE $1::text IS NULL OR q.name = $1 ORDER BY q.name";
const HOT_KEYS: &str = "SELECT j.key, count(*), (extract(epoch FROM clock_timestamp() - min(j.made_at)) * 1000)::bigint
    FROM leasehold.job j JOIN leasehold.queue q USING (queue_id) WHERE q.name = $1 AND j.key IS NOT NULL
    GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT $2";
const DEAD: &str = "SELECT j.job_id, j.attempt, j.key, j.error,
        (extract(epoch FROM clock_timestamp() - j.made_at) * 1000)::bigint,
        (extract(epoch FROM clock_timestamp() - j.died_at) * 1000)::bigint, j.body::text
    FROM leasehold.dead_job j JOIN leasehold.queue q USING (queue_id) WHERE q.name = $1
    ORDER BY j.died_at DESC, j.job_id DESC LIMIT $2";
/// By id, not by death: whoever goes through all letters pages with this.
const DEAD_BELOW: &str = "SELECT j.job_id, j.attempt, j.key, j.error,
        (extract(epoch FROM clock_timestamp() - j.made_at) * 1000)::bigint,
        (extract(epoch FROM clock_timestamp() - j.died_at) * 1000)::bigint, j.body::text
    FROM leasehold.dead_job j JOIN leasehold.queue q USING (queue_id) WHERE q.name = $1 AND j.job_id < $3
    ORDER BY j.job_id DESC LIMIT $2";
const REVIVE: &str = "SELECT leasehold.queue_revive(ARRAY(SELECT j.job_id FROM leasehold.dead_job j
    JOIN leasehold.queue q USING (queue_id) WHERE q.name = $1 AND j.job_id = ANY ($2)))";
const DROP: &str = "WITH gone AS (DELETE FROM leasehold.dead_job j USING leasehold.queue q
        WHERE q.name = $1 AND j.queue_id = q.queue_id AND j.job_id = ANY ($2) RETURNING 1)
    SELECT count(*) FROM gone";

/// Where the calls go: connections of ours, or one of the user's.
pub(super) trait QueueSession: Sync {
    /// A call of the user's may wait for a lock for as long as the user's session does.
    const IS_USERS: bool;

    /// The rows of a statement.
    fn rows(
        &self,
        attempt: &str,
        sql: &'static str,
        params: &[SqlParameter<'_>],
    ) -> impl Future<Output = Result<Vec<Row>, RecipeError>> + Send;
}

impl QueueSession for PostgresDatabase {
    const IS_USERS: bool = false;

    async fn rows(
        &self,
        attempt: &str,
        sql: &'static str,
        params: &[SqlParameter<'_>],
    ) -> Result<Vec<Row>, RecipeError> {
        self.call(attempt, sql, params).await
    }
}

/// A connection or transaction of the user's: nothing is left prepared on it.
pub(super) struct UserSession<'a, C>(pub &'a C);

impl<C: GenericClient + Sync> QueueSession for UserSession<'_, C> {
    const IS_USERS: bool = true;

    async fn rows(
        &self,
        attempt: &str,
        sql: &'static str,
        params: &[SqlParameter<'_>],
    ) -> Result<Vec<Row>, RecipeError> {
        let rows = self.0.query_typed(sql, params).await;
        // Outside of a transaction it would have committed by itself.
        rows.map_err(|error| recipe_error(&error, attempt, SqlEffect::Unknown))
    }
}

/// A moment of the server: microseconds since 1970.
#[derive(Clone, Copy, Debug)]
struct ServerMoment(i64);

impl<'a> FromSql<'a> for ServerMoment {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn StdError + Sync + Send>> {
        Ok(Self(i64::from_be_bytes(raw.try_into()?).saturating_add(EPOCH_MICROS)))
    }

    accepts!(TIMESTAMPTZ);
}

impl ToSql for ServerMoment {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        // The smallest number is minus infinity.
        let micros = if self.0 == SINCE_EVER { i64::MIN } else { self.0.saturating_sub(EPOCH_MICROS) };
        out.extend_from_slice(&micros.to_be_bytes());
        Ok(IsNull::No)
    }

    accepts!(TIMESTAMPTZ);
    to_sql_checked!();
}

pub(super) async fn push(at: &impl QueueSession, queue: &str, job: &NewJob) -> Result<Pushed, RecipeError> {
    let (delay, priority) = (to_millis(job.delay), i32::from(job.priority));
    let attempts = job.max_attempts.map(i32::from);
    let params: [SqlParameter<'_>; 7] = [
        (&queue, Type::TEXT),
        (&job.body, Type::TEXT),
        (&delay, Type::INT8),
        (&priority, Type::INT4),
        (&job.key, Type::TEXT),
        (&job.dedupe, Type::TEXT),
        (&attempts, Type::INT4),
    ];
    let row = &one_row(at.rows("push a job", PUSH, &params).await?);
    Ok(Pushed { job_id: column(row, 0)?, fresh: column(row, 1)? })
}

pub(super) async fn turn(at: &impl QueueSession, queue: &str, ask: &TurnAsk) -> Result<TurnAnswer, RecipeError> {
    let jobs = i32::try_from(ask.jobs).unwrap_or(i32::MAX);
    let (visible, since) = (ask.visible.map(to_millis), ServerMoment(ask.since));
    let params: [SqlParameter<'_>; 8] = [
        (&queue, Type::TEXT),
        (&jobs, Type::INT4),
        (&ask.done, Type::INT8_ARRAY),
        (&ask.done_token, Type::INT8),
        (&visible, Type::INT8),
        (&ask.worker, Type::TEXT),
        (&since, Type::TIMESTAMPTZ),
        (&ask.levels, Type::INT2_ARRAY),
    ];
    let mut answer = TurnAnswer::default();
    for row in &at.rows("take jobs", TURN, &params).await? {
        let (job_id, token) = (column(row, 0)?, column(row, 1)?);
        if token <= 0 {
            let list = if token == 0 { &mut answer.stale } else { &mut answer.locked };
            list.push(job_id);
            continue;
        }
        let ready_at: ServerMoment = column(row, 3)?;
        let made_at: ServerMoment = column(row, 4)?;
        answer.jobs.push(ClaimedJob {
            job_id,
            token,
            attempt: attempt_of(row, 2)?,
            ready_at: Some(ready_at.0),
            made_at: made_at.0,
            key: None,
            body: column(row, 5)?,
        });
    }
    Ok(answer)
}

/// Those of the jobs that are in this queue.
pub(super) async fn only_here(at: &impl QueueSession, queue: &str, jobs: &[i64]) -> Result<Vec<i64>, RecipeError> {
    let rows = at.rows("look for jobs", HERE, &[(&queue, Type::TEXT), (&jobs, Type::INT8_ARRAY)]).await?;
    rows.iter().map(|row| column(row, 0)).collect()
}

/// Ends deliveries of one token, and returns those that were not ended.
pub(super) async fn ack(at: &impl QueueSession, jobs: &[i64], token: i64) -> Result<NotEnded, RecipeError> {
    let rows = at.rows("acknowledge jobs", ACK, &[(&jobs, Type::INT8_ARRAY), (&token, Type::INT8)]).await?;
    let (locked, stale) = split_locked(&rows)?;
    Ok(NotEnded { stale, locked })
}

/// Jobs that an open transaction has locked, and the others.
fn split_locked(rows: &[Row]) -> Result<(Vec<i64>, Vec<i64>), RecipeError> {
    let (mut locked, mut others) = (Vec::new(), Vec::new());
    for row in rows {
        let list = if column(row, 1)? { &mut locked } else { &mut others };
        list.push(column(row, 0)?);
    }
    Ok((locked, others))
}

/// Ends a delivery in the transaction of its effects.
pub(super) async fn finish(at: &impl QueueSession, job_id: i64, token: i64) -> Result<(), RecipeError> {
    at.rows("finish a job", FINISH, &[(&job_id, Type::INT8), (&token, Type::INT8)]).await.map(drop)
}

pub(super) async fn nack(at: &impl QueueSession, failed: &FailedJob) -> Result<String, RecipeError> {
    let after = failed.after.map(to_millis);
    let params: [SqlParameter<'_>; 6] = [
        (&failed.job_id, Type::INT8),
        (&failed.token, Type::INT8),
        (&failed.why, Type::TEXT),
        (&after, Type::INT8),
        (&failed.kill, Type::BOOL),
        (&failed.tries, Type::INT4),
    ];
    column(&one_row(at.rows("give a job back", NACK, &params).await?), 0)
}

/// Those that are not in the answer are stale.
pub(super) async fn extend(
    at: &impl QueueSession,
    jobs: &[i64],
    token: i64,
    visible: Duration,
) -> Result<Extended, RecipeError> {
    let visible = to_millis(visible);
    let rows = at
        .rows("extend deliveries", EXTEND, &[(&jobs, Type::INT8_ARRAY), (&token, Type::INT8), (&visible, Type::INT8)])
        .await?;
    let (locked, ours) = split_locked(&rows)?;
    Ok(Extended { ours, locked })
}

/// How many deliveries lapsed.
pub(super) async fn sweep(at: &impl QueueSession, queue: &str) -> Result<u32, RecipeError> {
    let lapsed: i32 = column(&one_row(at.rows("collect lapsed deliveries", SWEEP, &[(&queue, Type::TEXT)]).await?), 0)?;
    Ok(lapsed.unsigned_abs())
}

pub(super) async fn lane_claim(at: &impl QueueSession, queue: &str, ask: &LaneAsk) -> Result<LaneAnswer, RecipeError> {
    let keys = i32::try_from(ask.keys).unwrap_or(i32::MAX);
    let per_key = i32::try_from(ask.jobs_per_key).unwrap_or(i32::MAX);
    let visible = ask.visible.map(to_millis);
    let params: [SqlParameter<'_>; 6] = [
        (&queue, Type::TEXT),
        (&keys, Type::INT4),
        (&per_key, Type::INT4),
        (&visible, Type::INT8),
        (&ask.worker, Type::TEXT),
        (&ask.after, Type::TEXT),
    ];
    let mut answer = LaneAnswer::default();
    for row in &at.rows("take keys", LANE_CLAIM, &params).await? {
        let (key, token): (String, i64) = (column(row, 0)?, column(row, 1)?);
        if token == 0 {
            answer.go_on_after = Some(key);
            continue;
        }
        let made_at: ServerMoment = column(row, 4)?;
        answer.jobs.push(ClaimedJob {
            job_id: column(row, 2)?,
            token,
            attempt: attempt_of(row, 3)?,
            ready_at: None,
            made_at: made_at.0,
            key: Some(key),
            body: column(row, 5)?,
        });
    }
    // An UPDATE returns rows in any order.
    answer.jobs.sort_by(|one, other| (&one.key, one.job_id).cmp(&(&other.key, other.job_id)));
    Ok(answer)
}

/// Ends jobs of a key; `free`: the claim on the key too. Stale: an error with LH409. In a user's transaction it waits for
/// others that have the key.
pub(super) async fn lane_ack<S: QueueSession>(
    at: &S,
    queue: &str,
    key: &str,
    token: i64,
    jobs: &[i64],
    free: bool,
) -> Result<(), RecipeError> {
    let params: [SqlParameter<'_>; 6] = [
        (&queue, Type::TEXT),
        (&key, Type::TEXT),
        (&token, Type::INT8),
        (&jobs, Type::INT8_ARRAY),
        (&free, Type::BOOL),
        (&S::IS_USERS, Type::BOOL),
    ];
    at.rows("acknowledge jobs of a key", LANE_ACK, &params).await.map(drop)
}

pub(super) async fn lane_nack(
    at: &impl QueueSession,
    queue: &str,
    key: &str,
    failed: &FailedJob,
) -> Result<String, RecipeError> {
    let after = failed.after.map(to_millis);
    let params: [SqlParameter<'_>; 8] = [
        (&queue, Type::TEXT),
        (&key, Type::TEXT),
        (&failed.token, Type::INT8),
        (&failed.job_id, Type::INT8),
        (&failed.why, Type::TEXT),
        (&after, Type::INT8),
        (&failed.kill, Type::BOOL),
        (&failed.tries, Type::INT4),
    ];
    column(&one_row(at.rows("give a job of a key back", LANE_NACK, &params).await?), 0)
}

/// Whether the key is still ours.
pub(super) async fn lane_extend(
    at: &impl QueueSession,
    queue: &str,
    key: &str,
    token: i64,
    visible: Duration,
) -> Result<bool, RecipeError> {
    let visible = to_millis(visible);
    let params: [SqlParameter<'_>; 4] =
        [(&queue, Type::TEXT), (&key, Type::TEXT), (&token, Type::INT8), (&visible, Type::INT8)];
    column(&one_row(at.rows("extend the claim on a key", LANE_EXTEND, &params).await?), 0)
}

/// Makes a queue, or changes the settings that are given. None: there is one that cannot become this.
pub(super) async fn make(
    at: &impl QueueSession,
    queue: &str,
    settings: &QueueSettings,
) -> Result<Option<QueueFacts>, RecipeError> {
    let visible = settings.visible.map(to_millis);
    let attempts = settings.max_attempts.map(|attempts| i16::try_from(attempts).unwrap_or(i16::MAX));
    let (base, cap) = (settings.backoff_base.map(to_millis), settings.backoff_cap.map(to_millis));
    let params: [SqlParameter<'_>; 8] = [
        (&queue, Type::TEXT),
        (&settings.keyed, Type::BOOL),
        (&settings.in_order, Type::BOOL),
        (&settings.levels, Type::INT2_ARRAY),
        (&visible, Type::INT8),
        (&attempts, Type::INT2),
        (&base, Type::INT8),
        (&cap, Type::INT8),
    ];
    at.rows("make a queue", MAKE, &params).await?.first().map(facts_of).transpose()
}

/// None: there is no such queue.
pub(super) async fn facts(at: &impl QueueSession, queue: &str) -> Result<Option<QueueFacts>, RecipeError> {
    at.rows("read a queue", FACTS, &[(&queue, Type::TEXT)]).await?.first().map(facts_of).transpose()
}

/// `false`: there is no such queue.
pub(super) async fn pause(at: &impl QueueSession, queue: &str, paused: bool) -> Result<bool, RecipeError> {
    Ok(!at.rows("pause a queue", PAUSE, &[(&queue, Type::TEXT), (&paused, Type::BOOL)]).await?.is_empty())
}

/// From now on pushes ring this channel, for so long.
pub(super) async fn arm(at: &impl QueueSession, queue: &str, channel: &str, span: Duration) -> Result<(), RecipeError> {
    let span = to_millis(span);
    at.rows("ask to be woken", ARM, &[(&queue, Type::TEXT), (&channel, Type::TEXT), (&span, Type::INT8)])
        .await
        .map(drop)
}

pub(super) async fn disarm(at: &impl QueueSession, queue: &str, channel: &str) -> Result<(), RecipeError> {
    at.rows("ask not to be woken", DISARM, &[(&queue, Type::TEXT), (&channel, Type::TEXT)]).await.map(drop)
}

/// How long until the next job that is not ready yet is ready; none: there is none.
pub(super) async fn next_ready(at: &impl QueueSession, queue: &str) -> Result<Option<Duration>, RecipeError> {
    let rows = at.rows("look for the next job", NEXT_READY, &[(&queue, Type::TEXT)]).await?;
    let millis: Option<i64> = rows.first().map(|row| column(row, 0)).transpose()?.flatten();
    Ok(millis.map(span_of))
}

pub(super) async fn status(at: &impl QueueSession, queue: Option<&str>) -> Result<Vec<QueueStatus>, RecipeError> {
    let rows = at.rows("read queues", STATUS, &[(&queue, Type::TEXT)]).await?;
    let count = |row: &Row, at: usize| column(row, at).map(i64::unsigned_abs);
    let status = |row: &Row| {
        Ok(QueueStatus {
            name: column(row, 0)?,
            by_key: column(row, 1)?,
            paused: column(row, 2)?,
            ready: count(row, 3)?,
            delayed: count(row, 4)?,
            retried: count(row, 5)?,
            taken: count(row, 6)?,
            dead: count(row, 7)?,
            sleepers: count(row, 8)?,
            oldest: column::<Option<i64>>(row, 9)?.map(span_of),
        })
    };
    rows.iter().map(status).collect()
}

pub(super) async fn hot_keys(at: &impl QueueSession, queue: &str, most: i64) -> Result<Vec<HotKey>, RecipeError> {
    let rows = at.rows("count jobs of keys", HOT_KEYS, &[(&queue, Type::TEXT), (&most, Type::INT8)]).await?;
    let key = |row: &Row| {
        let jobs: i64 = column(row, 1)?;
        Ok(HotKey { key: column(row, 0)?, jobs: jobs.unsigned_abs(), oldest: span_of(column(row, 2)?) })
    };
    rows.iter().map(key).collect()
}

/// `below`: only letters with lower ids than this, the highest id first.
pub(super) async fn dead(
    at: &impl QueueSession,
    queue: &str,
    most: i64,
    below: Option<i64>,
) -> Result<Vec<DeadJob>, RecipeError> {
    const ATTEMPT: &str = "read dead letters";
    let newest: [SqlParameter<'_>; 2] = [(&queue, Type::TEXT), (&most, Type::INT8)];
    let rows = match below {
        None => at.rows(ATTEMPT, DEAD, &newest).await?,
        Some(id) => at.rows(ATTEMPT, DEAD_BELOW, &[newest[0].clone(), newest[1].clone(), (&id, Type::INT8)]).await?,
    };
    let letter = |row: &Row| {
        Ok(DeadJob {
            job_id: column(row, 0)?,
            attempt: attempt_of(row, 1)?,
            key: column(row, 2)?,
            error: column(row, 3)?,
            age: span_of(column(row, 4)?),
            dead_for: span_of(column(row, 5)?),
            body: column(row, 6)?,
        })
    };
    rows.iter().map(letter).collect()
}

/// How many dead letters wait again.
pub(super) async fn revive(at: &impl QueueSession, queue: &str, jobs: &[i64]) -> Result<u64, RecipeError> {
    count_jobs(at, "revive dead letters", REVIVE, queue, jobs).await
}

/// How many dead letters were removed.
pub(super) async fn drop_dead(at: &impl QueueSession, queue: &str, jobs: &[i64]) -> Result<u64, RecipeError> {
    count_jobs(at, "drop dead letters", DROP, queue, jobs).await
}

async fn count_jobs(
    at: &impl QueueSession,
    attempt: &str,
    sql: &'static str,
    queue: &str,
    jobs: &[i64],
) -> Result<u64, RecipeError> {
    let rows = at.rows(attempt, sql, &[(&queue, Type::TEXT), (&jobs, Type::INT8_ARRAY)]).await?;
    column(&one_row(rows), 0).map(i64::unsigned_abs)
}

fn facts_of(row: &Row) -> Result<QueueFacts, RecipeError> {
    Ok(QueueFacts { keyed: column(row, 0)?, visible: span_of(column(row, 1)?), levels: column(row, 2)? })
}

fn attempt_of(row: &Row, at: usize) -> Result<u16, RecipeError> {
    let attempt: i16 = column(row, at)?;
    Ok(attempt.unsigned_abs())
}

fn span_of(millis: i64) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}

/// A column, of the type that the schema says.
fn column<T: FromSqlOwned>(row: &Row, at: usize) -> Result<T, RecipeError> {
    row.try_get(at)
        .map_err(|error| RecipeError::corrupt(STORE_NAME, "columns have the types of the schema", error.to_string()))
}

/// The row of a SELECT of a function that returns no set.
fn one_row(rows: Vec<Row>) -> Row {
    rows.into_iter().next().expect("a SELECT of a function that returns no set has one row")
}
