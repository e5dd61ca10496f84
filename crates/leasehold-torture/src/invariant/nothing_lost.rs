//! Law 6, 25: Nothing acknowledged is lost: after a crash the state is exactly what the surviving record says, and
//! the record holds at least all that was answered.

use super::seen;
use crate::history::History;

/// Compares every recovery with what had been answered before it, and with a replay.
pub fn check(history: &History) -> Result<(), String> {
    seen(history, "nothing_lost")?;
    for (epoch, recovery) in history.epochs.iter().enumerate().filter_map(|(n, e)| e.recovery.map(|r| (n, r))) {
        if recovery.found < recovery.acked {
            return Err(format!(
                "life {epoch} found frames up to {}, but {} had been answered",
                recovery.found, recovery.acked
            ));
        }
        if recovery.found > recovery.written {
            return Err(format!("life {epoch} found frame {} that nobody wrote", recovery.found));
        }
        if recovery.digest != recovery.expected {
            return Err(format!("life {epoch} found another state than its record says"));
        }
    }
    Ok(())
}
