//! Tests of the guards under a clock set by hand, against an engine small enough to be believed.
//!
//! - `mini`: that engine.
//! - `acquiring`, `keeping`, `ending`, `client`: one file per part of a lease's life.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::testkit::{EngineCall, EngineFault, FlakyEngine, ManualClock};
use crate::{Acquire, Lease, Leasehold};

mod acquiring;
mod client;
mod ending;
mod keeping;
mod mini;

use mini::Mini;

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// One engine that can be spoiled, one clock, one client.
struct World {
    clock: ManualClock,
    flaky: Arc<FlakyEngine>,
    leasehold: Leasehold,
}

impl World {
    fn new() -> Self {
        Self::with(Mini::fenced)
    }

    fn with(engine: fn(ManualClock) -> Mini) -> Self {
        let clock = ManualClock::new();
        let flaky = Arc::new(FlakyEngine::new(Arc::new(engine(clock.clone()))));
        let leasehold = Leasehold::with_engine(flaky.clone(), clock.shared());
        Self { clock, flaky, leasehold }
    }

    /// A claim on the seat everybody wants, for 30 s.
    fn seat(&self) -> Acquire {
        self.leasehold.acquire("seat-14").ttl(secs(30)).holder("ada")
    }

    /// Moves time on in small steps, letting everybody act in between, as real time would.
    async fn pass(&self, span: Duration) {
        let step = Duration::from_millis(100);
        let mut left = span;
        while !left.is_zero() {
            let now = left.min(step);
            self.clock.advance(now);
            left -= now;
            settle().await;
        }
    }

    /// Moves time on in one leap, as suspend does.
    async fn leap(&self, span: Duration) {
        self.clock.advance(span);
        settle().await;
    }

    fn spoil(&self, verb: EngineCall, fault: EngineFault) {
        self.flaky.spoil(verb, fault, 10_000);
    }

    fn renewals(&self) -> usize {
        self.flaky.calls(EngineCall::Renew)
    }

    /// Whether the engine would grant the seat to another right now.
    async fn is_free(&self) -> bool {
        self.leasehold.inspect("seat-14").await.unwrap().is_none()
    }
}

/// Lets every task run until nobody has anything to do. No real time passes.
async fn settle() {
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}

async fn spawn<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    let task = tokio::spawn(work);
    settle().await;
    task
}

/// What the guard tells right now: (danger, lost, cancelled).
async fn told(lease: &Lease) -> (bool, bool, bool) {
    let danger = at_once(lease.danger()).await.is_some();
    let lost = at_once(lease.lost()).await.is_some();
    (danger, lost, lease.cancellation().is_cancelled())
}

/// The output, if it is ready at once.
async fn at_once<T>(work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        done = work => Some(done),
        () = std::future::ready(()) => None,
    }
}
