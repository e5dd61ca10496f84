//! Law 27: After a failed sync the same engine answers nothing with yes.

use crate::history::{History, Outcome};

/// Joins the fault log with the answers of the same life.
pub fn check(history: &History) -> Result<(), String> {
    for (id, op) in history.ops.iter().enumerate() {
        let failed = op.epoch.checked_sub(1).and_then(|at| history.epochs.get(at)).and_then(|epoch| epoch.failed_at);
        let yes = matches!(
            op.outcome,
            Outcome::Granted { .. }
                | Outcome::Renewed { .. }
                | Outcome::Released(_)
                | Outcome::Revoked(_)
                | Outcome::Freed(_)
                | Outcome::Extended(_)
                | Outcome::Read { .. }
        );
        if yes && failed.is_some_and(|failed| op.ret.is_some_and(|ret| ret > failed)) {
            return Err(format!("operation {id} was answered after the disk had failed"));
        }
    }
    Ok(())
}
