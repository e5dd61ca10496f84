//! Law 3: Tokens rise over restarts: the first after one is above the ceiling that the surviving files name.

use crate::history::{History, OpKind, OpOutcome};

/// Compares each grant with the ceiling that its engine found at its start.
pub fn check(history: &History) -> Result<(), String> {
    for (id, op) in history.ops.iter().enumerate() {
        let (OpKind::Acquire(_), OpOutcome::Granted { token, repeated: false, .. }) = (&op.kind, op.outcome) else {
            continue;
        };
        let ceiling = op.epoch.checked_sub(1).and_then(|at| history.epochs.get(at)).map_or(0, |e| e.ceiling_found);
        if token.get() <= ceiling {
            return Err(format!(
                "operation {id} got token {token}, and tokens up to {ceiling} may have been used before"
            ));
        }
    }
    Ok(())
}
