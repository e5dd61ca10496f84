//! What names a lease and what proves it: the public token, and the secret beside it.

use core::fmt;
use core::num::NonZeroU64;
use core::str::FromStr;

use subtle::ConstantTimeEq;

/// A fencing token: rises with every grant, stays through renewals, never comes twice.
///
/// Public. It names the lease in listings, and the resource compares it to refuse a stale holder.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(NonZeroU64);

impl Token {
    /// The first token there can be.
    pub const MIN: Self = Self(NonZeroU64::MIN);

    /// The last token there can be: it still fits a SQL `bigint` and a RESP integer.
    pub const MAX: Self = match NonZeroU64::new(i64::MAX as u64) {
        Some(number) => Self(number),
        None => unreachable!(),
    };

    /// The highest floor that an engine takes. Every start of an engine may skip a few million tokens, so a floor close
    /// to [`Token::MAX`] would leave an engine that soon cannot grant anything.
    pub const MAX_FLOOR: Self = match NonZeroU64::new(i64::MAX as u64 - (1 << 32)) {
        Some(number) => Self(number),
        None => unreachable!(),
    };

    /// The token with this number. Zero is no token, and neither is anything above [`Token::MAX`].
    #[must_use]
    pub const fn new(number: u64) -> Option<Self> {
        match NonZeroU64::new(number) {
            Some(number) if number.get() <= Self::MAX.get() => Some(Self(number)),
            _ => None,
        }
    }

    /// The token as a plain number, to store beside the resource.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.0)
    }
}

/// 128 random bits that prove ownership. Never shown by `Debug`, compared in constant time.
#[derive(Clone, Copy)]
pub struct Secret([u8; 16]);

impl Secret {
    /// Wraps bits that came from a cryptographic source of randomness.
    #[must_use]
    pub const fn new(bits: [u8; 16]) -> Self {
        Self(bits)
    }

    /// The bits themselves: for the journal and for the holder, for nobody else.
    #[must_use]
    pub const fn expose(&self) -> &[u8; 16] {
        &self.0
    }

    /// Whether two secrets are the same, in a time that does not depend on where they differ.
    #[must_use]
    pub fn matches(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// The key to a lease: which one (token), and the proof that it is yours (secret).
///
/// Looking up by the public half and comparing the secret half keeps the comparison constant in time;
/// a table keyed by the secret would leak it through its buckets. The text form is the token in hex,
/// a dash, and the secret in hex.
#[derive(Clone, Copy, Debug)]
pub struct LeaseKey {
    /// Which lease.
    pub token: Token,
    /// The proof.
    pub secret: Secret,
}

impl LeaseKey {
    /// The text a holder keeps: `2a-0f1e…`. It is a secret.
    #[must_use]
    pub fn expose(&self) -> String {
        let digits = (16 - self.token.get().leading_zeros() as usize / 4).max(1);
        let mut text = String::with_capacity(digits + 33);
        let digit = |nibble: u64| char::from(b"0123456789abcdef"[(nibble & 15) as usize]);
        text.extend((0..digits).rev().map(|place| digit(self.token.get() >> (4 * place))));
        text.push('-');
        for byte in self.secret.expose().iter().map(|byte| u64::from(*byte)) {
            text.push(digit(byte >> 4));
            text.push(digit(byte));
        }
        text
    }
}

/// The text is not a lease id of this engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not a lease id")]
pub struct NotALeaseId;

impl FromStr for LeaseKey {
    type Err = NotALeaseId;

    fn from_str(text: &str) -> Result<Self, NotALeaseId> {
        let (token, secret) = text.split_once('-').ok_or(NotALeaseId)?;
        if token.is_empty() || token.len() > 16 || secret.len() != 32 || !is_hex(token) || !is_hex(secret) {
            return Err(NotALeaseId);
        }
        let token = u64::from_str_radix(token, 16).ok().and_then(Token::new).ok_or(NotALeaseId)?;
        let bits = u128::from_str_radix(secret, 16).map_err(|_| NotALeaseId)?;
        Ok(Self { token, secret: Secret(bits.to_be_bytes()) })
    }
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_key_survives_its_text_form() {
        for number in [1, 15, 16, 42, 255, 256, u64::from(u32::MAX), Token::MAX.get()] {
            let key = LeaseKey { token: Token::new(number).unwrap(), secret: Secret::new([0x0f; 16]) };
            let text = key.expose();
            assert_eq!(text, format!("{number:x}-{}", "0f".repeat(16)));
            let back: LeaseKey = text.parse().unwrap();
            assert_eq!(back.token, key.token);
            assert!(back.secret.matches(&key.secret));
        }
    }

    #[test]
    fn a_token_fits_a_signed_number() {
        assert_eq!(Token::new(1), Some(Token::MIN));
        assert_eq!(Token::new((1 << 63) - 1), Some(Token::MAX));
        for number in [0, 1 << 63, u64::MAX] {
            assert_eq!(Token::new(number), None, "{number}");
        }
    }

    #[test]
    fn text_that_is_no_lease_key_is_refused() {
        let secret = "0".repeat(32);
        for text in [
            String::new(),
            "-".into(),
            format!("0-{secret}"),
            format!("+2a-{secret}"),
            format!("2A-{secret}"),
            format!("11112222333344445-{secret}"),
            format!("8000000000000000-{secret}"),
            format!("2a-{secret}0"),
            format!("2a-+{}", &secret[1..]),
        ] {
            assert_eq!(text.parse::<LeaseKey>().err(), Some(NotALeaseId), "{text:?}");
        }
    }

    #[test]
    fn debug_shows_no_secret() {
        let key = LeaseKey { token: Token::new(1).unwrap(), secret: Secret::new([0xab; 16]) };
        assert!(!format!("{key:?}").contains("ab"));
    }
}
