//! Requests and answers of the office, close to the REST API.

use std::collections::BTreeMap;

use leasehold::engine::embedded::Histogram;
use serde::{Deserialize, Serialize};

use super::secret::HoldKey;
use crate::model::*;
use crate::provider::CallbackOutcome;

/// What a buyer wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HoldRequest {
    /// These seats, and so many places of these areas.
    These {
        /// Ids of seats.
        seats: Vec<String>,
        /// Areas, and how many places.
        areas: Vec<(String, u32)>,
    },
    /// The best there is.
    Best {
        /// How many.
        qty: u32,
        /// Only in this section.
        section: Option<String>,
        /// Side by side in one row, or not at all.
        adjacent: bool,
    },
}

/// A change of a hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HoldChange {
    /// Seats to take as well.
    pub add: Vec<String>,
    /// Seats to give up.
    pub remove: Vec<String>,
    /// Places of areas to take as well; an area that is in the hold already must be removed first.
    pub add_areas: Vec<(String, u32)>,
    /// Areas to give up, with all their places.
    pub remove_areas: Vec<String>,
}

/// A hold as its buyer sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldView {
    /// The row; its state is the one at this moment.
    pub hold: HoldRow,
    /// The buyer's secret: only in the answer that made the hold.
    pub key: Option<HoldKey>,
    /// Time left, by the ledger's clock.
    pub remaining_ms: u64,
    /// How far renewals can still push the end, from now.
    pub renewable_ms: u64,
    /// In minor units.
    pub total: u64,
    /// What it became.
    pub order_id: Option<OrderId>,
    /// What became of money that came late for it.
    pub resolution: Option<Resolution>,
    /// All money that came for it and is not simply its order's: late, too little, too much, twice. Oldest first.
    pub money: Vec<BuyersMoney>,
    /// It is the stored answer of an earlier call.
    pub replayed: bool,
}

/// Money as its buyer sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuyersMoney {
    /// The provider's name for the payment; none if it is somebody else's, and came in the name of this hold.
    pub payment_ref: Option<String>,
    /// In minor units.
    pub amount: u64,
    /// What became of it.
    pub resolution: Resolution,
}

/// A hold as staff sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaffHold {
    /// The row.
    pub hold: HoldRow,
    /// How long ago the first grab was.
    pub age_ms: u64,
    /// Time left.
    pub remaining_ms: u64,
}

/// How many seats are what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// All.
    pub seats: u64,
    /// Neither held, sold nor blocked.
    pub free: u64,
    /// In holds.
    pub held: u64,
    /// In holds, with money on its way.
    pub paying: u64,
    /// In orders.
    pub sold: u64,
    /// Kept by the house.
    pub blocked: u64,
}

/// An event as everybody may see it: only what is not free is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Availability {
    /// Apply entries after this number to keep it up to date.
    pub seq: u64,
    /// Seats that are not free.
    pub seats: Vec<SeatNow>,
    /// Every area.
    pub areas: Vec<AreaNow>,
    /// How many are what.
    pub totals: Totals,
}

/// What a provider says of a payment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PaymentMessage {
    /// The provider's name for this message: a second one of the same name changes nothing.
    pub id: String,
    /// The payment.
    pub payment_ref: String,
    /// The hold that it is about.
    pub hold_id: HoldId,
    /// What came of it.
    pub outcome: CallbackOutcome,
    /// What was paid for, with its tokens; empty: whatever the hold has.
    pub tokens: Vec<(String, u64)>,
    /// How much came, in minor units.
    pub amount: u64,
    /// Of which currency, if the provider says so.
    pub currency: Option<String>,
    /// The hold that the provider's own records say it is for. If it is another than `hold_id`, nothing is sold.
    pub paid_for: HoldId,
}

/// A payment as it is begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewPayment {
    /// Its name.
    pub payment_ref: String,
    /// Where the buyer pays, if the provider has a page.
    pub pay_url: Option<String>,
    /// What it was made for, if it was made for an amount.
    pub total: Option<u64>,
    /// The seats and areas that it was made for, with their tokens; empty: none in particular.
    pub paid_for: Vec<(String, u64)>,
}

/// How a payment under way ended without money.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PaymentEnding {
    /// It was declined. The same payment may be tried again.
    Declined,
    /// It was given up. An authorisation that comes for it later is cancelled.
    GivenUp,
}

/// What a message came to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "one at a time, and gone at once")]
pub enum PaymentOutcome {
    /// An order, new or known.
    Order(OrderRow),
    /// The payment was declined, and the hold is this now.
    Declined(HoldState),
    /// The money came late.
    Late(Resolution),
    /// Nothing is to be done: the message was handled before, or is out of date.
    Ignored,
}

/// Money and seats of an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventReport {
    /// Seats, in all.
    pub totals: Totals,
    /// Seats by section.
    pub sections: BTreeMap<String, Totals>,
    /// Every area.
    pub areas: Vec<AreaNow>,
    /// Money and counts.
    pub takings: Takings,
    /// Of which currency.
    pub currency: String,
}

/// What became of late money at one of its steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LateOutcome {
    /// It bought the same seats.
    SameSeats,
    /// Others as good were offered.
    Offered,
    /// The offer was taken.
    OfferTaken,
    /// It goes back.
    GoesBack,
    /// Staff decides.
    Stuck,
    /// It was only authorised, and is cancelled.
    Cancelled,
}

impl LateOutcome {
    /// All of them, with their names in metrics.
    pub const ALL: [(Self, &'static str); 6] = [
        (Self::SameSeats, "same_seats"),
        (Self::Offered, "offered"),
        (Self::OfferTaken, "offer_taken"),
        (Self::GoesBack, "goes_back"),
        (Self::Stuck, "stuck"),
        (Self::Cancelled, "cancelled"),
    ];
}

/// Gauges read from the ledger: the same on every server.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LedgerGauges {
    /// Live holds without a payment under way.
    pub active: u64,
    /// Live holds with one.
    pub paying: u64,
    /// How long ago the oldest hold that is over, and that no sweep has ended, should have ended.
    pub sweeper_lag_seconds: f64,
    /// Money that is to go back, or to be cancelled: how many rows.
    pub refunds_due: u64,
    /// For how long the oldest of them waits.
    pub refund_due_seconds: f64,
    /// Money that waits for staff, and orders whose payment the provider will not capture.
    pub stuck_payments: u64,
}

/// Counters since the office was opened, and gauges of the ledger.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OfficeMetrics {
    /// Gauges of the ledger; none: it did not answer.
    pub stands: Option<LedgerGauges>,
    /// Seconds since the last round of each task, in the order of [`super::OfficeTask::ALL`].
    pub idle_seconds: [f64; 5],
    /// From a request for seats to its answer, granted or refused.
    pub hold_requests: Histogram,
    /// From a confirm, or a provider's word, to the order.
    pub sale_times: Histogram,
    /// What became of late money, in the order of [`LateOutcome::ALL`].
    pub late_money_total: [u64; 6],
    /// Holds that ended by time, seen by this office's sweeper.
    pub expired_total: u64,
    /// Refused seats and areas by reason, in the order of [`Reason::ALL`].
    pub conflicts_total: [u64; 7],
    /// Requests that were refused for them, each once.
    pub refused_total: u64,
    /// Sales that were refused at the last moment, by code: `stale_token`, `expired`.
    pub sale_conflicts_total: [u64; 2],
    /// Renewals that did not succeed.
    pub renew_failures_total: u64,
    /// Leases without a row that were revoked.
    pub orphan_leases_total: u64,
    /// Holds made.
    pub holds_total: u64,
    /// Orders made.
    pub sales_total: u64,
}
