//! What else an operator should know of a Redis: how far its clock is from ours, and which other lock clients use it.
//!
//! Everything here reads, and little of it: five times the clock, about a thousand keys, the list of connections. A command that
//! the ACL denies is named, and the rest goes on. Values of other clients' keys are their secrets: their shape is looked at, and
//! they are not kept.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};

use super::decode::{array, number_text, text};
use super::foreign_locks::{ForeignKey, LockClient, foreign_lock_findings, other_clients};
use super::node::{REPLY_TIMEOUT, RedisNode, send_command};
use super::scripts::PREFIX;
use crate::clock::until;
use crate::engine::Finding;
use crate::engine::clock_offset::{CLOCK_PROBES, ClockOffset, ClockProbes};

/// How many keys one SCAN looks at, and how many of them there are.
const KEYS_PER_SCAN: usize = 200;
const MAX_SCANS: usize = 5;
/// As much of a value as tells a lock.
const MAX_VALUE_BYTES: isize = 63;

/// What follows from a clock that is not kept.
pub(in crate::engine) const CLOCK_FOLLOWS: &str =
    "Leases end by the clock of Redis: when it is put right by a step forward, they end before their time.";

/// How far the server's clock is from ours; none where it does not say.
pub(in crate::engine) async fn measure_clock(
    node: &RedisNode,
    redis: &mut MultiplexedConnection,
) -> Option<ClockOffset> {
    let mut probes = ClockProbes::default();
    for _ in 0..CLOCK_PROBES {
        let started = ClockProbes::start_probe();
        let Asked::Answered(value) = ask(node, redis, &redis::cmd("TIME")).await else { break };
        let Ok([seconds, micros]) = array(&value) else { break };
        let (Ok(seconds), Ok(micros)) = (number_text(seconds), number_text(micros)) else { break };
        let theirs = seconds.saturating_mul(1_000_000).saturating_add(micros);
        probes.end_probe(started, i64::try_from(theirs).unwrap_or(i64::MAX));
    }
    probes.offset()
}

/// Other lock clients: those whose keys are there, and those that are connected.
pub(in crate::engine) async fn find_foreign_clients(
    node: &RedisNode,
    redis: &mut MultiplexedConnection,
) -> Vec<Finding> {
    let mut denied = Vec::new();
    let mut findings = match sample_keys(node, redis).await {
        Ok(keys) => foreign_lock_findings(&keys, &node.layout.key_prefix),
        Err(Unread::Denied(command)) => {
            denied.push(command);
            Vec::new()
        }
        Err(Unread::Silent) => Vec::new(),
    };
    let mut list = redis::cmd("CLIENT");
    list.arg("LIST").arg("TYPE").arg("normal");
    match ask(node, redis, &list).await {
        Asked::Answered(Value::VerbatimString { text, .. }) => findings.extend(other_clients(&text)),
        Asked::Answered(value) => findings.extend(text(&value).ok().and_then(|list| other_clients(&list))),
        Asked::Denied => denied.push("CLIENT LIST"),
        Asked::Silent => {}
    }
    if !denied.is_empty() {
        let sentence = "The ACL allows no look at other lock clients: whether there are any is not known.";
        findings.push(Finding::note("other clients", format!("{} is denied", denied.join(", ")), sentence));
    }
    findings
}

/// Locks of other clients among the keys that a short SCAN shows; or the command that is denied.
async fn sample_keys(node: &RedisNode, redis: &mut MultiplexedConnection) -> Result<Vec<ForeignKey>, Unread> {
    let (mut cursor, mut found) = ("0".to_owned(), Vec::new());
    for _ in 0..MAX_SCANS {
        let mut scan = redis::cmd("SCAN");
        scan.arg(&cursor).arg("COUNT").arg(KEYS_PER_SCAN);
        let value = match ask(node, redis, &scan).await {
            Asked::Answered(value) => value,
            Asked::Denied => return Err(Unread::Denied("SCAN")),
            Asked::Silent => return Err(Unread::Silent),
        };
        let Ok([next, Value::Array(keys)]) = array(&value) else { return Err(Unread::Silent) };
        // Other programs' keys need not be text.
        let foreign = keys.iter().filter_map(|key| text(key).ok()).filter(|key| !key.starts_with(PREFIX));
        found.extend(find_locks(node, redis, foreign.collect()).await?);
        cursor = text(next).map_err(|_| Unread::Silent)?;
        if cursor == "0" {
            break;
        }
    }
    // SCAN may show a key twice.
    found.sort_by(|a: &ForeignKey, b| a.key.cmp(&b.key));
    found.dedup_by(|a, b| a.key == b.key);
    Ok(found)
}

/// Which of these keys are locks. Only of a key with an end anything else is read.
async fn find_locks(
    node: &RedisNode,
    redis: &mut MultiplexedConnection,
    keys: Vec<String>,
) -> Result<Vec<ForeignKey>, Unread> {
    let mut kinds = redis::pipe();
    for key in &keys {
        kinds.cmd("TYPE").arg(key).cmd("PTTL").arg(key);
    }
    let kinds = ask_all(node, redis, &mut kinds, "TYPE").await?;
    let (mut contents, mut asked) = (redis::pipe(), Vec::new());
    for (key, reply) in keys.into_iter().zip(kinds.chunks_exact(2)) {
        let has_end = matches!(reply[1], Value::Int(0..));
        match text(&reply[0]).as_deref() {
            Ok("string") if has_end => {
                contents.cmd("GETRANGE").arg(&key).arg(0).arg(MAX_VALUE_BYTES);
                asked.push((key, false));
            }
            Ok("hash") if has_end => {
                contents.cmd("HRANDFIELD").arg(&key);
                asked.push((key, true));
            }
            _ => {}
        }
    }
    let contents = ask_all(node, redis, &mut contents, "GETRANGE or HRANDFIELD").await?;
    let lock = |((key, is_hash), content): ((String, bool), &Value)| {
        let Value::BulkString(content) = content else { return None };
        let client = if is_hash {
            LockClient::of_hash(std::str::from_utf8(content).ok()?)
        } else {
            LockClient::of_string(&key, content)
        };
        client.map(|client| ForeignKey { key, client })
    };
    Ok(asked.into_iter().zip(&contents).filter_map(lock).collect())
}

/// Replies to several commands. One that fails because a key has just changed is no reason to stop.
async fn ask_all(
    node: &RedisNode,
    redis: &mut MultiplexedConnection,
    commands: &mut redis::Pipeline,
    names: &'static str,
) -> Result<Vec<Value>, Unread> {
    if commands.is_empty() {
        return Ok(Vec::new());
    }
    let end = node.clock.now().plus(REPLY_TIMEOUT);
    let asked = until(&*node.clock, end, commands.ignore_errors().query_async::<Vec<Value>>(redis)).await;
    let values = asked.ok_or(Unread::Silent)?.map_err(|_| Unread::Silent)?;
    let denied = |value: &Value| matches!(value, Value::ServerError(error) if error.code() == "NOPERM");
    if values.iter().any(denied) { Err(Unread::Denied(names)) } else { Ok(values) }
}

/// Why nothing is known of other clients.
enum Unread {
    /// The ACL denies this command.
    Denied(&'static str),
    Silent,
}

enum Asked {
    Answered(Value),
    Denied,
    Silent,
}

async fn ask(node: &RedisNode, redis: &mut MultiplexedConnection, command: &Cmd) -> Asked {
    match send_command(&*node.clock, redis, command).await {
        Some(Ok(value)) => Asked::Answered(value),
        Some(Err(error)) if is_denied(&error) => Asked::Denied,
        Some(Err(_)) | None => Asked::Silent,
    }
}

fn is_denied(error: &redis::RedisError) -> bool {
    error.code() == Some("NOPERM") || error.detail().is_some_and(|detail| detail.contains("unknown command"))
}
