//! Clients of an engine that write down what they ask and what they learn.

use std::fs::File;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::clock::{Clock, SystemClock};
use leasehold::engine::{Claim, Engine, Grant, LeaseId, Want};
use leasehold::{Error, Refusal};
use leasehold_core::{Secret, Token};
use leasehold_torture::history::{AcquireRequest, Op, OpId, OpKind, OpOutcome};
use leasehold_torture::rng::Rng;

use super::report;

pub const NAMES: [&str; 3] = ["a", "b", "c"];
/// A lease of a client that never releases it.
const SHORT_TTL: Duration = Duration::from_millis(150);
const LONG_TTL: Duration = Duration::from_secs(20);
pub const PATIENCE: Duration = Duration::from_secs(6);

pub async fn sleep_millis(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}

/// Waits for what comes in its own time.
pub async fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..1200 {
        if is_so() {
            return;
        }
        sleep_millis(50).await;
    }
    panic!("after 60 s it is not so that {what}");
}

pub fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("a number"))
}

/// What clients asked and learned so far. An operation is in it from before it is asked. Moments are those of the boot's
/// clock, which all processes share.
pub struct Recorder {
    clock: Arc<dyn Clock>,
    /// Whether grants have tokens.
    tokens: bool,
    ops: Mutex<Vec<Op>>,
    /// Where a process of its own says what it does, and the number of its first operation.
    report: Option<(Mutex<File>, OpId)>,
    stopped: AtomicBool,
}

impl Recorder {
    pub fn new() -> Arc<Self> {
        Arc::new(Self::with(true, None))
    }

    /// For an engine that has none: a lease is numbered by its mark.
    pub fn without_tokens() -> Arc<Self> {
        Arc::new(Self::with(false, None))
    }

    /// For a process of its own: every operation is reported as it is asked and as it is answered.
    pub fn reporting(tokens: bool, report: File, first: OpId) -> Arc<Self> {
        Arc::new(Self::with(tokens, Some((Mutex::new(report), first))))
    }

    fn with(tokens: bool, report: Option<(Mutex<File>, OpId)>) -> Self {
        let clock = SystemClock::shared();
        Self { clock, tokens, ops: Mutex::default(), report, stopped: AtomicBool::new(false) }
    }

    pub fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    pub fn count_grants(&self) -> usize {
        self.with_ops(|ops| ops.iter().filter(|op| matches!(op.outcome, OpOutcome::Granted { .. })).count())
    }

    /// Reads what happened so far.
    pub fn with_ops<T>(&self, read: impl FnOnce(&[Op]) -> T) -> T {
        read(&self.ops.lock().expect("nobody panics with it"))
    }

    pub fn take_ops(&self) -> Vec<Op> {
        std::mem::take(&mut self.ops.lock().expect("nobody panics with it"))
    }

    pub fn nanos(&self) -> u64 {
        self.clock.now().as_nanos()
    }

    pub fn invoke(&self, client: u64, kind: OpKind) -> OpId {
        let mut ops = self.ops.lock().expect("nobody panics with it");
        let id = ops.len();
        let op = Op {
            client,
            kind,
            invoke: self.nanos(),
            ret: None,
            outcome: OpOutcome::Unknown,
            epoch: 0,
            untouched: true,
            full: false,
        };
        self.write_line(|| report::invoke_line(id, &op));
        ops.push(op);
        id
    }

    /// The answer. Without one the operation may have happened at any later time.
    pub fn answer(&self, id: OpId, outcome: OpOutcome) {
        let ret = self.nanos();
        let mut ops = self.ops.lock().expect("nobody panics with it");
        ops[id].outcome = outcome;
        ops[id].ret = (!matches!(outcome, OpOutcome::Unknown)).then_some(ret);
        self.write_line(|| report::answer_line(id, ret, outcome));
    }

    fn write_line(&self, line: impl FnOnce() -> String) {
        if let Some((file, _)) = &self.report {
            // One write: whoever reads along sees whole lines.
            let mut file = file.lock().expect("nobody panics with it");
            file.write_all(line().as_bytes()).expect("the report takes it");
        }
    }

    /// The label of what an operation acquires. It names the operation among those of all processes.
    pub fn label(&self, id: OpId) -> String {
        format!("op{}", self.report.as_ref().map_or(0, |(_, first)| *first) + id)
    }

    /// What a lease is called in the history.
    pub fn lease_number(&self, grant: &Grant) -> Token {
        assert_eq!(grant.token.is_some(), self.tokens, "tokens as the engine promises them");
        grant.token.unwrap_or_else(|| number_of(&grant.lease_id))
    }

    /// Acquires, with the operation as the label.
    pub async fn acquire(&self, engine: &dyn Engine, client: u64, claim: Claim) -> Option<Grant> {
        let request = asked(&claim);
        let repeated = claim.request.is_some() && self.may_be_granted(&request);
        let id = self.invoke(client, OpKind::Acquire(request));
        let answer = engine.acquire(Claim { holder: self.label(id), ..claim }).await;
        self.answer(id, self.acquire_outcome(&answer, repeated));
        answer.ok()
    }

    /// Acquires what can be had. The lease is called what `number` finds after the grant.
    pub async fn acquire_numbered(
        &self,
        engine: &dyn Engine,
        client: u64,
        claim: Claim,
        number: impl FnOnce(&Grant) -> Token,
    ) {
        let id = self.invoke(client, OpKind::Acquire(asked(&claim)));
        let grant = engine.acquire(Claim { holder: self.label(id), ..claim }).await.expect("granted");
        self.answer(id, granted(number(&grant), grant.remaining, false));
    }

    fn acquire_outcome(&self, answer: &Result<Grant, Error>, repeated: bool) -> OpOutcome {
        match answer {
            Ok(grant) => granted(self.lease_number(grant), grant.remaining, repeated),
            Err(error) => error_outcome(error),
        }
    }

    /// Whether an earlier try of the same request may have been granted: then that grant is answered again.
    fn may_be_granted(&self, request: &AcquireRequest) -> bool {
        let ops = self.ops.lock().expect("nobody panics with it");
        let same = |op: &&Op| matches!(&op.kind, OpKind::Acquire(earlier) if earlier.request == request.request);
        ops.iter().rev().find(same).is_some_and(|op| matches!(op.outcome, OpOutcome::Unknown))
    }

    pub async fn renew(&self, engine: &dyn Engine, client: u64, grant: &Grant) {
        let token = self.lease_number(grant);
        let id = self.invoke(client, OpKind::Renew { token, ttl: None });
        let outcome = match engine.renew(&grant.lease_id, None).await {
            Ok(renewal) => OpOutcome::Renewed { remaining: renewal.remaining },
            Err(error) => error_outcome(&error),
        };
        self.answer(id, outcome);
    }

    /// Releases. True: it was answered.
    pub async fn release(&self, engine: &dyn Engine, client: u64, grant: &Grant) -> bool {
        let token = self.lease_number(grant);
        let id = self.invoke(client, OpKind::Release { token });
        let outcome = match engine.release(&grant.lease_id).await {
            Ok(now) => OpOutcome::Released(now),
            Err(error) => error_outcome(&error),
        };
        self.answer(id, outcome);
        matches!(outcome, OpOutcome::Released(_) | OpOutcome::Stale | OpOutcome::NotHeld)
    }

    /// A token that was drawn for the holder of a lock.
    pub async fn draw_token(&self, client: u64, name: &str, draw: impl Future<Output = Token>) {
        let request = asked(&Claim::new(vec![Want::exclusive(name)], LONG_TTL, ""));
        let id = self.invoke(client, OpKind::Acquire(request));
        let token = draw.await;
        self.answer(id, granted(token, Duration::ZERO, false));
    }

    /// A client of one name that never waits and always releases.
    pub async fn run_sprinter(self: Arc<Self>, engine: Arc<dyn Engine>, client: u64) {
        while !self.is_stopped() {
            let claim = Claim::new(vec![Want::exclusive(NAMES[0])], LONG_TTL, "");
            if let Some(grant) = self.acquire(&*engine, client, claim).await {
                // Long enough to be seen beside another holder.
                sleep_millis(1).await;
                self.release(&*engine, client, &grant).await;
            }
        }
    }

    /// A client: acquires one or two of three names, renews, releases or forgets, until it is told to stop.
    pub async fn run_client(self: Arc<Self>, engine: Arc<dyn Engine>, client: u64) {
        let mut rng = Rng::new(7919 * (client + 1));
        let mut requests = 0;
        while !self.is_stopped() {
            let forgets = rng.below(12) == 0;
            let mut claim = draw_claim(&mut rng, forgets);
            if !forgets && rng.below(3) == 0 {
                requests += 1;
                claim.request = Some(format!("{client}-{requests}"));
            }
            let mut grant = self.acquire(&*engine, client, claim.clone()).await;
            if grant.is_none() && claim.request.is_some() {
                // The same request again: it has the effect of the first try, or its own.
                grant = self.acquire(&*engine, client, claim).await;
            }
            let Some(grant) = grant else {
                sleep_millis(rng.below(20)).await;
                continue;
            };
            if rng.below(3) == 0 {
                sleep_millis(rng.below(4)).await;
                self.renew(&*engine, client, &grant).await;
            }
            if forgets {
                continue;
            }
            while !self.release(&*engine, client, &grant).await {
                sleep_millis(20).await;
            }
        }
    }
}

fn draw_claim(rng: &mut Rng, forgets: bool) -> Claim {
    let first = rng.below(3) as usize;
    let mut names = vec![NAMES[first]];
    if rng.below(4) == 0 {
        names.push(NAMES[(first + 1 + rng.below(2) as usize) % 3]);
    }
    let wait = if rng.below(3) == 0 { Duration::ZERO } else { PATIENCE };
    let ttl = if forgets { SHORT_TTL } else { LONG_TTL };
    Claim { wait, ..Claim::new(names.into_iter().map(Want::exclusive).collect(), ttl, "") }
}

/// A claim as the history has it.
pub fn asked(claim: &Claim) -> AcquireRequest {
    AcquireRequest {
        wants: claim.wants.iter().map(|want| (want.name.clone(), want.mode)).collect(),
        ttl: claim.ttl,
        wait: claim.wait,
        max_hold: None,
        delay: Duration::ZERO,
        request: claim.request.clone(),
        principal: String::new(),
        value: None,
    }
}

pub const fn granted(token: Token, remaining: Duration, repeated: bool) -> OpOutcome {
    OpOutcome::Granted { token, secret: Secret::new([0; 16]), remaining, repeated }
}

/// The number of a lease without a token: the same for every process that knows its id.
pub fn number_of(lease: &LeaseId) -> Token {
    let mark = u64::from_str_radix(&lease.mark(), 16).expect("a mark is hexadecimal");
    Token::new((mark >> 1).max(1)).expect("within the range of tokens")
}

pub fn error_outcome(error: &Error) -> OpOutcome {
    match error {
        Error::Refused(Refusal::Held { .. }) => OpOutcome::Held,
        Error::Refused(Refusal::Stale) => OpOutcome::Stale,
        Error::Refused(Refusal::NotHeld) => OpOutcome::NotHeld,
        Error::Refused(_) | Error::Unavailable { .. } => OpOutcome::Failed,
        Error::Indeterminate { .. } => OpOutcome::Unknown,
        other => panic!("{other:?}"),
    }
}
