//! Webhooks: entries of an event, posted to receivers, signed and in order.
//!
//! ```text
//!   POST <url>
//!   Content-Type: application/json
//!   Leasehold-Signature: t=<ms>,seq=<sequence>,v1=<hex HMAC-SHA256 of "t.seq.body">
//!
//!   {"event_id": "...", "seq": 41, ...}
//! ```
//!
//! # Laws
//!
//! 1. Every message is signed with the receiver's own secret, over its time, its sequence and its body.
//! 2. A message without a 2xx answer is sent again, with growing pauses, at most [`MAX_DELIVERY_ATTEMPTS`] times. Its
//!    sequence stays the same, so that a receiver can drop duplicates.
//! 3. By default nothing is sent into the server's own network ([`guard`]): the URL comes from outside.
//!
//! # Not here
//!
//! Which messages are due (the ledger), and the sending itself (the server).

pub mod guard;

use std::time::Duration;

use crate::sign::{self, Forged, Secrets, SignatureStamp};

/// How often a message is sent at most, over about three days.
pub const MAX_DELIVERY_ATTEMPTS: u32 = 16;
/// The first pause.
const FIRST_RETRY_PAUSE: Duration = Duration::from_secs(1);
/// No pause is longer.
const MAX_RETRY_PAUSE: Duration = Duration::from_hours(12);
/// How far the stamp of a message may be from the receiver's clock.
pub const CLOCK_TOLERANCE: Duration = Duration::from_mins(5);

/// What goes out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedMessage {
    /// The value of the header [`sign::HEADER`].
    pub signature: String,
    /// The body, JSON.
    pub body: Vec<u8>,
}

/// Signs a message. `now_ms`: when it is sent, each time anew.
#[must_use]
pub fn message(secrets: &Secrets, seq: u64, body: Vec<u8>, now_ms: u64) -> SignedMessage {
    let signature = sign::header(secrets, SignatureStamp { at_ms: now_ms, seq: Some(seq) }, &body);
    SignedMessage { signature, body }
}

/// For receivers: the sequence of a message that is to be believed. `now_ms` is the receiver's wall clock.
///
/// # Errors
///
/// Why it is not.
///
/// # Examples
///
/// ```
/// use leasehold_boxoffice::{sign::Secrets, webhook};
///
/// let secrets = Secrets::new(&["a secret that both sides know"])?;
/// let sent = webhook::message(&secrets, 41, b"{}".to_vec(), 1_763_258_400_000);
/// assert_eq!(webhook::verify(&secrets, &sent.signature, &sent.body, 1_763_258_401_000), Ok(41));
/// # Ok::<(), leasehold_boxoffice::sign::Unfit>(())
/// ```
pub fn verify(secrets: &Secrets, header: &str, body: &[u8], now_ms: u64) -> Result<u64, Forged> {
    let within = u64::try_from(CLOCK_TOLERANCE.as_millis()).unwrap_or(u64::MAX);
    let stamp = sign::verify(secrets, header, body, Some((now_ms, within)))?;
    stamp.seq.ok_or(Forged::Unreadable)
}

/// How long to wait after so many failed attempts; none when it is over. `chance` is any number: it spreads the pause by
/// up to a quarter, so that receivers that came back are not all called at once.
#[must_use]
pub fn pause(failed: u32, chance: u64) -> Option<Duration> {
    if failed == 0 || failed >= MAX_DELIVERY_ATTEMPTS {
        return None;
    }
    let grown = FIRST_RETRY_PAUSE.saturating_mul(3u32.saturating_pow(failed - 1)).min(MAX_RETRY_PAUSE);
    let spread = u32::try_from(chance % 1025).unwrap_or(0);
    Some(grown.saturating_sub(grown / 4).saturating_add((grown / 2).saturating_mul(spread) / 1024))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Goal: the schedule begins within seconds, grows, ends, and takes some days in all.
    #[test]
    fn pauses_grow_and_end() {
        let middle: Vec<Duration> = (1..MAX_DELIVERY_ATTEMPTS).map(|failed| pause(failed, 512).unwrap()).collect();
        assert_eq!(middle[0], Duration::from_secs(1));
        assert_eq!(middle[1], Duration::from_secs(3));
        assert!(middle.windows(2).all(|pair| pair[0] <= pair[1]));
        let all: Duration = middle.iter().sum();
        assert!(all > Duration::from_hours(48) && all < Duration::from_hours(120), "{all:?}");
        assert_eq!(pause(MAX_DELIVERY_ATTEMPTS, 0), None);
        assert_eq!(pause(0, 0), None);
        assert_eq!(pause(u32::MAX, 0), None);
    }

    proptest! {
        /// Goal: chance moves a pause by a quarter at most, either way.
        #[test]
        fn chance_moves_a_pause_by_a_quarter(failed in 1..MAX_DELIVERY_ATTEMPTS, chance: u64) {
            let middle = FIRST_RETRY_PAUSE.saturating_mul(3u32.saturating_pow(failed - 1)).min(MAX_RETRY_PAUSE);
            let pause = pause(failed, chance).unwrap();
            prop_assert!(pause >= middle - middle / 4 && pause <= middle + middle / 4, "{pause:?} around {middle:?}");
        }
    }

    /// Goal: a receiver believes a fresh message with its sequence, and no old one, nor one without.
    #[test]
    fn receivers_believe_what_is_fresh() {
        let secrets = Secrets::new(&["a secret that both sides know"]).unwrap();
        let sent = message(&secrets, 41, b"{}".to_vec(), 1_000_000);
        assert_eq!(verify(&secrets, &sent.signature, &sent.body, 1_300_000), Ok(41));
        assert_eq!(verify(&secrets, &sent.signature, &sent.body, 1_300_001), Err(Forged::NotNow));
        assert_eq!(verify(&secrets, &sent.signature, b"{ }", 1_000_000), Err(Forged::Wrong));
        let without = sign::header(&secrets, SignatureStamp { at_ms: 1_000_000, seq: None }, b"{}");
        assert_eq!(verify(&secrets, &without, b"{}", 1_000_000), Err(Forged::Unreadable));
    }
}
