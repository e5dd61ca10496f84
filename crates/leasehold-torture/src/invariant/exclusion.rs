//! Law 4: Mutual exclusion in the order of the record: between a grant and its end nobody else gets the resource.

use super::seen;
use crate::history::History;

/// The reference model follows every fact as it is decided, and again those that survived.
pub fn check(history: &History) -> Result<(), String> {
    seen(history, "exclusion")
}
