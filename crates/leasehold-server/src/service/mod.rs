//! The service: every protocol reaches the engine through it. It authenticates, authorises, limits and counts.
//!
//! ```text
//!   http, resp ──▶ Service: who may, how much, count it ──▶ engine
//! ```
//!
//! # Laws
//!
//! 1. Nothing reaches the engine without a [`Pass`], and only [`Service::authorize`] makes one.
//! 2. A refused caller changes nothing and learns nothing about resources that it may not see.
//! 3. Every authorised call is counted once, by verb and by outcome.
//!
//! # Not here
//!
//! Wire formats (`http`, `resp`), decisions about leases (the engine).

mod access;
pub mod audit;
mod authentication;
pub mod connection_limit;
pub mod denial;
pub mod keys;
mod leases;
pub mod metrics;
pub mod pass;
mod quota;
pub mod rate;
pub mod recipes;
mod redis_keys;
mod status;
pub mod verb;
pub mod watch;

use std::sync::{Arc, OnceLock};

use crate::boxoffice::{BoxOffice, PublicInfo};
use leasehold::clock::{Clock, Time};
use leasehold::engine::Engine;
use leasehold::engine::embedded::Embedded;
use leasehold_core::Limits;

use audit::Audit;
use authentication::INTERNAL_PEER;
pub use denial::Denial;
use keys::KeyRing;
pub use keys::{Principal, Role, Roles};
use metrics::ServiceMetrics;
pub use pass::{Caller, Pass, PeerAddress};
use quota::QuotaCounter;
use rate::FailedAuthLimiter;
use recipes::RecipeState;
pub use status::EngineInfo;
pub use verb::Verb;

/// The engine, the keys, the limits and the counters of one server.
pub struct Service {
    engine: Arc<dyn Engine>,
    /// The same engine, if it is the embedded one: RESP submits batches to it directly.
    embedded: Option<Arc<Embedded>>,
    /// Limits to check here, where the engine runs elsewhere and does not know them.
    limits: Option<Limits>,
    /// Counts leases and waiters here, likewise.
    quota: Option<QuotaCounter>,
    keys: Arc<KeyRing>,
    /// Limits how often an address may show wrong keys.
    failed_auths: FailedAuthLimiter,
    pub(crate) metrics: ServiceMetrics,
    audit: Audit,
    clock: Arc<dyn Clock>,
    started: Time,
    /// The port of the HTTP listener, once it listens.
    http_port: OnceLock<u16>,
    /// Set after the engine was opened, if there is a ledger.
    boxoffice: OnceLock<Arc<BoxOffice>>,
    /// The store of recipes, if there is one.
    recipes: OnceLock<Arc<RecipeState>>,
    /// The principal of every caller with a ticket.
    buyers: Arc<Principal>,
    /// The caller of every signed callback.
    provider: Caller,
}

impl Service {
    /// Builds the service over an open engine.
    pub fn new(engine: ServedEngine, keys: Arc<KeyRing>, audit: Audit, clock: Arc<dyn Clock>) -> Arc<Self> {
        let (engine, embedded, limits) = match engine {
            ServedEngine::Embedded(engine) => (engine.clone() as Arc<dyn Engine>, Some(engine), None),
            ServedEngine::Other(engine, limits) => (engine, None, Some(limits)),
        };
        let started = clock.now();
        let quota = limits.as_ref().map(QuotaCounter::new);
        let of = |id: &str, role| Arc::new(Principal::new(id.into(), Roles::from_roles([role]), Vec::new(), None));
        Arc::new(Self {
            engine,
            embedded,
            limits,
            quota,
            keys,
            failed_auths: FailedAuthLimiter::new(1, 10),
            metrics: ServiceMetrics::default(),
            audit,
            clock,
            started,
            http_port: OnceLock::new(),
            boxoffice: OnceLock::new(),
            recipes: OnceLock::new(),
            buyers: of("buyers", Role::Buyer),
            provider: Caller::new(of("provider", Role::Provider), INTERNAL_PEER),
        })
    }

    /// The embedded engine, for a thread that submits the commands of many connections at once; none for other engines.
    pub fn embedded(&self) -> Option<&Arc<Embedded>> {
        self.embedded.as_ref()
    }

    /// The engine, for the server itself: the box office is opened over it.
    pub fn own_engine(&self) -> Arc<dyn Engine> {
        self.engine.clone()
    }

    /// The engine, for an authorised call.
    pub fn engine(&self, _: &Pass) -> &Arc<dyn Engine> {
        &self.engine
    }

    /// Sets the box office. A second call has no effect.
    pub fn open_boxoffice(&self, boxoffice: Arc<BoxOffice>) -> bool {
        self.boxoffice.set(boxoffice).is_ok()
    }

    /// The box office, for an authorised call.
    ///
    /// # Errors
    ///
    /// There is none.
    pub fn boxoffice(&self, _: &Pass) -> Result<&Arc<BoxOffice>, Denial> {
        self.boxoffice.get().ok_or_else(no_boxoffice)
    }

    /// What a page may know of the box office without credentials.
    pub fn boxoffice_info(&self) -> Option<PublicInfo> {
        self.boxoffice.get().map(|boxoffice| boxoffice.public_info())
    }

    /// The secrets that verify callbacks of the payment provider.
    pub fn provider_secrets(&self) -> Option<&leasehold_boxoffice::sign::Secrets> {
        self.boxoffice.get().and_then(|boxoffice| boxoffice.provider_secrets())
    }

    /// Sets the port of the HTTP listener. A second call has no effect.
    pub fn set_http_port(&self, port: u16) {
        let _ = self.http_port.set(port);
    }

    /// Closes the store of recipes, the ledger and the engine.
    ///
    /// # Errors
    ///
    /// The ledger or the engine could not finish.
    pub async fn close(&self) -> Result<(), Denial> {
        self.close_recipes().await;
        // The ledger first: its last writes may release leases.
        let ledger = match self.boxoffice.get() {
            Some(boxoffice) => boxoffice.office().close().await.map_err(Denial::Office),
            None => Ok(()),
        };
        self.engine.close().await.map_err(Denial::Engine).and(ledger)
    }

    /// Closes the store of recipes: calls that were made are finished.
    pub(crate) async fn close_recipes(&self) {
        if let Some(recipes) = self.recipes.get() {
            recipes.close().await;
        }
    }

    /// The clock of the server.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }
}

fn no_boxoffice() -> Denial {
    Denial::Office(leasehold_boxoffice::Error::Unavailable {
        part: "this server",
        attempt: "asking the box office".into(),
        source: "it was started without a ledger (ledger = \"none\")".into(),
    })
}

/// An open engine, as the service needs it.
pub enum ServedEngine {
    /// The embedded engine.
    Embedded(Arc<Embedded>),
    /// Any other engine. It does not know the limits of this server, so the service checks them.
    Other(Arc<dyn Engine>, Limits),
}
