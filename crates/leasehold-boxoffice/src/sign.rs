//! Signatures by HMAC-SHA256.
//!
//! ```text
//!   Leasehold-Signature: t=1763258400000,seq=41,v1=5f2c…    the MAC is over "1763258400000.41." and the body
//! ```
//!
//! # Laws
//!
//! 1. A signature is compared in constant time.
//! 2. Two secrets can be valid at a time: the first signs, each verifies. So a secret is changed without a gap: put the
//!    new one second everywhere, then first, then take the old one away.
//! 3. No secret is ever in a Debug text, and none is kept in the clear longer than it is used.
//!
//! # Not here
//!
//! What is signed: tickets of buyers (`ticket`), webhooks (`webhook`), callbacks (`provider`).

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The header that carries a signature.
pub const HEADER: &str = "Leasehold-Signature";
/// The shortest secret: shorter ones can be guessed.
pub const MIN_SECRET_BYTES: usize = 16;
/// A header with more signatures than this is rejected.
const MAX_SIGNATURES: usize = 4;

/// What signs, and what verifies.
#[derive(Clone)]
pub struct Secrets {
    keys: Vec<Hmac<Sha256>>,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets({}, …)", self.keys.len())
    }
}

/// Why secrets cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// There is none, or there are too many.
    #[error("one secret is needed, or two while it is being changed")]
    Number,
    /// One can be guessed.
    #[error("a secret is at least {MIN_SECRET_BYTES} bytes")]
    Short,
}

impl Secrets {
    /// One secret, or two while it is being changed: the first signs.
    ///
    /// # Errors
    ///
    /// They cannot be used.
    pub fn new<T: AsRef<[u8]>>(secrets: &[T]) -> Result<Self, Unfit> {
        if secrets.is_empty() || secrets.len() > 2 {
            return Err(Unfit::Number);
        }
        let key = |secret: &T| {
            let secret = secret.as_ref();
            let key = (secret.len() >= MIN_SECRET_BYTES).then(|| Hmac::new_from_slice(secret).ok()).flatten();
            key.ok_or(Unfit::Short)
        };
        Ok(Self { keys: secrets.iter().map(key).collect::<Result<_, _>>()? })
    }

    /// Signs with the first secret. Parts are told apart by their lengths, so that none can be moved into another.
    #[must_use]
    pub fn sign(&self, parts: &[&[u8]]) -> [u8; 32] {
        mac_over(&self.keys[0], parts).finalize().into_bytes().into()
    }

    /// Signs with each secret, the first one first.
    #[must_use]
    pub fn sign_by_each(&self, parts: &[&[u8]]) -> Vec<[u8; 32]> {
        self.keys.iter().map(|key| mac_over(key, parts).finalize().into_bytes().into()).collect()
    }

    /// Whether one of the secrets signed this. In constant time.
    #[must_use]
    pub fn verify(&self, parts: &[&[u8]], signature: &[u8]) -> bool {
        // All are tried: how long it takes does not tell which one it was.
        let right = self.keys.iter().map(|key| mac_over(key, parts).verify_slice(signature).is_ok());
        right.fold(false, |any, this| any | this)
    }
}

fn mac_over(key: &Hmac<Sha256>, parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut mac = key.clone();
    parts.iter().for_each(|part| mac.update(part));
    mac
}

/// What a signature header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignatureStamp {
    /// When it was sent: milliseconds by the sender's clock.
    pub at_ms: u64,
    /// Which piece of news of its event it is; none for callbacks, which have no order.
    pub seq: Option<u64>,
}

/// Why a message is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Forged {
    /// The header is not what it should be.
    #[error("the signature header cannot be read")]
    Unreadable,
    /// No secret of ours made it.
    #[error("the signature does not fit the message")]
    Wrong,
    /// It was sent too long ago, or is from the future.
    #[error("the message was not sent just now")]
    NotNow,
}

/// The header for a message that goes out.
#[must_use]
pub fn header(secrets: &Secrets, stamp: SignatureStamp, body: &[u8]) -> String {
    let mac = secrets.sign(&[prefix(stamp).as_bytes(), body]);
    let seq = stamp.seq.map(|seq| format!("seq={seq},")).unwrap_or_default();
    format!("t={},{seq}v1={}", stamp.at_ms, hex(&mac))
}

/// What is signed before the body: it has an end, so that no digit can move between it and the body.
fn prefix(stamp: SignatureStamp) -> String {
    match stamp.seq {
        Some(seq) => format!("{}.{seq}.", stamp.at_ms),
        None => format!("{}.", stamp.at_ms),
    }
}

/// Whether a message that came in is what its sender signed.
///
/// `now`: the receiver's clock and how far the stamp may be from it, in milliseconds; none where something else keeps
/// old messages from counting twice.
///
/// # Errors
///
/// Why it is not to be believed.
pub fn verify(secrets: &Secrets, header: &str, body: &[u8], now: Option<(u64, u64)>) -> Result<SignatureStamp, Forged> {
    let (stamp, signatures) = parse(header).ok_or(Forged::Unreadable)?;
    let prefix = prefix(stamp);
    let right = signatures.iter().map(|signature| secrets.verify(&[prefix.as_bytes(), body], signature));
    if !right.fold(false, |any, this| any | this) {
        return Err(Forged::Wrong);
    }
    if now.is_some_and(|(now, within)| stamp.at_ms.abs_diff(now) > within) {
        return Err(Forged::NotNow);
    }
    Ok(stamp)
}

fn parse(header: &str) -> Option<(SignatureStamp, Vec<[u8; 32]>)> {
    let (mut at, mut seq, mut signatures) = (None, None, Vec::new());
    if header.len() > 1024 {
        return None;
    }
    for field in header.split(',') {
        match field.trim().split_once('=')? {
            ("t", text) if at.is_none() => at = Some(digits(text)?),
            ("seq", text) if seq.is_none() => seq = Some(digits(text)?),
            ("v1", text) => signatures.push(unhex(text)?.try_into().ok()?),
            ("t" | "seq", _) => return None,
            // A later version may sign in another way as well.
            _ => {}
        }
    }
    let fine = !signatures.is_empty() && signatures.len() <= MAX_SIGNATURES;
    fine.then_some((SignatureStamp { at_ms: at?, seq }, signatures))
}

/// Digits alone: what is signed is written again from the number, so there is one way to write it.
fn digits(text: &str) -> Option<u64> {
    let number: u64 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

/// In hexadecimal digits, lower case.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .map(|digit| char::from(b"0123456789abcdef"[usize::from(digit)]))
        .collect()
}

/// Back again; none for what is not lower case hexadecimal.
#[must_use]
pub fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let bytes = text.as_bytes();
    let pairs = bytes.chunks(2).map(|pair| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?));
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OLD: &[u8] = b"the old secret, 32 bytes of it..";
    const NEW: &[u8] = b"the new secret, 32 bytes of it..";

    /// Goal: the MAC is HMAC-SHA256 as everybody computes it (RFC 4231, case 2, lengthened key: case 1).
    #[test]
    fn the_mac_is_the_published_one() {
        let secrets = Secrets::new(&[[0x0b; 20]]).unwrap();
        let mac = hex(&secrets.sign(&[b"Hi ", b"There"]));
        assert_eq!(mac, "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    }

    /// Goal: a receiver can check a message with any HMAC tool: `printf '5.7.{}' | openssl dgst -sha256 -hmac …`.
    #[test]
    fn a_header_is_what_the_docs_say() {
        let secrets = Secrets::new(&[OLD]).unwrap();
        let stamp = SignatureStamp { at_ms: 5, seq: Some(7) };
        let header = header(&secrets, stamp, b"{}");
        assert_eq!(header, format!("t=5,seq=7,v1={}", hex(&secrets.sign(&[b"5.7.{}"]))));
        assert_eq!(verify(&secrets, &header, b"{}", None), Ok(stamp));
    }

    /// Goal: a secret can be changed without a gap.
    #[test]
    fn two_secrets_verify_and_the_first_signs() {
        let [before, during, after] = [&[OLD][..], &[NEW, OLD], &[NEW]].map(|secrets| Secrets::new(secrets).unwrap());
        let stamp = SignatureStamp { at_ms: 1, seq: None };
        let (old, new) = (header(&before, stamp, b"x"), header(&during, stamp, b"x"));
        assert_eq!(verify(&during, &old, b"x", None), Ok(stamp));
        assert_eq!(verify(&after, &new, b"x", None), Ok(stamp));
        assert_eq!(verify(&before, &new, b"x", None), Err(Forged::Wrong));
        assert_eq!(verify(&after, &old, b"x", None), Err(Forged::Wrong));
        assert!(matches!(Secrets::new::<&[u8]>(&[]), Err(Unfit::Number)));
        assert!(matches!(Secrets::new(&[OLD, NEW, OLD]), Err(Unfit::Number)));
        assert!(matches!(Secrets::new(&[&OLD[..15]]), Err(Unfit::Short)));
        assert!(!format!("{during:?}").contains("secret,"));
    }

    /// Goal: what is old, from the future, twice there or not there is refused.
    #[test]
    fn only_what_is_right_is_believed() {
        let secrets = Secrets::new(&[OLD]).unwrap();
        let header = header(&secrets, SignatureStamp { at_ms: 100_000, seq: Some(3) }, b"body");
        let check = |header: &str, now| verify(&secrets, header, b"body", Some((now, 1000))).map(|stamp| stamp.seq);
        assert_eq!(check(&header, 101_000), Ok(Some(3)));
        assert_eq!(check(&header, 99_000), Ok(Some(3)));
        assert_eq!(check(&header, 101_001), Err(Forged::NotNow));
        assert_eq!(check(&header, 98_999), Err(Forged::NotNow));
        let mac = header.rsplit('=').next().unwrap();
        for bad in [
            "",
            "t=100000",
            "nonsense",
            "v1=00",
            &format!("seq=3,v1={mac}"),
            &format!("t=100000,t=100000,seq=3,v1={mac}"),
            &format!("t=0100000,seq=3,v1={mac}"),
            &format!("t=+100000,seq=3,v1={mac}"),
            &format!("t=100000,seq=3,v1={}", mac.to_uppercase()),
            &format!("t=100000,seq=3,v1={mac}00"),
            &"v1=00,".repeat(400),
        ] {
            assert_eq!(check(bad, 100_000), Err(Forged::Unreadable), "{bad}");
        }
        for wrong in
            [format!("t=100000,seq=4,v1={mac}"), format!("t=100000,v1={mac}"), format!("t=10000,seq=3,v1={mac}")]
        {
            assert_eq!(check(&wrong, 100_000), Err(Forged::Wrong), "{wrong}");
        }
    }

    proptest! {
        /// Goal: nothing but the same stamp, body and secret verifies.
        #[test]
        fn a_changed_bit_is_found(body in prop::collection::vec(any::<u8>(), 1..40), at: u64, seq: Option<u64>, bit: prop::sample::Index) {
            let secrets = Secrets::new(&[OLD]).unwrap();
            let stamp = SignatureStamp { at_ms: at, seq };
            let header = header(&secrets, stamp, &body);
            prop_assert_eq!(verify(&secrets, &header, &body, None), Ok(stamp));
            let mut other = body.clone();
            let bit = bit.index(body.len() * 8);
            other[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(verify(&secrets, &header, &other, None), Err(Forged::Wrong));
        }

        /// Goal: hexadecimal digits come back as they went, and nothing panics.
        #[test]
        fn hex_comes_back(bytes in prop::collection::vec(any::<u8>(), 0..40), text in ".{0,12}") {
            prop_assert_eq!(unhex(&hex(&bytes)), Some(bytes));
            let _ = (unhex(&text), parse(&text));
        }
    }
}
