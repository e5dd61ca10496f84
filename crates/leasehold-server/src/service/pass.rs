//! Who asks, and the proof that they may.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use leasehold_boxoffice::ticket::Ticket;

use super::keys::Principal;
use super::verb::Verb;

/// Where a caller comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddress(pub SocketAddr);

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Who asks.
#[derive(Clone, Debug)]
pub struct Caller {
    /// As whom.
    pub principal: Arc<Principal>,
    /// From where.
    pub peer: PeerAddress,
    /// For which buyer at which event, if it is a ticket that let them in.
    pub ticket: Option<Arc<Ticket>>,
}

impl Caller {
    pub(super) const fn new(principal: Arc<Principal>, peer: PeerAddress) -> Self {
        Self { principal, peer, ticket: None }
    }

    /// One who came with a ticket.
    pub(super) fn with_ticket(self, ticket: Ticket) -> Self {
        Self { ticket: Some(Arc::new(ticket)), ..self }
    }

    /// Whether this event is theirs to see: the ticket is for it, and no prefix of the key forbids it.
    pub fn sees_event(&self, event: &str) -> bool {
        let ticket = self.ticket.as_ref().is_none_or(|ticket| ticket.event == event);
        ticket && (self.principal.prefixes.is_empty() || self.principal.sees(&format!("box/{event}/")))
    }

    /// Whether they may act for this buyer.
    pub fn acts_for(&self, buyer: &str) -> bool {
        self.ticket.as_ref().is_none_or(|ticket| ticket.buyer == buyer)
    }

    /// As whom they are written down.
    pub fn actor(&self) -> String {
        match (&self.ticket, self.principal.id.as_str()) {
            (Some(ticket), _) => format!("buyer:{}", ticket.buyer),
            (None, "") => "anonymous".into(),
            (None, id) => format!("key:{id}"),
        }
    }
}

/// The proof that a call was admitted: the engine is not to be had without one.
#[derive(Debug)]
#[must_use]
pub struct Pass {
    verb: Verb,
}

impl Pass {
    /// Only the gate makes one.
    pub(super) const fn new(verb: Verb) -> Self {
        Self { verb }
    }

    /// The span of the work that was admitted, for logs at debug and for traces. No secret in it.
    pub fn span(&self, caller: &Caller) -> tracing::Span {
        let (verb, key, peer) = (self.verb.word(), caller.principal.id.as_str(), caller.peer);
        tracing::debug_span!(target: "leasehold::call", "call", otel.name = verb, verb, key, peer = %peer)
    }

    /// What was admitted.
    pub const fn verb(&self) -> Verb {
        self.verb
    }
}
