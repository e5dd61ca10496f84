//! How strict a fence on this server is, and which servers are refused.

use crate::engine::redis::bare_connection::BareConnection;
use crate::fence::FenceError;

/// What becomes of the fence when the server crashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisStrictness {
    /// What was acknowledged is on disk, fence and data together: no crash of the server lets an older holder back in.
    Strict,
    /// A crash or a failover may lose the last writes with their fences: then an older holder may write again.
    AmongSurvivors {
        /// Which settings are the cause, a sentence each.
        reasons: Vec<String>,
    },
}

/// How strict it is; refused where the memory of the fence could be evicted.
pub(super) fn read_strictness(server: &BareConnection) -> Result<RedisStrictness, FenceError> {
    match server.eviction.as_deref() {
        None => {
            return Err(FenceError::Invalid(
                "whether this server evicts keys cannot be read: a fence needs +config|get or +info".into(),
            ));
        }
        Some(policy) if policy.starts_with("allkeys") => {
            return Err(FenceError::Invalid(format!(
                "maxmemory-policy is {policy}, which may evict the memory of a fence: use noeviction, or volatile-…"
            )));
        }
        Some(_) => {}
    }
    // A volatile policy evicts keys with an expiry only, and a fence has none.
    let reasons: Vec<String> = server
        .weaknesses
        .iter()
        .filter(|weakness| weakness.setting != "maxmemory-policy")
        .map(|weakness| format!("{} is {}, and strictness needs {}", weakness.setting, weakness.value, weakness.wanted))
        .collect();
    Ok(if reasons.is_empty() { RedisStrictness::Strict } else { RedisStrictness::AmongSurvivors { reasons } })
}
