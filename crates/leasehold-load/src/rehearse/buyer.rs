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
use super::http_client::{HttpClient, RehearsalContext};
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
    pub(super) venue: Arc<RehearsalEvent>,
    pub(super) counter: RehearsalContext,
    pub(super) desk: HttpClient,
    pub(super) dice: SplitMix64,
    pub(super) diary: BuyerLog,
    /// How many requests were made: each has an Idempotency-Key of its own.
    pub(super) asked: u32,
}

impl Buyer {
    /// The buyer of this number.
    pub fn new(
        number: usize,
        plan: &Arc<RehearsalPlan>,
        venue: &Arc<RehearsalEvent>,
        counter: &RehearsalContext,
    ) -> Self {
        Self {
            name: format!("{}-{number}", plan.run),
            plan: plan.clone(),
            venue: venue.clone(),
            counter: counter.clone(),
            desk: HttpClient::new(counter.clone()),
            dice: SplitMix64::new(plan.seed, number as u64),
            diary: BuyerLog::default(),
            asked: 0,
        }
    }

    /// Stands at the door.
    pub async fn connect(&mut self) {
        // Whoever finds nobody there tries again with the first request.
        let _ = self.desk.connect().await;
    }

    /// From arrival to the end.
    pub async fn live(mut self) -> BuyerLog {
        let late = self.plan.over.mul_f64(self.dice.share());
        self.counter.stop.within(late).await;
        if self.counter.stop.is_asked() {
            return self.diary;
        }
        self.counter.tally.change(|tally| tally.arrived += 1);
        match self.seek().await {
            Some(hold) => self.decide(hold).await,
            None => self.counter.tally.change(|tally| tally.went_without += 1),
        }
        self.diary
    }

    /// Thinks for a while. Says whether to go on.
    async fn think(&mut self, mean: Duration) -> bool {
        let span = self.dice.span(mean);
        self.counter.stop.within(span).await;
        !self.counter.stop.is_asked()
    }

    /// Tries until something is held, or it is enough.
    async fn seek(&mut self) -> Option<BuyerHold> {
        let mut wish = self.wish();
        let mut hopeless = 0;
        for _ in 0..self.plan.tries {
            let instead = match self.take(&wish).await {
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
                Some(seats) if self.dice.is(0.5) => Wish::Seats(seats),
                _ => self.wish(),
            };
        }
        None
    }

    /// What the dice say is wanted: neighbours, often in front where everybody wants to sit; or places on the floor.
    pub(super) fn wish(&mut self) -> Wish {
        let most = self.plan.party.min(self.venue.per_buyer).max(1);
        let many = 1 + self.dice.below(most);
        let seats = self.venue.seats.len();
        if !self.venue.areas.is_empty() && (seats == 0 || self.dice.is(0.2)) {
            let area = &self.venue.areas[self.dice.below(self.venue.areas.len())];
            return Wish::Places(area.id.clone(), u32::try_from(many).unwrap_or(1));
        }
        let many = many.min(seats);
        let front = (seats / 10).max(many);
        let room = if self.dice.is(self.plan.hot) { front } else { seats };
        let first = self.dice.below(room - many + 1);
        Wish::Seats(self.venue.seats[first..first + many].to_vec())
    }

    async fn decide(&mut self, mut hold: BuyerHold) {
        if !self.think(self.plan.think).await {
            return self.leave(hold);
        }
        if self.dice.is(0.1) && !self.renew(&mut hold).await {
            return;
        }
        if self.dice.is(self.plan.abandon) {
            if self.dice.is(0.5) {
                self.release(&hold).await;
            } else {
                self.counter.tally.change(|tally| tally.walked_away += 1);
                self.leave(hold);
            }
            return;
        }
        let payment = self.payment();
        let Some(paid) = self.pay(&mut hold).await else { return };
        match payment {
            PaymentBehaviour::Never => {
                self.counter.tally.change(|tally| tally.never_paid += 1);
                self.leave(hold);
            }
            PaymentBehaviour::Decline => self.declined(hold, &paid).await,
            PaymentBehaviour::Late => self.come_late(hold, &paid).await,
            PaymentBehaviour::Approve => {
                if !self.think(self.plan.think / 2).await {
                    return self.leave(hold);
                }
                self.buy(&hold, &paid).await;
            }
        }
    }

    fn payment(&mut self) -> PaymentBehaviour {
        let (decline, late, never) = (self.plan.decline, self.plan.late, self.plan.never);
        let drawn = self.dice.share();
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
    async fn declined(&mut self, mut hold: BuyerHold, paid: &str) {
        self.counter.tally.change(|tally| tally.declined += 1);
        if !self.tell_declined(&mut hold, paid).await {
            return self.leave(hold);
        }
        if self.dice.is(0.5) {
            return self.release(&hold).await;
        }
        if let Some(paid) = self.pay(&mut hold).await {
            self.buy(&hold, &paid).await;
        }
    }

    /// The money comes when the deadline is over.
    async fn come_late(&mut self, hold: BuyerHold, paid: &str) {
        let now = time::stopwatch();
        let until = hold.over_at + Duration::from_millis(200);
        self.counter.stop.within(until.saturating_duration_since(now)).await;
        if self.counter.stop.is_asked() {
            return self.leave(hold);
        }
        self.buy(&hold, paid).await;
    }

    /// Confirms, and takes what is offered instead.
    async fn buy(&mut self, hold: &BuyerHold, paid: &str) {
        if self.plan.provider.is_some() && self.dice.is(0.3) {
            // The provider is quicker than the page: the confirm finds the order made.
            self.tell_captured(hold, paid).await;
        }
        if let ConfirmResult::Offer(other) = self.confirm(hold, &hold.id, paid).await {
            self.confirm(hold, &other, paid).await;
        }
    }

    /// Goes away without a word: the hold is over when its time is.
    pub(super) fn leave(&mut self, hold: BuyerHold) {
        self.diary.spans.extend(hold.spans(hold.live_until));
        self.diary.left.push((hold.id, hold.over_at));
    }
}
