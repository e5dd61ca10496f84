//! Money that waits for us: refunds that are owed, and payments that nobody told us of.
//!
//! Any number of servers may do this at once: a refund has an id of its own, and a payment is settled once.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::{Clock, Time};
use leasehold_boxoffice::model::{Call, EventSettings, MoneyRow};
use leasehold_boxoffice::office::{PaymentMessage, StaffHold};
use leasehold_boxoffice::provider::{Outcome, Progress, ProviderError, Refund, short};

use super::BoxOffice;

#[cfg(test)]
mod tests;

/// How often it is looked for.
const EVERY: Duration = Duration::from_secs(2);
/// A refund that was asked for is asked for again after this, if no callback came.
const AGAIN: Duration = Duration::from_secs(30);
/// A payment that takes longer is asked after.
const STUCK_MS: u64 = 30_000;

/// Works until it is dropped.
pub async fn run(house: Arc<BoxOffice>, clock: Arc<dyn Clock>) {
    let mut asked = HashMap::new();
    loop {
        clock.sleep_until(clock.now().plus(EVERY)).await;
        turn(&house, &clock, &mut asked).await;
    }
}

/// Looks once for what waits, and asks for what was not asked for lately.
async fn turn(house: &BoxOffice, clock: &Arc<dyn Clock>, asked: &mut HashMap<String, Time>) {
    if house.provider().is_none() {
        return;
    }
    asked.retain(|_, at| clock.now().since(*at) < AGAIN);
    if let Ok(due) = house.office().refunds_due().await {
        for money in due {
            if first(asked, money.key(), clock.now()) && !give_back(house, &money).await {
                // Staff may send it again, and shall not wait for that.
                asked.remove(&money.key());
            }
        }
    }
    ask_after(house, clock, asked).await;
}

/// Whether it was not asked for lately. The time of the first asking stays: else it would never be asked for again.
fn first(asked: &mut HashMap<String, Time>, key: String, now: Time) -> bool {
    match asked.entry(key) {
        Entry::Vacant(place) => {
            place.insert(now);
            true
        }
        Entry::Occupied(_) => false,
    }
}

/// Whether it is on its way, or to be asked for again. What the provider refuses for good is for staff to decide.
async fn give_back(house: &BoxOffice, money: &MoneyRow) -> bool {
    let Some(provider) = house.provider() else { return true };
    let refund = Refund {
        refund_id: money.refund_id(),
        payment_ref: money.payment_ref.clone(),
        hold_id: money.hold_id.0.clone(),
        amount: money.amount,
        reason: money.steps.last().map(|step| step.note.clone()).unwrap_or_default(),
    };
    let refused = match provider.refund(refund).await {
        Ok(Progress::Done(Outcome::Refunded)) => {
            let note = "the provider gave it back";
            let _ = house.office().refunded(Call::by("settler"), &money.key(), note).await;
            return true;
        }
        // It will call back.
        Ok(Progress::Done(_) | Progress::Pending) => return true,
        Ok(Progress::Unknown) => "the payment provider does not know of this payment".to_owned(),
        Err(error @ ProviderError::Refused(_)) => error.to_string(),
        Err(error) => {
            tracing::warn!(%error, payment = money.payment_ref, "a refund is owed and could not be made");
            return true;
        }
    };
    tracing::error!(refused, payment = money.payment_ref, "a refund is owed and was refused: staff must decide");
    // If that cannot be written, it is asked for again.
    house.office().refund_refused(Call::by("settler"), &money.key(), &refused).await.is_err()
}

/// Asks the provider about payments whose callback does not come.
async fn ask_after(house: &BoxOffice, clock: &Arc<dyn Clock>, asked: &mut HashMap<String, Time>) {
    let Some(provider) = house.provider() else { return };
    for (hold, payment_ref) in stuck(house).await {
        let key = format!("status {payment_ref}");
        if !first(asked, key, clock.now()) {
            continue;
        }
        let succeeded = match provider.status(payment_ref.clone()).await {
            Ok(Progress::Done(Outcome::Captured)) => true,
            Ok(Progress::Done(Outcome::Declined)) => false,
            _ => continue,
        };
        // Another for each time that it was begun: a card that was declined may be tried again.
        let began = hold.hold.expires_at.0;
        let id = format!("status_{}_{began}_{succeeded}", short(&payment_ref));
        let message =
            PaymentMessage { id, payment_ref, hold_id: hold.hold.hold_id, succeeded, tokens: Vec::new(), amount: None };
        if let Err(error) = house.office().payment(message).await {
            tracing::warn!(%error, "a payment whose callback never came could not be settled");
        }
    }
}

async fn stuck(house: &BoxOffice) -> Vec<(StaffHold, String)> {
    let mut found = Vec::new();
    for event in house.office().events().await.unwrap_or_default() {
        let paying = house.office().paying(&event.event_id).await.unwrap_or_default();
        for hold in paying.into_iter().filter(|hold| waited(hold, &event.settings) >= patience(hold, &event.settings)) {
            let Some(payment) = hold.hold.payment_ref.clone() else { continue };
            // Seats offered for money that came late wait for the buyer's word, not for the provider's.
            let Ok(money) = house.office().ledger().money(&payment).await else { continue };
            if money.is_none_or(|money| money.offer.as_ref() != Some(&hold.hold.hold_id)) {
                found.push((hold, payment));
            }
        }
    }
    found
}

/// How long to wait for a callback before asking: not until it is too late.
fn patience(hold: &StaffHold, settings: &EventSettings) -> u64 {
    STUCK_MS.min(hold.hold.pay_within(settings) / 2)
}

/// How long a payment is under way: the deadline was `pay_ms` away when it began.
pub fn waited(hold: &StaffHold, settings: &EventSettings) -> u64 {
    hold.hold.pay_within(settings).saturating_sub(hold.remaining_ms)
}
