//! What all tasks of one engine share, and the rules for retries.
//!
//! # Laws
//!
//! 1. Only what has one effect however often it is sent is sent again, for [`RETRY_FOR`], with growing random pauses.
//! 2. The last word is Indeterminate if any try may have taken effect, and Unavailable if none can have.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold_postgres::tokio_postgres::Row;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::batch::{OperationKind, Verdict, WriteOperation};
use super::connection::{ServerConnector, SharedServerConnection};
use super::ids::{Bits, random_bytes};
use super::maintenance::{ClockComparison, SweepReport};
use super::options::PostgresEngineOptions;
use super::short_wait::ShortWaitPool;
use super::sql_error::{Cause, SqlFailure};
use super::statements::{Parameter, Sql};
use super::wait_registry::WaitingClaims;
use super::wait_task::WaitService;
use super::writer::{WriteQueue, WriteResult};
use crate::clock::{Clock, SystemClock};
use crate::engine::AttemptText;
use crate::error::Error;

/// How long a statement whose outcome is unknown is sent again.
pub(super) const RETRY_FOR: Duration = Duration::from_secs(4);
/// How long a server may be away before claims that wait are given up.
pub(super) const MAX_OUTAGE: Duration = Duration::from_secs(30);
/// Connections over which claims leave their queues.
const MAX_LEAVERS: usize = 2;
/// The first pause before a retry, and the longest.
const FIRST_BACKOFF: Duration = Duration::from_millis(20);
const MAX_BACKOFF: Duration = Duration::from_millis(500);

/// The cause in errors of a closed engine.
pub(super) const CLOSED: &str = "the engine was closed";

/// See the module.
pub(super) struct PostgresShared {
    pub connector: Arc<ServerConnector>,
    /// For retries, which go by real time even under a clock that is set by hand.
    pub real_clock: SystemClock,
    pub queue: WriteQueue,
    pub waiting: WaitingClaims,
    pub service: WaitService,
    /// For watches, and for what operators ask.
    pub control: Arc<SharedServerConnection>,
    /// For heartbeats alone: whatever others wait for, the server hears that this process lives.
    pub pulse: SharedServerConnection,
    /// For checks of waiting claims.
    pub checker: ShortWaitPool,
    /// For claims that leave their queues.
    pub leaver: ShortWaitPool,
    /// For what only reads.
    pub reader: SharedServerConnection,
    /// Names this process to the server.
    pub process: i64,
    /// Where this process gets its messages. Whoever knows it could forge a grant.
    pub channel: String,
    pub clocks: ClockComparison,
    pub sweeps: SweepReport,
    /// No more calls are taken.
    pub closed: CancellationToken,
    /// Nothing is written any more.
    pub stopped: CancellationToken,
    /// Tasks of callers: they go on after their caller is gone.
    pub tasks: TaskTracker,
    /// Writers, timers and listeners.
    pub background: TaskTracker,
    /// Calls and tasks that are neither done nor waiting in a queue of the server.
    in_flight: AtomicUsize,
}

/// Counts one call as under way until it is dropped.
pub(super) struct InFlight<'a>(&'a AtomicUsize);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The same for a task.
pub(super) struct TaskInFlight(Arc<PostgresShared>);

impl Drop for TaskInFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What it means that a statement has no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ResendPolicy {
    /// It changes nothing: sent again, and never Indeterminate.
    ReadOnly,
    /// Twice has the effect of once: sent again.
    Idempotent,
    /// Twice could have two effects: not sent again once its outcome is unknown.
    NotTwice,
}

impl PostgresShared {
    pub fn new(connector: Arc<ServerConnector>) -> Self {
        let control = Arc::new(SharedServerConnection::new(connector.clone()));
        Self {
            real_clock: SystemClock,
            queue: WriteQueue::default(),
            waiting: WaitingClaims::default(),
            service: WaitService::default(),
            pulse: SharedServerConnection::new(connector.clone()),
            checker: ShortWaitPool::new(connector.clone(), control.clone(), 1),
            leaver: ShortWaitPool::new(connector.clone(), control.clone(), MAX_LEAVERS),
            reader: SharedServerConnection::new(connector.clone()),
            process: i64::from_le_bytes(random_bytes()),
            channel: format!("leasehold_{}", Bits::draw_random().to_hex()),
            clocks: ClockComparison::default(),
            sweeps: SweepReport::default(),
            closed: CancellationToken::new(),
            stopped: CancellationToken::new(),
            tasks: TaskTracker::new(),
            background: TaskTracker::new(),
            in_flight: AtomicUsize::new(0),
            control,
            connector,
        }
    }

    pub fn options(&self) -> &PostgresEngineOptions {
        &self.connector.options
    }

    /// What patience and timers go by.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.connector.options.clock
    }

    pub fn count_in_flight(&self) -> InFlight<'_> {
        self.in_flight.fetch_add(1, Ordering::SeqCst);
        InFlight(&self.in_flight)
    }

    pub fn count_task_in_flight(self: &Arc<Self>) -> TaskInFlight {
        self.in_flight.fetch_add(1, Ordering::SeqCst);
        TaskInFlight(self.clone())
    }

    pub fn calls_in_flight(&self) -> usize {
        self.in_flight.load(Ordering::SeqCst)
    }

    /// Spawns a task that goes on after its caller is gone.
    pub fn spawn_task(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn_on(task, &self.connector.runtime);
    }

    /// Spawns a task that lives as long as the engine.
    pub fn spawn_background(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        self.background.spawn_on(task, &self.connector.runtime);
    }

    pub fn refuse_closed(&self, attempt: AttemptText<'_>) -> Result<(), Error> {
        if self.closed.is_cancelled() {
            return Err(super::unavailable(attempt(), Cause::new(CLOSED)));
        }
        Ok(())
    }

    /// Sleeps before a retry: longer every time, and not in step with others.
    pub async fn backoff(&self, round: u32) {
        let whole = FIRST_BACKOFF.saturating_mul(1 << round.min(10)).min(MAX_BACKOFF);
        let spread = f64::from(u32::from_le_bytes(random_bytes())) / f64::from(u32::MAX);
        let until = self.real_clock.now().plus(whole.mul_f64(0.5 + spread / 2.0));
        self.real_clock.sleep_until(until).await;
    }

    /// What is left when the server's wall clock was slewed all the while.
    pub fn without_slew(&self, micros: i64) -> Duration {
        let micros = u64::try_from(micros).unwrap_or(0);
        let slew = u128::from(micros) * u128::from(self.options().slew_ppm) / 1_000_000;
        Duration::from_micros(micros.saturating_sub(u64::try_from(slew).unwrap_or(u64::MAX)))
    }

    /// One operation through the write queue, once.
    pub async fn write_once(&self, operation: WriteOperation) -> WriteResult {
        let receiver: oneshot::Receiver<WriteResult> = self.queue.submit(operation);
        receiver.await.unwrap_or_else(|_| {
            Err(SqlFailure::Unknown(Cause::new("the runtime that the engine was opened on is gone")))
        })
    }

    /// A verb of a lease's owner. Repeating it is harmless.
    pub async fn write_with_retry(
        &self,
        attempt: AttemptText<'_>,
        handle: Bits,
        secret: Bits,
        kind: OperationKind,
    ) -> Result<Verdict, Error> {
        let _counted = self.count_in_flight();
        let operation = WriteOperation { handle, secret, kind };
        let mut tries = ResendTries::new(ResendPolicy::Idempotent);
        loop {
            match self.write_once(operation.clone()).await {
                Ok(verdict) => return Ok(verdict),
                Err(failure) => tries.next(self, failure, attempt).await?,
            }
        }
    }

    /// A statement over a shared connection, with retries.
    pub async fn query_with_retry(
        &self,
        attempt: AttemptText<'_>,
        connection: &SharedServerConnection,
        sql: Sql,
        parameters: &[Parameter<'_>],
        policy: ResendPolicy,
    ) -> Result<Vec<Row>, Error> {
        let _counted = self.count_in_flight();
        let mut tries = ResendTries::new(policy);
        loop {
            match connection.query(sql, parameters).await {
                Ok(rows) => return Ok(rows),
                Err(failure) => tries.next(self, failure, attempt).await?,
            }
        }
    }
}

/// The tries of one call.
struct ResendTries {
    policy: ResendPolicy,
    round: u32,
    maybe: bool,
    give_up: Option<leasehold_core::Time>,
}

impl ResendTries {
    fn new(policy: ResendPolicy) -> Self {
        Self { policy, round: 0, maybe: false, give_up: None }
    }

    /// Sleeps before the next try, or says that there is none.
    async fn next(
        &mut self,
        shared: &PostgresShared,
        failure: SqlFailure,
        attempt: AttemptText<'_>,
    ) -> Result<(), Error> {
        let again = match &failure {
            SqlFailure::Again { .. } => true,
            SqlFailure::Unknown(_) => {
                self.maybe |= self.policy != ResendPolicy::ReadOnly;
                self.policy != ResendPolicy::NotTwice
            }
            // An idle connection may have been cut by the server: the first failure says little.
            SqlFailure::Away(_) => self.maybe || self.round == 0,
            SqlFailure::Refused(_) | SqlFailure::Never(_) => false,
        };
        let now = shared.real_clock.now();
        let give_up = *self.give_up.get_or_insert(now.plus(RETRY_FOR));
        if !again || now >= give_up {
            let failure = match failure {
                SqlFailure::Unknown(cause) if self.policy == ResendPolicy::ReadOnly => SqlFailure::Away(cause),
                other => other,
            };
            return Err(failure.into_error(self.maybe, attempt()));
        }
        // The queue of a stopped engine takes nothing more: the next try would only be told so.
        tokio::select! {
            biased;
            () = shared.stopped.cancelled() => {
                Err(SqlFailure::Away(Cause::new(CLOSED)).into_error(self.maybe, attempt()))
            }
            () = shared.backoff(self.round) => {
                self.round += 1;
                Ok(())
            }
        }
    }
}
