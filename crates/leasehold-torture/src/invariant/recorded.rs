//! Law 4, 12, 22: The record itself is legal: in commit order no two leases meet that must not, none lapses before
//! its end, none changes after it.

use crate::history::History;
use crate::model::Model;

/// Replays the facts that survived through the reference model.
pub fn check(history: &History) -> Result<(), String> {
    let mut model = Model::default();
    for fact in &history.facts {
        model.follow(fact).map_err(|(law, what)| format!("{law}: {what}"))?;
    }
    Ok(())
}
