//! What buyers were told, kept to be compared with what the event says of itself.

use std::time::{Duration, Instant};

use super::api_types::{ApiHold, ApiPiece};
use super::http_client::HttpResponse;

/// What a buyer was told of an order.
#[derive(Clone, Debug)]
pub struct ConfirmedOrder {
    pub order_id: String,
    pub buyer: String,
    pub seats: Vec<ApiPiece>,
    pub areas: Vec<ApiPiece>,
}

/// A seat was somebody's for sure from one moment to another: from when the grant was heard to its end counted from when
/// it was asked for, or to when it was given up.
#[derive(Clone, Debug)]
pub struct HoldSpan {
    pub seat: String,
    pub token: u64,
    pub hold_id: String,
    /// Before this moment it was not granted.
    pub sent_at: Instant,
    pub from: Instant,
    pub until: Instant,
}

/// A confirm without an answer.
#[derive(Clone, Debug)]
pub struct UnansweredConfirm {
    pub buyer: String,
    pub hold_id: String,
    pub hold_key: String,
    pub payment_ref: String,
    pub idempotency_key: String,
}

/// All of it.
#[derive(Debug, Default)]
pub struct BuyerLog {
    pub orders: Vec<ConfirmedOrder>,
    pub spans: Vec<HoldSpan>,
    pub unanswered: Vec<UnansweredConfirm>,
    /// Holds that were refused as over while they were live for sure, and orders that are not what was held.
    pub violations: Vec<String>,
    /// Holds that nobody came back to, and when each is over for sure.
    pub abandoned_holds: Vec<(String, Instant)>,
    /// When what nobody knows of is over for sure.
    pub unknown_until: Option<Instant>,
}

impl BuyerLog {
    /// Adds another one.
    pub fn merge(&mut self, other: Self) {
        self.orders.extend(other.orders);
        self.spans.extend(other.spans);
        self.unanswered.extend(other.unanswered);
        self.violations.extend(other.violations);
        self.abandoned_holds.extend(other.abandoned_holds);
        self.unknown_until = self.unknown_until.max(other.unknown_until);
    }
}

/// A hold as its buyer knows it.
#[derive(Clone, Debug)]
pub struct BuyerHold {
    pub id: String,
    pub key: String,
    pub seats: Vec<ApiPiece>,
    pub areas: Vec<ApiPiece>,
    pub total: u64,
    /// When it was asked for, and when it was heard to be granted.
    pub sent_at: Instant,
    pub received_at: Instant,
    /// It is live before this moment for sure, and over after the other.
    pub live_until: Instant,
    pub ended_by: Instant,
}

impl BuyerHold {
    /// From the answer to a hold.
    pub fn new(held: ApiHold, response: &HttpResponse) -> Self {
        let mut hold = Self {
            id: held.hold_id,
            key: held.hold_key,
            seats: held.seats,
            areas: held.areas,
            total: held.total,
            sent_at: response.sent_at,
            received_at: response.received_at,
            live_until: response.sent_at,
            ended_by: response.received_at,
        };
        hold.set_remaining(held.remaining_ms, response);
        hold
    }

    /// An answer said how long it lasts.
    pub fn set_remaining(&mut self, remaining_ms: u64, response: &HttpResponse) {
        let remaining = Duration::from_millis(remaining_ms);
        self.live_until = response.sent_at + remaining;
        // A millisecond is what rounding may hide.
        self.ended_by = response.received_at + remaining + Duration::from_millis(1);
    }

    /// What it proves, if it was given up at this moment.
    pub fn spans(&self, given_up: Instant) -> Vec<HoldSpan> {
        let until = self.live_until.min(given_up);
        let span = |seat: &ApiPiece| HoldSpan {
            seat: seat.id.clone(),
            token: seat.token,
            hold_id: self.id.clone(),
            sent_at: self.sent_at,
            from: self.received_at,
            until,
        };
        self.seats.iter().map(span).collect()
    }
}
