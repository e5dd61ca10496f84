//! A payment is begun, and ended before money came: what the provider is asked, and what the hold becomes.
//!
//! # Laws
//!
//! 1. A buyer names no payment: the provider does, or we do. Only a key names one.
//! 2. The provider's payment is made before the hold says that it is paying. If the hold refuses it, it is cancelled.
//! 3. A payment is given up when the provider says that no money came of it, and not before.

use leasehold_boxoffice::Error;
use leasehold_boxoffice::model::{Access, Call, HoldId, HoldRow, HoldState, Refusal};
use leasehold_boxoffice::office::{HoldView, NewPayment, Office};
use leasehold_boxoffice::provider::{Line, Mode, PaymentProvider, PaymentRequest, ProviderError, SeatToken, Standing};

use super::BoxOffice;

/// How a payment is begun.
pub enum Begin {
    /// Under this name, which a key gave.
    Named(String),
    /// Under a name of the provider's or of ours.
    Drawn {
        /// Where the buyer goes after paying.
        return_url: Option<String>,
    },
}

/// Why a payment was not begun, or not given up.
pub enum NotDone {
    /// The office said no.
    Office(Error),
    /// The provider could not be asked, or refused.
    Provider(ProviderError),
    /// Money came, or is kept: it cannot be given up any more.
    Paid,
}

impl From<Error> for NotDone {
    fn from(error: Error) -> Self {
        Self::Office(error)
    }
}

impl BoxOffice {
    /// Begins a payment.
    ///
    /// # Errors
    ///
    /// Why it was not.
    pub async fn begin_payment(
        &self,
        call: Call,
        hold: &HoldId,
        access: Access,
        begin: Begin,
    ) -> Result<HoldView, NotDone> {
        let return_url = match begin {
            Begin::Named(payment_ref) => return Ok(self.office().pay(call, hold, access, &payment_ref).await?),
            Begin::Drawn { return_url } => return_url,
        };
        if let Some(stored) = self.office().stored_hold(&call, hold, &access).await? {
            return Ok(stored);
        }
        let view = self.office().hold_view(hold, access.clone()).await?;
        match view.hold.state {
            // A second click, or a page that was loaded again.
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
            };
            return Ok(self.office().pay_with(call, hold, access, payment).await?);
        };
        let request = self.request(&view.hold, mode, return_url).await?;
        let total = request.amount;
        let created = provider.create(request).await.map_err(NotDone::Provider)?;
        let (payment_ref, pay_url) = (created.payment_ref, created.pay_url);
        let payment = NewPayment { payment_ref: payment_ref.clone(), pay_url, total: Some(total) };
        match self.office().pay_with(call, hold, access, payment).await {
            Ok(view) => Ok(view),
            Err(error) => {
                // Ours, and for nothing: the hold ended, or was changed meanwhile.
                if matches!(error.refusal(), Some(Refusal::Ended(_) | Refusal::Changed | Refusal::StaleToken)) {
                    let _ = provider.cancel(payment_ref).await;
                }
                Err(error.into())
            }
        }
    }

    async fn request(&self, hold: &HoldRow, mode: Mode, return_url: Option<String>) -> Result<PaymentRequest, Error> {
        let event = self.office().event(&hold.event_id).await?;
        Ok(PaymentRequest {
            payment_id: Office::payment_id(hold),
            hold_id: hold.hold_id.0.clone(),
            amount: hold.total(),
            currency: event.settings.currency.clone(),
            lines: lines(hold),
            tokens: tokens(hold),
            return_url,
            deadline_ms: hold.pay_within(&event.settings),
            mode,
        })
    }

    /// Gives a payment under way up: the hold is active again, if time is left. The provider is asked first, where it can
    /// be: money that came stays for what it came for.
    ///
    /// # Errors
    ///
    /// Why it was not.
    pub async fn cancel_payment(&self, call: Call, hold: &HoldId, access: Access) -> Result<HoldView, NotDone> {
        // A repeat of an earlier call is not about the payment that is under way now.
        if let Some(stored) = self.office().stored_hold(&call, hold, &access).await? {
            return Ok(stored);
        }
        let row = self.office().hold_view(hold, access.clone()).await?.hold;
        let payment_ref = match (row.state, row.payment_ref) {
            (HoldState::Paying, _) if row.offered => return Err(Error::from(Refusal::OfferStands).into()),
            (HoldState::Paying, Some(payment_ref)) => payment_ref,
            // Told twice, it is done once: what is active is what was asked for.
            (HoldState::Active, _) => return Ok(self.office().hold_view(hold, access).await?),
            (state, _) => return Err(Error::from(Refusal::Ended(state)).into()),
        };
        if let Some(provider) = self.provider() {
            self.cancelled(&*provider, &payment_ref).await?;
        }
        Ok(self.office().decline(call, hold, access, &payment_ref).await?)
    }

    /// Whether no money comes of it, by the provider's word.
    async fn cancelled(&self, provider: &dyn PaymentProvider, payment_ref: &str) -> Result<(), NotDone> {
        match provider.cancel(payment_ref.to_owned()).await {
            Ok(Some(status)) => match status.outcome {
                Standing::Authorised | Standing::Captured => Err(NotDone::Paid),
                Standing::Declined | Standing::Cancelled | Standing::Refunded => Ok(()),
                Standing::Pending => {
                    Err(NotDone::Provider(ProviderError::Unavailable("it has not cancelled the payment yet".into())))
                }
            },
            // It was named by a key, and nobody paid yet; or the provider cancels nothing.
            Ok(None) | Err(ProviderError::Refused(_)) => Ok(()),
            Err(error) => Err(NotDone::Provider(error)),
        }
    }
}

/// What a hold has, with its tokens: what a payment is for.
pub fn tokens(hold: &HoldRow) -> Vec<SeatToken> {
    let seats = hold.seats.iter().map(|seat| (&seat.id, seat.token));
    let areas = hold.areas.iter().map(|area| (&area.id, area.token));
    seats.chain(areas).map(|(id, token)| SeatToken { seat: id.clone(), token: token.to_string() }).collect()
}

fn lines(hold: &HoldRow) -> Vec<Line> {
    let seats = hold.seats.iter().map(|seat| Line { id: seat.id.clone(), qty: 1, price: seat.price });
    let areas = hold.areas.iter().map(|area| Line { id: area.id.clone(), qty: area.qty, price: area.price });
    seats.chain(areas).collect()
}
