//! Law 1: A token names one grant: no two owners, ever, across restarts.

use std::collections::HashMap;

use crate::history::{History, OpKind, OpOutcome};

/// Groups what clients were told by token.
pub fn check(history: &History) -> Result<(), String> {
    let mut owners: HashMap<u64, (usize, Option<&str>)> = HashMap::new();
    for (id, op) in history.ops.iter().enumerate() {
        let (OpKind::Acquire(ask), OpOutcome::Granted { token, .. }) = (&op.kind, op.outcome) else { continue };
        let request = ask.request.as_deref();
        if let Some((first, known)) = owners.insert(token.get(), (id, request))
            && (known != request || request.is_none())
        {
            return Err(format!("token {token} was given to operation {first} and to operation {id}"));
        }
    }
    Ok(())
}
