//! The service: the one way from a protocol to the engine.
//!
//! ```text
//!   http, resp ──▶ Service: who may, how much, count it ──▶ engine
//! ```
//!
//! # Laws
//!
//! 1. Nothing reaches the engine without a [`Pass`], and only [`Service::authorize`] makes one.
//! 2. A refused caller changes nothing and learns nothing of what it may not see.
//! 3. Every admitted call is counted by its verb and its outcome, once.
//!
//! # Not here
//!
//! Bytes (`http`, `resp`), decisions about leases (the engine).

mod access;
pub mod audit;
mod authentication;
pub mod connection_limit;
pub mod denial;
pub mod keys;
mod leases;
pub mod metrics;
pub mod pass;
pub mod rate;
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
use rate::FailedAuthLimiter;
pub use status::EngineInfo;
pub use verb::Verb;

/// See the module.
pub struct Service {
    engine: Arc<dyn Engine>,
    /// The same engine, if it is the embedded one: its till answers many connections at once.
    embedded: Option<Arc<Embedded>>,
    /// What may be asked for, where the engine is not ours to tell.
    limits: Option<Limits>,
    keys: Arc<KeyRing>,
    /// How often wrong keys may be shown.
    failed_auths: FailedAuthLimiter,
    pub(crate) metrics: ServiceMetrics,
    audit: Audit,
    clock: Arc<dyn Clock>,
    started: Time,
    /// Where HTTP listens, once it does.
    http_port: OnceLock<u16>,
    /// Opened after the engine, if it is opened at all.
    boxoffice: OnceLock<Arc<BoxOffice>>,
    /// Whoever shows a buyer's ticket.
    buyers: Arc<Principal>,
    /// Whoever shows a provider's signature.
    provider: Caller,
}

impl Service {
    /// A service over an engine that is open.
    pub fn new(engine: ServedEngine, keys: Arc<KeyRing>, audit: Audit, clock: Arc<dyn Clock>) -> Arc<Self> {
        let (engine, embedded, limits) = match engine {
            ServedEngine::Embedded(engine) => (engine.clone() as Arc<dyn Engine>, Some(engine), None),
            ServedEngine::Other(engine, limits) => (engine, None, Some(limits)),
        };
        let started = clock.now();
        let of = |id: &str, role| Arc::new(Principal::new(id.into(), Roles::from_roles([role]), Vec::new(), None));
        Arc::new(Self {
            engine,
            embedded,
            limits,
            keys,
            failed_auths: FailedAuthLimiter::new(1, 10),
            metrics: ServiceMetrics::default(),
            audit,
            clock,
            started,
            http_port: OnceLock::new(),
            boxoffice: OnceLock::new(),
            buyers: of("buyers", Role::Buyer),
            provider: Caller::new(of("provider", Role::Provider), INTERNAL_PEER),
        })
    }

    /// The till of the embedded engine, for a thread that speaks for many connections; none for other engines.
    pub fn embedded(&self) -> Option<&Arc<Embedded>> {
        self.embedded.as_ref()
    }

    /// The engine, for what the server itself does beside the protocols: the box office opens over it.
    pub fn own_engine(&self) -> Arc<dyn Engine> {
        self.engine.clone()
    }

    /// The engine, for whoever has a pass.
    pub fn engine(&self, _: &Pass) -> &Arc<dyn Engine> {
        &self.engine
    }

    /// Opens the box office. Once: a second one is not taken.
    pub fn open_boxoffice(&self, boxoffice: Arc<BoxOffice>) -> bool {
        self.boxoffice.set(boxoffice).is_ok()
    }

    /// The box office, for whoever has a pass.
    ///
    /// # Errors
    ///
    /// There is none.
    pub fn boxoffice(&self, _: &Pass) -> Result<&Arc<BoxOffice>, Denial> {
        self.boxoffice.get().ok_or_else(no_boxoffice)
    }

    /// What everybody may know of the box office: whether it is a demo, and where a page begins.
    pub fn boxoffice_info(&self) -> Option<PublicInfo> {
        self.boxoffice.get().map(|boxoffice| boxoffice.public_info())
    }

    /// What proves that a message is the payment provider's.
    pub fn provider_secrets(&self) -> Option<&leasehold_boxoffice::sign::Secrets> {
        self.boxoffice.get().and_then(|boxoffice| boxoffice.provider_secrets())
    }

    /// HTTP listens on this port. Once: a second one is not taken.
    pub fn set_http_port(&self, port: u16) {
        let _ = self.http_port.set(port);
    }

    /// Finishes what is under way and closes the engine.
    ///
    /// # Errors
    ///
    /// What the ledger or the engine says when it could not finish.
    pub async fn close(&self) -> Result<(), Denial> {
        // The ledger first: what it still writes may release leases.
        let ledger = match self.boxoffice.get() {
            Some(boxoffice) => boxoffice.office().close().await.map_err(Denial::Office),
            None => Ok(()),
        };
        self.engine.close().await.map_err(Denial::Engine).and(ledger)
    }

    /// The clock the server counts by.
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

/// An engine that was opened.
pub enum ServedEngine {
    /// The embedded one, which has a till.
    Embedded(Arc<Embedded>),
    /// Any other. What it is asked for is held to these limits here: it has limits of its own, and does not know ours.
    Other(Arc<dyn Engine>, Limits),
}
