//! The engine's side: which resources stand for seats and places, and how leases on them are taken and let go.

use std::time::Duration;

use leasehold::engine::{Claim, LeaseId, Want as Resource};
use leasehold::{Error as EngineError, Mode, Refusal as EngineRefusal};

use super::Office;
use crate::error::Error;
use crate::model::{EventId, HoldRow, LeaseRef, PricedArea};

/// A lease outlives its row by this: the row decides, and must end first.
pub(super) const LEASE_MARGIN: Duration = Duration::from_secs(5);

/// All leases of the box office begin so.
pub(super) const LEASE_PREFIX: &str = "box/";

/// What becomes of asking for a lease.
pub(super) enum LeaseOutcome {
    /// All of it is ours.
    Granted(LeaseRef),
    /// This resource is not free, and who has it, if the engine says so.
    Held(String, Option<String>),
}

/// The resource that stands for a seat.
pub(super) fn seat_resource(event: &EventId, seat: &str) -> String {
    format!("{LEASE_PREFIX}{event}/seat/{seat}")
}

/// The resource that stands for an area. The capacity is part of the name: while a layout changes, leases by the old and
/// the new one stand side by side, and the ledger counts them together.
fn area_resource(event: &EventId, area: &str, capacity: u32) -> String {
    format!("{LEASE_PREFIX}{event}/area/{capacity}/{area}")
}

/// The seat or area that a resource stands for.
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

/// How long a lease is wanted.
pub(super) struct LeaseTerms {
    pub(super) ttl: Duration,
    pub(super) max_hold: Option<Duration>,
    pub(super) wait: Duration,
}

impl Office {
    /// Takes a lease on all of these.
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

    /// Lets a lease go. What cannot be asked for now happens by itself: the lease lapses, and the row has decided.
    pub(super) async fn release_lease(&self, lease: &LeaseRef) {
        let _ = self.0.engine.release(&LeaseId::new(lease.id.as_str())).await;
    }

    pub(super) async fn release_leases(&self, leases: &[LeaseRef]) {
        for lease in leases {
            self.release_lease(lease).await;
        }
    }

    /// Sets the end of every lease of a hold to this long from now. The tokens of those that live; `None` in place of one
    /// that is gone.
    pub(super) async fn renew_leases(&self, hold: &HoldRow, ttl: Duration) -> Result<Vec<Option<u64>>, Error> {
        let mut tokens = Vec::with_capacity(hold.leases.len());
        for lease in &hold.leases {
            match self.0.engine.renew(&LeaseId::new(lease.id.as_str()), Some(ttl)).await {
                // A lease at its cap cannot reach so far: then the row must not either.
                Ok(renewal) if renewal.remaining < ttl.saturating_sub(LEASE_MARGIN) => tokens.push(None),
                Ok(_) => tokens.push(Some(lease.token)),
                Err(EngineError::Refused(_)) => tokens.push(None),
                Err(error) => return Err(Error::engine(error)),
            }
        }
        Ok(tokens)
    }
}
