//! Sales, and money that came late: it buys the same seats, else similar seats are offered, else it is refunded.
//!
//! Every step of late money is stored before the next one, so that any office continues it after a crash.

use std::time::Duration;

use super::Office;
use super::lease::{LeaseOutcome, LeaseTerms, SALE_LEASE_TTL};
use super::open_hold::{HoldItems, HoldOwner, MAX_SEATS_PER_HOLD, priced_items, similar_seats};
use super::secret::name;
use super::view::{LateOutcome, PaymentMessage, PaymentOutcome};
use crate::error::Error;
use crate::model::*;
use crate::provider::CallbackOutcome;

/// How often similar seats are picked for an offer when another request took them first.
const MAX_OFFER_ATTEMPTS: usize = 3;
/// Received money younger than this is left to the office that received it.
const LATE_MONEY_GRACE_MS: u64 = 10_000;

/// The steps of money as its buyer sees them. Notes of providers and staff about stuck money are hidden: they may name
/// another hold. So are the reasons for which staff changed an order.
fn buyer_steps(money: &MoneyRow) -> Vec<RecordedStep> {
    let mut inside = false;
    let of_order = money.order_id.is_some();
    let told = |step: &RecordedStep| {
        inside |= matches!(step.state, MoneyState::Stuck | MoneyState::Closed);
        let note = match step.state {
            MoneyState::Stuck => "staff sees to it",
            MoneyState::Closed => "staff settled it",
            MoneyState::RefundDue if inside => "it goes back",
            MoneyState::RefundDue if of_order => "it is more than the order costs",
            _ => &step.note,
        };
        RecordedStep { note: note.into(), ..step.clone() }
    };
    money.steps.iter().map(told).collect()
}

/// What a payment led to.
#[allow(clippy::large_enum_variant, reason = "one at a time, and gone at once")]
enum SaleOutcome {
    Sold(OrderRow),
    Open(Resolution),
}

/// Refuses a message whose ids cannot be stored.
pub(super) fn check_message_names(id: &str, payment_ref: &str) -> Result<(), Error> {
    if ids::well_formed(id) && ids::well_formed(payment_ref) {
        return Ok(());
    }
    Err(Error::Invalid("id and payment_ref must be 1 to 128 bytes, without control characters".into()))
}

impl Office {
    /// Sells a hold whose money the caller has: all that it costs. The same confirm again gives the same order.
    ///
    /// # Errors
    ///
    /// As of [`Office::confirm_with`].
    pub async fn confirm(
        &self,
        call: LedgerCall,
        hold: &HoldId,
        access: Access,
        payment_ref: &str,
    ) -> Result<OrderRow, Error> {
        self.confirm_with(call, hold, access, payment_ref, PaymentProof::Key { amount: None }).await
    }

    /// Sells a hold. `proof` says who confirms the payment; its amount is compared with the price inside the transaction.
    ///
    /// # Errors
    ///
    /// [`Refusal::NotPaid`]; [`Refusal::Ended`] for a hold that lapsed and was never paid; [`Refusal::Late`] with what
    /// became of the money.
    pub async fn confirm_with(
        &self,
        call: LedgerCall,
        hold: &HoldId,
        access: Access,
        payment_ref: &str,
        proof: PaymentProof,
    ) -> Result<OrderRow, Error> {
        if !ids::well_formed(payment_ref) {
            return Err(Error::Invalid("payment_ref must be 1 to 128 bytes, without control characters".into()));
        }
        let (hold_id, payment_ref) = (hold.clone(), payment_ref.into());
        let command = Confirm { hold_id, access, payment_ref, tokens: Vec::new(), proof, callback: None };
        let office = self.clone();
        let work = async move {
            let order = match office.confirm_now(call, command).await {
                Ok(Some(SaleOutcome::Sold(order))) => Ok(order),
                Ok(Some(SaleOutcome::Open(resolution))) => Err(Refusal::Late(resolution).into()),
                Ok(None) => Err(Refusal::PaymentMismatch.into()),
                Err(error) => Err(error),
            };
            if let Err(error) = &order {
                office.0.counts.count_sale_refusal(error);
            }
            order
        };
        self.detached(work).await
    }

    /// Handles a verified message of the provider. Messages may come in any order and several times.
    ///
    /// # Errors
    ///
    /// There is no such hold, or it could not be asked.
    pub async fn payment(&self, message: PaymentMessage) -> Result<PaymentOutcome, Error> {
        check_message_names(&message.id, &message.payment_ref)?;
        let office = self.clone();
        self.detached(async move { office.payment_now(message).await }).await
    }

    async fn payment_now(&self, message: PaymentMessage) -> Result<PaymentOutcome, Error> {
        let PaymentMessage { id, payment_ref, hold_id, outcome, tokens, amount, currency, paid_for } = message;
        let (call, access, callback) = (LedgerCall::by("provider"), Access::Staff, Some(id));
        let authorised = match outcome {
            CallbackOutcome::Captured => false,
            CallbackOutcome::Authorised => true,
            CallbackOutcome::Declined | CallbackOutcome::Cancelled | CallbackOutcome::Refunded => {
                let given_up = outcome == CallbackOutcome::Cancelled;
                return self.decline_payment(call, Decline { hold_id, access, payment_ref, given_up, callback }).await;
            }
        };
        let proof = PaymentProof::Provider(ProviderWord { amount, currency, hold_id: paid_for, authorised });
        let command = Confirm { hold_id, access, payment_ref, tokens, proof, callback };
        let confirmed =
            self.confirm_now(call, command).await.inspect_err(|error| self.0.counts.count_sale_refusal(error))?;
        Ok(match confirmed {
            Some(SaleOutcome::Sold(order)) => PaymentOutcome::Order(order),
            Some(SaleOutcome::Open(resolution)) => {
                self.0.counts.count_sale_refusal(&Refusal::Late(resolution.clone()).into());
                PaymentOutcome::Late(resolution)
            }
            None => PaymentOutcome::Ignored,
        })
    }

    async fn decline_payment(&self, call: LedgerCall, command: Decline) -> Result<PaymentOutcome, Error> {
        let view = self.decline_now(call, command).await?;
        Ok(PaymentOutcome::Declined(view.hold.state))
    }

    /// `None`: this message was acted upon before.
    async fn confirm_now(&self, call: LedgerCall, command: Confirm) -> Result<Option<SaleOutcome>, Error> {
        let began = self.clock().now();
        let done = self.0.ledger.confirm(call, command).await?;
        match done.value {
            Confirmed::Order { order, leases } => {
                // A replayed answer changes nothing: its seats may be free again by now.
                if !leases.is_empty() && !done.replayed {
                    self.0.counts.record_sale(self.clock().now().since(began));
                    if order.sources.first().is_some_and(|source| source.hold_id != order.hold_id) {
                        self.0.counts.count_late_money(LateOutcome::OfferTaken);
                    }
                    self.override_sold(&order);
                }
                self.release_leases(&leases).await;
                Ok(Some(SaleOutcome::Sold(order)))
            }
            Confirmed::Late { hold, money } => {
                // A second payment or a replayed answer leaves the hold as it is. The hold's own payment, if it does not
                // fit, ends like a decline.
                if !done.replayed && !hold.is_live(done.now) {
                    self.release_leases(&hold.leases).await;
                } else if !done.replayed && hold.payment_ref.as_ref() == Some(&money.payment_ref) {
                    self.end_leases_unpaid(&hold, done.now).await;
                }
                if !done.replayed && money.steps.len() == 1 && money.received_at == done.now {
                    self.count_late(money.state);
                }
                self.advance_money(&money.key()).await.map(Some)
            }
            Confirmed::Duplicate => Ok(None),
        }
    }

    fn count_late(&self, state: MoneyState) {
        let outcome = match state {
            MoneyState::Offered => LateOutcome::Offered,
            MoneyState::RefundDue => LateOutcome::GoesBack,
            MoneyState::Stuck => LateOutcome::Stuck,
            MoneyState::CancelDue => LateOutcome::Cancelled,
            _ => return,
        };
        self.0.counts.count_late_money(outcome);
    }

    fn override_sold(&self, order: &OrderRow) {
        if let Some(cached) = self.0.cache.get(&order.event_id) {
            cached.override_states(
                order.seats.iter().map(|seat| seat.id.as_str()),
                SeatState::Sold,
                self.clock().now(),
            );
        }
    }

    /// Takes late money through its steps until nothing more can be done now.
    async fn advance_money(&self, key: &str) -> Result<SaleOutcome, Error> {
        // Each round takes a step or returns. Another office may take steps at the same time.
        for _ in 0..4 {
            let Some(money) = self.0.ledger.money(key).await? else { break };
            match money.state {
                MoneyState::Received => self.resolve_received(&money).await?,
                MoneyState::Offered => {
                    if !self.refund_if_offer_ended(&money).await? {
                        return Ok(SaleOutcome::Open(self.resolution(&money).await?));
                    }
                }
                MoneyState::Sold => {
                    let hold = money.offer.as_ref().unwrap_or(&money.hold_id);
                    let bought = self.0.ledger.order(&OrderId::for_hold(hold)).await?;
                    let first = self.0.ledger.order(&OrderId::for_hold(&money.hold_id)).await?;
                    let its_own = |order: &OrderRow| order.payment_ref == money.payment_ref;
                    if let Some(order) = first.filter(its_own).or(bought) {
                        return Ok(SaleOutcome::Sold(order));
                    }
                    break;
                }
                MoneyState::RefundDue
                | MoneyState::Refunded
                | MoneyState::Stuck
                | MoneyState::Closed
                | MoneyState::CancelDue
                | MoneyState::Cancelled => {
                    return Ok(SaleOutcome::Open(self.resolution(&money).await?));
                }
            }
        }
        let law = "money that came late is written down, and so is what it bought".into();
        Err(Error::Corrupt { part: self.0.ledger.name(), law, at: key.into() })
    }

    /// The first steps of received money: sell the same seats, else offer similar ones, else refund.
    async fn resolve_received(&self, money: &MoneyRow) -> Result<(), Error> {
        let (hold, _) = self.0.ledger.hold(&money.hold_id).await?;
        let hold = hold.ok_or_else(|| Refusal::NoHold(money.hold_id.clone()))?;
        let order = self.0.ledger.order(&OrderId::for_hold(&money.hold_id)).await?;
        if order.is_some_and(|order| order.payment_ref != money.payment_ref) {
            self.record_money_step(money, MoneyState::RefundDue, None, "another payment bought these seats").await?;
            return Ok(());
        }
        if self.sell_same_seats(&hold, money).await? {
            return Ok(());
        }
        if let Some(offer) = self.offer_similar_seats(&hold, money).await? {
            let note = "other seats as good are held: confirm them with the same payment";
            if !self.record_money_step(money, MoneyState::Offered, Some(offer.hold_id.clone()), note).await? {
                self.withdraw_offer(&offer).await;
            }
            return Ok(());
        }
        self.record_money_step(
            money,
            MoneyState::RefundDue,
            None,
            "the seats are gone, and there are no others as good",
        )
        .await?;
        Ok(())
    }

    /// Sells the same seats for late money, if they are free. `true`: sold, or another office took a step.
    async fn sell_same_seats(&self, hold: &HoldRow, money: &MoneyRow) -> Result<bool, Error> {
        let cached = self.load_event(&hold.event_id).await?;
        // The layout may have changed since: seats that are not in it any more cannot be sold.
        let all_there = hold.seats.iter().all(|seat| cached.price(&seat.id).is_some())
            && hold.areas.iter().all(|area| area.qty <= cached.capacity(&area.id))
            && hold.seats.len() + hold.areas.len() <= MAX_SEATS_PER_HOLD;
        if !all_there {
            return Ok(false);
        }
        let seats = hold.seats.iter().map(|seat| Priced { id: seat.id.clone(), price: seat.price });
        let areas = hold.areas.iter().map(|area| PricedArea { id: area.id.clone(), qty: area.qty, price: area.price });
        let items = HoldItems { seats: seats.collect(), areas: areas.collect() };
        let terms = LeaseTerms { ttl: SALE_LEASE_TTL, max_hold: None, wait: Duration::ZERO };
        let taken = self.acquire_lease(items.resources(&cached), terms, hold.hold_id.as_str()).await?;
        let LeaseOutcome::Granted(lease) = taken else { return Ok(false) };
        let (hold_id, payment_ref) = (hold.hold_id.clone(), money.payment_ref.clone());
        let command = SellLate { hold_id, payment_ref, token: lease.token };
        let began = self.clock().now();
        let sold = self.0.ledger.sell_late(LedgerCall::by("office"), command).await;
        self.release_lease(&lease).await;
        match sold {
            Ok(done) => {
                self.0.counts.record_sale(self.clock().now().since(began));
                self.0.counts.count_late_money(LateOutcome::SameSeats);
                self.override_sold(&done.value);
                Ok(true)
            }
            // Another office took a step first: read the money again.
            Err(Error::Refused(Refusal::PaymentMismatch)) => Ok(true),
            Err(Error::Refused(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Opens a hold on similar seats for a buyer who has paid. It opens with the key of the old hold.
    async fn offer_similar_seats(&self, hold: &HoldRow, money: &MoneyRow) -> Result<Option<HoldRow>, Error> {
        let cached = self.load_event(&hold.event_id).await?;
        let mut free = self.fresh_map(&cached).await?;
        for _ in 0..MAX_OFFER_ATTEMPTS {
            let Some(seats) = similar_seats(&cached, &free, hold) else { return Ok(None) };
            let items = priced_items(&cached, &seats, &[])?;
            // Prices may have risen since: seats that cost more than the money are not offered.
            if items.seats.iter().map(|seat| seat.price).sum::<u64>() > money.amount {
                return Ok(None);
            }
            let who = HoldOwner {
                buyer: &hold.buyer,
                hold_id: HoldId(name("h_", self.clock().now())?),
                key_hash: hold.key_hash.clone(),
                sealed_key: String::new(),
                payment_ref: Some(money.payment_ref.clone()),
            };
            match self.acquire_and_open_for(&LedgerCall::by("office"), &cached, &items, who).await {
                Ok(done) => return Ok(Some(done.value.hold)),
                Err(Error::Refused(Refusal::Conflict { conflicts, .. })) => {
                    if conflicts.iter().any(|lost| lost.reason == Reason::BuyerLimit) {
                        return Ok(None);
                    }
                    for lost in conflicts.iter().filter_map(|lost| cached.index.position(lost.seat.as_deref()?)) {
                        free.set(lost, false);
                    }
                }
                Err(Error::Refused(_)) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Ends an offer that was not recorded, since another office took a step first.
    async fn withdraw_offer(&self, offer: &HoldRow) {
        let Some(seat) = offer.seats.first() else { return };
        let (event_id, seat) = (offer.event_id.clone(), seat.id.clone());
        let command = ForceRelease { event_id, seat, reason: "the money found other seats".into() };
        let _ = self.0.ledger.force_release(LedgerCall::by("office"), command).await;
        self.release_leases(&offer.leases).await;
    }

    /// Makes the money due for refund if its offer ended without a sale. Returns whether it did.
    async fn refund_if_offer_ended(&self, money: &MoneyRow) -> Result<bool, Error> {
        let Some(offer) = &money.offer else { return Ok(false) };
        let (row, now) = self.0.ledger.hold(offer).await?;
        if row.as_ref().is_some_and(|row| row.is_live(now) || row.state == HoldState::Sold) {
            return Ok(false);
        }
        let declined = row.is_some_and(|row| row.state == HoldState::Released);
        let note = if declined {
            "the seats that were offered were not wanted"
        } else {
            "the seats that were offered were not taken in time"
        };
        self.record_money_step(money, MoneyState::RefundDue, None, note).await?;
        Ok(true)
    }

    /// Stores one step of money, if its state is still the one seen. `false`: another office took a step first.
    async fn record_money_step(
        &self,
        money: &MoneyRow,
        to: MoneyState,
        offer: Option<HoldId>,
        note: &str,
    ) -> Result<bool, Error> {
        let (payment_ref, from) = (money.payment_ref.clone(), money.state);
        let command = MoneyStep { payment_ref, from, to, offer, note: note.into(), callback: None };
        match self.0.ledger.money_step(LedgerCall::by("office"), command).await {
            Ok(_) => {
                self.count_late(to);
                Ok(true)
            }
            Err(Error::Refused(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The resolution of money, for buyer and staff.
    pub(super) async fn resolution(&self, money: &MoneyRow) -> Result<Resolution, Error> {
        let offered = match &money.offer {
            Some(offer) => self.0.ledger.hold(offer).await?.0,
            None => None,
        };
        let seats = offered.map(|offer| offer.seats.into_iter().map(|seat| seat.id).collect()).unwrap_or_default();
        Ok(Resolution { state: money.state, offer: money.offer.clone(), seats, steps: buyer_steps(money) })
    }

    /// Continues received money that no office works on, and offers that ended. An error with one does not stop the
    /// others: the first error is returned at the end.
    pub(super) async fn advance_open_money(&self) -> Result<(), Error> {
        let open = self.0.ledger.money_in_states(None, &[MoneyState::Received, MoneyState::Offered]).await?;
        let now = self.0.ledger.now().await?;
        let mut result = Ok(());
        for money in open {
            // The office that received it is probably still working on it.
            let fresh = money.state == MoneyState::Received && now.since(money.received_at) < LATE_MONEY_GRACE_MS;
            if !fresh && let Err(error) = self.advance_money(&money.payment_ref).await {
                result = result.and(Err(error));
            }
        }
        result
    }
}
