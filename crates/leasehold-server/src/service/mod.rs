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

pub mod audit;
pub mod connection_limit;
pub mod denial;
pub mod keys;
pub mod metrics;
pub mod pass;
pub mod rate;
pub mod verb;
pub mod watch;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::boxoffice::BoxOffice;
use leasehold::Error;
use leasehold::clock::{Clock, Time};
use leasehold::engine::embedded::Embedded;
use leasehold::engine::{Claim, Engine, EventId, Grant, Key, LeaseId, Promises, Push, Query, Renewal, Resource, Token};
use leasehold_boxoffice::ticket;
use leasehold_core::{Acquire, Limits, RequestId, Secret, WaiterId, Want};
use leasehold_support::duration::millis;

use tracing::Instrument as _;

use audit::Audit;
pub use denial::Denial;
use keys::KeyRing;
pub use keys::{Principal, Role, Roles};
use metrics::{AcquireOutcome, Rates, ServiceMetrics};
pub use pass::{Caller, Pass, PeerAddress};
use rate::FailedAuthLimiter;
pub use verb::Verb;
use watch::Watcher;

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
    /// A service over an engine that is open.
    pub fn new(engine: OpenedEngine, keys: Arc<KeyRing>, audit: Audit, clock: Arc<dyn Clock>) -> Arc<Self> {
        let (engine, embedded, limits) = match engine {
            OpenedEngine::Embedded(engine) => (engine.clone() as Arc<dyn Engine>, Some(engine), None),
            OpenedEngine::Other(engine, limits) => (engine, None, Some(limits)),
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

    /// Who is asking. Without a key: everybody, if the server has no keys; nobody otherwise.
    ///
    /// # Errors
    ///
    /// [`Denial::Unauthorized`] for a key that is missing, wrong or revoked; [`Denial::Slow`] for one wrong key too
    /// many from one address. A right key is never slowed down by others' wrong ones.
    pub fn authenticate(&self, key: Option<&str>, peer: PeerAddress) -> Result<Caller, Denial> {
        if let Some(ticket) = key.filter(|key| ticket::looks_like(key)) {
            return self.authenticate_ticket(ticket, peer);
        }
        let principal = match key {
            Some(key) => self.keys.find(key),
            None => self.keys.anybody(),
        };
        match principal {
            Some(principal) => Ok(Caller::new(principal, peer)),
            None => {
                self.metrics.record_denial();
                Err(self.refuse_credentials(key.is_some(), peer))
            }
        }
    }

    fn authenticate_ticket(&self, shown: &str, peer: PeerAddress) -> Result<Caller, Denial> {
        let checked =
            self.boxoffice.get().ok_or(ticket::Invalid::Forged).and_then(|boxoffice| boxoffice.check_ticket(shown));
        match checked {
            Ok(ticket) => Ok(Caller::new(self.buyers.clone(), peer).with_ticket(ticket)),
            Err(ticket::Invalid::Expired) => {
                self.metrics.record_denial();
                Err(Denial::Ticket(ticket::Invalid::Expired))
            }
            Err(forged) => {
                self.metrics.record_denial();
                Err(match self.refuse_credentials(true, peer) {
                    Denial::Unauthorized => Denial::Ticket(forged),
                    slow => slow,
                })
            }
        }
    }

    /// The payment provider, whose signature was found right.
    pub const fn provider(&self) -> &Caller {
        &self.provider
    }

    /// Who somebody is that has not shown a key yet: nobody, on a server with keys, and that is no offence.
    pub fn anonymous_caller(&self, peer: PeerAddress) -> Option<Caller> {
        self.keys.anybody().map(|principal| Caller::new(principal, peer))
    }

    fn refuse_credentials(&self, showed_a_key: bool, peer: PeerAddress) -> Denial {
        if !showed_a_key {
            return Denial::Unauthorized;
        }
        if !self.failed_auths.try_take(peer.0.ip(), self.clock.now()) {
            return Denial::Slow("too many wrong keys from this address: slow down".into());
        }
        // Written down only as often as it is allowed: a stranger does not fill the disk with our log.
        self.audit.wrong_key(peer);
        Denial::Unauthorized
    }

    /// A caller of our own making, who passes the same gate as everybody.
    pub fn internal_caller(&self, principal: Principal) -> Caller {
        Caller::new(Arc::new(principal), INTERNAL_PEER)
    }

    /// The one gate: may this caller do this, to these resources, now? Who may touch every name need only show those
    /// that [`Self::is_reserved`].
    ///
    /// # Errors
    ///
    /// Why not.
    pub fn authorize(&self, caller: &Caller, verb: Verb, names: &[&str]) -> Result<Pass, Denial> {
        let denied = self.keys.check(&caller.principal, verb, names);
        let denied = denied.or_else(|| self.check_reserved_names(verb, names)).or_else(|| self.check_rate(caller));
        if let Some(denial) = denied {
            self.metrics.record_denial();
            return Err(denial);
        }
        self.metrics.record_call(verb);
        Ok(Pass::new(verb))
    }

    /// Whether a lease of this name could be one of the box office's: see [`Self::authorize`].
    pub fn is_reserved(name: &str) -> bool {
        RESERVED_NAME_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    }

    /// The box office takes its leases without asking here. From anybody else they would be seats that nobody can buy,
    /// or a sweeper that never sweeps.
    fn check_reserved_names(&self, verb: Verb, names: &[&str]) -> Option<Denial> {
        let reserved = verb.takes_by_name() && names.iter().any(|name| Self::is_reserved(name));
        let [seats, chores] = RESERVED_NAME_PREFIXES;
        (reserved && self.boxoffice.get().is_some()).then(|| {
            Denial::Forbidden(format!("names that begin with {seats} or {chores} are taken by the box office alone"))
        })
    }

    fn check_rate(&self, caller: &Caller) -> Option<Denial> {
        let free = caller.principal.rate.as_ref().is_none_or(|rate| rate.try_take(self.clock.now()));
        (!free).then(|| Denial::Slow("too many requests for this key: slow down".into()))
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
    pub fn boxoffice_info(&self) -> Option<crate::boxoffice::PublicInfo> {
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

    /// Takes resources, all or none.
    ///
    /// # Errors
    ///
    /// The gate's no, or the engine's.
    pub async fn acquire(&self, caller: &Caller, claim: Claim) -> Result<Grant, Denial> {
        let names: Vec<&str> = claim.wants.iter().map(|want| want.name.as_str()).collect();
        let pass = self.authorize(caller, Verb::Acquire, &names)?;
        let claim = Claim { principal: caller.principal.id.clone(), ..claim };
        self.check_limits(&claim)?;
        let began = self.clock.now();
        let answer = tokio::select! {
            biased;
            answer = self.engine(&pass).acquire(claim).instrument(pass.span(caller)) => answer,
            // It leaves the queue with the dropped future: a revoked key is not handed a lease later.
            () = caller.principal.gone() => {
                self.metrics.record_refusal(AcquireOutcome::Left);
                return Err(Denial::Unauthorized);
            }
        };
        self.metrics.record_acquire(&answer, self.clock.now().since(began));
        answer.map_err(Denial::Engine)
    }

    /// Refuses a claim that is more than this server gives, where the engine does not see to that.
    fn check_limits(&self, claim: &Claim) -> Result<(), Denial> {
        let Some(limits) = &self.limits else { return Ok(()) };
        let wants: Vec<Want<'_>> = claim.wants.iter().map(|want| Want { name: &want.name, mode: want.mode }).collect();
        let asked = Acquire {
            waiter_id: WaiterId(0),
            wants: &wants,
            ttl_ms: millis(claim.ttl),
            wait_ms: millis(claim.wait),
            max_hold_ms: claim.max_hold.map(millis),
            delay_ms: millis(claim.delay),
            holder: &claim.holder,
            request: claim.request.as_deref().map(|id| RequestId { scope: &claim.principal, id }),
            secret: Secret::new([0; 16]),
            principal: &claim.principal,
            value: None,
        };
        limits.check(&asked).map_err(|sentence| Denial::Engine(Error::Invalid(sentence)))
    }

    /// Pushes the end of a lease.
    ///
    /// # Errors
    ///
    /// The gate's no, or the engine's.
    pub async fn renew(&self, caller: &Caller, lease: &LeaseId, ttl: Option<Duration>) -> Result<Renewal, Denial> {
        let pass = self.authorize(caller, Verb::Renew, &[])?;
        if let (Some(limits), Some(ttl)) = (&self.limits, ttl) {
            limits.check_ttl(millis(ttl)).map_err(|sentence| Denial::Engine(Error::Invalid(sentence)))?;
        }
        let answer = self.engine(&pass).renew(lease, ttl).instrument(pass.span(caller)).await;
        self.metrics.record_renewal(&answer);
        self.check_guessing(caller, &answer)?;
        answer.map_err(Denial::Engine)
    }

    /// Ends a lease.
    ///
    /// # Errors
    ///
    /// The gate's no, or the engine's.
    pub async fn release(&self, caller: &Caller, lease: &LeaseId) -> Result<bool, Denial> {
        let pass = self.authorize(caller, Verb::Release, &[])?;
        let answer = self.engine(&pass).release(lease).instrument(pass.span(caller)).await;
        self.check_guessing(caller, &answer)?;
        answer.map_err(Denial::Engine)
    }

    /// Whoever shows lease ids that we do not know, again and again, is guessing.
    ///
    /// # Errors
    ///
    /// [`Denial::Slow`] when that has become too much.
    pub fn check_guessing<T>(&self, caller: &Caller, answer: &Result<T, Error>) -> Result<(), Denial> {
        let unknown = matches!(answer, Err(Error::Refused(leasehold::Refusal::NotHeld)));
        if unknown && !self.may_guess(caller) {
            return Err(Denial::Slow("too many lease ids that are not known: slow down".into()));
        }
        Ok(())
    }

    /// Whether this caller may show one more lease id that is not known.
    pub fn may_guess(&self, caller: &Caller) -> bool {
        caller.principal.guesses.try_take(self.clock.now())
    }

    /// Ends every lease on a resource, by an operator's order.
    ///
    /// # Errors
    ///
    /// The gate's no, or the engine's.
    pub async fn revoke(&self, caller: &Caller, name: &str, reason: &str) -> Result<usize, Denial> {
        let pass = self.authorize(caller, Verb::Revoke, &[name])?;
        let answer = self.engine(&pass).revoke(name, reason).instrument(pass.span(caller)).await;
        self.audit.revoked(caller, name, reason, &answer);
        answer.map_err(Denial::Engine)
    }

    /// Below which token none will come any more; with a token, raises that floor to it by an operator's order.
    ///
    /// # Errors
    ///
    /// The gate's no, or the engine's.
    pub async fn raise_floor(&self, caller: &Caller, floor: Option<Token>) -> Result<Token, Denial> {
        let pass = self.authorize(caller, if floor.is_some() { Verb::RaiseFloor } else { Verb::Floor }, &[])?;
        let answer = self.engine(&pass).raise_floor(floor).instrument(pass.span(caller)).await;
        if let Some(floor) = floor {
            self.audit.raised(caller, floor, &answer);
        }
        answer.map_err(Denial::Engine)
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

    /// What is known of one resource.
    ///
    /// # Errors
    ///
    /// The gate's no, or the engine's.
    pub async fn inspect(&self, caller: &Caller, name: &str) -> Result<Option<Resource>, Denial> {
        let pass = self.authorize(caller, Verb::Inspect, &[name])?;
        self.engine(&pass).inspect(name).instrument(pass.span(caller)).await.map_err(Denial::Engine)
    }

    /// Resources in use, in order of name: those the caller may see. Only an empty page is the end.
    ///
    /// # Errors
    ///
    /// The gate's no, or the engine's.
    pub async fn list(&self, caller: &Caller, query: Query) -> Result<Vec<Resource>, Denial> {
        let pass = self.authorize(caller, Verb::List, &[])?;
        let mut found = Vec::new();
        for prefix in caller.principal.seen_under(&query.prefix) {
            let limit = query.limit - found.len();
            let page = Query { prefix, after: query.after.clone(), limit };
            found.extend(self.engine(&pass).list(page).instrument(pass.span(caller)).await.map_err(Denial::Engine)?);
            if found.len() >= query.limit {
                break;
            }
        }
        Ok(found)
    }

    /// What happens from here on, under a prefix: what the caller may see of it.
    ///
    /// # Errors
    ///
    /// The gate's no, or the engine's.
    pub async fn watch(
        self: &Arc<Self>,
        caller: &Caller,
        prefix: String,
        since: Option<EventId>,
    ) -> Result<Watcher, Denial> {
        let pass = self.authorize(caller, Verb::Watch, &[])?;
        let stream = self.engine(&pass).watch(since).await.map_err(Denial::Engine)?;
        Ok(Watcher::new(self.clone(), caller.clone(), prefix, since, stream))
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

    /// Takes names as Redis keys.
    ///
    /// # Errors
    ///
    /// The gate's no, or the engine's.
    pub async fn set_key(&self, caller: &Caller, claim: Claim, value: &[u8]) -> Result<Grant, Denial> {
        let names: Vec<&str> = claim.wants.iter().map(|want| want.name.as_str()).collect();
        let pass = self.authorize(caller, Verb::SetKey, &names)?;
        let claim = Claim { principal: caller.principal.id.clone(), ..claim };
        let answer = self.redis_keys(&pass)?.set(claim, value).instrument(pass.span(caller)).await;
        self.metrics.record_acquire(&answer, Duration::ZERO);
        answer.map_err(Denial::Engine)
    }

    /// A name as a Redis key.
    ///
    /// # Errors
    ///
    /// The gate's no, or the engine's.
    pub async fn get_key(&self, caller: &Caller, name: &str) -> Result<Option<Key>, Denial> {
        let pass = self.authorize(caller, Verb::GetKey, &[name])?;
        self.redis_keys(&pass)?.get(name).await.map_err(Denial::Engine)
    }

    /// Frees Redis keys. Without a value nobody proved to own them: that is written down.
    ///
    /// # Errors
    ///
    /// The gate's no, or the engine's.
    pub async fn free_keys(&self, caller: &Caller, names: &[&str], value: Option<&[u8]>) -> Result<usize, Denial> {
        let pass = self.authorize(caller, Verb::FreeKey, names)?;
        let answer = self.redis_keys(&pass)?.free(names, value).await;
        if value.is_none() {
            self.audit.freed(caller, names, &answer);
        }
        answer.map_err(Denial::Engine)
    }

    /// Pushes the end of Redis keys. Without a value nobody proved to own them: that is written down.
    ///
    /// # Errors
    ///
    /// The gate's no, or the engine's.
    pub async fn extend_keys(
        &self,
        caller: &Caller,
        names: &[&str],
        value: Option<&[u8]>,
        push: Push,
    ) -> Result<usize, Denial> {
        let pass = self.authorize(caller, Verb::ExtendKey, names)?;
        let answer = self.redis_keys(&pass)?.extend(names, value, push).await;
        if value.is_none() {
            self.audit.pushed(caller, names, &answer);
        }
        answer.map_err(Denial::Engine)
    }

    fn redis_keys(&self, pass: &Pass) -> Result<&dyn leasehold::engine::Keys, Denial> {
        let _ = pass;
        self.engine.keys().ok_or_else(|| {
            let engine = self.engine.promises().engine;
            Denial::Engine(Error::Invalid(format!(
                "Redis keys need an engine that keeps values, and {engine} does not"
            )))
        })
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

    /// Adds up what happened in the last second; called once a second.
    pub fn tick(&self) {
        self.metrics.sample_rates(self.embedded.as_ref().map(|engine| engine.tally().0));
    }

    /// The clock the server counts by.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }
}

/// What the names of the box office's own leases begin with: seats and areas, and what it does by itself.
const RESERVED_NAME_PREFIXES: [&str; 2] = ["box/", "boxoffice-"];

/// Where we ourselves come from.
const INTERNAL_PEER: PeerAddress =
    PeerAddress(std::net::SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0));

fn no_boxoffice() -> Denial {
    Denial::Office(leasehold_boxoffice::Error::Unavailable {
        part: "this server",
        attempt: "asking the box office".into(),
        source: "it was started without a ledger (ledger = \"none\")".into(),
    })
}

/// An engine that was opened.
pub enum OpenedEngine {
    /// The embedded one, which has a till.
    Embedded(Arc<Embedded>),
    /// Any other. What it is asked for is held to these limits here: it has limits of its own, and does not know ours.
    Other(Arc<dyn Engine>, Limits),
}
