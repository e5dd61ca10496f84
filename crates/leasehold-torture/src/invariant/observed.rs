//! What the white box saw while the run went on: queue order (18), lost wake-ups (19), one place per request
//! (21), mutual exclusion as it is decided (4, 22), lateness (13), replay (25), liveness after heal (29).

use crate::history::History;

/// Any observation is a violation of the law that it names.
pub fn check(history: &History) -> Result<(), String> {
    match history.observations.first() {
        None => Ok(()),
        Some(seen) => Err(format!("{}: {}", seen.invariant, seen.what)),
    }
}
