//! Connections for checks of waiting claims and for leaving queues: they wait for locks only shortly, so that a lock that
//! somebody keeps does not hold up what is about other names.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_core::Time;
use leasehold_postgres::tokio_postgres::Row;
use tokio::sync::Semaphore;

use super::connection::{ConnectionRoute, EngineConnection, LockWait, ServerConnector, SharedServerConnection};
use super::sql_error::{BatchSplit, Cause, SqlFailure};
use super::statements::{Parameter, Sql};
use crate::clock::{Clock as _, SystemClock};

/// For how long a name is not asked about after its lock was not to be had.
const KEPT_FOR: Duration = Duration::from_millis(500);

/// See the module.
pub(super) struct ShortWaitPool {
    connector: Arc<ServerConnector>,
    /// Serves while no more connections are to be had: late is better than never.
    fallback: Arc<SharedServerConnection>,
    permits: Semaphore,
    idle: Mutex<Vec<EngineConnection>>,
    /// Names whose lock was not to be had, and until when they are left alone.
    kept: Mutex<HashMap<String, Time>>,
}

impl ShortWaitPool {
    /// At most so many connections, opened when they are needed.
    pub fn new(connector: Arc<ServerConnector>, fallback: Arc<SharedServerConnection>, most: usize) -> Self {
        let permits = Semaphore::new(most);
        Self { connector, fallback, permits, idle: Mutex::default(), kept: Mutex::default() }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<EngineConnection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kept(&self) -> MutexGuard<'_, HashMap<String, Time>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One try.
    pub async fn query(&self, sql: Sql, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, SqlFailure> {
        let _permit = self.permits.acquire().await.map_err(|_| SqlFailure::Away(Cause::new(super::shared::CLOSED)))?;
        let idle = self.idle().pop().filter(|connection| !connection.is_closed());
        let connection = match idle {
            Some(connection) => connection,
            None => match self.connector.open(ConnectionRoute::Statements, None).await {
                Ok(connection) => connection,
                Err(SqlFailure::Away(_)) => return self.fallback.query(sql, parameters).await,
                Err(failure) => return Err(failure),
            },
        };
        connection.set_lock_wait(LockWait::Short).await?;
        let answer = connection.query(sql, parameters).await;
        if !answer.as_ref().is_err_and(SqlFailure::ends_connection) {
            self.idle().push(connection);
        }
        answer
    }

    /// One try about one name, unless its lock was not to be had a moment ago.
    pub async fn query_name(&self, name: &str, sql: Sql, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, SqlFailure> {
        let now = SystemClock.now();
        if self.kept().get(name).is_some_and(|until| now < *until) {
            let cause = Cause::new("somebody keeps the lock of this name");
            return Err(SqlFailure::Again { split: BatchSplit::Singles, cause });
        }
        let answer = self.query(sql, parameters).await;
        if answer.as_ref().is_err_and(SqlFailure::is_kept_lock) {
            let now = SystemClock.now();
            let mut kept = self.kept();
            kept.retain(|_, until| now < *until);
            kept.insert(name.to_owned(), now.plus(KEPT_FOR));
        }
        answer
    }

    pub fn close(&self) {
        self.permits.close();
        self.idle().clear();
    }
}
