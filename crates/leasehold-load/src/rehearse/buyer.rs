//! The life of one buyer: comes, looks for seats, thinks, and pays, or not.
//!
//! ```text
//!   arrive ──▶ seek ──▶ think ──▶ abandon: release, or just leave
//!                │                 └▶ pay ──▶ approve ──▶ confirm
//!                └▶ go without            ├─▶ decline ──▶ another card, or leave
//!                                         ├─▶ late: confirm after the deadline ──▶ the ladder
//!                                         └─▶ never
//! ```
//!
//! Every choice is the dice's, so that a seed is a crowd. What is asked and understood is in `buyer_requests`.

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

/// What a buyer wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// These seats.
    Seats(Vec<String>),
    /// So many places of an area.
    Places(String, u32),
}

/// What the buyer's bank does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PaymentBehaviour {
    Approve,
    Decline,
    Late,
    Never,
}

/// One buyer.
pub struct Buyer {
    pub(super) name: String,
    pub(super) plan: Arc<RehearsalPlan>,
    pub(super) event: Arc<RehearsalEvent>,
    pub(super) context: RehearsalContext,
    pub(super) client: HttpClient,
    pub(super) random: SplitMix64,
    pub(super) log: BuyerLog,
    /// How many requests were made: each has an Idempotency-Key of its own.
    pub(super) requests_sent: u32,
}

impl Buyer {
    /// The buyer of this number.
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

    /// Stands at the door.
    pub async fn connect(&mut self) {
        // Whoever finds nobody there tries again with the first request.
        let _ = self.client.connect().await;
    }

    /// From arrival to the end.
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

    /// Thinks for a while. Says whether to go on.
    async fn think(&mut self, mean: Duration) -> bool {
        let span = self.random.exponential(mean);
        self.context.stop.sleep_or_stop(span).await;
        !self.context.stop.is_requested()
    }

    /// Tries until something is held, or it is enough.
    async fn try_to_hold(&mut self) -> Option<BuyerHold> {
        let mut wish = self.choose_wish();
        let mut hopeless = 0;
        for _ in 0..self.plan.tries {
            let instead = match self.request_hold(&wish).await {
                HoldAttempt::Held(hold) => return Some(hold),
                HoldAttempt::Lost(instead) => instead,
                HoldAttempt::Over => return None,
            };
            // Nothing as good was free, twice: it looks sold out.
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

    /// What the dice say is wanted: neighbours, often in front where everybody wants to sit; or places on the floor.
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

    /// The card was declined. Where a provider can say so, half of them try another one.
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

    /// The money comes when the deadline is over.
    async fn confirm_late(&mut self, hold: BuyerHold, paid: &str) {
        let now = time::stopwatch();
        let until = hold.ended_by + Duration::from_millis(200);
        self.context.stop.sleep_or_stop(until.saturating_duration_since(now)).await;
        if self.context.stop.is_requested() {
            return self.abandon(hold);
        }
        self.confirm_or_accept_offer(&hold, paid).await;
    }

    /// Confirms, and takes what is offered instead.
    async fn confirm_or_accept_offer(&mut self, hold: &BuyerHold, paid: &str) {
        if self.plan.provider.is_some() && self.random.chance(0.3) {
            // The provider is quicker than the page: the confirm finds the order made.
            self.send_captured_callback(hold, paid).await;
        }
        if let ConfirmResult::Offer(other) = self.confirm(hold, &hold.id, paid).await {
            self.confirm(hold, &other, paid).await;
        }
    }

    /// Goes away without a word: the hold is over when its time is.
    pub(super) fn abandon(&mut self, hold: BuyerHold) {
        self.log.spans.extend(hold.spans(hold.live_until));
        self.log.abandoned_holds.push((hold.id, hold.ended_by));
    }
}
