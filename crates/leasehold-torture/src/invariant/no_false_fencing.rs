//! Law 5b: The newest holder is never turned away.

use crate::history::History;

/// A refused write must have shown a token older than the newest granted.
pub fn check(history: &History) -> Result<(), String> {
    match history.guarded.iter().find(|write| !write.accepted && write.token >= write.newest) {
        None => Ok(()),
        Some(write) => Err(format!("{} refused token {}, the newest there is", write.name, write.token)),
    }
}
