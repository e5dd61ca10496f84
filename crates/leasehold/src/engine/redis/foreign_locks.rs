//! Other lock clients, told by the keys they leave and the names they connect under.

use std::collections::BTreeMap;

use crate::engine::Finding;

/// How many keys are named for each kind of client.
const KEYS_SHOWN: usize = 3;
/// A longer key is cut.
const KEY_BYTES_SHOWN: usize = 64;
/// The library that our own connections are made with.
const OWN_LIBRARY: &str = "redis-rs";

/// A kind of lock client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LockClient {
    /// 32 hexadecimal digits at the bare name.
    PlainHex,
    Redsync,
    /// 20 raw bytes.
    Rslock,
    RedlockNet,
    PythonRedisLock,
    ShedLock,
    /// A hash.
    Redisson,
}

/// A key that some lock client has taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ForeignKey {
    pub key: String,
    pub client: LockClient,
}

impl LockClient {
    const fn name(self) -> &'static str {
        match self {
            Self::PlainHex => "redis-py, node-redlock or the like",
            Self::Redsync => "redsync",
            Self::Rslock => "rslock or redlock-rs",
            Self::RedlockNet => "RedLock.net",
            Self::PythonRedisLock => "python-redis-lock",
            Self::ShedLock => "ShedLock",
            Self::Redisson => "Redisson",
        }
    }

    /// What it puts before every name, and the preset that does the same.
    const fn prefix(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::RedlockNet => Some(("redlock:", "preset=redlock.net")),
            Self::PythonRedisLock => Some(("lock:", "preset=python-redis-lock")),
            Self::ShedLock => Some(("job-lock:default:", "preset=shedlock")),
            Self::PlainHex | Self::Redsync | Self::Rslock | Self::Redisson => None,
        }
    }

    /// Whose lock a string with an end is. Values of other programs are drawn in the same way now and then: it is a guess.
    pub fn of_string(key: &str, value: &[u8]) -> Option<Self> {
        let is_hex = |bytes: &[u8]| bytes.iter().all(u8::is_ascii_hexdigit);
        let is_base64 = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=' | b'-' | b'_');
        let is_base64 = |bytes: &[u8]| bytes.iter().all(is_base64);
        let is_guid = value.len() == 36 && value.split(|byte| *byte == b'-').all(is_hex);
        match value.len() {
            _ if key.starts_with("job-lock:") && value.starts_with(b"ADDED:") => Some(Self::ShedLock),
            36 if key.starts_with("redlock:") && is_guid => Some(Self::RedlockNet),
            24 if key.starts_with("lock:") && is_base64(value) => Some(Self::PythonRedisLock),
            32 if is_hex(value) => Some(Self::PlainHex),
            24 if is_base64(value) && value.ends_with(b"==") => Some(Self::Redsync),
            20 if std::str::from_utf8(value).is_err() => Some(Self::Rslock),
            _ => None,
        }
    }

    /// Whose lock a hash with an end is, by one of its fields.
    pub fn of_hash(field: &str) -> Option<Self> {
        let (guid, thread) = field.trim_end_matches(":write").rsplit_once(':')?;
        let is_thread = !thread.is_empty() && thread.bytes().all(|byte| byte.is_ascii_digit());
        let is_guid = guid.len() == 36 && guid.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
        (is_thread && is_guid).then_some(Self::Redisson)
    }

    /// Whether it and an engine with this prefix of keys exclude each other at this key.
    fn excludes(self, key: &str, own_prefix: &str) -> bool {
        match self.prefix() {
            Some((prefix, _)) => prefix == own_prefix && key.starts_with(prefix),
            None => key.starts_with(own_prefix),
        }
    }
}

/// One finding for each kind of client: a warning where it and this engine do not exclude each other as they should.
pub(super) fn foreign_lock_findings(keys: &[ForeignKey], own_prefix: &str) -> Vec<Finding> {
    let mut kinds: BTreeMap<(LockClient, bool), Vec<&str>> = BTreeMap::new();
    for ForeignKey { key, client } in keys {
        kinds.entry((*client, client.excludes(key, own_prefix))).or_default().push(key);
    }
    let finding = |((client, excludes), keys): ((LockClient, bool), Vec<&str>)| {
        let shown: Vec<&str> = keys.iter().take(KEYS_SHOWN).map(|key| cut(key)).collect();
        let more = if keys.len() > KEYS_SHOWN { ", …" } else { "" };
        let count = if keys.len() == 1 { "1 key".to_owned() } else { format!("{} keys", keys.len()) };
        let found = format!("{}: {count}, {}{more}", client.name(), shown.join(", "));
        match (client, excludes, client.prefix()) {
            (LockClient::Redisson, true, _) => Finding::warning(
                "other lock clients",
                found,
                "names of their own for Redisson",
                "Redisson keeps us out, but where we hold a name it fails with WRONGTYPE instead of waiting.",
            ),
            (_, true, _) => Finding::note(
                "other lock clients",
                found,
                "Other lock clients take names here: they and leases of this engine exclude each other.",
            ),
            (_, false, preset) => Finding::warning(
                "other lock clients",
                found,
                preset.map_or("no preset=", |(_, preset)| preset),
                "These clients put their keys elsewhere than this engine: for one name both may hold it.",
            ),
        }
    };
    kinds.into_iter().map(finding).collect()
}

/// Who else is connected, from the text of CLIENT LIST.
pub(super) fn other_clients(list: &str) -> Option<Finding> {
    let mut labels: BTreeMap<&str, usize> = BTreeMap::new();
    for line in list.lines() {
        let field = |name: &str| {
            line.split(' ')
                .find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
                .filter(|value| !value.is_empty())
        };
        let label = field("lib-name").filter(|library| *library != OWN_LIBRARY).or_else(|| field("name"));
        if let Some(label) = label {
            *labels.entry(label).or_default() += 1;
        }
    }
    let shown: Vec<String> = labels.into_iter().map(|(label, count)| format!("{label} ({count})")).collect();
    let sentence =
        "These programs are connected to the same server: what they delete or overwrite is not protected from them.";
    (!shown.is_empty()).then(|| Finding::note("other clients", shown.join(", "), sentence))
}

fn cut(key: &str) -> &str {
    let end = (0..=KEY_BYTES_SHOWN.min(key.len())).rev().find(|end| key.is_char_boundary(*end)).unwrap_or(0);
    &key[..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::FindingKind;

    /// Goal: each client is known by what it writes, and ordinary values are nobody's.
    #[test]
    fn clients_are_known_by_their_keys() {
        use LockClient::{PlainHex, PythonRedisLock, RedlockNet, Redsync, Rslock, ShedLock};
        let hex = b"0f8fad5bd9cb469fa165b0a2c7a3f0d1";
        for (key, value, client) in [
            ("seat", &hex[..], Some(PlainHex)),
            ("seat", b"q83vEjRWeJCrze8SNFZ4kA==", Some(Redsync)),
            ("seat", &[0xff; 20], Some(Rslock)),
            ("redlock:seat", b"0f8fad5b-d9cb-469f-a165-70867728950e", Some(RedlockNet)),
            ("lock:seat", b"q83vEjRWeJCrze8SNFZ4kJIs", Some(PythonRedisLock)),
            ("job-lock:default:report", b"ADDED:2026-11-17T00:00:00Z@host:0f8f", Some(ShedLock)),
            ("session", b"{\"user\": 7}", None),
            ("session", b"0f8fad5b-d9cb-469f-a165-70867728950e", None),
            ("counter", b"12345678901234567890", None),
            ("", b"", None),
        ] {
            assert_eq!(LockClient::of_string(key, value), client, "{key}");
        }
        for (field, is_redisson) in [
            ("285475da-9152-4c83-822a-67ee2f116a79:52", true),
            ("285475da-9152-4c83-822a-67ee2f116a79:52:write", true),
            ("name", false),
            ("285475da-9152-4c83-822a-67ee2f116a79:", false),
            ("x:1", false),
        ] {
            assert_eq!(LockClient::of_hash(field).is_some(), is_redisson, "{field}");
        }
    }

    /// Goal: a warning where two clients do not exclude each other, and a note where they do.
    #[test]
    fn clients_with_other_keys_are_a_warning() {
        let key = |key: &str, client| ForeignKey { key: key.into(), client };
        let seen = [
            key("seat", LockClient::PlainHex),
            key("row", LockClient::PlainHex),
            key("lock:seat", LockClient::PythonRedisLock),
            key("cart", LockClient::Redisson),
        ];
        let kinds = |prefix: &str| {
            let all = foreign_lock_findings(&seen, prefix);
            all.into_iter().map(|finding| (finding.kind == FindingKind::Warning, finding.wanted)).collect::<Vec<_>>()
        };
        let (own, python) = ("names of their own for Redisson", "preset=python-redis-lock");
        assert_eq!(kinds(""), [(false, String::new()), (true, python.into()), (true, own.into())]);
        assert_eq!(kinds("lock:"), [(true, "no preset=".into()), (false, String::new()), (true, "no preset=".into())]);
        let found = &foreign_lock_findings(&seen, "")[0].found;
        assert_eq!(found, "redis-py, node-redlock or the like: 2 keys, seat, row");
    }

    #[test]
    fn connected_programs_are_counted_by_library_or_name() {
        let list = "id=3 addr=1.2.3.4:5 name= lib-name=redis-py lib-ver=5.0\nid=4 name=billing cmd=get\n\
                    id=5 name= lib-name=redis-py\nid=6 name= lib-name=redis-rs\nid=7 name=\n";
        let found = other_clients(list).expect("some are connected");
        assert_eq!(found.found, "billing (1), redis-py (2)");
        assert_eq!(other_clients("id=7 name= lib-name=redis-rs\n"), None);
        assert_eq!(cut(&"é".repeat(80)).len(), 64);
    }
}
