//! Buyer tickets: what lets a browser act for one buyer at one event, for a while.
//!
//! ```text
//!   lht1_<hex of event NUL buyer NUL expiry>_<hex of HMAC-SHA256>
//! ```
//!
//! # Laws
//!
//! 1. A ticket acts for the buyer and the event it names, and for nobody and nothing else.
//! 2. It is live until its expiry, by the clock of whoever minted it (the ledger's).
//! 3. It is a secret: sent in a header, never in a URL, and in no Debug text.
//!
//! # Not here
//!
//! Who may mint one (the server's access rules), what a buyer may do (the office).

use std::fmt;

use crate::sign::{Secrets, hex, unhex};

const TICKET_PREFIX: &str = "lht1_";
/// The longest ticket: no longer one was ever minted.
const MAX_TICKET_BYTES: usize = 2048;
/// Separates tickets from whatever else is signed with the same secret.
const TICKET_PURPOSE: &[u8] = b"leasehold ticket 1\0";

/// For whom a ticket acts.
#[derive(Clone, PartialEq, Eq)]
pub struct Ticket {
    /// At which event.
    pub event: String,
    /// For which buyer.
    pub buyer: String,
    /// Until when: milliseconds of the clock it was minted by.
    pub expires_ms: u64,
}

/// Who a buyer is is nobody's business in a log.
impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket")
            .field("event", &self.event)
            .field("expires_ms", &self.expires_ms)
            .finish_non_exhaustive()
    }
}

/// Why a ticket does not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// It is not ours.
    #[error("this is no ticket of this box office")]
    Forged,
    /// It was.
    #[error("the ticket is over: get a new one")]
    Expired,
}

/// Whether a text has the prefix of a ticket. API keys have another.
#[must_use]
pub fn looks_like(text: &str) -> bool {
    text.starts_with(TICKET_PREFIX)
}

impl Ticket {
    /// The text of it, a secret. Names with a NUL in them have no ticket.
    #[must_use]
    pub fn mint(&self, secrets: &Secrets) -> Option<String> {
        if self.event.contains('\0') || self.buyer.contains('\0') {
            return None;
        }
        let payload = format!("{}\0{}\0{}", self.event, self.buyer, self.expires_ms);
        let mac = secrets.sign(&[TICKET_PURPOSE, payload.as_bytes()]);
        Some(format!("{TICKET_PREFIX}{}_{}", hex(payload.as_bytes()), hex(&mac)))
    }

    /// The ticket that a text is.
    ///
    /// # Errors
    ///
    /// It is none of ours, or not any more.
    pub fn check(text: &str, secrets: &Secrets, now_ms: u64) -> Result<Self, Invalid> {
        let (payload, mac) = parts(text).ok_or(Invalid::Forged)?;
        if !secrets.verify(&[TICKET_PURPOSE, &payload], &mac) {
            return Err(Invalid::Forged);
        }
        let payload = String::from_utf8(payload).map_err(|_| Invalid::Forged)?;
        let mut fields = payload.split('\0');
        let (Some(event), Some(buyer), Some(expires), None) =
            (fields.next(), fields.next(), fields.next(), fields.next())
        else {
            return Err(Invalid::Forged);
        };
        let expires_ms = expires.parse().map_err(|_| Invalid::Forged)?;
        if now_ms >= expires_ms {
            return Err(Invalid::Expired);
        }
        Ok(Self { event: event.to_owned(), buyer: buyer.to_owned(), expires_ms })
    }
}

fn parts(text: &str) -> Option<(Vec<u8>, Vec<u8>)> {
    if text.len() > MAX_TICKET_BYTES {
        return None;
    }
    let (payload, mac) = text.strip_prefix(TICKET_PREFIX)?.split_once('_')?;
    Some((unhex(payload)?, unhex(mac)?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn secrets(first: u8) -> Secrets {
        Secrets::new(&[[first; 32]]).unwrap()
    }

    fn ticket(event: &str, buyer: &str) -> Ticket {
        Ticket { event: event.into(), buyer: buyer.into(), expires_ms: 1000 }
    }

    /// Goal: a ticket names its buyer and event until its expiry, and not a moment longer.
    #[test]
    fn a_ticket_is_live_until_its_expiry() {
        let text = ticket("gala", "b-17").mint(&secrets(1)).unwrap();
        assert!(looks_like(&text) && !looks_like("lh_abcdefgh_secret"));
        assert_eq!(Ticket::check(&text, &secrets(1), 999), Ok(ticket("gala", "b-17")));
        assert_eq!(Ticket::check(&text, &secrets(1), 1000), Err(Invalid::Expired));
        assert_eq!(Ticket::check(&text, &secrets(2), 999), Err(Invalid::Forged));
        let both = Secrets::new(&[[2; 32], [1; 32]]).unwrap();
        assert!(Ticket::check(&text, &both, 0).is_ok(), "while the secret is being changed");
    }

    /// Goal: no Debug text shows a buyer, a ticket or a secret.
    #[test]
    fn debug_tells_nothing() {
        let text = format!("{:?} {:?}", ticket("gala", "ada@example.org"), secrets(7));
        assert!(!text.contains("ada") && !text.contains('7'), "{text}");
    }

    /// Goal: what is not a ticket is refused as such.
    #[test]
    fn nonsense_is_forged() {
        let whole = ticket("gala", "b").mint(&secrets(1)).unwrap();
        for bad in [
            "",
            "lht1_",
            "lht1__",
            "lht1_00_00",
            &whole[..whole.len() - 2],
            &whole[1..],
            &"x".repeat(5000),
            &whole.to_uppercase(),
        ] {
            assert_eq!(Ticket::check(bad, &secrets(1), 0), Err(Invalid::Forged), "{bad}");
        }
        assert_eq!(ticket("a\0b", "c").mint(&secrets(1)), None);
        assert_eq!(ticket("a", "b\0c").mint(&secrets(1)), None);
    }

    proptest! {
        /// Goal: every name comes back whole, and one changed letter makes it nobody's.
        #[test]
        fn names_come_back_and_changes_are_found(event in "[^\0]{0,20}", buyer in "[^\0]{0,20}", at: prop::sample::Index) {
            let text = ticket(&event, &buyer).mint(&secrets(1)).unwrap();
            prop_assert_eq!(Ticket::check(&text, &secrets(1), 0), Ok(ticket(&event, &buyer)));
            let mut bytes = text.clone().into_bytes();
            let at = at.index(bytes.len());
            bytes[at] = if bytes[at] == b'0' { b'1' } else { b'0' };
            let other = String::from_utf8(bytes).unwrap();
            prop_assert_eq!(Ticket::check(&other, &secrets(1), 0), Err(Invalid::Forged));
        }
    }
}
