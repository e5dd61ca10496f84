//! The ledger: the box office's database. It decides who has a seat.
//!
//! # Laws every ledger keeps (`suite` checks them)
//!
//! 1. Each method is one transaction: it loads the facts that [`decide`] needs under locks, decides, applies the writes,
//!    and answers after COMMIT. A refusal leaves no trace.
//! 2. `sold_seats` has `UNIQUE (event_id, seat_id)`, whatever the code above it does.
//! 3. All seats of a request are written by one statement, in order of id.
//! 4. The rows of the buyer and of areas are locked before they are counted: no limit and no capacity is ever exceeded.
//! 5. With an idempotency key the result is stored in the same transaction, and returned to every retry, even after a
//!    restart. Another body is refused. Refusals are not stored.
//! 6. The ledger has its own clock: it never goes back, and nothing lapses early.
//! 7. Entries are written with the change and numbered afterwards, per event, from 1, without a gap.
//! 8. A COMMIT whose answer is lost is [`Error::Indeterminate`].
//! 9. Webhooks are added, switched off and removed each in one transaction: no limit is exceeded, no webhook overwrites
//!    another, and what was removed stays removed.
//!
//! # Not here
//!
//! Leases (`office`), decisions (`model`).

use std::future::Future;
use std::pin::Pin;

use crate::error::Error;
use crate::layout::Layout;
use crate::model::check::Dump;
use crate::model::*;

mod load_facts;
#[cfg(feature = "postgres")]
pub mod postgres;
mod snapshot;
pub mod sqlite;
#[cfg(any(test, feature = "testkit"))]
pub mod suite;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;

#[cfg(feature = "postgres")]
pub use postgres::Postgres;
pub use sqlite::Sqlite;

/// The future of a ledger method. Dropping it does not cancel the transaction.
pub type LedgerFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// A database of events, holds and orders. See the module for its laws.
pub trait Ledger: Send + Sync + 'static {
    /// Short name, as in error messages.
    fn name(&self) -> &'static str;

    /// The present moment, by the ledger's clock.
    fn now(&self) -> LedgerFuture<'_, Moment>;

    // Events.

    /// Creates an event with its layout.
    fn create_event(&self, call: LedgerCall, command: NewEvent) -> LedgerFuture<'_, Done<EventRow>>;
    /// Changes the rules.
    fn configure(&self, call: LedgerCall, command: Configure) -> LedgerFuture<'_, Done<EventRow>>;
    /// Changes the layout.
    fn replace_layout(&self, call: LedgerCall, command: ReplaceLayout) -> LedgerFuture<'_, Done<EventRow>>;
    /// Stops or resumes sales.
    fn freeze(&self, call: LedgerCall, command: Freeze) -> LedgerFuture<'_, Done<EventRow>>;

    // Holds.

    /// Opens a hold.
    fn open_hold(&self, call: LedgerCall, command: OpenHold) -> LedgerFuture<'_, Done<OpenedHold>>;
    /// Renews a hold.
    fn renew(&self, call: LedgerCall, command: RenewHold) -> LedgerFuture<'_, Done<HoldRow>>;
    /// Adds and removes seats.
    fn change_seats(&self, call: LedgerCall, command: ChangeSeats) -> LedgerFuture<'_, Done<HoldRow>>;
    /// Stores another lease for seats of a hold.
    fn replace_lease(&self, call: LedgerCall, command: ReplaceLease) -> LedgerFuture<'_, Done<HoldRow>>;
    /// Begins a payment.
    fn begin_pay(&self, call: LedgerCall, command: BeginPay) -> LedgerFuture<'_, Done<HoldRow>>;
    /// Ends a payment without money.
    fn decline(&self, call: LedgerCall, command: Decline) -> LedgerFuture<'_, Done<HoldRow>>;
    /// Sells a hold.
    fn confirm(&self, call: LedgerCall, command: Confirm) -> LedgerFuture<'_, Done<Confirmed>>;
    /// Sells the same seats for money that came late.
    fn sell_late(&self, call: LedgerCall, command: SellLate) -> LedgerFuture<'_, Done<OrderRow>>;
    /// Releases a hold. Returns the row with its leases.
    fn release(&self, call: LedgerCall, command: ReleaseHold) -> LedgerFuture<'_, Done<HoldRow>>;
    /// Ends holds that are over by time, oldest first.
    fn lapse_due(&self, limit: usize) -> LedgerFuture<'_, Swept>;

    // Staff.

    /// Blocks and unblocks.
    fn set_blocks(&self, call: LedgerCall, command: SetBlocks) -> LedgerFuture<'_, Done<Blocks>>;
    /// Ends the hold on a seat. Returns the row with its leases.
    fn force_release(&self, call: LedgerCall, command: ForceRelease) -> LedgerFuture<'_, Done<HoldRow>>;
    /// Voids an order, or some of its seats.
    fn void(&self, call: LedgerCall, command: Void) -> LedgerFuture<'_, Done<Amended>>;
    /// Moves sold seats.
    fn move_order(&self, call: LedgerCall, command: MoveOrder) -> LedgerFuture<'_, Done<Amended>>;

    // Money that has no order.

    /// One step of money, from one state to the next.
    fn money_step(&self, call: LedgerCall, command: MoneyStep) -> LedgerFuture<'_, Done<MoneyRow>>;
    /// An authorised payment was captured, or will not be.
    fn capture_step(&self, call: LedgerCall, command: CaptureStep) -> LedgerFuture<'_, Done<OrderRow>>;
    /// Orders whose payment is to be captured, or will not be: due, or failed.
    fn captures_open(&self) -> LedgerFuture<'_, Vec<OrderRow>>;
    /// Money, by its key: a payment, or a part of one.
    fn money<'a>(&'a self, payment_ref: &'a str) -> LedgerFuture<'a, Option<MoneyRow>>;
    /// All of a payment: the whole, and every part of it that is written down.
    fn money_of_payment<'a>(&'a self, payment_ref: &'a str) -> LedgerFuture<'a, Vec<MoneyRow>>;
    /// All money that came for a hold and is not simply its order's, oldest first.
    fn money_of_hold<'a>(&'a self, id: &'a HoldId) -> LedgerFuture<'a, Vec<MoneyRow>>;
    /// Money in one of these states, oldest first; of one event or of all.
    fn money_in_states<'a>(
        &'a self,
        event: Option<&'a EventId>,
        states: &'a [MoneyState],
    ) -> LedgerFuture<'a, Vec<MoneyRow>>;

    // Reads: each is one consistent snapshot.

    /// One event.
    fn event<'a>(&'a self, id: &'a EventId) -> LedgerFuture<'a, Option<EventRow>>;
    /// All events, in the order they were made.
    fn events(&self) -> LedgerFuture<'_, Vec<EventRow>>;
    /// The layout, and the version it is.
    fn layout<'a>(&'a self, id: &'a EventId) -> LedgerFuture<'a, Option<(u64, Layout)>>;
    /// One hold, also after its end, and the moment it was looked at.
    fn hold<'a>(&'a self, id: &'a HoldId) -> LedgerFuture<'a, (Option<HoldRow>, Moment)>;
    /// One order.
    fn order<'a>(&'a self, id: &'a OrderId) -> LedgerFuture<'a, Option<OrderRow>>;
    /// Orders of an event after one of them, in order of id.
    fn orders<'a>(
        &'a self,
        id: &'a EventId,
        after: Option<&'a OrderId>,
        limit: usize,
    ) -> LedgerFuture<'a, Vec<OrderRow>>;
    /// The whole event in one moment.
    fn snapshot<'a>(&'a self, id: &'a EventId) -> LedgerFuture<'a, Option<Snapshot>>;
    /// Money and counts.
    fn takings<'a>(&'a self, id: &'a EventId) -> LedgerFuture<'a, Takings>;
    /// Every row of an event as stored, for [`check`].
    fn dump<'a>(&'a self, id: &'a EventId) -> LedgerFuture<'a, Option<Dump>>;
    /// Holds that have seats, of all events, counted.
    fn count_live(&self) -> LedgerFuture<'_, LiveCounts>;
    /// Live holds with money on its way, of all events, and the moment they were looked at.
    fn paying(&self) -> LedgerFuture<'_, (Vec<HoldRow>, Moment)>;
    /// Holds that ended unsold in the last so many milliseconds, whose last payment has no money written down; and the
    /// moment they were looked at. At most a thousand, the last ones first.
    fn payments_without_word(&self, within_ms: u64) -> LedgerFuture<'_, (Vec<HoldRow>, Moment)>;
    /// Which of these tokens belong to a live hold of this event.
    fn known_tokens<'a>(&'a self, id: &'a EventId, tokens: &'a [u64]) -> LedgerFuture<'a, Vec<u64>>;

    /// The stored answer of an idempotency key, as JSON; refused if it was another request.
    fn stored_answer<'a>(&'a self, idem: &'a Idem) -> LedgerFuture<'a, Option<serde_json::Value>>;

    // The engine that tokens come from.

    /// Whether other servers may use it at the same time.
    fn is_shared(&self) -> bool;
    /// The identity of the engine that was last admitted; none: none was, or it has no identity.
    fn engine(&self) -> LedgerFuture<'_, Option<String>>;
    /// The highest token that any row has; zero: none has any.
    fn highest_token(&self) -> LedgerFuture<'_, u64>;
    /// From now on it is this engine, if it was `seen` until now. `false`: it was another.
    fn put_engine(&self, identity: Option<String>, seen: Option<String>) -> LedgerFuture<'_, bool>;

    // Entries: the audit log.

    /// Numbers entries that have no number, at most so many, and returns them.
    fn sequence(&self, limit: usize) -> LedgerFuture<'_, Numbered>;
    /// The last number of each event.
    fn heads(&self) -> LedgerFuture<'_, Vec<(EventId, u64)>>;
    /// Numbered entries, in order.
    fn audit<'a>(&'a self, id: &'a EventId, query: AuditQuery) -> LedgerFuture<'a, Vec<Entry>>;

    // Webhooks.

    /// Adds one, unless its id is taken or there are `max` already. It is served from the entries that follow the last
    /// number of each event.
    fn add_webhook(&self, webhook: WebhookRow, max: usize) -> LedgerFuture<'_, WebhookAdded>;
    /// Switches one off. `false`: there is none of this id. It never brings back one that was removed.
    fn deactivate_webhook<'a>(&'a self, id: &'a str) -> LedgerFuture<'a, bool>;
    /// Removes one with its cursors, if it is still for the same event as the caller saw. `false`: it is not there.
    fn remove_webhook<'a>(&'a self, seen: &'a WebhookRow) -> LedgerFuture<'a, bool>;
    /// All of them.
    fn webhooks(&self) -> LedgerFuture<'_, Vec<WebhookRow>>;
    /// How far one was served in an event.
    fn webhook_cursor<'a>(&'a self, id: &'a str, event: &'a EventId) -> LedgerFuture<'a, u64>;
    /// It was served up to here; never back. Of a webhook that was removed nothing is stored.
    fn advance_webhook<'a>(&'a self, id: &'a str, event: &'a EventId, seq: u64) -> LedgerFuture<'a, ()>;

    // Maintenance.

    /// Deletes stored answers and ended holds (but for those with money) older than this many milliseconds.
    fn forget_older_than(&self, age_ms: u64) -> LedgerFuture<'_, u64>;
    /// Finishes the transactions under way and closes the database. Later calls are Unavailable.
    fn close(&self) -> LedgerFuture<'_, ()>;
}

/// The wall clock, for people who read the audit log. Nothing is decided by it.
#[expect(clippy::disallowed_methods, reason = "people read it, and nothing is decided by it")]
fn wall_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
