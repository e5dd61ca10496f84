//! An engine that opens the directory for each operation, for many short-lived processes.
//!
//! The command line works this way. A claim that waits is tried again and again. So the order among waiting processes
//! is not promised, as [`Visitor::promises`] says.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::dir_lock::DirLockError;
use super::engine::{Embedded, PROMISES};
use super::errors::ENGINE;
use super::options::Options;
use crate::engine::{
    Answer, Claim, Engine, EventId, Finding, Grant, Keys, LeaseId, Promise, Promises, Query, Renewal, Resource, Token,
    Watch,
};
use crate::error::{Error, Refusal};

/// How long to wait for another process that has the directory open.
const MAX_WAIT_FOR_DIRECTORY: Duration = Duration::from_secs(2);
/// Between two tries at a resource that is held: this much, and up to this much more.
const RETRY_HELD_AFTER: Duration = Duration::from_millis(15);

/// See the module.
#[derive(Debug)]
pub struct Visitor {
    dir: PathBuf,
    options: Options,
}

impl Visitor {
    /// For this directory; nothing is opened yet.
    pub fn new(dir: impl Into<PathBuf>, options: Options) -> Arc<Self> {
        Arc::new(Self { dir: dir.into(), options })
    }

    /// Opens the directory; waits while another process has it open.
    async fn visit(&self) -> Result<Arc<Embedded>, Error> {
        let clock = &self.options.clock;
        let until = clock.now().plus(MAX_WAIT_FOR_DIRECTORY);
        loop {
            match Embedded::open(&self.dir, self.options.clone()).await {
                Err(Error::Unavailable { source, .. })
                    if clock.now() < until && matches!(source.downcast_ref(), Some(DirLockError::InUse(_))) =>
                {
                    clock.sleep_until(clock.now().plus(jitter(Duration::from_millis(1)))).await;
                }
                other => return other,
            }
        }
    }

    /// Runs one operation, and closes the directory before it returns the answer.
    async fn during<T, F>(&self, work: F) -> Result<T, Error>
    where
        F: AsyncFnOnce(&Embedded) -> Result<T, Error>,
    {
        let engine = self.visit().await?;
        let answer = work(&engine).await;
        engine.close().await?;
        answer
    }

    async fn acquire_visiting(&self, claim: Claim) -> Result<Grant, Error> {
        let clock = &self.options.clock;
        let until = clock.now().plus(claim.wait);
        if claim.wait > Duration::from_millis(self.options.limits.wait_ms) {
            // The engine sees a claim without a wait, so the limit on the wait is checked here.
            return Err(Error::Invalid(format!("wait is at most {}s", self.options.limits.wait_ms / 1000)));
        }
        let once = Claim { wait: Duration::ZERO, ..claim };
        loop {
            let engine = self.visit().await?;
            let answer = engine.acquire(once.clone()).await;
            // Closes without an await: this future cannot be dropped here with a grant that nobody knows of.
            drop(engine);
            let now = clock.now();
            match answer {
                Err(Error::Refused(Refusal::Held { .. })) if now < until => {
                    let pause = jitter(RETRY_HELD_AFTER).min(until.since(now));
                    clock.sleep_until(now.plus(pause)).await;
                }
                other => return other,
            }
        }
    }
}

/// From one to two times the span, so that processes do not retry in step.
fn jitter(span: Duration) -> Duration {
    span + span.mul_f64((super::random::random_u64() >> 11) as f64 / (1u64 << 53) as f64)
}

impl Engine for Visitor {
    fn promises(&self) -> Promises {
        Promises { engine: ENGINE, fair: false, ..PROMISES }
    }

    fn acquire(&self, claim: Claim) -> Answer<'_, Grant> {
        Box::pin(self.acquire_visiting(claim))
    }

    fn renew<'a>(&'a self, lease: &'a LeaseId, ttl: Option<Duration>) -> Answer<'a, Renewal> {
        Box::pin(self.during(async move |engine: &Embedded| engine.renew(lease, ttl).await))
    }

    fn relabel<'a>(&'a self, lease: &'a LeaseId, holder: &'a str) -> Answer<'a, ()> {
        Box::pin(self.during(async move |engine: &Embedded| engine.relabel(lease, holder).await))
    }

    fn release<'a>(&'a self, lease: &'a LeaseId) -> Answer<'a, bool> {
        Box::pin(self.during(async move |engine: &Embedded| engine.release(lease).await))
    }

    fn revoke<'a>(&'a self, name: &'a str, reason: &'a str) -> Answer<'a, usize> {
        Box::pin(self.during(async move |engine: &Embedded| engine.revoke(name, reason).await))
    }

    fn inspect<'a>(&'a self, name: &'a str) -> Answer<'a, Option<Resource>> {
        Box::pin(self.during(async move |engine: &Embedded| engine.inspect(name).await))
    }

    fn list(&self, query: Query) -> Answer<'_, Vec<Resource>> {
        Box::pin(self.during(async move |engine: &Embedded| engine.list(query).await))
    }

    fn raise_floor(&self, floor: Option<Token>) -> Answer<'_, Token> {
        Box::pin(self.during(async move |engine: &Embedded| engine.raise_floor(floor).await))
    }

    fn identity(&self) -> Answer<'_, Option<String>> {
        Box::pin(self.during(async |engine: &Embedded| engine.identity().await))
    }

    fn examine(&self) -> Answer<'_, Vec<Finding>> {
        Box::pin(self.during(async |engine: &Embedded| {
            let sentence = "processes that open one directory in turn retry, in no order: let them ask a server";
            let mut findings = engine.examine().await?;
            findings.push(Finding::denies(&[Promise::Fair], "opened by", "several processes", "a server", sentence));
            Ok(findings)
        }))
    }

    fn watch(&self, _since: Option<EventId>) -> Answer<'_, Watch> {
        let sentence = "a directory that is opened for each operation cannot be watched: watch a server";
        Box::pin(async move { Err(Error::Invalid(sentence.into())) })
    }

    fn keys(&self) -> Option<&dyn Keys> {
        None
    }

    fn close(&self) -> Answer<'_, ()> {
        Box::pin(async { Ok(()) })
    }
}
