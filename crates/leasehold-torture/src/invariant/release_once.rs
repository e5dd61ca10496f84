//! Law 16: Releasing is idempotent: it ends a lease once, and never the one after it.

use std::collections::HashSet;

use leasehold_core::End;

use crate::history::{History, OpKind, OpOutcome, Recorded};

/// At most one release succeeds per lease; every recorded release was asked for by a holder of that lease.
pub fn check(history: &History) -> Result<(), String> {
    let mut released = HashSet::new();
    let mut asked = HashSet::new();
    for op in &history.ops {
        let OpKind::Release { token } = &op.kind else { continue };
        asked.insert(token.get());
        if matches!(op.outcome, OpOutcome::Released(true)) && !released.insert(token.get()) {
            return Err(format!("lease {token} was released twice"));
        }
    }
    let mut keys = HashSet::new();
    for fact in &history.facts {
        // Keys are freed by name too: see `keys_owner`.
        if let Recorded::Granted { token, value: Some(_), .. } = fact {
            keys.insert(*token);
        }
        if let Recorded::Ended { token, how: End::Released, .. } = fact
            && !asked.contains(token)
            && !keys.contains(token)
        {
            return Err(format!("lease {token} was released, and nobody had asked for it"));
        }
    }
    Ok(())
}
