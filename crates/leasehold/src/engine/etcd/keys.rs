//! The keys of the engine, and which keys are whose.
//!
//! ```text
//! prefix NAME / x|s|p PUBLIC     a contender of ours: its place in the queue, then its lease
//! prefix NAME / HEX-OF-LEASE     a contender of another client: etcdctl lock, Go's Mutex and Election
//! prefix \x01 e/ PUBLIC          an ending
//! prefix \x01 q/ HASH            a request id
//! prefix \x01 s/ SESSION         a session marker
//! ```
//!
//! Names are taken as they are, slashes too: that is what `etcdctl lock a/b` does. No name holds a control character, so
//! `\x01` is ours alone. Other clients' suffixes are hexadecimal, so ours sort after them, by letter.

use sha2::{Digest as _, Sha256};

use super::messages::StoredKey;
use crate::engine::Mode;
use crate::engine::consensus::lease_id::{ModeLetter, PublicId};

/// First key and the key after the last.
pub(super) type KeyRange = (Vec<u8>, Vec<u8>);

/// Makes and reads keys under one prefix.
#[derive(Clone, Debug)]
pub(super) struct KeyLayout {
    prefix: Vec<u8>,
}

/// Who a key directly under a name belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ContenderKey {
    Ours(ModeLetter, PublicId),
    /// It counts as exclusive. `true`: it is a lock key as Go's library makes it.
    Foreign(bool),
}

impl KeyLayout {
    pub fn new(prefix: &str) -> Self {
        Self { prefix: prefix.as_bytes().to_vec() }
    }

    /// All keys under the prefix.
    pub fn all(&self) -> KeyRange {
        match self.prefix.is_empty() {
            // etcd takes no empty key: this pair is its way to say all keys.
            true => (vec![0], vec![0]),
            false => (self.prefix.clone(), end_of_prefix(&self.prefix)),
        }
    }

    /// The prefix and a text.
    pub fn raw(&self, text: &str) -> Vec<u8> {
        [&self.prefix[..], text.as_bytes()].concat()
    }

    /// All keys of contenders for a name, and keys of deeper names.
    pub fn queue(&self, name: &str) -> KeyRange {
        let start = [&self.prefix[..], name.as_bytes(), b"/"].concat();
        let end = end_of_prefix(&start);
        (start, end)
    }

    /// The ranges of a queue that must be empty for a claim in this mode.
    pub fn conflicts(&self, name: &str, mode: Mode) -> Vec<KeyRange> {
        let (start, end) = self.queue(name);
        if mode != Mode::Shared {
            return vec![(start, end)];
        }
        let shared = [&start[..], b"s"].concat();
        let after_shared = [&start[..], b"t"].concat();
        vec![(start, shared), (after_shared, end)]
    }

    pub fn contender(&self, name: &str, mode: Mode, public: PublicId) -> Vec<u8> {
        self.contender_by_letter(name, ModeLetter::from_mode(mode), public)
    }

    pub fn contender_by_letter(&self, name: &str, letter: ModeLetter, public: PublicId) -> Vec<u8> {
        let suffix = format!("{name}/{}{}", letter.to_char(), public.to_hex());
        self.raw(&suffix)
    }

    pub fn ended(&self, public: PublicId) -> Vec<u8> {
        self.raw(&format!("\u{1}e/{}", public.to_hex()))
    }

    /// The lease whose ending this key is.
    pub fn parse_ended(&self, key: &[u8]) -> Option<PublicId> {
        let rest = key.strip_prefix(&self.prefix[..])?.strip_prefix(b"\x01e/")?;
        PublicId::from_hex(std::str::from_utf8(rest).ok()?)
    }

    /// Principals may choose ids as they like: the zero byte cannot be in either.
    pub fn request(&self, principal: &str, request: &str) -> Vec<u8> {
        let digest = Sha256::new().chain_update(principal).chain_update([0]).chain_update(request).finalize();
        let digits = digest[..16].iter().fold(String::with_capacity(32), |text, byte| text + &format!("{byte:02x}"));
        self.request_by_digits(&digits)
    }

    pub fn request_by_digits(&self, digits: &str) -> Vec<u8> {
        self.raw(&format!("\u{1}q/{digits}"))
    }

    /// The digits at the end of the key of a request.
    pub fn request_digits(key: &[u8]) -> String {
        String::from_utf8_lossy(&key[key.len().saturating_sub(32)..]).into_owned()
    }

    pub fn marker(&self, session: &str) -> Vec<u8> {
        self.raw(&format!("\u{1}s/{session}"))
    }

    /// What is directly under a name. None: the key belongs to a deeper name.
    pub fn parse_contender(&self, name: &str, kv: &StoredKey) -> Option<ContenderKey> {
        let suffix = kv.key.strip_prefix(&self.queue(name).0[..])?;
        parse_suffix(suffix, kv.lease)
    }

    /// The name and the kind of any key; none for keys that are no contender's.
    pub fn parse_any(&self, kv: &StoredKey) -> Option<(String, ContenderKey)> {
        let rest = std::str::from_utf8(kv.key.strip_prefix(&self.prefix[..])?).ok()?;
        let (name, suffix) = rest.rsplit_once('/')?;
        if name.is_empty() || name.chars().any(char::is_control) {
            return None;
        }
        Some((name.to_owned(), parse_suffix(suffix.as_bytes(), kv.lease)?))
    }

    /// The text after the prefix.
    pub fn without_prefix<'k>(&self, key: &'k [u8]) -> Option<&'k [u8]> {
        key.strip_prefix(&self.prefix[..])
    }
}

fn parse_suffix(suffix: &[u8], lease: i64) -> Option<ContenderKey> {
    if suffix.contains(&b'/') {
        return None;
    }
    let text = std::str::from_utf8(suffix).unwrap_or("");
    let ours = text.chars().next().and_then(ModeLetter::from_char);
    let ours = ours.zip(text.get(1..).and_then(PublicId::from_hex));
    if let Some((letter, public)) = ours {
        return Some(ContenderKey::Ours(letter, public));
    }
    Some(ContenderKey::Foreign(lease != 0 && text == format!("{lease:x}")))
}

/// The key after the last one with this prefix.
pub(super) fn end_of_prefix(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // Every key: what etcd takes as "to the end".
    vec![0]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(key: &[u8], lease: i64) -> StoredKey {
        StoredKey { key: key.to_vec(), lease, ..StoredKey::default() }
    }

    #[test]
    fn keys_have_the_documented_form() {
        let layout = KeyLayout::new("p/");
        let public = PublicId([0xab; 16]);
        let key = layout.contender("a/b", Mode::Shared, public);
        assert_eq!(key, format!("p/a/b/s{}", "ab".repeat(16)).into_bytes());
        assert_eq!(layout.queue("a/b"), (b"p/a/b/".to_vec(), b"p/a/b0".to_vec()));
        assert_eq!(layout.ended(public), format!("p/\u{1}e/{}", "ab".repeat(16)).into_bytes());
        assert_eq!(layout.parse_ended(&layout.ended(public)), Some(public));
        assert_ne!(layout.request("ada", "r1"), layout.request("ad", "ar1"));
    }

    /// Goal: keys directly under a name are told from those of deeper names, and ours from others'.
    #[test]
    fn a_contender_is_known_by_its_key() {
        let layout = KeyLayout::new("");
        let public = PublicId([7; 16]);
        let ours = layout.contender("a", Mode::Exclusive, public);
        let expected = ContenderKey::Ours(ModeLetter::Exclusive, public);
        assert_eq!(layout.parse_contender("a", &stored(&ours, 5)), Some(expected));
        assert_eq!(layout.parse_any(&stored(&ours, 5)), Some(("a".into(), expected)));
        assert_eq!(layout.parse_contender("a", &stored(b"a/1f", 0x1f)), Some(ContenderKey::Foreign(true)));
        assert_eq!(layout.parse_contender("a", &stored(b"a/1F", 0x1f)), Some(ContenderKey::Foreign(false)));
        assert_eq!(layout.parse_contender("a", &stored(b"a/1f", 0x20)), Some(ContenderKey::Foreign(false)));
        assert_eq!(layout.parse_contender("a", &stored(b"a/b/1f", 0x1f)), None);
        assert_eq!(layout.parse_any(&stored(&layout.ended(public), 5)), None);
    }

    /// Goal: the two ranges around shared keys hold every contender but shared ones.
    #[test]
    fn a_shared_claim_conflicts_with_all_but_shared_ones() {
        let layout = KeyLayout::new("");
        let public = PublicId([0xff; 16]);
        let inside =
            |key: &[u8], ranges: &[KeyRange]| ranges.iter().any(|(from, to)| &from[..] <= key && key < &to[..]);
        let ranges = layout.conflicts("a", Mode::Shared);
        for (mode, conflicts) in
            [(Mode::Exclusive, true), (Mode::Shared, false), (Mode::Permits { count: 1, capacity: 2 }, true)]
        {
            let key = layout.contender("a", mode, public);
            assert_eq!(inside(&key, &ranges), conflicts, "{mode:?}");
            assert!(inside(&key, &layout.conflicts("a", Mode::Exclusive)));
        }
        assert!(inside(b"a/0", &ranges) && inside(b"a/ffffffffffffffff", &ranges));
    }

    #[test]
    fn the_end_of_a_prefix_is_after_all_of_it() {
        assert_eq!(end_of_prefix(b"a/"), b"a0");
        assert_eq!(end_of_prefix(b"a\xff"), b"b");
        assert_eq!(end_of_prefix(b""), [0]);
    }
}
