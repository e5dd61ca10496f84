//! Stops client processes for longer than their leases live: while they hold one, while they wait for one, and in the
//! middle of a call whose reply comes meanwhile.

use std::time::Duration;

use leasehold::engine::{Claim, Engine, Grant, Want};
use leasehold_core::Token;
use leasehold_harness::proxy::Proxy;
use leasehold_torture::history::{Op, OpId, OpKind, OpOutcome};
use leasehold_torture::rng::Rng;

use super::client_process::{ClientProcess, MergedOps, PROCESS_TTL};
use super::recorder::{NAMES, Recorder, from_environment, sleep_millis};

/// The test's own client: it takes what a process shall wait for.
const TESTER: u64 = 99;
/// The life of what the tester takes: longer than anything here lasts.
const TESTER_TTL: Duration = Duration::from_secs(60);
const TESTER_PATIENCE: Duration = Duration::from_secs(30);
/// How long a process may take until it does what it shall be stopped in.
const REACH_DEADLINE: Duration = Duration::from_secs(30);
/// A call that is under way for so long has reached the server.
const CALL_ARRIVES: Duration = Duration::from_millis(30);
/// Which of two processes is stopped in what, in turns; the next time it is the other one. A call in an even place is
/// an acquire.
const STOPS: [(usize, StoppedIn); 6] = [
    (0, StoppedIn::Holding),
    (1, StoppedIn::Waiting),
    (1, StoppedIn::Calling),
    (1, StoppedIn::Holding),
    (0, StoppedIn::Waiting),
    (0, StoppedIn::Calling),
];

/// What a process was doing when it was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoppedIn {
    Holding,
    Waiting,
    Calling,
}

/// One stop.
#[derive(Clone, Debug)]
pub struct Stop {
    process: u64,
    state: StoppedIn,
    /// What it held.
    token: Option<Token>,
    /// From when on it stood still.
    from: u64,
    /// How long the next in the queue then waited.
    pub blocked: Option<Duration>,
}

/// A process to be stopped, and what is needed for it.
pub struct Stopper<'a> {
    pub process: ClientProcess,
    /// Between the process and its servers.
    pub proxies: &'a [Proxy],
    /// The test's own.
    pub engine: &'a dyn Engine,
    pub recorder: &'a Recorder,
    /// Whoever waits is in a queue that everybody can see.
    pub has_queue: bool,
}

impl Stopper<'_> {
    /// Waits until the process has been granted something.
    pub async fn wait_until_busy(&mut self) {
        let busy = |op: &Op| matches!(op.outcome, OpOutcome::Granted { .. });
        for _ in 0..REACH_DEADLINE.as_millis() / 10 {
            if self.process.ops().iter().any(busy) {
                return;
            }
            sleep_millis(10).await;
        }
        panic!("the client process is granted nothing");
    }

    /// The last call, if it was answered and none is under way.
    fn last_answered(&mut self) -> Option<&Op> {
        if self.process.outstanding().is_some() {
            return None;
        }
        // A renewal of unknown outcome changes nothing in what it holds.
        let known = |op: &&Op| !matches!((&op.kind, op.outcome), (OpKind::Renew { .. }, OpOutcome::Unknown));
        self.process.ops().iter().rev().find(known)
    }

    /// What it holds, if it is between two calls.
    fn held(&mut self) -> Option<Token> {
        let last = self.last_answered()?;
        match (&last.kind, last.outcome) {
            (OpKind::Acquire(_), OpOutcome::Granted { token, remaining, .. }) if !remaining.is_zero() => Some(token),
            (OpKind::Renew { token, .. }, OpOutcome::Renewed { .. }) => Some(*token),
            _ => None,
        }
    }

    /// Whether it holds nothing and is about to ask.
    fn is_idle(&mut self) -> bool {
        self.last_answered().is_some_and(|last| matches!(last.kind, OpKind::Release { .. }))
    }

    /// Stops it while it holds a lease, until that has lapsed and somebody else has the name. That one holds it until the
    /// process has asked for its lease again.
    pub async fn stop_holding(&mut self, past_ttl: Duration) -> Stop {
        for _ in 0..REACH_DEADLINE.as_millis() {
            sleep_millis(1).await;
            if self.held().is_none() {
                continue;
            }
            self.process.stop().await;
            let from = self.recorder.nanos();
            if let Some(token) = self.held() {
                let name = self.name_of(token);
                let next = self.take(&name).await.expect("what lapsed can be had");
                let so_far = Duration::from_nanos(self.recorder.nanos() - from);
                tokio::time::sleep((PROCESS_TTL + past_ttl).saturating_sub(so_far)).await;
                self.process.resume().await;
                self.wait_for_release(token, from).await;
                // Others have the time to take what they must not have.
                sleep_millis(30).await;
                assert!(self.recorder.release(self.engine, TESTER, &next).await, "the tester's call is answered");
                return self.stopped(StoppedIn::Holding, Some(token), from, None);
            }
            // It was faster.
            self.process.resume().await;
        }
        panic!("the client process holds nothing");
    }

    /// What the lease with this token is of.
    fn name_of(&mut self, lease: Token) -> String {
        let name = |op: &Op| match (&op.kind, op.outcome) {
            (OpKind::Acquire(ask), OpOutcome::Granted { token, .. }) if token == lease => Some(ask.wants[0].0.clone()),
            _ => None,
        };
        self.process.ops().iter().rev().find_map(name).expect("it was granted")
    }

    /// Waits until the process has asked for the release of this lease and was answered.
    async fn wait_for_release(&mut self, lease: Token, since: u64) {
        let released = |op: &Op| {
            let answered = op.ret.is_some() && op.invoke >= since;
            answered && matches!(op.kind, OpKind::Release { token } if token == lease)
        };
        for _ in 0..REACH_DEADLINE.as_millis() / 5 {
            if self.process.ops().iter().any(released) {
                return;
            }
            sleep_millis(5).await;
        }
        panic!("the client process does not come to itself");
    }

    /// Stops it while it waits. After `held_on` what it waits for is released, and somebody behind it asks for that.
    pub async fn stop_waiting(&mut self, held_on: Duration, past_ttl: Duration) -> Stop {
        let mut grants = Vec::new();
        for name in NAMES {
            grants.push(self.take(name).await.expect("every name can be had"));
        }
        let (id, name) = self.wait_for_waiter().await;
        self.process.stop().await;
        let from = self.recorder.nanos();
        let still = self.process.outstanding().map(|(id, _)| id);
        assert_eq!(still, Some(id), "nobody else can have what the test holds");
        tokio::time::sleep(held_on).await;
        for grant in &grants {
            assert!(self.recorder.release(self.engine, TESTER, grant).await, "the tester's call is answered");
        }
        let released = self.recorder.nanos();
        let next = self.take(&name).await.expect("a stopped waiter is passed over");
        let blocked = Duration::from_nanos(self.recorder.nanos() - released);
        assert!(self.recorder.release(self.engine, TESTER, &next).await, "the tester's call is answered");
        let so_far = Duration::from_nanos(self.recorder.nanos() - released);
        tokio::time::sleep((PROCESS_TTL + past_ttl).saturating_sub(so_far)).await;
        self.process.resume().await;
        self.stopped(StoppedIn::Waiting, None, from, Some(blocked))
    }

    /// Takes this for the tester.
    async fn take(&self, name: &str) -> Option<Grant> {
        let claim = Claim { wait: TESTER_PATIENCE, ..Claim::new(vec![Want::exclusive(name)], TESTER_TTL, "") };
        self.recorder.acquire(self.engine, TESTER, claim).await
    }

    /// Waits until the process waits; the operation and the name.
    async fn wait_for_waiter(&mut self) -> (OpId, String) {
        for _ in 0..REACH_DEADLINE.as_millis() / 5 {
            sleep_millis(5).await;
            let now = self.recorder.nanos();
            let Some((id, op)) = self.process.outstanding() else { continue };
            let OpKind::Acquire(ask) = &op.kind else { continue };
            let name = ask.wants[0].0.clone();
            if ask.wait.is_zero() || now < op.invoke + 100_000_000 {
                continue;
            }
            let label = self.process.label(id);
            if !self.has_queue {
                return (id, name);
            }
            let seen = self.engine.inspect(&name).await.expect("it can be asked");
            if seen.is_some_and(|seen| seen.waiters.iter().any(|waiter| waiter.holder == label)) {
                return (id, name);
            }
        }
        panic!("the client process does not wait");
    }

    /// Stops it in the middle of a call: of an acquire, or of one with what it holds. The reply comes while it stands
    /// still.
    pub async fn stop_calling(&mut self, acquires: bool, past_ttl: Duration) -> Stop {
        for _ in 0..REACH_DEADLINE.as_secs() {
            self.wait_before_call(acquires).await;
            self.hold_replies(true);
            let since = self.recorder.nanos();
            let arrived = self.wait_for_call(since).await;
            self.process.stop().await;
            let from = self.recorder.nanos();
            let calling = arrived && self.process.outstanding().is_some_and(|(_, op)| op.invoke > since);
            self.hold_replies(false);
            if calling {
                tokio::time::sleep(PROCESS_TTL + past_ttl).await;
                self.process.resume().await;
                return self.stopped(StoppedIn::Calling, None, from, None);
            }
            self.process.resume().await;
        }
        panic!("the client process calls nobody");
    }

    /// Waits for the moment before such a call.
    async fn wait_before_call(&mut self, acquires: bool) {
        for _ in 0..REACH_DEADLINE.as_millis() {
            sleep_millis(1).await;
            if if acquires { self.is_idle() } else { self.held().is_some() } {
                return;
            }
        }
        panic!("the client process does nothing");
    }

    fn hold_replies(&self, on: bool) {
        self.proxies.iter().for_each(|proxy| proxy.hold_replies(on));
    }

    /// Waits for a call that was made since then and has reached its server. False: it makes none.
    async fn wait_for_call(&mut self, since: u64) -> bool {
        for _ in 0..1000 {
            sleep_millis(1).await;
            let arrived = self.recorder.nanos() - u64::try_from(CALL_ARRIVES.as_nanos()).expect("short");
            if self.process.outstanding().is_some_and(|(_, op)| op.invoke > since && op.invoke < arrived) {
                return true;
            }
        }
        false
    }

    fn stopped(&self, state: StoppedIn, token: Option<Token>, from: u64, blocked: Option<Duration>) -> Stop {
        Stop { process: self.process.number, state, token, from, blocked }
    }
}

/// Stops the processes in turns, in every state, for as long as it is asked for.
pub async fn stop_in_turns(stoppers: &mut [Stopper<'_>], span: Duration) -> Vec<Stop> {
    for stopper in stoppers.iter_mut() {
        stopper.wait_until_busy().await;
    }
    let mut rng = Rng::new(42);
    let mut stops = Vec::new();
    let recorder = stoppers[0].recorder;
    let until = recorder.nanos() + u64::try_from(span.as_nanos()).expect("a short run");
    for round in 0.. {
        if recorder.nanos() >= until && round >= STOPS.len() {
            break;
        }
        let (process, state) = STOPS[round % STOPS.len()];
        let stopper = &mut stoppers[(process + round / STOPS.len()) % 2];
        let past_ttl = Duration::from_millis(100 + rng.below(300));
        stops.push(match state {
            StoppedIn::Holding => stopper.stop_holding(past_ttl).await,
            StoppedIn::Waiting => stopper.stop_waiting(Duration::ZERO, past_ttl).await,
            StoppedIn::Calling => stopper.stop_calling(round % 2 == 0, past_ttl).await,
        });
    }
    stops
}

/// As long as the tests of one server run.
pub fn span_of_run() -> Duration {
    Duration::from_secs(from_environment("LEASEHOLD_HISTORY_SECONDS", 4))
}

/// All operations: the test's own, and those of the processes, which come to their end.
pub async fn finish_processes(recorder: &Recorder, stoppers: Vec<Stopper<'_>>) -> MergedOps {
    let mut merged = MergedOps::default();
    let mut reported = Vec::new();
    for stopper in stoppers {
        reported.push((stopper.process.number, stopper.process.finish().await));
    }
    merged.add(0, recorder.take_ops());
    for (number, ops) in reported {
        merged.add(number, ops);
    }
    merged
}

/// What every stop must have come to: a lease that lapsed meanwhile is refused, and nobody waited for a stopped process
/// for longer than its lease would have lived.
pub fn assert_stops(ops: &[Op], stops: &[Stop], max_blocked: Duration) {
    let count = |state| stops.iter().filter(|stop| stop.state == state).count();
    let counts = [StoppedIn::Holding, StoppedIn::Waiting, StoppedIn::Calling].map(count);
    let longest = stops.iter().filter_map(|stop| stop.blocked).max().unwrap_or_default();
    println!("stopped {counts:?} times (holding, waiting, in a call); the next waited for {longest:?} at most");
    for stop in stops {
        assert!(stop.blocked.is_none_or(|blocked| blocked < max_blocked), "{stop:?}");
        let Some(lapsed) = stop.token else { continue };
        let mut refused = 0;
        let mut asked = Vec::new();
        for op in ops.iter().filter(|op| op.client == stop.process && op.invoke >= stop.from) {
            let (OpKind::Renew { token, .. } | OpKind::Release { token }) = &op.kind else { continue };
            if *token == lapsed {
                let alive = matches!(op.outcome, OpOutcome::Renewed { .. } | OpOutcome::Released(true));
                assert!(!alive, "a lease that lapsed while its holder was stopped was not refused: {op:?}");
                refused += usize::from(matches!(op.outcome, OpOutcome::Stale | OpOutcome::NotHeld));
                asked.push(op);
            }
        }
        assert!(refused > 0, "the lapsed lease was not refused: {stop:?}; calls: {asked:?}");
    }
}
