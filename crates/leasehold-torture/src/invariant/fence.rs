//! Law 5: The resource never accepts a stale write: accepted tokens do not go down.

use std::collections::HashMap;

use crate::history::History;

/// One pass over the resource's own log.
pub fn check(history: &History) -> Result<(), String> {
    let mut newest: HashMap<&str, u64> = HashMap::new();
    for write in history.guarded.iter().filter(|write| write.accepted) {
        let seen = newest.entry(&write.name).or_default();
        if write.token < *seen {
            return Err(format!("{} accepted token {} after token {seen}", write.name, write.token));
        }
        *seen = write.token;
    }
    Ok(())
}
