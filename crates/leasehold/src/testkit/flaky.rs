//! An engine around an engine, that fails or hangs on order.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::engine::{
    Answer, Claim, Engine, EventId, Finding, Grant, Keys, LeaseId, Promises, Query, Renewal, Resource, Token, Watch,
};
use crate::error::Error;

/// What can be asked of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EngineCall {
    /// [`Engine::acquire`].
    Acquire,
    /// [`Engine::renew`].
    Renew,
    /// [`Engine::relabel`].
    Relabel,
    /// [`Engine::release`].
    Release,
    /// [`Engine::revoke`].
    Revoke,
    /// [`Engine::inspect`].
    Inspect,
    /// [`Engine::list`].
    List,
    /// [`Engine::raise_floor`].
    RaiseFloor,
    /// [`Engine::identity`].
    Identity,
    /// [`Engine::close`].
    Close,
}

/// What goes wrong with one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineFault {
    /// The call never reaches the engine: Unavailable, and no effect.
    Unavailable,
    /// The call takes effect and its answer is lost: Indeterminate.
    Indeterminate,
    /// The engine finds its stored state broken: Corrupt, and no effect.
    Corrupt,
    /// The call is stuck on its way to the engine, until [`FlakyEngine::resume`].
    HangBefore,
    /// The call takes effect and its answer is stuck on its way back, until [`FlakyEngine::resume`]. Dropping
    /// the call loses the answer for good: even of an acquire, whose lease then lapses with its ttl.
    HangAfter,
}

/// Passes every call on, except those it was told to spoil.
///
/// # Examples
///
/// ```
/// use leasehold::clock::SystemClock;
/// use leasehold::testkit::{EngineFault, FlakyEngine, EngineCall};
/// use leasehold::{Error, Leasehold};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let inner = Leasehold::open(&format!("embedded:{}", dir.path().display())).await?.engine().clone();
/// let flaky = std::sync::Arc::new(FlakyEngine::new(inner));
/// let leasehold = Leasehold::with_engine(flaky.clone(), SystemClock::shared());
///
/// flaky.spoil(EngineCall::Acquire, EngineFault::Unavailable, 1);
/// assert!(matches!(leasehold.acquire("x").await, Err(Error::Unavailable { .. })));
/// assert!(leasehold.acquire("x").await.is_ok());
/// assert_eq!(flaky.calls(EngineCall::Acquire), 2);
/// # Ok(())
/// # }
/// ```
pub struct FlakyEngine {
    inner: Arc<dyn Engine>,
    plan: Mutex<FaultPlan>,
    /// Counts the times hanging calls were let go; a hanging call waits for the next.
    resumed: watch::Sender<u64>,
}

#[derive(Default)]
struct FaultPlan {
    faults: HashMap<EngineCall, VecDeque<EngineFault>>,
    calls: HashMap<EngineCall, usize>,
}

impl FlakyEngine {
    /// An engine that fails only when told to.
    #[must_use]
    pub fn new(inner: Arc<dyn Engine>) -> Self {
        Self { inner, plan: Mutex::default(), resumed: watch::Sender::new(0) }
    }

    /// Spoils the next `calls` of this verb that are not spoiled yet.
    pub fn spoil(&self, verb: EngineCall, fault: EngineFault, calls: usize) {
        self.plan().faults.entry(verb).or_default().extend(std::iter::repeat_n(fault, calls));
    }

    /// Lets every call go on that hangs now.
    pub fn resume(&self) {
        self.resumed.send_modify(|times| *times += 1);
    }

    /// Forgets the faults still to come, and lets every call go on that hangs now.
    pub fn heal(&self) {
        self.plan().faults.clear();
        self.resume();
    }

    /// How often this verb was called, spoiled or not.
    #[must_use]
    pub fn calls(&self, verb: EngineCall) -> usize {
        self.plan().calls.get(&verb).copied().unwrap_or(0)
    }

    fn plan(&self) -> MutexGuard<'_, FaultPlan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_fault(&self, verb: EngineCall) -> Option<EngineFault> {
        let mut plan = self.plan();
        *plan.calls.entry(verb).or_default() += 1;
        plan.faults.get_mut(&verb).and_then(VecDeque::pop_front)
    }

    async fn hang(&self) {
        // Cannot fail: the sender is a field of self.
        let _ = self.resumed.subscribe().changed().await;
    }

    fn pass<'a, T: Send + 'a>(
        &'a self,
        verb: EngineCall,
        call: impl FnOnce(&'a dyn Engine) -> Answer<'a, T> + Send + 'a,
    ) -> Answer<'a, T> {
        Box::pin(async move {
            let engine = self.promises().engine;
            let attempt = format!("{verb:?}").to_lowercase();
            match self.next_fault(verb) {
                None => call(&*self.inner).await,
                Some(EngineFault::Unavailable) => {
                    Err(Error::Unavailable { engine, attempt, source: "spoiled on its way there".into() })
                }
                Some(EngineFault::Indeterminate) => {
                    let _lost = call(&*self.inner).await;
                    Err(Error::Indeterminate { engine, attempt, source: "spoiled on its way back".into() })
                }
                Some(EngineFault::Corrupt) => {
                    Err(Error::Corrupt { engine, law: "spoiled on order".into(), at: attempt })
                }
                Some(EngineFault::HangBefore) => {
                    self.hang().await;
                    call(&*self.inner).await
                }
                Some(EngineFault::HangAfter) => {
                    let answer = call(&*self.inner).await;
                    self.hang().await;
                    answer
                }
            }
        })
    }
}

impl Engine for FlakyEngine {
    fn promises(&self) -> Promises {
        self.inner.promises()
    }

    fn acquire(&self, claim: Claim) -> Answer<'_, Grant> {
        self.pass(EngineCall::Acquire, |inner| inner.acquire(claim))
    }

    fn renew<'a>(&'a self, lease: &'a LeaseId, ttl: Option<Duration>) -> Answer<'a, Renewal> {
        self.pass(EngineCall::Renew, move |inner| inner.renew(lease, ttl))
    }

    fn relabel<'a>(&'a self, lease: &'a LeaseId, holder: &'a str) -> Answer<'a, ()> {
        self.pass(EngineCall::Relabel, move |inner| inner.relabel(lease, holder))
    }

    fn release<'a>(&'a self, lease: &'a LeaseId) -> Answer<'a, bool> {
        self.pass(EngineCall::Release, |inner| inner.release(lease))
    }

    fn revoke<'a>(&'a self, name: &'a str, reason: &'a str) -> Answer<'a, usize> {
        self.pass(EngineCall::Revoke, |inner| inner.revoke(name, reason))
    }

    fn inspect<'a>(&'a self, name: &'a str) -> Answer<'a, Option<Resource>> {
        self.pass(EngineCall::Inspect, |inner| inner.inspect(name))
    }

    fn list(&self, query: Query) -> Answer<'_, Vec<Resource>> {
        self.pass(EngineCall::List, |inner| inner.list(query))
    }

    fn raise_floor(&self, floor: Option<Token>) -> Answer<'_, Token> {
        self.pass(EngineCall::RaiseFloor, move |inner| inner.raise_floor(floor))
    }

    fn identity(&self) -> Answer<'_, Option<String>> {
        self.pass(EngineCall::Identity, |inner| inner.identity())
    }

    fn examine(&self) -> Answer<'_, Vec<Finding>> {
        self.inner.examine()
    }

    fn watch(&self, since: Option<EventId>) -> Answer<'_, Watch> {
        self.inner.watch(since)
    }

    fn keys(&self) -> Option<&dyn Keys> {
        self.inner.keys()
    }

    fn close(&self) -> Answer<'_, ()> {
        self.pass(EngineCall::Close, |inner| inner.close())
    }
}
