//! Money that has no order, or is too much for one: written down, and taken step by step to where it belongs.
//!
//! # Laws
//!
//! 1. Money that a provider told of is in an order, or in a row here: none is lost, whatever it was meant for.
//! 2. What came for an order is what it costs and what goes back; only what a buyer owes after a move is missing.

use super::*;
use crate::model::command::{Confirm, Confirmed, MoneyStep};
use crate::model::order::{MoneyRow, MoneyState, OrderRow, Step};

/// What an order has beyond its price: written down as a part of its payment, and due to go back.
pub(super) fn left_over(order: &mut OrderRow, note: &str, actor: &str, now: Moment) -> Vec<Write> {
    let amount = match u64::try_from(order.owed()) {
        Err(_) | Ok(0) => return Vec::new(),
        Ok(amount) => amount,
    };
    order.refunds += 1;
    order.back += amount;
    let state = MoneyState::RefundDue;
    let money = MoneyRow {
        payment_ref: order.payment_ref.clone(),
        part: order.refunds.to_string(),
        order_id: Some(order.order_id.clone()),
        hold_id: order.hold_id.clone(),
        event_id: order.event_id.clone(),
        buyer: order.buyer.clone(),
        amount,
        more: 0,
        state,
        offer: None,
        received_at: now,
        steps: vec![Step { at: now, state, note: note.into() }],
    };
    money_told(&money, actor, now)
}

/// Money that came in the name of a hold, though its payment is for another. What it really bought nobody knows here,
/// so it neither sells nor goes back by itself: staff sees it, and decides. However often it is told, it is one.
pub(super) fn stray(
    command: &Confirm,
    hold: HoldRow,
    facts: &Facts,
    heard: Write,
    actor: &str,
    now: Moment,
) -> (Vec<Write>, Confirmed) {
    if let Some(money) = facts.stray.clone() {
        return (vec![heard], Confirmed::Late { hold, money });
    }
    let other = facts.payment.as_ref().map(HoldId::as_str).unwrap_or_default();
    let note = format!("it came for this hold, but its payment is for hold {other}");
    let part = hold.hold_id.0.clone();
    let money = MoneyRow { part, ..received(command, &hold, MoneyState::Stuck, &note, now) };
    let mut writes = money_told(&money, actor, now);
    writes.push(heard);
    (writes, Confirmed::Late { hold, money })
}

/// Money of a payment that is written down already. More may have come than was known then: the rest goes back, as a part
/// of its own, since the provider may be giving the first back just now.
pub(super) fn told_more(
    command: &Confirm,
    hold: HoldRow,
    mut money: MoneyRow,
    actor: &str,
    now: Moment,
) -> (Vec<Write>, Confirmed) {
    let mut writes: Vec<Write> = command.callback.clone().map(Write::Callback).into_iter().collect();
    let known = money.amount.saturating_add(money.more);
    // What a buyer says of an amount is not money that came.
    let came = command.amount.filter(|came| command.callback.is_some() && *came > known);
    if let Some(came) = came {
        let (state, amount) = (MoneyState::RefundDue, came - known);
        money.more += amount;
        let note = "more came of this payment than was known";
        let rest = MoneyRow {
            // Another for each: what came only grows.
            part: format!("more-{came}"),
            amount,
            more: 0,
            state,
            offer: None,
            received_at: now,
            steps: vec![Step { at: now, state, note: note.into() }],
            ..money.clone()
        };
        writes.push(Write::Money(Box::new(money.clone())));
        writes.extend(money_told(&rest, actor, now));
    }
    (writes, Confirmed::Late { hold, money })
}

pub(super) fn received(command: &Confirm, hold: &HoldRow, state: MoneyState, note: &str, now: Moment) -> MoneyRow {
    MoneyRow {
        payment_ref: command.payment_ref.clone(),
        part: String::new(),
        order_id: None,
        hold_id: hold.hold_id.clone(),
        event_id: hold.event_id.clone(),
        buyer: hold.buyer.clone(),
        // What came, if we were told: it may be more or less than the hold costs by now.
        amount: command.amount.unwrap_or_else(|| hold.total()),
        more: 0,
        state,
        offer: None,
        received_at: now,
        steps: vec![Step { at: now, state, note: note.into() }],
    }
}

/// The row of the money and what is told of it.
pub(super) fn money_told(money: &MoneyRow, actor: &str, now: Moment) -> Vec<Write> {
    let kind = match money.state {
        MoneyState::Received => Kind::LateMoney,
        MoneyState::Sold => Kind::SoldLate,
        MoneyState::Offered => Kind::Offered,
        MoneyState::RefundDue => Kind::RefundDue,
        MoneyState::Refunded => Kind::Refunded,
        MoneyState::Stuck => Kind::StuckMoney,
        MoneyState::Closed => Kind::MoneyClosed,
    };
    let told = tell(Entry {
        buyer: Some(money.buyer.clone()),
        hold_id: Some(money.hold_id.clone()),
        order_id: money.order_id.clone(),
        payment_ref: Some(money.payment_ref.clone()),
        amount: Some(money.amount),
        reason: money.steps.last().map(|step| step.note.clone()),
        ..entry(&money.event_id, kind, actor, now)
    });
    vec![Write::Money(Box::new(money.clone())), told]
}

fn stepped(money: &MoneyRow, state: MoneyState, offer: Option<HoldId>, note: &str, now: Moment) -> MoneyRow {
    let mut row = money.clone();
    row.state = state;
    row.offer = offer.or(row.offer);
    row.steps.push(Step { at: now, state, note: note.into() });
    row
}

pub(super) fn step(money: &MoneyRow, state: MoneyState, offer: Option<HoldId>, note: &str, now: Moment) -> Write {
    Write::Money(Box::new(stepped(money, state, offer, note, now)))
}

/// What [`money_step`] must know.
#[must_use]
pub fn need_money_step(command: &MoneyStep) -> Need {
    Need { money: Some(command.payment_ref.clone()), callback: command.callback.clone(), ..Need::default() }
}

/// One step on the ladder, from where the caller saw it: two who climb at once take each step once. A message that was
/// acted upon before changes nothing; neither does a step to where it stands, but its message is remembered.
///
/// # Errors
///
/// There is no such money, or it stands elsewhere by now.
pub fn money_step(command: &MoneyStep, facts: &Facts, actor: &str, now: Moment) -> Decision<MoneyRow> {
    let Some(money) = &facts.money else { return Err(Refusal::PaymentMismatch) };
    if facts.callback_seen {
        return Ok((Vec::new(), money.clone()));
    }
    if money.state != command.from {
        return Err(Refusal::PaymentMismatch);
    }
    let heard = command.callback.clone().map(Write::Callback);
    if command.to == command.from {
        return Ok((heard.into_iter().collect(), money.clone()));
    }
    let row = stepped(money, command.to, command.offer.clone(), &command.note, now);
    let mut writes = money_told(&row, actor, now);
    writes.extend(heard);
    Ok((writes, row))
}
