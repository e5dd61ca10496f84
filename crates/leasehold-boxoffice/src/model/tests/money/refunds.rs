//! Money that is refunded, in whole or in part.

use super::*;

/// Goal: whoever says less than was recorded is heard: staff sees it, once, and the order stands.
#[test]
fn less_than_was_recorded_is_stuck() {
    let mut case = MoneyFixture::open();
    let hold = case.hold(&["A-1"]);
    case.pay(&hold, "pi").unwrap();
    let order = case.order(&hold, "pi");
    for came in [1, 1, 100] {
        case.captured(&hold, "pi", came).unwrap();
    }
    let order = case.ledger.orders[&order.order_id].clone();
    assert_eq!((order.paid, order.doubted, order.state), (Some(100), Some(1), OrderState::Sold));
    let stuck: Vec<_> = case.ledger.money.values().map(|row| (row.state, row.amount)).collect();
    assert_eq!(stuck, [(MoneyState::Stuck, 1)]);
    case.check();
}

/// Goal: too little money buys nothing, in time or late, and all that came goes back.
#[test]
fn too_little_money_goes_back() {
    let mut case = MoneyFixture::open();
    let hold = case.hold(&["A-1", "A-2"]);
    case.pay(&hold, "pi_1").unwrap();
    let money = case.late(&hold, "pi_1", 199);
    assert_eq!((money.state, money.amount), (MoneyState::RefundDue, 199));
    let other = case.hold(&["A-3"]);
    case.pay(&other, "pi_2").unwrap();
    case.advance_time(200);
    let money = case.late(&other, "pi_2", 99);
    assert_eq!((money.state, money.amount), (MoneyState::RefundDue, 99));
    assert!(case.ledger.orders.is_empty());
    case.check();
}

/// Goal: whose payment came short does not wait for the pay deadline: the hold is theirs again for what is left of its time,
/// to be paid otherwise or released.
#[test]
fn a_hold_whose_payment_came_short_is_active_again() {
    let mut case = MoneyFixture::open();
    let hold = case.hold(&["A-1"]);
    case.advance_time(10);
    let paying = case.pay(&hold, "pi_1").unwrap();
    assert_eq!(paying.expires_at, Moment(1210));
    let Confirmed::Late { hold: again, .. } = case.captured(&hold, "pi_1", 99).unwrap() else { panic!() };
    assert_eq!((again.state, again.expires_at), (HoldState::Active, hold.expires_at));
    assert_eq!(case.ledger.holds[&hold.hold_id], again);
    case.check();
    case.pay(&hold, "pi_1").expect_err("its money goes back");
    case.pay(&hold, "pi_2").unwrap();
    assert_eq!(case.order(&hold, "pi_2").payment_ref, "pi_2");
    // Without time left it is over, and that is not held against the buyer.
    let hold = case.hold(&["A-2"]);
    case.pay(&hold, "pi_3").unwrap();
    case.advance_time(150);
    let Confirmed::Late { hold: over, .. } = case.captured(&hold, "pi_3", 99).unwrap() else { panic!() };
    assert_eq!(over.state, HoldState::Lapsed);
    assert_eq!(case.ledger.buyers.values().map(|row| row.lapses).sum::<u32>(), 0);
    // A second payment that is short leaves the first on its way.
    let hold = case.hold(&["A-2"]);
    case.pay(&hold, "pi_4").unwrap();
    case.late(&hold, "pi_5", 99);
    assert_eq!(case.ledger.holds[&hold.hold_id].state, HoldState::Paying);
    case.check();
}

/// Goal: money that came after the first of its payment is not lost, however often it is told and wherever the first is.
#[test]
fn what_comes_later_of_a_payment_goes_back_too() {
    let mut case = MoneyFixture::open();
    let hold = case.hold(&["A-1"]);
    case.pay(&hold, "pi").unwrap();
    case.late(&hold, "pi", 1);
    for (came, rows) in [(1, 1), (100, 2), (100, 2), (40, 2), (130, 3), (130, 3)] {
        case.late(&hold, "pi", came);
        assert_eq!(case.ledger.money.len(), rows, "{came}");
    }
    let amounts: Vec<u64> = case.ledger.money.values().map(|row| row.amount).collect();
    assert_eq!(amounts.iter().sum::<u64>(), 130, "{amounts:?}");
    // Once less was said than was known, staff decides about the first; what came beyond it goes back.
    let states: Vec<MoneyState> = case.ledger.money.values().map(|row| row.state).collect();
    assert_eq!(states, [MoneyState::Stuck, MoneyState::RefundDue, MoneyState::RefundDue]);
    case.check();
}

/// Goal: money for a hold that was changed since buys nothing, in time or late, and goes back as it came.
#[test]
fn money_for_a_hold_that_was_changed_goes_back() {
    let mut case = MoneyFixture::open();
    let paid = case.hold(&["A-1"]);
    case.pay(&paid, "pi_1").unwrap();
    let hold = case.declined(&paid, "pi_1");
    case.change(&hold, &["A-2", "A-3"], &[]);
    case.advance_time(200);
    let money = case.late(&paid, "pi_1", 100);
    assert_eq!((money.state, money.amount), (MoneyState::RefundDue, 100), "three seats are not sold for one");

    let paid = case.hold(&["A-4", "A-5"]);
    case.pay(&paid, "pi_2").unwrap();
    let hold = case.declined(&paid, "pi_2");
    case.change(&hold, &[], &["A-5"]);
    let money = case.late(&paid, "pi_2", 200);
    assert_eq!((money.state, money.amount), (MoneyState::RefundDue, 200), "all of it goes back");
    case.check();
}

/// Goal: money that goes back, or went back, does not buy the hold as well.
#[test]
fn money_that_goes_back_buys_nothing() {
    let mut case = MoneyFixture::open();
    let hold = case.hold(&["A-1"]);
    case.pay(&hold, "pi_1").unwrap();
    assert_eq!(case.late(&hold, "pi_2", 100).state, MoneyState::RefundDue, "a second payment");
    let hold = case.declined(&hold, "pi_1");
    assert_eq!(case.pay(&hold, "pi_2"), Err(Refusal::PaymentMismatch));
    assert_eq!(case.late(&hold, "pi_2", 100).state, MoneyState::RefundDue);
    assert_eq!(case.ledger.money["pi_2"].steps.len(), 1);
    assert!(case.ledger.orders.is_empty());
    case.check();
}

/// Goal: an order that was stored before it was kept what came for it is taken to have been paid as it stands: a void gives
/// back its price, once, and a message that is told again gives back nothing.
#[test]
fn an_order_that_does_not_know_what_came_owes_its_price() {
    let mut case = MoneyFixture::open();
    let hold = case.hold(&["A-1", "A-2"]);
    let order = case.order(&hold, "pi");
    let mut stored = serde_json::to_value(&order).unwrap();
    for kept in ["paid", "back", "refunds"] {
        assert!(stored.as_object_mut().unwrap().remove(kept).is_some());
    }
    let old: OrderRow = serde_json::from_value(stored).unwrap();
    assert_eq!((old.came(), old.owed()), (200, 0));
    case.ledger.orders.insert(old.order_id.clone(), old);
    assert!(matches!(case.captured(&hold, "pi", 500), Ok(Confirmed::Order { .. })));
    assert!(case.ledger.money.is_empty(), "nobody knows what came before");
    let void = |seats| Void { order_id: order.order_id.clone(), seats, reason: "ill".into() };
    for (seats, owed) in [(Some(vec!["A-1".into()]), 100), (None, 100), (None, 0)] {
        let amended = case.decide(&void(seats), decide::need_void, decide::void).unwrap();
        assert_eq!(amended.owed, owed);
        case.check();
    }
    let back: Vec<u64> = case.ledger.money.values().map(|money| money.amount).collect();
    assert_eq!(back, [100, 100]);
}
