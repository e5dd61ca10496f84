//! Commands to the ledger, one struct for each transaction, and their results.

use serde::{Deserialize, Serialize};

use super::entry::{Entry, SeatState};
use super::event::EventSettings;
use super::hold::{HoldRow, LeaseRef};
use super::ids::{Buyer, EventId, HoldId, Moment, OrderId};
use super::order::{CaptureState, MoneyRow, MoneyState, OrderRow};
use crate::layout::Layout;

/// Who makes a call to the ledger, and under which idempotency key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LedgerCall {
    /// For the audit: a buyer, a member of staff, `sweeper`.
    pub actor: String,
    /// Makes a retry have one effect, and the same answer.
    pub idem: Option<Idem>,
}

impl LedgerCall {
    /// A call by this actor, without an idempotency key.
    #[must_use]
    pub fn by(actor: &str) -> Self {
        Self { actor: actor.into(), idem: None }
    }
}

/// An idempotency key, as it is stored: digests only, since keys and bodies may hold secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idem {
    /// Of who asks and the key they gave.
    pub key: [u8; 32],
    /// Of what they ask: method, path and body.
    pub body: [u8; 32],
    /// Hides the hold key in the stored answer, and is never stored: see [`Idem::with_secrets`].
    pub pad: [u8; 16],
    /// Pads of secrets before this one: answers that are stored may be under them.
    pub old_pads: Vec<[u8; 16]>,
}

/// The result of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done<T> {
    /// The outcome.
    pub value: T,
    /// The ledger's clock, when this was answered: count remaining time from it.
    pub now: Moment,
    /// It is the stored answer of an earlier call.
    pub replayed: bool,
}

/// What opens a hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// SHA-256 of the hold key shown, in hex.
    Key(String),
    /// Somebody who may act for any buyer.
    Staff,
}

/// A new event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEvent {
    /// Which.
    pub event_id: EventId,
    /// Its rules.
    pub settings: EventSettings,
    /// What it sells.
    pub layout: Layout,
}

/// New rules for an event. Holds that are open keep theirs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configure {
    /// Which.
    pub event_id: EventId,
    /// All its rules from now on.
    pub settings: EventSettings,
    /// The version they were made from: nothing is changed if it is not that any more. None: whatever it is.
    pub seen: Option<u64>,
}

/// Another layout. What is held, sold or blocked must be in it, and areas may not shrink below what is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplaceLayout {
    /// Of which event.
    pub event_id: EventId,
    /// All of it.
    pub layout: Layout,
    /// It is only asked whether it could be.
    pub dry_run: bool,
}

/// Stops or resumes sales.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Freeze {
    /// Which event.
    pub event_id: EventId,
    /// Stop, or resume.
    pub frozen: bool,
    /// Why.
    pub reason: String,
}

/// A seat with its price by the layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Priced {
    /// Which.
    pub id: String,
    /// In minor units.
    pub price: u64,
}

/// Places of an area with their price by the layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PricedArea {
    /// Which.
    pub id: String,
    /// How many.
    pub qty: u32,
    /// Of one, in minor units.
    pub price: u64,
}

/// Writes a hold under a lease that was taken for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenHold {
    /// Of which event.
    pub event_id: EventId,
    /// The layout it was priced by.
    pub layout_version: u64,
    /// Its public name, drawn by the caller.
    pub hold_id: HoldId,
    /// Whose.
    pub buyer: Buyer,
    /// Digest of its secret.
    pub key_hash: String,
    /// The secret itself under [`Idem::pad`], kept only with the stored answer.
    pub sealed_key: String,
    /// Sorted by id, each once.
    pub seats: Vec<Priced>,
    /// Sorted by id, each once.
    pub areas: Vec<PricedArea>,
    /// The lease that was taken on all of it.
    pub lease: LeaseRef,
    /// Money that came already: the hold begins as paying. For offers for late money.
    pub payment_ref: Option<String>,
}

/// What [`OpenHold`] answers, also later under the same idempotency key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenedHold {
    /// The row.
    pub hold: HoldRow,
    /// The secret under the pad.
    pub sealed_key: String,
}

/// Renews an active hold: its end is now + ttl, within its cap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenewHold {
    /// Which.
    pub hold_id: HoldId,
    /// By whom.
    pub access: Access,
    /// The tokens of the leases that were renewed for it: all that the hold has, or it is stale.
    pub tokens: Vec<u64>,
}

/// Adds and removes seats and places of an active hold, in one go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeSeats {
    /// Which.
    pub hold_id: HoldId,
    /// By whom.
    pub access: Access,
    /// The layout the additions were priced by.
    pub layout_version: u64,
    /// Sorted by id.
    pub add: Vec<Priced>,
    /// Sorted by id.
    pub add_areas: Vec<PricedArea>,
    /// The lease on what is added; none if nothing is.
    pub lease: Option<LeaseRef>,
    /// Seats to give up.
    pub remove: Vec<String>,
    /// Areas to give up, with all their places.
    pub remove_areas: Vec<String>,
}

/// Stores another lease for the seats of a hold that were under one lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplaceLease {
    /// Which.
    pub hold_id: HoldId,
    /// The token they had.
    pub old: u64,
    /// The lease they have now.
    pub lease: LeaseRef,
}

/// Begins a payment: the hold is safe until the pay deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BeginPay {
    /// Which.
    pub hold_id: HoldId,
    /// By whom.
    pub access: Access,
    /// The name of the payment.
    pub payment_ref: String,
    /// Where the buyer pays, if the provider has a page.
    pub pay_url: Option<String>,
    /// What the payment was made for: refused if the hold costs something else by now. None: nothing was agreed yet.
    pub total: Option<u64>,
    /// The seats and areas that the payment was made for, with their tokens: refused if they are others by now. Empty:
    /// nothing was agreed yet.
    pub paid_for: Vec<(String, u64)>,
    /// The tokens of the leases that were renewed to the deadline.
    pub tokens: Vec<u64>,
}

/// The payment was declined: back to active if time is left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decline {
    /// Which.
    pub hold_id: HoldId,
    /// By whom.
    pub access: Access,
    /// Which payment.
    pub payment_ref: String,
    /// It was given up, and not only declined: the same payment cannot be tried again.
    pub given_up: bool,
    /// The provider's name for the message that said so; known ones change nothing.
    pub callback: Option<String>,
}

/// The sale.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confirm {
    /// Which.
    pub hold_id: HoldId,
    /// By whom.
    pub access: Access,
    /// Which payment.
    pub payment_ref: String,
    /// What was paid for: seats and areas with their tokens, from the payment's metadata. Empty: whatever the hold has.
    pub tokens: Vec<(String, u64)>,
    /// Who says that it is paid.
    pub proof: PaymentProof,
    /// The provider's name for the message that said so; known ones change nothing.
    pub callback: Option<String>,
}

/// Who says that a hold is paid, and how much. It travels in the command, so that it is compared with the price inside
/// the transaction that sells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PaymentProof {
    /// Nobody but the buyer. That sells what costs nothing, and what has money that a provider told of before.
    Buyer,
    /// Somebody with a key, who has the money. None: all that the hold costs.
    Key {
        /// In minor units.
        amount: Option<u64>,
    },
    /// The payment provider.
    Provider(ProviderWord),
}

impl PaymentProof {
    /// The provider captured so much for this hold.
    #[must_use]
    pub fn captured(hold: &HoldId, amount: u64) -> Self {
        Self::Provider(ProviderWord { amount, currency: None, hold_id: hold.clone(), authorised: false })
    }
}

/// What a payment provider says of a payment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderWord {
    /// In minor units.
    pub amount: u64,
    /// Of which currency, if it says so. Another than the event's is never a sale.
    pub currency: Option<String>,
    /// For which hold, by its own records. Another than the one that is to be sold is never a sale.
    pub hold_id: HoldId,
    /// It is authorised, and not captured yet: captured after the sale, cancelled if there is none.
    pub authorised: bool,
}

/// A step of the capture of an authorised payment, after its sale.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureStep {
    /// Of which order.
    pub order_id: OrderId,
    /// Where to, from [`CaptureState::Due`] or [`CaptureState::Failed`].
    pub to: CaptureState,
    /// Why, for people.
    pub note: String,
}

/// What a confirm came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(clippy::large_enum_variant, reason = "one at a time, and gone at once")]
pub enum Confirmed {
    /// An order, new or as it was made before.
    Order {
        /// The order.
        order: OrderRow,
        /// Leases that are of no more use; none if the order was there already.
        leases: Vec<LeaseRef>,
    },
    /// Money that came too late, now stored. Its next steps follow.
    Late {
        /// The hold it was for.
        hold: HoldRow,
        /// The money.
        money: MoneyRow,
    },
    /// This message was acted upon before.
    Duplicate,
}

/// Late money buys the same seats, under a fresh lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SellLate {
    /// The hold that lapsed.
    pub hold_id: HoldId,
    /// Which payment.
    pub payment_ref: String,
    /// The token of the lease that was taken on all of it again.
    pub token: u64,
}

/// A step of money from one state to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoneyStep {
    /// Which money: see [`MoneyRow::key`].
    pub payment_ref: String,
    /// It must still be in this state: two offices at once take each step once.
    pub from: MoneyState,
    /// Where to.
    pub to: MoneyState,
    /// The hold on the seats that are offered.
    pub offer: Option<HoldId>,
    /// Why, for people.
    pub note: String,
    /// The provider's message that says so: acted upon once.
    pub callback: Option<String>,
}

/// Releases a hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleaseHold {
    /// Which.
    pub hold_id: HoldId,
    /// By whom.
    pub access: Access,
}

/// Blocks and unblocks, in one go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetBlocks {
    /// Of which event.
    pub event_id: EventId,
    /// Free seats to keep back.
    pub block: Vec<String>,
    /// Blocked seats to give free.
    pub unblock: Vec<String>,
    /// How many places of an area shall be kept back from now on.
    pub areas: Vec<(String, u32)>,
    /// Why.
    pub reason: String,
}

/// What [`SetBlocks`] changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocks {
    /// Blocked now and not before.
    pub blocked: Vec<String>,
    /// Free now and not before.
    pub unblocked: Vec<String>,
}

/// Staff ends the hold on a seat, in whatever state it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForceRelease {
    /// Of which event.
    pub event_id: EventId,
    /// The seat; or the hold itself, by its id: a hold may have places only.
    pub seat: String,
    /// Why.
    pub reason: String,
}

/// Staff takes an order back, or some of its seats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Void {
    /// Which.
    pub order_id: OrderId,
    /// Which seats; none: all of it, areas too.
    pub seats: Option<Vec<String>>,
    /// Why.
    pub reason: String,
}

/// What [`Void`] and [`MoveOrder`] came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amended {
    /// The order as it stands now.
    pub order: OrderRow,
    /// What the buyer is owed; negative: what they owe.
    pub owed: i64,
}

/// Staff moves sold seats, under a lease on the new ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveOrder {
    /// Which.
    pub order_id: OrderId,
    /// From, to: in pairs.
    pub moves: Vec<(String, Priced)>,
    /// The layout the new seats were priced by.
    pub layout_version: u64,
    /// The token of the lease on the new seats.
    pub token: u64,
    /// Why.
    pub reason: String,
}

/// What the sweeper ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Their rows as they were left, with leases to let go.
    pub holds: Vec<HoldRow>,
    /// How late the oldest was, in milliseconds.
    pub lag_ms: u64,
    /// There are more.
    pub more: bool,
}

/// Holds that have seats, of all events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveCounts {
    /// Live and not paying.
    pub active: u64,
    /// Live, with money on its way.
    pub paying: u64,
    /// How long ago the oldest that is over, and that no sweep has ended, should have ended.
    pub overdue_ms: u64,
}

/// A seat as it stands in one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeatNow {
    /// Which.
    pub id: String,
    /// What it is.
    pub state: SeatState,
    /// In whose hold.
    pub hold_id: Option<HoldId>,
    /// In which order.
    pub order_id: Option<OrderId>,
    /// With which token.
    pub token: Option<u64>,
    /// Why it is blocked.
    pub reason: Option<String>,
}

/// An area as it stands in one moment, what is due counted as free.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AreaNow {
    /// Which.
    pub id: String,
    /// How many places there are.
    pub capacity: u32,
    /// In live holds.
    pub held: u32,
    /// In live holds with money on its way.
    pub paying: u32,
    /// In orders.
    pub sold: u32,
    /// Kept by the house.
    pub blocked: u32,
}

impl AreaNow {
    /// For whoever comes.
    #[must_use]
    pub const fn free(&self) -> u32 {
        self.capacity
            .saturating_sub(self.held)
            .saturating_sub(self.paying)
            .saturating_sub(self.sold)
            .saturating_sub(self.blocked)
    }
}

/// An event as it stands in one moment: one consistent read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The moment.
    pub now: Moment,
    /// The last number that was given when it was taken. What was changed after it is in it too: apply entries after
    /// this number, and the result is the same.
    pub seq: u64,
    /// The event.
    pub event: super::event::EventRow,
    /// Only seats that are not free, in order of id.
    pub seats: Vec<SeatNow>,
    /// Every area.
    pub areas: Vec<AreaNow>,
    /// Every live hold.
    pub holds: Vec<HoldRow>,
}

/// Money and counts of an event, from the orders themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Takings {
    /// Orders that stand.
    pub orders: u64,
    /// Of these, how many were paid late.
    pub late: u64,
    /// Seats in them.
    pub seats: u64,
    /// Places in them.
    pub places: u64,
    /// In minor units.
    pub revenue: u64,
    /// Orders that were taken back whole.
    pub voided: u64,
    /// Money that must go back, in minor units.
    pub refunds_due: u64,
    /// Holds that ended by time, since the event was made.
    pub lapsed: u64,
}

/// Which entries to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditQuery {
    /// Only after this number.
    pub since: u64,
    /// Only about this seat.
    pub seat: Option<String>,
    /// At most this many; zero: 1,000.
    pub limit: usize,
}

/// A webhook: a receiver of entries.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WebhookRow {
    /// Which.
    pub id: String,
    /// Of which event; none: of all.
    pub event_id: Option<EventId>,
    /// Where.
    pub url: String,
    /// What messages are signed with.
    pub secret: String,
    /// Whether it is served.
    pub active: bool,
}

impl std::fmt::Debug for WebhookRow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { id, event_id, url, active, .. } = self;
        write!(f, "WebhookRow {{ id: {id}, event_id: {event_id:?}, url: {url}, active: {active} }}")
    }
}

/// What adding a webhook came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WebhookAdded {
    /// It is stored, and hears what happens from now on.
    Added,
    /// A webhook of this id is there already, as this. Nothing was changed.
    Exists(WebhookRow),
    /// There are as many as there may be. Nothing was changed.
    TooMany,
}

/// A batch of entries that just got their numbers.
pub type Numbered = Vec<Entry>;
