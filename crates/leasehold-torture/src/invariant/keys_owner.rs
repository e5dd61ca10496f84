//! Law 31: A key is freed or pushed by whoever shows its value, or by a command that asks for none, where it was taken as
//! a key; whoever shows a wrong value changes nothing.

use std::collections::{HashMap, HashSet};

use leasehold_core::End;

use crate::history::{History, OpKind, OpOutcome, Recorded};

/// What was asked of which name, with which value.
type Asks<'h> = HashSet<(&'h str, Option<&'h str>)>;

/// The answers are those of the reference model, and every recorded change of a key was asked for by somebody who may.
pub fn check(history: &History) -> Result<(), String> {
    let (mut freeing, mut pushing) = (Asks::new(), Asks::new());
    let (mut released, mut renewed) = (HashSet::new(), HashSet::new());
    for (id, op) in history.ops.iter().enumerate() {
        let (keys, expect, got, asks) = match (&op.kind, op.outcome) {
            (OpKind::Release { token }, _) => {
                released.insert(token.get());
                continue;
            }
            (OpKind::Renew { token, .. }, _) => {
                renewed.insert(token.get());
                continue;
            }
            (OpKind::Free { keys, expect }, OpOutcome::Freed(got)) => (keys, expect, Some(Some(got)), &mut freeing),
            (OpKind::Free { keys, expect }, outcome) => (keys, expect, refused(outcome), &mut freeing),
            (OpKind::Extend { keys, expect, .. }, OpOutcome::Extended(got)) => {
                (keys, expect, Some(Some(got)), &mut pushing)
            }
            (OpKind::Extend { keys, expect, .. }, outcome) => (keys, expect, refused(outcome), &mut pushing),
            _ => continue,
        };
        asks.extend(keys.names.iter().map(|name| (name.as_str(), keys.value.as_deref())));
        if got.is_some_and(|got| got != *expect) || (got.is_none() && !matches!(op.outcome, OpOutcome::Unknown)) {
            return Err(format!("operation {id}, {:?}, got {:?}", op.kind, op.outcome));
        }
        if !op.untouched {
            return Err(format!("operation {id}, {:?}, had nothing to change and changed the book", op.kind));
        }
    }
    let mut keys: HashMap<u64, (&str, HashSet<&str>)> = HashMap::new();
    for fact in &history.facts {
        match fact {
            Recorded::Granted { token, wants, value: Some(value), .. } => {
                keys.insert(*token, (value, wants.iter().map(|(name, _)| name.as_str()).collect()));
            }
            Recorded::Freed { token, name } => {
                let Some((value, _)) = keys.get(token) else {
                    return Err(format!("lease {token} gave up {name}, and is no key"));
                };
                if !may(&freeing, name, value) {
                    return Err(format!("key {name} of lease {token} was freed, and nobody had asked who may"));
                }
            }
            Recorded::Ended { token, how: End::Released, .. } if !released.contains(token) => {
                if let Some((value, names)) = keys.get(token)
                    && !names.iter().any(|name| may(&freeing, name, value))
                {
                    return Err(format!("the keys of lease {token} were freed, and nobody had asked who may"));
                }
            }
            Recorded::Renewed { token, .. } if !renewed.contains(token) => match keys.get(token) {
                Some((value, names)) if names.iter().any(|name| may(&pushing, name, value)) => {}
                _ => return Err(format!("lease {token} was pushed, and nobody had asked who may")),
            },
            _ => {}
        }
    }
    Ok(())
}

/// `Some(None)` is a refusal of the command as such; `None` is no answer of any use.
fn refused(outcome: OpOutcome) -> Option<Option<usize>> {
    matches!(outcome, OpOutcome::Failed).then_some(None)
}

fn may(asks: &Asks<'_>, name: &str, value: &str) -> bool {
    asks.contains(&(name, Some(value))) || asks.contains(&(name, None))
}
