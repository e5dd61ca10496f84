//! Those who act in a script: who holds what, who waits, and what they ask of the engine.

#![allow(clippy::disallowed_methods)] // a real-time limit, so that an answer that never comes fails the script

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use leasehold_core::Token;

use super::outcome::{NamedTokens, ObservedOutcome};
use super::parse::{ScenarioAction, ScenarioClaim, ScenarioLine};
use super::stretch::TimeStretch;
use crate::clock::{Clock as _, SystemClock};
use crate::engine::{Claim, Engine, Grant, LeaseId, Resource, Want};
use crate::error::Error;
use crate::fence::Register;

/// How long a real engine may take to answer what is due, in real time. Only a failing script waits so long.
pub(super) const MAX_REPLY_WAIT: Duration = Duration::from_secs(10);
/// A runner's own resource: a claim that waits for it is refused at a moment that the runner chooses.
pub(super) const PROBE: &str = "~probe";

pub(super) type Acquiring = Pin<Box<dyn Future<Output = Result<Grant, Error>> + Send>>;

/// See the module.
pub(super) struct Participants {
    pub engine: Arc<dyn Engine>,
    /// From the script's time to the engine's.
    pub stretch: TimeStretch,
    registers: HashMap<String, Register<()>>,
    /// Tokens by the names the script gave them.
    tokens: NamedTokens,
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

impl Participants {
    pub fn new(engine: Arc<dyn Engine>, stretch: TimeStretch) -> Self {
        Self {
            engine,
            stretch,
            registers: HashMap::new(),
            tokens: HashMap::new(),
            by_token: HashMap::new(),
            last: HashMap::new(),
            pending: HashMap::new(),
        }
    }

    /// Compares what came of a line with what the script says.
    pub fn check(&mut self, line: &ScenarioLine, seen: &ObservedOutcome) -> Result<(), String> {
        let let_in_at = line.act.is_none().then_some(line.at);
        let seen = seen.clone().let_in_at(let_in_at);
        line.expected.check(&seen, &mut self.tokens, self.stretch)
    }

    /// A script says how every waiting acquire ends.
    pub fn check_end(&self) -> Result<(), String> {
        self.pending
            .keys()
            .min()
            .map_or(Ok(()), |who| Err(format!("{who} still waits at the end: say what came of it")))
    }

    pub async fn act(&mut self, line: &ScenarioLine) -> Result<ObservedOutcome, String> {
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
                let claim = self.claim(line, asked);
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
                let ttl = ttl.map(|ttl| self.stretch.real(ttl));
                observed(self.engine.renew(&lease, ttl).await.map(ObservedOutcome::renewed))
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
            self.wait_for_decisions(line, pending.names[0].clone()).await?;
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

    /// Comes back when the engine has decided all that was asked of it before.
    async fn wait_for_decisions(&mut self, line: &ScenarioLine, name: String) -> Result<(), String> {
        let Some(settle) = self.stretch.settle else {
            // When this read is answered, so is everything that was decided before it.
            self.engine.inspect(PROBE).await.map_err(|error| error.to_string())?;
            tokio::task::yield_now().await;
            return Ok(());
        };
        let patience = SystemClock.now().plus(MAX_REPLY_WAIT);
        let waits = |found: Option<Resource>| {
            found.is_some_and(|found| found.waiters.iter().any(|waiting| waiting.holder == line.person()))
        };
        while !waits(self.engine.inspect(&name).await.map_err(|error| error.to_string())?) {
            if SystemClock.now() > patience {
                return Err(format!("{} is not among those who wait", line.person()));
            }
            SystemClock.sleep_until(SystemClock.now().plus(settle / 8)).await;
        }
        SystemClock.sleep_until(SystemClock.now().plus(settle / 2)).await;
        Ok(())
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

    fn claim(&self, line: &ScenarioLine, asked: &ScenarioClaim) -> Claim {
        let person = line.person().to_owned();
        Claim {
            wants: asked.names.iter().map(|name| Want { name: name.clone(), mode: asked.mode }).collect(),
            ttl: self.stretch.real(asked.ttl),
            wait: self.stretch.real(asked.wait),
            max_hold: asked.max_hold.map(|span| self.stretch.real(span)),
            delay: self.stretch.real(asked.delay),
            request: asked.request.clone(),
            principal: person.clone(),
            holder: person,
        }
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
        self.tokens.get(name).map(|(token, _)| *token).ok_or_else(|| format!("no token is called {name} yet"))
    }
}

fn observed(answer: Result<ObservedOutcome, Error>) -> ObservedOutcome {
    answer.unwrap_or_else(|error| ObservedOutcome::error(&error))
}

pub(super) async fn poll_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    poll_fn(|context| match Pin::new(&mut *future).poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}
