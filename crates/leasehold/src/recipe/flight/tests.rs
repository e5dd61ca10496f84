//! Flights under a clock set by hand: two processes of a fleet, one cache, one engine.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold_core::Limits;
use tokio::task::JoinHandle;

use super::*;
use crate::testkit::{CoreEngine, EngineCall, EngineFault, FlakyEngine, ManualClock, TickTiming};

const KEY: &str = "page:7";
const TTL: Duration = Duration::from_secs(10);
const WORK: Duration = Duration::from_millis(200);

/// No early refresh: the logarithm of one is zero.
fn never_early() -> f64 {
    1.0
}

/// Refreshes when twenty times the computation is left.
fn always_early() -> f64 {
    (-20.0_f64).exp()
}

/// What was computed.
#[derive(Clone, Default)]
struct Kitchen {
    runs: Arc<AtomicUsize>,
    at_once: Arc<AtomicUsize>,
    most_at_once: Arc<AtomicUsize>,
}

struct Fleet {
    clock: ManualClock,
    flaky: Arc<FlakyEngine>,
    leasehold: Leasehold,
    processes: [Flights<MemoryCache<usize>>; 2],
    kitchen: Kitchen,
}

impl Fleet {
    fn new(chance: fn() -> f64) -> Self {
        let clock = ManualClock::new();
        let core = CoreEngine::new(&clock, Limits::default(), TickTiming::Prompt);
        let flaky = Arc::new(FlakyEngine::new(core));
        let leasehold = Leasehold::with_engine(flaky.clone(), clock.shared());
        let cache = MemoryCache::with_clock(clock.shared());
        let process = || Flights::with_chance(leasehold.clone(), cache.clone(), chance);
        let processes = [process(), process()];
        Self { clock, flaky, leasehold, processes, kitchen: Kitchen::default() }
    }

    /// A get that counts its computations. The value is the number of the computation.
    async fn get(&self, process: usize, stale_ok: Duration) -> JoinHandle<usize> {
        let (flights, kitchen, clock) = (self.processes[process].clone(), self.kitchen.clone(), self.clock.clone());
        let task = tokio::spawn(async move {
            let compute = async || {
                let now = kitchen.at_once.fetch_add(1, Ordering::SeqCst) + 1;
                kitchen.most_at_once.fetch_max(now, Ordering::SeqCst);
                clock.sleep_until(clock.now().plus(WORK)).await;
                kitchen.at_once.fetch_sub(1, Ordering::SeqCst);
                Ok::<_, Infallible>(kitchen.runs.fetch_add(1, Ordering::SeqCst) + 1)
            };
            flights.get(KEY, TTL, compute).stale_ok(stale_ok).patience(Duration::from_secs(5)).await.unwrap()
        });
        settle().await;
        task
    }

    fn runs(&self) -> usize {
        self.kitchen.runs.load(Ordering::SeqCst)
    }

    async fn pass(&self, span: Duration) {
        let end = self.clock.now().plus(span);
        while self.clock.now() < end {
            self.clock.advance(Duration::from_millis(10).min(end.since(self.clock.now())));
            settle().await;
        }
    }

    /// Fills the cache by the first process.
    async fn fill(&self) {
        let first = self.get(0, Duration::from_secs(60)).await;
        self.pass(WORK).await;
        assert_eq!(first.await.unwrap(), 1);
    }

    async fn is_guarded(&self) -> bool {
        self.leasehold.inspect(&format!("flight/{KEY}")).await.unwrap().is_some()
    }
}

async fn settle() {
    for _ in 0..48 {
        tokio::task::yield_now().await;
    }
}

/// Goal: the stampede: 200 requests a second over two processes, one computation for each expiry, nobody unanswered.
#[tokio::test]
async fn a_stampede_computes_once_for_each_expiry() {
    let fleet = Fleet::new(never_early);
    let mut gets = Vec::new();
    let end = fleet.clock.now().plus(Duration::from_secs(30));
    let mut number = 0;
    while fleet.clock.now() < end {
        gets.push(fleet.get(number % 2, Duration::ZERO).await);
        number += 1;
        fleet.clock.advance(Duration::from_millis(5));
        settle().await;
    }
    fleet.pass(Duration::from_secs(1)).await;
    let count = gets.len();
    for get in gets {
        assert!(get.is_finished(), "unanswered");
        get.await.unwrap();
    }
    // At 0 s, at 10.2 s and at 20.4 s.
    assert_eq!((count, fleet.runs(), fleet.kitchen.most_at_once.load(Ordering::SeqCst)), (6000, 3, 1));
    assert!(!fleet.is_guarded().await);
}

/// Goal: whoever may take an old value does not wait; law 3: an older one is not returned.
#[tokio::test]
async fn losers_take_the_stale_value_or_wait() {
    let fleet = Fleet::new(never_early);
    fleet.fill().await;
    fleet.pass(TTL + Duration::from_millis(20)).await;
    let minute = Duration::from_secs(60);
    let computing = fleet.get(0, minute).await;
    assert!(fleet.is_guarded().await && !computing.is_finished());
    let (here, there) = (fleet.get(0, minute).await, fleet.get(1, minute).await);
    assert!(here.is_finished() && there.is_finished(), "an old value is at hand");
    assert_eq!((here.await.unwrap(), there.await.unwrap()), (1, 1));
    let (here, there) = (fleet.get(0, Duration::ZERO).await, fleet.get(1, Duration::ZERO).await);
    let short = fleet.get(1, Duration::from_millis(1)).await;
    assert!(!here.is_finished() && !there.is_finished() && !short.is_finished(), "too old for these");
    fleet.pass(WORK).await;
    assert_eq!((here.await.unwrap(), there.await.unwrap(), short.await.unwrap()), (2, 2, 2));
    assert_eq!((computing.await.unwrap(), fleet.runs()), (2, 2));
}

/// Goal: law 1: an engine that is away, or hangs, guards nothing and stops nothing.
#[tokio::test]
async fn without_an_engine_the_value_is_computed() {
    let fleet = Fleet::new(never_early);
    fleet.flaky.spoil(EngineCall::Acquire, EngineFault::Unavailable, 1);
    let get = fleet.get(0, Duration::ZERO).await;
    fleet.pass(WORK).await;
    assert_eq!(get.await.unwrap(), 1);

    fleet.pass(TTL).await;
    fleet.flaky.spoil(EngineCall::Acquire, EngineFault::HangBefore, 1);
    let get = fleet.get(0, Duration::ZERO).await;
    fleet.pass(ENGINE_PATIENCE + WORK).await;
    assert_eq!(get.await.unwrap(), 2);

    fleet.pass(TTL).await;
    fleet.flaky.spoil(EngineCall::Release, EngineFault::HangBefore, 1);
    let get = fleet.get(0, Duration::ZERO).await;
    fleet.pass(WORK + ENGINE_PATIENCE).await;
    assert_eq!(get.await.unwrap(), 3, "a release that hangs does not keep the value");
}

/// Goal: a value is refreshed before it expires by the one who gets the lease, and nobody waits for that.
#[tokio::test]
async fn a_value_is_refreshed_before_it_expires() {
    let fleet = Fleet::new(always_early);
    fleet.fill().await;
    fleet.pass(TTL - WORK * 21).await;
    let early = fleet.get(0, Duration::ZERO).await;
    assert_eq!((early.is_finished(), early.await.unwrap()), (true, 1), "not due yet");
    fleet.pass(WORK * 2).await;
    let refreshing = fleet.get(0, Duration::ZERO).await;
    let (here, there) = (fleet.get(0, Duration::ZERO).await, fleet.get(1, Duration::ZERO).await);
    assert!(here.is_finished() && there.is_finished() && !refreshing.is_finished());
    assert_eq!((here.await.unwrap(), there.await.unwrap()), (1, 1), "they hit");
    fleet.pass(WORK).await;
    assert_eq!((refreshing.await.unwrap(), fleet.runs()), (2, 2));

    // Without an engine there is no early refresh: the value is good as it is.
    fleet.pass(TTL - WORK * 19).await;
    fleet.flaky.spoil(EngineCall::Acquire, EngineFault::Unavailable, 1);
    let get = fleet.get(1, Duration::ZERO).await;
    assert_eq!((get.is_finished(), get.await.unwrap()), (true, 2));
}

/// Goal: a computation that fails is its caller's affair: the next one computes.
#[tokio::test]
async fn after_a_failed_computation_the_next_computes() {
    let fleet = Fleet::new(never_early);
    let (flights, clock) = (fleet.processes[0].clone(), fleet.clock.clone());
    let failing = tokio::spawn(async move {
        let compute = async || {
            clock.sleep_until(clock.now().plus(WORK)).await;
            Err::<usize, _>(io::Error::other("no template"))
        };
        flights.get(KEY, TTL, compute).await
    });
    settle().await;
    let (here, there) = (fleet.get(0, Duration::ZERO).await, fleet.get(1, Duration::ZERO).await);
    fleet.pass(WORK).await;
    assert_eq!(failing.await.unwrap().unwrap_err().to_string(), "no template");
    fleet.pass(WORK * 2).await;
    assert_eq!((here.await.unwrap(), there.await.unwrap(), fleet.runs()), (1, 1, 1));
}

/// Goal: a get that is given up (a browser that went away) blocks nobody: neither here nor in the fleet.
#[tokio::test]
async fn a_dropped_get_gives_the_lease_back() {
    let fleet = Fleet::new(never_early);
    let dropped = fleet.get(0, Duration::ZERO).await;
    let (here, there) = (fleet.get(0, Duration::ZERO).await, fleet.get(1, Duration::ZERO).await);
    assert!(fleet.is_guarded().await);
    dropped.abort();
    settle().await;
    fleet.pass(WORK * 2).await;
    assert!(here.is_finished() && there.is_finished(), "long before the lease lapses by itself");
    assert_eq!((here.await.unwrap(), there.await.unwrap(), fleet.runs()), (1, 1, 1));
}

/// Goal: who waited long enough computes beside the one that hangs.
#[tokio::test]
async fn patience_ends_with_a_computation_of_ones_own() {
    let fleet = Fleet::new(never_early);
    let flights = fleet.processes[0].clone();
    let hanging = tokio::spawn(async move {
        let compute = async || std::future::pending::<Result<usize, Infallible>>().await;
        flights.get(KEY, TTL, compute).await
    });
    settle().await;
    let (here, there) = (fleet.get(0, Duration::ZERO).await, fleet.get(1, Duration::ZERO).await);
    fleet.pass(Duration::from_secs(4)).await;
    assert!(!here.is_finished() && !there.is_finished());
    fleet.pass(Duration::from_secs(1) + WORK).await;
    assert!(here.is_finished() && there.is_finished());
    hanging.abort();
}
