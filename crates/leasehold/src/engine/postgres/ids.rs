//! Handles, secrets and lease ids.
//!
//! A handle names a claim from its first try to the end of its lease. The client draws it, so that every repeat of an
//! acquire has one effect. With a request id it is a digest of that id: every process draws the same one.
//! A lease id is `<handle>-<secret>`, each 32 hexadecimal digits.

use std::error::Error as StdError;
use std::fmt;

use leasehold_postgres::tokio_postgres::types::{FromSql, IsNull, ToSql, Type, private::BytesMut, to_sql_checked};
use sha2::{Digest as _, Sha256};

use crate::engine::LeaseId;

/// 128 bits, a `uuid` to the server. `Debug` hides them: half of them prove a lease.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Bits(pub [u8; 16]);

impl fmt::Debug for Bits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bits(…)")
    }
}

impl Bits {
    /// From the operating system's source of randomness.
    pub fn draw_random() -> Self {
        Self(random_bytes())
    }

    /// The handle of a request id. Principals may choose ids as they like: the zero byte cannot be in either.
    pub fn from_request(principal: &str, request: &str) -> Self {
        let digest = Sha256::new().chain_update(principal).chain_update([0]).chain_update(request).finalize();
        let mut bits = [0; 16];
        bits.copy_from_slice(&digest[..16]);
        Self(bits)
    }

    fn from_hex(text: &str) -> Option<Self> {
        let lower = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() != 32 || !text.bytes().all(lower) {
            return None;
        }
        u128::from_str_radix(text, 16).ok().map(|bits| Self(bits.to_be_bytes()))
    }

    /// As PostgreSQL writes a `uuid`, and in a message: digits with dashes.
    pub fn from_uuid_text(text: &str) -> Option<Self> {
        Self::from_hex(&text.replace('-', ""))
    }

    /// 32 hexadecimal digits.
    pub fn to_hex(self) -> String {
        format!("{:032x}", u128::from_be_bytes(self.0))
    }
}

impl ToSql for Bits {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        out.extend_from_slice(&self.0);
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::UUID
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for Bits {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn StdError + Sync + Send>> {
        Ok(Self(raw.try_into()?))
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::UUID
    }
}

/// The text form of a lease id.
pub(crate) fn lease_id(handle: Bits, secret: Bits) -> LeaseId {
    LeaseId::new(format!("{}-{}", handle.to_hex(), secret.to_hex()))
}

/// Handle and secret of a lease id; none for text that is no id of this engine.
pub(crate) fn parse_lease_id(lease: &LeaseId) -> Option<(Bits, Bits)> {
    let (handle, secret) = lease.expose().split_once('-')?;
    Some((Bits::from_hex(handle)?, Bits::from_hex(secret)?))
}

/// Random bytes from the operating system.
pub(crate) fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // Without randomness there are no secrets, and there is nothing to fall back on.
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_id_is_read_as_it_was_written() {
        let (handle, secret) = (Bits::draw_random(), Bits::draw_random());
        assert_eq!(parse_lease_id(&lease_id(handle, secret)), Some((handle, secret)));
        let dashes = "0a1b2c3d-0000-1111-2222-333344445555";
        assert_eq!(Bits::from_uuid_text(dashes).map(Bits::to_hex), Some("0a1b2c3d000011112222333344445555".into()));
        for text in ["", "-", "1-00", &"0".repeat(65), &format!("{}-{}", "A".repeat(32), "0".repeat(32))] {
            assert_eq!(parse_lease_id(&LeaseId::new(text)), None, "{text}");
        }
    }

    #[test]
    fn request_ids_of_two_principals_have_two_handles() {
        assert_eq!(Bits::from_request("ada", "r1"), Bits::from_request("ada", "r1"));
        assert_ne!(Bits::from_request("ada", "r1"), Bits::from_request("ad", "ar1"));
    }
}
