//! Law 18: First come, first served: no claim is granted before an earlier one that conflicts with it.

use super::seen;
use crate::history::History;

/// Only a white box can see it: the simulator looks while the run goes on.
pub fn check(history: &History) -> Result<(), String> {
    seen(history, "fifo")
}
