//! Law 20: Who gave up waiting is not granted anything afterwards.

use std::collections::HashSet;

use crate::history::{History, OpKind, OpOutcome, Recorded};

/// Joins cancelled waits with the record: the operation of a grant is named by its holder label.
pub fn check(history: &History) -> Result<(), String> {
    let mut gone = HashSet::new();
    for op in &history.ops {
        if let (OpKind::Cancel { op }, OpOutcome::Cancelled(true)) = (&op.kind, op.outcome) {
            let shared = match &history.ops[*op].kind {
                // A retry may have joined the same place and have waited on.
                OpKind::Acquire(ask) => ask.request.is_some(),
                _ => false,
            };
            if !shared {
                gone.insert(*op);
            }
        }
    }
    for fact in &history.facts {
        let Recorded::Granted { token, holder, .. } = fact else { continue };
        let op = holder.strip_prefix("op").and_then(|digits| digits.parse::<usize>().ok());
        if op.is_some_and(|op| gone.contains(&op)) {
            return Err(format!("token {token} went to {holder}, who had given up"));
        }
    }
    Ok(())
}
