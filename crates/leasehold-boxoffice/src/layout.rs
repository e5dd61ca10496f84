//! What is for sale: seats with a place in the hall, and areas where people stand.
//!
//! # Laws
//!
//! 1. Every id (of a seat or an area) is there once in an event.
//! 2. A seat stands in exactly one section and row; seats of a row are neighbours in the order of their `number`.
//! 3. Prices are in minor units of the event's currency, never a fraction.
//!
//! # Not here
//!
//! Who holds or bought what (the ledger), and how files become a layout (`import`).

use serde::{Deserialize, Serialize};

/// A numbered seat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    /// Unique in the event; part of the name of its resource.
    pub id: String,
    /// The part of the hall it stands in.
    pub section: String,
    /// The row within the section.
    pub row: String,
    /// The place in the row: neighbours differ by one.
    pub number: u32,
    /// In minor units.
    pub price: u64,
}

/// A general-admission area: so many places, none of them numbered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Area {
    /// Unique in the event, among seats too.
    pub id: String,
    /// How many may be sold.
    pub capacity: u32,
    /// In minor units.
    pub price: u64,
}

/// All that an event has for sale.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// In the order of the hall: section, row, number.
    #[serde(default)]
    pub seats: Vec<Seat>,
    /// In the order they were given.
    #[serde(default)]
    pub areas: Vec<Area>,
}
