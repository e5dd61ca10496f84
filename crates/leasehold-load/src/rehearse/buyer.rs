//! The task of one buyer: arrives, holds seats, thinks, and pays or not.
//!
//! ```text
//!   arrive ──▶ hold ──▶ think ──▶ abandon: release, or leave
//!                │                 └▶ pay ──▶ approve ──▶ confirm
//!                └▶ go without            ├─▶ decline ──▶ another card, or leave
//!                                         ├─▶ late: confirm after the deadline ──▶ other seats, or a refund
//!                                         └─▶ never
//! ```
//!
//! Every choice is drawn from the buyer's random generator, so that a seed gives the same buyers again. The requests
//! and the handling of their responses are in `buyer_requests`.

use std::sync::Arc;
use std::time::Duration;

use super::buyer_log::{BuyerHold, BuyerLog};
use super::buyer_requests::{ConfirmResult, HoldAttempt};
use super::context::RehearsalContext;
use super::http_client::HttpClient;
use super::plan::RehearsalPlan;
use super::random::SplitMix64;
use super::rehearsal_event::RehearsalEvent;
use leasehold_support::time;

/// What a buyer wants to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    Seats(Vec<String>),
    /// This many places of an area.
    Places(String, u32),
}

/// How the buyer's payment goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PaymentBehaviour {
    Approve,
    Decline,
    Late,
    Never,
}

pub struct Buyer {
    pub(super) name: String,
    pub(super) plan: Arc<RehearsalPlan>,
    pub(super) event: Arc<RehearsalEvent>,
    pub(super) context: RehearsalContext,
    pub(super) client: HttpClient,
    pub(super) random: SplitMix64,
    pub(super) log: BuyerLog,
    /// Requests sent so far. Each has an Idempotency-Key of its own.
    pub(super) requests_sent: u32,
}

impl Buyer {
    /// The buyer with this number.
    pub fn new(
        number: usize,
        plan: &Arc<RehearsalPlan>,
        event: &Arc<RehearsalEvent>,
        context: &RehearsalContext,
    ) -> Self {
        Self {
            name: format!("{}-{number}", plan.run),
            plan: plan.clone(),
            event: event.clone(),
            context: context.clone(),
            client: HttpClient::new(context.clone()),
            random: SplitMix64::new(plan.seed, number as u64),
            log: BuyerLog::default(),
            requests_sent: 0,
        }
    }

    /// Connects before the sale starts.
    pub async fn connect(&mut self) {
        // On failure, the first request connects again.
        let _ = self.client.connect().await;
    }

    /// Runs the buyer from arrival to the end. Returns what it was told.
    pub async fn run(mut self) -> BuyerLog {
        let late = self.plan.over.mul_f64(self.random.next_fraction());
        self.context.stop.sleep_or_stop(late).await;
        if self.context.stop.is_requested() {
            return self.log;
        }
        self.context.counters.update(|counters| counters.arrived += 1);
        match self.try_to_hold().await {
            Some(hold) => self.use_hold(hold).await,
            None => self.context.counters.update(|counters| counters.went_without += 1),
        }
        self.log
    }

    /// Sleeps for a random time. Returns false after the stop signal.
    async fn think(&mut self, mean: Duration) -> bool {
        let span = self.random.exponential(mean);
        self.context.stop.sleep_or_stop(span).await;
        !self.context.stop.is_requested()
    }

    /// Requests holds until one is granted, or the tries are used up.
    async fn try_to_hold(&mut self) -> Option<BuyerHold> {
        let mut wish = self.choose_wish();
        let mut hopeless = 0;
        for _ in 0..self.plan.tries {
            let instead = match self.request_hold(&wish).await {
                HoldAttempt::Held(hold) => return Some(hold),
                HoldAttempt::Lost(instead) => instead,
                HoldAttempt::Over => return None,
            };
            // No alternative was offered, twice: the event seems sold out.
            hopeless += u32::from(instead.is_none());
            if hopeless > 1 || !self.think(self.plan.think / 4).await {
                return None;
            }
            wish = match instead {
                Some(seats) if self.random.chance(0.5) => Wish::Seats(seats),
                _ => self.choose_wish(),
            };
        }
        None
    }

    /// Draws a wish: adjacent seats, often in the popular front rows, or places of an area.
    pub(super) fn choose_wish(&mut self) -> Wish {
        let most = self.plan.party.min(self.event.per_buyer).max(1);
        let many = 1 + self.random.below(most);
        let seats = self.event.seats.len();
        if !self.event.areas.is_empty() && (seats == 0 || self.random.chance(0.2)) {
            let area = &self.event.areas[self.random.below(self.event.areas.len())];
            return Wish::Places(area.id.clone(), u32::try_from(many).unwrap_or(1));
        }
        let many = many.min(seats);
        let front = (seats / 10).max(many);
        let room = if self.random.chance(self.plan.hot) { front } else { seats };
        let first = self.random.below(room - many + 1);
        Wish::Seats(self.event.seats[first..first + many].to_vec())
    }

    async fn use_hold(&mut self, mut hold: BuyerHold) {
        if !self.think(self.plan.think).await {
            return self.abandon(hold);
        }
        if self.random.chance(0.1) && !self.renew(&mut hold).await {
            return;
        }
        if self.random.chance(self.plan.abandon) {
            if self.random.chance(0.5) {
                self.release(&hold).await;
            } else {
                self.context.counters.update(|counters| counters.walked_away += 1);
                self.abandon(hold);
            }
            return;
        }
        let payment = self.choose_payment();
        let Some(paid) = self.pay(&mut hold).await else { return };
        match payment {
            PaymentBehaviour::Never => {
                self.context.counters.update(|counters| counters.never_paid += 1);
                self.abandon(hold);
            }
            PaymentBehaviour::Decline => self.handle_declined(hold, &paid).await,
            PaymentBehaviour::Late => self.confirm_late(hold, &paid).await,
            PaymentBehaviour::Approve => {
                if !self.think(self.plan.think / 2).await {
                    return self.abandon(hold);
                }
                self.confirm_or_accept_offer(&hold, &paid).await;
            }
        }
    }

    fn choose_payment(&mut self) -> PaymentBehaviour {
        let (decline, late, never) = (self.plan.decline, self.plan.late, self.plan.never);
        let drawn = self.random.next_fraction();
        if drawn < decline {
            PaymentBehaviour::Decline
        } else if drawn < decline + late {
            PaymentBehaviour::Late
        } else if drawn < decline + late + never {
            PaymentBehaviour::Never
        } else {
            PaymentBehaviour::Approve
        }
    }

    /// The card was declined. If a provider callback can report it, half of the buyers try another card.
    async fn handle_declined(&mut self, mut hold: BuyerHold, paid: &str) {
        self.context.counters.update(|counters| counters.declined += 1);
        if !self.send_declined_callback(&mut hold, paid).await {
            return self.abandon(hold);
        }
        if self.random.chance(0.5) {
            return self.release(&hold).await;
        }
        if let Some(paid) = self.pay(&mut hold).await {
            self.confirm_or_accept_offer(&hold, &paid).await;
        }
    }

    /// Confirms after the deadline of the payment.
    async fn confirm_late(&mut self, hold: BuyerHold, paid: &str) {
        let now = time::stopwatch();
        let until = hold.ended_by + Duration::from_millis(200);
        self.context.stop.sleep_or_stop(until.saturating_duration_since(now)).await;
        if self.context.stop.is_requested() {
            return self.abandon(hold);
        }
        self.confirm_or_accept_offer(&hold, paid).await;
    }

    /// Confirms the hold. If other seats are offered instead, confirms those.
    async fn confirm_or_accept_offer(&mut self, hold: &BuyerHold, paid: &str) {
        if self.plan.provider.is_some() && self.random.chance(0.3) {
            // The provider's callback arrives before the confirm, which then finds the order made.
            self.send_captured_callback(hold, paid).await;
        }
        if let ConfirmResult::Offer(other) = self.confirm(hold, &hold.id, paid).await {
            self.confirm(hold, &other, paid).await;
        }
    }

    /// Leaves without a request: the hold lapses.
    pub(super) fn abandon(&mut self, hold: BuyerHold) {
        self.log.spans.extend(hold.spans(hold.live_until));
        self.log.abandoned_holds.push((hold.id, hold.ended_by));
    }
}
