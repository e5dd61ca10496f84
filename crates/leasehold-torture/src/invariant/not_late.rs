//! Law 13: Nothing that is due is left after a full tick.

use super::seen;
use crate::history::History;

/// Only a white box can see it: the simulator looks while the run goes on.
pub fn check(history: &History) -> Result<(), String> {
    seen(history, "not_late")
}
