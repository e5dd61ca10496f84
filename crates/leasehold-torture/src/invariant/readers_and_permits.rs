//! Law 22: Readers and writers do not meet, and permits stay within the capacity.

use super::seen;
use crate::history::History;

/// The reference model follows every fact as it is decided, and again those that survived.
pub fn check(history: &History) -> Result<(), String> {
    seen(history, "readers_and_permits")
}
