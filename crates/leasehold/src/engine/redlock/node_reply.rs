//! Requests to a node as scripts, and their replies as types.

use redis::Value;

use super::node::{Ballot, LeaseRecord, NodeHeld, NodeHolding, NodeReply, NodeRequest, Occupant, PeekedLease};
use super::scripts::NodeScript;
use super::view::STRANGER;
use crate::engine::redis::claim_text::{record_key, release};
use crate::engine::redis::decode::{OwnerReply, UnexpectedReply, array, owner_reply, text};

/// A script, its keys and its arguments.
pub(super) struct NodeCall {
    pub script: NodeScript,
    pub keys: Vec<String>,
    pub args: Vec<String>,
}

/// None for a list, which is read in several steps.
pub(super) fn script_call(request: &NodeRequest) -> Option<NodeCall> {
    let owner = |script, lease: &super::node::LeaseKeys, mut more: Vec<String>| {
        more.insert(0, lease.secret.clone());
        NodeCall { script, keys: vec![record_key(&lease.handle)], args: more }
    };
    Some(match request {
        NodeRequest::Acquire(claim) => {
            let (keys, args) = claim.text.acquire(0, "-", 0);
            NodeCall { script: NodeScript::Acquire, keys, args }
        }
        NodeRequest::Abandon { lease, ban_ms } => owner(NodeScript::Abandon, lease, vec![ban_ms.max(&1).to_string()]),
        NodeRequest::Renew { lease, ttl_ms, change } => {
            let ttl = ttl_ms.map_or_else(String::new, |ttl| ttl.to_string());
            owner(NodeScript::Renew, lease, vec![ttl, change.process.to_string(), change.number.to_string()])
        }
        NodeRequest::Release { lease, ban_ms } => {
            let (keys, args) = release(&lease.handle, &lease.secret, None, *ban_ms);
            NodeCall { script: NodeScript::Release, keys, args }
        }
        NodeRequest::Peek { handle } => {
            NodeCall { script: NodeScript::Peek, keys: vec![record_key(handle)], args: Vec::new() }
        }
        NodeRequest::Join(lease) => owner(NodeScript::Join, lease, Vec::new()),
        NodeRequest::ReadRecord(lease) => owner(NodeScript::ReadRecord, lease, Vec::new()),
        NodeRequest::Repair { lease, record, life_ms, change } => NodeCall {
            script: NodeScript::Repair,
            keys: vec![record_key(&lease.handle)],
            args: vec![
                record.static_part.clone(),
                record.age_ms.to_string(),
                life_ms.to_string(),
                change.process.to_string(),
                change.number.to_string(),
            ],
        },
        NodeRequest::Look { key } => NodeCall { script: NodeScript::Look, keys: vec![key.clone()], args: Vec::new() },
        NodeRequest::Revoke { key, reason } => {
            NodeCall { script: NodeScript::Revoke, keys: vec![key.clone()], args: vec![reason.clone()] }
        }
        NodeRequest::List => return None,
    })
}

/// The reply of a script.
pub(super) fn node_reply(script: NodeScript, value: &Value) -> Result<NodeReply, UnexpectedReply> {
    Ok(match script {
        NodeScript::Acquire => NodeReply::Ballot(ballot(value)?),
        NodeScript::Abandon | NodeScript::Repair => {
            count(value)?;
            NodeReply::Done
        }
        NodeScript::Renew | NodeScript::Join => match owner_reply(value)? {
            OwnerReply::Renewed { remaining_ms, cap_left_ms } => {
                NodeReply::Lives { left_ms: remaining_ms, cap_left_ms }
            }
            OwnerReply::Stale => NodeReply::Stale,
            OwnerReply::NotHeld => NodeReply::NotHeld,
            OwnerReply::Done(_) => return Err(UnexpectedReply),
        },
        NodeScript::Release => match owner_reply(value)? {
            OwnerReply::Done(ended) => NodeReply::Released(ended == 1),
            OwnerReply::Stale => NodeReply::Stale,
            OwnerReply::NotHeld => NodeReply::NotHeld,
            OwnerReply::Renewed { .. } => return Err(UnexpectedReply),
        },
        NodeScript::Peek if *value == Value::Nil => NodeReply::Peeked(None),
        NodeScript::Peek => {
            let [secret, fingerprint, live] = array(value)? else { return Err(UnexpectedReply) };
            let peeked =
                PeekedLease { secret: text(secret)?, fingerprint: text(fingerprint)?, live: count(live)? == 1 };
            NodeReply::Peeked(Some(peeked))
        }
        NodeScript::ReadRecord => match value {
            Value::Int(-1) => NodeReply::Stale,
            Value::Int(-2) => NodeReply::NotHeld,
            _ => {
                let [static_part, age] = array(value)? else { return Err(UnexpectedReply) };
                NodeReply::Record(LeaseRecord { static_part: text(static_part)?, age_ms: count(age)? })
            }
        },
        NodeScript::Look if *value == Value::Nil => NodeReply::Looked(None),
        NodeScript::Look => {
            let [kind, handle, rest @ ..] = array(value)? else { return Err(UnexpectedReply) };
            NodeReply::Looked(Some(holding(occupant(kind, handle)?, rest)?))
        }
        NodeScript::List => NodeReply::Listed(array(value)?.iter().map(listed).collect::<Result<_, _>>()?),
        NodeScript::Revoke => match value {
            Value::Int(-1) => NodeReply::Revoked(None),
            _ => NodeReply::Revoked(Some(usize::try_from(count(value)?).map_err(|_| UnexpectedReply)?)),
        },
    })
}

fn ballot(value: &Value) -> Result<Ballot, UnexpectedReply> {
    match value {
        Value::Int(1) => Ok(Ballot::Granted),
        Value::Array(parts) => held(parts).map(Ballot::Held),
        _ => match text(value)?.as_str() {
            "X" => Ok(Ballot::Banned),
            "S" => Ok(Ballot::SameRequest),
            "M" => Ok(Ballot::Mismatch),
            _ => Err(UnexpectedReply),
        },
    }
}

fn held(parts: &[Value]) -> Result<NodeHeld, UnexpectedReply> {
    let [_, key, label, left, queue, kind, handle] = parts else { return Err(UnexpectedReply) };
    let who = occupant(kind, handle)?;
    let holder = match (&who, label) {
        (Occupant::Stranger, _) => Some(STRANGER.to_owned()),
        (_, Value::Nil) => None,
        (_, label) => Some(text(label)?),
    };
    let left_ms = if *left == Value::Int(-1) { None } else { Some(count(left)?) };
    let queue_len = usize::try_from(count(queue)?).map_err(|_| UnexpectedReply)?;
    Ok(NodeHeld { key: text(key)?, who, holder, left_ms, queue_len })
}

fn occupant(kind: &Value, handle: &Value) -> Result<Occupant, UnexpectedReply> {
    Ok(match text(kind)?.as_str() {
        "l" => Occupant::Lease(text(handle)?),
        "f" => Occupant::Stranger,
        _ => Occupant::Other,
    })
}

/// Live, label, since, left.
fn holding(who: Occupant, parts: &[Value]) -> Result<NodeHolding, UnexpectedReply> {
    let [live, label, since, left] = parts else { return Err(UnexpectedReply) };
    let (since_ms, left_ms) = (count(since)?, count(left)?);
    Ok(NodeHolding { who, live: count(live)? == 1, holder: text(label)?, since_ms, left_ms })
}

fn listed(value: &Value) -> Result<(String, NodeHolding), UnexpectedReply> {
    let [key, handle, rest @ ..] = array(value)? else { return Err(UnexpectedReply) };
    Ok((text(key)?, holding(Occupant::Lease(text(handle)?), rest)?))
}

fn count(value: &Value) -> Result<u64, UnexpectedReply> {
    match value {
        Value::Int(number) => u64::try_from(*number).map_err(|_| UnexpectedReply),
        _ => Err(UnexpectedReply),
    }
}
