//! The requests of a buyer, and how each response is handled.
//!
//! # Laws
//!
//! 1. What the server confirmed is logged first: spans of holds, and orders.
//! 2. A hold refused as ended while it was certainly live is a violation. So is an order that differs from its hold.

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::json;

use leasehold_boxoffice::provider::{Callback, CallbackOutcome, SeatToken};

use super::api_types::{ApiHold, ApiOrder, ApiPiece, ApiProblem};
use super::buyer::{Buyer, Wish};
use super::buyer_log::{BuyerHold, ConfirmedOrder, UnansweredConfirm};
use super::http_client::{HttpRequest, HttpResponse, OutcomeUnknown, escape_path};
use leasehold_support::time;

/// Result of a hold request.
#[derive(Debug)]
pub enum HoldAttempt {
    Held(BuyerHold),
    /// Another buyer has the seats. Alternative seats, if the server offers some.
    Lost(Option<Vec<String>>),
    /// No further try makes sense.
    Over,
}

/// Result of a confirm.
#[derive(Debug, PartialEq, Eq)]
pub enum ConfirmResult {
    /// Sold, refused, or logged as unanswered.
    Done,
    /// Other seats are held instead, by the hold with this id.
    Offer(String),
}

/// Parses the JSON body of a response.
fn parse_body<T: DeserializeOwned>(response: &HttpResponse) -> Option<T> {
    serde_json::from_slice(&response.body).ok()
}

impl Buyer {
    fn next_idempotency_key(&mut self) -> String {
        self.requests_sent += 1;
        format!("{}-{}", self.name, self.requests_sent)
    }

    /// Counts a response that was not expected.
    fn count_unexpected(&self, response: &HttpResponse) {
        let problem: ApiProblem = parse_body(response).unwrap_or_default();
        self.context.counters.update(|counters| counters.count_error(response.status, &problem.code));
    }

    /// The result of a request is unknown: seats may be held that this buyer does not know of.
    fn mark_unknown(&mut self) {
        let until = time::stopwatch() + self.event.ttl + self.event.pay + Duration::from_secs(1);
        self.log.unknown_until = self.log.unknown_until.max(Some(until));
        self.context.counters.update(|counters| counters.unknown += 1);
    }

    /// Sends a hold request.
    pub(super) async fn request_hold(&mut self, wish: &Wish) -> HoldAttempt {
        let body = match wish {
            Wish::Seats(seats) => json!({"seats": seats, "buyer": self.name}),
            Wish::Places(area, qty) => json!({"areas": [{"id": area, "qty": qty}], "buyer": self.name}),
        };
        let (idempotency_key, body, path) = (self.next_idempotency_key(), body.to_string(), self.event.path("/holds"));
        let request = HttpRequest { idempotency_key: Some(&idempotency_key), ..HttpRequest::post(&path, &body) };
        let Ok(response) = self.client.send(request).await else {
            self.mark_unknown();
            return HoldAttempt::Over;
        };
        match response.status {
            201 => self.handle_granted(wish, &response),
            409 => self.handle_conflict(&response),
            _ => {
                self.count_unexpected(&response);
                HoldAttempt::Over
            }
        }
    }

    fn handle_granted(&mut self, wish: &Wish, response: &HttpResponse) -> HoldAttempt {
        let took = response.received_at.saturating_duration_since(response.sent_at);
        self.context.counters.update(|counters| counters.hold.record(took));
        let Some(held) = parse_body::<ApiHold>(response) else {
            self.count_unexpected(response);
            return HoldAttempt::Over;
        };
        // After a retry, the hold that was granted first may already have ended.
        if !matches!(held.state.as_str(), "active" | "") {
            self.context.counters.update(|counters| counters.expired += 1);
            return HoldAttempt::Over;
        }
        let hold = BuyerHold::new(held, response);
        self.check_wish(wish, &hold);
        HoldAttempt::Held(hold)
    }

    fn handle_conflict(&self, response: &HttpResponse) -> HoldAttempt {
        let problem: ApiProblem = parse_body(response).unwrap_or_default();
        let took = response.received_at.saturating_duration_since(response.sent_at);
        self.context.counters.update(|counters| {
            counters.refusal.record(took);
            for lost in &problem.conflicts {
                *counters.reasons.entry(lost.reason.clone()).or_default() += 1;
            }
            if problem.code != "conflict" {
                counters.count_error(409, &problem.code);
            }
        });
        let hopeless = |reason: &str| matches!(reason, "buyer_limit" | "not_on_sale");
        if problem.conflicts.iter().any(|lost| hopeless(&lost.reason)) {
            return HoldAttempt::Over;
        }
        HoldAttempt::Lost(problem.alternative.map(|found| found.seats))
    }

    /// All or nothing: the hold must be exactly what was requested.
    fn check_wish(&mut self, wish: &Wish, hold: &BuyerHold) {
        let is = match wish {
            Wish::Seats(seats) => {
                let (mut wanted, mut got): (Vec<&String>, Vec<&String>) =
                    (seats.iter().collect(), hold.seats.iter().map(|seat| &seat.id).collect());
                wanted.sort_unstable();
                got.sort_unstable();
                wanted == got && hold.areas.is_empty()
            }
            Wish::Places(area, qty) => {
                matches!(hold.areas.as_slice(), [one] if one.id == *area && one.qty == *qty) && hold.seats.is_empty()
            }
        };
        if !is {
            self.log.violations.push(format!("hold {} has not exactly what was asked for", hold.id));
        }
    }

    async fn post_to_hold(
        &mut self,
        hold: &BuyerHold,
        id: &str,
        act: &str,
        idempotency_key: &str,
        body: &str,
    ) -> Result<HttpResponse, OutcomeUnknown> {
        let path = format!("/v1/holds/{}/{act}", escape_path(id));
        let (hold_key, idempotency_key) = (Some(hold.key.as_str()), Some(idempotency_key));
        self.client.send(HttpRequest { idempotency_key, hold_key, ..HttpRequest::post(&path, body) }).await
    }

    /// A request on a hold was refused: the hold has ended, or the response is unexpected.
    fn handle_refused(&mut self, hold: &BuyerHold, response: &HttpResponse, act: &str) {
        let problem: ApiProblem = parse_body(response).unwrap_or_default();
        let over = response.status == 410 || problem.code == "stale_token";
        if !over {
            return self.count_unexpected(response);
        }
        self.context.counters.update(|counters| counters.expired += 1);
        if response.received_at < hold.live_until {
            let early = hold.live_until.saturating_duration_since(response.received_at).as_millis();
            let (id, code) = (&hold.id, &problem.code);
            self.log.violations.push(format!("{act} of {id} was refused as {code}, {early} ms before its end"));
        }
    }

    /// Renews the hold. Returns false if the buyer has nothing left to decide.
    pub(super) async fn renew(&mut self, hold: &mut BuyerHold) -> bool {
        let idempotency_key = self.next_idempotency_key();
        let Ok(response) = self.post_to_hold(hold, &hold.id.clone(), "renew", &idempotency_key, "{}").await else {
            self.mark_unknown();
            self.abandon(hold.clone());
            return false;
        };
        if let (200, Some(held)) = (response.status, parse_body::<ApiHold>(&response)) {
            hold.set_remaining(held.remaining_ms, &response);
            return true;
        }
        self.handle_refused(hold, &response, "renew");
        self.abandon(hold.clone());
        false
    }

    pub(super) async fn release(&mut self, hold: &BuyerHold) {
        let idempotency_key = self.next_idempotency_key();
        self.log.spans.extend(hold.spans(time::stopwatch()));
        match self.post_to_hold(hold, &hold.id, "release", &idempotency_key, "{}").await {
            Err(OutcomeUnknown) => {
                self.mark_unknown();
                self.log.abandoned_holds.push((hold.id.clone(), hold.ended_by));
            }
            Ok(response) if response.status == 200 => self.context.counters.update(|counters| {
                counters.released += 1;
                counters.release.record(response.received_at.saturating_duration_since(response.sent_at));
            }),
            Ok(response) => self.handle_refused(hold, &response, "release"),
        }
    }

    /// Starts paying. Returns the payment reference if the server accepted it.
    pub(super) async fn pay(&mut self, hold: &mut BuyerHold) -> Option<String> {
        let idempotency_key = self.next_idempotency_key();
        let payment = format!("pi_{idempotency_key}");
        let body = json!({"payment_ref": payment}).to_string();
        let Ok(response) = self.post_to_hold(hold, &hold.id.clone(), "pay", &idempotency_key, &body).await else {
            self.mark_unknown();
            self.abandon(hold.clone());
            return None;
        };
        if let (200, Some(held)) = (response.status, parse_body::<ApiHold>(&response)) {
            hold.set_remaining(held.remaining_ms, &response);
            return Some(payment);
        }
        self.handle_refused(hold, &response, "pay");
        self.abandon(hold.clone());
        None
    }

    /// Confirms a hold, or the hold that was offered instead of it.
    pub(super) async fn confirm(&mut self, hold: &BuyerHold, id: &str, payment: &str) -> ConfirmResult {
        let idempotency_key = self.next_idempotency_key();
        let body = json!({"payment_ref": payment}).to_string();
        let is_own = id == hold.id;
        if is_own {
            self.log.spans.extend(hold.spans(time::stopwatch()));
        }
        let Ok(response) = self.post_to_hold(hold, id, "confirm", &idempotency_key, &body).await else {
            self.mark_unknown();
            self.log.unanswered.push(UnansweredConfirm {
                buyer: self.name.clone(),
                hold_id: id.to_owned(),
                hold_key: hold.key.clone(),
                payment_ref: payment.to_owned(),
                idempotency_key,
            });
            return ConfirmResult::Done;
        };
        match (response.status, parse_body::<ApiOrder>(&response)) {
            (201, Some(sold)) => self.handle_sold(hold, is_own, sold, &response),
            (410, _) => return self.handle_too_late(hold, is_own, &response),
            _ => self.handle_refused(hold, &response, "confirm"),
        }
        ConfirmResult::Done
    }

    fn handle_sold(&mut self, hold: &BuyerHold, is_own: bool, sold: ApiOrder, response: &HttpResponse) {
        let took = response.received_at.saturating_duration_since(response.sent_at);
        let seats = (sold.seats.len() as u64) + sold.areas.iter().map(|area| u64::from(area.qty)).sum::<u64>();
        self.context.counters.update(|counters| {
            counters.confirm.record(took);
            counters.sold += 1;
            counters.sold_seats += seats;
            counters.sold_late += u64::from(sold.late && is_own);
            counters.sold_other_seats += u64::from(!is_own);
        });
        // Confirmed in time: exactly the held pieces are sold, each under its token.
        let same = |a: &[ApiPiece], b: &[ApiPiece]| a.len() == b.len() && a.iter().all(|piece| b.contains(piece));
        if is_own && !sold.late && !(same(&sold.seats, &hold.seats) && same(&sold.areas, &hold.areas)) {
            self.log.violations.push(format!("order {} is not what {} held", sold.order_id, hold.id));
        }
        let ApiOrder { order_id, seats, areas, .. } = sold;
        self.log.orders.push(ConfirmedOrder { order_id, buyer: self.name.clone(), seats, areas });
    }

    /// The confirm came after the deadline: handles the refund or the offered seats.
    fn handle_too_late(&mut self, hold: &BuyerHold, is_own: bool, response: &HttpResponse) -> ConfirmResult {
        let problem: ApiProblem = parse_body(response).unwrap_or_default();
        match problem.resolution {
            Some(found) if found.state == "offered" && is_own => {
                if let Some(offer) = found.offer {
                    self.log.abandoned_holds.push((offer.clone(), response.received_at + self.event.pay));
                    return ConfirmResult::Offer(offer);
                }
            }
            Some(found) if matches!(found.state.as_str(), "refund_due" | "refunded") => {
                self.context.counters.update(|counters| counters.refunded += 1);
            }
            _ => {}
        }
        if is_own {
            self.handle_refused(hold, response, "confirm");
        }
        ConfirmResult::Done
    }

    /// Sends the provider's callback for a declined card. Returns whether it was accepted and the hold is active again.
    pub(super) async fn send_declined_callback(&mut self, hold: &mut BuyerHold, payment: &str) -> bool {
        let Some(response) = self.send_callback(hold, payment, CallbackOutcome::Declined).await else { return false };
        // The response to the callback does not state the remaining time.
        let path = format!("/v1/holds/{}", escape_path(&hold.id));
        let request = HttpRequest { method: "GET", path: &path, hold_key: Some(&hold.key), ..HttpRequest::default() };
        let Ok(seen) = self.client.send(request).await else { return false };
        let Some(held) = parse_body::<ApiHold>(&seen).filter(|_| response.status == 200 && seen.status == 200) else {
            return false;
        };
        self.log.spans.extend(hold.spans(response.sent_at));
        hold.sent_at = seen.sent_at;
        hold.received_at = seen.received_at;
        hold.set_remaining(held.remaining_ms, &seen);
        held.state == "active"
    }

    /// Sends the provider's callback for captured money.
    pub(super) async fn send_captured_callback(&mut self, hold: &BuyerHold, payment: &str) {
        if let Some(response) = self.send_callback(hold, payment, CallbackOutcome::Captured).await
            && response.status != 200
        {
            self.count_unexpected(&response);
        }
    }

    async fn send_callback(
        &mut self,
        hold: &BuyerHold,
        payment: &str,
        outcome: CallbackOutcome,
    ) -> Option<HttpResponse> {
        let plan = self.plan.clone();
        let secrets = plan.provider.as_ref()?;
        let piece = |piece: &ApiPiece| SeatToken { seat: piece.id.clone(), token: piece.token.to_string() };
        let callback = Callback {
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
        let (body, signature) = callback.signed(secrets, time::wall_ms()).ok()?;
        let body = String::from_utf8(body).ok()?;
        let request = HttpRequest { signature: Some(&signature), ..HttpRequest::post("/v1/payments/callback", &body) };
        self.client.send(request).await.ok()
    }
}
