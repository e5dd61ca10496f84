//! A hold as the ledger has it.

use serde::{Deserialize, Serialize};

use super::event::EventSettings;
use super::ids::{Buyer, EventId, HoldId, Moment};
use super::order::MAX_AMOUNT;

/// Where a hold is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HoldState {
    /// The buyer's, until `expires_at`.
    Active,
    /// Money is on its way: the buyer's until the pay deadline, which is `expires_at` then.
    Paying,
    /// Became an order.
    Sold,
    /// Given up by the buyer, or ended by staff.
    Released,
    /// Ended by time.
    Lapsed,
}

impl HoldState {
    /// Whether seats can be under it at all.
    #[must_use]
    pub const fn has_seats(self) -> bool {
        matches!(self, Self::Active | Self::Paying)
    }
}

/// A seat under a hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldSeat {
    /// Which.
    pub id: String,
    /// The token it was taken with: from here to the sale row.
    pub token: u64,
    /// In minor units, when it was taken.
    pub price: u64,
}

/// Places of an area under a hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldArea {
    /// Which.
    pub id: String,
    /// How many places.
    pub qty: u32,
    /// The token they were taken with.
    pub token: u64,
    /// Of one place, in minor units.
    pub price: u64,
}

/// A lease under a hold: the engine's secret, and the token that says which seats it covers.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRef {
    /// Seats and places of this token are under it.
    pub token: u64,
    /// The engine's secret.
    pub id: String,
}

impl std::fmt::Debug for LeaseRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LeaseRef({}, …)", self.token)
    }
}

/// A hold as the ledger has it. It stays after its end, without any seat, to answer who asks late.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldRow {
    /// Which.
    pub hold_id: HoldId,
    /// Of which event.
    pub event_id: EventId,
    /// Whose.
    pub buyer: Buyer,
    /// SHA-256 of the buyer's secret, in hex.
    pub key_hash: String,
    /// Where it is in its life, as far as written down: see [`HoldRow::is_live`].
    pub state: HoldState,
    /// In order of id.
    pub seats: Vec<HeldSeat>,
    /// In order of id.
    #[serde(default)]
    pub areas: Vec<HeldArea>,
    /// What holds them in the engine.
    pub leases: Vec<LeaseRef>,
    /// The first grab: the cap counts from it.
    pub opened_at: Moment,
    /// It is over at this moment.
    pub expires_at: Moment,
    /// Where `expires_at` returns to when a payment is declined.
    pub active_until: Moment,
    /// Renewals by the buyer end here.
    pub cap_at: Moment,
    /// What a renewal gives it: the event's ttl, shorter for who let holds lapse before.
    pub ttl_ms: u64,
    /// How long a payment may take: as the event had it at the first grab. Its leases reach no further.
    #[serde(default)]
    pub pay_ms: Option<u64>,
    /// How often it was renewed.
    pub renewals: u32,
    /// The last payment that was begun for it. It stays: money may come late.
    pub payment_ref: Option<String>,
    /// Where the buyer pays, of the last payment that was begun, if the provider has a page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pay_url: Option<String>,
    /// Payments that were given up, by their names. What is authorised under one of them later sells nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub given_up: Vec<String>,
    /// How many payments were begun for it.
    #[serde(default, skip_serializing_if = "is_none_yet")]
    pub payments: u32,
    /// It was opened for money that had come already, in place of what that money was for.
    #[serde(default)]
    pub offered: bool,
    /// When it was sold, released or lapsed.
    pub ended_at: Option<Moment>,
    /// Staff's or the system's words for why it ended.
    #[serde(default)]
    pub ended_why: Option<String>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
const fn is_none_yet(count: &u32) -> bool {
    *count == 0
}

impl HoldRow {
    /// Whether its seats are the buyer's now. The predicate of rule 2.
    #[must_use]
    pub fn is_live(&self, now: Moment) -> bool {
        self.state.has_seats() && now < self.expires_at
    }

    /// Whether it is over by time, and nobody has tidied up yet.
    #[must_use]
    pub fn is_due(&self, now: Moment) -> bool {
        self.state.has_seats() && now >= self.expires_at
    }

    /// How long a payment for it may take.
    #[must_use]
    pub fn pay_within(&self, settings: &EventSettings) -> u64 {
        self.pay_ms.unwrap_or(settings.pay_ms)
    }

    /// Its state as everybody should see it now: what is due counts as lapsed.
    #[must_use]
    pub fn state_at(&self, now: Moment) -> HoldState {
        if self.is_due(now) { HoldState::Lapsed } else { self.state }
    }

    /// How many seats and places it has.
    #[must_use]
    pub fn count(&self) -> u32 {
        let places: u32 = self.areas.iter().map(|area| area.qty).fold(0, u32::saturating_add);
        u32::try_from(self.seats.len()).unwrap_or(u32::MAX).saturating_add(places)
    }

    /// What it costs, in minor units.
    #[must_use]
    pub fn total(&self) -> u64 {
        // No hold is opened or changed to cost more: see `checked_total`.
        self.checked_total().unwrap_or(MAX_AMOUNT)
    }

    /// What it costs; none: more than any amount of money.
    #[must_use]
    pub fn checked_total(&self) -> Option<u64> {
        let seats = self.seats.iter().map(|seat| Some(seat.price));
        let areas = self.areas.iter().map(|area| area.price.checked_mul(u64::from(area.qty)));
        let sum = seats.chain(areas).try_fold(0_u64, |sum, price| sum.checked_add(price?));
        sum.filter(|sum| *sum <= MAX_AMOUNT)
    }
}
