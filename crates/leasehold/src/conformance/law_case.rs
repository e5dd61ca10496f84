//! One law being tried: a fresh engine, and the words that laws are written in.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::Subject;
use crate::engine::{Claim, Engine, Grant, LeaseId, Mode, Promises, Query, Renewal, Resource, Want};
use crate::error::{Error, Refusal};

/// How long an answer may take in real time before the law counts as broken.
const MAX_REPLY_WAIT: Duration = Duration::from_secs(30);
/// Between two looks at something that is about to happen.
const POLL_EVERY: Duration = Duration::from_millis(2);

/// See the module.
pub(super) struct LawCase<'s> {
    pub subject: &'s dyn Subject,
    pub engine: Arc<dyn Engine>,
    pub promises: Promises,
}

impl<'s> LawCase<'s> {
    pub async fn new(subject: &'s dyn Subject) -> Self {
        let engine = subject.fresh().await;
        Self { subject, promises: engine.promises(), engine }
    }

    /// A case of an engine that has shared and permit leases; none for an engine that refuses them as Invalid.
    pub async fn with_modes(subject: &'s dyn Subject) -> Option<Self> {
        let case = Self::new(subject).await;
        let asked = Claim { wants: vec![shared("a probe")], ..case.claim("probe", "a probe") };
        match in_time(case.engine.acquire(asked)).await {
            Ok(grant) => {
                case.end(&grant).await;
                Some(case)
            }
            Err(Error::Invalid(_)) => None,
            Err(other) => panic!("a shared lease is granted, or there are none, not {other:?}"),
        }
    }

    /// Whether the engine grants a delay after a lapse. One whose leases end with their process may refuse it as Invalid.
    pub async fn grants_delays(&self) -> bool {
        let asked = Claim { delay: self.units(1), ..self.claim("probe", "a probe") };
        match in_time(self.engine.acquire(asked)).await {
            Ok(grant) => {
                self.end(&grant).await;
                true
            }
            Err(Error::Invalid(_)) if !self.promises.outlives_process => false,
            Err(other) => panic!("a delay is granted, or leases end with their process, not {other:?}"),
        }
    }

    /// So many units: the measure of every span in a law.
    pub fn units(&self, count: u32) -> Duration {
        self.subject.unit() * count
    }

    /// The shortest span that this subject can tell from none.
    pub fn grain(&self) -> Duration {
        self.subject.slack().max(Duration::from_millis(1))
    }

    pub async fn pass(&self, span: Duration) {
        self.subject.pass(span).await;
    }

    /// Lets a span pass, all but the last grain of it.
    pub async fn pass_nearly(&self, span: Duration) {
        self.pass(span.saturating_sub(self.grain())).await;
    }

    /// Lets the last grain of a span pass.
    pub async fn pass_the_rest(&self) {
        self.pass(self.grain() + self.subject.slack()).await;
    }

    /// An exclusive claim for ten units, without patience.
    pub fn claim(&self, holder: &str, name: &str) -> Claim {
        Claim::new(vec![exclusive(name)], self.units(10), holder)
    }

    /// The same with a hundred units of patience.
    pub fn patient(&self, holder: &str, name: &str) -> Claim {
        Claim { wait: self.units(100), ..self.claim(holder, name) }
    }

    /// The claim is granted; its token is there exactly if tokens are promised.
    pub async fn granted(&self, claim: Claim) -> Grant {
        let asked = format!("{claim:?}");
        let grant = in_time(self.engine.acquire(claim)).await;
        let grant = grant.unwrap_or_else(|error| panic!("{asked} was not granted: {error:?}"));
        assert_eq!(grant.token.is_some(), self.promises.fencing, "a token comes with the promise of fencing");
        grant
    }

    /// The claim is refused, or invalid, or whatever else.
    pub async fn not_granted(&self, claim: Claim) -> Error {
        let asked = format!("{claim:?}");
        match in_time(self.engine.acquire(claim)).await {
            Ok(_) => panic!("{asked} was granted"),
            Err(error) => error,
        }
    }

    /// The claim is refused because somebody or something is in the way.
    pub async fn held(&self, claim: Claim) -> HeldBy {
        held_by(self.not_granted(claim).await)
    }

    pub async fn renew(&self, grant: &Grant, ttl: Option<Duration>) -> Result<Renewal, Error> {
        in_time(self.engine.renew(&grant.lease_id, ttl)).await
    }

    pub async fn release(&self, grant: &Grant) -> Result<bool, Error> {
        in_time(self.engine.release(&grant.lease_id)).await
    }

    /// Releases a lease that is live.
    pub async fn end(&self, grant: &Grant) {
        assert_is("a release that ends the lease", self.release(grant).await, |first| *first);
    }

    /// Every verb of the owner is refused like this.
    pub async fn owner_is_told(&self, lease: &LeaseId, expected: &Refusal) {
        let forgotten = *expected == Refusal::Stale && self.subject.forgets_endings();
        let told = |what: &str, got: Result<(), Error>| match got {
            Err(Error::Refused(Refusal::NotHeld)) if forgotten => {}
            other => assert_refused(what, other, expected),
        };
        told("renew", in_time(self.engine.renew(lease, None)).await.map(drop));
        match in_time(self.engine.relabel(lease, "somebody else")).await {
            // An engine without this verb says so of every lease.
            Err(Error::Invalid(_)) => {}
            other => told("relabel", other),
        }
        told("release", in_time(self.engine.release(lease)).await.map(drop));
    }

    /// A release of a lease that was released before says so, where that is remembered.
    pub fn assert_released_before(&self, got: Result<bool, Error>) {
        match got {
            Err(Error::Refused(Refusal::NotHeld)) if self.subject.forgets_endings() => {}
            other => assert_is("false, for it was released before", other, |first| !first),
        }
    }

    /// A lease that ended otherwise is stale, or forgotten where that may be.
    pub fn assert_stale<T: Debug>(&self, what: &str, got: Result<T, Error>) {
        match got {
            Err(Error::Refused(Refusal::NotHeld)) if self.subject.forgets_endings() => {}
            other => assert_refused(what, other, &Refusal::Stale),
        }
    }

    pub async fn inspect(&self, name: &str) -> Option<Resource> {
        in_time(self.engine.inspect(name)).await.expect("inspect answers")
    }

    pub async fn list(&self, query: Query) -> Vec<Resource> {
        in_time(self.engine.list(query)).await.expect("list answers")
    }

    /// Who has it, by label.
    pub async fn holders(&self, name: &str) -> Vec<String> {
        let found = self.inspect(name).await;
        found.map_or_else(Vec::new, |r| r.holders.into_iter().map(|holding| holding.holder).collect())
    }

    /// How many wait for it.
    pub async fn queue(&self, name: &str) -> usize {
        self.inspect(name).await.map_or(0, |resource| resource.queue_len)
    }

    /// Starts an acquire that has to wait, and returns when it is in the queue.
    pub async fn in_line(&self, claim: Claim) -> SpawnedAcquire {
        let names: Vec<String> = claim.wants.iter().map(|want| want.name.clone()).collect();
        let before = self.queue(&names[0]).await;
        let waiter = self.start(claim);
        if self.promises.fair {
            let what = format!("an acquire stands in line for {}", names[0]);
            self.until(&what, async || self.queue(&names[0]).await > before || waiter.0.is_finished()).await;
        } else {
            tokio::time::sleep(POLL_EVERY).await;
        }
        assert!(!waiter.0.is_finished(), "an acquire of {names:?} was answered that has to wait");
        waiter
    }

    /// Starts an acquire and lets it run by itself.
    pub fn start(&self, claim: Claim) -> SpawnedAcquire {
        let engine = self.engine.clone();
        SpawnedAcquire(tokio::spawn(async move { engine.acquire(claim).await }))
    }

    /// The answer to an acquire that waits.
    pub async fn answer(&self, waiter: SpawnedAcquire) -> Result<Grant, Error> {
        self.finished(waiter.0).await
    }

    /// What a task comes to. Engines that only come again now and then need time for it.
    pub async fn finished<T>(&self, mut task: JoinHandle<T>) -> T {
        let limit = tokio::time::Instant::now() + MAX_REPLY_WAIT;
        loop {
            if let Ok(done) = tokio::time::timeout(POLL_EVERY, &mut task).await {
                return done.expect("whoever waits does not panic");
            }
            assert!(tokio::time::Instant::now() < limit, "whoever waits is answered within {MAX_REPLY_WAIT:?}");
            if !self.promises.fair {
                self.pass(self.subject.unit() / 20).await;
            }
        }
    }

    pub async fn answered_with_a_grant(&self, waiter: SpawnedAcquire) -> Grant {
        self.answer(waiter).await.expect("the waiting acquire is granted")
    }

    /// Nobody has answered this one yet, as far as can be told.
    pub async fn still_waits(&self, waiter: &SpawnedAcquire) {
        // When a look is answered, so is what was decided before it.
        self.inspect("nothing at all").await;
        for _ in 0..16 {
            tokio::task::yield_now().await;
        }
        assert!(!waiter.0.is_finished(), "an acquire was answered that has to wait");
    }

    /// Looks until it is so.
    pub async fn until(&self, what: &str, is_so: impl AsyncFn() -> bool) {
        let limit = tokio::time::Instant::now() + MAX_REPLY_WAIT;
        while !is_so().await {
            assert!(tokio::time::Instant::now() < limit, "after {MAX_REPLY_WAIT:?} it is not so that {what}");
            tokio::time::sleep(POLL_EVERY).await;
        }
    }

    /// Equal, within the slack of the subject.
    pub fn assert_about(&self, what: &str, got: Duration, expected: Duration) {
        let off = got.abs_diff(expected);
        assert!(off <= self.subject.slack(), "{what} is {got:?}, expected {expected:?}");
    }
}

/// An acquire that waits in a task of its own.
pub(super) struct SpawnedAcquire(JoinHandle<Result<Grant, Error>>);

impl SpawnedAcquire {
    /// Its caller goes away.
    pub async fn leave(self) {
        self.0.abort();
        let _ = self.0.await;
    }

    /// Whether it has its answer.
    pub fn is_answered(&self) -> bool {
        self.0.is_finished()
    }
}

/// What a refusal says is in the way.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct HeldBy {
    pub resource: String,
    pub holder: Option<String>,
    pub remaining: Option<Duration>,
    pub queue_len: usize,
}

pub(super) fn held_by(error: Error) -> HeldBy {
    match error {
        Error::Refused(Refusal::Held { resource, holder, remaining, queue_len }) => {
            HeldBy { resource, holder, remaining, queue_len }
        }
        other => panic!("expected a refusal that it is held, got {other:?}"),
    }
}

pub(super) fn exclusive(name: &str) -> Want {
    Want::exclusive(name)
}

pub(super) fn shared(name: &str) -> Want {
    Want { name: name.into(), mode: Mode::Shared }
}

pub(super) fn permits(name: &str, count: u32, capacity: u32) -> Want {
    Want { name: name.into(), mode: Mode::Permits { count, capacity } }
}

/// Waits for an answer, but not for ever.
pub(super) async fn in_time<T>(answer: impl Future<Output = T>) -> T {
    tokio::time::timeout(MAX_REPLY_WAIT, answer).await.expect("an engine answers in time")
}

pub(super) fn assert_is<T: Debug>(what: &str, got: Result<T, Error>, is: impl FnOnce(&T) -> bool) {
    match got {
        Ok(value) if is(&value) => {}
        other => panic!("expected {what}, got {other:?}"),
    }
}

pub(super) fn assert_refused<T: Debug>(what: &str, got: Result<T, Error>, expected: &Refusal) {
    match got {
        Err(Error::Refused(refusal)) if refusal == *expected => {}
        other => panic!("expected that {what} is refused with {expected:?}, got {other:?}"),
    }
}

pub(super) fn assert_invalid(what: &str, error: &Error) {
    assert!(
        matches!(error, Error::Invalid(sentence) if !sentence.is_empty()),
        "expected that {what} is invalid, got {error:?}"
    );
}

pub(super) fn assert_unavailable<T: Debug>(what: &str, got: Result<T, Error>) {
    assert!(matches!(got, Err(Error::Unavailable { .. })), "expected that {what} is unavailable, got {got:?}");
}
