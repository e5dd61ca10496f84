//! PostgreSQL as an engine: one function call decides for many callers. `postgres://user@host/database`.
//!
//! # Promises
//!
//! Fencing, durable, fair, and leases that outlive their process. Durable and fencing only with settings that keep what
//! is acknowledged: `synchronous_commit` on, `fsync` and `full_page_writes` on, and no asynchronous standby to fail over
//! to. They are read at open, on every connection and every 30 s. An acquire that is sent again because a connection was
//! lost has one effect.
//!
//! # Does not promise
//!
//! Never early: the clock is the server's wall clock, and a step forward ends leases early. Order of tokens between
//! different resources. Which of several holders a refusal names. The order of grants at one instant to claims that do
//! not conflict. That a refusal counts only waiters whose patience lasts. Quotas and a limit of all waiters: the server
//! counts those. Endings are remembered for ten minutes (`memory=`), not by their number. Waiters survive a restart of
//! PostgreSQL, and no restart of their own process.
//!
//! # Clock
//!
//! `clock_timestamp()` of the primary, read after the last lock of a call. Replies carry spans. `slew=` (500 ppm) is taken
//! off what remains: a wall clock may be slewed.
//!
//! # Token
//!
//! A sequence in microseconds, minted in the transaction that grants, under the locks of the names. It is raised to the
//! clock when it lags by a second or the timeline changed, so that tokens rise over a failover, a restored backup and a
//! copy. One hole is left: history is lost *and* the clock is behind the last grant; `token_base=` closes it by hand.
//!
//! # On lost connection
//!
//! Acquire, renew, release and relabel are sent again for four seconds, an acquire with the same handle, and as long as
//! its wait lasts. Claims that wait are rows in the server: they keep their place. Revoke is not sent twice: the second
//! could hit a successor. When it cannot be known whether it happened: Indeterminate. Every call is answered within seven
//! seconds beyond its patience, even by a server that takes everything and says nothing.
//!
//! # Files, in reading order
//!
//! `layout_1/` (tables and functions in SQL: this is where grants are decided), `schema`, `options`, `ids`, `statements`,
//! `sql_error`, `verify`, `connection`, `batch`, `writer` (callers become batches), `shared` (retries), `short_wait`,
//! `acquire_task`, `wait_registry`, `wait_task`, `listener`, `view`, `watch`, `maintenance`, `examine`, `open`.

mod acquire_task;
mod batch;
mod connection;
mod examine;
mod ids;
mod listener;
mod maintenance;
mod open;
mod options;
mod schema;
mod shared;
mod short_wait;
mod sql_error;
mod statements;
mod verify;
mod view;
mod wait_registry;
mod wait_task;
mod watch;
mod writer;

use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use leasehold_core::{Secret, WaiterId};
use leasehold_postgres::tokio_postgres::types::Type;

use super::from_book::{self, millis};
use super::{
    Answer, Claim, Engine, EngineProfile, EventId, Finding, Grant, Keys, LeaseId, Promises, Query, Renewal, Resource,
    Token, Watch,
};
use crate::clock::{Clock as _, until};
use crate::error::{Error, Refusal};
use acquire_task::PostgresAcquireTask;
use batch::{OperationKind, Verdict, to_bigint};
use ids::parse_lease_id;
pub(crate) use ids::random_bytes;
pub use options::PostgresEngineOptions;
pub(crate) use options::split_engine_options;
pub use schema::{SchemaName, grant_sql, migration_sql};
use shared::{PostgresShared, ResendPolicy};
use sql_error::Cause;
use statements::Sql;
use watch::{PostgresWatcher, WatchKeeper};

const ENGINE: &str = "postgres";

/// How long closing waits for claims to leave their queues.
const MAX_CLOSE_WAIT: Duration = Duration::from_secs(4);

/// How long a call may take beyond its patience. What it began goes on, and is cleaned up.
const MAX_DELAY: Duration = Duration::from_secs(7);
const TOO_LATE: &str = "PostgreSQL did not answer in time";

/// What it promises at best, and what it needs for that.
pub const PROFILE: EngineProfile = EngineProfile {
    url: "postgres://HOST/DATABASE",
    best: Promises {
        engine: ENGINE,
        durable: true,
        fencing: true,
        fair: true,
        never_early: false,
        outlives_process: true,
    },
    needs: &["synchronous_commit on", "fsync on", "full_page_writes on", "no asynchronous standby to fail over to"],
};

/// The client of one schema in one database. See the module.
pub struct PostgresEngine {
    shared: Arc<PostgresShared>,
    promises: Promises,
    identity: String,
    /// What keeps the watch of this process alive, while there is one.
    keeper: Mutex<Weak<WatchKeeper>>,
}

impl fmt::Debug for PostgresEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresEngine").field("options", self.shared.options()).finish_non_exhaustive()
    }
}

impl Drop for PostgresEngine {
    fn drop(&mut self) {
        // Without close: the tasks end, and leases and claims by their time.
        self.shared.closed.cancel();
        self.shared.stopped.cancel();
    }
}

impl PostgresEngine {
    /// How many calls are under way: neither answered nor waiting in a queue of the server. For tests under a clock that
    /// is set by hand.
    #[cfg(any(test, feature = "testkit"))]
    #[must_use]
    pub fn calls_in_flight(&self) -> usize {
        self.shared.calls_in_flight()
    }

    /// Forgets now what is over, as is done every minute; `examine` tells of a failure. For tests.
    #[cfg(any(test, feature = "testkit"))]
    pub async fn sweep_now(&self) {
        self.shared.sweep_if_due().await;
    }

    /// The answer, if it comes in time. `late`: what it means that it does not.
    async fn answer_in_time<T>(
        &self,
        attempt: &(dyn Fn() -> String + Sync),
        late: fn(String, Cause) -> Error,
        answer: impl Future<Output = Result<T, Error>> + Send,
    ) -> Result<T, Error> {
        let clock = self.shared.real_clock;
        let answer = until(&clock, clock.now().plus(MAX_DELAY), answer).await;
        answer.unwrap_or_else(|| Err(late(attempt(), Cause::new(TOO_LATE))))
    }

    /// An acquire has its patience, and a little more.
    async fn acquire_in_time(&self, claim: &Claim) -> Result<Grant, Error> {
        let shared = &self.shared;
        let patience = shared.clock().now().plus(claim.wait);
        let mut acquiring = PostgresAcquireTask::start(shared, claim, self.promises.fencing);
        let late = async {
            shared.clock().sleep_until(patience).await;
            shared.real_clock.sleep_until(shared.real_clock.now().plus(MAX_DELAY)).await;
        };
        tokio::select! {
            biased;
            answer = &mut acquiring => answer,
            () = late => Err(acquiring.give_up()),
        }
    }

    async fn own(&self, attempt: &str, lease: &LeaseId, kind: OperationKind) -> Result<Verdict, Error> {
        let attempt = || attempt.to_owned();
        self.shared.refuse_closed(&attempt)?;
        let Some((handle, secret)) = parse_lease_id(lease) else { return Err(Refusal::NotHeld.into()) };
        let written = self.shared.write_with_retry(&attempt, handle, secret, kind);
        let verdict = self.answer_in_time(&attempt, indeterminate, written).await?;
        match verdict.word {
            b'R' | b'1' | b'0' => Ok(verdict),
            b'S' => Err(Refusal::Stale.into()),
            b'N' => Err(Refusal::NotHeld.into()),
            other => {
                let cause = Cause::new(format!("the server answered with the verdict {}", char::from(other)));
                Err(indeterminate(attempt(), cause))
            }
        }
    }

    fn check_claim(&self, claim: &Claim) -> Result<(), Error> {
        let wants = from_book::wants(claim);
        // Neither is sent: the server draws no waiters, and the secret comes later.
        let checked = from_book::acquire(claim, &wants, None, WaiterId(0), Secret::new([0; 16]));
        self.shared.options().limits.check(&checked).map_err(Error::Invalid)
    }

    async fn revoke_all(&self, name: &str, reason: &str) -> Result<usize, Error> {
        let attempt = || format!("revoke {name}");
        self.shared.refuse_closed(&attempt)?;
        let limits = &self.shared.options().limits;
        limits.check_name(name).map_err(Error::Invalid)?;
        if reason.trim().is_empty() || reason.len() > limits.holder_bytes || reason.contains('\0') {
            return Err(Error::Invalid(format!("a revoke gives a reason of 1 to {} bytes", limits.holder_bytes)));
        }
        let parameters = [(&name as _, Type::TEXT), (&reason as _, Type::TEXT)];
        let (shared, policy) = (&self.shared, ResendPolicy::NotTwice);
        let asked = shared.query_with_retry(&attempt, &shared.control, Sql::Revoke, &parameters, policy);
        let rows = self.answer_in_time(&attempt, indeterminate, asked).await?;
        let count = rows.first().and_then(|row| row.try_get::<_, i32>(0).ok());
        let count = count.and_then(|count| usize::try_from(count).ok());
        count.ok_or_else(|| indeterminate(attempt(), Cause::new("the server does not say how many")))
    }

    async fn floor(&self, floor: Option<Token>) -> Result<Token, Error> {
        let attempt = || floor.map_or("read the floor".into(), |floor| format!("raise the floor to {floor}"));
        self.shared.refuse_closed(&attempt)?;
        if !self.promises.fencing {
            return Err(Error::Invalid("this engine, as configured, promises no fencing: it gives no tokens".into()));
        }
        if floor.is_some_and(|floor| floor > Token::MAX_FLOOR) {
            return Err(Error::Invalid(format!("a floor is at most {}", Token::MAX_FLOOR)));
        }
        let number = floor.map(|floor| floor.get().cast_signed());
        let parameters = [(&number as _, Type::INT8)];
        let (shared, policy) = (
            &self.shared,
            match floor {
                Some(_) => ResendPolicy::Idempotent,
                None => ResendPolicy::ReadOnly,
            },
        );
        let asked = shared.query_with_retry(&attempt, &shared.control, Sql::RaiseFloor, &parameters, policy);
        let late = if floor.is_some() { indeterminate } else { unavailable };
        let rows = self.answer_in_time(&attempt, late, asked).await?;
        let answer = rows.first().and_then(|row| row.try_get::<_, i64>(0).ok()).and_then(read_token);
        answer.ok_or_else(|| indeterminate(attempt(), Cause::new("the server does not say the floor")))
    }

    async fn stop(&self) {
        let shared = &self.shared;
        shared.closed.cancel();
        shared.tasks.close();
        let clock = shared.real_clock;
        // A lease that cannot be released in this time lapses; a claim leaves when its patience is over.
        let _ = until(&clock, clock.now().plus(MAX_CLOSE_WAIT), shared.tasks.wait()).await;
        shared.stopped.cancel();
        shared.background.close();
        let _ = until(&clock, clock.now().plus(MAX_CLOSE_WAIT), shared.background.wait()).await;
        // A writer may still wait for a server that does not answer: nobody waits for it.
        shared.queue.close();
        shared.control.close().await;
        shared.pulse.close().await;
        shared.checker.close();
        shared.leaver.close();
        shared.reader.close().await;
    }
}

impl Engine for PostgresEngine {
    fn promises(&self) -> Promises {
        self.promises
    }

    fn acquire(&self, claim: Claim) -> Answer<'_, Grant> {
        Box::pin(async move {
            self.shared.refuse_closed(&|| "acquire".into())?;
            self.check_claim(&claim)?;
            self.acquire_in_time(&claim).await
        })
    }

    fn renew<'a>(&'a self, lease: &'a LeaseId, ttl: Option<Duration>) -> Answer<'a, Renewal> {
        Box::pin(async move {
            let ttl_ms = ttl.map(millis);
            if let Some(ttl) = ttl_ms {
                self.shared.options().limits.check_ttl(ttl).map_err(Error::Invalid)?;
            }
            let kind = OperationKind::Renew { ttl_ms: ttl_ms.map(to_bigint) };
            let verdict = self.own("renew a lease", lease, kind).await?;
            Ok(Renewal {
                remaining: self.shared.without_slew(verdict.remaining.unwrap_or(0)),
                renewable: verdict.renewable.map(|micros| self.shared.without_slew(micros)),
            })
        })
    }

    fn relabel<'a>(&'a self, lease: &'a LeaseId, holder: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            self.shared.options().limits.check_holder(holder).map_err(Error::Invalid)?;
            self.own("relabel a lease", lease, OperationKind::Relabel { label: holder.into() }).await.map(drop)
        })
    }

    fn release<'a>(&'a self, lease: &'a LeaseId) -> Answer<'a, bool> {
        Box::pin(async move {
            let verdict = self.own("release a lease", lease, OperationKind::Release).await?;
            Ok(verdict.word == b'1')
        })
    }

    fn revoke<'a>(&'a self, name: &'a str, reason: &'a str) -> Answer<'a, usize> {
        Box::pin(self.revoke_all(name, reason))
    }

    fn inspect<'a>(&'a self, name: &'a str) -> Answer<'a, Option<Resource>> {
        Box::pin(async move {
            let attempt = || format!("inspect {name}");
            self.shared.refuse_closed(&attempt)?;
            self.shared.options().limits.check_name(name).map_err(Error::Invalid)?;
            let shown = self.shared.show_one(name, self.promises.fencing);
            self.answer_in_time(&attempt, unavailable, shown).await
        })
    }

    fn list(&self, query: Query) -> Answer<'_, Vec<Resource>> {
        Box::pin(async move {
            let attempt = || format!("list {}", query.prefix);
            self.shared.refuse_closed(&attempt)?;
            // No name has a zero byte, and the server takes no such text.
            if query.prefix.contains('\0') || query.after.as_ref().is_some_and(|after| after.contains('\0')) {
                return Err(Error::Invalid("names have no control characters".into()));
            }
            let listed = self.shared.list_page(&query, self.promises.fencing);
            self.answer_in_time(&attempt, unavailable, listed).await
        })
    }

    fn raise_floor(&self, floor: Option<Token>) -> Answer<'_, Token> {
        Box::pin(self.floor(floor))
    }

    fn identity(&self) -> Answer<'_, Option<String>> {
        Box::pin(async move {
            self.shared.refuse_closed(&|| "read the identity".into())?;
            Ok(Some(self.identity.clone()))
        })
    }

    fn examine(&self) -> Answer<'_, Vec<Finding>> {
        Box::pin(async move {
            let attempt = || "examine the engine".to_owned();
            self.shared.refuse_closed(&attempt)?;
            self.answer_in_time(&attempt, unavailable, self.shared.examine_server()).await
        })
    }

    fn watch(&self, since: Option<EventId>) -> Answer<'_, Watch> {
        Box::pin(async move {
            let attempt = || "watch".to_owned();
            self.shared.refuse_closed(&attempt)?;
            let begun = PostgresWatcher::begin(&self.shared, &self.keeper, since, self.promises.fencing);
            let watcher = self.answer_in_time(&attempt, unavailable, begun).await?;
            Ok(Box::new(watcher) as Watch)
        })
    }

    fn keys(&self) -> Option<&dyn Keys> {
        None
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            self.stop().await;
            Ok(())
        })
    }
}

/// A token as the server has it.
fn read_token(number: i64) -> Option<Token> {
    u64::try_from(number).ok().and_then(Token::new)
}

fn unavailable(attempt: String, cause: Cause) -> Error {
    Error::Unavailable { engine: ENGINE, attempt, source: Box::new(cause) }
}

fn indeterminate(attempt: String, cause: Cause) -> Error {
    Error::Indeterminate { engine: ENGINE, attempt, source: Box::new(cause) }
}
