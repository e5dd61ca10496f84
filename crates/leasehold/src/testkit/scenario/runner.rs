//! Plays lines to an engine: who holds what, who waits, and what time it is.

#![allow(clippy::disallowed_methods)] // a real-time limit, so that an answer that never comes fails the script

use std::collections::{BTreeSet, HashMap};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use leasehold_core::{Time, Token};

use super::super::ManualClock;
use super::outcome::ObservedOutcome;
use super::parse::{ScenarioAction, ScenarioClaim, ScenarioLine, Wrong};
use crate::clock::Clock;
use crate::engine::{Claim, Engine, Grant, LeaseId, Want};
use crate::error::{Error, Refusal};
use crate::fence::Register;

/// How long a real engine may take to answer what is due, in real time. Only a failing script waits so long.
const MAX_REPLY_WAIT: Duration = Duration::from_secs(10);
/// The runner's own resource: a claim that waits for it is refused at a moment that the runner chooses.
const PROBE: &str = "~probe";

type Acquiring = Pin<Box<dyn Future<Output = Result<Grant, Error>> + Send>>;

/// See the module.
pub(super) struct ScenarioRunner {
    engine: Arc<dyn Engine>,
    clock: ManualClock,
    /// What the clock showed when the script began.
    base: Time,
    /// How far the script has come.
    now: Duration,
    registers: HashMap<String, Register<()>>,
    /// Tokens by the names the script gave them.
    tokens: HashMap<String, Token>,
    by_token: HashMap<Token, LeaseId>,
    /// The lease that a person last got on a resource.
    last: HashMap<(String, String), LeaseId>,
    /// Acquires that were `waiting` when last looked at, by connection.
    pending: HashMap<String, PendingAcquire>,
}

struct PendingAcquire {
    names: Vec<String>,
    answer: Acquiring,
}

impl ScenarioRunner {
    pub async fn play(lines: &[ScenarioLine], engine: Arc<dyn Engine>, clock: &ManualClock) -> Result<(), Wrong> {
        let day = Duration::from_secs(24 * 3600);
        let held = engine.acquire(probe_claim(day, Duration::ZERO)).await;
        held.map_err(|error| (0, format!("the engine is not ready: {error}")))?;
        let mut runner = Self {
            engine,
            clock: clock.clone(),
            base: clock.now(),
            now: Duration::ZERO,
            registers: HashMap::new(),
            tokens: HashMap::new(),
            by_token: HashMap::new(),
            last: HashMap::new(),
            pending: HashMap::new(),
        };
        let moments = moments(lines);
        for line in lines {
            runner.step(line, &moments).await.map_err(|message| (line.number, message))?;
        }
        match runner.pending.keys().min() {
            Some(who) => {
                let message = format!("{who} still waits at the end: say what came of it");
                Err((lines.last().map_or(0, |line| line.number), message))
            }
            None => Ok(()),
        }
    }

    async fn step(&mut self, line: &ScenarioLine, moments: &BTreeSet<Duration>) -> Result<(), String> {
        for moment in moments.range(self.now..line.at) {
            self.move_to(*moment).await?.settle().await?;
        }
        let due = self.move_to(line.at).await?;
        // A line that reads waits until the engine has caught up; a verb may come before that.
        let seen = if matches!(line.act, None | Some(ScenarioAction::Inspect { .. })) {
            due.settle().await?;
            self.act(line).await?
        } else {
            let seen = self.act(line).await?;
            due.settle().await?;
            seen
        };
        line.expected.check(&seen, &mut self.tokens)
    }

    /// Moves the clock. What it returns tells when the engine has acted on all that is due by then.
    async fn move_to(&mut self, at: Duration) -> Result<Due, String> {
        if at <= self.now {
            return Ok(Due(None));
        }
        let engine = self.engine.clone();
        let claim = probe_claim(Duration::from_secs(1), at - self.now);
        let mut probe: Acquiring = Box::pin(async move { engine.acquire(claim).await });
        if let Some(answer) = poll_once(&mut probe).await {
            return Err(format!("the script's own acquire does not wait: {answer:?}"));
        }
        self.now = at;
        self.clock.set(self.base.plus(at));
        Ok(Due(Some(probe)))
    }

    async fn act(&mut self, line: &ScenarioLine) -> Result<ObservedOutcome, String> {
        let Some(act) = &line.act else {
            let pending = self.pending.remove(&line.who);
            let pending = pending.ok_or_else(|| format!("{} does not wait for anything", line.who))?;
            return self.poll_pending(line, pending).await;
        };
        Ok(match act {
            ScenarioAction::Acquire(asked) => {
                if self.pending.contains_key(&line.who) {
                    return Err(format!("{0} waits already; {0}/2 could acquire this", line.who));
                }
                let engine = self.engine.clone();
                let claim = claim(line, asked);
                let mut answer: Acquiring = Box::pin(async move { engine.acquire(claim).await });
                match poll_once(&mut answer).await {
                    Some(answer) => self.answered(line, &asked.names, answer),
                    None => {
                        return self.poll_pending(line, PendingAcquire { names: asked.names.clone(), answer }).await;
                    }
                }
            }
            ScenarioAction::Renew { name, ttl, token } => {
                let lease = self.lease(line, name, token.as_deref())?;
                observed(self.engine.renew(&lease, *ttl).await.map(ObservedOutcome::renewed))
            }
            ScenarioAction::Release { name, token } => {
                let lease = self.lease(line, name, token.as_deref())?;
                let word = |first| ObservedOutcome::word(if first { "released" } else { "already_released" });
                observed(self.engine.release(&lease).await.map(word))
            }
            ScenarioAction::Revoke { name, reason } => {
                observed(self.engine.revoke(name, reason).await.map(|count| ObservedOutcome::counted("revoked", count)))
            }
            ScenarioAction::Write { name, token } => {
                let token = self.token(token)?;
                let register = self.registers.entry(name.clone()).or_insert_with(|| Register::new(()));
                ObservedOutcome::word(if register.write_at(token, ()).is_ok() { "accepted" } else { "stale" })
            }
            ScenarioAction::Inspect { name } => {
                observed(self.engine.inspect(name).await.map(ObservedOutcome::resource))
            }
            ScenarioAction::Cancel => match self.pending.remove(&line.who) {
                Some(_dropped) => ObservedOutcome::word("cancelled"),
                None => return Err(format!("{} does not wait for anything", line.who)),
            },
        })
    }

    /// What has become of an acquire that had no answer at once.
    async fn poll_pending(
        &mut self,
        line: &ScenarioLine,
        mut pending: PendingAcquire,
    ) -> Result<ObservedOutcome, String> {
        let answer = if line.expected.word == "waiting" {
            // When this read is answered, so is everything that was decided before it.
            self.engine.inspect(PROBE).await.map_err(|error| error.to_string())?;
            tokio::task::yield_now().await;
            poll_once(&mut pending.answer).await
        } else {
            tokio::time::timeout(MAX_REPLY_WAIT, &mut pending.answer).await.ok()
        };
        Ok(match answer {
            Some(answer) => self.answered(line, &pending.names, answer),
            None => {
                self.pending.insert(line.who.clone(), pending);
                ObservedOutcome::word("waiting")
            }
        })
    }

    fn answered(&mut self, line: &ScenarioLine, names: &[String], answer: Result<Grant, Error>) -> ObservedOutcome {
        observed(answer.map(|grant| {
            for name in names {
                self.last.insert((line.person().to_owned(), name.clone()), grant.lease_id.clone());
            }
            if let Some(token) = grant.token {
                self.by_token.insert(token, grant.lease_id.clone());
            }
            ObservedOutcome::granted(&grant)
        }))
    }

    /// The lease that a line is about. Somebody who never had one shows an id that never was.
    fn lease(&self, line: &ScenarioLine, name: &str, token: Option<&str>) -> Result<LeaseId, String> {
        if let Some(token) = token {
            let token = self.token(token)?;
            return self.by_token.get(&token).cloned().ok_or_else(|| format!("nobody got token {token}"));
        }
        let last = self.last.get(&(line.person().to_owned(), name.to_owned()));
        Ok(last.cloned().unwrap_or_else(|| LeaseId::new(format!("1-{}", "0".repeat(32)))))
    }

    fn token(&self, name: &str) -> Result<Token, String> {
        self.tokens.get(name).copied().ok_or_else(|| format!("no token is called {name} yet"))
    }
}

/// What is due at the moment that the clock has come to.
///
/// The engine refuses the probe in the same step in which it ends what else is due, and last: after that refusal all
/// other waiters have been answered.
struct Due(Option<Acquiring>);

impl Due {
    async fn settle(self) -> Result<(), String> {
        let Some(probe) = self.0 else { return Ok(()) };
        match tokio::time::timeout(MAX_REPLY_WAIT, probe).await {
            Ok(Err(Error::Refused(Refusal::Held { .. }))) => Ok(()),
            Ok(other) => Err(format!("the script's own acquire was not sent home: {other:?}")),
            Err(_) => Err(format!("the engine did nothing for {MAX_REPLY_WAIT:?} after the clock moved")),
        }
    }
}

fn observed(answer: Result<ObservedOutcome, Error>) -> ObservedOutcome {
    answer.unwrap_or_else(|error| ObservedOutcome::error(&error))
}

fn claim(line: &ScenarioLine, asked: &ScenarioClaim) -> Claim {
    let person = line.person().to_owned();
    Claim {
        wants: asked.names.iter().map(|name| Want { name: name.clone(), mode: asked.mode }).collect(),
        ttl: asked.ttl,
        wait: asked.wait,
        max_hold: asked.max_hold,
        delay: asked.delay,
        request: asked.request.clone(),
        principal: person.clone(),
        holder: person,
    }
}

fn probe_claim(ttl: Duration, wait: Duration) -> Claim {
    Claim { wait, ..Claim::new(vec![Want::exclusive(PROBE)], ttl, "the script") }
}

/// Every moment at which something could be due: the lines, and any spans of the script after them.
fn moments(lines: &[ScenarioLine]) -> BTreeSet<Duration> {
    let spans: BTreeSet<Duration> = lines.iter().flat_map(ScenarioLine::spans).filter(|span| !span.is_zero()).collect();
    let end = lines.last().map_or(Duration::ZERO, |line| line.at);
    let mut found: BTreeSet<Duration> = lines.iter().map(|line| line.at).collect();
    // The probe's wait has the same limit as any other.
    found.extend((1..24).map(|hour| Duration::from_secs(hour * 3600)).take_while(|hour| *hour < end));
    let mut todo: Vec<Duration> = found.iter().copied().collect();
    while let Some(moment) = todo.pop() {
        for later in spans.iter().map(|span| moment.saturating_add(*span)) {
            if later <= end && found.insert(later) {
                todo.push(later);
            }
        }
    }
    found
}

async fn poll_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    poll_fn(|context| match Pin::new(&mut *future).poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}
