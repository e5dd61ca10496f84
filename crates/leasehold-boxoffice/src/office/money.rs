//! Money that is not in an order: listed, refunded, or decided by staff.

use super::Office;
use crate::error::Error;
use crate::model::*;

impl Office {
    /// Money that came late, was too much, or is due for what was taken back: in every state.
    ///
    /// # Errors
    ///
    /// The ledger could not be asked.
    pub async fn late_money(&self, event: &EventId) -> Result<Vec<MoneyRow>, Error> {
        use MoneyState::{CancelDue, Cancelled, Closed, Offered, Received, RefundDue, Refunded, Sold, Stuck};
        let all = [Received, Sold, Offered, RefundDue, Refunded, Stuck, Closed, CancelDue, Cancelled];
        self.0.ledger.money_in_states(Some(event), &all).await
    }

    /// Live holds of all events with a payment under way, and the moment they were read.
    ///
    /// # Errors
    ///
    /// The ledger could not be asked.
    pub async fn payments_under_way(&self) -> Result<(Vec<HoldRow>, Moment), Error> {
        self.0.ledger.paying().await
    }

    /// Holds that ended unsold in the last so many milliseconds, whose last payment has no money written down; and the
    /// moment they were read. At most a thousand, the last ones first.
    ///
    /// # Errors
    ///
    /// The ledger could not be asked.
    pub async fn payments_without_word(&self, within_ms: u64) -> Result<(Vec<HoldRow>, Moment), Error> {
        self.0.ledger.payments_without_word(within_ms).await
    }

    /// Authorised payments that bought nothing, of all events: the settler asks the provider to cancel them.
    ///
    /// # Errors
    ///
    /// The ledger could not be asked.
    pub async fn cancels_due(&self) -> Result<Vec<MoneyRow>, Error> {
        self.0.ledger.money_in_states(None, &[MoneyState::CancelDue]).await
    }

    /// The provider says what became of an authorised payment that was to be cancelled: no money moved; or it was
    /// captured meanwhile, and goes back.
    ///
    /// # Errors
    ///
    /// It does not wait for this any more, or the ledger could not be asked.
    pub async fn record_cancel(&self, call: LedgerCall, key: &str, captured: bool) -> Result<MoneyRow, Error> {
        let (to, note) = if captured {
            (MoneyState::RefundDue, "it was captured before it could be cancelled")
        } else {
            (MoneyState::Cancelled, "the provider cancelled it: no money moved")
        };
        let from = MoneyState::CancelDue;
        let command = MoneyStep { payment_ref: key.into(), from, to, offer: None, note: note.into(), callback: None };
        Ok(self.0.ledger.money_step(call, command).await?.value)
    }

    /// Orders whose payment was authorised, and is to be captured now.
    ///
    /// # Errors
    ///
    /// The ledger could not be asked.
    pub async fn captures_due(&self) -> Result<Vec<OrderRow>, Error> {
        let due = |order: &OrderRow| order.capture.as_ref().is_some_and(|capture| capture.state == CaptureState::Due);
        Ok(self.0.ledger.captures_open().await?.into_iter().filter(due).collect())
    }

    /// The provider captured the payment of an order, or refuses to: then staff decides.
    ///
    /// # Errors
    ///
    /// Nothing of it is to be captured, or the ledger could not be asked.
    pub async fn record_capture(
        &self,
        call: LedgerCall,
        order: &OrderId,
        to: CaptureState,
        note: &str,
    ) -> Result<OrderRow, Error> {
        let command = CaptureStep { order_id: order.clone(), to, note: note.into() };
        Ok(self.0.ledger.capture_step(call, command).await?.value)
    }

    /// Money that must go back, of all events: the settler asks the provider to refund it.
    ///
    /// # Errors
    ///
    /// The ledger could not be asked.
    pub async fn refunds_due(&self) -> Result<Vec<MoneyRow>, Error> {
        self.0.ledger.money_in_states(None, &[MoneyState::RefundDue]).await
    }

    /// It went back. By its key: see [`MoneyRow::key`]. What went back already stays so.
    ///
    /// # Errors
    ///
    /// It was not due.
    pub async fn record_refunded(&self, call: LedgerCall, key: &str, note: &str) -> Result<MoneyRow, Error> {
        self.step_to_refunded(call, key, note, None).await
    }

    async fn step_to_refunded(
        &self,
        call: LedgerCall,
        key: &str,
        note: &str,
        callback: Option<&str>,
    ) -> Result<MoneyRow, Error> {
        let step = |from: MoneyState, to: MoneyState| MoneyStep {
            payment_ref: key.into(),
            from,
            to,
            offer: None,
            note: note.into(),
            callback: callback.map(Into::into),
        };
        let to = MoneyState::Refunded;
        match self.0.ledger.money_step(call.clone(), step(MoneyState::RefundDue, to)).await {
            Ok(done) => Ok(done.value),
            Err(error @ Error::Refused(_)) => match self.0.ledger.money(key).await? {
                // The request and the message crossed: both are right. The message id is stored, so that it cannot count for
                // another part.
                Some(row) if matches!(row.state, MoneyState::Refunded | MoneyState::Closed) => match callback {
                    Some(_) => Ok(self.0.ledger.money_step(call, step(row.state, row.state)).await?.value),
                    None => Ok(row),
                },
                // The provider refunded it after all, before staff decided.
                Some(row) if row.state == MoneyState::Stuck => {
                    Ok(self.0.ledger.money_step(call, step(MoneyState::Stuck, to)).await?.value)
                }
                _ => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    /// The provider will not give it back: staff decides.
    ///
    /// # Errors
    ///
    /// It is not due any more, or the ledger could not be asked.
    pub async fn refund_refused(&self, call: LedgerCall, key: &str, why: &str) -> Result<MoneyRow, Error> {
        self.step_to_stuck(call, key, MoneyState::RefundDue, why).await
    }

    /// The provider will not cancel it: staff decides.
    ///
    /// # Errors
    ///
    /// It does not wait for that any more, or the ledger could not be asked.
    pub async fn cancel_refused(&self, call: LedgerCall, key: &str, why: &str) -> Result<MoneyRow, Error> {
        self.step_to_stuck(call, key, MoneyState::CancelDue, why).await
    }

    async fn step_to_stuck(&self, call: LedgerCall, key: &str, from: MoneyState, why: &str) -> Result<MoneyRow, Error> {
        let to = MoneyState::Stuck;
        let command = MoneyStep { payment_ref: key.into(), from, to, offer: None, note: why.into(), callback: None };
        Ok(self.0.ledger.money_step(call, command).await?.value)
    }

    /// The provider says that money went back. A repeated message changes nothing and returns the row.
    ///
    /// # Errors
    ///
    /// Nothing of this payment was to go back, or more than went.
    pub async fn record_refund_message(&self, told: RefundMessage) -> Result<MoneyRow, Error> {
        let RefundMessage { id, payment_ref, refund_id, amount } = told;
        super::sale::check_message_names(&id, &payment_ref)?;
        let rows = self.0.ledger.money_of_payment(&payment_ref).await?;
        let meant = |row: &&MoneyRow| match &refund_id {
            Some(id) => row.refund_id() == *id,
            None => row.amount == amount,
        };
        let due = |row: &&MoneyRow| row.state == MoneyState::RefundDue;
        let mut open = rows.iter().filter(due);
        let only = open.next().filter(|_| open.next().is_none() && refund_id.is_none());
        let over = |row: &&MoneyRow| matches!(row.state, MoneyState::Refunded | MoneyState::Closed);
        // A repeated message is about a refund that is done, rather than about stuck money.
        let found = rows.iter().filter(due).find(meant).or_else(|| rows.iter().filter(over).find(meant));
        let found = found.or_else(|| rows.iter().find(meant)).or(only);
        // A partial refund does not end it: the buyer would lose the rest.
        let row = found.filter(|row| amount >= row.amount).ok_or(Refusal::PaymentMismatch)?;
        self.step_to_refunded(LedgerCall::by("provider"), &row.key(), "the provider gave it back", Some(&id)).await
    }

    /// Staff decides about money, by the id of its refund: it shall go back, or it is settled by hand.
    ///
    /// # Errors
    ///
    /// There is none of this event, or it does not wait for anybody.
    pub async fn settle(
        &self,
        call: LedgerCall,
        event: &EventId,
        refund_id: &str,
        to: MoneyDecision,
        reason: &str,
    ) -> Result<MoneyRow, Error> {
        let note = super::staff::check_reason(reason)?;
        let unknown = || Refusal::NoSeat(format!("payment {refund_id}"));
        let key = MoneyRow::key_of_refund(refund_id).ok_or_else(unknown)?;
        let row = self.0.ledger.money(&key).await?.filter(|row| row.event_id == *event).ok_or_else(unknown)?;
        // Money of an order that stands: refunded from here, the order would keep its seats for nothing.
        if to == MoneyDecision::GoesBack && (row.part.starts_with("less-") || row.part == "captured") {
            let sentence = "this is money of an order: void the order to give it back, or close this";
            return Err(Error::Invalid(sentence.into()));
        }
        let to = match to {
            MoneyDecision::GoesBack => MoneyState::RefundDue,
            MoneyDecision::ByHand => MoneyState::Closed,
        };
        let from = match row.state {
            MoneyState::RefundDue if to == MoneyState::Closed => MoneyState::RefundDue,
            // It must be stuck for this: otherwise the ledger refuses, or replays the stored answer.
            _ => MoneyState::Stuck,
        };
        let command = MoneyStep { payment_ref: key, from, to, offer: None, note, callback: None };
        Ok(self.0.ledger.money_step(call, command).await?.value)
    }
}

/// What a provider says of money that went back, already proven to be its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefundMessage {
    /// Its id: a repeated message is handled once.
    pub id: String,
    /// The payment.
    pub payment_ref: String,
    /// Under which id it was asked to give it back, if it says so.
    pub refund_id: Option<String>,
    /// How much, in minor units.
    pub amount: u64,
}

/// What staff decides about money.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoneyDecision {
    /// The provider shall give it back.
    GoesBack,
    /// It is settled by hand.
    ByHand,
}
