//! A subject under a clock set by hand: exact, and as fast as the engine.

use std::sync::Arc;
use std::time::Duration;

use leasehold_core::Time;

use super::{BoxFuture, Subject};
use crate::engine::Engine;
use crate::testkit::ManualClock;

/// An engine that runs under a [`ManualClock`]. See [`Manual::new`].
pub struct Manual {
    clock: ManualClock,
    make: Make,
    reopen: Make,
}

type Make = Box<dyn Fn(&ManualClock) -> BoxFuture<'static, Option<Arc<dyn Engine>>> + Send + Sync>;

impl std::fmt::Debug for Manual {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Manual").field(&self.clock).finish()
    }
}

impl Manual {
    /// A subject whose engines are made by `make`.
    pub fn new(make: impl Fn(&ManualClock) -> BoxFuture<'static, Arc<dyn Engine>> + Send + Sync + 'static) -> Self {
        let clock = ManualClock::new();
        // Not at zero, where too much is equal by accident.
        clock.set(Time::from_millis(1_234_567));
        Self {
            clock,
            make: Box::new(move |clock| {
                let made = make(clock);
                Box::pin(async move { Some(made.await) })
            }),
            reopen: Box::new(|_| Box::pin(async { None })),
        }
    }

    /// And says how what the last of them left behind is opened once more.
    #[must_use]
    pub fn reopened_by(
        mut self,
        reopen: impl Fn(&ManualClock) -> BoxFuture<'static, Arc<dyn Engine>> + Send + Sync + 'static,
    ) -> Self {
        self.reopen = Box::new(move |clock| {
            let opened = reopen(clock);
            Box::pin(async move { Some(opened.await) })
        });
        self
    }
}

impl Subject for Manual {
    fn fresh(&self) -> BoxFuture<'_, Arc<dyn Engine>> {
        Box::pin(async { (self.make)(&self.clock).await.expect("a fresh engine is always made") })
    }

    fn pass(&self, span: Duration) -> BoxFuture<'_, ()> {
        // Nobody acts on it before the law goes on, unless the engine has a thread of its own: an engine
        // that hears of the time late must give the same answers.
        Box::pin(async move { self.clock.advance(span) })
    }

    fn unit(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn slack(&self) -> Duration {
        Duration::ZERO
    }

    fn reopen(&self) -> BoxFuture<'_, Option<Arc<dyn Engine>>> {
        (self.reopen)(&self.clock)
    }
}
