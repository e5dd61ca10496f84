//! From the replies of the scripts to types.

use std::time::Duration;

use leasehold_core::{Mode, Token};
use redis::Value;

use crate::engine::{Holding, Resource, Waiting};

/// A reply that no script of ours gives.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server gave an answer that no script of ours gives")]
pub(in crate::engine) struct UnexpectedReply;

type Decoded<T> = Result<T, UnexpectedReply>;

/// What acquire, leave and beat answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ClaimReply {
    /// Granted, by this call or before.
    Granted(GrantedReply),
    /// In the queue.
    Waiting(WaitingReply),
    Held(HeldReply),
    /// The queue of this key is full.
    QueueFull {
        key: String,
    },
    /// The key is in use with another capacity.
    OtherCapacity {
        key: String,
        known: String,
        asked: String,
    },
    /// The request id has another body.
    Mismatch,
    /// Another lease has this handle.
    Collision,
    /// The claim was given up before.
    Banned,
    /// Others wait for the same request: how long still.
    OthersWait {
        patience_ms: u64,
    },
    /// The lease was ended.
    Ended,
    /// The server knows nothing of it.
    Forgotten,
}

#[derive(Clone, PartialEq, Eq)]
pub(super) struct GrantedReply {
    pub token: u64,
    /// None by the fast way: the whole life.
    pub remaining_ms: Option<u64>,
    /// None without a cap, or by the fast way.
    pub cap_left_ms: Option<u64>,
    /// The secret that is stored; none by the fast way: it is ours.
    pub secret: Option<String>,
    pub fresh: bool,
}

impl std::fmt::Debug for GrantedReply {
    /// Without the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { token, remaining_ms, fresh, .. } = self;
        f.debug_struct("GrantedReply")
            .field("token", token)
            .field("remaining_ms", remaining_ms)
            .field("fresh", fresh)
            .finish_non_exhaustive()
    }
}

#[derive(Clone, PartialEq, Eq)]
pub(super) struct WaitingReply {
    pub patience_ms: u64,
    pub look: NextLook,
    pub head: bool,
    pub secret: String,
}

impl std::fmt::Debug for WaitingReply {
    /// Without the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { patience_ms, look, head, .. } = self;
        write!(f, "WaitingReply({patience_ms} ms, {look:?}, head: {head})")
    }
}

/// When a waiter should ask again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextLook {
    /// After this many milliseconds.
    In(u64),
    /// When it is told.
    WhenTold,
    /// Again and again: a stranger holds it, who tells nobody.
    Poll,
}

impl NextLook {
    pub const fn from_number(number: i64) -> Self {
        match number {
            -2 => Self::Poll,
            0.. => Self::In(number.unsigned_abs()),
            _ => Self::WhenTold,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HeldReply {
    pub key: String,
    pub holder: Option<String>,
    pub remaining_ms: Option<u64>,
    pub queue_len: usize,
    /// Held by a client that is not ours.
    pub foreign: bool,
}

/// One key as `inspect` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Inspected {
    pub resource: Resource,
    /// Tokens are in `resource` whether or not the engine shows them; a stranger has none.
    pub foreign: bool,
}

/// What `observe` answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ObserveReply {
    pub run: u64,
    /// The index has everything.
    pub complete: bool,
    pub first: u64,
    pub last: u64,
    pub next_due_ms: Option<u64>,
}

pub(super) fn claim_reply(value: &Value) -> Decoded<ClaimReply> {
    let Value::Array(parts) = value else {
        // The fast way answers with the token alone.
        let token = number_text(value)?;
        let granted = GrantedReply { token, remaining_ms: None, cap_left_ms: None, secret: None, fresh: true };
        return Ok(ClaimReply::Granted(granted));
    };
    let part = |at: usize| parts.get(at).ok_or(UnexpectedReply);
    Ok(match text(part(0)?)?.as_str() {
        "G" => ClaimReply::Granted(GrantedReply {
            token: number_text(part(1)?)?,
            remaining_ms: Some(count(part(2)?)?),
            cap_left_ms: optional_count(part(3)?)?,
            secret: Some(text(part(4)?)?),
            fresh: integer(part(5)?)? == 1,
        }),
        "W" => ClaimReply::Waiting(WaitingReply {
            patience_ms: count(part(1)?)?,
            look: NextLook::from_number(integer(part(2)?)?),
            head: integer(part(3)?)? == 1,
            secret: text(part(4)?)?,
        }),
        "H" => ClaimReply::Held(HeldReply {
            key: text(part(1)?)?,
            holder: if *part(2)? == Value::Nil { None } else { Some(text(part(2)?)?) },
            remaining_ms: optional_count(part(3)?)?,
            queue_len: usize::try_from(integer(part(4)?)?).map_err(|_| UnexpectedReply)?,
            foreign: integer(part(5)?)? == 1,
        }),
        "F" => ClaimReply::QueueFull { key: text(part(1)?)? },
        "I" => ClaimReply::OtherCapacity { key: text(part(1)?)?, known: text(part(2)?)?, asked: text(part(3)?)? },
        "M" => ClaimReply::Mismatch,
        "C" => ClaimReply::Collision,
        "X" => ClaimReply::Banned,
        "O" => ClaimReply::OthersWait { patience_ms: count(part(1)?)? },
        "E" => ClaimReply::Ended,
        "N" => ClaimReply::Forgotten,
        _ => return Err(UnexpectedReply),
    })
}

pub(super) fn claim_replies(value: &Value) -> Decoded<Vec<ClaimReply>> {
    array(value)?.iter().map(claim_reply).collect()
}

/// What owners' verbs answer: how they ended, or what was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum OwnerReply {
    Done(i64),
    Renewed { remaining_ms: u64, cap_left_ms: Option<u64> },
    Stale,
    NotHeld,
}

pub(in crate::engine) fn owner_reply(value: &Value) -> Decoded<OwnerReply> {
    Ok(match value {
        Value::Int(-1) => OwnerReply::Stale,
        Value::Int(-2) => OwnerReply::NotHeld,
        Value::Int(done @ 0..) => OwnerReply::Done(*done),
        Value::Array(parts) if parts.len() == 2 => {
            OwnerReply::Renewed { remaining_ms: count(&parts[0])?, cap_left_ms: optional_count(&parts[1])? }
        }
        _ => return Err(UnexpectedReply),
    })
}

/// The names are those that were asked for, in order; `show` has what the engine calls each key.
pub(super) fn inspected(value: &Value, names: &[String]) -> Decoded<Vec<Option<Inspected>>> {
    let shown = array(value)?;
    if shown.len() != names.len() {
        return Err(UnexpectedReply);
    }
    shown.iter().zip(names).map(|(value, name)| inspected_one(value, name)).collect()
}

fn inspected_one(value: &Value, name: &str) -> Decoded<Option<Inspected>> {
    if *value == Value::Nil {
        return Ok(None);
    }
    let parts = array(value)?;
    let part = |at: usize| parts.get(at).ok_or(UnexpectedReply);
    let mut foreign = false;
    let mut holders = Vec::new();
    for holder in array(part(1)?)? {
        let [label, token, since, left] = array(holder)? else { return Err(UnexpectedReply) };
        let token = text(token)?;
        foreign |= token.is_empty();
        holders.push(Holding {
            holder: text(label)?,
            token: token.parse().ok().and_then(Token::new),
            since: Duration::from_millis(count(since)?),
            remaining: Duration::from_millis(optional_count(left)?.unwrap_or(0)),
        });
    }
    let mut waiters = Vec::new();
    for waiter in array(part(3)?)? {
        let [label, waiting] = array(waiter)? else { return Err(UnexpectedReply) };
        waiters.push(Waiting { holder: text(label)?, waiting: Duration::from_millis(count(waiting)?) });
    }
    let total = |at: usize| usize::try_from(integer(part(at)?)?).map_err(|_| UnexpectedReply);
    let resource = Resource {
        name: name.to_owned(),
        mode: mode(&text(part(0)?)?)?,
        holders,
        holders_total: total(2)?,
        waiters,
        queue_len: total(4)?,
    };
    Ok(Some(Inspected { resource, foreign }))
}

fn mode(text: &str) -> Decoded<Mode> {
    match text {
        "x" => Ok(Mode::Exclusive),
        "s" => Ok(Mode::Shared),
        permits => {
            let (count, capacity) =
                permits.strip_prefix('p').and_then(|rest| rest.split_once('/')).ok_or(UnexpectedReply)?;
            let number = |text: &str| text.parse().map_err(|_| UnexpectedReply);
            Ok(Mode::Permits { count: number(count)?, capacity: number(capacity)? })
        }
    }
}

pub(super) fn observe_reply(value: &Value) -> Decoded<ObserveReply> {
    let [watch, first, last, due] = array(value)? else { return Err(UnexpectedReply) };
    let watch = text(watch)?;
    let (run, complete) = watch.split_once(':').ok_or(UnexpectedReply)?;
    Ok(ObserveReply {
        run: u64::from_str_radix(run, 16).map_err(|_| UnexpectedReply)?,
        complete: complete == "1",
        first: number_text(first)?,
        last: number_text(last)?,
        next_due_ms: optional_count(due)?,
    })
}

pub(in crate::engine) fn array(value: &Value) -> Decoded<&[Value]> {
    match value {
        Value::Array(parts) => Ok(parts),
        _ => Err(UnexpectedReply),
    }
}

pub(in crate::engine) fn text(value: &Value) -> Decoded<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).map_err(|_| UnexpectedReply),
        Value::SimpleString(text) => Ok(text.clone()),
        _ => Err(UnexpectedReply),
    }
}

/// A number that came as text, because Lua could not count so far, or as a number.
pub(super) fn number_text(value: &Value) -> Decoded<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).map_err(|_| UnexpectedReply),
        _ => text(value)?.parse().map_err(|_| UnexpectedReply),
    }
}

fn integer(value: &Value) -> Decoded<i64> {
    match value {
        Value::Int(number) => Ok(*number),
        _ => Err(UnexpectedReply),
    }
}

fn count(value: &Value) -> Decoded<u64> {
    u64::try_from(integer(value)?).map_err(|_| UnexpectedReply)
}

/// -1 stands for none.
fn optional_count(value: &Value) -> Decoded<Option<u64>> {
    match integer(value)? {
        -1 => Ok(None),
        number => u64::try_from(number).map(Some).map_err(|_| UnexpectedReply),
    }
}
