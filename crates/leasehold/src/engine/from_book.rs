//! Between the book's words and the contract's: for every engine that decides by a book of its own.

use std::time::Duration;

use leasehold_core::book::{HoldingView, ResourceView};
use leasehold_core::{
    Acquire, Granted, LeaseKey, Refusal as CoreRefusal, Reply, RequestId, Secret, WaiterId, Want as CoreWant,
};

use super::{Claim, Grant, Holding, LeaseId, Resource, Waiting};
use crate::error::{Error, Refusal};

/// The key in a lease id. Text that is none is an id we do not know.
pub(crate) fn key(lease: &LeaseId) -> Result<LeaseKey, Error> {
    lease.expose().parse().map_err(|_| Error::Refused(Refusal::NotHeld))
}

/// Whole milliseconds, rounded up: nothing lapses early.
pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// What a claim wants, in the book's words.
pub(crate) fn wants(claim: &Claim) -> Vec<CoreWant<'_>> {
    claim.wants.iter().map(|want| CoreWant { name: &want.name, mode: want.mode }).collect()
}

/// The claim in the book's words.
pub(crate) fn acquire<'a>(
    claim: &'a Claim,
    wants: &'a [CoreWant<'a>],
    value: Option<&'a [u8]>,
    waiter_id: WaiterId,
    secret: Secret,
) -> Acquire<'a> {
    Acquire {
        waiter_id,
        wants,
        ttl_ms: millis(claim.ttl),
        wait_ms: millis(claim.wait),
        max_hold_ms: claim.max_hold.map(millis),
        delay_ms: millis(claim.delay),
        holder: &claim.holder,
        request: claim.request.as_ref().map(|id| RequestId { scope: &claim.principal, id }),
        secret,
        principal: &claim.principal,
        value,
    }
}

pub(crate) fn grant(granted: &Granted) -> Grant {
    Grant {
        lease_id: LeaseId::new(granted.lease.expose()),
        token: Some(granted.lease.token),
        remaining: granted.remaining,
        renewable: granted.renewable,
    }
}

pub(crate) fn resource(view: ResourceView) -> Resource {
    let holding =
        |h: HoldingView| Holding { holder: h.holder, token: Some(h.token), since: h.since, remaining: h.remaining };
    Resource {
        name: view.name,
        mode: view.mode,
        holders: view.holders.into_iter().map(holding).collect(),
        waiters: view.waiters.into_iter().map(|w| Waiting { holder: w.holder, waiting: w.waiting }).collect(),
        holders_total: view.holders_total,
        queue_len: view.queue_len,
    }
}

/// The error in a reply that is not the answer that was hoped for.
pub(crate) fn refused(reply: Reply, engine: &'static str, attempt: impl FnOnce() -> String) -> Error {
    let refusal = match reply {
        Reply::Refused(CoreRefusal::Held(held)) => Refusal::Held {
            resource: held.resource,
            holder: held.holder,
            remaining: held.remaining,
            queue_len: held.queue_len,
        },
        Reply::Refused(CoreRefusal::Stale) => Refusal::Stale,
        Reply::Refused(CoreRefusal::NotHeld) => Refusal::NotHeld,
        Reply::Refused(CoreRefusal::QueueFull(resource)) => Refusal::QueueFull { resource },
        Reply::Refused(CoreRefusal::Quota(what)) => Refusal::Quota(what),
        Reply::Refused(CoreRefusal::Mismatch) => Refusal::Mismatch,
        Reply::Invalid(sentence) => return Error::Invalid(sentence),
        Reply::NoTokens => {
            let source = "tokens are being reserved; ask again".into();
            return Error::Unavailable { engine, attempt: attempt(), source };
        }
        other => unreachable!("{} was answered with {other:?}", attempt()),
    };
    Error::Refused(refusal)
}
