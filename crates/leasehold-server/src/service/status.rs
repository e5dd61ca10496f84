//! Status, readiness and metrics of the server.

use std::time::Duration;

use leasehold::Error;
use leasehold::engine::{Finding, Promises, Query, remote};
use tracing::Instrument as _;

use super::keys::Roles;
use super::metrics::{MetricsText, Rates};
use super::pass::Caller;
use super::{Denial, Service, Verb};

/// The name that is looked at to learn whether an engine answers. Nobody takes it.
const READINESS_PROBE: &str = "leasehold-readiness";

/// The status of the server, as one caller may see it.
#[derive(Clone, Debug)]
pub struct Status {
    /// The promises of the engine.
    pub promises: Promises,
    /// Leases held now; none if the engine does not say, or the caller may not see all of them.
    pub leases: Option<usize>,
    /// Claims in the queues; none likewise.
    pub waiters: Option<usize>,
    /// How long the server has run.
    pub uptime: Duration,
    /// Operations per second; none for a caller who may not see all resources.
    pub rates: Option<Rates>,
    /// Leases that lapsed or were revoked, newest first: those the caller may see.
    pub recent: Vec<leasehold::engine::Event>,
    /// Whether a key is needed.
    pub keys_needed: bool,
    /// The roles of the caller.
    pub roles: Roles,
}

/// What a client may know of the engine.
#[derive(Clone, Debug)]
pub struct EngineInfo {
    /// The promises of the engine, and its short name.
    pub promises: Promises,
    /// The identity of the engine. A front server passes on the identity of the server behind it.
    pub identity: Option<String>,
    /// What the engine found when it was examined, just now.
    pub findings: Vec<Finding>,
    /// The port of this server's HTTP listener; none if it has none.
    pub http_port: Option<u16>,
}

impl Service {
    /// The promises of the engine. No pass is needed.
    pub fn promises(&self) -> Promises {
        self.engine.promises()
    }

    /// Whether engine, ledger and store answer. Needs no pass, reveals nothing else, and is cheap.
    pub async fn ready(&self) -> Result<(), Denial> {
        self.engine_ready().await?;
        if let Some(boxoffice) = self.boxoffice.get() {
            boxoffice.ready().await.map_err(Denial::Office)?;
        }
        match self.recipes.get() {
            Some(recipes) => recipes.ready().await.map_err(Denial::Recipe),
            None => Ok(()),
        }
    }

    async fn engine_ready(&self) -> Result<(), Error> {
        if let Some(embedded) = &self.embedded {
            // A listing would scan every name under the engine's lock.
            return embedded.counts().await.map(drop);
        }
        // A key of a server behind this one may be bound to a prefix, and a list is answered under any.
        if self.engine.promises().engine == remote::PROFILE.best.engine {
            return self.engine.list(Query { prefix: "\u{10ffff}".into(), after: None, limit: 1 }).await.map(drop);
        }
        // Other engines begin to keep an index for whoever lists.
        self.engine.inspect(READINESS_PROBE).await.map(drop)
    }

    /// What a client may know of the engine.
    ///
    /// # Errors
    ///
    /// The caller may not, or the engine refused or failed.
    pub async fn engine_info(&self, caller: &Caller) -> Result<EngineInfo, Denial> {
        let pass = self.authorize(caller, Verb::Status, &[])?;
        let ask = async {
            let engine = self.engine(&pass);
            Ok((engine.identity().await?, engine.examine().await?))
        };
        let (identity, findings) = ask.instrument(pass.span(caller)).await.map_err(Denial::Engine)?;
        let http_port = self.http_port.get().copied();
        Ok(EngineInfo { promises: self.engine.promises(), identity, findings, http_port })
    }

    /// The status of the server.
    ///
    /// # Errors
    ///
    /// The caller may not.
    pub fn status(&self, caller: &Caller) -> Result<Status, Denial> {
        let _pass = self.authorize(caller, Verb::Status, &[])?;
        let embedded = self.embedded.as_ref();
        // A caller with prefixes does not see how busy others are.
        let sees_all = caller.principal.prefixes.is_empty();
        let counts = embedded.filter(|_| sees_all).map(|engine| engine.tally().2);
        let sees = |name: &str| caller.principal.sees(name);
        let mut recent = embedded.map_or_else(Vec::new, |engine| engine.recent_losses(100, sees));
        // A lease over several resources is shown with those that the caller may see.
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

    /// Every metric, in the text format of Prometheus.
    ///
    /// # Errors
    ///
    /// The caller may not.
    pub async fn metrics(&self, caller: &Caller) -> Result<String, Denial> {
        let _pass = self.authorize(caller, Verb::Metrics, &[])?;
        let office = match self.boxoffice.get() {
            Some(boxoffice) => Some(boxoffice.metrics().await),
            None => None,
        };
        let mut text = self.metrics.render_text(self.embedded.as_ref().map(|engine| engine.tally()), office.as_ref());
        let mut page = MetricsText::default();
        page.push_recipe_counters();
        if let Some(recipes) = self.recipes.get() {
            let (depths, overdue) = tokio::join!(recipes.depths(), recipes.overdue_schedules());
            page.push_recipe_metrics(&recipes.counts, depths.as_deref(), overdue);
        }
        text.push_str(&page.text);
        Ok(text)
    }

    /// Updates the rates; called once a second.
    pub fn tick(&self) {
        self.metrics.sample_rates(self.embedded.as_ref().map(|engine| engine.tally().0));
    }
}
