//! Authorised payments: captured after the sale, or cancelled.

use super::*;

/// Goal: authorise, sell, capture: nothing is captured before the sale, and what did not sell is cancelled.
#[test]
fn an_authorised_payment_is_captured_after_the_sale_or_cancelled() {
    let mut case = MoneyFixture::open();
    let authorised = |hold: &HoldRow, amount| {
        PaymentProof::Provider(ProviderWord { amount, currency: None, hold_id: hold.hold_id.clone(), authorised: true })
    };
    let capture = |order: &OrderRow| order.capture.clone().map(|capture| (capture.state, capture.amount));
    let hold = case.hold(&["A-1"]);
    case.pay(&hold, "pi_1").unwrap();
    // More was authorised than it costs: no more is captured than the price, so nothing goes back.
    let command = case.confirming(&hold, "pi_1", authorised(&hold, 150));
    let Confirmed::Order { order, .. } = case.decide(&command, decide::need_confirm, decide::confirm).unwrap() else {
        panic!()
    };
    assert_eq!((order.paid, capture(&order)), (Some(100), Some((CaptureState::Due, 100))));
    assert!(case.ledger.money.is_empty());
    let step = |to| CaptureStep { order_id: order.order_id.clone(), to, note: "said".into() };
    let failed = case.decide(&step(CaptureState::Failed), decide::need_capture_step, decide::capture_step).unwrap();
    assert_eq!(capture(&failed), Some((CaptureState::Failed, 100)));
    case.captured(&hold, "pi_1", 100).unwrap();
    assert_eq!(capture(&case.ledger.orders[&order.order_id]), Some((CaptureState::Captured, 100)));
    let late = case.decide(&step(CaptureState::Cancelled), decide::need_capture_step, decide::capture_step);
    assert_eq!(late, Err(Refusal::PaymentMismatch), "what is captured is not cancelled");

    // Short, or too late: cancelled. Captured all the same: it goes back.
    let hold = case.hold(&["A-2"]);
    case.pay(&hold, "pi_2").unwrap();
    let command = case.confirming(&hold, "pi_2", authorised(&hold, 99));
    case.decide(&command, decide::need_confirm, decide::confirm).unwrap();
    assert_eq!(case.ledger.money["pi_2"].state, MoneyState::CancelDue);
    case.captured(&hold, "pi_2", 99).unwrap();
    assert_eq!(case.ledger.money["pi_2"].state, MoneyState::RefundDue);
    let hold = case.hold(&["A-3"]);
    case.pay(&hold, "pi_3").unwrap();
    case.advance_time(300);
    let command = case.confirming(&hold, "pi_3", authorised(&hold, 100));
    case.decide(&command, decide::need_confirm, decide::confirm).unwrap();
    assert_eq!(case.ledger.money["pi_3"].state, MoneyState::CancelDue, "nobody's money moved");

    // Voided before the capture: nothing goes back, since nothing came.
    let hold = case.hold(&["A-4"]);
    let command = case.confirming(&hold, "pi_4", authorised(&hold, 100));
    let Confirmed::Order { order, .. } = case.decide(&command, decide::need_confirm, decide::confirm).unwrap() else {
        panic!()
    };
    let void = Void { order_id: order.order_id.clone(), seats: None, reason: "cancelled show".into() };
    let voided = case.decide(&void, decide::need_void, decide::void).unwrap();
    assert_eq!(capture(&voided.order), Some((CaptureState::Cancelled, 100)));
    assert!(case.ledger.money.values().any(|row| row.payment_ref == "pi_4" && row.state == MoneyState::CancelDue));
    // Captured all the same, however often that is told: staff sees it once.
    for _ in 0..2 {
        case.captured(&hold, "pi_4", 100).unwrap();
    }
    let stuck = case.ledger.money.values().filter(|row| row.payment_ref == "pi_4" && row.state == MoneyState::Stuck);
    assert_eq!(stuck.count(), 1);
    case.check();
}

/// Goal: a payment that was given up is not captured later: what is authorised under its name is cancelled. Money that was
/// captured buys the hold all the same, if it still fits.
#[test]
fn what_was_given_up_is_cancelled() {
    let mut case = MoneyFixture::open();
    let hold = case.hold(&["A-1"]);
    case.pay(&hold, "pi").unwrap();
    let (hold_id, access, payment_ref) = (hold.hold_id.clone(), Access::Staff, "pi".into());
    let command = Decline { hold_id, access, payment_ref, given_up: true, callback: None };
    let back = case.decide(&command, decide::need_decline, decide::decline).unwrap();
    assert_eq!((back.state, &back.given_up[..]), (HoldState::Active, &["pi".to_owned()][..]));
    let word = ProviderWord { amount: 100, currency: None, hold_id: hold.hold_id.clone(), authorised: true };
    let late = case.confirming(&hold, "pi", PaymentProof::Provider(word));
    let told = case.decide(&late, decide::need_confirm, decide::confirm).unwrap();
    let Confirmed::Late { money, hold: row } = told else { panic!("{told:?}") };
    assert_eq!((money.state, row.state), (MoneyState::CancelDue, HoldState::Active));
    // Another payment buys it.
    case.pay(&hold, "pi_2").unwrap();
    assert_eq!(case.order(&hold, "pi_2").payment_ref, "pi_2");
    case.check();
}

/// Goal: what is taken back of an order before its capture is not captured, instead of going back.
#[test]
fn a_void_in_part_before_the_capture_captures_less() {
    let mut case = MoneyFixture::open();
    let hold = case.hold(&["A-1", "A-2"]);
    let word = ProviderWord { amount: 200, currency: None, hold_id: hold.hold_id.clone(), authorised: true };
    let confirm = case.confirming(&hold, "pi", PaymentProof::Provider(word));
    case.decide(&confirm, decide::need_confirm, decide::confirm).unwrap();
    let order_id = OrderId::for_hold(&hold.hold_id);
    let void = |seats: Option<Vec<String>>| Void { order_id: order_id.clone(), seats, reason: "ill".into() };
    let part = case.decide(&void(Some(vec!["A-1".into()])), decide::need_void, decide::void).unwrap().order;
    assert_eq!((part.paid, part.capture.as_ref().unwrap().amount, part.owed()), (Some(100), 100, 0));
    assert!(case.ledger.money.is_empty(), "nothing came, so nothing goes back");
    case.check();
    // More was captured than was asked for by then: the rest goes back.
    case.captured(&hold, "pi", 200).unwrap();
    let order = case.ledger.orders[&order_id].clone();
    assert_eq!((order.paid, order.back, order.capture.unwrap().state), (Some(200), 100, CaptureState::Captured));
    case.check();
}
