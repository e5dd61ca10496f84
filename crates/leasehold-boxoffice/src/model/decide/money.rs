//! Money that has no order, or is too much for one: stored, and settled step by step.
//!
//! # Laws
//!
//! 1. Money that a provider reports is in an order or in a money row: none is lost, whatever it was meant for.
//! 2. What came for an order equals its price and what goes back. The exception: what a buyer owes after a move.
//! 3. Every amount has a source: a provider or a key confirmed it. It is never derived from a price.
//! 4. A report of less money than was recorded is neither applied nor ignored: staff decides.

use super::sale::TOO_MUCH;
use super::*;
use crate::model::command::{CaptureStep, Confirm, Confirmed, MoneyStep, PaymentProof};
use crate::model::order::{
    Capture, CaptureState, MoneyRow, MoneyState, OrderRow, OrderState, PaymentSource, PaymentWitness, RecordedStep,
};

/// Who says that the hold is paid, and how much. None: nobody who could know.
pub(super) fn proven_source(command: &Confirm, hold: &HoldRow, actor: &str, now: Moment) -> Option<PaymentSource> {
    let source = |by, amount, of: &HoldId| PaymentSource {
        by,
        actor: actor.into(),
        payment_ref: command.payment_ref.clone(),
        hold_id: of.clone(),
        amount,
        at: now,
    };
    match &command.proof {
        PaymentProof::Buyer => None,
        PaymentProof::Key { amount } => {
            Some(source(PaymentWitness::Key, amount.unwrap_or_else(|| hold.total()), &hold.hold_id))
        }
        PaymentProof::Provider(word) => Some(source(PaymentWitness::Provider, word.amount, &word.hold_id)),
    }
}

/// Who said that this money came.
pub(super) fn source_of(money: &MoneyRow) -> PaymentSource {
    // A row of a version that did not record it: only providers and keys could make one.
    money.source.clone().unwrap_or_else(|| PaymentSource {
        by: PaymentWitness::Provider,
        actor: "provider".into(),
        payment_ref: money.payment_ref.clone(),
        hold_id: money.hold_id.clone(),
        amount: money.amount,
        at: money.received_at,
    })
}

/// What an order has beyond its price: written down as a part of its payment, and due to go back. What was never captured
/// does not go back: it is cancelled.
pub(super) fn overpaid_writes(order: &mut OrderRow, note: &str, actor: &str, now: Moment) -> Vec<LedgerWrite> {
    let amount = match u64::try_from(order.owed()) {
        Err(_) | Ok(0) => return Vec::new(),
        Ok(amount) => amount,
    };
    let open = |capture: &&mut Capture| matches!(capture.state, CaptureState::Due | CaptureState::Failed);
    let voided = order.state == OrderState::Voided;
    let mut cancels = false;
    if let Some(capture) = order.capture.as_mut().filter(open) {
        if !voided {
            // What was not captured yet need not go back: less is captured.
            capture.amount = capture.amount.saturating_sub(amount);
            order.paid = order.paid.map(|paid| paid.saturating_sub(amount));
            return Vec::new();
        }
        *capture = Capture { state: CaptureState::Cancelled, since: now, ..capture.clone() };
        cancels = true;
    }
    order.refunds += 1;
    order.back = order.back.saturating_add(amount);
    let state = if cancels { MoneyState::CancelDue } else { MoneyState::RefundDue };
    let part = order.refunds.to_string();
    let row = money_of_order(order, &part, amount, state, note, now);
    let money = MoneyRow { order_id: Some(order.order_id.clone()), ..row };
    money_writes(&money, actor, now)
}

/// Money that came in the name of a hold, though it is for another, or in another currency. What it really bought nobody
/// knows here, so it neither sells nor goes back by itself: staff sees it, and decides. It is written down once, however
/// often it is told.
pub(super) fn stray_payment(
    command: &Confirm,
    hold: HoldRow,
    facts: &Facts,
    why: &str,
    heard: LedgerWrite,
    actor: &str,
    now: Moment,
) -> (Vec<LedgerWrite>, Confirmed) {
    if let Some(money) = facts.stray.clone() {
        return (vec![heard], Confirmed::Late { hold, money });
    }
    let part = hold.hold_id.0.clone();
    let money = MoneyRow { part, ..unsold_money(command, &hold, UnsoldMoney::Stuck, why, actor, now) };
    let mut writes = money_writes(&money, actor, now);
    writes.push(heard);
    (writes, Confirmed::Late { hold, money })
}

/// A repeated message about the payment of an order. More may have come than was known: what is too much goes back. Less may have
/// come: staff decides. A payment that was only authorised may be captured now.
pub(super) fn order_payment_again(
    command: &Confirm,
    order: OrderRow,
    actor: &str,
    now: Moment,
) -> (Vec<LedgerWrite>, OrderRow) {
    let mut order = order;
    let word = match &command.proof {
        PaymentProof::Provider(word) if !word.authorised => word,
        _ => return (Vec::new(), order),
    };
    let before = order.capture.as_ref().map(|capture| capture.state);
    let captured = before.is_some_and(|state| state != CaptureState::Captured);
    if let Some(capture) = order.capture.as_mut().filter(|_| captured) {
        *capture = Capture { state: CaptureState::Captured, since: now, ..capture.clone() };
    }
    let known = order.paid.unwrap_or(word.amount);
    let mut after = Vec::new();
    if before == Some(CaptureState::Cancelled) {
        // It was voided, and the provider was asked to cancel: whether that gives it back, staff must see.
        let note = "it was captured after its order was voided: see whether the cancellation gave it back";
        let stuck = money_of_order(&order, "captured", word.amount, MoneyState::Stuck, note, now);
        after.extend(money_writes(&stuck, actor, now));
    }
    if word.amount > known {
        order.paid = Some(word.amount);
        let (payment_ref, hold_id) = (command.payment_ref.clone(), word.hold_id.clone());
        let (by, actor) = (PaymentWitness::Provider, actor.to_owned());
        order.sources.push(PaymentSource { by, actor, payment_ref, hold_id, amount: word.amount, at: now });
    } else if word.amount < known && order.doubted.is_none_or(|least| word.amount < least) {
        order.doubted = Some(word.amount);
        let note = format!("the provider says that {} came of this payment, and the order counts {known}", word.amount);
        let part = format!("less-{}", word.amount);
        let stuck = money_of_order(&order, &part, word.amount, MoneyState::Stuck, &note, now);
        after.extend(money_writes(&stuck, actor, now));
    } else if !captured {
        return (Vec::new(), order);
    }
    if captured {
        after.push(entry_write(capture_entry(
            &order,
            EntryKind::Captured,
            "the provider captured the payment",
            actor,
            now,
        )));
    }
    let back = overpaid_writes(&mut order, TOO_MUCH, actor, now);
    let mut writes = vec![LedgerWrite::Order(Box::new(order.clone()))];
    writes.extend(back);
    writes.extend(after);
    (writes, order)
}

/// A new money row for a part of the payment of an order.
fn money_of_order(order: &OrderRow, part: &str, amount: u64, state: MoneyState, note: &str, now: Moment) -> MoneyRow {
    MoneyRow {
        payment_ref: order.payment_ref.clone(),
        part: part.into(),
        order_id: None,
        hold_id: order.hold_id.clone(),
        event_id: order.event_id.clone(),
        buyer: order.buyer.clone(),
        amount,
        more: 0,
        state,
        offer: None,
        received_at: now,
        steps: vec![RecordedStep { at: now, state, note: note.into() }],
        source: None,
    }
}

/// Money of a payment that is written down already. More may have come than was known then: the rest goes back, as a part
/// of its own, since the provider may be giving the first back just now. Less may have come: staff decides, before more
/// goes back than came.
pub(super) fn known_payment_again(
    command: &Confirm,
    hold: HoldRow,
    mut money: MoneyRow,
    actor: &str,
    now: Moment,
) -> (Vec<LedgerWrite>, Confirmed) {
    let mut writes: Vec<LedgerWrite> = command.callback.clone().map(LedgerWrite::Callback).into_iter().collect();
    // What a buyer or a key says once more is not money that came.
    let word = match &command.proof {
        PaymentProof::Provider(word) if command.callback.is_some() && !word.authorised => word,
        _ => return (writes, Confirmed::Late { hold, money }),
    };
    let known = money.amount.saturating_add(money.more);
    let state = MoneyState::RefundDue;
    if matches!(money.state, MoneyState::CancelDue | MoneyState::Cancelled) {
        // It was to be cancelled, and was captured all the same.
        money = MoneyRow { amount: word.amount, ..with_step(&money, state, None, "it was captured after all", now) };
        writes.extend(money_writes(&money, actor, now));
    } else if word.amount > known {
        let amount = word.amount - known;
        money.more = money.more.saturating_add(amount);
        let note = "more came of this payment than was known";
        let rest = MoneyRow {
            // Another for each: what came only grows.
            part: format!("more-{}", word.amount),
            amount,
            more: 0,
            state,
            offer: None,
            received_at: now,
            steps: vec![RecordedStep { at: now, state, note: note.into() }],
            ..money.clone()
        };
        writes.push(LedgerWrite::Money(Box::new(money.clone())));
        writes.extend(money_writes(&rest, actor, now));
    } else if word.amount < known
        && matches!(money.state, MoneyState::Received | MoneyState::Offered | MoneyState::RefundDue)
    {
        let note = format!("the provider says that {} came of this payment, and {known} were recorded", word.amount);
        money = with_step(&money, MoneyState::Stuck, None, &note, now);
        writes.extend(money_writes(&money, actor, now));
    }
    (writes, Confirmed::Late { hold, money })
}

/// What becomes of money that sells nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum UnsoldMoney {
    /// It came late: it buys the same seats, else others are offered, else it is refunded.
    Late,
    /// It goes back.
    GoesBack,
    /// Staff decides.
    Stuck,
}

/// The row of money that sold nothing. What is only authorised is cancelled: nobody's money moved.
pub(super) fn unsold_money(
    command: &Confirm,
    hold: &HoldRow,
    unsold: UnsoldMoney,
    note: &str,
    actor: &str,
    now: Moment,
) -> MoneyRow {
    let authorised = matches!(&command.proof, PaymentProof::Provider(word) if word.authorised);
    let state = match unsold {
        UnsoldMoney::Stuck => MoneyState::Stuck,
        _ if authorised => MoneyState::CancelDue,
        UnsoldMoney::Late => MoneyState::Received,
        UnsoldMoney::GoesBack => MoneyState::RefundDue,
    };
    let source = proven_source(command, hold, actor, now);
    MoneyRow {
        payment_ref: command.payment_ref.clone(),
        part: String::new(),
        order_id: None,
        hold_id: hold.hold_id.clone(),
        event_id: hold.event_id.clone(),
        buyer: hold.buyer.clone(),
        // What was said: it may be more or less than the hold costs by now.
        amount: source.as_ref().map_or(0, |source| source.amount),
        more: 0,
        state,
        offer: None,
        received_at: now,
        steps: vec![RecordedStep { at: now, state, note: note.into() }],
        source,
    }
}

fn capture_entry(order: &OrderRow, kind: EntryKind, note: &str, actor: &str, now: Moment) -> Entry {
    Entry {
        buyer: Some(order.buyer.clone()),
        hold_id: Some(order.hold_id.clone()),
        order_id: Some(order.order_id.clone()),
        payment_ref: Some(order.payment_ref.clone()),
        amount: order.capture.as_ref().map(|capture| capture.amount),
        reason: Some(note.into()),
        ..new_entry(&order.event_id, kind, actor, now)
    }
}

/// What [`capture_step`] must know.
#[must_use]
pub fn need_capture_step(command: &CaptureStep) -> Need {
    Need { order: Some(command.order_id.clone()), ..Need::default() }
}

/// The provider captured an authorised payment, or refuses to. A step to the present state changes nothing.
///
/// # Errors
///
/// There is no such order, or nothing of it is to be captured.
pub fn capture_step(command: &CaptureStep, facts: &Facts, actor: &str, now: Moment) -> Decision<OrderRow> {
    let order = facts.order.clone().ok_or_else(|| Refusal::NoOrder(command.order_id.clone()))?;
    let Some(capture) = order.capture.clone() else { return Err(Refusal::PaymentMismatch) };
    if capture.state == command.to {
        return Ok((Vec::new(), order));
    }
    if !matches!(capture.state, CaptureState::Due | CaptureState::Failed) {
        return Err(Refusal::PaymentMismatch);
    }
    let order = OrderRow { capture: Some(Capture { state: command.to, since: now, ..capture }), ..order };
    let failed = command.to == CaptureState::Failed;
    let kind = if failed { EntryKind::CaptureFailed } else { EntryKind::Captured };
    let entry = entry_write(capture_entry(&order, kind, &command.note, actor, now));
    Ok((vec![LedgerWrite::Order(Box::new(order.clone())), entry], order))
}

/// The writes of a money row and its entry.
pub(super) fn money_writes(money: &MoneyRow, actor: &str, now: Moment) -> Vec<LedgerWrite> {
    let kind = match money.state {
        MoneyState::Received => EntryKind::LateMoney,
        MoneyState::Sold => EntryKind::SoldLate,
        MoneyState::Offered => EntryKind::Offered,
        MoneyState::RefundDue => EntryKind::RefundDue,
        MoneyState::Refunded => EntryKind::Refunded,
        MoneyState::Stuck => EntryKind::StuckMoney,
        MoneyState::Closed => EntryKind::MoneyClosed,
        MoneyState::CancelDue => EntryKind::CancelDue,
        MoneyState::Cancelled => EntryKind::Cancelled,
    };
    let entry = entry_write(Entry {
        buyer: Some(money.buyer.clone()),
        hold_id: Some(money.hold_id.clone()),
        order_id: money.order_id.clone(),
        payment_ref: Some(money.payment_ref.clone()),
        amount: Some(money.amount),
        reason: money.steps.last().map(|step| step.note.clone()),
        ..new_entry(&money.event_id, kind, actor, now)
    });
    vec![LedgerWrite::Money(Box::new(money.clone())), entry]
}

fn with_step(money: &MoneyRow, state: MoneyState, offer: Option<HoldId>, note: &str, now: Moment) -> MoneyRow {
    let mut row = money.clone();
    row.state = state;
    row.offer = offer.or(row.offer);
    row.steps.push(RecordedStep { at: now, state, note: note.into() });
    row
}

pub(super) fn step_write(
    money: &MoneyRow,
    state: MoneyState,
    offer: Option<HoldId>,
    note: &str,
    now: Moment,
) -> LedgerWrite {
    LedgerWrite::Money(Box::new(with_step(money, state, offer, note, now)))
}

/// What [`money_step`] must know.
#[must_use]
pub fn need_money_step(command: &MoneyStep) -> Need {
    Need { money: Some(command.payment_ref.clone()), callback: command.callback.clone(), ..Need::default() }
}

/// One step of money from the state that the caller saw: two offices at once take each step once. A message that was
/// handled before changes nothing. Neither does a step to the present state, but its message id is stored.
///
/// # Errors
///
/// There is no such money, or it is in another state by now.
pub fn money_step(command: &MoneyStep, facts: &Facts, actor: &str, now: Moment) -> Decision<MoneyRow> {
    let Some(money) = &facts.money else { return Err(Refusal::PaymentMismatch) };
    if facts.callback_seen {
        return Ok((Vec::new(), money.clone()));
    }
    if money.state != command.from {
        return Err(Refusal::PaymentMismatch);
    }
    let heard = command.callback.clone().map(LedgerWrite::Callback);
    if command.to == command.from {
        return Ok((heard.into_iter().collect(), money.clone()));
    }
    let row = with_step(money, command.to, command.offer.clone(), &command.note, now);
    let mut writes = money_writes(&row, actor, now);
    writes.extend(heard);
    Ok((writes, row))
}
