//! What is stored under the keys: JSON, because `etcdctl get` and `etcdctl elect --listen` show it.
//!
//! No value holds a time that decides anything. `early` says how long before the end of the key's etcd lease the lease of
//! ours ends. `at` and `renewed` are wall clock times for people.

use leasehold_core::Secret;
use serde::{Deserialize, Serialize};

use super::failure::EtcdFailure;
use crate::engine::Mode;
use crate::engine::consensus::lease_id::ModeLetter;

const LAYOUT: u8 = 1;

/// Where a contender is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ContenderState {
    Waiting,
    Held,
    /// It lapsed, and its delay keeps the resource closed.
    Closed,
}

/// A mode, as text for people.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum StoredMode {
    Word(StoredModeWord),
    /// Count and capacity.
    Permits(u32, u32),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum StoredModeWord {
    Exclusive,
    Shared,
}

impl From<Mode> for StoredMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Exclusive => Self::Word(StoredModeWord::Exclusive),
            Mode::Shared => Self::Word(StoredModeWord::Shared),
            Mode::Permits { count, capacity } => Self::Permits(count, capacity),
        }
    }
}

impl From<StoredMode> for Mode {
    fn from(mode: StoredMode) -> Self {
        match mode {
            StoredMode::Word(StoredModeWord::Exclusive) => Self::Exclusive,
            StoredMode::Word(StoredModeWord::Shared) => Self::Shared,
            StoredMode::Permits(count, capacity) => Self::Permits { count, capacity },
        }
    }
}

/// The value of a contender's key.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct ContenderValue {
    pub v: u8,
    pub holder: String,
    pub state: ContenderState,
    pub mode: StoredMode,
    /// The last ttl that was asked for, in milliseconds.
    pub ttl: u64,
    /// Milliseconds from the deadline to the end of the key's etcd lease.
    pub early: u64,
    /// How long the resource stays closed after a lapse, in milliseconds.
    pub delay: u64,
    /// When `max_hold` is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cap: Option<StoredCap>,
    /// The same for the deadline. Only with a `max_hold`: without one, another process sets a deadline of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sure: Option<StoredCap>,
    /// Absent in the write that grants: then the token is that write's revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    /// All resources of the claim; only in its first key, and only if there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub names: Option<Vec<(String, StoredMode)>>,
    /// Letter and name of the first key of the claim; only in its other keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<String>,
    /// The key of the request id, in hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// When it came or was granted, in milliseconds since 1970.
    pub at: i64,
    /// When the deadline was set.
    #[serde(default)]
    pub renewed: i64,
}

/// An etcd lease that tells when the longest hold is over. No key of ours hangs on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct StoredCap {
    pub lease: i64,
    /// How long before the end of that lease, at the most.
    pub early: u64,
    /// The term of the leader for which this holds: a new one moves the end.
    pub term: u64,
}

impl ContenderValue {
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain fields are always JSON")
    }

    pub fn parse(bytes: &[u8], key: &[u8]) -> Result<Self, EtcdFailure> {
        parse_value(bytes, key)
    }

    /// Whether the claim has more than one resource.
    pub fn is_several(&self) -> bool {
        self.names.is_some() || self.first.is_some()
    }
}

/// How a lease ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum StoredEnd {
    Released,
    Lapsed,
    Revoked,
    /// It never was: an acquire whose outcome was unknown was called off.
    Cancelled,
}

/// The value of an ending.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct EndedValue {
    pub v: u8,
    pub end: StoredEnd,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Names the call that ended it: a repeat of that call knows that it was its own.
    pub by: String,
    pub at: i64,
}

impl EndedValue {
    pub fn new(end: StoredEnd, reason: &str, by: &str, at: i64) -> Self {
        Self { v: LAYOUT, end, reason: reason.to_owned(), by: by.to_owned(), at }
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain fields are always JSON")
    }

    pub fn parse(bytes: &[u8], key: &[u8]) -> Result<Self, EtcdFailure> {
        parse_value(bytes, key)
    }
}

/// The value of a request id. It holds a secret: who can read it can act on the lease.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RequestValue {
    pub v: u8,
    /// Fingerprint of the claim, in hexadecimal digits.
    pub fp: String,
    pub secret: String,
    /// Letter and name of the first resource.
    pub first: String,
    pub several: bool,
    pub state: ContenderState,
    /// Absent in the write that grants, as in [`ContenderValue`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
}

impl RequestValue {
    pub fn new(fingerprint: u64, secret: &Secret, letter: ModeLetter, first: &str, several: bool) -> Self {
        Self {
            v: LAYOUT,
            fp: format!("{fingerprint:016x}"),
            secret: format!("{:032x}", u128::from_be_bytes(*secret.expose())),
            first: format!("{}{first}", letter.to_char()),
            several,
            state: ContenderState::Waiting,
            token: None,
        }
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain fields are always JSON")
    }

    pub fn parse(bytes: &[u8], key: &[u8]) -> Result<Self, EtcdFailure> {
        parse_value(bytes, key)
    }

    /// The secret and the first resource.
    pub fn parse_lease(&self) -> Option<(Secret, ModeLetter, &str)> {
        let bits = u128::from_str_radix(&self.secret, 16).ok().filter(|_| self.secret.len() == 32)?;
        let (letter, name) = parse_first(&self.first)?;
        Some((Secret::new(bits.to_be_bytes()), letter, name))
    }
}

/// Letter and name, as in `first`.
pub(super) fn parse_first(first: &str) -> Option<(ModeLetter, &str)> {
    let letter = first.chars().next().and_then(ModeLetter::from_char)?;
    Some((letter, first.get(1..)?))
}

pub(super) const fn layout_version() -> u8 {
    LAYOUT
}

fn parse_value<T: for<'de> Deserialize<'de>>(bytes: &[u8], key: &[u8]) -> Result<T, EtcdFailure> {
    serde_json::from_slice(bytes).map_err(|_| EtcdFailure::Corrupt {
        law: "a key of Leasehold has a value of Leasehold",
        at: String::from_utf8_lossy(key).escape_default().to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the layout in etcd is the documented one: other versions of Leasehold read it.
    #[test]
    fn a_contender_has_the_documented_value() {
        let value = ContenderValue {
            v: 1,
            holder: "ada".into(),
            state: ContenderState::Held,
            mode: Mode::Permits { count: 2, capacity: 5 }.into(),
            ttl: 30_000,
            early: 8700,
            delay: 0,
            cap: None,
            sure: None,
            token: None,
            names: None,
            first: None,
            request: None,
            at: 7,
            renewed: 8,
        };
        let text = r#"{"v":1,"holder":"ada","state":"held","mode":[2,5],"ttl":30000,"early":8700,"delay":0,"at":7,"renewed":8}"#;
        assert_eq!(String::from_utf8(value.to_bytes()).unwrap(), text);
        assert_eq!(ContenderValue::parse(text.as_bytes(), b"k"), Ok(value.clone()));
        let names = Some(vec![("a".to_owned(), Mode::Shared.into()), ("b".to_owned(), Mode::Exclusive.into())]);
        let several =
            ContenderValue { names, token: Some(9), cap: Some(StoredCap { lease: 5, early: 6, term: 2 }), ..value };
        let cap = r#""cap":{"lease":5,"early":6,"term":2}"#;
        assert!(String::from_utf8(several.to_bytes()).unwrap().contains(cap));
        assert_eq!(ContenderValue::parse(&several.to_bytes(), b"k"), Ok(several.clone()));
        assert!(several.is_several());
        let odd = ContenderValue::parse(b"what?", b"a/x\xff");
        assert_eq!(
            odd,
            Err(EtcdFailure::Corrupt { law: "a key of Leasehold has a value of Leasehold", at: "a/x\\u{fffd}".into() })
        );
    }

    #[test]
    fn a_request_is_read_as_it_was_written() {
        let request = RequestValue::new(42, &Secret::new([0xab; 16]), ModeLetter::Shared, "a/b", true);
        let read = RequestValue::parse(&request.to_bytes(), b"k").unwrap();
        let (secret, letter, first) = read.parse_lease().unwrap();
        assert_eq!((secret.expose(), letter, first), (&[0xab; 16], ModeLetter::Shared, "a/b"));
        assert_eq!((read.fp.as_str(), read.several), ("000000000000002a", true));
    }
}
