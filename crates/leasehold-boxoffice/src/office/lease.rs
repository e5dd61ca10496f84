//! Leases on seats and areas: their resource names in the engine, and how leases are acquired, renewed and released.

use std::time::Duration;

use leasehold::engine::{Claim, LeaseId, Want as Resource};
use leasehold::{Error as EngineError, Mode, Refusal as EngineRefusal};

use super::Office;
use crate::error::Error;
use crate::model::{EventId, HoldRow, LeaseRef, PricedArea};

/// A lease ends this much after its hold row: the row decides, and must end first.
pub(super) const LEASE_MARGIN: Duration = Duration::from_secs(5);

/// The ttl of a lease that is held only during one sale or move.
pub(super) const SALE_LEASE_TTL: Duration = Duration::from_secs(30);
/// The prefix of all resources of the box office.
pub(super) const LEASE_PREFIX: &str = "box/";

/// The answer of the engine to a claim.
pub(super) enum LeaseOutcome {
    /// All resources were granted.
    Granted(LeaseRef),
    /// This resource is held, and by whom, if the engine says so.
    Held(String, Option<String>),
}

/// The resource name of a seat.
pub(super) fn seat_resource(event: &EventId, seat: &str) -> String {
    format!("{LEASE_PREFIX}{event}/seat/{seat}")
}

/// The resource name of an area. The capacity is part of the name: while a layout changes, leases by the old and the new
/// capacity exist side by side, and the ledger counts them together.
fn area_resource(event: &EventId, area: &str, capacity: u32) -> String {
    format!("{LEASE_PREFIX}{event}/area/{capacity}/{area}")
}

/// The seat (`true`) or area (`false`) that a resource name means.
pub(super) fn parse_resource_name(event: &EventId, resource: &str) -> Option<(bool, String)> {
    let rest = resource.strip_prefix(LEASE_PREFIX)?.strip_prefix(event.as_str())?;
    if let Some(seat) = rest.strip_prefix("/seat/") {
        return Some((true, seat.into()));
    }
    let (_, area) = rest.strip_prefix("/area/")?.split_once('/')?;
    Some((false, area.into()))
}

/// The resources of seats and places. `capacity` says how many places an area has.
pub(super) fn resources<'a>(
    event: &EventId,
    seats: impl Iterator<Item = &'a str>,
    areas: &[PricedArea],
    capacity: impl Fn(&str) -> u32,
) -> Vec<Resource> {
    let seats = seats.map(|id| Resource { name: seat_resource(event, id), mode: Mode::Exclusive });
    let areas = areas.iter().map(|area| {
        let capacity = capacity(&area.id);
        let mode = Mode::Permits { count: area.qty, capacity };
        Resource { name: area_resource(event, &area.id, capacity), mode }
    });
    seats.chain(areas).collect()
}

/// The times of a claim.
pub(super) struct LeaseTerms {
    pub(super) ttl: Duration,
    pub(super) max_hold: Option<Duration>,
    pub(super) wait: Duration,
}

impl Office {
    /// Acquires one lease on all of these.
    pub(super) async fn acquire_lease(
        &self,
        wants: Vec<Resource>,
        terms: LeaseTerms,
        holder: &str,
    ) -> Result<LeaseOutcome, Error> {
        let claim = Claim {
            wants,
            ttl: terms.ttl,
            wait: terms.wait,
            max_hold: terms.max_hold,
            delay: Duration::ZERO,
            holder: holder.into(),
            request: None,
            principal: String::new(),
        };
        match self.0.engine.acquire(claim).await {
            Ok(grant) => {
                let Some(token) = grant.token else {
                    let law = "an engine that promises fencing gives a token with every grant".into();
                    return Err(Error::Corrupt { part: self.0.engine.promises().engine, law, at: holder.into() });
                };
                Ok(LeaseOutcome::Granted(LeaseRef { token: token.get(), id: grant.lease_id.expose().into() }))
            }
            Err(EngineError::Refused(EngineRefusal::Held { resource, holder, .. })) => {
                Ok(LeaseOutcome::Held(resource, holder))
            }
            Err(EngineError::Refused(EngineRefusal::QueueFull { resource })) => Ok(LeaseOutcome::Held(resource, None)),
            Err(error) => Err(Error::engine(error)),
        }
    }

    /// Releases a lease. If the engine cannot be reached, the lease lapses by itself.
    pub(super) async fn release_lease(&self, lease: &LeaseRef) {
        let _ = self.0.engine.release(&LeaseId::new(lease.id.as_str())).await;
    }

    pub(super) async fn release_leases(&self, leases: &[LeaseRef]) {
        for lease in leases {
            self.release_lease(lease).await;
        }
    }

    /// Renews every lease of a hold to end this long from now. Returns the tokens, and `None` for a lease that is lost.
    pub(super) async fn renew_leases(&self, hold: &HoldRow, ttl: Duration) -> Result<Vec<Option<u64>>, Error> {
        let mut tokens = Vec::with_capacity(hold.leases.len());
        for lease in &hold.leases {
            match self.0.engine.renew(&LeaseId::new(lease.id.as_str()), Some(ttl)).await {
                // A lease at its cap cannot be renewed so far: it counts as lost, since the row must not outlive it.
                Ok(renewal) if renewal.remaining < ttl.saturating_sub(LEASE_MARGIN) => tokens.push(None),
                Ok(_) => tokens.push(Some(lease.token)),
                Err(EngineError::Refused(_)) => tokens.push(None),
                Err(error) => return Err(Error::engine(error)),
            }
        }
        Ok(tokens)
    }
}
