//! `once` on PostgreSQL: the functions `once_begin` and `once_end`, in any transaction.

use std::time::Duration;

use leasehold_postgres::tokio_postgres::types::Type;
use leasehold_postgres::tokio_postgres::{GenericClient, Row};

use super::request::{OnceRequest, check_answer, seconds};
use super::{Answer, Begun, First, OnceEnd};
use crate::recipe::error::{RecipeError, RecipeRefusal};
use crate::recipe::store::postgres::sql_error::{SqlEffect, recipe_error, sql_code};
use crate::recipe::store::postgres::{PostgresDatabase, STORE_NAME, SqlParameter};

const BEGIN: &str = "SELECT outcome, token, status, answer, (extract(epoch FROM remaining) * 1000)::bigint
    FROM leasehold.once_begin($1, $2, $3, make_interval(secs => $4), make_interval(secs => $5))";
const END: &str = "SELECT leasehold.once_end($1, $2, $3, $4, $5, $6, make_interval(secs => $7))";
const STORED: &str =
    "SELECT true FROM leasehold.once WHERE scope = $1 AND key = $2 AND token = $3 AND status IS NOT NULL";
/// What expired an hour ago, some rows at a time. A try that still runs is left alone.
const FORGET: &str = "DELETE FROM leasehold.once WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM leasehold.once WHERE expires_at < clock_timestamp() - interval '1 h' AND until < clock_timestamp()
    LIMIT 1000 FOR UPDATE SKIP LOCKED)) RETURNING 1";

/// The code of a wait that `lock_timeout` ended.
const LOCK_NOT_AVAILABLE: &str = "55P03";
const ATTEMPT_BEGIN: &str = "begin a try";
const ATTEMPT_END: &str = "end a try";

/// Begins in the caller's transaction. Do the work and [`First::finish`] in the same one, and commit.
///
/// A second request with the key waits until this transaction ends. With `lock_timeout` it waits only so long: its
/// transaction fails then, and the error is [`RecipeRefusal::InFlight`] without a time.
///
/// # Errors
///
/// [`RecipeError::Unavailable`]: run the transaction again, also in REPEATABLE READ when another request with the key
/// committed meanwhile (`40001`).
///
/// # Examples
///
/// ```no_run
/// use leasehold::recipe::once::{self, Begun};
///
/// async fn sell(client: &mut tokio_postgres::Client, key: &str, body: &str) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
///     let tx = client.transaction().await?;
///     Ok(match once::begin(&tx, "orders", key, body).await? {
///         Begun::First(first) => {
///             tx.execute("UPDATE stock SET left_over = left_over - 1", &[]).await?;
///             first.finish(&tx, 201, b"sold").await?;
///             tx.commit().await?;
///             b"sold".to_vec()
///         }
///         Begun::Replay(answer) => answer.body,
///         Begun::InFlight { .. } | Begun::Mismatch => return Err("409 or 422".into()),
///     })
/// }
/// ```
pub async fn begin(
    client: &(impl GenericClient + Sync),
    scope: &str,
    key: &str,
    body: impl AsRef<[u8]>,
) -> Result<Begun, RecipeError> {
    begin_request(client, &OnceRequest::new(scope, key, body)).await
}

/// As [`begin`], with times of its own.
///
/// # Errors
///
/// As [`begin`].
pub async fn begin_request(client: &(impl GenericClient + Sync), request: &OnceRequest) -> Result<Begun, RecipeError> {
    request.check()?;
    let (ttl, keep) = (seconds(request.ttl), seconds(request.keep));
    let rows = client.query_typed(BEGIN, &begin_parameters(request, &(&request.asked[..]), &ttl, &keep)).await;
    let rows = rows.map_err(|error| begin_error(recipe_error(&error, ATTEMPT_BEGIN, SqlEffect::None)))?;
    read_begun(&rows, request)
}

/// A lock that was not to be had in time: the first try is inside a transaction.
fn begin_error(error: RecipeError) -> RecipeError {
    if sql_code(&error) == Some(LOCK_NOT_AVAILABLE) {
        return RecipeRefusal::InFlight { remaining: None }.into();
    }
    error
}

fn begin_parameters<'a>(
    request: &'a OnceRequest,
    asked: &'a &[u8],
    ttl: &'a f64,
    keep: &'a f64,
) -> [SqlParameter<'a>; 5] {
    [
        (&request.scope, Type::TEXT),
        (&request.key, Type::TEXT),
        (asked, Type::BYTEA),
        (ttl, Type::FLOAT8),
        (keep, Type::FLOAT8),
    ]
}

fn read_begun(rows: &[Row], request: &OnceRequest) -> Result<Begun, RecipeError> {
    let corrupt = |_| corrupt_row();
    let row = rows.first().ok_or_else(corrupt_row)?;
    Ok(match row.try_get::<_, &str>(0).map_err(corrupt)? {
        "first" => {
            let token = row.try_get(1).map_err(corrupt)?;
            Begun::First(First { scope: request.scope.clone(), key: request.key.clone(), token })
        }
        "replay" => {
            let (status, body) = (row.try_get(2).map_err(corrupt)?, row.try_get(3).map_err(corrupt)?);
            Begun::Replay(Answer { status, body, replayed: true })
        }
        "in_flight" => {
            let millis: i64 = row.try_get(4).map_err(corrupt)?;
            Begun::InFlight { remaining: Duration::from_millis(u64::try_from(millis).unwrap_or(0)) }
        }
        "mismatch" => Begun::Mismatch,
        _ => return Err(corrupt_row()),
    })
}

fn corrupt_row() -> RecipeError {
    RecipeError::corrupt(STORE_NAME, "once_begin says first, replay, in_flight or mismatch", "leasehold.once_begin")
}

fn read_flag(rows: &[Row]) -> Result<bool, RecipeError> {
    let flag = rows.first().and_then(|row| row.try_get(0).ok());
    flag.ok_or_else(|| RecipeError::corrupt(STORE_NAME, "once_end says true or false", "leasehold.once_end"))
}

impl First {
    /// Stores the answer, in the transaction of the work.
    ///
    /// # Errors
    ///
    /// [`RecipeRefusal::Stale`]: another took over, and nothing was stored. Roll back.
    pub async fn finish(
        self,
        client: &(impl GenericClient + Sync),
        status: i32,
        body: &[u8],
    ) -> Result<(), RecipeError> {
        check_answer(body)?;
        let (how, nothing) = ("finish", None::<f64>);
        let parameters: [SqlParameter<'_>; 7] = [
            (&how, Type::TEXT),
            (&self.scope, Type::TEXT),
            (&self.key, Type::TEXT),
            (&self.token, Type::INT8),
            (&status, Type::INT4),
            (&body, Type::BYTEA),
            (&nothing, Type::FLOAT8),
        ];
        let rows = client.query_typed(END, &parameters).await;
        let rows = rows.map_err(|error| recipe_error(&error, ATTEMPT_END, SqlEffect::None))?;
        if read_flag(&rows)? { Ok(()) } else { Err(self.stale()) }
    }
}

impl PostgresDatabase {
    pub(super) async fn once_begin(&self, request: &OnceRequest) -> Result<Begun, RecipeError> {
        let (ttl, keep) = (seconds(request.ttl), seconds(request.keep));
        let asked = &request.asked[..];
        let rows = self.call(ATTEMPT_BEGIN, BEGIN, &begin_parameters(request, &asked, &ttl, &keep)).await;
        let rows = rows.map_err(begin_error)?;
        read_begun(&rows, request)
    }

    /// False: stale, and nothing was written.
    pub(super) async fn once_end(&self, first: &First, end: OnceEnd<'_>) -> Result<bool, RecipeError> {
        let (how, status, body, ttl) = match end {
            OnceEnd::Finish { status, body } => ("finish", Some(status), Some(body), None),
            OnceEnd::Renew { ttl } => ("renew", None, None, Some(seconds(ttl))),
            OnceEnd::Abandon => ("abandon", None, None, None),
        };
        let parameters: [SqlParameter<'_>; 7] = [
            (&how, Type::TEXT),
            (&first.scope, Type::TEXT),
            (&first.key, Type::TEXT),
            (&first.token, Type::INT8),
            (&status, Type::INT4),
            (&body, Type::BYTEA),
            (&ttl, Type::FLOAT8),
        ];
        read_flag(&self.call(ATTEMPT_END, END, &parameters).await?)
    }

    /// Whether the answer of this try is the stored one.
    pub(super) async fn once_is_stored(&self, first: &First) -> Result<bool, RecipeError> {
        let parameters: [SqlParameter<'_>; 3] =
            [(&first.scope, Type::TEXT), (&first.key, Type::TEXT), (&first.token, Type::INT8)];
        Ok(!self.call("read the answer of a try", STORED, &parameters).await?.is_empty())
    }

    pub(super) async fn once_forget(&self) -> Result<usize, RecipeError> {
        self.call("forget expired answers", FORGET, &[]).await.map(|rows| rows.len())
    }
}
