//! The buyer log: what buyers were told. The proof compares it with what the event says of itself.

use std::time::{Duration, Instant};

use super::api_types::{ApiHold, ApiPiece};
use super::http_client::HttpResponse;

/// An order that was confirmed to a buyer.
#[derive(Clone, Debug)]
pub struct ConfirmedOrder {
    pub order_id: String,
    pub buyer: String,
    pub seats: Vec<ApiPiece>,
    pub areas: Vec<ApiPiece>,
}

/// A time in which a seat was certainly held: from receiving the grant to its end. The end is counted from sending the
/// request, or is the moment when the hold was given up.
#[derive(Clone, Debug)]
pub struct HoldSpan {
    pub seat: String,
    pub token: u64,
    pub hold_id: String,
    /// The hold was not granted before this moment.
    pub sent_at: Instant,
    pub from: Instant,
    pub until: Instant,
}

/// A confirm without a response.
#[derive(Clone, Debug)]
pub struct UnansweredConfirm {
    pub buyer: String,
    pub hold_id: String,
    pub hold_key: String,
    pub payment_ref: String,
    pub idempotency_key: String,
}

/// The log of one buyer, or of all buyers after merging.
#[derive(Debug, Default)]
pub struct BuyerLog {
    pub orders: Vec<ConfirmedOrder>,
    pub spans: Vec<HoldSpan>,
    pub unanswered: Vec<UnansweredConfirm>,
    /// Holds refused as ended while they were certainly live, and orders that differ from their hold.
    pub violations: Vec<String>,
    /// Holds that were left to lapse, and when each has certainly ended.
    pub abandoned_holds: Vec<(String, Instant)>,
    /// When holds from requests without a response have certainly ended.
    pub unknown_until: Option<Instant>,
}

impl BuyerLog {
    /// Appends another log.
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
    /// When the request was sent, and when the grant was received.
    pub sent_at: Instant,
    pub received_at: Instant,
    /// The hold is certainly live before `live_until`, and certainly ended after `ended_by`.
    pub live_until: Instant,
    pub ended_by: Instant,
}

impl BuyerHold {
    /// From the response to a hold request.
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

    /// Sets the remaining time as a response stated it.
    pub fn set_remaining(&mut self, remaining_ms: u64, response: &HttpResponse) {
        let remaining = Duration::from_millis(remaining_ms);
        self.live_until = response.sent_at + remaining;
        // The server rounds to milliseconds.
        self.ended_by = response.received_at + remaining + Duration::from_millis(1);
    }

    /// The spans that this hold proves, if it was given up at this moment.
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
