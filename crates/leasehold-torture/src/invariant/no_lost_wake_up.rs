//! Law 19: No claim that could be granted is left waiting.

use super::seen;
use crate::history::History;

/// Only a white box can see it: the simulator looks while the run goes on.
pub fn check(history: &History) -> Result<(), String> {
    seen(history, "no_lost_wake_up")
}
