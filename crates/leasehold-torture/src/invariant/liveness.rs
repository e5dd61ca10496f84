//! Law 29: After the last fault every resource can be had again, and nothing is left over.

use super::seen;
use crate::history::History;

/// Only a white box can see it: the simulator looks while the run goes on.
pub fn check(history: &History) -> Result<(), String> {
    seen(history, "liveness")
}
