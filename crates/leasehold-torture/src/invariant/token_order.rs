//! Law 2: A grant that returned before another was asked for has the lower token.

use super::seen;
use crate::history::{History, Kind, Outcome};

/// Sweeps grants by the moment they were asked for, with the highest token already returned.
pub fn check(history: &History) -> Result<(), String> {
    seen(history, "token_order")?;
    let mut asked: Vec<(u64, u64)> = Vec::new();
    let mut returned: Vec<(u64, u64)> = Vec::new();
    for op in &history.ops {
        let (Kind::Acquire(_), Outcome::Granted { token, repeated: false, .. }) = (&op.kind, op.outcome) else {
            continue;
        };
        asked.push((op.invoke, token.get()));
        returned.extend(op.ret.map(|ret| (ret, token.get())));
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
            return Err(format!("token {token} was granted after token {highest} had been returned"));
        }
    }
    Ok(())
}
