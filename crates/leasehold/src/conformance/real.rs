//! A subject in real time: for engines whose clock is somewhere else.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{BoxFuture, Subject};
use crate::engine::Engine;

/// An engine for which time passes by itself.
pub struct Real {
    make: Box<dyn Fn() -> BoxFuture<'static, Arc<dyn Engine>> + Send + Sync>,
    unit: Duration,
    slack: Duration,
}

impl fmt::Debug for Real {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Real").field("unit", &self.unit).field("slack", &self.slack).finish_non_exhaustive()
    }
}

impl Real {
    /// A subject whose engines are made by `make`, and answer within `slack`.
    ///
    /// The yardstick is four times that: the shortest at which the laws can still tell before from after.
    pub fn new(
        slack: Duration,
        make: impl Fn() -> BoxFuture<'static, Arc<dyn Engine>> + Send + Sync + 'static,
    ) -> Self {
        Self { make: Box::new(make), unit: slack * 4, slack }
    }
}

impl Subject for Real {
    fn fresh(&self) -> BoxFuture<'_, Arc<dyn Engine>> {
        (self.make)()
    }

    fn pass(&self, span: Duration) -> BoxFuture<'_, ()> {
        Box::pin(tokio::time::sleep(span))
    }

    fn unit(&self) -> Duration {
        self.unit
    }

    fn slack(&self) -> Duration {
        self.slack
    }

    fn reopen(&self) -> BoxFuture<'_, Option<Arc<dyn Engine>>> {
        Box::pin(async { None })
    }
}
