//! Single flight: when a cached value expires, one process computes it, and the others wait or take the old one.
//!
//! ```text
//!   get ──▶ cache ── fresh ──▶ value
//!             │ old, or none
//!             ▼
//!   one flight per key here ──▶ lease flight/KEY over the fleet ── granted ──▶ compute, put, release
//!                                        │ held by another
//!                                        ▼
//!                       the old value, else wait (shared) and look again
//! ```
//!
//! # Laws
//!
//! 1. A get is answered. Whatever fails beside it (the engine, another's computation, the wait), the caller computes.
//! 2. While the engine answers and computations end in time, one process of the fleet computes a key at a time.
//! 3. A value older than what `stale_ok` allows is never returned.
//!
//! # Not promised
//!
//! That two never compute at once: a lease for efficiency guards it, without a fence. A computation must bear it.
//!
//! # Early refresh
//!
//! Shortly before a value expires, a get may compute it anew while the others still hit. When that is due is drawn by
//! chance for each get, as `age - computed_in * ln(random) >= ttl` (Vattani, Chierichetti, Lowenstein: Optimal
//! Probabilistic Cache Stampede Prevention, 2015), and only one that gets the lease at once does it.

mod cache;
mod landing;
#[cfg(test)]
mod tests;

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::Time;
use tokio::runtime::Handle;

use super::counters::{FlightOutcome, count_flight};
use crate::acquire::Acquire;
use crate::client::Leasehold;
use crate::clock::{Clock, random_fraction, until};
use crate::error::{Error, Refusal};
use crate::lease::Lease;
pub use cache::{Cache, CachedValue, MemoryCache};
use landing::{Landing, Landings, Place};

/// Names of flights begin with this, as resources.
pub const RESOURCE_PREFIX: &str = "flight/";

/// The lease when nobody knows how long the computation takes.
const FIRST_LEASE_TTL: Duration = Duration::from_secs(30);
/// The lease lives so many times the last computation, within these bounds. It renews itself meanwhile.
const LEASE_PER_COMPUTATION: u32 = 3;
const SHORTEST_LEASE_TTL: Duration = Duration::from_millis(500);
const LONGEST_LEASE_TTL: Duration = Duration::from_secs(60);
/// How long a loser waits for another's computation, if nothing is said.
const DEFAULT_PATIENCE: Duration = Duration::from_secs(30);
/// How long the engine may take to say yes or no before the value is computed without it.
const ENGINE_PATIENCE: Duration = Duration::from_secs(2);
/// How often to look into the cache where the engine has no shared leases: from half of it to all of it.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Computes each key once at a time, over a fleet. Cheap to clone; clones share their flights.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use leasehold::recipe::flight::{Flights, MemoryCache};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let leasehold = leasehold::Leasehold::open(&format!("embedded:{}", dir.path().display())).await?;
/// # async fn render(page: u32) -> Result<String, std::io::Error> { Ok(format!("page {page}")) }
/// let flights = Flights::new(leasehold, MemoryCache::new());
///
/// let minute = Duration::from_secs(60);
/// let page = flights.get("page:7", minute, async || render(7).await).stale_ok(5 * minute).await?;
/// assert_eq!(page, "page 7");
/// # Ok(())
/// # }
/// ```
pub struct Flights<C: Cache> {
    shared: Arc<FlightsShared<C>>,
}

struct FlightsShared<C: Cache> {
    leasehold: Leasehold,
    cache: C,
    landings: Arc<Landings<C::Value>>,
    /// Draws from `(0, 1]`. A test has a function of its own.
    chance: fn() -> f64,
}

impl<C: Cache> Clone for Flights<C> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<C: Cache> fmt::Debug for Flights<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flights").field("leasehold", &self.shared.leasehold).finish_non_exhaustive()
    }
}

impl<C: Cache> Flights<C> {
    /// Guards this cache by leases of this engine.
    #[must_use]
    pub fn new(leasehold: Leasehold, cache: C) -> Self {
        Self::with_chance(leasehold, cache, random_fraction)
    }

    fn with_chance(leasehold: Leasehold, cache: C, chance: fn() -> f64) -> Self {
        let shared = FlightsShared { leasehold, cache, landings: Landings::new(), chance };
        Self { shared: Arc::new(shared) }
    }

    /// The value of a key: from the cache while it is younger than `ttl`, else computed by one of those who ask.
    pub fn get<'a, F, Fut, E>(&'a self, key: impl Into<String>, ttl: Duration, compute: F) -> FlightGet<'a, C, F>
    where
        F: FnOnce() -> Fut + Send + 'a,
        Fut: Future<Output = Result<C::Value, E>> + Send + 'a,
    {
        let plan = GetPlan { key: key.into(), ttl, stale_ok: Duration::ZERO, patience: DEFAULT_PATIENCE };
        FlightGet { shared: &self.shared, plan, compute }
    }
}

/// A get being put together. Await it.
#[must_use = "nothing is asked until it is awaited"]
pub struct FlightGet<'a, C: Cache, F> {
    shared: &'a FlightsShared<C>,
    plan: GetPlan,
    compute: F,
}

impl<C: Cache, F> fmt::Debug for FlightGet<'_, C, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlightGet").field("plan", &self.plan).finish_non_exhaustive()
    }
}

/// What is asked for.
#[derive(Clone, Debug)]
struct GetPlan {
    key: String,
    ttl: Duration,
    stale_ok: Duration,
    patience: Duration,
}

impl<C: Cache, F> FlightGet<'_, C, F> {
    /// How long after its ttl an old value may be returned while another computes. Default: not at all.
    pub fn stale_ok(mut self, span: Duration) -> Self {
        self.plan.stale_ok = span;
        self
    }

    /// How long to wait for another's computation before computing it beside that one. Default: 30 s.
    pub fn patience(mut self, span: Duration) -> Self {
        self.plan.patience = span;
        self
    }
}

impl<'a, C, F, Fut, E> IntoFuture for FlightGet<'a, C, F>
where
    C: Cache,
    F: FnOnce() -> Fut + Send + 'a,
    Fut: Future<Output = Result<C::Value, E>> + Send + 'a,
    E: Send + 'a,
{
    /// The error is that of the computation: nothing else makes a get fail. If a fresh value was to be refreshed early, a
    /// failed computation is none: the fresh value is returned.
    type Output = Result<C::Value, E>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { shared, plan, compute } = self;
            let (outcome, value) = match shared.find_way(&plan).await {
                Way::Have(outcome, value) => (outcome, Ok(value)),
                Way::Compute(mut permit) => {
                    let (outcome, fresh) = (permit.outcome, permit.fresh.take());
                    match (shared.compute(&plan, permit, compute).await, fresh) {
                        (Err(_), Some(fresh)) => (FlightOutcome::Hit, Ok(fresh)),
                        (computed, _) => (outcome, computed),
                    }
                }
            };
            count_flight(outcome);
            value
        })
    }
}

/// How a get comes to its value.
enum Way<V: Clone + Send + Sync + 'static> {
    Have(FlightOutcome, V),
    Compute(Permit<V>),
}

/// The right to compute: the place in this process, and the lease over the fleet where it could be had.
struct Permit<V: Clone + Send + Sync + 'static> {
    outcome: FlightOutcome,
    landing: Option<Landing<V>>,
    lease: Option<FlightLease>,
    /// A fresh value that is refreshed early: it is good if the computation fails.
    fresh: Option<V>,
}

/// What the engine says to one who wants to compute.
enum EngineSays {
    Granted(FlightLease),
    Held,
    /// It cannot be asked, or refuses for another reason: it guards nothing.
    Away,
}

/// What came of a wait for another's computation.
enum AfterWait<V: Clone + Send + Sync + 'static> {
    Found(Way<V>),
    /// It ended without a value. All who waited know that, so each asks for the lease in line: if each only tried, the
    /// shared leases of the others would refuse it, again and again.
    Failed,
    /// The engine cannot tell.
    NotYet,
}

/// What the cache has, judged by the plan.
enum CacheLook<V> {
    Fresh(CachedValue<V>),
    Stale(CachedValue<V>),
    Nothing,
}

impl<C: Cache> FlightsShared<C> {
    /// Looks, waits and asks, until there is a value or a permit.
    async fn find_way(&self, plan: &GetPlan) -> Way<C::Value> {
        let clock = &*self.leasehold.clock;
        let give_up = clock.now().plus(plan.patience);
        let (mut waited, mut in_line) = (false, false);
        loop {
            // A fresh value that is to be refreshed.
            let mut early: Option<CachedValue<C::Value>> = None;
            let old = match self.look(plan).await {
                CacheLook::Fresh(fresh) if waited => return Way::Have(FlightOutcome::Waited, fresh.value),
                CacheLook::Fresh(fresh) if !self.is_due_early(&fresh, plan.ttl) => {
                    return Way::Have(FlightOutcome::Hit, fresh.value);
                }
                CacheLook::Fresh(fresh) => {
                    early = Some(fresh.clone());
                    Some((FlightOutcome::Hit, fresh))
                }
                CacheLook::Stale(stale) => Some((FlightOutcome::Stale, stale)),
                CacheLook::Nothing => None,
            };
            let landing = match (self.landings.enter(&plan.key), &old) {
                (Place::First(landing), _) => landing,
                (Place::Behind(_), Some((outcome, old))) => return Way::Have(*outcome, old.value.clone()),
                (Place::Behind(landed), None) => match until(clock, give_up, landed.value()).await {
                    Some(Some(value)) => return Way::Have(FlightOutcome::Waited, value),
                    // That one failed: whoever is next tries.
                    Some(None) => continue,
                    None => return Way::Compute(Permit::unguarded(None)),
                },
            };
            let last = old.as_ref().map(|(_, old)| old.computed_in);
            let wait = if in_line { give_up.since(clock.now()) } else { Duration::ZERO };
            match (self.ask_alone(&plan.key, last, wait).await, old) {
                (EngineSays::Granted(lease), _) => return self.look_again(plan, early, landing, lease).await,
                (EngineSays::Held, Some((outcome, old))) => return Way::Have(outcome, old.value),
                (EngineSays::Away, Some((FlightOutcome::Hit, old))) => return Way::Have(FlightOutcome::Hit, old.value),
                (EngineSays::Away, _) => return Way::Compute(Permit::unguarded(Some(landing))),
                (EngineSays::Held, None) => {}
            }
            waited = true;
            match self.wait_for_another(plan, give_up, landing).await {
                AfterWait::Found(way) => return way,
                AfterWait::Failed => in_line = true,
                AfterWait::NotYet => {}
            }
        }
    }

    async fn look(&self, plan: &GetPlan) -> CacheLook<C::Value> {
        match self.cache.get(&plan.key).await {
            Some(cached) if cached.age < plan.ttl => CacheLook::Fresh(cached),
            Some(cached) if cached.age < plan.ttl.saturating_add(plan.stale_ok) => CacheLook::Stale(cached),
            _ => CacheLook::Nothing,
        }
    }

    /// Under the lease: another may have put the value between our look and the grant.
    async fn look_again(
        &self,
        plan: &GetPlan,
        early: Option<CachedValue<C::Value>>,
        landing: Landing<C::Value>,
        lease: FlightLease,
    ) -> Way<C::Value> {
        if let CacheLook::Fresh(cached) = self.look(plan).await
            && early.as_ref().is_none_or(|early| cached.age < early.age)
        {
            landing.land(cached.value.clone());
            lease.release().await;
            return Way::Have(FlightOutcome::Waited, cached.value);
        }
        let outcome = if early.is_some() { FlightOutcome::Refreshed } else { FlightOutcome::Computed };
        let fresh = early.map(|early| early.value);
        Way::Compute(Permit { outcome, landing: Some(landing), lease: Some(lease), fresh })
    }

    /// Waits until the one that computes has ended, and hands its value to those behind us in this process.
    async fn wait_for_another(&self, plan: &GetPlan, give_up: Time, landing: Landing<C::Value>) -> AfterWait<C::Value> {
        let clock = &*self.leasehold.clock;
        // All who wait are granted together when the one ends.
        let claim = self.claim(&plan.key).ttl(SHORTEST_LEASE_TTL).shared().wait(give_up.since(clock.now()));
        let (mut guarded, mut ended) = (true, true);
        match until(clock, give_up, claim.grant()).await {
            Some(Ok(grant)) => {
                let patience = clock.now().plus(ENGINE_PATIENCE);
                let _ = until(clock, patience, self.leasehold.release(&grant.lease_id)).await;
            }
            // An engine without shared leases: look into the cache now and then.
            Some(Err(Error::Invalid(_))) => {
                let pause = LOOK_EVERY.mul_f64(0.5 + (self.chance)() / 2.0);
                clock.sleep_until(clock.now().plus(pause).min(give_up)).await;
                ended = false;
            }
            Some(Err(_)) | None => guarded = false,
        }
        if let CacheLook::Fresh(cached) = self.look(plan).await {
            landing.land(cached.value.clone());
            return AfterWait::Found(Way::Have(FlightOutcome::Waited, cached.value));
        }
        if !guarded || clock.now() >= give_up {
            return AfterWait::Found(Way::Compute(Permit::unguarded(Some(landing))));
        }
        if ended { AfterWait::Failed } else { AfterWait::NotYet }
    }

    /// Asks for the lease, and waits in line for it so long.
    async fn ask_alone(&self, key: &str, last: Option<Duration>, wait: Duration) -> EngineSays {
        let clock = &*self.leasehold.clock;
        let ttl = last.map_or(FIRST_LEASE_TTL, |last| {
            last.saturating_mul(LEASE_PER_COMPUTATION).clamp(SHORTEST_LEASE_TTL, LONGEST_LEASE_TTL)
        });
        let asked = self.claim(key).ttl(ttl).wait(wait).into_future();
        match until(clock, clock.now().plus(wait).plus(ENGINE_PATIENCE), asked).await {
            Some(Ok(lease)) => EngineSays::Granted(FlightLease::new(lease, self.leasehold.clock.clone())),
            Some(Err(Error::Refused(Refusal::Held { .. }))) => EngineSays::Held,
            Some(Err(_)) | None => EngineSays::Away,
        }
    }

    fn claim(&self, key: &str) -> Acquire {
        self.leasehold.acquire(format!("{RESOURCE_PREFIX}{key}"))
    }

    /// Whether this get shall compute although the value is fresh: the nearer the end, the likelier, and the earlier
    /// the longer the computation takes.
    fn is_due_early(&self, fresh: &CachedValue<C::Value>, ttl: Duration) -> bool {
        let ahead = fresh.computed_in.as_secs_f64() * -(self.chance)().ln();
        fresh.age.as_secs_f64() + ahead >= ttl.as_secs_f64()
    }

    async fn compute<F, Fut, E>(&self, plan: &GetPlan, permit: Permit<C::Value>, compute: F) -> Result<C::Value, E>
    where
        F: FnOnce() -> Fut + Send,
        Fut: Future<Output = Result<C::Value, E>> + Send,
    {
        let clock = &self.leasehold.clock;
        let began = clock.now();
        let computed = compute().await;
        if let Ok(value) = &computed {
            let cached =
                CachedValue { value: value.clone(), computed_in: clock.now().since(began), age: Duration::ZERO };
            self.cache.put(&plan.key, cached, plan.ttl.saturating_add(plan.stale_ok)).await;
            if let Some(landing) = permit.landing {
                landing.land(value.clone());
            }
        }
        // After the put: whoever is granted now finds the value.
        if let Some(lease) = permit.lease {
            lease.release().await;
        }
        computed
    }
}

impl<V: Clone + Send + Sync + 'static> Permit<V> {
    fn unguarded(landing: Option<Landing<V>>) -> Self {
        Self { outcome: FlightOutcome::Unguarded, landing, lease: None, fresh: None }
    }
}

/// The lease of one flight. A get that is dropped gives it back in the background: others wait for it.
struct FlightLease {
    lease: Option<Lease>,
    clock: Arc<dyn Clock>,
}

impl FlightLease {
    fn new(lease: Lease, clock: Arc<dyn Clock>) -> Self {
        Self { lease: Some(lease), clock }
    }

    /// If it cannot be asked for in time, the ttl ends the lease.
    async fn release(mut self) {
        if let Some(lease) = self.lease.take() {
            let _ = until(&*self.clock, self.clock.now().plus(ENGINE_PATIENCE), lease.release()).await;
        }
    }
}

impl Drop for FlightLease {
    fn drop(&mut self) {
        if let (Some(lease), Ok(runtime)) = (self.lease.take(), Handle::try_current()) {
            runtime.spawn(async move { lease.release().await });
        }
    }
}
