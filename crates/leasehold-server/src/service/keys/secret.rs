//! The text of an API key, and what is kept of it.
//!
//! ```text
//!   lh_k3f9a1b2_7q…(32 letters and digits)
//!      │        └ the secret: 160 bits from the operating system
//!      └ the id: public, in listings, logs and `key revoke`
//! ```
//!
//! A plain SHA-256 is enough for 160 random bits: there is nothing to guess, so there is nothing to slow down.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

/// Digits of Crockford's base 32, in lower case: no i, l, o or u.
const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const ID_CHARS: usize = 8;
const SECRET_CHARS: usize = 32;
/// A longer text is refused before it is hashed.
const MAX_KEY_BYTES: usize = 256;
const HASH_PREFIX: &str = "sha256:";

/// A new key: the only moment its secret is known.
pub struct NewKey {
    /// Its public name.
    pub id: String,
    text: String,
}

impl NewKey {
    /// A fresh key.
    ///
    /// # Errors
    ///
    /// The operating system has no random bits to give.
    pub fn random() -> Result<Self, getrandom::Error> {
        let mut bits = [0; ID_CHARS + SECRET_CHARS];
        getrandom::fill(&mut bits)?;
        // Five bits of each byte: 32 digits are 160 bits, none more likely than another.
        let digits: String = bits.iter().map(|bits| char::from(DIGITS[usize::from(bits & 31)])).collect();
        let (id, secret) = digits.split_at(ID_CHARS);
        Ok(Self { id: id.to_owned(), text: format!("lh_{id}_{secret}") })
    }

    /// The text of the key: a secret.
    pub fn expose(&self) -> &str {
        &self.text
    }

    /// The digest that is stored.
    pub fn digest(&self) -> KeyDigest {
        KeyDigest(Sha256::digest(self.text.as_bytes()).into())
    }
}

impl fmt::Debug for NewKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NewKey({}, …)", self.id)
    }
}

/// Whether this could be the id of a key.
pub fn is_id(text: &str) -> bool {
    text.len() == ID_CHARS && text.bytes().all(|byte| DIGITS.contains(&byte))
}

/// The id in a text: the id itself, or a whole key.
pub fn id_in(text: &str) -> &str {
    text.strip_prefix("lh_").and_then(|rest| rest.split('_').next()).unwrap_or(text)
}

/// The stored digest of a key: the SHA-256 of its text.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct KeyDigest([u8; 32]);

impl KeyDigest {
    /// The digest of no key: compared where no key was found, for constant time.
    pub const OF_NO_KEY: Self = Self([0; 32]);

    /// The digest of a text that was sent as a key; none if it is too long for one.
    pub fn of_key(key: &str) -> Option<Self> {
        (key.len() <= MAX_KEY_BYTES).then(|| Self(Sha256::digest(key.as_bytes()).into()))
    }

    /// All of it. Compare in constant time.
    pub const fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The first 8 bytes, for the lookup.
    pub fn head(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }
}

impl fmt::Debug for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Digest(…)")
    }
}

impl Serialize for KeyDigest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let hex = leasehold_support::hex::encode(&self.0);
        serializer.serialize_str(&format!("{HASH_PREFIX}{hex}"))
    }
}

impl<'de> Deserialize<'de> for KeyDigest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_digest(&text).ok_or_else(|| serde::de::Error::custom("a hash is sha256: and 64 hexadecimal digits"))
    }
}

fn parse_digest(text: &str) -> Option<KeyDigest> {
    let hex = text.strip_prefix(HASH_PREFIX).filter(|hex| hex.len() == 64 && hex.is_ascii())?;
    let mut bytes = [0; 32];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(KeyDigest(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: keys have the promised shape and do not come twice.
    #[test]
    fn keys_have_their_shape_and_are_all_different() {
        let mut seen = std::collections::HashSet::new();
        for _ in 0..10_000 {
            let key = NewKey::random().unwrap();
            let parts: Vec<&str> = key.expose().split('_').collect();
            assert!(matches!(parts[..], ["lh", id, secret] if is_id(id) && secret.len() == 32), "{key:?}");
            assert_eq!(id_in(key.expose()), key.id);
            assert!(seen.insert(key.expose().to_owned()));
        }
    }

    /// Goal: every digit of the alphabet comes at every place, so no bits are lost on the way.
    #[test]
    fn every_digit_comes_at_every_place() {
        let mut seen = vec![std::collections::HashSet::new(); SECRET_CHARS];
        for _ in 0..2_000 {
            let key = NewKey::random().unwrap();
            for (at, digit) in key.expose().rsplit('_').next().unwrap().bytes().enumerate() {
                seen[at].insert(digit);
            }
        }
        assert!(seen.iter().all(|digits| digits.len() == 32));
    }

    /// Goal: neither a key nor its digest can be printed by accident.
    #[test]
    fn debug_hides_the_secret() {
        let key = NewKey::random().unwrap();
        let secret = key.expose().rsplit('_').next().unwrap().to_owned();
        assert!(!format!("{key:?} {:?}", key.digest()).contains(&secret));
    }

    /// Goal: the digest is SHA-256 of the text, as other tools compute it (`printf %s lh_x | sha256sum`).
    #[test]
    fn the_digest_is_sha_256() {
        let known = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(parse_digest(known).as_ref(), KeyDigest::of_key("abc").as_ref(), "published vector");
        for bad in ["", "sha256:", "sha256:zz", &known[..70], &known[7..], "sha256:é".repeat(9).as_str()] {
            assert_eq!(parse_digest(bad), None, "{bad}");
        }
        assert_eq!(KeyDigest::of_key(&"x".repeat(257)), None);
    }
}
