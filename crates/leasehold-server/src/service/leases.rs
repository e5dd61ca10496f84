//! Leases: acquire, renew, release, revoke; inspect, list and watch resources.

use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::Time;
use leasehold::engine::{Claim, EventId, Grant, LeaseId, Query, Renewal, Resource, Token};
use leasehold::{Error, Refusal};
use leasehold_core::{Acquire, RequestId, Secret, WaiterId, Want};
use leasehold_support::duration::millis;
use tracing::Instrument as _;

use super::metrics::AcquireOutcome;
use super::pass::Caller;
use super::quota::WaiterPlace;
use super::watch::Watcher;
use super::{Denial, Service, Verb};

impl Service {
    /// Acquires resources, all or none.
    ///
    /// # Errors
    ///
    /// The caller may not, or the engine refused or failed.
    pub async fn acquire(&self, caller: &Caller, claim: Claim) -> Result<Grant, Denial> {
        let names: Vec<&str> = claim.wants.iter().map(|want| want.name.as_str()).collect();
        let pass = self.authorize(caller, Verb::Acquire, &names)?;
        let claim = Claim { principal: caller.principal.id.clone(), ..claim };
        self.check_limits(&claim)?;
        let began = self.clock.now();
        let _place = match self.check_quota(&claim, began) {
            Ok(place) => place,
            Err(refusal) => {
                let answer = Err(Error::Refused(refusal));
                self.metrics.record_acquire(&answer, Duration::ZERO);
                return answer.map_err(Denial::Engine);
            }
        };
        let answer = tokio::select! {
            biased;
            answer = self.engine(&pass).acquire(claim).instrument(pass.span(caller)) => answer,
            // Dropping the future removes the claim from the queue: a revoked key gets no lease later.
            () = caller.principal.until_revoked() => {
                self.metrics.record_refusal(AcquireOutcome::Left);
                return Err(Denial::Unauthorized);
            }
        };
        self.metrics.record_acquire(&answer, self.clock.now().since(began));
        if let (Some(quota), Ok(grant)) = (&self.quota, &answer) {
            quota.record_grant(&caller.principal.id, &grant.lease_id, grant.remaining, began);
        }
        answer.map_err(Denial::Engine)
    }

    /// Checks the quotas of this server, where the engine does not. The place is kept while the claim may wait.
    fn check_quota(&self, claim: &Claim, now: Time) -> Result<Option<WaiterPlace<'_>>, Refusal> {
        let Some(quota) = &self.quota else { return Ok(None) };
        quota.check_leases(&claim.principal, now)?;
        let first = claim.wants.first().map_or("", |want| want.name.as_str());
        if claim.wait.is_zero() { Ok(None) } else { quota.wait(&claim.principal, first).map(Some) }
    }

    /// Counts a lease anew after its owner renewed it, or learned that it has ended.
    fn count_renewal(&self, lease: &LeaseId, answer: &Result<Renewal, Error>, asked: Time) {
        let Some(quota) = &self.quota else { return };
        match answer {
            Ok(renewal) => quota.record_renewal(lease, renewal.remaining, asked),
            Err(Error::Refused(Refusal::Stale | Refusal::NotHeld)) => quota.record_end(lease),
            Err(_) => {}
        }
    }

    /// Checks a claim against the limits of this server, where the engine does not.
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

    /// Renews a lease.
    ///
    /// # Errors
    ///
    /// The caller may not, or the engine refused or failed.
    pub async fn renew(&self, caller: &Caller, lease: &LeaseId, ttl: Option<Duration>) -> Result<Renewal, Denial> {
        let pass = self.authorize(caller, Verb::Renew, &[])?;
        if let (Some(limits), Some(ttl)) = (&self.limits, ttl) {
            limits.check_ttl(millis(ttl)).map_err(|sentence| Denial::Engine(Error::Invalid(sentence)))?;
        }
        let asked = self.clock.now();
        let answer = self.engine(&pass).renew(lease, ttl).instrument(pass.span(caller)).await;
        self.count_renewal(lease, &answer, asked);
        self.metrics.record_renewal(&answer);
        self.check_guessing(caller, &answer)?;
        answer.map_err(Denial::Engine)
    }

    /// Gives a lease another holder label.
    ///
    /// # Errors
    ///
    /// The caller may not, or the engine refused or failed.
    pub async fn relabel(&self, caller: &Caller, lease: &LeaseId, holder: &str) -> Result<(), Denial> {
        let pass = self.authorize(caller, Verb::Relabel, &[])?;
        if let Some(limits) = &self.limits {
            limits.check_holder(holder).map_err(|sentence| Denial::Engine(Error::Invalid(sentence)))?;
        }
        let answer = self.engine(&pass).relabel(lease, holder).instrument(pass.span(caller)).await;
        self.check_guessing(caller, &answer)?;
        answer.map_err(Denial::Engine)
    }

    /// Releases a lease.
    ///
    /// # Errors
    ///
    /// The caller may not, or the engine refused or failed.
    pub async fn release(&self, caller: &Caller, lease: &LeaseId) -> Result<bool, Denial> {
        let pass = self.authorize(caller, Verb::Release, &[])?;
        let answer = self.engine(&pass).release(lease).instrument(pass.span(caller)).await;
        if let (Some(quota), Ok(_) | Err(Error::Refused(_))) = (&self.quota, &answer) {
            quota.record_end(lease);
        }
        self.check_guessing(caller, &answer)?;
        answer.map_err(Denial::Engine)
    }

    /// Revokes every lease on a resource, by an operator's order.
    ///
    /// # Errors
    ///
    /// The caller may not, or the engine refused or failed.
    pub async fn revoke(&self, caller: &Caller, name: &str, reason: &str) -> Result<usize, Denial> {
        let pass = self.authorize(caller, Verb::Revoke, &[name])?;
        let answer = self.engine(&pass).revoke(name, reason).instrument(pass.span(caller)).await;
        self.audit.log_revoke(caller, name, reason, &answer);
        answer.map_err(Denial::Engine)
    }

    /// The floor of tokens: no lower token will be granted any more. With a token, raises the floor to it.
    ///
    /// # Errors
    ///
    /// The caller may not, or the engine refused or failed.
    pub async fn raise_floor(&self, caller: &Caller, floor: Option<Token>) -> Result<Token, Denial> {
        let pass = self.authorize(caller, if floor.is_some() { Verb::RaiseFloor } else { Verb::Floor }, &[])?;
        let answer = self.engine(&pass).raise_floor(floor).instrument(pass.span(caller)).await;
        if let Some(floor) = floor {
            self.audit.log_raised_floor(caller, floor, &answer);
        }
        answer.map_err(Denial::Engine)
    }

    /// Looks up one resource.
    ///
    /// # Errors
    ///
    /// The caller may not, or the engine refused or failed.
    pub async fn inspect(&self, caller: &Caller, name: &str) -> Result<Option<Resource>, Denial> {
        let pass = self.authorize(caller, Verb::Inspect, &[name])?;
        self.engine(&pass).inspect(name).instrument(pass.span(caller)).await.map_err(Denial::Engine)
    }

    /// Lists resources in use, in order of name, as far as the caller may see them. Only an empty page is the end.
    ///
    /// # Errors
    ///
    /// The caller may not, or the engine refused or failed.
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

    /// Watches events under a prefix, as far as the caller may see them.
    ///
    /// # Errors
    ///
    /// The caller may not, or the engine refused or failed.
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
