//! Facts: the rows that a decision is made from, read under the ledger's locks.

use super::event::EventRow;
use super::hold::HoldRow;
use super::ids::{Buyer, EventId, HoldId, Moment, OrderId};
use super::order::{MoneyRow, OrderRow};
use super::refusal::Reason;

/// What a ledger must load, and lock, before it asks for a decision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// This event. If none is named: the one of the hold or the order.
    pub event: Option<EventId>,
    /// This hold.
    pub hold: Option<HoldId>,
    /// Also the seats and areas of that hold, and its buyer.
    pub all_of_hold: bool,
    /// All that the hold has shall be taken once more: as if `buyer_more` and `areas_more` named it.
    pub again: bool,
    /// This order; also its seats, areas and buyer.
    pub order: Option<OrderId>,
    /// These seats.
    pub seats: Vec<String>,
    /// These areas.
    pub areas: Vec<String>,
    /// This buyer.
    pub buyer: Option<Buyer>,
    /// How many more items the buyer wants: due holds are loaded if the buyer's counter would refuse.
    pub buyer_more: u32,
    /// How many more places of these areas are wanted: due holds are loaded if a counter would refuse.
    pub areas_more: Vec<(String, u32)>,
    /// This money.
    pub money: Option<String>,
    /// Which hold this payment is for.
    pub payment: Option<String>,
    /// Whether this message of the provider was acted upon.
    pub callback: Option<String>,
    /// The layout as it is stored: ids of all seats, and all areas.
    pub layout: bool,
    /// So many of the holds that are due, whatever event they are of.
    pub due: usize,
}

/// A seat in the ledger. Free if nothing is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeatFact {
    /// Which.
    pub id: String,
    /// The hold it is under, and its token. The row of the hold is in [`Facts::holds`].
    pub held: Option<(HoldId, u64)>,
    /// The order it is in, and its token.
    pub sold: Option<(OrderId, u64)>,
    /// Why it is blocked.
    pub blocked: Option<String>,
    /// The layout does not have it (any more).
    pub missing: bool,
    /// The highest token that it was ever held or sold with; zero: none. It stays when the seat is free again.
    pub token: u64,
}

/// An area in the ledger. Counters count rows: what is due but not tidied is still in `held`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AreaFact {
    /// Which.
    pub id: String,
    /// How many places.
    pub capacity: u32,
    /// Under holds, paying or not.
    pub held: u32,
    /// In orders.
    pub sold: u32,
    /// Kept by the house.
    pub blocked: u32,
}

impl AreaFact {
    /// Why it does not have so many places for whoever comes; none if it has.
    #[must_use]
    pub const fn short_of(&self, places: u32) -> Option<Reason> {
        let unsold = self.capacity.saturating_sub(self.sold);
        let without_holds = unsold.saturating_sub(self.blocked);
        if places > unsold {
            Some(Reason::Sold)
        } else if places > without_holds {
            Some(Reason::Blocked)
        } else if places > without_holds.saturating_sub(self.held) {
            Some(Reason::Taken)
        } else {
            None
        }
    }
}

/// A buyer in the ledger. Counters count rows, as for areas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BuyerFact {
    /// Seats and places in holds.
    pub held: u32,
    /// Seats and places in orders.
    pub sold: u32,
    /// How many holds lapsed lately, one after the other.
    pub lapses: u32,
    /// When the last did.
    pub lapsed_at: Moment,
}

/// What a decision is made from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The event.
    pub event: Option<EventRow>,
    /// The hold that was asked for.
    pub hold: Option<HoldRow>,
    /// The order that was asked for.
    pub order: Option<OrderRow>,
    /// Seats that were asked for, and those of the hold or the order: in order of id, each once.
    pub seats: Vec<SeatFact>,
    /// Areas likewise.
    pub areas: Vec<AreaFact>,
    /// Every hold that a seat here is under, and every due hold that stands in the way: each once.
    pub holds: Vec<HoldRow>,
    /// The buyer.
    pub buyer: BuyerFact,
    /// The money.
    pub money: Option<MoneyRow>,
    /// What came in the name of the hold, if the payment is for another.
    pub stray: Option<MoneyRow>,
    /// The hold that the payment is for, if it was heard of before.
    pub payment: Option<HoldId>,
    /// The message was acted upon before.
    pub callback_seen: bool,
    /// Ids of all seats of the event that are held, sold or blocked, if the layout was asked for.
    pub in_use: Vec<String>,
}

impl Facts {
    /// The fact about a seat.
    #[must_use]
    pub fn seat(&self, id: &str) -> Option<&SeatFact> {
        self.seats.binary_search_by(|seat| seat.id.as_str().cmp(id)).ok().map(|at| &self.seats[at])
    }

    /// The fact about an area.
    #[must_use]
    pub fn area(&self, id: &str) -> Option<&AreaFact> {
        self.areas.iter().find(|area| area.id == id)
    }

    /// The row of a hold that is in the way.
    #[must_use]
    pub fn row(&self, id: &HoldId) -> Option<&HoldRow> {
        self.holds.iter().find(|hold| &hold.hold_id == id)
    }
}
