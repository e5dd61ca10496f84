//! What was sold, and the money that came too late.

use serde::{Deserialize, Serialize};

use super::ids::{Buyer, EventId, HoldId, Moment, OrderId};

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
}

impl OrderRow {
    /// The sum of what it has.
    #[must_use]
    pub fn sum(&self) -> u64 {
        let seats = self.seats.iter().map(|seat| seat.price);
        let areas = self.areas.iter().map(|area| area.price.saturating_mul(u64::from(area.qty)));
        seats.chain(areas).fold(0, u64::saturating_add)
    }
}

/// Where money that has no order is on the ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MoneyState {
    /// It came; nothing is decided. Whoever finds it so takes the next step.
    Received,
    /// It bought the same seats after all.
    Sold,
    /// Others as good are held for the buyer.
    Offered,
    /// It must go back.
    RefundDue,
    /// It went back.
    Refunded,
}

/// One step on the ladder, for buyer and staff.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
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
    /// For which hold.
    pub hold_id: HoldId,
    /// Of which event.
    pub event_id: EventId,
    /// Whose.
    pub buyer: Buyer,
    /// In minor units.
    pub amount: u64,
    /// Where it is.
    pub state: MoneyState,
    /// The hold on seats that are offered instead.
    pub offer: Option<HoldId>,
    /// When it came.
    pub received_at: Moment,
    /// Every step, first to last.
    pub steps: Vec<Step>,
}
