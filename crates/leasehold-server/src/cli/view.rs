//! What people and scripts see: the JSON shapes of the contract, and none of them holds a secret but the
//! answer to `acquire`.

use leasehold::engine::{Grant, Mode, Renewal, Resource};
use serde::Serialize;

use super::duration::{brief, millis};
use super::moment;

/// What `acquire --json` prints: the same as HTTP's 201.
#[derive(Debug, Serialize)]
pub struct Granted<'a> {
    lease_id: &'a str,
    /// Decimal text: JSON numbers end at 2^53, tokens do not.
    token: Option<String>,
    resources: &'a [String],
    remaining_ms: u64,
    expires_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    renewable_ms: Option<u64>,
}

impl<'a> Granted<'a> {
    /// The shape of a grant on these resources.
    pub fn new(grant: &'a Grant, resources: &'a [String]) -> Self {
        Self {
            lease_id: grant.lease_id.expose(),
            token: grant.token.map(|token| token.to_string()),
            resources,
            remaining_ms: millis(grant.remaining),
            expires_at: moment::rfc3339_in(grant.remaining),
            renewable_ms: grant.renewable.map(millis),
        }
    }
}

/// What `renew --json` prints.
#[derive(Debug, Serialize)]
pub struct Renewed {
    remaining_ms: u64,
    expires_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    renewable_ms: Option<u64>,
}

impl Renewed {
    /// The shape of a renewal.
    pub fn new(renewal: &Renewal) -> Self {
        Self {
            remaining_ms: millis(renewal.remaining),
            expires_at: moment::rfc3339_in(renewal.remaining),
            renewable_ms: renewal.renewable.map(millis),
        }
    }
}

/// One resource, as `ls --json` and `inspect --json` print it.
#[derive(Debug, Serialize)]
pub struct Seen {
    name: String,
    /// `null` when nobody holds or awaits it.
    mode: Option<&'static str>,
    /// Of a resource held by permits: how many there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    capacity: Option<u32>,
    holders: Vec<SeenHolder>,
    waiters: Vec<SeenWaiter>,
    queue_len: usize,
}

#[derive(Debug, Serialize)]
struct SeenHolder {
    holder: String,
    token: Option<String>,
    since_ms: u64,
    remaining_ms: u64,
}

#[derive(Debug, Serialize)]
struct SeenWaiter {
    holder: String,
    waiting_ms: u64,
}

impl Seen {
    /// A resource that is held or awaited.
    pub fn of(resource: &Resource) -> Self {
        let holders = resource.holders.iter().map(|holding| SeenHolder {
            holder: holding.holder.clone(),
            token: holding.token.map(|token| token.to_string()),
            since_ms: millis(holding.since),
            remaining_ms: millis(holding.remaining),
        });
        let waiters = resource
            .waiters
            .iter()
            .map(|waiting| SeenWaiter { holder: waiting.holder.clone(), waiting_ms: millis(waiting.waiting) });
        Self {
            name: resource.name.clone(),
            mode: Some(mode(resource.mode)),
            capacity: capacity(resource.mode),
            holders: holders.collect(),
            waiters: waiters.collect(),
            queue_len: resource.queue_len,
        }
    }

    /// A resource nobody holds or awaits.
    pub fn free(name: &str) -> Self {
        let name = name.to_owned();
        Self { name, mode: None, capacity: None, holders: Vec::new(), waiters: Vec::new(), queue_len: 0 }
    }
}

/// The word for a mode, as in the contract.
pub fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Exclusive => "exclusive",
        Mode::Shared => "shared",
        Mode::Permits { .. } => "permits",
    }
}

fn capacity(mode: Mode) -> Option<u32> {
    match mode {
        Mode::Permits { capacity, .. } => Some(capacity),
        Mode::Exclusive | Mode::Shared => None,
    }
}

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
    let holding = |h: &leasehold::engine::Holding| {
        let token = h.token.map_or_else(|| "-".to_owned(), |token| token.to_string());
        row(h.holder.clone(), token, brief(h.since), brief(h.remaining))
    };
    resource.holders.iter().map(holding).collect()
}

/// The headings above [`rows`].
pub const HEADINGS: [&str; 7] = ["NAME", "MODE", "HOLDER", "TOKEN", "HELD FOR", "REMAINING", "WAITING"];
