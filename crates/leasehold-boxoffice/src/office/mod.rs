//! The office: what a box office does, over an engine that takes the stampede and a ledger that decides.
//!
//! ```text
//!   hold ──▶ lease on all seats (engine) ──▶ row (ledger) ──▶ answer       refused: the lease is released
//!   sale ──▶ one transaction (ledger) ──▶ lease released ──▶ answer
//! ```
//!
//! # Laws
//!
//! 1. First the lease, then the row: the row decides, and its end never exceeds the lease's.
//! 2. Nothing in memory decides: any number of offices over one engine and one ledger are one box office. What is
//!    remembered here ([`mirror`]) may refuse early, and never grants.
//! 3. A refusal by the engine is answered at once: losers never touch the ledger.
//! 4. Whoever may have granted something runs detached from who asked: a hang-up strands no half of it.
//!
//! # Not here
//!
//! Who may (the server), bytes (the server), decisions (`model`), rows (`ledger`).

use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::{Clock, SystemClock};
use leasehold::engine::Engine;

use crate::error::Error;
use crate::layout::Layout;
use crate::ledger::Ledger;
use crate::model::check::Check;
use crate::model::*;

pub mod secret;
pub mod view;

pub use secret::HoldKey;
pub use view::*;

/// How an office is opened.
#[derive(Clone)]
pub struct Options {
    /// What intervals of the office's own tasks and the age of its memory are counted by.
    pub clock: Arc<dyn Clock>,
    /// How often holds that are over are tidied up.
    pub sweep_every: Duration,
    /// How often entries are numbered, when there are any.
    pub sequence_every: Duration,
    /// A lease without a row is revoked at this age.
    pub orphan_lease_after: Duration,
    /// How long stored answers and ended holds are kept.
    pub retention: Duration,
    /// Who this server is, as the holder of its own leases.
    pub name: String,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            clock: SystemClock::shared(),
            sweep_every: Duration::from_secs(1),
            sequence_every: Duration::from_millis(20),
            orphan_lease_after: Duration::from_secs(10),
            retention: Duration::from_secs(24 * 3600),
            name: "office".into(),
        }
    }
}

/// A box office. Cheap to clone; clones are the same office.
#[derive(Clone)]
pub struct Office(Arc<Inner>);

struct Inner {
    engine: Arc<dyn Engine>,
    ledger: Arc<dyn Ledger>,
    options: Options,
}

#[allow(clippy::todo, reason = "the surface first; bodies follow")]
#[allow(unused_variables, missing_docs)]
impl Office {
    /// An office over an engine that promises fencing, and a ledger.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the engine promises no fencing.
    pub fn new(engine: Arc<dyn Engine>, ledger: Arc<dyn Ledger>, options: Options) -> Result<Self, Error> {
        todo!()
    }

    /// The ledger, for reads that need no office.
    pub fn ledger(&self) -> &Arc<dyn Ledger> {
        &self.0.ledger
    }

    /// Runs sweeper, sequencer and follower until the future is dropped. One of many offices sweeps and numbers.
    pub async fn run(&self) {
        todo!()
    }

    // Events.
    pub async fn create_event(&self, call: Call, settings: EventSettings, layout: Layout) -> Result<EventRow, Error> {
        todo!()
    }
    pub async fn configure(&self, call: Call, event: &EventId, settings: EventSettings) -> Result<EventRow, Error> {
        todo!()
    }
    pub async fn replace_layout(&self, call: Call, event: &EventId, layout: Layout) -> Result<EventRow, Error> {
        todo!()
    }
    pub async fn freeze(&self, call: Call, event: &EventId, frozen: bool, reason: &str) -> Result<EventRow, Error> {
        todo!()
    }
    pub async fn events(&self) -> Result<Vec<EventRow>, Error> {
        todo!()
    }
    pub async fn event(&self, event: &EventId) -> Result<EventRow, Error> {
        todo!()
    }
    /// The layout and its version (for the ETag), from memory where it is known to be current.
    pub async fn layout(&self, event: &EventId) -> Result<(u64, Arc<Layout>), Error> {
        todo!()
    }
    pub async fn availability(&self, event: &EventId) -> Result<Availability, Error> {
        todo!()
    }

    // Holds. `access`: the hold key shown, or staff.
    pub async fn hold(&self, call: Call, event: &EventId, buyer: Buyer, want: Want) -> Result<HoldView, Error> {
        todo!()
    }
    pub async fn hold_view(&self, hold: &HoldId, access: Access) -> Result<HoldView, Error> {
        todo!()
    }
    pub async fn renew(&self, call: Call, hold: &HoldId, access: Access) -> Result<HoldView, Error> {
        todo!()
    }
    pub async fn change(&self, call: Call, hold: &HoldId, access: Access, change: Change) -> Result<HoldView, Error> {
        todo!()
    }
    pub async fn pay(&self, call: Call, hold: &HoldId, access: Access, payment_ref: &str) -> Result<HoldView, Error> {
        todo!()
    }
    pub async fn decline(
        &self,
        call: Call,
        hold: &HoldId,
        access: Access,
        payment_ref: &str,
    ) -> Result<HoldView, Error> {
        todo!()
    }
    /// 201: the order (`late` in it). 410 with a resolution: [`Refusal::Late`].
    pub async fn confirm(
        &self,
        call: Call,
        hold: &HoldId,
        access: Access,
        payment_ref: &str,
    ) -> Result<OrderRow, Error> {
        todo!()
    }
    pub async fn release(&self, call: Call, hold: &HoldId, access: Access) -> Result<HoldView, Error> {
        todo!()
    }
    /// A message of the provider, already proven to be its own: any order, any number of times.
    pub async fn payment(&self, message: PaymentMessage) -> Result<PaymentOutcome, Error> {
        todo!()
    }

    // Staff.
    pub async fn order(&self, order: &OrderId) -> Result<OrderRow, Error> {
        todo!()
    }
    pub async fn void(
        &self,
        call: Call,
        order: &OrderId,
        seats: Option<Vec<String>>,
        reason: &str,
    ) -> Result<Amended, Error> {
        todo!()
    }
    pub async fn move_order(
        &self,
        call: Call,
        order: &OrderId,
        moves: Vec<(String, String)>,
        reason: &str,
    ) -> Result<Amended, Error> {
        todo!()
    }
    pub async fn set_blocks(&self, call: Call, command: SetBlocks) -> Result<Blocks, Error> {
        todo!()
    }
    pub async fn force_release(
        &self,
        call: Call,
        event: &EventId,
        seat: &str,
        reason: &str,
    ) -> Result<HoldView, Error> {
        todo!()
    }
    pub async fn holds(&self, event: &EventId) -> Result<Vec<StaffHold>, Error> {
        todo!()
    }
    /// Payments under way, longest first: stuck ones are at the top.
    pub async fn paying(&self, event: &EventId) -> Result<Vec<StaffHold>, Error> {
        todo!()
    }
    /// Money that came late, in every state.
    pub async fn late_money(&self, event: &EventId) -> Result<Vec<MoneyRow>, Error> {
        todo!()
    }
    /// Money that must go back, of all events: for whoever asks the provider to.
    pub async fn refunds_due(&self) -> Result<Vec<MoneyRow>, Error> {
        todo!()
    }
    /// It went back.
    pub async fn refunded(&self, call: Call, payment_ref: &str, note: &str) -> Result<MoneyRow, Error> {
        todo!()
    }
    pub async fn report(&self, event: &EventId) -> Result<Report, Error> {
        todo!()
    }
    pub async fn audit(&self, event: &EventId, query: AuditQuery) -> Result<Vec<Entry>, Error> {
        todo!()
    }
    pub async fn invariants(&self, event: &EventId) -> Result<Vec<Check>, Error> {
        todo!()
    }

    /// Wakes when entries of this event got numbers: then read [`Office::audit`] since the last one seen.
    pub fn changes(&self, event: &EventId) -> tokio::sync::watch::Receiver<u64> {
        todo!()
    }
    /// What was counted.
    pub fn metrics(&self) -> Metrics {
        todo!()
    }
}
