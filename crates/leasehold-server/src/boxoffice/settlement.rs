//! The settlement loop: captures, cancellations and refunds that are due, and payments whose callback did not come,
//! even after the end of their holds.
//!
//! Any number of servers may run it at once: every request has an id, and a payment is settled once.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::{Clock, Time};
use leasehold_boxoffice::model::{CaptureState, EventSettings, HoldId, HoldRow, LedgerCall, MoneyRow, OrderRow};
use leasehold_boxoffice::office::{OfficeTask, PaymentMessage, StaffHold};
use leasehold_boxoffice::provider::{
    CallbackOutcome, PaymentProvider, PaymentState, PaymentStatus, ProviderError, Refund, RefundProgress, short_id,
};

use super::BoxOffice;

#[cfg(test)]
mod tests;

/// The interval of the loop.
const SETTLEMENT_EVERY: Duration = Duration::from_secs(2);
/// A request is repeated after this, if no callback came.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(30);
/// A payment that takes longer is looked up at the provider.
const STUCK_PAYMENT_MS: u64 = 30_000;
/// For this long after the end of a hold its payment is looked up, if no callback came.
const ASK_AFTER_ENDED_HOLD_MS: u64 = 900_000;
/// Ended holds in one round: captures and refunds wait meanwhile.
const MAX_ENDED_HOLDS_PER_ROUND: usize = 100;
/// This long after the end of a hold a payment that we created is cancelled, if it was not paid.
const CANCEL_ENDED_HOLD_AFTER_MS: u64 = 60_000;

/// Runs until dropped.
pub async fn run(boxoffice: Arc<BoxOffice>, clock: Arc<dyn Clock>) {
    let mut asked = HashMap::new();
    loop {
        clock.sleep_until(clock.now().plus(SETTLEMENT_EVERY)).await;
        if run_once(&boxoffice, &clock, &mut asked).await.is_ok() {
            boxoffice.office().record_task_round(OfficeTask::Settler);
        }
    }
}

/// One round: requests everything that is due and was not requested lately.
async fn run_once(
    boxoffice: &BoxOffice,
    clock: &Arc<dyn Clock>,
    asked: &mut HashMap<String, Time>,
) -> Result<(), leasehold_boxoffice::Error> {
    let Some(provider) = boxoffice.provider() else { return Ok(()) };
    let now = clock.now();
    asked.retain(|_, again| *again > now);
    let captures = boxoffice.office().captures_due().await?;
    for order in &captures {
        if mark_asked(asked, format!("capture {}", order.order_id), now) {
            capture_order(boxoffice, &*provider, order).await;
        }
    }
    for money in boxoffice.office().cancels_due().await? {
        if mark_asked(asked, format!("cancel {}", money.key()), now) {
            cancel_authorisation(boxoffice, &*provider, &money).await;
        }
    }
    // A payment is captured before it can be refunded.
    let uncaptured = |money: &MoneyRow| captures.iter().any(|order| Some(&order.order_id) == money.order_id.as_ref());
    for money in boxoffice.office().refunds_due().await? {
        if uncaptured(&money) {
            continue;
        }
        if mark_asked(asked, money.key(), now) && !refund_money(boxoffice, &money).await {
            // Staff may retry it, and shall not wait.
            asked.remove(&money.key());
        }
    }
    for (hold, payment_ref) in overdue_payments(boxoffice).await? {
        if mark_asked(asked, format!("status {payment_ref}"), now) {
            ask_after(boxoffice, &*provider, &hold, &payment_ref).await;
        }
    }
    // As often as a single payment is looked up: there may be many.
    if mark_asked(asked, "unheard".to_owned(), now) {
        ask_after_ended_holds(boxoffice, &*provider, asked, now).await?;
    }
    Ok(())
}

/// Looks up payments of holds that ended without a callback: money may have come at the last moment. A payment that we
/// created and nobody paid is cancelled.
async fn ask_after_ended_holds(
    boxoffice: &BoxOffice,
    provider: &dyn PaymentProvider,
    asked: &mut HashMap<String, Time>,
    now: Time,
) -> Result<(), leasehold_boxoffice::Error> {
    let (holds, moment) = boxoffice.office().payments_without_word(ASK_AFTER_ENDED_HOLD_MS).await?;
    let mut left = MAX_ENDED_HOLDS_PER_ROUND;
    for hold in holds {
        let Some(payment_ref) = hold.payment_ref.clone() else { continue };
        let over = moment.since(hold.ended_at.unwrap_or(hold.expires_at));
        // The pause grows with the time since the end: an abandoned payment is looked up a few times in all.
        let pause = ASK_AGAIN_AFTER.max(Duration::from_millis(over));
        let Entry::Vacant(place) = asked.entry(format!("status {payment_ref}")) else { continue };
        if left == 0 {
            break;
        }
        left -= 1;
        let place = place.insert(now.plus(pause));
        let ours = provider.makes_payments().is_some() && over >= CANCEL_ENDED_HOLD_AFTER_MS;
        let is_over = if ours {
            match boxoffice.ended_at_provider(&payment_ref).await {
                Some(status) => apply_status(boxoffice, &hold, &payment_ref, status).await,
                None => false,
            }
        } else {
            ask_after(boxoffice, provider, &hold, &payment_ref).await
        };
        if is_over {
            *place = now.plus(Duration::from_millis(ASK_AFTER_ENDED_HOLD_MS));
        }
    }
    Ok(())
}

/// Whether it was not requested lately. The time of the first request stays, or it would never be repeated.
fn mark_asked(asked: &mut HashMap<String, Time>, key: String, now: Time) -> bool {
    match asked.entry(key) {
        Entry::Vacant(place) => {
            place.insert(now.plus(ASK_AGAIN_AFTER));
            true
        }
        Entry::Occupied(_) => false,
    }
}

/// Requests a refund. Whether it is under way or to be repeated; a final refusal is for staff to decide.
async fn refund_money(boxoffice: &BoxOffice, money: &MoneyRow) -> bool {
    let Some(provider) = boxoffice.provider() else { return true };
    let refund = Refund {
        refund_id: money.refund_id(),
        payment_ref: money.payment_ref.clone(),
        hold_id: money.hold_id.0.clone(),
        amount: money.amount,
        reason: money.steps.last().map(|step| step.note.clone()).unwrap_or_default(),
    };
    let refused = match provider.refund(refund).await {
        Ok(RefundProgress::Done(CallbackOutcome::Refunded)) => {
            let note = "the provider gave it back";
            let _ = boxoffice.office().record_refunded(LedgerCall::by("settler"), &money.key(), note).await;
            return true;
        }
        // The provider will call back.
        Ok(RefundProgress::Done(_) | RefundProgress::Pending) => return true,
        Ok(RefundProgress::Unknown) => "the payment provider does not know of this payment".to_owned(),
        Err(error @ ProviderError::Refused(_)) => error.to_string(),
        Err(error) => {
            tracing::warn!(%error, payment = money.payment_ref, "a refund is owed and could not be made");
            return true;
        }
    };
    tracing::error!(refused, payment = money.payment_ref, "a refund is owed and was refused: staff must decide");
    // If the ledger cannot record it, the refund is requested again.
    boxoffice.office().refund_refused(LedgerCall::by("settler"), &money.key(), &refused).await.is_err()
}

/// Captures an authorised payment that has bought an order. A refusal is for staff.
async fn capture_order(boxoffice: &BoxOffice, provider: &dyn PaymentProvider, order: &OrderRow) {
    let Some(capture) = &order.capture else { return };
    let (to, note) = match provider.capture(order.payment_ref.clone(), capture.amount).await {
        // Applied like a callback: an amount over the price is refunded.
        Ok(Some(status)) if status.outcome == PaymentState::Captured => {
            let message = PaymentMessage {
                id: format!("captured_{}", short_id(&order.payment_ref)),
                payment_ref: order.payment_ref.clone(),
                hold_id: order.hold_id.clone(),
                outcome: CallbackOutcome::Captured,
                tokens: Vec::new(),
                amount: status.amount,
                currency: Some(status.currency),
                paid_for: HoldId(status.hold_id),
            };
            if let Err(error) = boxoffice.office().payment(message).await {
                tracing::warn!(%error, payment = order.payment_ref, "a capture could not be written down");
            }
            return;
        }
        Ok(Some(status)) if status.outcome == PaymentState::Pending || status.outcome == PaymentState::Authorised => {
            return;
        }
        Ok(Some(PaymentStatus { outcome, amount, .. })) => {
            (CaptureState::Failed, format!("the payment provider says {outcome:?}, of {amount}"))
        }
        Ok(None) => (CaptureState::Failed, "the payment provider does not know of this payment".to_owned()),
        Err(error @ ProviderError::Refused(_)) => (CaptureState::Failed, error.to_string()),
        Err(error) => {
            tracing::warn!(%error, payment = order.payment_ref, "a payment is to be captured and could not be");
            return;
        }
    };
    if to == CaptureState::Failed {
        tracing::error!(note, payment = order.payment_ref, "an order was sold and its payment is not captured");
    }
    let _ = boxoffice.office().record_capture(LedgerCall::by("settler"), &order.order_id, to, &note).await;
}

/// Cancels an authorised payment that bought nothing. If it was captured, it is refunded.
async fn cancel_authorisation(boxoffice: &BoxOffice, provider: &dyn PaymentProvider, money: &MoneyRow) {
    let captured = match provider.cancel(money.payment_ref.clone()).await {
        Ok(None) => false,
        Ok(Some(status)) => match status.outcome {
            PaymentState::Cancelled | PaymentState::Declined | PaymentState::Refunded => false,
            PaymentState::Captured => true,
            PaymentState::Pending | PaymentState::Authorised => return,
        },
        Err(error @ ProviderError::Refused(_)) => {
            let why = error.to_string();
            tracing::error!(why, payment = money.payment_ref, "a payment is not cancelled: staff must decide");
            let _ = boxoffice.office().cancel_refused(LedgerCall::by("settler"), &money.key(), &why).await;
            return;
        }
        Err(error) => {
            tracing::warn!(%error, payment = money.payment_ref, "a payment is to be cancelled and could not be");
            return;
        }
    };
    let _ = boxoffice.office().record_cancel(LedgerCall::by("settler"), &money.key(), captured).await;
}

/// Looks up a payment whose callback does not come. Whether its state is final.
async fn ask_after(boxoffice: &BoxOffice, provider: &dyn PaymentProvider, hold: &HoldRow, payment_ref: &str) -> bool {
    match provider.status(payment_ref.to_owned()).await {
        Ok(Some(status)) => apply_status(boxoffice, hold, payment_ref, status).await,
        Ok(None) => false,
        Err(error) => {
            tracing::warn!(%error, payment = payment_ref, "a payment was asked after, and its status cannot be used");
            false
        }
    }
}

/// Applies a status of the provider. Whether the state of the payment is final.
async fn apply_status(boxoffice: &BoxOffice, hold: &HoldRow, payment_ref: &str, status: PaymentStatus) -> bool {
    let outcome = match status.outcome {
        PaymentState::Authorised => CallbackOutcome::Authorised,
        PaymentState::Captured => CallbackOutcome::Captured,
        PaymentState::Declined => CallbackOutcome::Declined,
        PaymentState::Cancelled => CallbackOutcome::Cancelled,
        PaymentState::Pending => return false,
        PaymentState::Refunded => return true,
    };
    let settled = boxoffice.office().payment(status_message(hold, payment_ref, outcome, status)).await;
    if let Err(error) = &settled {
        tracing::warn!(%error, "a payment whose callback never came could not be settled");
    }
    // A declined card may be tried again on the provider's page.
    settled.is_ok() && outcome != CallbackOutcome::Declined
}

/// A status of the provider as a message like a callback.
pub fn status_message(
    hold: &HoldRow,
    payment_ref: &str,
    outcome: CallbackOutcome,
    status: PaymentStatus,
) -> PaymentMessage {
    // One id for each time that the payment was begun: a declined card may be tried again.
    let began = hold.expires_at.0;
    PaymentMessage {
        id: format!("status_{}_{began}_{outcome:?}", short_id(payment_ref)).to_lowercase(),
        payment_ref: payment_ref.into(),
        hold_id: hold.hold_id.clone(),
        outcome,
        // A status does not name the paid seats: hold and amount are compared.
        tokens: Vec::new(),
        amount: status.amount,
        currency: Some(status.currency),
        paid_for: HoldId(status.hold_id),
    }
}

/// Holds whose payment takes long.
async fn overdue_payments(boxoffice: &BoxOffice) -> Result<Vec<(HoldRow, String)>, leasehold_boxoffice::Error> {
    let mut found = Vec::new();
    let (paying, now) = boxoffice.office().payments_under_way().await?;
    for hold in paying {
        let pay_ms = hold.pay_ms.unwrap_or(STUCK_PAYMENT_MS * 2);
        let payment_waited_ms = pay_ms.saturating_sub(hold.expires_at.since(now));
        let Some(payment) = hold.payment_ref.clone().filter(|_| payment_waited_ms >= STUCK_PAYMENT_MS.min(pay_ms / 2))
        else {
            continue;
        };
        // Seats offered for late money wait for the buyer, not for the provider.
        if !hold.offered {
            found.push((hold, payment));
        }
    }
    Ok(found)
}

/// How long a payment has been under way: the deadline was `pay_ms` away when it began.
pub fn payment_waited_ms(hold: &StaffHold, settings: &EventSettings) -> u64 {
    hold.hold.pay_within(settings).saturating_sub(hold.remaining_ms)
}
