//! Paying and selling, in time or late.

use super::money::{UnsoldMoney, order_payment_again, proven_source, source_of};
use super::*;
use crate::model::command::{BeginPay, Confirm, Confirmed, Decline, PaymentProof, SellLate};
use crate::model::ids::OrderId;
use crate::model::order::{
    Capture, CaptureState, MoneyRow, MoneyState, OrderRow, OrderState, PaymentSource, SoldArea, SoldSeat,
};

/// What [`begin_pay`] must know.
#[must_use]
pub fn need_begin_pay(command: &BeginPay) -> Need {
    Need {
        money: Some(command.payment_ref.clone()),
        payment: Some(command.payment_ref.clone()),
        ..need_hold(&command.hold_id)
    }
}

/// One payment is for one hold: only what was offered for its money may be bought with it instead.
fn check_payment_binding(facts: &Facts, hold: &HoldRow) -> Result<(), Refusal> {
    let own = facts.payment.as_ref().is_none_or(|of| *of == hold.hold_id);
    let offered = facts.money.as_ref().is_some_and(|money| money.offer.as_ref() == Some(&hold.hold_id));
    if own || offered { Ok(()) } else { Err(Refusal::PaymentMismatch) }
}

/// Binds a payment to its hold, if it is not bound yet. Never by a buyer's word: the name could be somebody else's.
fn bind_payment(facts: &Facts, payment_ref: &str, hold: &HoldRow) -> Option<LedgerWrite> {
    let (payment_ref, hold_id) = (payment_ref.into(), hold.hold_id.clone());
    facts.payment.is_none().then_some(LedgerWrite::Payment { payment_ref, hold_id })
}

/// Whether the money, if any is written down, waits for just this hold.
fn money_waits_for(facts: &Facts, hold: &HoldRow) -> bool {
    let waits = |money: &MoneyRow| money.state == MoneyState::Offered && money.offer.as_ref() == Some(&hold.hold_id);
    facts.money.as_ref().is_none_or(waits)
}

/// Money is on its way: the hold is the buyer's until the pay deadline. Again with the same payment changes nothing.
///
/// # Errors
///
/// The hold is over, its tokens are not the newest, another payment is on its way, or this one is for another hold.
pub fn begin_pay(command: &BeginPay, facts: &Facts, actor: &str, now: Moment) -> Decision<HoldRow> {
    let hold = require_hold(facts, &command.hold_id, &command.access)?;
    check_live(&hold, now)?;
    if hold.state == HoldState::Paying {
        let same = hold.payment_ref.as_deref() == Some(&command.payment_ref);
        return if same { Ok((Vec::new(), hold)) } else { Err(Refusal::PaymentMismatch) };
    }
    check_payment_binding(facts, &hold)?;
    if !money_waits_for(facts, &hold) {
        return Err(Refusal::PaymentMismatch);
    }
    if command.total.is_some_and(|total| total != hold.total()) || !paid_for(&hold, &command.paid_for) {
        return Err(Refusal::Changed);
    }
    check_leases(&hold, &command.tokens)?;
    check_tokens(&hold, facts)?;
    let event = require_event(facts, &hold.event_id)?;
    let row = HoldRow {
        state: HoldState::Paying,
        active_until: hold.expires_at,
        expires_at: now.plus(hold.pay_within(&event.settings)),
        payment_ref: Some(command.payment_ref.clone()),
        pay_url: command.pay_url.clone(),
        payments: hold.payments.saturating_add(1),
        ..hold
    };
    let entry = entry_write(hold_entry(&row, EntryKind::Paying, SeatState::Paying, actor, now));
    let mut writes = vec![LedgerWrite::UpdateHold(Box::new(row.clone())), entry];
    writes.extend(bind_payment(facts, &command.payment_ref, &row));
    Ok((writes, row))
}

/// What [`decline`] must know.
#[must_use]
pub fn need_decline(command: &Decline) -> Need {
    Need { callback: command.callback.clone(), ..need_hold(&command.hold_id) }
}

/// The payment was declined: back to active if time is left, else the hold has lapsed.
///
/// A message of the provider that is overtaken by events changes nothing and is no error. An offer stands whatever is
/// declined: its money has come, and only a sale, a release or a lapse ends it.
///
/// # Errors
///
/// No payment, or another one, is on its way; or the hold is an offer.
pub fn decline(command: &Decline, facts: &Facts, actor: &str, now: Moment) -> Decision<HoldRow> {
    let hold = require_hold(facts, &command.hold_id, &command.access)?;
    let heard = command.callback.clone().map(LedgerWrite::Callback);
    if facts.callback_seen {
        return Ok((Vec::new(), hold));
    }
    let same = hold.payment_ref.as_deref() == Some(&command.payment_ref);
    let stands = hold.offered;
    if hold.state != HoldState::Paying || !same || stands {
        return match (heard, hold.state) {
            (None, HoldState::Paying) if stands => Err(Refusal::OfferStands),
            (Some(heard), _) => Ok((vec![heard], hold)),
            (None, HoldState::Paying) => Err(Refusal::PaymentMismatch),
            (None, HoldState::Active) => Err(Refusal::NotPaying),
            (None, ended) => Err(Refusal::Ended(ended)),
        };
    }
    let mut hold = hold;
    if command.given_up && !hold.given_up.contains(&command.payment_ref) {
        hold.given_up.push(command.payment_ref.clone());
    }
    let (mut writes, row) = back_to_active(&hold, lapses_of(&hold, now), actor, now);
    writes.extend(heard);
    Ok((writes, row))
}

/// The money of a hold that was paying does not come: back to active if time is left, else it has lapsed.
fn back_to_active(hold: &HoldRow, lapses: Lapses, actor: &str, now: Moment) -> (Vec<LedgerWrite>, HoldRow) {
    if !hold.is_live(now) || now >= hold.active_until {
        return lapse_with(hold, lapses, actor, now);
    }
    let row = HoldRow { state: HoldState::Active, expires_at: hold.active_until, ..hold.clone() };
    let entry = entry_write(hold_entry(&row, EntryKind::Declined, SeatState::Held, actor, now));
    (vec![LedgerWrite::UpdateHold(Box::new(row.clone())), entry], row)
}

/// What [`confirm`] must know.
#[must_use]
pub fn need_confirm(command: &Confirm) -> Need {
    Need {
        order: Some(OrderId::for_hold(&command.hold_id)),
        money: Some(command.payment_ref.clone()),
        payment: Some(command.payment_ref.clone()),
        callback: command.callback.clone(),
        ..need_hold(&command.hold_id)
    }
}

/// The sale: from the buyer's own live hold, with the newest token on every seat, and with money that covers its price.
/// Again with the same payment gives the same order. Money for a hold that was paying and is over is written down, and
/// is settled as late money; late money buys what it was offered, and nothing else. What a provider says of
/// another hold or another currency sells nothing: staff decides.
///
/// # Errors
///
/// The hold is over and was never paid, its tokens are not the newest, another payment is on its way, this payment is
/// for another hold, or nobody who could know says that it is paid.
pub fn confirm(command: &Confirm, facts: &Facts, actor: &str, now: Moment) -> Decision<Confirmed> {
    let hold = require_hold(facts, &command.hold_id, &command.access)?;
    if facts.callback_seen {
        return Ok((Vec::new(), Confirmed::Duplicate));
    }
    let heard = command.callback.clone().map(LedgerWrite::Callback);
    if let Some(why) = foreign_reason(command, &hold, facts) {
        let Some(heard) = heard else { return Err(Refusal::PaymentMismatch) };
        return Ok(stray_payment(command, hold, facts, &why, heard, actor, now));
    }
    if let Some(order) = &facts.order {
        if order.payment_ref == command.payment_ref {
            let (mut writes, order) = order_payment_again(command, order.clone(), actor, now);
            writes.extend(heard);
            return Ok((writes, Confirmed::Order { order, leases: Vec::new() }));
        }
        return refund_payment(command, &hold, facts, TWICE, actor, now);
    }
    if let Some(money) = facts.money.clone().filter(|_| !money_waits_for(facts, &hold)) {
        return Ok(known_payment_again(command, hold, money, actor, now));
    }
    let other = hold.state == HoldState::Paying && hold.payment_ref.as_deref() != Some(&command.payment_ref);
    if hold.is_live(now) && other {
        return refund_payment(command, &hold, facts, TWICE, actor, now);
    }
    let given_up = hold.given_up.contains(&command.payment_ref);
    if given_up && matches!(&command.proof, PaymentProof::Provider(word) if word.authorised) {
        return refund_payment(command, &hold, facts, "the payment had been given up", actor, now);
    }
    if let Some(why) = unfit_reason(command, &hold).filter(|_| hold.is_live(now)) {
        let gone = refund_payment(command, &hold, facts, why, actor, now).map_err(|refusal| match refusal {
            Refusal::PaymentMismatch if !paid_for(&hold, &command.tokens) => Refusal::StaleToken,
            Refusal::PaymentMismatch => Refusal::NotPaid,
            other => other,
        })?;
        return Ok(if facts.money.is_none() { free_hold_of_refund(gone, actor, now) } else { gone });
    }
    if hold.is_live(now) {
        check_tokens(&hold, facts)?;
        let source = paid_by(command, &hold, facts, actor, now)?;
        let authorised =
            matches!(&command.proof, PaymentProof::Provider(word) if word.authorised) && facts.money.is_none();
        let (mut writes, order) = sell_hold(&hold, &command.payment_ref, source, authorised, actor, now);
        if command.proof != PaymentProof::Buyer {
            writes.extend(bind_payment(facts, &command.payment_ref, &hold));
        }
        if let Some(money) = &facts.money {
            writes.push(step_write(money, MoneyState::Sold, None, "the seats that were offered were taken", now));
        }
        writes.extend(heard);
        return Ok((writes, Confirmed::Order { order, leases: hold.leases }));
    }
    late_payment(command, &hold, facts, actor, now)
}

/// The payment that a hold waited for came, and goes back: nothing more comes of it, so the buyer need not wait.
fn free_hold_of_refund(gone: (Vec<LedgerWrite>, Confirmed), actor: &str, now: Moment) -> (Vec<LedgerWrite>, Confirmed) {
    let (mut writes, Confirmed::Late { hold, money }) = gone else { return gone };
    if hold.state != HoldState::Paying {
        return (writes, Confirmed::Late { hold, money });
    }
    // Money came: a lapse does not count against the buyer.
    let (freed, hold) = back_to_active(&hold, Lapses::Keep, actor, now);
    writes.extend(freed);
    (writes, Confirmed::Late { hold, money })
}

pub(super) const TOO_MUCH: &str = "it is more than the order costs";
const TWICE: &str = "another payment bought these seats, or is about to";

/// Why what is said of the payment is about something else: another hold, or another currency.
fn foreign_reason(command: &Confirm, hold: &HoldRow, facts: &Facts) -> Option<String> {
    if check_payment_binding(facts, hold).is_err() {
        let other = facts.payment.as_ref().map(HoldId::as_str).unwrap_or_default();
        return Some(format!("it came for this hold, but its payment is for hold {other}"));
    }
    let PaymentProof::Provider(word) = &command.proof else { return None };
    let offered = facts.money.as_ref().is_some_and(|money| money.hold_id == word.hold_id);
    if word.hold_id != hold.hold_id && !offered {
        return Some(format!("this hold named it, but the provider says that it is for hold {}", word.hold_id));
    }
    let wanted = facts.event.as_ref().map(|event| event.settings.currency.as_str())?;
    let came = word.currency.as_deref()?;
    (!came.eq_ignore_ascii_case(wanted)).then(|| format!("it came in {came}, and the hold costs {wanted}"))
}

/// Who says that the hold is paid: the money that was offered it, else who confirms it. None: it costs nothing.
fn paid_by(
    command: &Confirm,
    hold: &HoldRow,
    facts: &Facts,
    actor: &str,
    now: Moment,
) -> Result<Option<PaymentSource>, Refusal> {
    let source = match &facts.money {
        Some(money) => Some(source_of(money)),
        None => proven_source(command, hold, actor, now),
    };
    let covered = source.as_ref().map_or(0, |source| source.amount) >= hold.total();
    if covered { Ok(source) } else { Err(Refusal::NotPaid) }
}

/// Why money cannot buy what the hold has: it is for other seats, or too little.
fn unfit_reason(command: &Confirm, hold: &HoldRow) -> Option<&'static str> {
    if !paid_for(hold, &command.tokens) {
        return Some("the seats that were paid for are not those of the hold");
    }
    let amount = match &command.proof {
        PaymentProof::Buyer | PaymentProof::Key { amount: None } => return None,
        PaymentProof::Key { amount: Some(amount) } => *amount,
        PaymentProof::Provider(word) => word.amount,
    };
    let short = amount < hold.total();
    short.then_some("it is less than the hold costs")
}

/// Whether this is what was paid for, token by token.
fn paid_for(hold: &HoldRow, tokens: &[(String, u64)]) -> bool {
    let seats = hold.seats.iter().map(|seat| (&seat.id, seat.token));
    let mut has = seats.chain(hold.areas.iter().map(|area| (&area.id, area.token)));
    let count = hold.seats.len() + hold.areas.len();
    tokens.is_empty()
        || (tokens.len() == count && has.all(|(id, token)| tokens.iter().any(|(paid, of)| paid == id && *of == token)))
}

/// The writes of a sale, and the order. Of a payment that is only authorised no more is captured than the price.
fn sell_hold(
    hold: &HoldRow,
    payment_ref: &str,
    source: Option<PaymentSource>,
    authorised: bool,
    actor: &str,
    now: Moment,
) -> (Vec<LedgerWrite>, OrderRow) {
    let mut order = order_from_hold(hold, payment_ref, source, now);
    if authorised {
        order.paid = Some(order.total);
        order.capture = Some(Capture { state: CaptureState::Due, amount: order.total, since: now });
    }
    let back = overpaid_writes(&mut order, TOO_MUCH, actor, now);
    let row =
        HoldRow { state: HoldState::Sold, ended_at: Some(now), payment_ref: Some(payment_ref.into()), ..hold.clone() };
    let mut writes = vec![LedgerWrite::UpdateHold(Box::new(row))];
    if !hold.seats.is_empty() {
        let seats = hold.seats.iter().map(|seat| seat.id.clone()).collect();
        let (event_id, hold_id) = (hold.event_id.clone(), hold.hold_id.clone());
        writes.push(LedgerWrite::FreeSeats { event_id, hold_id, seats });
    }
    for area in &hold.areas {
        writes.push(area_delta(&hold.event_id, &area.id, -i64::from(area.qty), i64::from(area.qty), 0));
    }
    writes.push(buyer_write(&order, -i64::from(hold.count()), i64::from(hold.count())));
    writes.extend(order_writes(&order, EntryKind::Sold, actor, now));
    writes.extend(back);
    (writes, order)
}

fn buyer_write(order: &OrderRow, held: i64, sold: i64) -> LedgerWrite {
    let (event_id, buyer) = (order.event_id.clone(), order.buyer.clone());
    LedgerWrite::Buyer { event_id, buyer, held, sold, lapses: Lapses::Forget }
}

fn order_from_hold(hold: &HoldRow, payment_ref: &str, source: Option<PaymentSource>, now: Moment) -> OrderRow {
    let seat = |seat: &crate::model::HeldSeat| SoldSeat { id: seat.id.clone(), token: seat.token, price: seat.price };
    let area = |area: &crate::model::HeldArea| SoldArea {
        id: area.id.clone(),
        qty: area.qty,
        token: area.token,
        price: area.price,
    };
    OrderRow {
        order_id: OrderId::for_hold(&hold.hold_id),
        hold_id: hold.hold_id.clone(),
        event_id: hold.event_id.clone(),
        buyer: hold.buyer.clone(),
        payment_ref: payment_ref.into(),
        seats: hold.seats.iter().map(seat).collect(),
        areas: hold.areas.iter().map(area).collect(),
        total: hold.total(),
        state: OrderState::Sold,
        late: false,
        sold_at: now,
        paid: Some(source.as_ref().map_or(0, |source| source.amount)),
        back: 0,
        refunds: 0,
        sold_for: Some(hold.total()),
        sources: source.into_iter().collect(),
        capture: None,
        doubted: None,
    }
}

/// The writes of an order, its sold seats and its entry.
fn order_writes(order: &OrderRow, kind: EntryKind, actor: &str, now: Moment) -> Vec<LedgerWrite> {
    let mut writes = vec![LedgerWrite::Order(Box::new(order.clone()))];
    if !order.seats.is_empty() {
        let (event_id, order_id) = (order.event_id.clone(), order.order_id.clone());
        writes.push(LedgerWrite::Sell { event_id, order_id, seats: order.seats.clone() });
    }
    // What was held is sold: the area is as full as before. Late money takes places anew.
    let more = i64::from(kind == EntryKind::SoldLate);
    let sold = |seat: &SoldSeat| SeatChange { id: seat.id.clone(), state: SeatState::Sold, token: Some(seat.token) };
    writes.push(entry_write(Entry {
        buyer: Some(order.buyer.clone()),
        hold_id: Some(order.hold_id.clone()),
        order_id: Some(order.order_id.clone()),
        seats: order.seats.iter().map(sold).collect(),
        areas: order.areas.iter().map(|area| area_free(&area.id, more * i64::from(area.qty))).collect(),
        payment_ref: Some(order.payment_ref.clone()),
        amount: Some(order.total),
        paid: order.paid,
        source: order.sources.first().map(|source| source.by),
        ..new_entry(&order.event_id, kind, actor, now)
    }));
    writes
}

/// Money for a hold that is over.
fn late_payment(command: &Confirm, hold: &HoldRow, facts: &Facts, actor: &str, now: Moment) -> Decision<Confirmed> {
    let heard = command.callback.clone().map(LedgerWrite::Callback);
    if let Some(money) = &facts.money {
        return Ok(known_payment_again(command, hold.clone(), money.clone(), actor, now));
    }
    let was_paying = hold.payment_ref.as_deref() == Some(&command.payment_ref);
    // What a provider says is money that came, whatever was reported before. A key must have begun the payment, and what
    // a buyer says is no money.
    let bare = matches!(command.proof, PaymentProof::Buyer);
    if bare || (!was_paying && heard.is_none()) {
        return Err(Refusal::Ended(hold.state_at(now)));
    }
    // Money came: this lapse does not count against the buyer.
    let lapsed = || lapse_with(hold, Lapses::Keep, actor, now);
    let (mut writes, hold) = if hold.is_due(now) { lapsed() } else { (Vec::new(), hold.clone()) };
    let (unsold, note) = match (hold.state, unfit_reason(command, &hold)) {
        (HoldState::Released, _) => (UnsoldMoney::GoesBack, "the hold had been released"),
        (_, Some(why)) => (UnsoldMoney::GoesBack, why),
        _ => (UnsoldMoney::Late, "the money came after the pay deadline"),
    };
    let money = unsold_money(command, &hold, unsold, note, actor, now);
    writes.extend(bind_payment(facts, &command.payment_ref, &hold));
    writes.extend(money_writes(&money, actor, now));
    writes.extend(heard);
    Ok((writes, Confirmed::Late { hold, money }))
}

/// Money that cannot buy this hold, and never will: it is written down, and is given back.
fn refund_payment(
    command: &Confirm,
    hold: &HoldRow,
    facts: &Facts,
    why: &str,
    actor: &str,
    now: Moment,
) -> Decision<Confirmed> {
    let Some(heard) = command.callback.clone().map(LedgerWrite::Callback) else { return Err(Refusal::PaymentMismatch) };
    if let Some(money) = &facts.money {
        return Ok(known_payment_again(command, hold.clone(), money.clone(), actor, now));
    }
    let money = unsold_money(command, hold, UnsoldMoney::GoesBack, why, actor, now);
    let mut writes = money_writes(&money, actor, now);
    writes.extend(bind_payment(facts, &command.payment_ref, hold));
    writes.push(heard);
    Ok((writes, Confirmed::Late { hold: hold.clone(), money }))
}

/// What [`sell_late`] must know.
#[must_use]
pub fn need_sell_late(command: &SellLate) -> Need {
    Need {
        order: Some(OrderId::for_hold(&command.hold_id)),
        money: Some(command.payment_ref.clone()),
        again: true,
        ..need_hold(&command.hold_id)
    }
}

/// Late money buys the same seats, if they are still free and the buyer may have them, under the token of a fresh lease.
///
/// # Errors
///
/// Something is lost, or the money is no longer waiting for this.
pub fn sell_late(command: &SellLate, facts: &Facts, actor: &str, now: Moment) -> Decision<OrderRow> {
    let hold = require_hold(facts, &command.hold_id, &crate::model::Access::Staff)?;
    if let Some(order) = &facts.order {
        let same = order.payment_ref == command.payment_ref;
        return if same { Ok((Vec::new(), order.clone())) } else { Err(Refusal::PaymentMismatch) };
    }
    let waiting = facts.money.as_ref().filter(|money| money.state == MoneyState::Received);
    let Some(money) = waiting.filter(|money| money.hold_id == hold.hold_id) else {
        return Err(Refusal::PaymentMismatch);
    };
    let event = require_event(facts, &hold.event_id)?;
    let asked = RequestedItems {
        event: &hold.event_id,
        seats: hold.seats.iter().map(|seat| seat.id.as_str()).collect(),
        areas: hold.areas.iter().map(|area| (area.id.as_str(), area.qty)).collect(),
        token: command.token,
        buyer: Some(&hold.buyer),
        except: None,
    };
    if hold.state != HoldState::Lapsed {
        return Err(Refusal::Ended(hold.state_at(now)));
    }
    let room = RoomCheck::check(&asked, facts, actor, now).or_conflict()?;
    if beyond_limit(&event, room.buyer, asked.count()) {
        return Err(asked.all_lost(Reason::BuyerLimit));
    }
    if money.amount < hold.total() {
        return Err(Refusal::NotPaid);
    }
    let mut row = HoldRow { state: HoldState::Sold, ended_at: Some(now), ..hold.clone() };
    row.seats.iter_mut().for_each(|seat| seat.token = command.token);
    row.areas.iter_mut().for_each(|area| area.token = command.token);
    let mut order = OrderRow { late: true, ..order_from_hold(&row, &command.payment_ref, Some(source_of(money)), now) };
    let back = overpaid_writes(&mut order, TOO_MUCH, actor, now);
    let mut writes = room.writes;
    writes.push(LedgerWrite::UpdateHold(Box::new(row.clone())));
    let seats = row.seats.iter().map(|seat| (seat.id.clone(), seat.token)).collect();
    writes.extend(remember_tokens(&row.event_id, &row.hold_id, seats));
    for area in &row.areas {
        writes.push(area_delta(&row.event_id, &area.id, 0, i64::from(area.qty), 0));
    }
    writes.push(buyer_write(&order, 0, i64::from(row.count())));
    writes.extend(order_writes(&order, EntryKind::SoldLate, actor, now));
    writes.extend(back);
    writes.push(step_write(money, MoneyState::Sold, None, "the same seats were still free", now));
    Ok((writes, order))
}
