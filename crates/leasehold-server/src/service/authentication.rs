//! Authentication: who sends a request, by API key, by a buyer's ticket, or without credentials.

use std::sync::Arc;

use leasehold_boxoffice::ticket;

use super::keys::Principal;
use super::pass::{Caller, PeerAddress};
use super::{Denial, Service};

/// The address of callers inside this process.
pub(super) const INTERNAL_PEER: PeerAddress =
    PeerAddress(std::net::SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0));

impl Service {
    /// Finds the caller by API key or ticket. Without credentials: everybody, if the server has no keys; nobody
    /// otherwise.
    ///
    /// # Errors
    ///
    /// [`Denial::Unauthorized`] for a key that is missing, wrong or revoked. [`Denial::Slow`] for too many wrong keys
    /// from one address; a right key is never slowed down by wrong ones of others.
    pub fn authenticate(&self, key: Option<&str>, peer: PeerAddress) -> Result<Caller, Denial> {
        if let Some(ticket) = key.filter(|key| ticket::looks_like(key)) {
            return self.authenticate_ticket(ticket, peer);
        }
        let principal = match key {
            Some(key) => self.keys.find_principal(key),
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

    /// The caller of a connection without credentials; none on a server with keys. Counts no denial.
    pub fn anonymous_caller(&self, peer: PeerAddress) -> Option<Caller> {
        self.keys.anybody().map(|principal| Caller::new(principal, peer))
    }

    /// A caller inside this process. It is authorised like every other.
    pub fn internal_caller(&self, principal: Principal) -> Caller {
        Caller::new(Arc::new(principal), INTERNAL_PEER)
    }

    /// The caller of a callback whose signature was verified.
    pub const fn provider(&self) -> &Caller {
        &self.provider
    }

    fn refuse_credentials(&self, showed_a_key: bool, peer: PeerAddress) -> Denial {
        if !showed_a_key {
            return Denial::Unauthorized;
        }
        if !self.failed_auths.try_take(peer.0.ip(), self.clock.now()) {
            return Denial::Slow("too many wrong keys from this address: slow down".into());
        }
        // Only after the rate limit: wrong keys must not fill the disk with log lines.
        self.audit.log_wrong_key(peer);
        Denial::Unauthorized
    }
}
