//! Orders, and money that is not, or not only, an order's.

use serde::{Deserialize, Serialize};

use super::ids::{Buyer, EventId, HoldId, Moment, OrderId};

/// The highest amount of money there is, in minor units: JSON numbers are exact up to it, and sums of many fit 64 bits.
pub const MAX_AMOUNT: u64 = (1 << 53) - 1;

/// Whether an order still stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OrderState {
    /// All or some of it stands.
    Sold,
    /// Staff took all of it back.
    Voided,
}

/// A sold seat: what `sold_seats` says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SoldSeat {
    /// Which.
    pub id: String,
    /// The token it was held with.
    pub token: u64,
    /// In minor units.
    pub price: u64,
}

/// Sold places of an area.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SoldArea {
    /// Which.
    pub id: String,
    /// How many.
    pub qty: u32,
    /// The token they were held with.
    pub token: u64,
    /// Of one place, in minor units.
    pub price: u64,
}

/// An order as the ledger has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderRow {
    /// Which.
    pub order_id: OrderId,
    /// The hold it was.
    pub hold_id: HoldId,
    /// Of which event.
    pub event_id: EventId,
    /// Whose.
    pub buyer: Buyer,
    /// The payment that bought it.
    pub payment_ref: String,
    /// What it has now.
    pub seats: Vec<SoldSeat>,
    /// What it has now.
    #[serde(default)]
    pub areas: Vec<SoldArea>,
    /// In minor units, of what it has now.
    pub total: u64,
    /// Whether it stands.
    pub state: OrderState,
    /// The money came after the pay deadline, and the same seats were still free.
    pub late: bool,
    /// When.
    pub sold_at: Moment,
    /// What came for it, in minor units: as a provider or a key said, never what the price implies. None: an order of a
    /// version that did not record it.
    #[serde(default)]
    pub paid: Option<u64>,
    /// What of it goes back, or went.
    #[serde(default)]
    pub back: u64,
    /// In how many parts.
    #[serde(default)]
    pub refunds: u32,
    /// What it cost when it was sold. Staff changes `total` later, never this. None: see `paid`.
    #[serde(default)]
    pub sold_for: Option<u64>,
    /// Who said that money came for it, first to last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<PaymentSource>,
    /// The payment was only authorised before the sale: whether it has been captured since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capture: Option<Capture>,
    /// The least that was said to have come, if that is less than `paid`: staff was told of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doubted: Option<u64>,
}

/// Who confirmed that money came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PaymentWitness {
    /// The payment provider, in a signed callback or when it was asked.
    Provider,
    /// Somebody with a key: cash at a counter, or a shop that takes the money itself.
    Key,
}

/// One confirmation that money came: by whom, how much, for what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PaymentSource {
    /// Who said it.
    pub by: PaymentWitness,
    /// The key, or `provider`.
    pub actor: String,
    /// Of which payment.
    pub payment_ref: String,
    /// For which hold.
    pub hold_id: HoldId,
    /// How much, in minor units.
    pub amount: u64,
    /// When.
    pub at: Moment,
}

/// Where the capture of an authorised payment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CaptureState {
    /// The provider has to be asked, or has not answered yet.
    Due,
    /// The money is there.
    Captured,
    /// The provider refuses: staff decides.
    Failed,
    /// It is not wanted any more: the order was voided before the capture.
    Cancelled,
}

/// The capture of a payment that was authorised before the sale.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capture {
    /// Where it is.
    pub state: CaptureState,
    /// How much is to be captured, in minor units.
    pub amount: u64,
    /// When it came to this state.
    pub since: Moment,
}

impl OrderRow {
    /// The sum of what it has.
    #[must_use]
    pub fn sum(&self) -> u64 {
        let seats = self.seats.iter().map(|seat| seat.price);
        let areas = self.areas.iter().map(|area| area.price.saturating_mul(u64::from(area.qty)));
        seats.chain(areas).fold(0, u64::saturating_add)
    }

    /// What came for it.
    #[must_use]
    pub fn came(&self) -> u64 {
        self.paid.unwrap_or_else(|| self.total.saturating_add(self.back))
    }

    /// What the buyer is owed, beside what goes back already; negative: what they owe.
    #[must_use]
    pub fn owed(&self) -> i64 {
        let signed = |amount: u64| i64::try_from(amount).unwrap_or(i64::MAX);
        signed(self.came()).saturating_sub(signed(self.back)).saturating_sub(signed(self.total))
    }
}

/// The state of money that has no order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MoneyState {
    /// It came; nothing is decided yet. Any office takes the next step.
    Received,
    /// It bought the same seats after all.
    Sold,
    /// Others as good are held for the buyer.
    Offered,
    /// It must go back.
    RefundDue,
    /// It went back.
    Refunded,
    /// Nobody can say what it is for: staff decides.
    Stuck,
    /// Staff settled it by hand.
    Closed,
    /// It was authorised and bought nothing: the provider has to be asked to cancel it.
    CancelDue,
    /// It was cancelled: no money moved.
    Cancelled,
}

/// One step of money, for buyer and staff.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedStep {
    /// When.
    pub at: Moment,
    /// Where it came to.
    pub state: MoneyState,
    /// Why, for people.
    pub note: String,
}

/// Money that came without buying at once what it was for, or that an undone sale left over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoneyRow {
    /// The provider's name for the payment.
    pub payment_ref: String,
    /// Which part of it. Empty: all of it that came at first. A number: what an order left over. A hold: what came in its
    /// name, though the payment is for another. `more-` and how much it then was in all: what came later.
    #[serde(default)]
    pub part: String,
    /// The order that left it over.
    #[serde(default)]
    pub order_id: Option<OrderId>,
    /// For which hold.
    pub hold_id: HoldId,
    /// Of which event.
    pub event_id: EventId,
    /// Whose.
    pub buyer: Buyer,
    /// In minor units.
    pub amount: u64,
    /// What came of the same payment later, and is written down in parts of its own.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more: u64,
    /// Where it is.
    pub state: MoneyState,
    /// The hold on seats that are offered instead.
    pub offer: Option<HoldId>,
    /// When it came.
    pub received_at: Moment,
    /// Every step, first to last.
    pub steps: Vec<RecordedStep>,
    /// Who said that it came. None: what an order left over, or a row of a version that did not record it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<PaymentSource>,
}

impl MoneyRow {
    /// What it is stored under.
    #[must_use]
    pub fn key(&self) -> String {
        Self::key_of(&self.payment_ref, &self.part)
    }

    /// What a part of a payment is stored under: neither of them has control characters.
    #[must_use]
    pub fn key_of(payment_ref: &str, part: &str) -> String {
        if part.is_empty() { payment_ref.into() } else { format!("{payment_ref}{PART_SEPARATOR}{part}") }
    }

    /// What it is stored under, from the id of its refund.
    #[must_use]
    pub fn key_of_refund(refund_id: &str) -> Option<String> {
        if let Some(whole) = refund_id.strip_prefix("rf_") {
            return Some(whole.into());
        }
        let (part, payment_ref) = refund_id.strip_prefix("rp_")?.split_once(':')?;
        Some(Self::key_of(payment_ref, part))
    }

    /// What every refund of it is asked for with, and staff calls it by.
    #[must_use]
    pub fn refund_id(&self) -> String {
        if self.part.is_empty() {
            return format!("rf_{}", self.payment_ref);
        }
        // The part has no colon: whatever a payment is called, two parts are never one refund.
        format!("rp_{}:{}", self.part, self.payment_ref)
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
const fn is_zero(amount: &u64) -> bool {
    *amount == 0
}

/// Between a payment and the name of its part: a unit separator.
const PART_SEPARATOR: char = '\u{1f}';

/// All parts of a payment are stored from the first of these to before the second; the whole under its own name.
#[must_use]
pub fn parts_of(payment_ref: &str) -> (String, String) {
    (format!("{payment_ref}{PART_SEPARATOR}"), format!("{payment_ref}\u{20}"))
}
