//! The remote engine: a Leasehold server, asked over RESP. `leasehold://host:port`, with TLS `leaseholds://…`.
//!
//! # Promises
//!
//! What the server's engine promises, which is asked once at the beginning. An acquire that is sent again because a
//! connection was lost has one effect. No lease is left behind that nobody knows of, unless the server cannot be
//! reached to end it: then its ttl does.
//!
//! # Does not promise
//!
//! To find another server: there is one address. The place in the queue over a lost connection: the claim is sent
//! again, and is behind the other waiters if the server was restarted or noticed the loss.
//!
//! # Clock
//!
//! The server's. Remaining times come as whole milliseconds, rounded down, and count from before the request was sent;
//! nobody's wall clock is asked. This side's clock only says when an answer is overdue.
//!
//! # Token
//!
//! The server's, as it came.
//!
//! # On lost connection
//!
//! Acquire, renew and release are asked again for a few seconds, an acquire with the same request id (one is generated
//! where the caller gave none); an acquire that waits comes again as long as its wait lasts and the server is not away
//! for more than half a minute. Revoke is not asked twice: the second could hit a successor. When it cannot be known
//! whether it happened: Indeterminate. When nothing was sent, or the server said so: Unavailable. A watch goes on
//! after the last event, or reports a gap.
//!
//! # Files, in reading order
//!
//! `options` (the URL), `command` (requests as bytes), `resp` (bytes as values), `decode` (values as replies), `connect`,
//! `connection` (one of them), `connection_pool` (all of them, and retries), `acquire_task` (one acquire), `watch`.

mod acquire_task;
mod command;
mod connect;
mod connection;
mod connection_pool;
mod decode;
mod options;
mod resp;
#[cfg(feature = "tls")]
mod tls;
mod watch;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use super::clock_offset::{CLOCK_PROBES, ClockProbes};
use super::{
    Answer, AttemptText, Claim, Engine, EngineProfile, EventId, Finding, Grant, Keys, LeaseId, Promises, Query,
    Renewal, Resource, Token, Watch,
};
use crate::clock::until;
use crate::clock::{Clock, SystemClock};
use crate::error::{BoxError, Error};
use acquire_task::AcquireTask;
pub use connect::Away;
#[cfg(not(feature = "http"))]
use connect::Connector;
#[cfg(feature = "http")]
pub(crate) use connect::{Connector, NoConnection};
use connection_pool::{CLOSED, ConnectionPool, RetryPolicy};
use decode::UnexpectedReply;
pub use options::{Options, Tls};
#[cfg(feature = "tls")]
pub(in crate::engine) use tls::TlsFailure;
use watch::RemoteWatcher;

const ENGINE: &str = "remote";

/// What it promises at best: what the server's engine does.
pub const PROFILE: EngineProfile = EngineProfile {
    url: "leasehold://HOST:PORT",
    best: Promises {
        engine: ENGINE,
        durable: true,
        fencing: true,
        fair: true,
        never_early: true,
        outlives_process: true,
    },
    needs: &["the server's engine promises it"],
};

/// How long closing waits for leases that are still to be released.
const MAX_CLOSE_WAIT: Duration = Duration::from_secs(4);

/// The client of one server. See the module.
pub struct Remote {
    pool: Arc<ConnectionPool>,
    promises: Promises,
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").field("options", &self.pool.connector.options).finish_non_exhaustive()
    }
}

impl Remote {
    /// Connects, and asks what the server promises. Its tasks run on the runtime that this is called in.
    ///
    /// # Errors
    ///
    /// Unavailable when nobody answers there; Invalid for a wrong key, files that are no certificates, or a call outside
    /// of a tokio runtime.
    pub async fn open(options: Options) -> Result<Arc<Self>, Error> {
        let runtime = Handle::try_current()
            .map_err(|_| Error::Invalid("a server is asked on a tokio runtime: open it inside one".into()))?;
        let at = options.at();
        let pool = Arc::new(ConnectionPool::new(Connector::new(options)?, SystemClock::shared(), runtime));
        let attempt = || format!("open leasehold://{at}");
        let said = pool.call(&attempt, command::promises()?, RetryPolicy::ReadOnly).await?;
        let promises = decode::promises(said).map_err(|odd| unavailable(attempt(), Box::new(odd)))?;
        Ok(Arc::new(Self { pool, promises }))
    }

    /// Tells what happens under a prefix, from here on or from after `since`.
    ///
    /// # Errors
    ///
    /// As [`Engine::watch`].
    pub async fn watch_prefix(&self, prefix: &str, since: Option<EventId>) -> Result<Watch, Error> {
        Ok(Box::new(RemoteWatcher::begin(self.pool.clone(), prefix.to_owned(), since).await?))
    }

    /// The port of the server's HTTP listener; none if it has none.
    ///
    /// # Errors
    ///
    /// As [`Engine::identity`].
    pub async fn http_port(&self) -> Result<Option<u16>, Error> {
        let answer = self.read(&|| "ask for the HTTP port".into(), command::engine()?, decode::http_port).await;
        answer.map_err(|error| decode::too_old(error, "LEASE ENGINE"))
    }

    /// How far the server's wall clock is from ours; none from a server that does not say.
    async fn measure_clock(&self) -> Option<Finding> {
        let mut probes = ClockProbes::default();
        for _ in 0..CLOCK_PROBES {
            let started = ClockProbes::start_probe();
            let theirs = self.read(&|| "read the clock".into(), command::time().ok()?, decode::wall_clock).await;
            probes.end_probe(started, theirs.ok()?);
        }
        let setting = format!("clock of {}", self.pool.connector.options.at());
        let follows = "Times that people compare are off by as much: logs, expires_at.";
        probes.offset().map(|offset| offset.finding(setting, follows))
    }

    async fn read<T>(
        &self,
        attempt: AttemptText<'_>,
        bytes: Vec<u8>,
        read: impl FnOnce(resp::Value) -> Result<T, UnexpectedReply>,
    ) -> Result<T, Error> {
        let value = self.pool.call(attempt, bytes, RetryPolicy::ReadOnly).await?;
        read(value).map_err(|odd| unavailable(attempt(), Box::new(odd)))
    }

    async fn change<T>(
        &self,
        attempt: AttemptText<'_>,
        bytes: Vec<u8>,
        policy: RetryPolicy,
        read: impl FnOnce(resp::Value) -> Result<T, UnexpectedReply>,
    ) -> Result<T, Error> {
        let value = self.pool.call(attempt, bytes, policy).await?;
        // The server acted on it, and the reply does not say how.
        read(value).map_err(|odd| indeterminate(attempt(), Box::new(odd)))
    }
}

impl Engine for Remote {
    fn promises(&self) -> Promises {
        self.promises
    }

    fn acquire(&self, claim: Claim) -> Answer<'_, Grant> {
        Box::pin(async move {
            if self.pool.closed.is_cancelled() {
                return Err(unavailable("acquire".into(), CLOSED.into()));
            }
            AcquireTask::start(&self.pool, claim).await
        })
    }

    fn renew<'a>(&'a self, lease: &'a LeaseId, ttl: Option<Duration>) -> Answer<'a, Renewal> {
        Box::pin(async move {
            let bytes = command::renew(lease, ttl)?;
            self.change(&|| "renew a lease".into(), bytes, RetryPolicy::Idempotent, decode::renewal).await
        })
    }

    fn relabel<'a>(&'a self, lease: &'a LeaseId, holder: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            let bytes = command::relabel(lease, holder)?;
            let done = |value| decode::count(&value).map(drop);
            let answer = self.change(&|| "relabel a lease".into(), bytes, RetryPolicy::Idempotent, done).await;
            answer.map_err(|error| decode::too_old(error, "LEASE RELABEL"))
        })
    }

    fn release<'a>(&'a self, lease: &'a LeaseId) -> Answer<'a, bool> {
        Box::pin(async move {
            let bytes = command::release(lease)?;
            let first = |value| decode::count(&value).map(|ended| ended > 0);
            self.change(&|| "release a lease".into(), bytes, RetryPolicy::Idempotent, first).await
        })
    }

    fn revoke<'a>(&'a self, name: &'a str, reason: &'a str) -> Answer<'a, usize> {
        Box::pin(async move {
            let bytes = command::revoke(name, reason)?;
            self.change(&|| format!("revoke {name}"), bytes, RetryPolicy::NotTwice, |value| decode::count(&value)).await
        })
    }

    fn inspect<'a>(&'a self, name: &'a str) -> Answer<'a, Option<Resource>> {
        Box::pin(async move { self.read(&|| format!("inspect {name}"), command::get(name)?, decode::resource).await })
    }

    fn list(&self, query: Query) -> Answer<'_, Vec<Resource>> {
        Box::pin(async move {
            if query.limit == 0 {
                return Ok(Vec::new());
            }
            self.read(&|| format!("list {}", query.prefix), command::list(&query)?, decode::resources).await
        })
    }

    fn raise_floor(&self, floor: Option<Token>) -> Answer<'_, Token> {
        Box::pin(async move {
            let bytes = command::floor(floor)?;
            let answer = match floor {
                None => self.read(&|| "read the floor".into(), bytes, |value| decode::floor(&value)).await,
                Some(floor) => {
                    let attempt = || format!("raise the floor to {floor}");
                    self.change(&attempt, bytes, RetryPolicy::Idempotent, |value| decode::floor(&value)).await
                }
            };
            answer.map_err(|error| decode::too_old(error, "LEASE FLOOR"))
        })
    }

    fn identity(&self) -> Answer<'_, Option<String>> {
        Box::pin(async move {
            let answer = self.read(&|| "read the identity".into(), command::engine()?, decode::identity).await;
            answer.map_err(|error| decode::too_old(error, "LEASE ENGINE"))
        })
    }

    fn examine(&self) -> Answer<'_, Vec<Finding>> {
        Box::pin(async move {
            let answer = self.read(&|| "examine the engine".into(), command::engine()?, decode::findings).await;
            let mut findings = answer.map_err(|error| decode::too_old(error, "LEASE ENGINE"))?;
            findings.extend(self.measure_clock().await);
            Ok(findings)
        })
    }

    fn watch(&self, since: Option<EventId>) -> Answer<'_, Watch> {
        Box::pin(self.watch_prefix("", since))
    }

    fn keys(&self) -> Option<&dyn Keys> {
        None
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            self.pool.closed.cancel();
            self.pool.tasks.close();
            let clock: &dyn Clock = &*self.pool.clock;
            // A lease that cannot be released in this time lapses.
            let _ = until(clock, clock.now().plus(MAX_CLOSE_WAIT), self.pool.tasks.wait()).await;
            self.pool.close_connections().await;
            Ok(())
        })
    }
}

fn unavailable(attempt: String, source: BoxError) -> Error {
    Error::Unavailable { engine: ENGINE, attempt, source }
}

fn indeterminate(attempt: String, source: BoxError) -> Error {
    Error::Indeterminate { engine: ENGINE, attempt, source }
}
