//! An event and its rules.

use serde::{Deserialize, Serialize};

use super::ids::{EventId, Moment, well_formed};

/// The rules of an event. Durations in milliseconds, money in minor units of `currency`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventSettings {
    /// For people.
    pub name: String,
    /// ISO 4217, three capital letters.
    #[serde(default = "euro")]
    pub currency: String,
    /// How long a hold lives without renewal.
    #[serde(default = "five_minutes")]
    pub ttl_ms: u64,
    /// Renewals never push the end past the first grab plus this.
    #[serde(default = "fifteen_minutes")]
    pub max_hold_ms: u64,
    /// How long paying may take.
    #[serde(default = "ten_minutes")]
    pub pay_ms: u64,
    /// The most seats and places one buyer may hold and own together.
    #[serde(default = "eight")]
    pub per_buyer: u32,
    /// Whether buyers may hold.
    #[serde(default)]
    pub on_sale: bool,
    /// Whether a choice that leaves a single seat alone is refused, where a better one can be offered.
    #[serde(default)]
    pub orphan_rule: bool,
    /// Whether it is only played: simulated buyers come to no other event.
    #[serde(default)]
    pub rehearsal: bool,
}

fn euro() -> String {
    "EUR".into()
}

fn five_minutes() -> u64 {
    300_000
}

fn fifteen_minutes() -> u64 {
    900_000
}

fn ten_minutes() -> u64 {
    600_000
}

fn eight() -> u32 {
    8
}

/// The longest any of the durations may be: a day, as of every lease.
pub const MAX_LEASE_LIFE_MS: u64 = 24 * 3600 * 1000;

impl EventSettings {
    /// An event of this name with every default, and on sale.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self {
            name: name.into(),
            currency: euro(),
            ttl_ms: five_minutes(),
            max_hold_ms: fifteen_minutes(),
            pay_ms: ten_minutes(),
            per_buyer: eight(),
            on_sale: true,
            orphan_rule: false,
            rehearsal: false,
        }
    }

    /// What is wrong with them, in a sentence; none if nothing is.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let span = |name: &str, value: u64| {
            let fits = (1..=MAX_LEASE_LIFE_MS / 3).contains(&value);
            (!fits).then(|| format!("{name} must be 1 to {} (8 hours), not {value}", MAX_LEASE_LIFE_MS / 3))
        };
        if !well_formed(&self.name) {
            return Some("name must be 1 to 128 bytes, without control characters".into());
        }
        if self.currency.len() != 3 || !self.currency.bytes().all(|byte| byte.is_ascii_uppercase()) {
            return Some("currency must be three capital letters, as in EUR".into());
        }
        if self.per_buyer == 0 {
            return Some("per_buyer must be at least 1".into());
        }
        let spans = [("ttl_ms", self.ttl_ms), ("max_hold_ms", self.max_hold_ms), ("pay_ms", self.pay_ms)];
        spans
            .into_iter()
            .find_map(|(name, value)| span(name, value))
            .or_else(|| (self.max_hold_ms < self.ttl_ms).then(|| "max_hold_ms must not be less than ttl_ms".into()))
    }
}

/// An event as the ledger has it, without its layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventRow {
    /// Which.
    pub event_id: EventId,
    /// Its rules.
    pub settings: EventSettings,
    /// Staff stopped sales: no new holds, while what is held may still be paid.
    pub frozen: bool,
    /// Rises with every change of the layout or the rules: who priced a hold by older ones is sent back.
    pub layout_version: u64,
    /// When it was made.
    pub created_at: Moment,
    /// How many numbered seats it has.
    pub seats: u64,
    /// The most that one buyer was ever allowed: who bought by older rules keeps it.
    #[serde(default)]
    pub most_per_buyer: u32,
}
