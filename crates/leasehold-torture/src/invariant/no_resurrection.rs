//! Law 14: What has ended stays ended: no renewal or release that was asked for after the end was answered succeeds.

use std::collections::HashMap;

use super::seen;
use crate::history::{History, OpKind, OpOutcome};

/// The end is known from a successful release, or from a client that was told that the lease is stale.
pub fn check(history: &History) -> Result<(), String> {
    seen(history, "no_resurrection")?;
    let mut ended: HashMap<u64, u64> = HashMap::new();
    for op in &history.ops {
        let (Some(ret), OpKind::Renew { token, .. } | OpKind::Release { token }) = (op.ret, &op.kind) else { continue };
        if matches!(op.outcome, OpOutcome::Stale | OpOutcome::Released(_)) {
            let end = ended.entry(token.get()).or_insert(ret);
            *end = (*end).min(ret);
        }
    }
    for (id, op) in history.ops.iter().enumerate() {
        let (OpKind::Renew { token, .. } | OpKind::Relabel { token } | OpKind::Release { token }) = &op.kind else {
            continue;
        };
        let alive = matches!(op.outcome, OpOutcome::Renewed { .. } | OpOutcome::Relabelled | OpOutcome::Released(true));
        if alive && ended.get(&token.get()).is_some_and(|end| *end < op.invoke) {
            return Err(format!("operation {id} succeeded on lease {token} after its end had been answered"));
        }
    }
    Ok(())
}
