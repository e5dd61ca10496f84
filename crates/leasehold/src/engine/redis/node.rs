//! One server: its connections, and how one script is run on it.
//!
//! # Laws
//!
//! 1. A connection is used only after the server's role and settings were read on it, the scripts are loaded, and `open` has
//!    compared the history of the data. redis-rs reconnects nothing by itself here.
//! 2. All requests about one lease go over one connection, in order: a retry or a release cannot overtake its acquire. A
//!    gathered first try goes over another one; a retry comes after that was dropped, or has answered.
//! 3. A connection without an answer for [`REPLY_TIMEOUT`] is dropped, with everything that is under way on it.
//!
//! Nothing here knows what a lease is: several of these make a majority.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use leasehold_core::Time;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, Value};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::connect::{PushSink, open_connection};
use super::errors::{CLOSED, CallError, ConnectionState, indeterminate, read_error, unavailable};
use super::options::RedisOptions;
use super::scripts::{Layout, Script};
use super::verify::{ServerReport, first_denial};
use crate::clock::{Clock, until};
use crate::engine::{AttemptText, Finding};
use crate::error::Error;

/// How many connections share the load. More of them cost the server more system calls for each request.
pub(super) const CONNECTIONS: usize = 4;
/// The connection that messages come over.
pub(super) const PUSH_SLOT: usize = 0;
/// How long a reply may take.
pub(in crate::engine) const REPLY_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a request is retried.
pub(super) const RETRY_FOR: Duration = Duration::from_secs(4);
/// The first pause before a retry, and the longest.
const FIRST_BACKOFF: Duration = Duration::from_millis(20);
const MAX_BACKOFF: Duration = Duration::from_millis(500);
/// By how much the two clocks may part before somebody should look: a thousandth of the time, and this.
const CLOCK_TOLERANCE: Duration = Duration::from_millis(50);

/// Whether a request without a reply is sent again, and what it means if no reply ever comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::engine) enum RetryPolicy {
    /// It changes nothing: retried, and never Indeterminate.
    ReadOnly,
    /// Twice has the effect of once: retried.
    Idempotent,
    /// Twice could have two effects: not retried once it was sent.
    NotTwice,
    /// As `Idempotent`, and retried even if the server is unreachable: nobody else will do it.
    Cleanup,
}

/// One script and what it gets.
#[derive(Clone)]
pub(in crate::engine) struct ScriptCall {
    pub script: Script,
    /// Which connection.
    pub slot: usize,
    pub keys: Vec<String>,
    pub args: Vec<String>,
}

/// See the module.
pub(in crate::engine) struct RedisNode {
    pub options: RedisOptions,
    pub layout: Layout,
    pub clock: Arc<dyn Clock>,
    /// Names this process to the scripts: messages to it come over the channel of this name.
    pub instance: String,
    /// Cancelled when the engine is closed.
    pub closed: CancellationToken,
    runtime: Handle,
    slots: [NodeSlot; CONNECTIONS],
    pub pushes: PushSink,
    seen: Mutex<SeenServer>,
    last_number: AtomicU64,
}

/// What was read last.
#[derive(Default)]
struct SeenServer {
    report: ServerReport,
    /// Why that is too weak for fencing. Kept, because every grant asks.
    denial: Option<String>,
    /// The history that `open` was last run for.
    compared: String,
    /// Fencing was promised when the engine was opened.
    sworn: bool,
    /// Both clocks, when they were first compared and last: ours, and the server's microseconds.
    first_clocks: Option<(Time, u64)>,
    last_clocks: Option<(Time, u64)>,
}

#[derive(Default)]
struct NodeSlot {
    current: RwLock<Option<Arc<NodeConnection>>>,
    /// Held by who connects. When the last try that failed began, and why it failed: for callers that waited meanwhile.
    connecting: tokio::sync::Mutex<Option<(Time, String)>>,
}

/// A connection that may be used.
pub(in crate::engine) struct NodeConnection {
    pub redis: MultiplexedConnection,
    /// The SHA-1 of each script, in the order of [`Script::ALL`].
    pub shas: Vec<String>,
    pub broken: Arc<AtomicBool>,
}

impl fmt::Debug for RedisNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisNode").field("options", &self.options).finish_non_exhaustive()
    }
}

impl RedisNode {
    pub fn new(options: RedisOptions, instance: String, pushes: PushSink, runtime: Handle) -> Arc<Self> {
        Arc::new(Self {
            layout: options.layout(),
            clock: options.clock.clone(),
            options,
            instance,
            closed: CancellationToken::new(),
            runtime,
            slots: Default::default(),
            pushes,
            seen: Mutex::default(),
            last_number: AtomicU64::new(0),
        })
    }

    /// The connection of a slot; opened again if it is gone.
    pub async fn connection(self: &Arc<Self>, slot: usize) -> Result<Arc<NodeConnection>, CallError> {
        if let Some(connection) = self.current(slot) {
            return Ok(connection);
        }
        let asked = self.clock.now();
        let mut failed = self.slots[slot].connecting.lock().await;
        if let Some(connection) = self.current(slot) {
            return Ok(connection);
        }
        // Another caller tried while this one waited for the lock: all of them get its result, not one connect each. Not that
        // of a try which began before: the server may have come back since.
        if let Some((at, why)) = &*failed
            && *at >= asked
        {
            return Err(CallError::NoEffect(why.clone().into()));
        }
        let began = self.clock.now();
        // The connection's driver runs on the runtime of the engine, which may outlive that of the caller.
        let node = self.clone();
        let opened = self.runtime.spawn(async move { open_connection(&node, slot).await }).await;
        let opened = opened.unwrap_or_else(|_| Err(CallError::NoEffect("the runtime of the engine is gone".into())));
        match opened {
            Ok(connection) => {
                let connection = Arc::new(connection);
                *self.slots[slot].current.write().unwrap_or_else(PoisonError::into_inner) = Some(connection.clone());
                *failed = None;
                Ok(connection)
            }
            Err(error) => {
                if let CallError::NoEffect(why) | CallError::Busy(why) = &error {
                    *failed = Some((began, why.to_string()));
                }
                Err(error)
            }
        }
    }

    fn current(&self, slot: usize) -> Option<Arc<NodeConnection>> {
        let current = self.slots[slot].current.read().unwrap_or_else(PoisonError::into_inner);
        current.as_ref().filter(|connection| !connection.broken.load(Ordering::Acquire)).cloned()
    }

    /// Drops a connection that cannot be used on.
    pub fn drop_connection(&self, slot: usize, connection: &Arc<NodeConnection>) {
        connection.broken.store(true, Ordering::Release);
        let mut current = self.slots[slot].current.write().unwrap_or_else(PoisonError::into_inner);
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, connection)) {
            *current = None;
        }
        drop(current);
        if slot == PUSH_SLOT {
            self.pushes.disconnected();
        }
    }

    /// Runs a script once.
    pub async fn run_script(self: &Arc<Self>, call: &ScriptCall) -> Result<Value, CallError> {
        let connection = self.connection(call.slot).await?;
        let mut command = redis::cmd("EVALSHA");
        command.arg(&connection.shas[call.script as usize]).arg(call.keys.len());
        call.keys.iter().chain(&call.args).for_each(|arg| {
            command.arg(arg);
        });
        match send_command(&*self.clock, &mut connection.redis.clone(), &command).await {
            None => {
                self.drop_connection(call.slot, &connection);
                Err(CallError::Unknown(format!("no answer within {REPLY_TIMEOUT:?}").into()))
            }
            Some(Ok(value)) => Ok(value),
            Some(Err(error)) => {
                let (error, state) = read_error(&error, call.script);
                if state == ConnectionState::Broken {
                    self.drop_connection(call.slot, &connection);
                }
                Err(error)
            }
        }
    }

    /// Runs a script for a caller, unless the engine was closed.
    pub async fn call(
        self: &Arc<Self>,
        attempt: AttemptText<'_>,
        call: &ScriptCall,
        policy: RetryPolicy,
    ) -> Result<Value, Error> {
        if self.closed.is_cancelled() {
            return Err(unavailable(attempt(), CLOSED.into()));
        }
        self.call_with_retry(attempt, call, policy).await
    }

    /// Runs a script, with retries.
    pub async fn call_with_retry(
        self: &Arc<Self>,
        attempt: AttemptText<'_>,
        call: &ScriptCall,
        policy: RetryPolicy,
    ) -> Result<Value, Error> {
        let first = self.run_script(call).await;
        self.finish_call(attempt, call, policy, first).await.map(|(value, _)| value)
    }

    /// Retries a script after its first try, where that helps. Says also whether an earlier try may have taken effect.
    pub async fn finish_call(
        self: &Arc<Self>,
        attempt: AttemptText<'_>,
        call: &ScriptCall,
        policy: RetryPolicy,
        first: Result<Value, CallError>,
    ) -> Result<(Value, bool), Error> {
        // Counted from the first failure: to notice that a connection is dead may itself take longer.
        let mut give_up = None;
        let mut maybe = false;
        let mut tried = first;
        for round in 0.. {
            let (source, again) = match tried {
                Ok(value) => return Ok((value, maybe)),
                // A refusal of access says nothing of an earlier try whose reply was lost.
                Err(CallError::Decided(error @ Error::Invalid(_))) if maybe => {
                    return Err(indeterminate(attempt(), Box::new(error)));
                }
                Err(CallError::Decided(error)) => return Err(error),
                Err(CallError::Unknown(source)) => {
                    maybe |= policy != RetryPolicy::ReadOnly;
                    (source, policy != RetryPolicy::NotTwice)
                }
                Err(CallError::Busy(source)) => (source, true),
                Err(CallError::NoEffect(source)) => (source, maybe || policy == RetryPolicy::Cleanup),
            };
            let now = self.clock.now();
            if !again || now >= *give_up.get_or_insert(now.plus(RETRY_FOR)) {
                return Err(if maybe { indeterminate(attempt(), source) } else { unavailable(attempt(), source) });
            }
            self.backoff(round).await;
            tried = self.run_script(call).await;
        }
        unreachable!("the rounds end by time")
    }

    /// Sleeps before a retry: longer every time, and not in step with others.
    pub async fn backoff(&self, round: u32) {
        let whole = FIRST_BACKOFF.saturating_mul(1 << round.min(10)).min(MAX_BACKOFF);
        self.clock.sleep_until(self.clock.now().plus(spread(whole, 0.5, 1.0))).await;
    }

    /// A number above those of all earlier requests of this process.
    pub fn next_number(&self) -> u64 {
        self.last_number.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Reads role and settings again, on a connection that exists.
    pub async fn verify_again(self: &Arc<Self>) -> Result<Vec<Finding>, CallError> {
        let connection = self.connection(PUSH_SLOT).await?;
        match super::connect::read_server(self, &mut connection.redis.clone()).await {
            Ok(report) if self.is_other_history(&report) => {
                // The data were replaced under open connections: law 1 holds for none of them any more.
                self.drop_connections();
                self.connection(PUSH_SLOT).await?;
                Ok(self.findings())
            }
            Ok(_) => Ok(self.findings()),
            Err(error) => {
                self.drop_connection(PUSH_SLOT, &connection);
                Err(error)
            }
        }
    }

    pub fn note_report(&self, report: ServerReport) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let report = report.after(&seen.report);
        seen.denial = first_denial(&report.findings(false)).map(str::to_owned);
        seen.report = report;
    }

    /// `open` has raised the counter for this history.
    pub fn note_compared(&self, history: &str) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).compared = history.to_owned();
    }

    /// Whether the counter was not raised for the history of these data.
    pub fn is_other_history(&self, report: &ServerReport) -> bool {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).compared != report.history
    }

    fn drop_connections(&self) {
        for slot in 0..CONNECTIONS {
            let current = self.slots[slot].current.read().unwrap_or_else(PoisonError::into_inner).clone();
            if let Some(connection) = current {
                self.drop_connection(slot, &connection);
            }
        }
    }

    /// Notes what the server's clock shows, in microseconds.
    pub fn note_clock(&self, micros: u64) {
        let at = self.clock.now();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.first_clocks.get_or_insert((at, micros));
        seen.last_clocks = Some((at, micros));
    }

    /// What the server's clock shows about now, in milliseconds.
    pub fn server_millis(&self) -> u64 {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.last_clocks.map_or(0, |(at, micros)| {
            let since = u64::try_from(self.clock.now().since(at).as_millis()).unwrap_or(u64::MAX);
            (micros / 1000).saturating_add(since)
        })
    }

    /// Fencing is promised from now on: a server that gets weaker is not asked for leases any more.
    pub fn swear_fencing(&self) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).sworn = true;
    }

    /// What was found when the settings were last read.
    pub fn findings(&self) -> Vec<Finding> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let mut findings = seen.report.findings(self.options.sentinel_master.is_some());
        if let (Some((first, from)), Some((last, to))) = (seen.first_clocks, seen.last_clocks) {
            let (ours, theirs) = (last.since(first), Duration::from_micros(to.saturating_sub(from)));
            let apart = ours.abs_diff(theirs);
            if apart > ours / 1000 + CLOCK_TOLERANCE {
                findings.push(Finding::warning(
                    "clock",
                    format!("{} ms apart from ours", apart.as_millis()),
                    "a clock that is slewed, not stepped",
                    "The server's wall clock was stepped while the engine was open: leases ended early or late.",
                ));
            }
        }
        findings
    }

    /// Why no lease is asked for although the engine was opened with the promise of fencing.
    pub fn weakness(&self) -> Option<String> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if !seen.sworn {
            return None;
        }
        seen.denial.as_ref().map(|sentence| {
            format!("the server was promised to keep every lease, and its settings got weaker since: {sentence}")
        })
    }

    /// Drops all connections.
    pub fn close_connections(&self) {
        for slot in &self.slots {
            *slot.current.write().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }
}

/// The reply; none if there is none in time.
pub(in crate::engine) async fn send_command(
    clock: &dyn Clock,
    redis: &mut MultiplexedConnection,
    command: &Cmd,
) -> Option<Result<Value, RedisError>> {
    until(clock, clock.now().plus(REPLY_TIMEOUT), command.query_async::<Value>(redis)).await
}

/// The connection for all requests about one lease.
pub(super) fn slot_of(handle: &str) -> usize {
    handle.as_bytes().last().map_or(0, |digit| usize::from(*digit)) % CONNECTIONS
}

/// A random part of a span, between these two shares of it.
pub(super) fn spread(span: Duration, from: f64, to: f64) -> Duration {
    let share = f64::from(u32::from_le_bytes(random_bits())) / f64::from(u32::MAX);
    span.mul_f64(from + share * (to - from))
}

/// Random bits from the operating system.
pub(in crate::engine) fn random_bits<const N: usize>() -> [u8; N] {
    let mut bits = [0; N];
    // Without randomness there are no unique handles, and there is nothing to fall back on.
    getrandom::fill(&mut bits).expect("the operating system gives random bits");
    bits
}
