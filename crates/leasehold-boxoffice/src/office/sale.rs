//! The sale, and the ladder for money that came late: the same seats, else others as good, else back.
//!
//! Every step is written down before the next is taken, so whoever comes after a crash goes on where it stands.

use std::time::Duration;

use super::Office;
use super::lease::{Span, Taken};
use super::secret::name;
use super::take::{Basket, For, MOST, basket, instead};
use super::view::{LateOutcome, PaymentMessage, PaymentOutcome};
use crate::error::Error;
use crate::model::*;
use crate::provider::Outcome;

/// How often seats as good are looked for when somebody was quicker.
const OFFERS: usize = 3;
/// A lease for the moment of a sale.
const MOMENT: Duration = Duration::from_secs(30);

/// The steps of money as its buyer sees them: what providers and staff say of it once it is stuck is between them, and
/// may name somebody else's hold. So are the reasons for which staff changes an order.
fn told_to_buyer(money: &MoneyRow) -> Vec<Step> {
    let mut inside = false;
    let of_order = money.order_id.is_some();
    let told = |step: &Step| {
        inside |= matches!(step.state, MoneyState::Stuck | MoneyState::Closed);
        let note = match step.state {
            MoneyState::Stuck => "staff sees to it",
            MoneyState::Closed => "staff settled it",
            MoneyState::RefundDue if inside => "it goes back",
            MoneyState::RefundDue if of_order => "it is more than the order costs",
            _ => &step.note,
        };
        Step { note: note.into(), ..step.clone() }
    };
    money.steps.iter().map(told).collect()
}

/// Where money stands.
#[allow(clippy::large_enum_variant, reason = "one at a time, and gone at once")]
enum Standing {
    Sold(OrderRow),
    Open(Resolution),
}

/// Refuses a message whose names cannot be kept.
pub(super) fn named(id: &str, payment_ref: &str) -> Result<(), Error> {
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
        call: Call,
        hold: &HoldId,
        access: Access,
        payment_ref: &str,
    ) -> Result<OrderRow, Error> {
        self.confirm_with(call, hold, access, payment_ref, Proof::Key { amount: None }).await
    }

    /// Sells a hold, by the word of whoever `proof` says. What is said is compared with the price inside the sale's
    /// transaction.
    ///
    /// # Errors
    ///
    /// [`Refusal::NotPaid`]; [`Refusal::Ended`] for a hold that lapsed and was never paid; [`Refusal::Late`] with what
    /// became of the money.
    pub async fn confirm_with(
        &self,
        call: Call,
        hold: &HoldId,
        access: Access,
        payment_ref: &str,
        proof: Proof,
    ) -> Result<OrderRow, Error> {
        if !ids::well_formed(payment_ref) {
            return Err(Error::Invalid("payment_ref must be 1 to 128 bytes, without control characters".into()));
        }
        let (hold_id, payment_ref) = (hold.clone(), payment_ref.into());
        let command = Confirm { hold_id, access, payment_ref, tokens: Vec::new(), proof, callback: None };
        let office = self.clone();
        let work = async move {
            let order = match office.confirm_now(call, command).await {
                Ok(Some(Standing::Sold(order))) => Ok(order),
                Ok(Some(Standing::Open(resolution))) => Err(Refusal::Late(resolution).into()),
                Ok(None) => Err(Refusal::PaymentMismatch.into()),
                Err(error) => Err(error),
            };
            if let Err(error) = &order {
                office.0.counts.sale_refused(error);
            }
            order
        };
        self.detached(work).await
    }

    /// A message of the provider, already proven to be its own: any order, any number of times.
    ///
    /// # Errors
    ///
    /// There is no such hold, or it could not be asked.
    pub async fn payment(&self, message: PaymentMessage) -> Result<PaymentOutcome, Error> {
        named(&message.id, &message.payment_ref)?;
        let office = self.clone();
        self.detached(async move { office.payment_now(message).await }).await
    }

    async fn payment_now(&self, message: PaymentMessage) -> Result<PaymentOutcome, Error> {
        let PaymentMessage { id, payment_ref, hold_id, outcome, tokens, amount, currency, paid_for } = message;
        let (call, access, callback) = (Call::by("provider"), Access::Staff, Some(id));
        let authorised = match outcome {
            Outcome::Captured => false,
            Outcome::Authorised => true,
            Outcome::Declined | Outcome::Cancelled | Outcome::Refunded => {
                let given_up = outcome == Outcome::Cancelled;
                return self.no_payment(call, Decline { hold_id, access, payment_ref, given_up, callback }).await;
            }
        };
        let proof = Proof::Provider(ProviderWord { amount, currency, hold_id: paid_for, authorised });
        let command = Confirm { hold_id, access, payment_ref, tokens, proof, callback };
        let confirmed = self.confirm_now(call, command).await.inspect_err(|error| self.0.counts.sale_refused(error))?;
        Ok(match confirmed {
            Some(Standing::Sold(order)) => PaymentOutcome::Order(order),
            Some(Standing::Open(resolution)) => {
                self.0.counts.sale_refused(&Refusal::Late(resolution.clone()).into());
                PaymentOutcome::Late(resolution)
            }
            None => PaymentOutcome::Ignored,
        })
    }

    async fn no_payment(&self, call: Call, command: Decline) -> Result<PaymentOutcome, Error> {
        let view = self.decline_now(call, command).await?;
        Ok(PaymentOutcome::Declined(view.hold.state))
    }

    /// `None`: this message was acted upon before.
    async fn confirm_now(&self, call: Call, command: Confirm) -> Result<Option<Standing>, Error> {
        let began = self.clock().now();
        let done = self.0.ledger.confirm(call, command).await?;
        match done.value {
            Confirmed::Order { order, leases } => {
                // A stored answer is old: what it sold may be free again by now.
                if !leases.is_empty() && !done.replayed {
                    self.0.counts.sold_in(self.clock().now().since(began));
                    if order.sources.first().is_some_and(|source| source.hold_id != order.hold_id) {
                        self.0.counts.late(LateOutcome::OfferTaken);
                    }
                    self.note_sold(&order);
                }
                self.let_go_all(&leases).await;
                Ok(Some(Standing::Sold(order)))
            }
            Confirmed::Late { hold, money } => {
                // A second payment leaves the hold as it is, and so does an old answer. Its own, if it does not fit, leaves
                // it as a decline does.
                if !done.replayed && !hold.is_live(done.now) {
                    self.let_go_all(&hold.leases).await;
                } else if !done.replayed && hold.payment_ref.as_ref() == Some(&money.payment_ref) {
                    self.unpaid(&hold, done.now).await;
                }
                if !done.replayed && money.steps.len() == 1 && money.received_at == done.now {
                    self.count_late(money.state);
                }
                self.climb(&money.key()).await.map(Some)
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
        self.0.counts.late(outcome);
    }

    fn note_sold(&self, order: &OrderRow) {
        if let Some(known) = self.0.memory.get(&order.event_id) {
            known.note(order.seats.iter().map(|seat| seat.id.as_str()), SeatState::Sold, self.clock().now());
        }
    }

    /// Takes money up the ladder until nothing more can be done now.
    async fn climb(&self, key: &str) -> Result<Standing, Error> {
        // Each turn takes a step or stands still; another office may take steps too.
        for _ in 0..4 {
            let Some(money) = self.0.ledger.money(key).await? else { break };
            match money.state {
                MoneyState::Received => self.first_rungs(&money).await?,
                MoneyState::Offered => {
                    if !self.offer_failed(&money).await? {
                        return Ok(Standing::Open(self.resolution(&money).await?));
                    }
                }
                MoneyState::Sold => {
                    let hold = money.offer.as_ref().unwrap_or(&money.hold_id);
                    let bought = self.0.ledger.order(&OrderId::of(hold)).await?;
                    let first = self.0.ledger.order(&OrderId::of(&money.hold_id)).await?;
                    let its_own = |order: &OrderRow| order.payment_ref == money.payment_ref;
                    if let Some(order) = first.filter(its_own).or(bought) {
                        return Ok(Standing::Sold(order));
                    }
                    break;
                }
                MoneyState::RefundDue
                | MoneyState::Refunded
                | MoneyState::Stuck
                | MoneyState::Closed
                | MoneyState::CancelDue
                | MoneyState::Cancelled => {
                    return Ok(Standing::Open(self.resolution(&money).await?));
                }
            }
        }
        let law = "money that came late is written down, and so is what it bought".into();
        Err(Error::Corrupt { part: self.0.ledger.name(), law, at: key.into() })
    }

    /// From money that just came: the same seats, else an offer, else back.
    async fn first_rungs(&self, money: &MoneyRow) -> Result<(), Error> {
        let (hold, _) = self.0.ledger.hold(&money.hold_id).await?;
        let hold = hold.ok_or_else(|| Refusal::NoHold(money.hold_id.clone()))?;
        let order = self.0.ledger.order(&OrderId::of(&money.hold_id)).await?;
        if order.is_some_and(|order| order.payment_ref != money.payment_ref) {
            self.step(money, MoneyState::RefundDue, None, "another payment bought these seats").await?;
            return Ok(());
        }
        if self.same_seats(&hold, money).await? {
            return Ok(());
        }
        if let Some(offer) = self.offer(&hold, money).await? {
            let note = "other seats as good are held: confirm them with the same payment";
            if !self.step(money, MoneyState::Offered, Some(offer.hold_id.clone()), note).await? {
                self.withdraw(&offer).await;
            }
            return Ok(());
        }
        self.step(money, MoneyState::RefundDue, None, "the seats are gone, and there are no others as good").await?;
        Ok(())
    }

    /// Whether late money bought the same seats.
    async fn same_seats(&self, hold: &HoldRow, money: &MoneyRow) -> Result<bool, Error> {
        let known = self.learn(&hold.event_id).await?;
        // The layout may have changed since: what is no more in it cannot be had.
        let all_there = hold.seats.iter().all(|seat| known.price(&seat.id).is_some())
            && hold.areas.iter().all(|area| area.qty <= known.capacity(&area.id))
            && hold.seats.len() + hold.areas.len() <= MOST;
        if !all_there {
            return Ok(false);
        }
        let seats = hold.seats.iter().map(|seat| Priced { id: seat.id.clone(), price: seat.price });
        let areas = hold.areas.iter().map(|area| PricedArea { id: area.id.clone(), qty: area.qty, price: area.price });
        let basket = Basket { seats: seats.collect(), areas: areas.collect() };
        let span = Span { ttl: MOMENT, max_hold: None, wait: Duration::ZERO };
        let taken = self.lease(basket.resources(&known), span, hold.hold_id.as_str()).await?;
        let Taken::Granted(lease) = taken else { return Ok(false) };
        let (hold_id, payment_ref) = (hold.hold_id.clone(), money.payment_ref.clone());
        let command = SellLate { hold_id, payment_ref, token: lease.token };
        let began = self.clock().now();
        let sold = self.0.ledger.sell_late(Call::by("office"), command).await;
        self.let_go(&lease).await;
        match sold {
            Ok(done) => {
                self.0.counts.sold_in(self.clock().now().since(began));
                self.0.counts.late(LateOutcome::SameSeats);
                self.note_sold(&done.value);
                Ok(true)
            }
            // Somebody else climbs, and was quicker: look again where it stands.
            Err(Error::Refused(Refusal::PaymentMismatch)) => Ok(true),
            Err(Error::Refused(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Holds other seats as good for who has paid. Their hold opens with the key of the old one.
    async fn offer(&self, hold: &HoldRow, money: &MoneyRow) -> Result<Option<HoldRow>, Error> {
        let known = self.learn(&hold.event_id).await?;
        let mut free = self.look(&known).await?;
        for _ in 0..OFFERS {
            let Some(seats) = instead(&known, &free, hold) else { return Ok(None) };
            let basket = basket(&known, &seats, &[])?;
            // Prices may have risen since: what its money does not buy is no offer.
            if basket.seats.iter().map(|seat| seat.price).sum::<u64>() > money.amount {
                return Ok(None);
            }
            let who = For {
                buyer: &hold.buyer,
                hold_id: HoldId(name("h_", self.clock().now())?),
                key_hash: hold.key_hash.clone(),
                sealed_key: String::new(),
                payment_ref: Some(money.payment_ref.clone()),
            };
            match self.take_for(&Call::by("office"), &known, &basket, who).await {
                Ok(done) => return Ok(Some(done.value.hold)),
                Err(Error::Refused(Refusal::Conflict { conflicts, .. })) => {
                    if conflicts.iter().any(|lost| lost.reason == Reason::BuyerLimit) {
                        return Ok(None);
                    }
                    for lost in conflicts.iter().filter_map(|lost| known.hall.place(lost.seat.as_deref()?)) {
                        free.set(lost, false);
                    }
                }
                Err(Error::Refused(_)) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Ends an offer that nobody was told of.
    async fn withdraw(&self, offer: &HoldRow) {
        let Some(seat) = offer.seats.first() else { return };
        let (event_id, seat) = (offer.event_id.clone(), seat.id.clone());
        let command = ForceRelease { event_id, seat, reason: "the money found other seats".into() };
        let _ = self.0.ledger.force_release(Call::by("office"), command).await;
        self.let_go_all(&offer.leases).await;
    }

    /// Whether an offer ended without a sale; then the money goes back.
    async fn offer_failed(&self, money: &MoneyRow) -> Result<bool, Error> {
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
        self.step(money, MoneyState::RefundDue, None, note).await?;
        Ok(true)
    }

    /// One step, from where the money was seen. `false`: somebody else took one meanwhile.
    async fn step(&self, money: &MoneyRow, to: MoneyState, offer: Option<HoldId>, note: &str) -> Result<bool, Error> {
        let (payment_ref, from) = (money.payment_ref.clone(), money.state);
        let command = MoneyStep { payment_ref, from, to, offer, note: note.into(), callback: None };
        match self.0.ledger.money_step(Call::by("office"), command).await {
            Ok(_) => {
                self.count_late(to);
                Ok(true)
            }
            Err(Error::Refused(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// What became of money, for buyer and staff.
    pub(super) async fn resolution(&self, money: &MoneyRow) -> Result<Resolution, Error> {
        let offered = match &money.offer {
            Some(offer) => self.0.ledger.hold(offer).await?.0,
            None => None,
        };
        let seats = offered.map(|offer| offer.seats.into_iter().map(|seat| seat.id).collect()).unwrap_or_default();
        Ok(Resolution { state: money.state, offer: money.offer.clone(), seats, steps: told_to_buyer(money) })
    }

    /// Goes on with money that somebody left standing, and with offers that ran out. What one piece of money fails at
    /// does not keep the others waiting: the first error is told when all were looked at.
    pub(super) async fn climb_all(&self) -> Result<(), Error> {
        let open = self.0.ledger.money_in(None, &[MoneyState::Received, MoneyState::Offered]).await?;
        let now = self.0.ledger.now().await?;
        let mut climbed = Ok(());
        // One that cannot go on now does not keep the others waiting.
        for money in open {
            // Whoever received it is probably still at it.
            let fresh = money.state == MoneyState::Received && now.since(money.received_at) < 10_000;
            if !fresh && let Err(error) = self.climb(&money.payment_ref).await {
                climbed = climbed.and(Err(error));
            }
        }
        climbed
    }
}
