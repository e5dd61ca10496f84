//! Writes: what a decision stores. A ledger applies them in order, in one transaction.

use super::entry::Entry;
use super::event::EventRow;
use super::hold::HoldRow;
use super::ids::{Buyer, EventId, HoldId, Moment, OrderId};
use super::order::{MoneyRow, OrderRow, SoldSeat};
use crate::layout::Layout;

/// One thing to store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LedgerWrite {
    /// A new event, or an event with other rules.
    Event(Box<EventRow>),
    /// The whole layout of an event, replacing what was there; counters of areas that stay are kept.
    Layout(EventId, Box<Layout>),
    /// A new hold.
    OpenHold(Box<HoldRow>),
    /// A hold as it is from now on.
    UpdateHold(Box<HoldRow>),
    /// Seats under a hold, with their tokens. Each must be under none, and its token above all that the seat had before.
    TakeSeats {
        /// Of which event.
        event_id: EventId,
        /// Under which hold.
        hold_id: HoldId,
        /// Sorted by id.
        seats: Vec<(String, u64)>,
    },
    /// Seats no longer under this hold. Their tokens are remembered.
    FreeSeats {
        /// Of which event.
        event_id: EventId,
        /// Under which hold they were.
        hold_id: HoldId,
        /// Sorted by id.
        seats: Vec<String>,
    },
    /// Changes to the counters of an area.
    Area {
        /// Of which event.
        event_id: EventId,
        /// Which.
        area: String,
        /// More, or less.
        held: i64,
        /// More, or less.
        sold: i64,
        /// More, or less.
        blocked: i64,
    },
    /// Changes to the counters of a buyer.
    Buyer {
        /// Of which event.
        event_id: EventId,
        /// Who.
        buyer: Buyer,
        /// More, or less.
        held: i64,
        /// More, or less.
        sold: i64,
        /// What the count of lapses shall be from now on, and since when.
        lapses: Lapses,
    },
    /// A new order, or the order as it is from now on.
    Order(Box<OrderRow>),
    /// Seats sold. Each must be sold to nobody: the unique constraint says so too.
    Sell {
        /// Of which event.
        event_id: EventId,
        /// In which order.
        order_id: OrderId,
        /// Sorted by id.
        seats: Vec<SoldSeat>,
    },
    /// Seats no longer sold.
    Unsell {
        /// Of which event.
        event_id: EventId,
        /// In which order they were.
        order_id: OrderId,
        /// Sorted by id.
        seats: Vec<String>,
    },
    /// Seats kept back by the house.
    Block {
        /// Of which event.
        event_id: EventId,
        /// Which.
        seats: Vec<String>,
        /// Why.
        reason: String,
    },
    /// Seats given free by the house.
    Unblock {
        /// Of which event.
        event_id: EventId,
        /// Which.
        seats: Vec<String>,
    },
    /// Money as it stands from now on.
    Money(Box<MoneyRow>),
    /// A payment is for this hold from now on, and for no other. It must be for none yet.
    Payment {
        /// The provider's name for it.
        payment_ref: String,
        /// For which hold.
        hold_id: HoldId,
    },
    /// A message of the provider was acted upon.
    Callback(String),
    /// A new entry. The ledger fills in the wall clock, and how many places of each area are free after the writes before.
    Entry(Box<Entry>),
}

/// What becomes of a buyer's count of lapses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lapses {
    /// As it was.
    Keep,
    /// One more at this moment; the first if the last was long ago. See [`super::decide::LAPSE_WINDOW_MS`].
    More(Moment),
    /// None: the buyer bought something.
    Forget,
}
