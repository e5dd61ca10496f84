//! JSON bodies of the box office's HTTP API, as far as a rehearsal reads them.
//!
//! They are separate from the server's own types on purpose: a rehearsal tests the API from outside.

use serde::{Deserialize, Deserializer, de::Error as _};

/// A seat or an area with its token.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ApiPiece {
    pub id: String,
    #[serde(deserialize_with = "decimal")]
    pub token: u64,
    /// The number of places of an area. A seat has none.
    #[serde(default)]
    pub qty: u32,
}

#[derive(Debug, Deserialize)]
pub struct ApiHold {
    pub hold_id: String,
    #[serde(default)]
    pub hold_key: String,
    #[serde(default)]
    pub state: String,
    #[serde(default)]
    pub seats: Vec<ApiPiece>,
    #[serde(default)]
    pub areas: Vec<ApiPiece>,
    pub remaining_ms: u64,
    #[serde(default)]
    pub total: u64,
}

/// Only what is needed to release a hold, borrowed from the body: for loads.
#[derive(Debug, Deserialize)]
pub struct ApiHoldHandle<'a> {
    pub hold_id: &'a str,
    pub hold_key: &'a str,
}

#[derive(Debug, Deserialize)]
pub struct ApiOrder {
    pub order_id: String,
    #[serde(default)]
    pub seats: Vec<ApiPiece>,
    #[serde(default)]
    pub areas: Vec<ApiPiece>,
    #[serde(default)]
    pub late: bool,
}

/// A problem document.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ApiProblem {
    pub code: String,
    pub detail: String,
    pub conflicts: Vec<ApiConflict>,
    pub alternative: Option<ApiAlternative>,
    pub resolution: Option<ApiResolution>,
}

/// A seat or an area that could not be held.
#[derive(Debug, Deserialize)]
pub struct ApiConflict {
    pub reason: String,
}

/// Seats offered in place of those that were refused.
#[derive(Debug, Deserialize)]
pub struct ApiAlternative {
    pub seats: Vec<String>,
}

/// What happened to a payment that came too late.
#[derive(Debug, Deserialize)]
pub struct ApiResolution {
    pub state: String,
    #[serde(default)]
    pub offer: Option<String>,
}

#[derive(Debug, Deserialize)]
pub struct ApiEvent {
    pub event_id: String,
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub rehearsal: bool,
    #[serde(default)]
    pub on_sale: bool,
    pub ttl_ms: u64,
    pub pay_ms: u64,
    pub per_buyer: u32,
}

/// The seat map of an event.
#[derive(Debug, Deserialize)]
pub struct ApiSeatMap {
    pub sections: Vec<ApiSection>,
    #[serde(default)]
    pub areas: Vec<ApiArea>,
}

#[derive(Debug, Deserialize)]
pub struct ApiSection {
    pub rows: Vec<ApiRow>,
}

#[derive(Debug, Deserialize)]
pub struct ApiRow {
    pub seats: Vec<ApiSeat>,
}

#[derive(Debug, Deserialize)]
pub struct ApiSeat {
    pub id: String,
}

#[derive(Clone, Debug, Deserialize)]
pub struct ApiArea {
    pub id: String,
    pub capacity: u32,
}

/// The state of every seat.
#[derive(Debug, Deserialize)]
pub struct ApiAvailability {
    pub seats: Vec<ApiSeatState>,
}

#[derive(Debug, Deserialize)]
pub struct ApiSeatState {
    pub id: String,
    pub state: String,
    #[serde(default)]
    pub hold_id: Option<String>,
}

#[derive(Debug, Deserialize)]
pub struct ApiAuditPage {
    pub entries: Vec<ApiAuditEntry>,
    pub next: Option<u64>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct ApiAuditEntry {
    pub seq: u64,
    pub kind: String,
    #[serde(default)]
    pub hold_id: Option<String>,
    #[serde(default)]
    pub order_id: Option<String>,
    #[serde(default)]
    pub payment_ref: Option<String>,
    #[serde(default)]
    pub seats: Vec<ApiSeatChange>,
    /// Of a sale: the price.
    #[serde(default)]
    pub amount: Option<u64>,
    /// Of a sale: what was paid, and who reported the payment.
    #[serde(default)]
    pub paid: Option<u64>,
    #[serde(default)]
    pub source: Option<String>,
}

/// The new state of a seat.
#[derive(Clone, Debug, Deserialize)]
pub struct ApiSeatChange {
    pub id: String,
    pub state: String,
    #[serde(default, deserialize_with = "decimal_or_none")]
    pub token: Option<u64>,
}

/// The invariants that the server checked itself.
#[derive(Debug, Deserialize)]
pub struct ApiInvariants {
    pub ok: bool,
    pub checks: Vec<ApiCheck>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct ApiCheck {
    pub name: String,
    pub ok: bool,
    #[serde(default)]
    pub detail: String,
}

/// The API sends tokens as decimal strings.
fn decimal<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let text = String::deserialize(from)?;
    text.parse().map_err(|_| D::Error::custom("a token is a decimal text"))
}

fn decimal_or_none<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    text.map(|text| text.parse().map_err(|_| D::Error::custom("a token is a decimal text"))).transpose()
}
