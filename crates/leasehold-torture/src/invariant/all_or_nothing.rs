//! Law 7: A claim on several resources is granted whole or not at all, also when its answer was lost.

use super::seen;
use crate::history::{History, OpKind, Recorded};

/// Every recorded grant covers exactly what its operation asked for.
pub fn check(history: &History) -> Result<(), String> {
    seen(history, "all_or_nothing")?;
    for fact in &history.facts {
        let Recorded::Granted { token, holder, wants, .. } = fact else { continue };
        let op = holder.strip_prefix("op").and_then(|digits| digits.parse::<usize>().ok());
        if let Some(OpKind::Acquire(ask)) = op.and_then(|op| history.ops.get(op)).map(|op| &op.kind)
            && ask.wants != *wants
        {
            return Err(format!("token {token} covers {wants:?}, asked for was {:?}", ask.wants));
        }
    }
    Ok(())
}
