//! The caller of a request, and the proof that the call was authorised.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use leasehold_boxoffice::ticket::Ticket;

use super::keys::Principal;
use super::verb::Verb;

/// The network address of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddress(pub SocketAddr);

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The authenticated caller of a request.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The key or ticket group that it acts as.
    pub principal: Arc<Principal>,
    /// Its network address.
    pub peer: PeerAddress,
    /// The ticket, if the caller was authenticated by one.
    pub ticket: Option<Arc<Ticket>>,
}

impl Caller {
    pub(super) const fn new(principal: Arc<Principal>, peer: PeerAddress) -> Self {
        Self { principal, peer, ticket: None }
    }

    /// The same caller, with a ticket.
    pub(super) fn with_ticket(self, ticket: Ticket) -> Self {
        Self { ticket: Some(Arc::new(ticket)), ..self }
    }

    /// Whether the caller may see this event: the ticket is for it, and no prefix of the key forbids it.
    pub fn sees_event(&self, event: &str) -> bool {
        let ticket = self.ticket.as_ref().is_none_or(|ticket| ticket.event == event);
        ticket && (self.principal.prefixes.is_empty() || self.principal.sees(&format!("box/{event}/")))
    }

    /// Whether the caller may act for this buyer.
    pub fn acts_for(&self, buyer: &str) -> bool {
        self.ticket.as_ref().is_none_or(|ticket| ticket.buyer == buyer)
    }

    /// The name of the caller in the audit log.
    pub fn actor(&self) -> String {
        match (&self.ticket, self.principal.id.as_str()) {
            (Some(ticket), _) => format!("buyer:{}", ticket.buyer),
            (None, "") => "anonymous".into(),
            (None, id) => format!("key:{id}"),
        }
    }
}

/// The proof that a call was authorised: the engine is not reachable without one.
#[derive(Debug)]
#[must_use]
pub struct Pass {
    verb: Verb,
}

impl Pass {
    /// Made by [`super::Service::authorize`] alone.
    pub(super) const fn new(verb: Verb) -> Self {
        Self { verb }
    }

    /// The tracing span of the authorised call, at debug. Contains no secret.
    pub fn span(&self, caller: &Caller) -> tracing::Span {
        let (verb, key, peer) = (self.verb.word(), caller.principal.id.as_str(), caller.peer);
        tracing::debug_span!(target: "leasehold::call", "call", otel.name = verb, verb, key, peer = %peer)
    }

    /// The verb that was authorised.
    pub const fn verb(&self) -> Verb {
        self.verb
    }
}
