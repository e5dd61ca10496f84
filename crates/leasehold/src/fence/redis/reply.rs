//! What the server answers, and what its errors mean.

use leasehold_core::Token;
use redis::{RedisError, Value};

use super::WorkKind;
use crate::error::BoxError;
use crate::fence::FenceRefusal;

/// What a command or a script answered.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum RedisReply {
    /// Nothing: the key or field is not there.
    Nil,
    /// A number.
    Integer(i64),
    /// A status, as `OK`.
    Status(String),
    /// A value.
    Bytes(Vec<u8>),
    /// Several.
    List(Vec<RedisReply>),
}

impl RedisReply {
    pub(super) fn from_value(value: Value) -> Self {
        match value {
            Value::Nil => Self::Nil,
            Value::Int(number) => Self::Integer(number),
            Value::Okay => Self::Status("OK".into()),
            Value::SimpleString(text) => Self::Status(text),
            Value::BulkString(bytes) => Self::Bytes(bytes),
            Value::Boolean(yes) => Self::Integer(i64::from(yes)),
            Value::Double(number) => Self::Bytes(number.to_string().into_bytes()),
            Value::VerbatimString { text, .. } => Self::Bytes(text.into_bytes()),
            Value::Array(all) | Value::Set(all) => Self::List(all.into_iter().map(Self::from_value).collect()),
            Value::Map(pairs) => {
                let flat = pairs.into_iter().flat_map(|(name, value)| [name, value]);
                Self::List(flat.map(Self::from_value).collect())
            }
            // Attributes, pushes, big numbers and errors inside of a reply: no command that is allowed here gives one.
            other => Self::Bytes(format!("{other:?}").into_bytes()),
        }
    }
}

/// What an error means: whether the fence decided, and whether anything was written.
#[derive(Debug)]
pub(super) enum ReplyMeaning {
    /// The fence refused.
    Refused(FenceRefusal),
    /// The fence admitted it, and the caller's command failed.
    Work(BoxError),
    Invalid(String),
    /// This key holds no fence.
    Corrupt(String),
    /// Nothing was written.
    NoEffect(BoxError),
    /// It may have been written.
    Unknown(BoxError),
}

/// What an error of the server or of the connection means.
pub(super) fn read_error(error: &RedisError, resources: &[&str], work: WorkKind) -> ReplyMeaning {
    let Some(code) = error.code() else {
        // Lost after it was handed to the socket.
        let cause = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
        return ReplyMeaning::Unknown(format!("the connection was lost: {cause}").into());
    };
    let detail = error.detail().unwrap_or_default();
    let in_script = detail.contains("user_script");
    match code {
        "ERR" if detail.starts_with("Error compiling script") => {
            ReplyMeaning::Invalid(format!("the script is no Lua: {detail}"))
        }
        // Whatever else the error looks like: a part of the script may be done.
        _ if work == WorkKind::Script && (in_script || code == "WORKFAILED") => {
            ReplyMeaning::Unknown(format!("the script failed, what it did before stays: {code} {detail}").into())
        }
        "STALE" | "OTHERLEASE" => match read_refusal(code, detail, resources) {
            Some(refusal) => ReplyMeaning::Refused(refusal),
            None => ReplyMeaning::NoEffect("the fence refused with tokens that cannot be read".into()),
        },
        "INVALID" => ReplyMeaning::Refused(FenceRefusal::Malformed),
        "CORRUPT" => ReplyMeaning::Corrupt(detail.to_owned()),
        "NOAUTH" | "WRONGPASS" => ReplyMeaning::Invalid("the server refuses this user or password".into()),
        "NOPERM" => ReplyMeaning::Invalid(format!("the server's ACL denies this user what the fence needs: {detail}")),
        "MOVED" | "ASK" | "CROSSSLOT" => ReplyMeaning::Invalid("this Redis is a cluster".into()),
        // The command ran: the fence admitted it.
        _ if in_script => ReplyMeaning::Work(format!("{code} {detail}").into()),
        _ => ReplyMeaning::NoEffect(format!("the server refused: {code} {detail}").into()),
    }
}

/// `presented=1 highest=2 fence=1`
fn read_refusal(code: &str, detail: &str, resources: &[&str]) -> Option<FenceRefusal> {
    let number = |name: &str| -> Option<u64> {
        detail.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
    };
    let presented = Token::new(number("presented")?)?;
    let highest = Token::new(number("highest")?)?;
    let at = usize::try_from(number("fence")?).ok()?.checked_sub(1)?;
    let resource = (*resources.get(at)?).to_owned();
    Some(match code {
        "STALE" => FenceRefusal::Stale { resource, presented, highest },
        _ => FenceRefusal::OtherLease { resource, presented },
    })
}
