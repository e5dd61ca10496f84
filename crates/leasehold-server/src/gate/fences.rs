//! The fences at run time: the machine under its lock, the requests that wait, and time limits.
//!
//! ```text
//!   enter ──▶ machine ──▶ Flight ──▶ dropped when the request has left
//!                │  ▲
//!          raises▼  │durable
//!             writer thread (memory)
//! ```
//!
//! The lock is held for no await and for no disk.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold::fence::FenceToken;
use leasehold_support::sync::lock;
use leasehold_support::time::stopwatch;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::machine::{GateMachine, GateRefusal, GateStep, OnStuck, Raise, RequestId};
use super::metrics::GateMetrics;
use super::upstream::CloseHandle;

/// Fenced requests that wait or are with the upstream. They stay without their clients: connections do not limit them.
const MAX_REQUESTS_UNDER_WAY: usize = 20_000;

/// How long requests wait for others.
#[derive(Clone, Copy, Debug)]
pub struct FenceTimes {
    /// For older requests to be answered.
    pub drain: Duration,
    /// After a connection was cut, before a newer request goes on.
    pub settle: Duration,
}

/// See the module.
pub struct Fences {
    state: Mutex<FencesState>,
    /// The writer has something to do.
    writer_wake: Condvar,
    times: FenceTimes,
    on_stuck: OnStuck,
    metrics: Arc<GateMetrics>,
}

struct FencesState {
    machine: GateMachine,
    signals: HashMap<RequestId, Arc<FlightSignal>>,
    closing: bool,
}

/// What the writer thread does next.
pub enum WriterTask {
    /// Write these raises as one batch.
    Write(Vec<Raise>),
    /// Nothing came for a while: prove the last batch.
    Prove,
    /// The gate ends.
    Close,
}

/// How a request is reached while it waits or flies.
#[derive(Debug, Default)]
struct FlightSignal {
    wake: Notify,
    cut: Mutex<CutState>,
}

/// Whether a request was cut, and what closes its connection to the upstream.
#[derive(Debug, Default)]
struct CutState {
    is_cut: bool,
    connection: Option<CloseHandle>,
}

impl FlightSignal {
    /// False if it was cut before.
    fn cut(&self) -> bool {
        let mut state = lock(&self.cut);
        if let Some(connection) = &state.connection {
            connection.close_now();
        }
        !std::mem::replace(&mut state.is_cut, true)
    }
}

/// Cuts a request that somebody else owns.
pub struct CutHandle(Arc<FlightSignal>);

/// One admitted request. Dropping it says that it has left.
pub struct Flight {
    fences: Arc<Fences>,
    id: RequestId,
    signal: Arc<FlightSignal>,
}

impl Fences {
    /// The fences as they were remembered.
    pub fn new(machine: GateMachine, times: FenceTimes, on_stuck: OnStuck, metrics: Arc<GateMetrics>) -> Arc<Self> {
        let state = FencesState { machine, signals: HashMap::new(), closing: false };
        Arc::new(Self { state: Mutex::new(state), writer_wake: Condvar::new(), times, on_stuck, metrics })
    }

    /// Waits until a request may be forwarded. The resources are sorted and differ.
    ///
    /// # Errors
    ///
    /// Why it may not.
    pub async fn enter(self: &Arc<Self>, resources: &[Box<str>], shown: FenceToken) -> Result<Flight, GateRefusal> {
        let (flight, mut step) = self.register(resources, shown).ok_or(GateRefusal::Full)?;
        let mut waiting_since = None;
        let mut deadline = None;
        loop {
            // Those that waited for nothing are the longest waits.
            if let (GateStep::Forward | GateStep::Refuse(_), Some(since)) = (&step, waiting_since) {
                self.metrics.record_drain(std::time::Instant::elapsed(&since));
            }
            step = match step {
                GateStep::Forward => return Ok(flight),
                GateStep::Refuse(refusal) => return Err(refusal),
                GateStep::AwaitSync => {
                    flight.signal.wake.notified().await;
                    self.with_machine(|machine| machine.poll_request(flight.id))
                }
                GateStep::AwaitOlder => {
                    waiting_since.get_or_insert_with(stopwatch);
                    let until = *deadline.get_or_insert_with(|| Instant::now() + self.times.drain);
                    if timeout_at(until, flight.signal.wake.notified()).await.is_ok() {
                        self.with_machine(|machine| machine.poll_request(flight.id))
                    } else {
                        let step = self.with_machine(|machine| machine.drain_over(flight.id));
                        if step == GateStep::AwaitOlder {
                            // They are cut, and leave after they settled.
                            flight.signal.wake.notified().await;
                            self.with_machine(|machine| machine.poll_request(flight.id))
                        } else {
                            step
                        }
                    }
                }
            }
        }
    }

    fn register(self: &Arc<Self>, resources: &[Box<str>], shown: FenceToken) -> Option<(Flight, GateStep)> {
        let signal = Arc::new(FlightSignal::default());
        let (id, step) = self.with_state(|state| {
            if state.signals.len() >= MAX_REQUESTS_UNDER_WAY {
                return None;
            }
            let (id, step) = state.machine.enter(resources, shown);
            state.signals.insert(id, signal.clone());
            Some((id, step))
        })?;
        Some((Flight { fences: self.clone(), id, signal }, step))
    }

    fn with_machine<T>(&self, step: impl FnOnce(&mut GateMachine) -> T) -> T {
        self.with_state(|state| step(&mut state.machine))
    }

    /// Does something under the lock, and then what it asks for.
    fn with_state<T>(&self, step: impl FnOnce(&mut FencesState) -> T) -> T {
        let mut state = lock(&self.state);
        let result = step(&mut state);
        let has_raises = state.machine.has_raises();
        if state.machine.has_effects() {
            let effects = state.machine.take_effects();
            for id in effects.wake {
                if let Some(signal) = state.signals.get(&id) {
                    signal.wake.notify_one();
                }
            }
            for id in effects.cut {
                if state.signals.get(&id).is_some_and(|signal| signal.cut()) {
                    self.metrics.count_unsettled();
                }
            }
        }
        drop(state);
        if has_raises {
            self.writer_wake.notify_one();
        }
        result
    }

    /// The next task of the writer thread. Waits for it; for a proof only as long as `prove_after` says.
    pub fn next_task(&self, prove_after: Option<Duration>) -> WriterTask {
        let mut state: MutexGuard<'_, FencesState> = lock(&self.state);
        loop {
            let raises = state.machine.take_raises();
            if !raises.is_empty() {
                return WriterTask::Write(raises);
            }
            if state.closing {
                return WriterTask::Close;
            }
            state = match prove_after {
                None => self.writer_wake.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(patience) => {
                    let waited = self.writer_wake.wait_timeout(state, patience);
                    let (state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
                    if timeout.timed_out() && !state.machine.has_raises() && !state.closing {
                        return WriterTask::Prove;
                    }
                    state
                }
            };
        }
    }

    /// Raises up to this number are durable; writing and syncing took this long.
    pub fn raises_durable(&self, number: u64, took: Duration) {
        self.metrics.record_raise_sync(took);
        self.with_machine(|machine| machine.durable_up_to(number));
    }

    /// The memory failed: nothing is forwarded any more.
    pub fn fail(&self) {
        self.with_machine(GateMachine::fail);
    }

    /// Whether the memory failed.
    pub fn has_failed(&self) -> bool {
        lock(&self.state).machine.has_failed()
    }

    /// The writer thread writes what is left, and ends.
    pub fn close(&self) {
        lock(&self.state).closing = true;
        self.writer_wake.notify_one();
    }

    /// Calls `each` with some of what is remembered, from an index on. Returns how many there were.
    pub fn copy_fences(&self, start: usize, count: usize, mut each: impl FnMut(&str, FenceToken)) -> usize {
        let state = lock(&self.state);
        state.machine.fences_from(start, count).map(|(resource, kept)| each(resource, kept)).count()
    }

    /// How many resources are remembered, and how many requests are with the upstream.
    pub fn sizes(&self) -> (usize, usize) {
        let state = lock(&self.state);
        (state.machine.fence_count(), state.machine.flying_count())
    }

    /// Cuts a request that the upstream does not have whole, whatever the operator wants for others: the upstream must
    /// reject half a request.
    pub fn cut_half_sent(&self, request: &CutHandle) {
        request.0.cut();
    }

    /// The upstream does not answer a request in time: cuts it, where the operator allows that. Otherwise it stays until
    /// the upstream answers or closes the connection, because the order would not hold without it.
    pub fn cut_if_allowed(&self, request: &CutHandle) {
        if self.on_stuck == OnStuck::Cut && request.0.cut() {
            self.metrics.count_unsettled();
        }
    }
}

impl Flight {
    /// From here on a cut closes this connection. False if the request was cut already: then it must not be sent.
    pub fn set_connection(&self, connection: CloseHandle) -> bool {
        let mut state = lock(&self.signal.cut);
        state.connection = Some(connection);
        !state.is_cut
    }

    /// Whether its connection was or will be closed for a newer request.
    pub fn is_cut(&self) -> bool {
        lock(&self.signal.cut).is_cut
    }

    /// For [`Fences::cut_if_allowed`].
    pub fn cut_handle(&self) -> CutHandle {
        CutHandle(self.signal.clone())
    }

    /// Cuts itself: see [`Fences::cut_if_allowed`].
    pub fn cut_if_allowed(&self) {
        self.fences.cut_if_allowed(&self.cut_handle());
    }

    /// Its connection is closed. After a cut, the upstream has some time before a newer request may go on.
    pub async fn leave_closed(self) {
        if self.is_cut() {
            sleep_until(Instant::now() + self.fences.times.settle).await;
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.fences.with_state(|state| {
            state.signals.remove(&self.id);
            state.machine.leave(self.id);
        });
    }
}
