//! Recipes behind the server: the store of once, queues and schedules, for callers that the gate let through.
//!
//! ```text
//!   http ──▶ Service::recipes: role, prefix, rate ──▶ RecipeAccess ──▶ Store
//! ```
//!
//! The name that a key's prefix is compared with is `queue/Q`, `once/SCOPE` or `cron/NAME`.
//!
//! # Laws
//!
//! 1. Nothing reaches the store without a [`RecipeAccess`], and only [`Service::recipes`] makes one.
//! 2. A call on one queue changes nothing in another: tokens of deliveries are no secrets, so jobs are looked up in the queue
//!    that the caller may use.

mod bell;
mod counts;
mod cron;
mod once;
mod queue;
mod views;

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::clock::{Clock, Time};
use leasehold::recipe::queue::{HotKey, QueueStatus};
use leasehold::recipe::{RecipeError, Store};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::pass::Caller;
use super::{Denial, Service, Verb};
use bell::QueueBells;
use counts::RecipeCounts;
pub use cron::cron_resource;
pub use once::{TryEnd, stale_try};
pub use queue::QueueAccess;
pub use views::{MAX_HOT_KEYS, QueueOrder, queue_resource};

/// How often expired answers are removed.
const FORGET_EVERY: Duration = Duration::from_secs(60);

/// The sentence of a server without a store.
const NO_STORE: &str = "this server has no store of recipes: start it with --store postgres://user@host/database, sqlite:FILE or \
     leasehold://host:port";

/// The store of a server, and what it counts.
pub struct RecipeState {
    store: Store,
    clock: Arc<dyn Clock>,
    bells: QueueBells,
    pub(crate) counts: RecipeCounts,
    /// Depths of queues for metrics, and when they were read.
    depths: tokio::sync::Mutex<Option<(Time, Vec<QueueStatus>)>>,
    /// Schedules that are overdue, for metrics, and when they were counted.
    overdue: tokio::sync::Mutex<Option<(Time, u64)>>,
    hot_keys: Mutex<std::collections::HashMap<String, (Time, Vec<HotKey>)>>,
}

impl RecipeState {
    /// Over an open store.
    pub fn new(store: Store, clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            store,
            bells: QueueBells::default(),
            counts: RecipeCounts::default(),
            depths: tokio::sync::Mutex::default(),
            overdue: tokio::sync::Mutex::default(),
            hot_keys: Mutex::default(),
            clock,
        })
    }

    /// Removes expired answers, until `end`.
    pub async fn run_upkeep(self: Arc<Self>, end: CancellationToken) {
        loop {
            let pause = self.clock.sleep_until(self.clock.now().plus(FORGET_EVERY));
            if end.run_until_cancelled(pause).await.is_none() {
                return;
            }
            let forgotten = loop {
                match self.store.forget_expired().await {
                    Ok(0) => break Ok(()),
                    Ok(_) if end.is_cancelled() => return,
                    Ok(_) => {}
                    Err(error) => break Err(error),
                }
            };
            if let Err(error) = forgotten {
                tracing::warn!(target: "leasehold::recipes", %error, "expired answers of once were not removed");
            }
        }
    }

    pub(super) async fn ready(&self) -> Result<(), RecipeError> {
        self.store.ping().await
    }

    pub(super) async fn close(&self) {
        self.store.close().await;
    }
}

/// The store, for one authorised call. See the module.
#[derive(Clone)]
pub struct RecipeAccess {
    state: Arc<RecipeState>,
    span: tracing::Span,
}

impl Service {
    /// Sets the store of recipes. A second call has no effect.
    pub fn open_recipes(&self, recipes: Arc<RecipeState>) -> bool {
        self.recipes.set(recipes).is_ok()
    }

    /// Authorises one call on what has this name: `queue/Q`, `once/SCOPE`, `cron/NAME`; none: on what the caller may see.
    ///
    /// # Errors
    ///
    /// The caller may not, or there is no store.
    pub fn recipes(&self, caller: &Caller, verb: Verb, name: Option<&str>) -> Result<RecipeAccess, Denial> {
        let pass = self.authorize(caller, verb, name.as_slice())?;
        let state = self.recipes.get().ok_or_else(|| {
            let attempt = verb.word().to_owned();
            Denial::Recipe(RecipeError::Unavailable { store: "server's", attempt, source: NO_STORE.into() })
        })?;
        Ok(RecipeAccess { state: state.clone(), span: pass.span(caller) })
    }
}

impl RecipeAccess {
    async fn ask<T>(&self, call: impl Future<Output = Result<T, RecipeError>>) -> Result<T, Denial> {
        call.instrument(self.span.clone()).await.map_err(Denial::Recipe)
    }
}
