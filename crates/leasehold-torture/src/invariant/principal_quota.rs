//! Law 32: No principal has more leases, or more places in line, than its share; and none is refused below it.

use super::seen;
use crate::history::{History, OpOutcome};

/// The simulator counts with the model after every fact; a refusal must have been true when it was decided.
pub fn check(history: &History) -> Result<(), String> {
    seen(history, "principal_quota")?;
    match history.ops.iter().position(|op| matches!(op.outcome, OpOutcome::Quota) && !op.full) {
        Some(id) => Err(format!("operation {id} was refused for want of room, and there was room")),
        None => Ok(()),
    }
}
