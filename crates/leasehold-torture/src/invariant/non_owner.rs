//! Law 15: Who does not own it is refused, and leaves no trace.

use crate::history::{History, OpKind, OpOutcome};

/// Hostile operations are answered "not held" (or not at all) and the book is the same afterwards.
pub fn check(history: &History) -> Result<(), String> {
    for (id, op) in history.ops.iter().enumerate() {
        let OpKind::Hostile { token } = &op.kind else { continue };
        if !matches!(op.outcome, OpOutcome::NotHeld | OpOutcome::Unknown) {
            return Err(format!("operation {id} with a wrong secret for lease {token} got {:?}", op.outcome));
        }
        if !op.untouched {
            return Err(format!("operation {id} with a wrong secret for lease {token} changed the book"));
        }
    }
    Ok(())
}
