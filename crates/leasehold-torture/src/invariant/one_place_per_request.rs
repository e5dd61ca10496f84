//! Law 21: One place in line for each request id.

use super::seen;
use crate::history::History;

/// Only a white box can see it: the simulator looks while the run goes on.
pub fn check(history: &History) -> Result<(), String> {
    seen(history, "one_place_per_request")
}
