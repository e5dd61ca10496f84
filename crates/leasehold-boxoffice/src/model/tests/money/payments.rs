//! Which payment buys which hold, and by whose word.

use super::*;

/// Goal: a payment that bought one hold, or was begun for it, buys no other.
#[test]
fn one_payment_is_for_one_hold() {
    let mut case = MoneyFixture::open();
    let first = case.hold(&["A-1"]);
    case.order(&first, "pi_1");
    let second = case.hold(&["A-2"]);
    assert_eq!(case.pay(&second, "pi_1"), Err(Refusal::PaymentMismatch));
    assert_eq!(case.late(&second, "pi_1", 100).state, MoneyState::Stuck);
    case.pay(&second, "pi_2").unwrap();
    let third = case.hold(&["A-3"]);
    assert_eq!(case.pay(&third, "pi_2"), Err(Refusal::PaymentMismatch));
    assert_eq!(case.ledger.orders.len(), 1);
    case.check();
}

/// Goal: a buyer's own word sells what costs nothing, and nothing else; the price is looked at inside the sale.
#[test]
fn a_buyers_word_is_no_money() {
    let mut case = MoneyFixture::open();
    let hold = case.hold(&["A-1"]);
    let confirm = case.confirming(&hold, "pi", PaymentProof::Buyer);
    assert_eq!(case.decide(&confirm, decide::need_confirm, decide::confirm), Err(Refusal::NotPaid));
    case.pay(&hold, "pi").unwrap();
    assert_eq!(case.decide(&confirm, decide::need_confirm, decide::confirm), Err(Refusal::NotPaid));
    case.advance_time(200);
    let over = case.decide(&confirm, decide::need_confirm, decide::confirm);
    assert_eq!(over, Err(Refusal::Ended(HoldState::Lapsed)), "nor does it come late");
    assert!(case.ledger.money.is_empty() && case.ledger.orders.is_empty());
    let mut free = case.hold(&["A-2"]);
    free.seats.iter_mut().for_each(|seat| seat.price = 0);
    case.ledger.holds.insert(free.hold_id.clone(), free.clone());
    let confirm = case.confirming(&free, "free", PaymentProof::Buyer);
    let sold = case.decide(&confirm, decide::need_confirm, decide::confirm).unwrap();
    assert!(matches!(sold, Confirmed::Order { order, .. } if order.paid == Some(0) && order.sources.is_empty()));
    case.check();
}

/// Goal: what a provider says of another hold, or in another currency, is for staff: it is no sale, and not lost.
#[test]
fn what_does_not_fit_is_stuck() {
    let mut case = MoneyFixture::open();
    let (cheap, dear) = (case.hold(&["A-1"]), case.hold(&["A-2", "A-3"]));
    case.pay(&dear, "pi_1").unwrap();
    let word = |amount, currency: Option<&str>, hold: &HoldRow| {
        let (hold_id, currency) = (hold.hold_id.clone(), currency.map(Into::into));
        PaymentProof::Provider(ProviderWord { amount, currency, hold_id, authorised: false })
    };
    let other = case.confirming(&dear, "pi_1", word(200, Some("EUR"), &cheap));
    let dollars = case.confirming(&dear, "pi_1", word(200, Some("USD"), &dear));
    for command in [other, dollars] {
        let told = case.decide(&command, decide::need_confirm, decide::confirm).unwrap();
        let Confirmed::Late { money, .. } = told else { panic!("{told:?}") };
        assert_eq!((money.state, money.amount), (MoneyState::Stuck, 200));
    }
    assert_eq!((case.ledger.money.len(), case.ledger.orders.len()), (1, 0), "one payment, one row");
    let right = case.confirming(&dear, "pi_1", word(200, Some("eur"), &dear));
    assert!(
        case.decide(&right, decide::need_confirm, decide::confirm)
            .is_ok_and(|sold| matches!(sold, Confirmed::Order { .. }))
    );
    case.check();
}

/// Goal: a buyer's confirm of what costs nothing takes nobody's payment: the name stays free for whom it belongs to.
#[test]
fn a_free_confirm_binds_no_name() {
    let mut case = MoneyFixture::open();
    let mut free = case.hold(&["A-1"]);
    free.seats.iter_mut().for_each(|seat| seat.price = 0);
    case.ledger.holds.insert(free.hold_id.clone(), free.clone());
    let confirm = case.confirming(&free, "ORD-1002", PaymentProof::Buyer);
    case.decide(&confirm, decide::need_confirm, decide::confirm).unwrap();
    let victim = case.hold(&["A-2"]);
    case.pay(&victim, "ORD-1002").unwrap();
    assert_eq!(case.order(&victim, "ORD-1002").paid, Some(100));
    case.check();
}
