//! Law 12: Nothing lapses early: whoever gets an exclusive resource next is answered no sooner than the last holder's
//! last successful request plus its ttl, unless that holder released it or an operator revoked it.

use std::collections::HashMap;

use leasehold_core::{End, Mode};

use super::{pushed, seen};
use crate::history::{AcquireRequest, History, OpKind, OpOutcome, Recorded};

/// In true time, which the engine never sees.
pub fn check(history: &History) -> Result<(), String> {
    seen(history, "never_early")?;
    let mut ends: HashMap<u64, u64> = HashMap::new();
    let mut returned: HashMap<u64, u64> = HashMap::new();
    let mut keys: HashMap<u64, (u64, &AcquireRequest)> = HashMap::new();
    for op in &history.ops {
        match (&op.kind, op.outcome) {
            (OpKind::Acquire(ask), OpOutcome::Granted { token, remaining, repeated: false, .. }) => {
                if ask.value.is_some() {
                    keys.insert(token.get(), (op.invoke, ask));
                }
                ends.insert(token.get(), op.invoke.saturating_add(remaining.as_nanos() as u64));
                returned.insert(token.get(), op.ret.unwrap_or(u64::MAX));
            }
            (OpKind::Renew { token, .. }, OpOutcome::Renewed { remaining }) => {
                ends.insert(token.get(), op.invoke.saturating_add(remaining.as_nanos() as u64));
            }
            (OpKind::Extend { .. }, _) => {
                for (token, (asked, ask)) in &keys {
                    ends.entry(*token).and_modify(|end| *end = pushed(ask, *asked, *end, op));
                }
            }
            // Whoever asks for less time may have got it, answer or not.
            (OpKind::Renew { token, ttl: Some(ttl) }, OpOutcome::Unknown) => {
                if let Some(end) = ends.get_mut(&token.get()) {
                    *end = (*end).min(op.invoke.saturating_add(ttl.as_nanos() as u64));
                }
            }
            _ => {}
        }
    }
    let mut lapsed_on: HashMap<&str, Vec<u64>> = HashMap::new();
    let mut names: HashMap<u64, Vec<&str>> = HashMap::new();
    for fact in &history.facts {
        match fact {
            Recorded::Granted { token, wants, .. } => {
                for (name, mode) in wants {
                    if *mode != Mode::Exclusive {
                        continue;
                    }
                    for earlier in lapsed_on.remove(name.as_str()).unwrap_or_default() {
                        let (Some(end), Some(answer)) = (ends.get(&earlier), returned.get(token)) else { continue };
                        if answer < end {
                            return Err(format!(
                                "{name} went to token {token} at {answer}, token {earlier} was good until {end}"
                            ));
                        }
                    }
                }
                names.insert(*token, wants.iter().map(|(name, _)| name.as_str()).collect());
            }
            Recorded::Ended { token, how: End::Lapsed, .. } => {
                for name in names.get(token).into_iter().flatten() {
                    lapsed_on.entry(name).or_default().push(*token);
                }
            }
            _ => {}
        }
    }
    Ok(())
}
