//! Connections: made, checked, pooled and closed; and pipelines of statements.
//!
//! # Laws
//!
//! 1. Every connection is checked when it is made, not only the first: what it commits is durable, and it is the
//!    primary.
//! 2. A connection returns to the pool only between transactions. One with an open transaction is closed.
//! 3. Every wait has a timeout: for a connection, for a lock, for an answer.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use leasehold_postgres::pool::{ClientWrapper, Hook, HookError, Object, Pool, PoolError, checked_pool};
use leasehold_postgres::{ConnectTimes, DatabaseAddress, Durability};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

use super::PostgresOptions;
use super::error::{PostgresError, PostgresResult};
use super::schema::SCHEMA;

/// The parameters of a statement.
pub(super) type StatementParams = Vec<Box<dyn ToSql + Sync + Send>>;

/// Reads the address. The text may hold a password, and is in no error.
pub(super) fn address(url: &str, options: &PostgresOptions) -> Result<DatabaseAddress, String> {
    let times = ConnectTimes {
        connect_timeout: options.connect_timeout,
        tcp_user_timeout: options.patience(),
        keepalives_idle: Duration::from_secs(30),
    };
    DatabaseAddress::from_url(url, "leasehold boxoffice", times)
}

/// Refuses a server that may lose acknowledged transactions. The error says what to change.
pub(super) async fn check(client: &Client) -> PostgresResult<()> {
    match Durability::read_from(client).await? {
        Durability::Durable => Ok(()),
        Durability::Standby => {
            Err(refuse("it is a standby, and the ledger must be the primary: name the primary in the address"))
        }
        Durability::Weak { setting, found, wanted } => Err(refuse(&format!(
            "{setting} is {found}, so a sale that was acknowledged could be lost: set {setting} = {wanted} for this \
             user, database or server"
        ))),
    }
}

fn refuse(why: &str) -> PostgresError {
    PostgresError::NoConnection(format!("this PostgreSQL cannot be the ledger: {why}"))
}

/// Settings of every session, so that later changes of the server's settings do not weaken it. All statements find rows
/// by key: plans must not depend on statistics of an empty table.
fn settings(options: &PostgresOptions) -> String {
    let (statement, lock) = (options.statement_timeout.as_millis(), options.lock_timeout.as_millis());
    let idle = options.patience().as_millis();
    format!(
        "SET search_path TO {SCHEMA}; SET synchronous_commit TO on; SET statement_timeout TO {statement};
         SET lock_timeout TO {lock}; SET idle_in_transaction_session_timeout TO {idle};
         SET default_transaction_isolation TO 'read committed'; SET jit TO off; SET enable_seqscan TO off;
         SET plan_cache_mode TO force_generic_plan"
    )
}

/// A pool of connections.
pub(super) struct SessionPool {
    pool: Pool,
    patience: Duration,
    /// Round trips so far.
    pub(super) round_trips: Arc<AtomicU64>,
}

impl SessionPool {
    /// A pool of at most so many connections. None is opened yet.
    pub(super) fn new(
        address: &DatabaseAddress,
        options: &PostgresOptions,
        size: usize,
        round_trips: Arc<AtomicU64>,
    ) -> Result<Self, String> {
        let set = Arc::<str>::from(settings(options));
        let prepare = Hook::async_fn(move |client: &mut ClientWrapper, _| {
            let set = set.clone();
            Box::pin(async move {
                check(client).await.map_err(|error| HookError::message(error.to_string()))?;
                client.batch_execute(&set).await.map_err(HookError::Backend)
            })
        });
        let pool = checked_pool(address, size, options.connect_timeout, prepare)?;
        Ok(Self { pool, patience: options.patience(), round_trips })
    }

    /// Takes a connection that is between transactions.
    pub(super) async fn session(&self) -> PostgresResult<PooledSession> {
        let client = self.pool.get().await.map_err(|error| match error {
            PoolError::Backend(error) => PostgresError::Sql(error),
            other => PostgresError::NoConnection(other.to_string()),
        })?;
        Ok(PooledSession {
            client: Some(client),
            idle: true,
            patience: self.patience,
            round_trips: self.round_trips.clone(),
        })
    }

    /// Closes the pool.
    pub(super) fn close(&self) {
        self.pool.close();
    }
}

/// A connection taken from the pool.
pub(super) struct PooledSession {
    client: Option<Object>,
    /// Whether it is between transactions.
    idle: bool,
    patience: Duration,
    round_trips: Arc<AtomicU64>,
}

impl Drop for PooledSession {
    fn drop(&mut self) {
        // A transaction may be open, after an error or a cancelled future: close the connection (law 2).
        if !self.idle
            && let Some(client) = self.client.take()
        {
            drop(Object::take(client));
        }
    }
}

/// Statements that are sent together, in order.
#[derive(Default)]
pub(super) struct Pipeline(Vec<Option<(&'static str, StatementParams)>>);

impl Pipeline {
    /// Adds a statement. Returns the index of its result.
    pub(super) fn add(&mut self, sql: &'static str, params: StatementParams) -> usize {
        self.0.push(Some((sql, params)));
        self.0.len() - 1
    }

    /// Adds a statement if it is useful. Otherwise its result is no rows.
    pub(super) fn add_if(
        &mut self,
        useful: bool,
        sql: &'static str,
        params: impl FnOnce() -> StatementParams,
    ) -> usize {
        self.0.push(useful.then(|| (sql, params())));
        self.0.len() - 1
    }
}

/// The results of a pipeline, in order.
pub(super) type PipelineResults = Vec<StatementResult>;

/// The result of one statement.
type StatementResult = PostgresResult<Vec<Row>>;

impl PooledSession {
    fn client(&self) -> PostgresResult<&Object> {
        self.client.as_ref().ok_or_else(|| PostgresError::NoConnection("the connection was given up".into()))
    }

    /// Sends all statements at once and collects their results: one round trip.
    async fn send(&mut self, pipeline: Pipeline) -> PostgresResult<PipelineResults> {
        self.idle = false;
        let (patience, round_trips) = (self.patience, self.round_trips.clone());
        let client = self.client()?;
        let work = async {
            let mut statements: Vec<Option<(Statement, &StatementParams)>> = Vec::with_capacity(pipeline.0.len());
            for call in &pipeline.0 {
                statements.push(match call {
                    // Prepared once for each connection; afterwards this is local.
                    Some((sql, params)) => Some((client.prepare_cached(sql).await?, params)),
                    None => None,
                });
            }
            round_trips.fetch_add(1, Ordering::Relaxed);
            let statements_sent = statements.iter().map(|call| {
                Box::pin(async move {
                    let Some((statement, params)) = call else { return Ok(Vec::new()) };
                    let params: Vec<&(dyn ToSql + Sync)> = params.iter().map(|param| &**param as _).collect();
                    Ok(client.query(statement, &params).await?)
                }) as PendingStatement<'_>
            });
            Ok(poll_all(statements_sent.collect()).await)
        };
        tokio::time::timeout(patience, work).await.unwrap_or(Err(PostgresError::TimedOut))
    }

    /// A round trip within an open transaction. The first error of any statement is returned.
    pub(super) async fn query(&mut self, pipeline: Pipeline) -> PostgresResult<Vec<Vec<Row>>> {
        self.send(pipeline).await?.into_iter().collect()
    }

    /// A round trip that ends the transaction, or that needs none.
    pub(super) async fn finish(&mut self, pipeline: Pipeline) -> PostgresResult<PipelineResults> {
        let results = self.send(pipeline).await?;
        self.idle = results.iter().all(|answer| answer.as_ref().err().is_none_or(PostgresError::is_server_error));
        Ok(results)
    }

    /// Rolls the transaction back. A connection on which that fails, or that timed out, is closed.
    pub(super) async fn roll_back(&mut self, after: Option<&PostgresError>) {
        if matches!(after, Some(PostgresError::TimedOut)) {
            return;
        }
        let mut pipeline = Pipeline::default();
        pipeline.add("ROLLBACK", vec![]);
        let _ = self.finish(pipeline).await;
    }
}

type PendingStatement<'a> = Pin<Box<dyn Future<Output = StatementResult> + Send + 'a>>;

/// Polls all statements in order, which sends them in order, until all have results.
async fn poll_all(statements_sent: Vec<PendingStatement<'_>>) -> PipelineResults {
    let mut waiting: Vec<(Option<PendingStatement<'_>>, Option<StatementResult>)> =
        statements_sent.into_iter().map(|call| (Some(call), None)).collect();
    std::future::poll_fn(move |context| {
        for (call, answer) in &mut waiting {
            if let Some(Poll::Ready(results)) = call.as_mut().map(|call| call.as_mut().poll(context)) {
                (*call, *answer) = (None, Some(results));
            }
        }
        if waiting.iter().any(|(call, _)| call.is_some()) {
            return Poll::Pending;
        }
        Poll::Ready(waiting.iter_mut().filter_map(|(_, answer)| answer.take()).collect())
    })
    .await
}
