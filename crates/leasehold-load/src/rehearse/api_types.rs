//! What the server says, as far as a rehearsal listens.

use serde::{Deserialize, Deserializer, de::Error as _};

/// A seat or an area under a token.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ApiPiece {
    /// Which.
    pub id: String,
    /// With which token.
    #[serde(deserialize_with = "decimal")]
    pub token: u64,
    /// How many places; one seat has none.
    #[serde(default)]
    pub qty: u32,
}

/// A hold.
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

/// As little of a hold as it takes to release it: for loads that have no time.
#[derive(Debug, Deserialize)]
pub struct ApiHoldHandle<'a> {
    pub hold_id: &'a str,
    pub hold_key: &'a str,
}

/// An order.
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

/// A no.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ApiProblem {
    pub code: String,
    pub detail: String,
    pub conflicts: Vec<ApiConflict>,
    pub alternative: Option<ApiAlternative>,
    pub resolution: Option<ApiResolution>,
}

/// A seat or area that was not to be had.
#[derive(Debug, Deserialize)]
pub struct ApiConflict {
    pub reason: String,
}

/// Seats instead.
#[derive(Debug, Deserialize)]
pub struct ApiAlternative {
    pub seats: Vec<String>,
}

/// What became of late money.
#[derive(Debug, Deserialize)]
pub struct ApiResolution {
    pub state: String,
    #[serde(default)]
    pub offer: Option<String>,
}

/// An event.
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

/// The hall.
#[derive(Debug, Deserialize)]
pub struct ApiSeatMap {
    pub sections: Vec<ApiSection>,
    #[serde(default)]
    pub areas: Vec<ApiArea>,
}

/// Part of a hall.
#[derive(Debug, Deserialize)]
pub struct ApiSection {
    pub rows: Vec<ApiRow>,
}

/// Part of a section.
#[derive(Debug, Deserialize)]
pub struct ApiRow {
    pub seats: Vec<ApiSeat>,
}

/// A seat.
#[derive(Debug, Deserialize)]
pub struct ApiSeat {
    pub id: String,
}

/// An area.
#[derive(Clone, Debug, Deserialize)]
pub struct ApiArea {
    pub id: String,
    pub capacity: u32,
}

/// Every seat as it is now.
#[derive(Debug, Deserialize)]
pub struct ApiAvailability {
    pub seats: Vec<ApiSeatState>,
}

/// A seat as it is now.
#[derive(Debug, Deserialize)]
pub struct ApiSeatState {
    pub id: String,
    pub state: String,
    #[serde(default)]
    pub hold_id: Option<String>,
}

/// A page of the audit.
#[derive(Debug, Deserialize)]
pub struct ApiAuditPage {
    pub entries: Vec<ApiAuditEntry>,
    pub next: Option<u64>,
}

/// An entry of the audit.
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
    /// Of a sale: its price.
    #[serde(default)]
    pub amount: Option<u64>,
    /// Of a sale: what came for it, and who said so.
    #[serde(default)]
    pub paid: Option<u64>,
    #[serde(default)]
    pub source: Option<String>,
}

/// What a seat came to.
#[derive(Clone, Debug, Deserialize)]
pub struct ApiSeatChange {
    pub id: String,
    pub state: String,
    #[serde(default, deserialize_with = "decimal_or_none")]
    pub token: Option<u64>,
}

/// What the server says of its own invariants.
#[derive(Debug, Deserialize)]
pub struct ApiInvariants {
    pub ok: bool,
    pub checks: Vec<ApiCheck>,
}

/// One of them.
#[derive(Clone, Debug, Deserialize)]
pub struct ApiCheck {
    pub name: String,
    pub ok: bool,
    #[serde(default)]
    pub detail: String,
}

/// Tokens are decimal texts.
fn decimal<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let text = String::deserialize(from)?;
    text.parse().map_err(|_| D::Error::custom("a token is a decimal text"))
}

fn decimal_or_none<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    text.map(|text| text.parse().map_err(|_| D::Error::custom("a token is a decimal text"))).transpose()
}
