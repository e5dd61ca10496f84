//! No grant and no renewal goes past `max_hold`.

use super::seen;
use crate::history::History;

/// The reference model follows every fact as it is decided, and again those that survived.
pub fn check(history: &History) -> Result<(), String> {
    seen(history, "cap")
}
