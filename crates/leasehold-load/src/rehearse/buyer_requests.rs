//! What a buyer asks of the server, one step at a time, and what each answer is taken for.
//!
//! # Laws
//!
//! 1. What the server swore to is written down before anything else is done: spans of holds, orders.
//! 2. A hold that is refused as over while it was live for sure is a wrong, and so is an order that is not what was held.

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::json;

use leasehold_boxoffice::provider::{Callback, Outcome, SeatToken};

use super::api_types::{ApiHold, ApiOrder, ApiPiece, ApiProblem};
use super::buyer::{Buyer, Wish};
use super::buyer_log::{BuyerHold, ConfirmedOrder, UnansweredConfirm};
use super::http_client::{HttpRequest, HttpResponse, OutcomeUnknown};
use super::rehearsal_event::escape;
use leasehold_support::time;

/// What a wish came to.
#[derive(Debug)]
pub enum HoldAttempt {
    /// It is held.
    Held(BuyerHold),
    /// Somebody else has it; seats as good, where there are some.
    Lost(Option<Vec<String>>),
    /// There is nothing more to try.
    Over,
}

/// What a confirm came to.
#[derive(Debug, PartialEq, Eq)]
pub enum ConfirmResult {
    /// It is over: sold, refused, or unknown and written down.
    Done,
    /// Other seats are held instead, by this hold.
    Offer(String),
}

/// A body that was promised.
fn read<T: DeserializeOwned>(answer: &HttpResponse) -> Option<T> {
    serde_json::from_slice(&answer.body).ok()
}

impl Buyer {
    fn key(&mut self) -> String {
        self.asked += 1;
        format!("{}-{}", self.name, self.asked)
    }

    /// Something nobody expects.
    fn odd(&self, answer: &HttpResponse) {
        let no: ApiProblem = read(answer).unwrap_or_default();
        self.counter.tally.change(|tally| tally.error(answer.status, &no.code));
    }

    /// Nobody knows what came of it: seats may be held that this buyer does not know of.
    fn dark(&mut self) {
        let until = time::stopwatch() + self.venue.ttl + self.venue.pay + Duration::from_secs(1);
        self.diary.dark_until = self.diary.dark_until.max(Some(until));
        self.counter.tally.change(|tally| tally.unknown += 1);
    }

    /// Asks to hold.
    pub(super) async fn take(&mut self, wish: &Wish) -> HoldAttempt {
        let body = match wish {
            Wish::Seats(seats) => json!({"seats": seats, "buyer": self.name}),
            Wish::Places(area, qty) => json!({"areas": [{"id": area, "qty": qty}], "buyer": self.name}),
        };
        let (idem, body, path) = (self.key(), body.to_string(), self.venue.path("/holds"));
        let ask = HttpRequest { method: "POST", path: &path, idem: Some(&idem), body: &body, ..HttpRequest::default() };
        let Ok(answer) = self.desk.ask(ask).await else {
            self.dark();
            return HoldAttempt::Over;
        };
        match answer.status {
            201 => self.granted(wish, &answer),
            409 => self.lost(&answer),
            _ => {
                self.odd(&answer);
                HoldAttempt::Over
            }
        }
    }

    fn granted(&mut self, wish: &Wish, answer: &HttpResponse) -> HoldAttempt {
        let took = answer.heard.saturating_duration_since(answer.asked);
        self.counter.tally.change(|tally| tally.hold.record(took));
        let Some(held) = read::<ApiHold>(answer) else {
            self.odd(answer);
            return HoldAttempt::Over;
        };
        // A retry may come when the hold that was granted first is over already.
        if !matches!(held.state.as_str(), "active" | "") {
            self.counter.tally.change(|tally| tally.expired += 1);
            return HoldAttempt::Over;
        }
        let hold = BuyerHold::new(held, answer);
        self.check_wish(wish, &hold);
        HoldAttempt::Held(hold)
    }

    fn lost(&self, answer: &HttpResponse) -> HoldAttempt {
        let no: ApiProblem = read(answer).unwrap_or_default();
        let took = answer.heard.saturating_duration_since(answer.asked);
        self.counter.tally.change(|tally| {
            tally.refusal.record(took);
            for lost in &no.conflicts {
                *tally.reasons.entry(lost.reason.clone()).or_default() += 1;
            }
            if no.code != "conflict" {
                tally.error(409, &no.code);
            }
        });
        let hopeless = |reason: &str| matches!(reason, "buyer_limit" | "not_on_sale");
        if no.conflicts.iter().any(|lost| hopeless(&lost.reason)) {
            return HoldAttempt::Over;
        }
        HoldAttempt::Lost(no.alternative.map(|found| found.seats))
    }

    /// All or nothing: what is held is what was asked for.
    fn check_wish(&mut self, wish: &Wish, hold: &BuyerHold) {
        let is = match wish {
            Wish::Seats(seats) => {
                let (mut asked, mut got): (Vec<&String>, Vec<&String>) =
                    (seats.iter().collect(), hold.seats.iter().map(|seat| &seat.id).collect());
                asked.sort_unstable();
                got.sort_unstable();
                asked == got && hold.areas.is_empty()
            }
            Wish::Places(area, qty) => {
                matches!(hold.areas.as_slice(), [one] if one.id == *area && one.qty == *qty) && hold.seats.is_empty()
            }
        };
        if !is {
            self.diary.wrongs.push(format!("hold {} has not exactly what was asked for", hold.id));
        }
    }

    async fn on_hold(
        &mut self,
        hold: &BuyerHold,
        id: &str,
        act: &str,
        idem: &str,
        body: &str,
    ) -> Result<HttpResponse, OutcomeUnknown> {
        let path = format!("/v1/holds/{}/{act}", escape(id));
        let (hold_key, idem) = (Some(hold.key.as_str()), Some(idem));
        self.desk.ask(HttpRequest { method: "POST", path: &path, idem, hold_key, body, ..HttpRequest::default() }).await
    }

    /// A refusal on a hold: over by time, or something else.
    fn refused(&mut self, hold: &BuyerHold, answer: &HttpResponse, act: &str) {
        let no: ApiProblem = read(answer).unwrap_or_default();
        let over = answer.status == 410 || no.code == "stale_token";
        if !over {
            return self.odd(answer);
        }
        self.counter.tally.change(|tally| tally.expired += 1);
        if answer.heard < hold.live_until {
            let early = hold.live_until.saturating_duration_since(answer.heard).as_millis();
            let (id, code) = (&hold.id, &no.code);
            self.diary.wrongs.push(format!("{act} of {id} was refused as {code}, {early} ms before its end"));
        }
    }

    /// Pushes the end. Says whether there is still something to decide on.
    pub(super) async fn renew(&mut self, hold: &mut BuyerHold) -> bool {
        let idem = self.key();
        let Ok(answer) = self.on_hold(hold, &hold.id.clone(), "renew", &idem, "{}").await else {
            self.dark();
            self.leave(hold.clone());
            return false;
        };
        if let (200, Some(held)) = (answer.status, read::<ApiHold>(&answer)) {
            hold.lasts(held.remaining_ms, &answer);
            return true;
        }
        self.refused(hold, &answer, "renew");
        self.leave(hold.clone());
        false
    }

    pub(super) async fn release(&mut self, hold: &BuyerHold) {
        let idem = self.key();
        self.diary.spans.extend(hold.spans(time::stopwatch()));
        match self.on_hold(hold, &hold.id, "release", &idem, "{}").await {
            Err(OutcomeUnknown) => {
                self.dark();
                self.diary.left.push((hold.id.clone(), hold.over_at));
            }
            Ok(answer) if answer.status == 200 => self.counter.tally.change(|tally| {
                tally.released += 1;
                tally.release.record(answer.heard.saturating_duration_since(answer.asked));
            }),
            Ok(answer) => self.refused(hold, &answer, "release"),
        }
    }

    /// Begins to pay. Answers the payment, if it is on its way.
    pub(super) async fn pay(&mut self, hold: &mut BuyerHold) -> Option<String> {
        let idem = self.key();
        let payment = format!("pi_{idem}");
        let body = json!({"payment_ref": payment}).to_string();
        let Ok(answer) = self.on_hold(hold, &hold.id.clone(), "pay", &idem, &body).await else {
            self.dark();
            self.leave(hold.clone());
            return None;
        };
        if let (200, Some(held)) = (answer.status, read::<ApiHold>(&answer)) {
            hold.lasts(held.remaining_ms, &answer);
            return Some(payment);
        }
        self.refused(hold, &answer, "pay");
        self.leave(hold.clone());
        None
    }

    /// Confirms a hold, or the one that was offered instead of it.
    pub(super) async fn confirm(&mut self, hold: &BuyerHold, id: &str, payment: &str) -> ConfirmResult {
        let idem = self.key();
        let body = json!({"payment_ref": payment}).to_string();
        let is_own = id == hold.id;
        if is_own {
            self.diary.spans.extend(hold.spans(time::stopwatch()));
        }
        let Ok(answer) = self.on_hold(hold, id, "confirm", &idem, &body).await else {
            self.dark();
            self.diary.open.push(UnansweredConfirm {
                buyer: self.name.clone(),
                hold_id: id.to_owned(),
                hold_key: hold.key.clone(),
                payment_ref: payment.to_owned(),
                idem,
            });
            return ConfirmResult::Done;
        };
        match (answer.status, read::<ApiOrder>(&answer)) {
            (201, Some(sold)) => self.sold(hold, is_own, sold, &answer),
            (410, _) => return self.too_late(hold, is_own, &answer),
            _ => self.refused(hold, &answer, "confirm"),
        }
        ConfirmResult::Done
    }

    fn sold(&mut self, hold: &BuyerHold, is_own: bool, sold: ApiOrder, answer: &HttpResponse) {
        let took = answer.heard.saturating_duration_since(answer.asked);
        let seats = (sold.seats.len() as u64) + sold.areas.iter().map(|area| u64::from(area.qty)).sum::<u64>();
        self.counter.tally.change(|tally| {
            tally.confirm.record(took);
            tally.sold += 1;
            tally.sold_seats += seats;
            tally.sold_late += u64::from(sold.late && is_own);
            tally.sold_other_seats += u64::from(!is_own);
        });
        // In time, the very pieces that were held are sold, each under its token.
        let same = |a: &[ApiPiece], b: &[ApiPiece]| a.len() == b.len() && a.iter().all(|piece| b.contains(piece));
        if is_own && !sold.late && !(same(&sold.seats, &hold.seats) && same(&sold.areas, &hold.areas)) {
            self.diary.wrongs.push(format!("order {} is not what {} held", sold.order_id, hold.id));
        }
        let ApiOrder { order_id, seats, areas, .. } = sold;
        self.diary.orders.push(ConfirmedOrder { order_id, buyer: self.name.clone(), seats, areas });
    }

    /// The deadline was over: what became of the money?
    fn too_late(&mut self, hold: &BuyerHold, is_own: bool, answer: &HttpResponse) -> ConfirmResult {
        let no: ApiProblem = read(answer).unwrap_or_default();
        match no.resolution {
            Some(found) if found.state == "offered" && is_own => {
                if let Some(offer) = found.offer {
                    self.diary.left.push((offer.clone(), answer.heard + self.venue.pay));
                    return ConfirmResult::Offer(offer);
                }
            }
            Some(found) if matches!(found.state.as_str(), "refund_due" | "refunded") => {
                self.counter.tally.change(|tally| tally.refunded += 1);
            }
            _ => {}
        }
        if is_own {
            self.refused(hold, answer, "confirm");
        }
        ConfirmResult::Done
    }

    /// The provider says that the card was declined. Says whether it could be told, and the hold is the buyer's again.
    pub(super) async fn tell_declined(&mut self, hold: &mut BuyerHold, payment: &str) -> bool {
        let Some(answer) = self.call_back(hold, payment, Outcome::Declined).await else { return false };
        // What is left of the first span is not said here.
        let path = format!("/v1/holds/{}", escape(&hold.id));
        let ask = HttpRequest { method: "GET", path: &path, hold_key: Some(&hold.key), ..HttpRequest::default() };
        let Ok(seen) = self.desk.ask(ask).await else { return false };
        let Some(held) = read::<ApiHold>(&seen).filter(|_| answer.status == 200 && seen.status == 200) else {
            return false;
        };
        self.diary.spans.extend(hold.spans(answer.asked));
        hold.asked = seen.asked;
        hold.heard = seen.heard;
        hold.lasts(held.remaining_ms, &seen);
        held.state == "active"
    }

    /// The provider says that the money is there.
    pub(super) async fn tell_captured(&mut self, hold: &BuyerHold, payment: &str) {
        if let Some(answer) = self.call_back(hold, payment, Outcome::Captured).await
            && answer.status != 200
        {
            self.odd(&answer);
        }
    }

    async fn call_back(&mut self, hold: &BuyerHold, payment: &str, outcome: Outcome) -> Option<HttpResponse> {
        let plan = self.plan.clone();
        let secrets = plan.provider.as_ref()?;
        let piece = |piece: &ApiPiece| SeatToken { seat: piece.id.clone(), token: piece.token.to_string() };
        let told = Callback {
            callback_id: format!("cb_{payment}"),
            payment_ref: payment.to_owned(),
            hold_id: hold.id.clone(),
            outcome,
            amount: hold.total,
            currency: None,
            tokens: hold.seats.iter().chain(&hold.areas).map(piece).collect(),
            at: String::new(),
            refund_id: None,
        };
        let (body, signature) = told.signed(secrets, time::wall_ms()).ok()?;
        let body = String::from_utf8(body).ok()?;
        let ask = HttpRequest {
            method: "POST",
            path: "/v1/payments/callback",
            signature: Some(&signature),
            body: &body,
            ..HttpRequest::default()
        };
        self.desk.ask(ask).await.ok()
    }
}
