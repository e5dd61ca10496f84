//! Law 2: A grant that returned before another was asked for has the lower token, and so has a floor that was raised. No
//! floor is told that is below a token or a floor told before.

use super::seen;
use crate::history::{History, OpKind, OpOutcome};

/// Sweeps grants and floors by the moment they were asked for, with the highest token already returned.
pub fn check(history: &History) -> Result<(), String> {
    seen(history, "token_order")?;
    // When it was asked for, and the lowest number that must not have been told before.
    let mut asked: Vec<(u64, u64)> = Vec::new();
    // When it was told, and the highest number that must not come any more.
    let mut returned: Vec<(u64, u64)> = Vec::new();
    for op in &history.ops {
        match (&op.kind, op.outcome) {
            (OpKind::Acquire(_), OpOutcome::Granted { token, repeated: false, .. }) => {
                asked.push((op.invoke, token.get()));
                returned.extend(op.ret.map(|ret| (ret, token.get())));
            }
            (OpKind::Floor { raise }, OpOutcome::Floor(floor)) => {
                // The floor itself may have been told before, and without a raise may still come.
                asked.push((op.invoke, floor.get() + 1));
                let gone = raise.map_or(0, |raise| raise.get()).max(floor.get() - 1);
                returned.extend(op.ret.map(|ret| (ret, gone)));
            }
            _ => {}
        }
    }
    asked.sort_unstable();
    returned.sort_unstable();
    let mut highest = 0;
    let mut next = returned.into_iter().peekable();
    for (invoke, token) in asked {
        while let Some((_, earlier)) = next.next_if(|(ret, _)| *ret < invoke) {
            highest = highest.max(earlier);
        }
        if token <= highest {
            return Err(format!("token {token} was granted or told as free after {highest} had been told as gone"));
        }
    }
    Ok(())
}
