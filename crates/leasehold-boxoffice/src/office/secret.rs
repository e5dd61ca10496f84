//! Ids and secrets: how they are made, and what is stored of them.

use std::fmt;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::error::Error;
use crate::model::{Access, Idem};

/// The buyer's secret for a hold: 128 bits, as 32 hex digits. `Debug` hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct HoldKey(String);

impl HoldKey {
    /// Draws one.
    pub(crate) fn draw() -> Result<Self, Error> {
        Ok(Self(hex(&random()?)))
    }

    /// The text: a secret, for the buyer alone.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// What is stored of it.
    pub(crate) fn digest(&self) -> String {
        digest(&self.0)
    }

    /// Under a pad, for the stored answer of an idempotency key. Applied twice it is the key again.
    pub(crate) fn sealed(&self, pad: &[u8; 16]) -> String {
        seal(&self.0, pad)
    }

    pub(crate) fn unsealed(text: &str, pad: &[u8; 16]) -> Self {
        Self(seal(text, pad))
    }
}

impl fmt::Debug for HoldKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HoldKey(…)")
    }
}

impl Access {
    /// By the hold key that was shown.
    #[must_use]
    pub fn key(shown: &str) -> Self {
        Self::Key(digest(shown))
    }

    /// Whether it opens what is kept under this digest. The time it takes does not depend on where they differ.
    #[must_use]
    pub fn opens(&self, key_hash: &str) -> bool {
        match self {
            Self::Staff => true,
            Self::Key(shown) => shown.as_bytes().ct_eq(key_hash.as_bytes()).into(),
        }
    }
}

impl Idem {
    /// From what a caller gave: who they are, their key, and all that they ask (method, path, body).
    #[must_use]
    pub fn derive(scope: &str, key: &str, body: &[u8]) -> Self {
        let of = |label: &str| {
            let mut hasher = Sha256::new();
            for part in [label, scope, key] {
                hasher.update((part.len() as u64).to_be_bytes());
                hasher.update(part.as_bytes());
            }
            hasher.finalize()
        };
        let mut pad = [0; 16];
        pad.copy_from_slice(&of("pad")[..16]);
        Self { key: of("key").into(), body: Sha256::digest(body).into(), pad, old_pads: Vec::new() }
    }

    /// Hides hold keys under secrets of the server's, newest first. Who asks and the key that they gave can be guessed, and
    /// whoever reads the tables could otherwise have the hold key by such a guess.
    #[must_use]
    pub fn with_secrets(mut self, digests: impl IntoIterator<Item = [u8; 32]>) -> Self {
        let cut = |digest: [u8; 32]| {
            let mut pad = [0; 16];
            pad.copy_from_slice(&digest[..16]);
            pad
        };
        let mut pads = digests.into_iter().map(cut);
        if let Some(newest) = pads.next() {
            let bare = std::mem::replace(&mut self.pad, newest);
            self.old_pads = pads.chain([bare]).collect();
        }
        self
    }

    /// The hold key that is sealed in a stored answer. None: it was sealed under a secret that is not known here.
    pub(crate) fn unseal(&self, sealed: &str, key_hash: &str) -> Option<HoldKey> {
        let pads = std::iter::once(&self.pad).chain(&self.old_pads);
        pads.map(|pad| HoldKey::unsealed(sealed, pad)).find(|key| key.digest() == key_hash)
    }
}

/// A public name: a prefix, the moment (names of one hour lie side by side in a ledger's index), and 80 random bits.
pub(crate) fn name(prefix: &str, now: leasehold::Time) -> Result<String, Error> {
    let millis = now.as_nanos() / 1_000_000;
    Ok(format!("{prefix}{:011x}{}", millis & 0xfff_ffff_ffff, hex(&random()?[..10])))
}

fn digest(text: &str) -> String {
    hex(&Sha256::digest(text.as_bytes()))
}

fn seal(text: &str, pad: &[u8; 16]) -> String {
    let bits = u128::from_str_radix(text, 16).unwrap_or_default();
    format!("{:032x}", bits ^ u128::from_be_bytes(*pad))
}

fn random() -> Result<[u8; 16], Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|source| Error::Unavailable {
        part: "office",
        attempt: "drawing random bits from the operating system".into(),
        source: source.to_string().into(),
    })?;
    Ok(bytes)
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a stored answer gives the key back to who has the idempotency key, and hides it from who has not.
    #[test]
    fn a_sealed_key_opens_with_its_pad_alone() {
        let key = HoldKey::draw().unwrap();
        let mine = Idem::derive("ada", "k-1", b"{}");
        let sealed = key.sealed(&mine.pad);
        assert_ne!(sealed, key.expose());
        assert_eq!(HoldKey::unsealed(&sealed, &mine.pad), key);
        let other = Idem::derive("bob", "k-1", b"{}");
        assert_ne!(HoldKey::unsealed(&sealed, &other.pad), key);
        assert_ne!((mine.key, mine.pad), (other.key, other.pad), "keys are scoped to who asks");
        assert_eq!(Idem::derive("ada", "k-1", b"{ }").key, mine.key);
        assert_ne!(Idem::derive("ada", "k-1", b"{ }").body, mine.body);
    }

    /// Goal: who and which key can be guessed do not open it, a secret does, also after it was changed.
    #[test]
    fn a_sealed_key_needs_the_servers_secret() {
        let key = HoldKey::draw().unwrap();
        let guessed = Idem::derive("ada", "order-1002", b"{}");
        let (old, new) = ([1; 32], [2; 32]);
        let first = guessed.clone().with_secrets([old]);
        let sealed = key.sealed(&first.pad);
        assert_ne!(HoldKey::unsealed(&sealed, &guessed.pad), key, "a guess is not enough");
        assert_eq!(first.unseal(&sealed, &key.digest()), Some(key.clone()));
        assert_eq!(guessed.clone().with_secrets([new]).unseal(&sealed, &key.digest()), None, "never a wrong one");
        assert_eq!(guessed.clone().with_secrets([new, old]).unseal(&sealed, &key.digest()), Some(key.clone()));
        // What a version before sealed without any secret is found, too.
        assert_eq!(first.unseal(&key.sealed(&guessed.pad), &key.digest()), Some(key));
        assert_eq!(first.key, guessed.key, "the stored answer is found by the same key");
    }

    #[test]
    fn only_the_key_or_staff_opens() {
        let key = HoldKey::draw().unwrap();
        assert!(Access::key(key.expose()).opens(&key.digest()));
        assert!(!Access::key(HoldKey::draw().unwrap().expose()).opens(&key.digest()));
        assert!(!Access::key("").opens(&key.digest()));
        assert!(Access::Staff.opens(&key.digest()));
        assert_eq!(format!("{key:?}"), "HoldKey(…)");
    }
}
