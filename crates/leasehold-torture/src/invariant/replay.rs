//! Law 25: The live state, its replay, and a snapshot of it put back are the same.

use super::seen;
use crate::history::History;

/// Only a white box can see it: the simulator looks while the run goes on.
pub fn check(history: &History) -> Result<(), String> {
    seen(history, "replay")
}
