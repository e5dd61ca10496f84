//! Law 27: After a failed sync the same engine answers nothing with yes.

use crate::history::{History, OpOutcome};

/// Joins the fault log with the answers of the same life.
pub fn check(history: &History) -> Result<(), String> {
    for (id, op) in history.ops.iter().enumerate() {
        let failed = op.epoch.checked_sub(1).and_then(|at| history.epochs.get(at)).and_then(|epoch| epoch.failed_at);
        let yes = matches!(
            op.outcome,
            OpOutcome::Granted { .. }
                | OpOutcome::Renewed { .. }
                | OpOutcome::Relabelled
                | OpOutcome::Released(_)
                | OpOutcome::Revoked(_)
                | OpOutcome::Freed(_)
                | OpOutcome::Extended(_)
                | OpOutcome::Read { .. }
        );
        if yes && failed.is_some_and(|failed| op.ret.is_some_and(|ret| ret > failed)) {
            return Err(format!("operation {id} was answered after the disk had failed"));
        }
    }
    Ok(())
}
