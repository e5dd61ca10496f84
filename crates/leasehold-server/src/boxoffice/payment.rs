//! Begins and cancels payments: what the provider is asked, and what the hold becomes.
//!
//! # Laws
//!
//! 1. A buyer does not choose the name of a payment: the provider or the server does. Only a key may choose one.
//! 2. The payment is created at the provider before the hold becomes `paying`. If the hold refuses it, the payment is
//!    cancelled.
//! 3. A payment is given up in the ledger before the provider is asked to cancel it. A later authorisation is
//!    cancelled; captured money buys the hold or is refunded.

use leasehold_boxoffice::Error;
use leasehold_boxoffice::model::{Access, HoldId, HoldRow, HoldState, LedgerCall, Refusal};
use leasehold_boxoffice::office::{HoldView, NewPayment, Office, PaymentEnding, PaymentOutcome};
use leasehold_boxoffice::provider::{
    CallbackOutcome, CaptureMode, PaymentLine, PaymentRequest, PaymentState, PaymentStatus, ProviderError, SeatToken,
};

use super::{BoxOffice, settlement};

/// How the payment gets its name.
pub enum PaymentStart {
    /// The name that a key gave.
    Named(String),
    /// A name of the provider's or of ours.
    Drawn {
        /// Where the buyer goes after paying.
        return_url: Option<String>,
    },
}

/// Why a payment was not begun, or not cancelled.
pub enum PaymentError {
    /// The office refused or failed.
    Office(Error),
    /// The provider could not be asked, or refused.
    Provider(ProviderError),
    /// The payment is paid: it cannot be cancelled any more.
    Paid,
}

impl From<Error> for PaymentError {
    fn from(error: Error) -> Self {
        Self::Office(error)
    }
}

impl BoxOffice {
    /// Begins a payment.
    ///
    /// # Errors
    ///
    /// Why it was not begun.
    pub async fn begin_payment(
        &self,
        call: LedgerCall,
        hold: &HoldId,
        access: Access,
        begin: PaymentStart,
    ) -> Result<HoldView, PaymentError> {
        let return_url = match begin {
            PaymentStart::Named(payment_ref) => return Ok(self.office().pay(call, hold, access, &payment_ref).await?),
            PaymentStart::Drawn { return_url } => return_url,
        };
        if let Some(stored) = self.office().stored_hold(&call, hold, &access).await? {
            return Ok(stored);
        }
        let view = self.office().prepare_pay(hold, access.clone()).await?;
        match view.hold.state {
            // A second click, or a reloaded page.
            HoldState::Paying => return Ok(view),
            HoldState::Active => {}
            ended => return Err(Error::from(Refusal::Ended(ended)).into()),
        }
        let provider = self.provider().and_then(|provider| Some((provider.makes_payments()?, provider)));
        let Some((mode, provider)) = provider else {
            let payment = NewPayment {
                payment_ref: Office::payment_id(&view.hold),
                pay_url: None,
                total: Some(view.hold.total()),
                paid_for: Vec::new(),
            };
            return Ok(self.office().pay_with(call, hold, access, payment).await?);
        };
        let request = self.payment_request(&view.hold, mode, return_url).await?;
        let total = request.amount;
        let created = provider.create(request).await.map_err(PaymentError::Provider)?;
        let (payment_ref, pay_url) = (created.payment_ref, created.pay_url);
        let paid_for = tokens_of(&view.hold);
        let payment = NewPayment { payment_ref: payment_ref.clone(), pay_url, total: Some(total), paid_for };
        match self.office().pay_with(call, hold, access, payment).await {
            Ok(view) => Ok(view),
            Err(error) => {
                // The hold ended or changed meanwhile, so the payment is useless. But another call may have begun the
                // same payment, or even sold by it: then it is kept.
                let row = self.office().hold_row(hold).await?;
                let begun = row.is_some_and(|row| row.payment_ref.as_ref() == Some(&payment_ref));
                let refused =
                    matches!(error.refusal(), Some(Refusal::Ended(_) | Refusal::Changed | Refusal::StaleToken));
                if refused && !begun {
                    let _ = provider.cancel(payment_ref).await;
                }
                Err(error.into())
            }
        }
    }

    async fn payment_request(
        &self,
        hold: &HoldRow,
        mode: CaptureMode,
        return_url: Option<String>,
    ) -> Result<PaymentRequest, Error> {
        let event = self.office().event(&hold.event_id).await?;
        Ok(PaymentRequest {
            payment_id: Office::payment_id(hold),
            hold_id: hold.hold_id.0.clone(),
            amount: hold.total(),
            currency: event.settings.currency.clone(),
            lines: payment_lines(hold),
            tokens: seat_tokens(hold),
            return_url,
            deadline_ms: hold.pay_within(&event.settings),
            mode,
        })
    }

    /// Cancels a payment; the hold is active again, if time is left. The ledger first: from then on an authorisation is
    /// cancelled, and money that came buys the hold or is refunded.
    ///
    /// # Errors
    ///
    /// Why it was not cancelled.
    pub async fn cancel_payment(
        &self,
        call: LedgerCall,
        hold: &HoldId,
        access: Access,
    ) -> Result<HoldView, PaymentError> {
        // A retry of an earlier call is not about the current payment.
        if let Some(stored) = self.office().stored_hold(&call, hold, &access).await? {
            return Ok(stored);
        }
        let row = self.office().hold_view(hold, access.clone()).await?.hold;
        let payment_ref = match (row.state, &row.payment_ref) {
            (HoldState::Paying, _) if row.offered => return Err(Error::from(Refusal::OfferStands).into()),
            (HoldState::Paying, Some(payment_ref)) => payment_ref.clone(),
            // A second cancel has no effect: the hold is active already.
            (HoldState::Active, _) => return Ok(self.office().hold_view(hold, access).await?),
            (state, _) => return Err(Error::from(Refusal::Ended(state)).into()),
        };
        let view = self.office().end_payment(call, hold, access, &payment_ref, PaymentEnding::GivenUp).await?;
        let Some(status) = self.ended_at_provider(&payment_ref).await else { return Ok(view) };
        if status.outcome != PaymentState::Captured {
            return Ok(view);
        }
        // It was paid, and the callback may be lost: apply the status of the provider now.
        let message = settlement::status_message(&row, &payment_ref, CallbackOutcome::Captured, status);
        match self.office().payment(message).await? {
            PaymentOutcome::Order(_) => Err(PaymentError::Paid),
            _ => Ok(view),
        }
    }

    /// Asks the provider to cancel a payment. Its status then; none if unknown, and nothing depends on it.
    pub(super) async fn ended_at_provider(&self, payment_ref: &str) -> Option<PaymentStatus> {
        let provider = self.provider()?;
        match provider.cancel(payment_ref.to_owned()).await {
            Ok(status) => status,
            // A provider refuses to cancel a captured payment: ask for its status.
            Err(ProviderError::Refused(_)) => provider.status(payment_ref.to_owned()).await.ok().flatten(),
            Err(error) => {
                tracing::warn!(%error, payment = payment_ref, "a payment is to be cancelled, and the provider could not be asked");
                None
            }
        }
    }
}

fn tokens_of(hold: &HoldRow) -> Vec<(String, u64)> {
    let seats = hold.seats.iter().map(|seat| (seat.id.clone(), seat.token));
    seats.chain(hold.areas.iter().map(|area| (area.id.clone(), area.token))).collect()
}

/// The seats of a hold with their tokens: what a payment is for.
pub fn seat_tokens(hold: &HoldRow) -> Vec<SeatToken> {
    tokens_of(hold).into_iter().map(|(seat, token)| SeatToken { seat, token: token.to_string() }).collect()
}

fn payment_lines(hold: &HoldRow) -> Vec<PaymentLine> {
    let seats = hold.seats.iter().map(|seat| PaymentLine { id: seat.id.clone(), qty: 1, price: seat.price });
    let areas = hold.areas.iter().map(|area| PaymentLine { id: area.id.clone(), qty: area.qty, price: area.price });
    seats.chain(areas).collect()
}
