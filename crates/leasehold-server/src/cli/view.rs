//! What people see of a resource on a terminal. What programs see is [`crate::http::shape`]: the same JSON everywhere.

use leasehold::engine::{Holding, Resource};

use super::duration::brief;
use crate::http::shape::mode;

/// The rows of a listing for people: one for each holder, so that nothing is summed up and hidden.
pub fn rows(resource: &Resource) -> Vec<Vec<String>> {
    let waiting = resource.queue_len.to_string();
    let mode = mode(resource.mode).to_owned();
    let row = |holder: String, token: String, since: String, left: String| {
        vec![resource.name.clone(), mode.clone(), holder, token, since, left, waiting.clone()]
    };
    if resource.holders.is_empty() {
        return vec![row("-".into(), "-".into(), "-".into(), "-".into())];
    }
    let holding = |h: &Holding| {
        let token = h.token.map_or_else(|| "-".to_owned(), |token| token.to_string());
        row(h.holder.clone(), token, brief(h.since), brief(h.remaining))
    };
    resource.holders.iter().map(holding).collect()
}

/// The headings above [`rows`].
pub const HEADINGS: [&str; 7] = ["NAME", "MODE", "HOLDER", "TOKEN", "HELD FOR", "REMAINING", "WAITING"];
