//! Entries: one for each change, for the stream, webhooks and the audit log.

use serde::{Deserialize, Serialize};

use super::ids::{Buyer, EventId, HoldId, Moment, OrderId};
use super::order::PaymentWitness;

/// The state of a seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SeatState {
    /// For whoever comes.
    Free,
    /// In somebody's hold.
    Held,
    /// In somebody's hold, with money on its way.
    Paying,
    /// In an order.
    Sold,
    /// Kept by the house.
    Blocked,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "each name is its sentence")]
pub enum EntryKind {
    EventCreated,
    EventChanged,
    LayoutChanged,
    Frozen,
    Unfrozen,
    Held,
    Renewed,
    Changed,
    Paying,
    Declined,
    Sold,
    SoldLate,
    Released,
    ForceReleased,
    Lapsed,
    Blocked,
    Unblocked,
    Voided,
    Moved,
    LateMoney,
    Offered,
    RefundDue,
    Refunded,
    StuckMoney,
    MoneyClosed,
    CancelDue,
    Cancelled,
    Captured,
    CaptureFailed,
}

/// A seat and the state it came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeatChange {
    /// Which.
    pub id: String,
    /// What it is now.
    pub state: SeatState,
    /// With which token, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
}

/// An area and how many places are free in it now, what is due but not tidied not counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AreaFree {
    /// Which.
    pub id: String,
    /// How many are free.
    pub free: u32,
    /// How many more, or less, are taken by what happened.
    #[serde(default)]
    pub delta: i64,
}

/// One change of an event. Written in the same transaction as the change; numbered after commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The number: gapless per event, from 1; zero until it is given.
    #[serde(default)]
    pub seq: u64,
    /// Of which event.
    pub event_id: EventId,
    /// On the ledger's clock.
    pub at: Moment,
    /// Milliseconds since 1970 by the wall clock, for people: nothing is decided by it.
    #[serde(default)]
    pub wall_ms: u64,
    /// What happened.
    pub kind: EntryKind,
    /// Who did it: a buyer, a member of staff, the sweeper.
    pub actor: String,
    /// Whose hold or order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buyer: Option<Buyer>,
    /// Which hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_id: Option<HoldId>,
    /// Which order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order_id: Option<OrderId>,
    /// Which seats, and what they are now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub seats: Vec<SeatChange>,
    /// Which areas, and what is left of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub areas: Vec<AreaFree>,
    /// When the hold is over, if it goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Moment>,
    /// Why, in somebody's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Which payment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payment_ref: Option<String>,
    /// Minor units that this is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amount: Option<u64>,
    /// Of a sale: what a provider or a key said that came for it, in minor units.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paid: Option<u64>,
    /// Of a sale: who said so. None where it costs nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<PaymentWitness>,
}
