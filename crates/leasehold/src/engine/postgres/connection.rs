//! Connections to the server: made, set up, checked, and asked with a deadline.
//!
//! # Laws
//!
//! 1. Every connection is checked when it is made: it is the primary, and what it commits is as durable as was promised.
//! 2. Every statement is a transaction of its own.
//! 3. An answer that does not come in time ends the connection. A statement is never cancelled: the cancel could hit the
//!    next one, and a cancelled wait for a synchronous standby is answered with success.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold_postgres::DatabaseAddress;
use leasehold_postgres::tokio_postgres::{AsyncMessage, Client, Notification, Row, Statement};
use tokio::runtime::Handle;
use tokio::sync::OnceCell;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::options::PostgresEngineOptions;
use super::sql_error::{Cause, SqlFailure};
use super::statements::{Parameter, Sql};
use super::verify::{self, PromiseCheck};

/// The longest that an answer may take, in real time. Longer than `statement_timeout`, shorter than `MAX_DELAY`: a caller's
/// first try is over before its call is, so that the connection is not used again.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(6);
/// The longest that connecting may take, over all hosts of the address, with the check.
const OPEN_TIMEOUT: Duration = Duration::from_secs(8);

const NO_ANSWER: &str = "PostgreSQL did not answer in time";

/// How connections are made. Shared by all of them.
pub(super) struct ServerConnector {
    pub options: PostgresEngineOptions,
    pub runtime: Handle,
    texts: Vec<String>,
    /// What was promised at open, compared with what each connection finds.
    pub check: PromiseCheck,
}

/// Which address a connection goes to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionRoute {
    /// The address of the URL, perhaps a pooler.
    Statements,
    /// The server itself: messages do not come through a pooler.
    Messages,
}

impl ServerConnector {
    pub fn new(options: PostgresEngineOptions, runtime: Handle) -> Self {
        let texts = Sql::texts(&options.schema);
        let check = PromiseCheck::new(options.clocks_synced);
        Self { options, runtime, texts, check }
    }

    /// Whether messages can come at all.
    pub fn can_listen(&self) -> bool {
        !self.options.pooler || self.options.listen.is_some()
    }

    fn address(&self, route: ConnectionRoute) -> &DatabaseAddress {
        match (&self.options.listen, route) {
            (Some(listen), ConnectionRoute::Messages) => listen,
            _ => &self.options.address,
        }
    }

    /// Opens a connection and checks it. Messages go to `messages`.
    pub async fn open(
        self: &Arc<Self>,
        route: ConnectionRoute,
        messages: Option<UnboundedSender<Notification>>,
    ) -> Result<EngineConnection, SqlFailure> {
        let connection = match timeout(OPEN_TIMEOUT, self.connect(route, messages)).await {
            Ok(connected) => connected?,
            Err(_) => return Err(SqlFailure::Away(Cause::new(NO_ANSWER))),
        };
        let facts = verify::read_facts(&connection).await?;
        facts.refuse_unusable()?;
        self.check.compare(&facts);
        Ok(connection)
    }

    async fn connect(
        self: &Arc<Self>,
        route: ConnectionRoute,
        messages: Option<UnboundedSender<Notification>>,
    ) -> Result<EngineConnection, SqlFailure> {
        let connected = self.address(route).connect_with_messages().await;
        let (client, mut connection) = connected.map_err(|error| SqlFailure::from_connecting(&error))?;
        let commit_in_doubt = Arc::new(AtomicBool::new(false));
        let doubt = commit_in_doubt.clone();
        // Ends with its client. Its errors reach whoever waits for an answer.
        let reading = self.runtime.spawn(async move {
            while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
                match message {
                    // Its text is in the language of the server.
                    AsyncMessage::Notice(notice) if notice.routine() == Some("SyncRepWaitForLSN") => {
                        doubt.store(true, Ordering::SeqCst);
                    }
                    AsyncMessage::Notification(notification) => {
                        if let Some(messages) = &messages {
                            let _ = messages.send(notification);
                        }
                    }
                    _ => {}
                }
            }
        });
        let prepared = std::array::from_fn(|_| OnceCell::new());
        let pooled = self.options.pooler && route == ConnectionRoute::Statements;
        if !pooled {
            let settings = self.session_settings();
            client.batch_execute(&settings).await.map_err(|error| SqlFailure::from_connecting(&error))?;
        }
        let (reading, short_locks) = (reading.abort_handle(), AtomicBool::new(false));
        Ok(EngineConnection {
            client,
            reading,
            connector: self.clone(),
            prepared,
            commit_in_doubt,
            pooled,
            short_locks,
        })
    }

    /// Behind a pooler the session is not ours: the functions check what matters by themselves.
    fn session_settings(&self) -> String {
        // What the address asks for is left as it is, and is found by the check.
        let commit = if self.options.sets_synchronous_commit { "" } else { "SET synchronous_commit = on;" };
        format!(
            "{commit} SET default_transaction_isolation = 'read committed'; SET statement_timeout = 5000; \
             SET lock_timeout = 2000; SET idle_in_transaction_session_timeout = 10000; SET jit = off; \
             SET plan_cache_mode = force_generic_plan"
        )
    }
}

/// One connection. Statements that are sent together are answered in order.
pub(super) struct EngineConnection {
    client: Client,
    /// The task that owns the socket.
    reading: AbortHandle,
    connector: Arc<ServerConnector>,
    prepared: [OnceCell<Statement>; Sql::COUNT],
    /// A commit was acknowledged although its wait for a synchronous standby was cut short.
    commit_in_doubt: Arc<AtomicBool>,
    pooled: bool,
    /// It waits for locks only shortly.
    short_locks: AtomicBool,
}

/// How long a statement waits for the lock of a name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LockWait {
    Long,
    /// For names whose lock somebody is known to keep, and for those who have waited long enough.
    Short,
}

impl EngineConnection {
    pub fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Closes the socket. A client that is dropped keeps it for as long as answers are missing, and the server would keep
    /// the statement's locks for nobody.
    fn abort(&self) {
        self.reading.abort();
    }

    /// For what is done once: the schema, LISTEN.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Sends a statement and waits for its rows and for its commit.
    pub async fn query(&self, sql: Sql, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, SqlFailure> {
        if self.is_closed() {
            return Err(SqlFailure::Away(Cause::new("the connection was lost")));
        }
        let answer = match timeout(ANSWER_TIMEOUT, self.send(sql, parameters)).await {
            Ok(answer) => answer?,
            Err(_) => {
                self.abort();
                return Err(SqlFailure::Unknown(Cause::new(NO_ANSWER)));
            }
        };
        if self.commit_in_doubt.swap(false, Ordering::SeqCst) {
            let cause = "the wait for a synchronous standby was cancelled: the commit is only local";
            return Err(SqlFailure::Unknown(Cause::new(cause)));
        }
        Ok(answer)
    }

    async fn send(&self, sql: Sql, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, SqlFailure> {
        let at = sql as usize;
        let text = &self.connector.texts[at];
        if self.pooled {
            let rows = self.client.query_typed(text, parameters).await;
            return rows.map_err(|error| SqlFailure::from_statement(&error));
        }
        let prepare = async || {
            let types: Vec<_> = parameters.iter().map(|(_, ty)| ty.clone()).collect();
            self.client.prepare_typed(text, &types).await
        };
        let statement = match self.prepared[at].get_or_try_init(prepare).await {
            Ok(statement) => statement,
            // Nothing was asked yet.
            Err(error) => {
                return Err(match SqlFailure::from_statement(&error) {
                    SqlFailure::Unknown(cause) => SqlFailure::Away(cause),
                    other => other,
                });
            }
        };
        let values: Vec<_> = parameters.iter().map(|(value, _)| *value).collect();
        self.client.query(statement, &values).await.map_err(|error| SqlFailure::from_statement(&error))
    }

    /// Behind a pooler the session is not ours, and nothing is set.
    pub async fn set_lock_wait(&self, wait: LockWait) -> Result<(), SqlFailure> {
        let short = wait == LockWait::Short;
        if self.pooled || self.short_locks.swap(short, Ordering::SeqCst) == short {
            return Ok(());
        }
        let text = if short { "SET lock_timeout = 250" } else { "SET lock_timeout = 2000" };
        // Nothing was asked yet.
        self.execute(text).await.map_err(|failure| SqlFailure::Away(failure.cause()))
    }

    /// The rows of a statement that is not prepared, and changes nothing.
    pub async fn query_once(&self, text: &str) -> Result<Vec<Row>, SqlFailure> {
        self.query_text(text, &[]).await
    }

    /// The same, with parameters.
    pub async fn query_text(&self, text: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, SqlFailure> {
        match timeout(ANSWER_TIMEOUT, self.client.query_typed(text, parameters)).await {
            Ok(rows) => rows.map_err(|error| SqlFailure::from_statement(&error)),
            Err(_) => {
                self.abort();
                Err(SqlFailure::Away(Cause::new(NO_ANSWER)))
            }
        }
    }

    /// Executes text of ours without parameters.
    pub async fn execute(&self, text: &str) -> Result<(), SqlFailure> {
        match timeout(ANSWER_TIMEOUT, self.client.batch_execute(text)).await {
            Ok(done) => done.map_err(|error| SqlFailure::from_statement(&error)),
            Err(_) => {
                self.abort();
                Err(SqlFailure::Unknown(Cause::new(NO_ANSWER)))
            }
        }
    }
}

/// A connection that several callers share, opened again when it is gone.
pub(super) struct SharedServerConnection {
    connector: Arc<ServerConnector>,
    slot: tokio::sync::Mutex<Option<Arc<EngineConnection>>>,
}

impl SharedServerConnection {
    pub fn new(connector: Arc<ServerConnector>) -> Self {
        Self { connector, slot: tokio::sync::Mutex::default() }
    }

    pub async fn put(&self, connection: EngineConnection) {
        *self.slot.lock().await = Some(Arc::new(connection));
    }

    pub async fn get(&self) -> Result<Arc<EngineConnection>, SqlFailure> {
        let mut slot = self.slot.lock().await;
        if let Some(connection) = slot.as_ref().filter(|connection| !connection.is_closed()) {
            return Ok(connection.clone());
        }
        let connection = Arc::new(self.connector.open(ConnectionRoute::Statements, None).await?);
        *slot = Some(connection.clone());
        Ok(connection)
    }

    /// One try. A connection that is of no more use is dropped.
    pub async fn query(&self, sql: Sql, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, SqlFailure> {
        let connection = self.get().await?;
        let answer = connection.query(sql, parameters).await;
        if answer.as_ref().is_err_and(SqlFailure::ends_connection) {
            let mut slot = self.slot.lock().await;
            if slot.as_ref().is_some_and(|kept| Arc::ptr_eq(kept, &connection)) {
                *slot = None;
            }
        }
        answer
    }

    pub async fn close(&self) {
        *self.slot.lock().await = None;
    }
}
