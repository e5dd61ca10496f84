//! Leases: acquire, renew, release, revoke; inspect, list and watch resources.

use std::sync::Arc;
use std::time::Duration;

use leasehold::Error;
use leasehold::engine::{Claim, EventId, Grant, LeaseId, Query, Renewal, Resource, Token};
use leasehold_core::{Acquire, RequestId, Secret, WaiterId, Want};
use leasehold_support::duration::millis;
use tracing::Instrument as _;

use super::metrics::AcquireOutcome;
use super::pass::Caller;
use super::watch::Watcher;
use super::{Denial, Service, Verb};

impl Service {
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
}
