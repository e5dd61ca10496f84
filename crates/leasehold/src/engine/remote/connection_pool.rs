//! The connections of one remote engine, and the rules for retries.
//!
//! # Laws
//!
//! 1. Requests that do not wait on the server share one connection, in the order they were made.
//! 2. A request that may wait on the server has an exclusive connection, of which there are at most
//!    [`MAX_WAITING_CONNECTIONS`].
//! 3. Only a request that may be sent twice is retried, for [`RETRY_FOR`], with growing random pauses.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_core::Time;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::command;
use super::connect::{Away, Connector, NoConnection};
use super::connection::{NoReply, REPLY_TIMEOUT, RemoteConnection};
use super::decode::{ServerError, parse_error};
use super::resp::Value;
use super::{indeterminate, unavailable};
use crate::clock::Clock;
use crate::engine::{AttemptText, LeaseId};
use crate::error::{BoxError, Error, Refusal};

/// How long a request is retried.
pub(super) const RETRY_FOR: Duration = Duration::from_secs(3);
/// How long a server may be unreachable before waiting claims and watches fail.
pub(super) const MAX_OUTAGE: Duration = Duration::from_secs(30);
/// Exclusive connections of waiting claims. Each is a file descriptor, of which a process often has 1024.
const MAX_WAITING_CONNECTIONS: usize = 512;
/// Exclusive connections of claims that do not wait, but may join an earlier try with the same request id.
const MAX_ASKING_CONNECTIONS: usize = 64;
/// Exclusive connections that are kept idle for later.
const MAX_IDLE_CONNECTIONS: usize = 16;
/// The first pause before a retry, and the longest.
const FIRST_BACKOFF: Duration = Duration::from_millis(10);
const MAX_BACKOFF: Duration = Duration::from_millis(500);

/// Whether a request without a reply is sent again, and what it means if no reply ever comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RetryPolicy {
    /// It changes nothing: retried, and never Indeterminate.
    ReadOnly,
    /// Twice has the effect of once: retried.
    Idempotent,
    /// Twice could have two effects: not retried once it was sent.
    NotTwice,
    /// As `Idempotent`, and retried even if the server is unreachable: nobody else will do it.
    Cleanup,
}

/// The result of one try.
pub(super) enum TryResult {
    /// The server replied.
    Replied(Value),
    /// The server refused, for good.
    Decided(Error),
    /// It had no effect.
    NoEffect(BoxError),
    /// It may have taken effect.
    Unknown(BoxError),
}

impl TryResult {
    pub fn from_reply(heard: Result<Value, NoReply>) -> Self {
        match heard {
            Ok(Value::Error(text)) => match parse_error(&text) {
                ServerError::Decided(error) => Self::Decided(error),
                ServerError::NoEffect(sentence) => Self::NoEffect(sentence.into()),
                ServerError::Unknown(sentence) => Self::Unknown(sentence.into()),
            },
            Ok(value) => Self::Replied(value),
            Err(NoReply { sent: true, why }) => Self::Unknown(Box::new(why)),
            Err(NoReply { sent: false, why }) => Self::NoEffect(Box::new(why)),
        }
    }

    /// A refusal that says nothing about an earlier try whose reply was lost: the server checks the key, its rate and
    /// the number of connections before it reads the request.
    pub fn is_from_access_check(error: &Error) -> bool {
        matches!(error, Error::Invalid(_) | Error::Refused(Refusal::Quota(_)))
    }

    pub fn from_no_connection(why: NoConnection) -> Self {
        match why {
            NoConnection::Away(away) => Self::NoEffect(Box::new(away)),
            NoConnection::Never(error) => Self::Decided(error),
        }
    }
}

/// See the module.
pub(super) struct ConnectionPool {
    pub connector: Connector,
    pub clock: Arc<dyn Clock>,
    pub runtime: Handle,
    shared: tokio::sync::Mutex<SharedConnection>,
    idle: Mutex<Vec<RemoteConnection>>,
    /// Permits for connections of law 2.
    pub waiting: Semaphore,
    pub asking: Semaphore,
    /// Cancelled when the engine is closed.
    pub closed: CancellationToken,
    /// Tasks that go on after their caller is gone.
    pub tasks: TaskTracker,
}

#[derive(Default)]
struct SharedConnection {
    connection: Option<Arc<RemoteConnection>>,
    /// When connecting last failed, and why: for callers that waited meanwhile.
    failed: Option<(Time, Away)>,
}

impl fmt::Debug for ConnectionPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").field("options", &self.connector.options).finish_non_exhaustive()
    }
}

impl ConnectionPool {
    pub fn new(connector: Connector, clock: Arc<dyn Clock>, runtime: Handle) -> Self {
        Self {
            connector,
            clock,
            runtime,
            shared: tokio::sync::Mutex::default(),
            idle: Mutex::default(),
            waiting: Semaphore::new(MAX_WAITING_CONNECTIONS),
            asking: Semaphore::new(MAX_ASKING_CONNECTIONS),
            closed: CancellationToken::new(),
            tasks: TaskTracker::new(),
        }
    }

    /// The shared connection; opened again if it is gone.
    pub async fn shared_connection(&self) -> Result<Arc<RemoteConnection>, NoConnection> {
        let asked = self.clock.now();
        let mut shared = self.shared.lock().await;
        if let Some(connection) = shared.connection.as_ref().filter(|connection| !connection.is_gone()) {
            return Ok(connection.clone());
        }
        // Another caller tried while this one waited for the lock: all of them get its result, not one connect each.
        if let Some((at, away)) = &shared.failed
            && *at >= asked
        {
            return Err(NoConnection::Away(away.clone()));
        }
        match self.connect().await {
            Ok(connection) => {
                let connection = Arc::new(connection);
                *shared = SharedConnection { connection: Some(connection.clone()), failed: None };
                Ok(connection)
            }
            Err(NoConnection::Away(away)) => {
                *shared = SharedConnection { connection: None, failed: Some((self.clock.now(), away.clone())) };
                Err(NoConnection::Away(away))
            }
            Err(never) => Err(never),
        }
    }

    /// A connection that nobody else uses meanwhile.
    pub async fn exclusive_connection(&self) -> Result<RemoteConnection, NoConnection> {
        loop {
            let kept = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            match kept {
                Some(connection) if connection.is_gone() => {}
                Some(connection) => return Ok(connection),
                None => return self.connect().await,
            }
        }
    }

    /// Returns an exclusive connection on which nothing is under way.
    pub fn return_connection(&self, connection: RemoteConnection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE_CONNECTIONS && !self.closed.is_cancelled() {
            idle.push(connection);
        }
    }

    /// Drops the idle connections: after one connection broke, they may be dead too.
    pub fn drop_idle(&self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    async fn connect(&self) -> Result<RemoteConnection, NoConnection> {
        let (stream, reader) = self.connector.connect(&self.clock).await?;
        Ok(RemoteConnection::start(stream, reader, self.clock.clone(), &self.runtime))
    }

    /// Sends a request for a caller, unless the engine was closed.
    pub async fn call(&self, attempt: AttemptText<'_>, bytes: Vec<u8>, policy: RetryPolicy) -> Result<Value, Error> {
        if self.closed.is_cancelled() {
            return Err(unavailable(attempt(), CLOSED.into()));
        }
        self.call_with_retry(attempt, bytes, policy).await
    }

    /// Sends a request over the shared connection, with retries (law 3).
    pub async fn call_with_retry(
        &self,
        attempt: AttemptText<'_>,
        bytes: Vec<u8>,
        policy: RetryPolicy,
    ) -> Result<Value, Error> {
        // Counted from the first failure: to notice that a connection is dead may itself take longer.
        let mut give_up = None;
        let mut maybe = false;
        for round in 0.. {
            let (tried, connected) = match self.shared_connection().await {
                Ok(connection) => {
                    (TryResult::from_reply(connection.send_request(bytes.clone(), REPLY_TIMEOUT).reply().await), true)
                }
                Err(why) => (TryResult::from_no_connection(why), false),
            };
            let (source, again) = match tried {
                TryResult::Replied(value) => return Ok(value),
                TryResult::Decided(error) if maybe && TryResult::is_from_access_check(&error) => {
                    return Err(indeterminate(attempt(), Box::new(error)));
                }
                // An engine that soon forgets endings may say so of a lease that our first try released.
                TryResult::Decided(error @ Error::Refused(Refusal::NotHeld)) if maybe => {
                    return Err(indeterminate(attempt(), Box::new(error)));
                }
                TryResult::Decided(error) => return Err(error),
                TryResult::Unknown(source) => {
                    maybe |= policy != RetryPolicy::ReadOnly;
                    (source, policy != RetryPolicy::NotTwice)
                }
                // A connection that broke before anything was sent was an old one. An unreachable server is retried
                // only if an earlier try may have taken effect.
                TryResult::NoEffect(source) => {
                    let broke = connected && source.is::<Arc<std::io::Error>>();
                    (source, maybe || broke || policy == RetryPolicy::Cleanup)
                }
            };
            self.drop_idle();
            let now = self.clock.now();
            if !again || now >= *give_up.get_or_insert(now.plus(RETRY_FOR)) {
                return Err(if maybe { indeterminate(attempt(), source) } else { unavailable(attempt(), source) });
            }
            self.backoff(round).await;
        }
        unreachable!("the rounds end by time")
    }

    /// Releases a lease that nobody will use. If that fails, it lapses.
    pub async fn release_lease(&self, lease: &LeaseId) {
        if let Ok(bytes) = command::release(lease) {
            let _ = self.call_with_retry(&|| "give back a lease".into(), bytes, RetryPolicy::Cleanup).await;
        }
    }

    /// Sleeps before a retry: longer every time, and not in step with others.
    pub async fn backoff(&self, round: u32) {
        let whole = FIRST_BACKOFF.saturating_mul(1 << round.min(10)).min(MAX_BACKOFF);
        let spread = f64::from(u32::from_le_bytes(random())) / f64::from(u32::MAX);
        let span = whole.mul_f64(0.5 + spread / 2.0);
        self.clock.sleep_until(self.clock.now().plus(span)).await;
    }

    /// Drops all connections.
    pub async fn close_connections(&self) {
        *self.shared.lock().await = SharedConnection::default();
        self.drop_idle();
    }
}

/// The cause in errors of a closed engine.
pub(super) const CLOSED: &str = "the engine was closed";

/// Random bits from the operating system.
pub(super) fn random<const N: usize>() -> [u8; N] {
    let mut bits = [0; N];
    // Without randomness there are no unique request ids, and there is nothing to fall back on.
    getrandom::fill(&mut bits).expect("the operating system gives random bits");
    bits
}
