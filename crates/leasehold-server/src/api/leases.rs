//! The JSON of leases and resources: HTTP and RESP send it, and the command line prints it with `--json`. The answer to an
//! acquire is the only one with a secret in it.

use leasehold::engine::{Event, EventId, Grant, Holding, Mode, Renewal, Resource, Waiting};
use serde::Serialize;

use leasehold_support::time;

use leasehold_support::duration::millis;

/// 201 of an acquire, and `acquire --json`.
#[derive(Debug, Serialize)]
pub struct GrantJson<'a> {
    lease_id: &'a str,
    /// Decimal text: JSON numbers end at 2^53, tokens do not.
    token: Option<String>,
    /// Public: tells two leases apart where tokens are equal.
    mark: String,
    resources: &'a [String],
    remaining_ms: u64,
    /// For people: nothing is decided by the wall clock.
    expires_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    renewable_ms: Option<u64>,
}

impl<'a> GrantJson<'a> {
    /// The JSON of a grant on these resources.
    pub fn new(grant: &'a Grant, resources: &'a [String]) -> Self {
        Self {
            lease_id: grant.lease_id.expose(),
            token: grant.token.map(|token| token.to_string()),
            mark: grant.lease_id.mark(),
            resources,
            remaining_ms: millis(grant.remaining),
            expires_at: time::rfc3339_in(grant.remaining),
            renewable_ms: grant.renewable.map(millis),
        }
    }
}

/// 200 of a renewal, and `renew --json`.
#[derive(Debug, Serialize)]
pub struct RenewalJson {
    remaining_ms: u64,
    expires_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    renewable_ms: Option<u64>,
}

impl RenewalJson {
    /// The JSON of a renewal.
    pub fn new(renewal: &Renewal) -> Self {
        Self {
            remaining_ms: millis(renewal.remaining),
            expires_at: time::rfc3339_in(renewal.remaining),
            renewable_ms: renewal.renewable.map(millis),
        }
    }
}

/// One resource, also of `ls --json` and `inspect --json`.
#[derive(Debug, Serialize)]
pub struct ResourceJson {
    name: String,
    /// `null` when nobody holds or awaits it.
    mode: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    permits_used: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    capacity: Option<u32>,
    holders: Vec<HolderJson>,
    /// The number of all holders: only the first are listed.
    holders_total: usize,
    waiters: Vec<WaiterJson>,
    queue_len: usize,
}

#[derive(Debug, Serialize)]
struct HolderJson {
    holder: String,
    token: Option<String>,
    since_ms: u64,
    remaining_ms: u64,
}

#[derive(Debug, Serialize)]
struct WaiterJson {
    holder: String,
    waiting_ms: u64,
}

impl From<Resource> for ResourceJson {
    fn from(resource: Resource) -> Self {
        let permits = match resource.mode {
            Mode::Exclusive | Mode::Shared => None,
            // When nobody holds it the count is what the head of the queue wants.
            Mode::Permits { capacity, .. } if resource.holders.is_empty() => Some((0, capacity)),
            Mode::Permits { count, capacity } => Some((count, capacity)),
        };
        Self {
            name: resource.name,
            mode: Some(mode_word(resource.mode)),
            permits_used: permits.map(|(used, _)| used),
            capacity: permits.map(|(_, capacity)| capacity),
            holders_total: resource.holders_total,
            holders: resource.holders.into_iter().map(HolderJson::from).collect(),
            waiters: resource.waiters.into_iter().map(WaiterJson::from).collect(),
            queue_len: resource.queue_len,
        }
    }
}

impl ResourceJson {
    /// A resource nobody holds or awaits.
    pub fn free(name: String) -> Self {
        let (holders, waiters) = (Vec::new(), Vec::new());
        let (permits_used, capacity) = (None, None);
        Self { name, mode: None, permits_used, capacity, holders, holders_total: 0, waiters, queue_len: 0 }
    }
}

/// The word for a mode, as in the contract.
pub fn mode_word(mode: Mode) -> &'static str {
    match mode {
        Mode::Exclusive => "exclusive",
        Mode::Shared => "shared",
        Mode::Permits { .. } => "permits",
    }
}

impl From<Holding> for HolderJson {
    fn from(holding: Holding) -> Self {
        Self {
            holder: holding.holder,
            token: holding.token.map(|token| token.to_string()),
            since_ms: millis(holding.since),
            remaining_ms: millis(holding.remaining),
        }
    }
}

impl From<Waiting> for WaiterJson {
    fn from(waiting: Waiting) -> Self {
        Self { holder: waiting.holder, waiting_ms: millis(waiting.waiting) }
    }
}

/// One lease event of a watch.
#[derive(Debug, Serialize)]
pub struct EventJson {
    id: String,
    prev: String,
    #[serde(flatten)]
    what: LeaseEventJson,
}

/// One lease event, as the status lists it.
#[derive(Debug, Serialize)]
pub struct LeaseEventJson {
    kind: &'static str,
    token: Option<String>,
    resources: Vec<String>,
    holder: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
    ago_ms: u64,
}

impl EventJson {
    /// With the id before it.
    pub fn new(event: Event, prev: EventId) -> Self {
        Self { id: event.id.to_string(), prev: prev.to_string(), what: event.into() }
    }

    /// As text.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("shapes have text for keys and nothing that can fail")
    }
}

impl From<Event> for LeaseEventJson {
    fn from(event: Event) -> Self {
        Self {
            kind: event.kind.word(),
            token: event.token.map(|token| token.to_string()),
            resources: event.resources,
            holder: event.holder,
            reason: event.reason,
            ago_ms: millis(event.ago),
        }
    }
}
