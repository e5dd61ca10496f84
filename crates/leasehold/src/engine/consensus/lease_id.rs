//! Lease ids that name a resource: `<token hex>-<letter><base64url of the first name>-<secret, 32 hex>`.
//!
//! # Laws
//!
//! 1. What was written is read back; other text is no lease id.
//! 2. The store holds only [`PublicId`], a digest of the secret. Who reads the store cannot act on a lease.

use std::fmt;

use leasehold_core::Secret;
use sha2::{Digest as _, Sha256};

use crate::engine::{LeaseId, Mode, Token};

/// Digits of base64 that are safe in a URL, RFC 4648 section 5.
const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// The mode of a contender, as one letter of its key or id. Capacity and count are elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum ModeLetter {
    Exclusive,
    Shared,
    Permits,
}

impl ModeLetter {
    pub const fn from_mode(mode: Mode) -> Self {
        match mode {
            Mode::Exclusive => Self::Exclusive,
            Mode::Shared => Self::Shared,
            Mode::Permits { .. } => Self::Permits,
        }
    }

    pub const fn from_char(letter: char) -> Option<Self> {
        match letter {
            'x' => Some(Self::Exclusive),
            's' => Some(Self::Shared),
            'p' => Some(Self::Permits),
            _ => None,
        }
    }

    pub const fn to_char(self) -> char {
        match self {
            Self::Exclusive => 'x',
            Self::Shared => 's',
            Self::Permits => 'p',
        }
    }
}

/// Names a lease in the store: a digest of its secret. Public.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PublicId(pub [u8; 16]);

impl PublicId {
    /// `domain` separates engines: the same secret has another public id in each.
    pub fn from_secret(domain: &str, secret: &Secret) -> Self {
        let digest = Sha256::new().chain_update(domain).chain_update(secret.expose()).finalize();
        let mut bits = [0; 16];
        bits.copy_from_slice(&digest[..16]);
        Self(bits)
    }

    /// 32 lower-case hexadecimal digits.
    pub fn to_hex(self) -> String {
        format!("{:032x}", u128::from_be_bytes(self.0))
    }

    pub fn from_hex(text: &str) -> Option<Self> {
        parse_hex(text).map(Self)
    }
}

impl fmt::Debug for PublicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicId({})", self.to_hex())
    }
}

/// A lease id, taken apart. `Debug` hides the secret.
#[derive(Clone, Debug)]
pub(crate) struct NamedLease {
    /// The fencing token.
    pub token: Token,
    /// How the first resource is held.
    pub letter: ModeLetter,
    /// Whether the claim has more than one resource.
    pub several: bool,
    /// The first resource of the claim.
    pub first: String,
    /// Proves it.
    pub secret: Secret,
}

impl NamedLease {
    pub fn to_lease_id(&self) -> LeaseId {
        let letter = self.letter.to_char();
        let letter = if self.several { letter.to_ascii_uppercase() } else { letter };
        let secret = u128::from_be_bytes(*self.secret.expose());
        let name = encode_base64url(self.first.as_bytes());
        LeaseId::new(format!("{:x}-{letter}{name}-{secret:032x}", self.token.get()))
    }

    /// None for text that is no lease id of these engines. Split at the first and the last dash: base64url has dashes too.
    pub fn parse(lease: &LeaseId) -> Option<Self> {
        let (token, rest) = lease.expose().split_once('-')?;
        let (name, secret) = rest.rsplit_once('-')?;
        let plain = !token.starts_with('0') && token.len() <= 16 && token.bytes().all(is_hex_digit);
        let token = plain.then(|| u64::from_str_radix(token, 16).ok()).flatten().and_then(Token::new)?;
        let letter = name.chars().next()?;
        let first = String::from_utf8(decode_base64url(name.get(1..)?)?).ok()?;
        Some(Self {
            token,
            letter: ModeLetter::from_char(letter.to_ascii_lowercase())?,
            several: letter.is_ascii_uppercase(),
            first,
            secret: Secret::new(parse_hex(secret)?),
        })
    }
}

/// 128 bits from the operating system.
pub(crate) fn draw_secret() -> Secret {
    Secret::new(draw_bytes())
}

/// Random bytes from the operating system.
pub(crate) fn draw_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // Without randomness there are no secrets, and there is nothing to fall back on.
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
    bytes
}

const fn is_hex_digit(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

fn parse_hex(text: &str) -> Option<[u8; 16]> {
    if text.len() != 32 || !text.bytes().all(is_hex_digit) {
        return None;
    }
    u128::from_str_radix(text, 16).ok().map(u128::to_be_bytes)
}

fn encode_base64url(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let joined = chunk.iter().fold(0_u32, |joined, byte| (joined << 8) | u32::from(*byte));
        let joined = joined << (8 * (3 - chunk.len()));
        for place in 0..=chunk.len() {
            let digit = (joined >> (18 - 6 * place)) & 63;
            text.push(char::from(DIGITS[digit as usize]));
        }
    }
    text
}

/// None for text that no encoder writes: an id has one text form.
fn decode_base64url(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
    for chunk in text.as_bytes().chunks(4) {
        let mut joined = 0_u32;
        for byte in chunk {
            let digit = DIGITS.iter().position(|digit| digit == byte)?;
            joined = (joined << 6) | u32::try_from(digit).ok()?;
        }
        joined <<= 6 * (4 - chunk.len());
        let whole = match chunk.len() {
            4 => 3,
            3 if joined & 0xff == 0 => 2,
            2 if joined & 0xffff == 0 => 1,
            _ => return None,
        };
        bytes.extend_from_slice(&joined.to_be_bytes()[1..=whole]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lease(first: &str, several: bool) -> NamedLease {
        let token = Token::new(42).expect("a token");
        let secret = Secret::new([0xab; 16]);
        NamedLease { token, letter: ModeLetter::Permits, several, first: first.into(), secret }
    }

    /// Goal: the form is the documented one, since other programs show it.
    #[test]
    fn a_lease_id_has_the_documented_form() {
        let secret = "ab".repeat(16);
        assert_eq!(lease("nightly", false).to_lease_id().expose(), format!("2a-pbmlnaHRseQ-{secret}"));
        assert_eq!(lease("a?>", true).to_lease_id().expose(), format!("2a-PYT8--{secret}"));
    }

    /// Goal: the longest name fits in the longest lease id.
    #[test]
    fn the_longest_name_makes_a_lease_id_within_bounds() {
        let longest = NamedLease { token: Token::MAX, ..lease(&"n".repeat(512), true) };
        assert!(longest.to_lease_id().expose().len() <= LeaseId::MAX_BYTES);
    }

    #[test]
    fn other_text_is_no_lease_id() {
        let secret = "0".repeat(32);
        for text in [
            String::new(),
            "-".into(),
            format!("2a-{secret}"),
            format!("2a--{secret}"),
            format!("2a-qYQ-{secret}"),
            format!("0-xYQ-{secret}"),
            format!("02a-xYQ-{secret}"),
            format!("2A-xYQ-{secret}"),
            format!("+2a-xYQ-{secret}"),
            format!("8000000000000000-xYQ-{secret}"),
            format!("2a-xYQ-{secret}0"),
            format!("2a-xYQ-{}", "A".repeat(32)),
            format!("2a-xYR-{secret}"),
            format!("2a-xYQ=-{secret}"),
            format!("2a-xY-{secret}"),
            format!("2a-x_w-{secret}"),
        ] {
            assert!(NamedLease::parse(&LeaseId::new(text.as_str())).is_none(), "{text}");
        }
    }

    /// Goal: the digest in the store names one lease of one engine, and its value is the documented one.
    #[test]
    fn a_public_id_is_a_digest_of_domain_and_secret() {
        let secret = Secret::new(*b"0123456789abcdef");
        let etcd = PublicId::from_secret("leasehold etcd 1", &secret);
        assert_ne!(etcd, PublicId::from_secret("leasehold zookeeper 1", &secret));
        assert_ne!(etcd, PublicId::from_secret("leasehold etcd 1", &Secret::new([0; 16])));
        assert_eq!(PublicId::from_hex(&etcd.to_hex()), Some(etcd));
        let whole = Sha256::digest(b"leasehold etcd 10123456789abcdef");
        assert_eq!(etcd.0, whole[..16]);
    }

    #[test]
    fn debug_shows_no_secret() {
        assert!(!format!("{:?}", lease("n", false)).contains("abab"));
    }

    proptest! {
        /// Goal: what was written is read back, for every name.
        #[test]
        fn a_lease_id_is_read_as_it_was_written(
            number in 1..=Token::MAX.get(), at in 0..3_usize, several: bool, first in "\\PC{1,60}", bits: [u8; 16],
        ) {
            let letter = [ModeLetter::Exclusive, ModeLetter::Shared, ModeLetter::Permits][at];
            let token = Token::new(number).expect("a token");
            let wrote = NamedLease { token, letter, several, first, secret: Secret::new(bits) };
            let id = wrote.to_lease_id();
            prop_assert!(id.expose().bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte)));
            let read = NamedLease::parse(&id).expect("it is an id");
            prop_assert_eq!((read.token, read.letter, read.several), (wrote.token, wrote.letter, wrote.several));
            prop_assert_eq!((&read.first, read.secret.expose()), (&wrote.first, wrote.secret.expose()));
        }

        /// Goal: no text is read as an id that would be written another way.
        #[test]
        fn an_id_has_one_text_form(text in "[0-9a-f]{1,3}-[xspXSP][A-Za-z0-9_-]{0,6}-[0-9a-f]{32}") {
            if let Some(read) = NamedLease::parse(&LeaseId::new(text.as_str())) {
                prop_assert_eq!(read.to_lease_id(), LeaseId::new(text));
            }
        }

        #[test]
        fn base64_is_read_as_it_was_written(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            prop_assert_eq!(decode_base64url(&encode_base64url(&bytes)), Some(bytes));
        }
    }
}
