//! From RESP values to the types of the engine contract.
//!
//! An error begins with one word. After it comes a sentence, or `name="text"` and `name=number` pairs, of which
//! unknown ones are ignored.

use std::time::Duration;

use super::ENGINE;
use super::resp::Value;
use crate::engine::{
    Event, EventId, EventKind, Finding, FindingKind, Grant, Holding, LeaseId, Mode, Promises, Renewal, Resource, Token,
    Waiting,
};
use crate::error::{Error, Refusal};

/// The reply does not fit the request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the server answered with something that is no {0}: is it a Leasehold server?")]
pub(super) struct UnexpectedReply(pub &'static str);

/// What an error of the server means.
#[derive(Debug)]
pub(super) enum ServerError {
    /// The server refused, and this is the error.
    Decided(Error),
    /// It did not take effect.
    NoEffect(String),
    /// It may have taken effect.
    Unknown(String),
}

/// Parses an error reply.
pub(super) fn parse_error(text: &str) -> ServerError {
    let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
    let sentence = || if rest.is_empty() { word.to_owned() } else { rest.to_owned() };
    let decided = |refusal| ServerError::Decided(Error::Refused(refusal));
    match word {
        "HELD" => decided(parse_held(rest)),
        "STALE" => decided(Refusal::Stale),
        "NOTHELD" => decided(Refusal::NotHeld),
        "QUOTA" => decided(Refusal::Quota(sentence())),
        "QUEUEFULL" => decided(Refusal::QueueFull { resource: parse_field(rest, "resource").unwrap_or_default() }),
        "MISMATCH" => decided(Refusal::Mismatch),
        // A key that is missing or may not do this: only another key helps.
        "INVALID" | "NOAUTH" | "WRONGPASS" | "FORBIDDEN" => ServerError::Decided(Error::Invalid(sentence())),
        "CORRUPT" => ServerError::Decided(Error::Corrupt {
            engine: ENGINE,
            law: parse_field(rest, "law").unwrap_or_else(sentence),
            at: parse_field(rest, "at").unwrap_or_else(|| "the server".into()),
        }),
        "UNAVAILABLE" => ServerError::NoEffect(sentence()),
        "UNKNOWN" => ServerError::Unknown(sentence()),
        // Not ours, e.g. -ERR of a Redis: it did not understand, so it did nothing.
        _ => ServerError::Decided(Error::Invalid(format!("the server does not understand: {text}"))),
    }
}

fn parse_held(rest: &str) -> Refusal {
    Refusal::Held {
        resource: parse_field(rest, "resource").unwrap_or_default(),
        holder: parse_field(rest, "holder"),
        remaining: parse_field(rest, "remaining_ms").and_then(|ms| ms.parse().ok()).map(Duration::from_millis),
        queue_len: parse_field(rest, "queue").and_then(|queue| queue.parse().ok()).unwrap_or(0),
    }
}

/// The value of a pair in `name="text" name=number …`.
fn parse_field(text: &str, wanted: &str) -> Option<String> {
    let mut rest = text.trim_start();
    while let Some((name, after)) = rest.split_once('=') {
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => unquoted(quoted)?,
            None => {
                let (value, after) = after.split_once(' ').unwrap_or((after, ""));
                (value.to_owned(), after)
            }
        };
        if name == wanted {
            return Some(value);
        }
        rest = after.trim_start();
    }
    None
}

/// Text up to its closing quote, with `\"`, `\\` and `\xHH` resolved, and what follows.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    loop {
        let (first, after) = rest.split_first()?;
        rest = after;
        match first {
            // A quote is a character of its own in UTF-8, so the cut is between characters.
            b'"' => return Some((String::from_utf8_lossy(&bytes).into_owned(), text.get(text.len() - rest.len()..)?)),
            b'\\' => {
                let (escaped, after) = rest.split_first()?;
                rest = after;
                if *escaped == b'x' {
                    let (digits, after) = rest.split_at_checked(2)?;
                    rest = after;
                    bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
                } else {
                    bytes.push(*escaped);
                }
            }
            byte => bytes.push(*byte),
        }
    }
}

impl Value {
    fn into_text(self) -> Option<String> {
        match self {
            Self::Text(bytes) => String::from_utf8(bytes).ok(),
            Self::Int(number) => Some(number.to_string()),
            _ => None,
        }
    }

    /// Numbers come as integers; tokens above what an integer holds would come as text.
    fn as_number(&self) -> Option<u64> {
        match self {
            Self::Int(number) => u64::try_from(*number).ok(),
            Self::Text(bytes) => std::str::from_utf8(bytes).ok()?.parse().ok(),
            _ => None,
        }
    }

    fn as_duration(&self) -> Option<Duration> {
        self.as_number().map(Duration::from_millis)
    }

    fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(truth) => Some(*truth),
            Self::Int(number) => Some(*number != 0),
            _ => None,
        }
    }

    /// A list; the null of RESP is an empty one.
    fn into_list(self) -> Option<Vec<Self>> {
        match self {
            Self::List(list) | Self::Push(list) => Some(list),
            Self::Null => Some(Vec::new()),
            _ => None,
        }
    }

    fn take_field(&mut self, wanted: &str) -> Option<Self> {
        let pairs = match self {
            Self::Map(pairs) => pairs,
            _ => return None,
        };
        let (_, value) =
            pairs.iter_mut().find(|(key, _)| matches!(key, Self::Text(key) if key == wanted.as_bytes()))?;
        Some(std::mem::replace(value, Self::Null))
    }

    fn token(&self) -> Option<Token> {
        self.as_number().and_then(Token::new)
    }
}

pub(super) fn grant(value: Value) -> Result<Grant, UnexpectedReply> {
    let read = || {
        let mut parts = value.into_list()?.into_iter();
        Some(Grant {
            lease_id: LeaseId::new(parts.next()?.into_text()?),
            token: parts.next()?.token(),
            remaining: parts.next()?.as_duration()?,
            renewable: parts.next().and_then(|renewable| renewable.as_duration()),
        })
    };
    read().filter(|grant| !grant.lease_id.expose().is_empty()).ok_or(UnexpectedReply("grant"))
}

pub(super) fn renewal(value: Value) -> Result<Renewal, UnexpectedReply> {
    let read = || match value {
        Value::List(parts) => {
            let mut parts = parts.iter();
            Some(Renewal {
                remaining: parts.next()?.as_duration()?,
                renewable: parts.next().and_then(Value::as_duration),
            })
        }
        value => Some(Renewal { remaining: value.as_duration()?, renewable: None }),
    };
    read().ok_or(UnexpectedReply("renewal"))
}

pub(super) fn count(value: &Value) -> Result<usize, UnexpectedReply> {
    value.as_number().and_then(|count| usize::try_from(count).ok()).ok_or(UnexpectedReply("number"))
}

pub(super) fn resource(value: Value) -> Result<Option<Resource>, UnexpectedReply> {
    match value {
        Value::Null => Ok(None),
        value => read_resource(value).map(Some).ok_or(UnexpectedReply("resource")),
    }
}

pub(super) fn resources(value: Value) -> Result<Vec<Resource>, UnexpectedReply> {
    let read = || value.into_list()?.into_iter().map(read_resource).collect();
    let read: Option<Vec<Resource>> = read();
    read.ok_or(UnexpectedReply("list of resources"))
}

fn read_resource(mut value: Value) -> Option<Resource> {
    let mode = match value.take_field("mode")?.into_text()?.as_str() {
        "exclusive" => Mode::Exclusive,
        "shared" => Mode::Shared,
        "permits" => Mode::Permits {
            count: u32::try_from(value.take_field("permits_used")?.as_number()?).ok()?,
            capacity: u32::try_from(value.take_field("capacity")?.as_number()?).ok()?,
        },
        _ => return None,
    };
    let holding = |mut value: Value| {
        Some(Holding {
            holder: value.take_field("holder")?.into_text()?,
            token: value.take_field("token")?.token(),
            since: value.take_field("since_ms")?.as_duration()?,
            remaining: value.take_field("remaining_ms")?.as_duration()?,
        })
    };
    let waiting = |mut value: Value| {
        Some(Waiting {
            holder: value.take_field("holder")?.into_text()?,
            waiting: value.take_field("waiting_ms")?.as_duration()?,
        })
    };
    let holders: Vec<Holding> =
        value.take_field("holders")?.into_list()?.into_iter().map(holding).collect::<Option<_>>()?;
    // An older server does not send the count, and shows all holders.
    let total = value.take_field("holders_total").and_then(|total| usize::try_from(total.as_number()?).ok());
    Some(Resource {
        name: value.take_field("name")?.into_text()?,
        mode,
        holders_total: total.unwrap_or(holders.len()),
        holders,
        waiters: value.take_field("waiters")?.into_list()?.into_iter().map(waiting).collect::<Option<_>>()?,
        queue_len: usize::try_from(value.take_field("queue_len")?.as_number()?).ok()?,
    })
}

/// The promises of the server's engine.
pub(super) fn promises(mut value: Value) -> Result<Promises, UnexpectedReply> {
    let mut promise = |name| value.take_field(name)?.as_bool();
    let mut read = || {
        Some(Promises {
            engine: ENGINE,
            durable: promise("durable")?,
            fencing: promise("fencing")?,
            fair: promise("fair")?,
            never_early: promise("never_early")?,
            outlives_process: promise("outlives_process")?,
        })
    };
    read().ok_or(UnexpectedReply("list of promises"))
}

pub(super) fn floor(value: &Value) -> Result<Token, UnexpectedReply> {
    value.token().ok_or(UnexpectedReply("token"))
}

/// The identity of the server's engine.
pub(super) fn identity(mut value: Value) -> Result<Option<String>, UnexpectedReply> {
    match value.take_field("identity") {
        Some(Value::Null) => Ok(None),
        Some(text) => text.into_text().map(Some).ok_or(UnexpectedReply("identity")),
        None => Err(UnexpectedReply("identity")),
    }
}

/// The port of the server's HTTP listener.
pub(super) fn http_port(mut value: Value) -> Result<Option<u16>, UnexpectedReply> {
    match value.take_field("http") {
        Some(Value::Null) | None => Ok(None),
        Some(Value::Int(port)) => u16::try_from(port).map(Some).map_err(|_| UnexpectedReply("HTTP port")),
        Some(_) => Err(UnexpectedReply("HTTP port")),
    }
}

/// What the server's engine found when it was examined. A server that knows more kinds than we do still says something
/// that should be read.
pub(super) fn findings(mut value: Value) -> Result<Vec<Finding>, UnexpectedReply> {
    let read = |value: Value| value.into_list()?.into_iter().map(finding).collect::<Option<Vec<_>>>();
    value.take_field("findings").and_then(read).ok_or(UnexpectedReply("list of findings"))
}

/// The wall clock of the server, in microseconds since 1970.
pub(super) fn wall_clock(value: Value) -> Result<i64, UnexpectedReply> {
    let read = || {
        let mut parts = value.into_list()?.into_iter();
        let mut number = || parts.next()?.into_text()?.parse::<i64>().ok();
        number()?.checked_mul(1_000_000)?.checked_add(number()?)
    };
    read().ok_or(UnexpectedReply("time"))
}

fn finding(mut value: Value) -> Option<Finding> {
    let mut text = |name| value.take_field(name)?.into_text();
    let (kind, setting, found) = (text("kind")?, text("setting")?, text("found")?);
    let (wanted, sentence) = (text("wanted")?, text("sentence")?);
    let denied = value.take_field("promises")?.into_list()?.into_iter();
    let kind = match kind.as_str() {
        "denies" => FindingKind::Denies(denied.filter_map(|word| word.into_text()?.parse().ok()).collect()),
        "note" => FindingKind::Note,
        _ => FindingKind::Warning,
    };
    Some(Finding { kind, setting, found, wanted, sentence })
}

/// The error for a command that came with a later version of the server than the first: a server that does not know it
/// says only which commands it knows.
pub(super) fn too_old(error: Error, command: &str) -> Error {
    let unknown = format!("{command} is not known");
    match error {
        Error::Invalid(sentence) if sentence.contains(&unknown) => {
            Error::Invalid(format!("the server is too old: it does not know {command}"))
        }
        other => other,
    }
}

/// One message of a watch.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum WatchMessage {
    /// An event, and the id of the event before it.
    Event(Event, Option<EventId>),
    /// There is a gap before this id.
    Reset(EventId),
}

/// `["lease", kind, id, prev, token, holder, reason, ago_ms, [resource…]]`, or `["lease", "reset", id]`; none for a
/// push that is about something else.
pub(super) fn message(push: Vec<Value>) -> Result<Option<WatchMessage>, UnexpectedReply> {
    let mut parts = push.into_iter();
    if parts.next().and_then(Value::into_text).as_deref() != Some("lease") {
        return Ok(None);
    }
    read_message(parts).map(Some).ok_or(UnexpectedReply("event"))
}

fn read_message(mut parts: impl Iterator<Item = Value>) -> Option<WatchMessage> {
    let kind = parts.next()?.into_text()?;
    let id = parts.next()?.into_text()?.parse().ok()?;
    let kind = match kind.as_str() {
        "reset" => return Some(WatchMessage::Reset(id)),
        "granted" => EventKind::Granted,
        "released" => EventKind::Released,
        "lapsed" => EventKind::Lapsed,
        "revoked" => EventKind::Revoked,
        "relabelled" => EventKind::Relabelled,
        // What a newer server tells, and we have no word for, is a gap: whoever watches reads the whole again.
        _ => return Some(WatchMessage::Reset(id)),
    };
    let prev = parts.next()?.into_text().and_then(|prev| prev.parse().ok());
    let event = Event {
        id,
        kind,
        token: parts.next()?.token(),
        holder: parts.next()?.into_text()?,
        reason: parts.next()?.into_text().unwrap_or_default(),
        ago: parts.next()?.as_duration()?,
        resources: parts.next()?.into_list()?.into_iter().map(Value::into_text).collect::<Option<_>>()?,
    };
    Some(WatchMessage::Event(event, prev))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn refused(text: &str) -> Error {
        match parse_error(text) {
            ServerError::Decided(error) => error,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_refusal_says_who_and_how_long() {
        let held = |resource: &str, holder: Option<&str>, ms: Option<u64>, queue_len| Refusal::Held {
            resource: resource.into(),
            holder: holder.map(Into::into),
            remaining: ms.map(Duration::from_millis),
            queue_len,
        };
        let table = [
            (
                r#"HELD holder="ada" remaining_ms=1500 queue=2 resource="seat 14""#,
                held("seat 14", Some("ada"), Some(1500), 2),
            ),
            (r#"HELD queue=1 resource="s""#, held("s", None, None, 1)),
            (
                r#"HELD holder="a \"b\" \\ \x0a=c" remaining_ms=1 queue=0 resource="ü""#,
                held("ü", Some("a \"b\" \\ \n=c"), Some(1), 0),
            ),
            (r#"HELD new="x y=\"" holder="" resource="r" queue=0"#, held("r", Some(""), None, 0)),
            ("HELD", held("", None, None, 0)),
        ];
        for (text, expected) in table {
            assert!(
                matches!(refused(text), Error::Refused(refusal) if refusal == expected),
                "{text}: {:?}",
                refused(text)
            );
        }
    }

    #[test]
    fn every_word_of_the_contract_has_its_meaning() {
        assert!(matches!(refused("STALE the lease has ended"), Error::Refused(Refusal::Stale)));
        assert!(matches!(refused("NOTHELD x"), Error::Refused(Refusal::NotHeld)));
        assert!(matches!(refused("MISMATCH"), Error::Refused(Refusal::Mismatch)));
        assert!(matches!(refused("QUOTA leases"), Error::Refused(Refusal::Quota(what)) if what == "leases"));
        let full = refused(r#"QUEUEFULL resource="a b""#);
        assert!(matches!(full, Error::Refused(Refusal::QueueFull { resource }) if resource == "a b"));
        for word in ["INVALID", "NOAUTH", "WRONGPASS", "FORBIDDEN"] {
            assert!(matches!(refused(&format!("{word} a sentence")), Error::Invalid(s) if s == "a sentence"));
        }
        assert!(matches!(refused("CORRUPT a law"), Error::Corrupt { law, .. } if law == "a law"));
        assert!(matches!(refused("ERR unknown command"), Error::Invalid(_)));
        assert!(matches!(parse_error("UNAVAILABLE stopping"), ServerError::NoEffect(s) if s == "stopping"));
        assert!(matches!(parse_error("UNKNOWN disk"), ServerError::Unknown(s) if s == "disk"));
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::Bool),
            any::<i64>().prop_map(Value::Int),
            prop_oneof!["lease|granted|reset|name|mode|holders|exclusive", "[0-9a-f]{16}-[0-9]{1,3}", ".{0,8}"]
                .prop_map(|text| Value::Text(text.into())),
            ".{0,8}".prop_map(Value::Error),
        ];
        leaf.prop_recursive(3, 32, 10, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..10).prop_map(Value::List),
                prop::collection::vec((inner.clone(), inner.clone()), 0..6).prop_map(Value::Map),
                prop::collection::vec(inner, 0..10).prop_map(Value::Push),
            ]
        })
    }

    proptest! {
        /// Goal: whatever the server says, it is an answer or an error, and never a panic.
        #[test]
        fn any_value_is_survived(value in any_value(), text in ".{0,40}") {
            let _ = (grant(value.clone()), renewal(value.clone()), count(&value), resource(value.clone()));
            let _ = (floor(&value), identity(value.clone()), findings(value.clone()), http_port(value.clone()));
            let _ = (resources(value.clone()), promises(value.clone()), parse_error(&text), parse_error(&format!("HELD {text}")));
            if let Value::Push(parts) | Value::List(parts) = value {
                let _ = message(parts);
            }
        }
    }
}
