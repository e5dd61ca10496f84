//! Keys of advisory locks, and how other clients make them from names: whoever uses the same scheme is excluded.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha1::Sha1;
use sha2::{Digest as _, Sha256};

/// A key: one number of 64 bits, or two of 32. The two spaces have nothing to do with each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AdvisoryKey {
    /// `pg_advisory_lock(bigint)`.
    Single(i64),
    /// `pg_advisory_lock(int, int)`.
    Pair(i32, i32),
    /// `pg_advisory_lock(hashtext(name))`: the server hashes.
    Hashtext(String),
    /// `pg_advisory_lock(hashtextextended(name, 0))`: the server hashes.
    HashtextExtended(String),
}

impl AdvisoryKey {
    /// As `sqlx::postgres::PgAdvisoryLock::new` makes it.
    ///
    /// ```
    /// use leasehold::advisory::AdvisoryKey;
    ///
    /// let key = AdvisoryKey::sqlx("my first Postgres advisory lock!");
    /// assert_eq!(key, AdvisoryKey::Single(-5560419505042474287));
    /// ```
    #[must_use]
    pub fn sqlx(name: &str) -> Self {
        // HKDF with SHA-256, no salt, one block.
        let extracted = hmac_sha256(&[0; 32], &[name.as_bytes()]);
        let expanded = hmac_sha256(&extracted, &[b"SQLx (Rust) Postgres advisory lock", &[1]]);
        Self::Single(i64::from_le_bytes(first_eight(&expanded)))
    }

    /// As the Ruby gem `with_advisory_lock` makes it, without a prefix.
    #[must_use]
    pub fn with_advisory_lock(name: &str) -> Self {
        Self::Pair((crc32(name.as_bytes()) & 0x7fff_ffff).cast_signed(), 0)
    }

    /// As `PostgresDistributedLock` of madelson's DistributedLock (.NET) makes it from a name, with hashing allowed.
    #[must_use]
    pub fn madelson(name: &str) -> Self {
        if let Some(bits) = pack_ascii(name) {
            return Self::from_halves(bits);
        }
        if let Some(number) = parse_hex(name, 16) {
            return Self::Single(number.cast_signed());
        }
        if let Some((high, low)) = name.split_once(',')
            && let (Some(high), Some(low)) = (parse_hex(high, 8), parse_hex(low, 8))
        {
            return Self::from_halves((high << 32) | low);
        }
        Self::Single(i64::from_le_bytes(first_eight(&Sha1::digest(name.as_bytes()))))
    }

    /// As Symfony's `PostgreSqlStore` makes it.
    #[must_use]
    pub fn symfony(name: &str) -> Self {
        Self::Single(i64::from(crc32(name.as_bytes())))
    }

    /// As Oban (Elixir) makes it: Erlang's `phash2` of the prefix of its tables, and a base key. The base key is a constant of
    /// the part of Oban that locks, or what `phash2` makes of a job that is unique. Oban locks in transactions.
    ///
    /// ```
    /// use leasehold::advisory::AdvisoryKey;
    ///
    /// assert_eq!(AdvisoryKey::oban("public", 7), AdvisoryKey::Single(46515530 + 7));
    /// ```
    #[must_use]
    pub fn oban(prefix: &str, base_key: i64) -> Self {
        Self::Single(base_key.wrapping_add(i64::from(erlang_phash2(prefix.as_bytes()))))
    }

    /// As hand-written JavaScript often makes it: the absolute value of Java's `hashCode`.
    #[must_use]
    pub fn java_hash(name: &str) -> Self {
        let hash = name.encode_utf16().fold(0_i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)));
        Self::Single(i64::from(hash).abs())
    }

    fn from_halves(bits: u64) -> Self {
        let low = (bits & 0xffff_ffff) as u32;
        Self::Pair(((bits >> 32) as u32).cast_signed(), low.cast_signed())
    }

    /// The argument of the lock functions, with `$1` and `$2`.
    pub(super) fn argument(&self) -> &'static str {
        match self {
            Self::Single(_) => "$1::bigint",
            Self::Pair(..) => "$1::int, $2::int",
            Self::Hashtext(_) => "hashtext($1::text)",
            Self::HashtextExtended(_) => "hashtextextended($1::text, 0)",
        }
    }

    /// For people.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Single(key) => format!("advisory lock {key}"),
            Self::Pair(class, key) => format!("advisory lock ({class}, {key})"),
            Self::Hashtext(name) | Self::HashtextExtended(name) => format!("advisory lock of {name}"),
        }
    }
}

fn hmac_sha256(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

fn first_eight(bytes: &[u8]) -> [u8; 8] {
    let mut first = [0; 8];
    first.copy_from_slice(&bytes[..8]);
    first
}

/// The CRC of zlib, bit by bit: names are short.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

/// Erlang's `phash2` of a binary: the block hash of Bob Jenkins (1996) from a start of Erlang's own, of which 27 bits count.
fn erlang_phash2(bytes: &[u8]) -> u32 {
    const GOLDEN: u32 = 0x9e37_79b9;
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0_u32, |word, byte| (word << 8) | u32::from(*byte));
    let mut state = [GOLDEN, GOLDEN, GOLDEN.wrapping_mul(13)];
    let mut add = |words: [u32; 3]| {
        state.iter_mut().zip(words).for_each(|(part, word)| *part = part.wrapping_add(word));
        mix_words(&mut state);
    };
    let (blocks, tail) = bytes.as_chunks::<12>();
    blocks.iter().for_each(|block| add([word(&block[..4]), word(&block[4..8]), word(&block[8..])]));
    if !bytes.is_empty() {
        let part = |from: usize, to: usize| word(&tail[from.min(tail.len())..to.min(tail.len())]);
        // The lowest byte of the last word is for the length.
        add([part(0, 4), part(4, 8), (part(8, 12) << 8).wrapping_add(bytes.len() as u32)]);
    }
    state[2] & 0x07ff_ffff
}

fn mix_words([a, b, c]: &mut [u32; 3]) {
    for [right, left, last] in [[13, 8, 13], [12, 16, 5], [3, 10, 15]] {
        *a = a.wrapping_sub(*b).wrapping_sub(*c) ^ (*c >> right);
        *b = b.wrapping_sub(*c).wrapping_sub(*a) ^ (*a << left);
        *c = c.wrapping_sub(*a).wrapping_sub(*b) ^ (*b >> last);
    }
}

/// Up to nine characters of seven bits, a zero, and ones.
fn pack_ascii(name: &str) -> Option<u64> {
    if name.len() > 9 || !name.is_ascii() {
        return None;
    }
    let packed = name.bytes().fold(0_u64, |bits, byte| (bits << 7) | u64::from(byte));
    Some((name.len()..9).fold(packed << 1, |bits, _| (bits << 7) | 0x7f))
}

fn parse_hex(text: &str, digits: usize) -> Option<u64> {
    if text.len() != digits || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    u64::from_str_radix(text, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_the_keys_of_other_clients() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926, "published vector");
        assert_eq!(AdvisoryKey::symfony("123456789"), AdvisoryKey::Single(0xcbf4_3926));
        assert_eq!(AdvisoryKey::with_advisory_lock("123456789"), AdvisoryKey::Pair(0x4bf4_3926, 0));
        assert_eq!(AdvisoryKey::java_hash("hello"), AdvisoryKey::Single(99_162_322), "Java's hashCode");
        // Java's hashCode of this text is the lowest number of 32 bits.
        assert_eq!(AdvisoryKey::java_hash("polygenelubricants"), AdvisoryKey::Single(2_147_483_648));
        assert_eq!(AdvisoryKey::madelson("0000000000000007"), AdvisoryKey::Single(7));
        assert_eq!(AdvisoryKey::madelson("00000001,ffffffff"), AdvisoryKey::Pair(1, -1));
        // As `erlang:phash2/1` of OTP 25 answers.
        for (prefix, hash) in [("public", 46_515_530), ("", 13_708_901), ("oban_private", 14_963_574)] {
            assert_eq!(AdvisoryKey::oban(prefix, 0), AdvisoryKey::Single(hash), "{prefix}");
        }
        let long = AdvisoryKey::oban("a prefix that is longer than twelve bytes", -1);
        assert_eq!(long, AdvisoryKey::Single(118_477_750));
        // An empty name is a zero and 63 ones; nine characters fill all but the last bit.
        assert_eq!(AdvisoryKey::madelson(""), AdvisoryKey::Pair(i32::MAX, -1));
        let nine = b"abcdefghi".iter().fold(0_u64, |bits, byte| (bits << 7) | u64::from(*byte)) << 1;
        assert_eq!(AdvisoryKey::madelson("abcdefghi"), AdvisoryKey::from_halves(nine));
        // SHA-1 of "The quick brown fox jumps over the lazy dog" begins with 2fd4e1c67a2d28fc.
        let fox = AdvisoryKey::madelson("The quick brown fox jumps over the lazy dog");
        assert_eq!(fox, AdvisoryKey::Single(i64::from_le_bytes([0x2f, 0xd4, 0xe1, 0xc6, 0x7a, 0x2d, 0x28, 0xfc])));
    }
}
