//! What people see of a resource on a terminal. What programs see is [`crate::api::leases`]: the same JSON everywhere.

use leasehold::engine::{Holding, Resource};

use crate::api::leases::mode_word;
use leasehold_support::duration::brief;

/// The rows of a listing: one for each holder that is shown, and one for the number of the others.
pub fn resource_rows(resource: &Resource) -> Vec<Vec<String>> {
    let waiting = resource.queue_len.to_string();
    let mode = mode_word(resource.mode).to_owned();
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
    let hidden = resource.holders_total.saturating_sub(resource.holders.len());
    let more = (hidden > 0).then(|| row(format!("and {hidden} more"), "-".into(), "-".into(), "-".into()));
    resource.holders.iter().map(holding).chain(more).collect()
}

/// The headings above [`resource_rows`].
pub const RESOURCE_HEADINGS: [&str; 7] = ["NAME", "MODE", "HOLDER", "TOKEN", "HELD FOR", "REMAINING", "WAITING"];
