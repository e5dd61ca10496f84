//! Clients of the engine that write down what they ask and what they learn.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leasehold::engine::postgres::{PostgresEngine, PostgresEngineOptions};
use leasehold::engine::{Claim, Engine, Grant, Want};
use leasehold::{Error, Refusal};
use leasehold_core::{Mode, Secret, Token};
use leasehold_torture::history::{AcquireRequest, Op, OpId, OpKind, OpOutcome};
use leasehold_torture::rng::Rng;

const NAMES: [&str; 3] = ["a", "b", "c"];
/// A lease of a client that never releases it.
const SHORT_TTL: Duration = Duration::from_millis(150);
const LONG_TTL: Duration = Duration::from_secs(20);
const PATIENCE: Duration = Duration::from_secs(6);

pub async fn open_engine(url: &str) -> Arc<PostgresEngine> {
    PostgresEngine::open(PostgresEngineOptions::from_url(url).expect("a url")).await.expect("it opens")
}

pub async fn sleep_millis(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}

pub fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("a number"))
}

/// What clients asked and learned so far. An operation is in it from before it is asked.
pub struct Recorder {
    began: Instant,
    ops: Mutex<Vec<Op>>,
    stopped: AtomicBool,
}

impl Recorder {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { began: Instant::now(), ops: Mutex::default(), stopped: AtomicBool::new(false) })
    }

    pub fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
    }

    pub fn count_grants(&self) -> usize {
        let ops = self.ops.lock().expect("nobody panics with it");
        ops.iter().filter(|op| matches!(op.outcome, OpOutcome::Granted { .. })).count()
    }

    pub fn take_ops(&self) -> Vec<Op> {
        std::mem::take(&mut self.ops.lock().expect("nobody panics with it"))
    }

    fn nanos(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).expect("a short run")
    }

    fn invoke(&self, client: u64, kind: OpKind) -> OpId {
        let mut ops = self.ops.lock().expect("nobody panics with it");
        let id = ops.len();
        ops.push(Op {
            client,
            kind,
            invoke: self.nanos(),
            ret: None,
            outcome: OpOutcome::Unknown,
            epoch: 0,
            untouched: true,
            full: false,
        });
        id
    }

    /// The answer. Without one the operation may have happened at any later time.
    fn answer(&self, id: OpId, outcome: OpOutcome) {
        let ret = self.nanos();
        let mut ops = self.ops.lock().expect("nobody panics with it");
        ops[id].outcome = outcome;
        ops[id].ret = (!matches!(outcome, OpOutcome::Unknown)).then_some(ret);
    }

    /// Acquires, with the operation as the label.
    pub async fn acquire(&self, engine: &PostgresEngine, client: u64, claim: Claim) -> Option<Grant> {
        let request = AcquireRequest {
            wants: claim.wants.iter().map(|want| (want.name.clone(), want.mode)).collect(),
            ttl: claim.ttl,
            wait: claim.wait,
            max_hold: None,
            delay: Duration::ZERO,
            request: claim.request.clone(),
            principal: String::new(),
            value: None,
        };
        let repeated = claim.request.is_some() && self.may_be_granted(&request);
        let id = self.invoke(client, OpKind::Acquire(request));
        let answer = engine.acquire(Claim { holder: format!("op{id}"), ..claim }).await;
        self.answer(id, acquire_outcome(&answer, repeated));
        answer.ok()
    }

    /// Whether an earlier try of the same request may have been granted: then that grant is answered again.
    fn may_be_granted(&self, request: &AcquireRequest) -> bool {
        let ops = self.ops.lock().expect("nobody panics with it");
        let same = |op: &&Op| matches!(&op.kind, OpKind::Acquire(earlier) if earlier.request == request.request);
        ops.iter().rev().find(same).is_some_and(|op| matches!(op.outcome, OpOutcome::Unknown))
    }

    pub async fn renew(&self, engine: &PostgresEngine, client: u64, grant: &Grant) {
        let token = shown_token(grant);
        let id = self.invoke(client, OpKind::Renew { token, ttl: None });
        let outcome = match engine.renew(&grant.lease_id, None).await {
            Ok(renewal) => OpOutcome::Renewed { remaining: renewal.remaining },
            Err(error) => error_outcome(&error),
        };
        self.answer(id, outcome);
    }

    /// Releases. True: it was answered.
    pub async fn release(&self, engine: &PostgresEngine, client: u64, grant: &Grant) -> bool {
        let token = shown_token(grant);
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
        let request = AcquireRequest {
            wants: vec![(name.to_owned(), Mode::Exclusive)],
            ttl: LONG_TTL,
            wait: Duration::ZERO,
            max_hold: None,
            delay: Duration::ZERO,
            request: None,
            principal: String::new(),
            value: None,
        };
        let id = self.invoke(client, OpKind::Acquire(request));
        let token = draw.await;
        let secret = Secret::new([0; 16]);
        self.answer(id, OpOutcome::Granted { token, secret, remaining: Duration::ZERO, repeated: false });
    }

    /// A client of one name that never waits and always releases.
    pub async fn run_sprinter(self: Arc<Self>, engine: Arc<PostgresEngine>, client: u64) {
        while !self.stopped.load(Ordering::SeqCst) {
            let claim = Claim::new(vec![Want::exclusive(NAMES[0])], LONG_TTL, "");
            if let Some(grant) = self.acquire(&engine, client, claim).await {
                // Long enough to be seen beside another holder.
                sleep_millis(1).await;
                self.release(&engine, client, &grant).await;
            }
        }
    }

    /// A client: acquires one or two of three names, renews, releases or forgets, until it is told to stop.
    pub async fn run_client(self: Arc<Self>, engine: Arc<PostgresEngine>, client: u64) {
        let mut rng = Rng::new(7919 * (client + 1));
        let mut requests = 0;
        while !self.stopped.load(Ordering::SeqCst) {
            let forgets = rng.below(12) == 0;
            let mut claim = draw_claim(&mut rng, forgets);
            if !forgets && rng.below(3) == 0 {
                requests += 1;
                claim.request = Some(format!("{client}-{requests}"));
            }
            let mut grant = self.acquire(&engine, client, claim.clone()).await;
            if grant.is_none() && claim.request.is_some() {
                // The same request again: it has the effect of the first try, or its own.
                grant = self.acquire(&engine, client, claim).await;
            }
            let Some(grant) = grant else {
                sleep_millis(rng.below(20)).await;
                continue;
            };
            if rng.below(3) == 0 {
                sleep_millis(rng.below(4)).await;
                self.renew(&engine, client, &grant).await;
            }
            if forgets {
                continue;
            }
            while !self.release(&engine, client, &grant).await {
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

fn shown_token(grant: &Grant) -> Token {
    grant.token.expect("fencing is promised")
}

fn acquire_outcome(answer: &Result<Grant, Error>, repeated: bool) -> OpOutcome {
    match answer {
        Ok(grant) => OpOutcome::Granted {
            token: shown_token(grant),
            secret: Secret::new([0; 16]),
            remaining: grant.remaining,
            repeated,
        },
        Err(error) => error_outcome(error),
    }
}

fn error_outcome(error: &Error) -> OpOutcome {
    match error {
        Error::Refused(Refusal::Held { .. }) => OpOutcome::Held,
        Error::Refused(Refusal::Stale) => OpOutcome::Stale,
        Error::Refused(Refusal::NotHeld) => OpOutcome::NotHeld,
        Error::Refused(_) | Error::Unavailable { .. } => OpOutcome::Failed,
        Error::Indeterminate { .. } => OpOutcome::Unknown,
        other => panic!("{other:?}"),
    }
}
