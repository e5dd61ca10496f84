//! Refusals, each with a stable code.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::hold::HoldState;
use super::ids::{EventId, HoldId, OrderId};
use super::order::{MoneyState, RecordedStep};

/// Why a seat or an area cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// In somebody's hold.
    Taken,
    /// In an order.
    Sold,
    /// Kept by the house.
    Blocked,
    /// The buyer would have more than one buyer may.
    BuyerLimit,
    /// It would leave a single seat alone, and a better choice is offered.
    Orphan,
    /// There are not so many together.
    NoBlock,
    /// Sales have not begun, or were stopped.
    NotOnSale,
}

impl Reason {
    /// As in JSON and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Taken => "taken",
            Self::Sold => "sold",
            Self::Blocked => "blocked",
            Self::BuyerLimit => "buyer_limit",
            Self::Orphan => "orphan",
            Self::NoBlock => "no_block",
            Self::NotOnSale => "not_on_sale",
        }
    }

    /// Every reason.
    pub const ALL: [Self; 7] =
        [Self::Taken, Self::Sold, Self::Blocked, Self::BuyerLimit, Self::Orphan, Self::NoBlock, Self::NotOnSale];
}

/// One seat or area that was lost, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conflict {
    /// The seat, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seat: Option<String>,
    /// The area, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub area: Option<String>,
    /// Why.
    pub reason: Reason,
}

impl Conflict {
    /// A seat that was lost.
    #[must_use]
    pub fn seat(id: &str, reason: Reason) -> Self {
        Self { seat: Some(id.into()), area: None, reason }
    }

    /// An area that was lost.
    #[must_use]
    pub fn area(id: &str, reason: Reason) -> Self {
        Self { seat: None, area: Some(id.into()), reason }
    }
}

/// What became of money that came late.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resolution {
    /// Where it is.
    pub state: MoneyState,
    /// The hold on seats that are offered instead, opened by the same `hold_key`: confirm it with the same payment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offer: Option<HoldId>,
    /// The seats of the offer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub seats: Vec<String>,
    /// Every step so far.
    pub steps: Vec<RecordedStep>,
}

/// Why the ledger or the office refused a request. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Refusal {
    /// There is no such event.
    NoEvent(EventId),
    /// There is no such hold, or the key shown is not its key: the same answer, so that nobody can try names.
    NoHold(HoldId),
    /// There is no such order.
    NoOrder(OrderId),
    /// No such thing in this event: a seat or an area.
    NoSeat(String),
    /// Something with this name is there already.
    Exists(String),
    /// Some of it cannot be had, so none of it was.
    Conflict {
        /// Each seat or area lost.
        conflicts: Vec<Conflict>,
        /// Seats as good that seemed free a moment ago.
        alternative: Option<Vec<String>>,
    },
    /// The hold's token is not the newest on one of its seats.
    StaleToken,
    /// The hold is over.
    Ended(HoldState),
    /// The hold is over, and money came for it.
    Late(Resolution),
    /// Not while money is on its way.
    Paying,
    /// No money is on its way.
    NotPaying,
    /// Another payment is on its way for this hold, or bought it.
    PaymentMismatch,
    /// No money has come for this hold that covers its price, by the word of a provider or a key.
    NotPaid,
    /// The seats are held for money that has come already: they can be bought with it, or given up.
    OfferStands,
    /// The layout changed since the hold was priced. Do: look again.
    LayoutChanged,
    /// The event, or the hold, was changed meanwhile. Do: look again.
    Changed,
    /// The idempotency key was used before, with another body.
    Mismatch,
    /// A hold must keep at least one seat or place: release it instead.
    Empty,
    /// It would cost more than any amount of money.
    TooDear,
    /// Nobody holds this seat.
    NotHeld(String),
    /// The lease under the hold is gone, so its end cannot be pushed; it stays the buyer's until its present end.
    NotRenewable,
}

impl Refusal {
    /// The stable code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NoEvent(_) | Self::NoHold(_) | Self::NoOrder(_) | Self::NoSeat(_) => "not_found",
            Self::Exists(_) => "exists",
            Self::Conflict { .. } => "conflict",
            Self::StaleToken => "stale_token",
            Self::Ended(HoldState::Released) => "released",
            Self::Ended(HoldState::Sold) => "sold",
            Self::Ended(_) | Self::Late(_) => "expired",
            Self::Paying => "paying",
            Self::NotPaying => "not_paying",
            Self::PaymentMismatch => "payment_mismatch",
            Self::NotPaid => "not_paid",
            Self::OfferStands => "offer_stands",
            Self::LayoutChanged => "layout_changed",
            Self::Changed => "changed",
            Self::Mismatch => "idempotency_mismatch",
            Self::Empty => "empty_hold",
            Self::TooDear => "too_dear",
            Self::NotHeld(_) => "not_held",
            Self::NotRenewable => "not_renewable",
        }
    }

    /// The status of HTTP that says it best.
    #[must_use]
    pub const fn status(&self) -> u16 {
        match self {
            Self::NoEvent(_) | Self::NoHold(_) | Self::NoOrder(_) | Self::NoSeat(_) => 404,
            Self::Ended(_) | Self::Late(_) => 410,
            Self::NotPaid => 403,
            Self::Changed => 412,
            Self::Mismatch => 422,
            Self::Empty | Self::TooDear => 400,
            _ => 409,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoEvent(id) => write!(f, "there is no event {id}"),
            Self::NoHold(id) => write!(f, "there is no hold {id}, or this is not its key"),
            Self::NoOrder(id) => write!(f, "there is no order {id}"),
            Self::NoSeat(id) => write!(f, "there is no {id} in this event"),
            Self::Exists(what) => write!(f, "{what} is there already"),
            Self::Conflict { conflicts, .. } => {
                let mut names = Vec::new();
                for lost in conflicts {
                    let name = lost.seat.as_deref().or(lost.area.as_deref()).unwrap_or("all");
                    names.push(format!("{name}: {}", lost.reason.as_str()));
                }
                write!(f, "not all of it can be had, so none of it was taken ({})", names.join(", "))
            }
            Self::StaleToken => f.write_str("the hold's token is not the newest on each of its seats"),
            Self::Ended(HoldState::Released) => f.write_str("the hold was released"),
            Self::Ended(HoldState::Sold) => f.write_str("the hold became an order"),
            Self::Ended(_) => f.write_str("the hold has expired"),
            Self::Late(_) => f.write_str("the payment came after the hold had expired"),
            Self::Paying => f.write_str("a payment is on its way for this hold"),
            Self::NotPaying => f.write_str("no payment is on its way for this hold"),
            Self::PaymentMismatch => f.write_str("another payment is on its way for this hold, or bought it"),
            Self::NotPaid => f.write_str(
                "no payment has come that covers this hold: its seats are sold when the payment provider says so",
            ),
            Self::OfferStands => f.write_str(
                "these seats are held for money that has come already: confirm them with it, or release them to have it back",
            ),
            Self::LayoutChanged => f.write_str("the layout of the event has changed: look again"),
            Self::Changed => f.write_str("it was changed meanwhile: look again"),
            Self::Mismatch => f.write_str("this idempotency key was used before, with another body"),
            Self::Empty => f.write_str("a hold keeps at least one seat or place: release it instead"),
            Self::TooDear => f.write_str("all of it together costs more than can be paid: hold less of it"),
            Self::NotHeld(seat) => write!(f, "nobody holds {seat}"),
            Self::NotRenewable => f.write_str("the hold cannot be renewed any more; it stays until its present end"),
        }
    }
}
