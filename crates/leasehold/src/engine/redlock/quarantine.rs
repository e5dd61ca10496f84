//! The quarantine that all processes of a node agree on. It is kept on the node itself.
//!
//! A process with a shorter quarantine lets a node vote again that has forgotten a lease of a process with a longer one: then
//! there are two holders. So whoever comes second with another value is refused.

use std::time::Duration;

use redis::Value;
use redis::aio::MultiplexedConnection;

use super::node::NodeError;
use crate::engine::from_book::millis;
use crate::engine::redis::decode::text;
use crate::engine::redis::node::{RedisNode, send_command};
use crate::engine::redis::scripts::PREFIX;
use crate::error::Error;

/// The value is read again every half minute, and kept so much longer than the longest lease.
const KEPT_AFTER: Duration = Duration::from_secs(60);

/// Notes our quarantine on a node, and refuses a node where another one is in use.
pub(super) async fn agree_on_quarantine(
    node: &RedisNode,
    redis: &mut MultiplexedConnection,
    quarantine: Duration,
) -> Result<(), NodeError> {
    let (key, ours) = (format!("{PREFIX}quarantine"), millis(quarantine).to_string());
    let kept_ms = millis(quarantine + KEPT_AFTER);
    let mut note = redis::cmd("SET");
    note.arg(&key).arg(&ours).arg("NX").arg("GET").arg("PX").arg(kept_ms);
    let at = node.options.at();
    let theirs = match send_command(&*node.clock, redis, &note).await {
        None => return Err(NodeError::NoEffect(format!("{at} does not answer"))),
        // Memory is full, or the ACL denies it: then nothing is known, and other replies say why.
        Some(Err(_)) | Some(Ok(Value::Nil)) => return Ok(()),
        Some(Ok(value)) => text(&value).unwrap_or_default(),
    };
    if theirs != ours {
        let kept = Duration::from_millis(theirs.parse().unwrap_or(0)) + KEPT_AFTER;
        return Err(NodeError::Broken(Error::Invalid(format!(
            "{at}: other processes use this node with quarantine={theirs}ms, and this one has {ours}ms; it must be the same \
             in all of them, and can be changed {} s after the last of them is gone",
            kept.as_secs()
        ))));
    }
    let mut keep = redis::cmd("PEXPIRE");
    keep.arg(&key).arg(kept_ms);
    // If it fails, it is done again in half a minute.
    let _ = send_command(&*node.clock, redis, &keep).await;
    Ok(())
}
