//! The box office over HTTP: `/v1/events`, `/v1/holds`, `/v1/orders`, and what belongs to them.
//!
//! Read in this order:
//!
//! - [`events`], [`holds`], [`orders`], [`payments`], [`staff`], [`tickets`], [`webhooks`]: the handlers.
//! - [`stream`]: the entries of an event, as server-sent events.
//! - `crate::api::boxoffice`: the JSON. Tokens are decimal text; a secret appears only where it is created.
//!
//! # Laws
//!
//! 1. Every handler begins with [`BoxOfficeRequest::authorize`]; there is no other way to the office.
//! 2. A ticket acts for its buyer at its event. Everything else does not exist for it.
//! 3. Every request on a hold shows its key, in a header.
//! 4. With an Idempotency-Key a POST has one effect and the same response, even after a restart. Refusals are not
//!    stored.
//!
//! # Not here
//!
//! Decisions (the office), background tasks (`crate::boxoffice`).

pub mod events;
pub mod holds;
pub mod orders;
pub mod payments;
pub mod staff;
pub mod stream;
pub mod tickets;
pub mod webhooks;

use std::sync::Arc;

use leasehold_boxoffice::model::{self, EventId, HoldId, Idem, OrderId, Refusal};
use leasehold_boxoffice::{Error, Office};

use super::call::HttpCall;
use super::problem::Problem;
use crate::boxoffice::BoxOffice;
use crate::service::{Caller, Service, Verb};

/// Bytes of an idempotency key.
const MAX_IDEMPOTENCY_KEY_BYTES: usize = 128;

/// An authorised request to the box office.
pub(super) struct BoxOfficeRequest {
    pub boxoffice: Arc<BoxOffice>,
    pub caller: Caller,
    pub service: Arc<Service>,
}

impl BoxOfficeRequest {
    /// Authenticates and authorises a request.
    pub fn authorize(call: &HttpCall, verb: Verb) -> Result<Self, Problem> {
        Self::authorize_caller(call, call.authenticate()?, verb)
    }

    /// Authorises a request of a known caller.
    pub fn authorize_caller(call: &HttpCall, caller: Caller, verb: Verb) -> Result<Self, Problem> {
        let service = &call.app.service;
        let pass = service.authorize(&caller, verb, &[]).map_err(|denial| call.denial_problem(&denial, &caller))?;
        let boxoffice = service.boxoffice(&pass).map_err(|denial| Problem::from(&denial))?.clone();
        Ok(Self { boxoffice, caller, service: service.clone() })
    }

    pub fn office(&self) -> &Office {
        self.boxoffice.office()
    }

    /// The event in the path, if the caller may see it.
    pub fn visible_event(&self, call: &HttpCall) -> Result<EventId, Problem> {
        let event = EventId(call.path_segment(2)?);
        self.check_sees(&event)?;
        Ok(event)
    }

    /// Law 2: an event that the caller may not see does not exist.
    pub fn check_sees(&self, event: &EventId) -> Result<(), Problem> {
        let seen = self.caller.sees_event(&event.0);
        if seen { Ok(()) } else { Err(refusal_problem(Refusal::NoEvent(event.clone()))) }
    }

    /// The actor for the audit log, and the idempotency key.
    pub fn ledger_call(&self, call: &HttpCall, body: &[u8]) -> Result<model::LedgerCall, Problem> {
        Ok(model::LedgerCall { actor: self.caller.actor(), idem: self.idempotency_key(call, body)? })
    }

    pub fn idempotency_key(&self, call: &HttpCall, body: &[u8]) -> Result<Option<Idem>, Problem> {
        let Some(key) = call.single_header("idempotency-key", "Idempotency-Key")? else { return Ok(None) };
        if key.is_empty() || key.len() > MAX_IDEMPOTENCY_KEY_BYTES {
            return Err(Problem::invalid(format!("Idempotency-Key is 1 to {MAX_IDEMPOTENCY_KEY_BYTES} bytes")));
        }
        let uri = &call.parts.uri;
        let path = uri.path_and_query().map_or_else(|| uri.path(), |path| path.as_str());
        let mut asked = format!("{} {path}\0", call.parts.method).into_bytes();
        // The hold key is part of the request: a retry with another one is another request.
        asked.extend(call.single_header("leasehold-hold-key", "Leasehold-Hold-Key")?.unwrap_or_default().bytes());
        asked.push(0);
        asked.extend(body);
        let actor = self.caller.actor();
        let secrets = self.boxoffice.derive_all("hold key", format!("{actor}\0{key}").as_bytes());
        Ok(Some(Idem::derive(&actor, key, &asked).with_secrets(secrets)))
    }
}

/// The problem for a refusal of the office.
pub(super) fn refusal_problem(refusal: Refusal) -> Problem {
    Problem::from(Error::Refused(refusal))
}

pub(super) fn hold_id(call: &HttpCall) -> Result<HoldId, Problem> {
    Ok(HoldId(call.path_segment(2)?))
}

pub(super) fn order_id(call: &HttpCall) -> Result<OrderId, Problem> {
    Ok(OrderId(call.path_segment(2)?))
}

/// Parses a number in a query.
pub(super) fn query_number(text: Option<String>, name: &str) -> Result<Option<u64>, Problem> {
    let parsed = text.map(|text| text.parse::<u64>());
    parsed.transpose().map_err(|_| Problem::invalid(format!("{name} is a whole number")))
}

/// Parses a boolean in a query.
pub(super) fn query_flag(text: Option<String>, name: &str) -> Result<bool, Problem> {
    match text.as_deref() {
        None | Some("0" | "false" | "no") => Ok(false),
        Some("" | "1" | "true" | "yes") => Ok(true),
        Some(_) => Err(Problem::invalid(format!("{name} is 1 or 0"))),
    }
}
