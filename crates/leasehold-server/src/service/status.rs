//! Status, readiness and metrics of the server.

use std::time::Duration;

use leasehold::Error;
use leasehold::engine::{Promises, Query};
use tracing::Instrument as _;

use super::keys::Roles;
use super::metrics::Rates;
use super::pass::Caller;
use super::{Denial, Service, Verb};

/// What the server says of itself.
#[derive(Clone, Debug)]
pub struct Status {
    /// What the engine swears to.
    pub promises: Promises,
    /// Leases that are somebody's; none if the engine does not say, or the caller may not see all of them.
    pub leases: Option<usize>,
    /// Claims in line; none likewise.
    pub waiters: Option<usize>,
    /// How long the server has run.
    pub uptime: Duration,
    /// How much happens per second; none for a caller who may not see all of it.
    pub rates: Option<Rates>,
    /// Leases that lapsed or were revoked, newest first: those the caller may see.
    pub recent: Vec<leasehold::engine::Event>,
    /// Whether a key is needed.
    pub keys_needed: bool,
    /// What the caller may do.
    pub roles: Roles,
}

/// What the server says of its engine.
#[derive(Clone, Debug)]
pub struct EngineInfo {
    /// What the engine swears to, and its short name.
    pub promises: Promises,
    /// The engine's own: a server before another says what that one says.
    pub identity: Option<String>,
    /// The port of this server's HTTP listener; none if it has none.
    pub http_port: Option<u16>,
}

impl Service {
    /// What the engine swears to. Everybody may know.
    pub fn promises(&self) -> Promises {
        self.engine.promises()
    }

    /// Whether the engine answers. Reveals nothing else, and costs little: anybody may ask, as often as they like.
    pub async fn ready(&self) -> Result<(), Denial> {
        self.engine_ready().await?;
        match self.boxoffice.get() {
            Some(boxoffice) => boxoffice.ready().await.map_err(Denial::Office),
            None => Ok(()),
        }
    }

    async fn engine_ready(&self) -> Result<(), Error> {
        if let Some(embedded) = &self.embedded {
            // A listing would look at every name there is, under the lock that all grants take.
            return embedded.counts().await.map(drop);
        }
        self.engine.list(Query { prefix: "\u{10ffff}".into(), after: None, limit: 1 }).await.map(drop)
    }

    /// What the server says of its engine.
    ///
    /// # Errors
    ///
    /// The gate's no, or the engine's.
    pub async fn engine_info(&self, caller: &Caller) -> Result<EngineInfo, Denial> {
        let pass = self.authorize(caller, Verb::Status, &[])?;
        let identity = self.engine(&pass).identity().instrument(pass.span(caller)).await.map_err(Denial::Engine)?;
        Ok(EngineInfo { promises: self.engine.promises(), identity, http_port: self.http_port.get().copied() })
    }

    /// What the server says of itself.
    ///
    /// # Errors
    ///
    /// The gate's no.
    pub fn status(&self, caller: &Caller) -> Result<Status, Denial> {
        let _pass = self.authorize(caller, Verb::Status, &[])?;
        let embedded = self.embedded.as_ref();
        // How busy others are is not theirs to see who see only some of the names.
        let sees_all = caller.principal.prefixes.is_empty();
        let counts = embedded.filter(|_| sees_all).map(|engine| engine.tally().2);
        let sees = |name: &str| caller.principal.sees(name);
        let mut recent = embedded.map_or_else(Vec::new, |engine| engine.recent_losses(100, sees));
        // A lease over several resources is told of with those that may be seen.
        recent.iter_mut().for_each(|event| event.resources.retain(|name| sees(name)));
        Ok(Status {
            promises: self.engine.promises(),
            leases: counts.map(|counts| counts.leases),
            waiters: counts.map(|counts| counts.waiters),
            uptime: self.clock.now().since(self.started),
            rates: sees_all.then(|| self.metrics.rates()),
            recent,
            keys_needed: self.keys.are_needed(),
            roles: caller.principal.roles,
        })
    }

    /// Every metric, as Prometheus reads it.
    ///
    /// # Errors
    ///
    /// The gate's no.
    pub async fn metrics(&self, caller: &Caller) -> Result<String, Denial> {
        let _pass = self.authorize(caller, Verb::Metrics, &[])?;
        let office = match self.boxoffice.get() {
            Some(boxoffice) => Some(boxoffice.metrics().await),
            None => None,
        };
        Ok(self.metrics.render(self.embedded.as_ref().map(|engine| engine.tally()), office.as_ref()))
    }

    /// Adds up what happened in the last second; called once a second.
    pub fn tick(&self) {
        self.metrics.sample_rates(self.embedded.as_ref().map(|engine| engine.tally().0));
    }
}
