//! Money that comes late, twice, or out of order.

use super::*;
use crate::provider::CallbackOutcome;

fn paid(hold: &HoldView, id: &str, payment_ref: &str, succeeded: bool) -> PaymentMessage {
    let tokens = hold.hold.seats.iter().map(|seat| (seat.id.clone(), seat.token)).collect();
    PaymentMessage {
        id: id.into(),
        payment_ref: payment_ref.into(),
        hold_id: hold.hold.hold_id.clone(),
        outcome: if succeeded { CallbackOutcome::Captured } else { CallbackOutcome::Declined },
        tokens,
        amount: hold.hold.total(),
        currency: None,
        paid_for: hold.hold.hold_id.clone(),
    }
}

/// A hold of ada's that was paying when its deadline passed.
async fn overdue(case: &TestOffice, seats: &[&str]) -> HoldView {
    let ada = case.hold("ada", seats).await.unwrap();
    case.office.pay(LedgerCall::by("ada"), &ada.hold.hold_id, key(&ada), "pi_1").await.unwrap();
    case.clock.advance(seconds(606));
    ada
}

/// Goal: first choice: the same seats, still free, with a newer token; buyer and provider hear the same order.
#[tokio::test]
async fn late_money_buys_the_same_seats_if_they_are_free() {
    let case = TestOffice::open().await;
    let ada = overdue(&case, &["A-1", "A-2"]).await;
    let PaymentOutcome::Order(order) = case.office.payment(paid(&ada, "m-1", "pi_1", true)).await.unwrap() else {
        panic!()
    };
    assert!(order.late && order.seats[0].token > ada.hold.seats[0].token);
    let again = case.office.confirm(LedgerCall::by("ada"), &ada.hold.hold_id, key(&ada), "pi_1").await.unwrap();
    assert_eq!(again, order);
    assert_eq!(case.office.payment(paid(&ada, "m-1", "pi_1", true)).await.unwrap(), PaymentOutcome::Ignored);
    assert_eq!(case.leases().await, 0);
    case.check().await;
}

/// Goal: a buyer sees all money that came for the hold, under whatever name, and only that.
#[tokio::test]
async fn a_buyer_sees_all_money_of_the_hold() {
    let case = TestOffice::open().await;
    let ada = case.hold("ada", &["A-1"]).await.unwrap();
    let bob = case.hold("bob", &["A-2"]).await.unwrap();
    case.office.pay(LedgerCall::by("ada"), &ada.hold.hold_id, key(&ada), "pi_1").await.unwrap();
    let see = async |hold: &HoldView| case.office.hold_view(&hold.hold.hold_id, key(hold)).await.unwrap();
    assert_eq!(see(&ada).await.money, []);
    // A second payment, the first, and one that is bob's: in ada's name.
    case.office.payment(paid(&ada, "m-1", "pi_2", true)).await.unwrap();
    case.office.payment(paid(&bob, "m-2", "pi_3", true)).await.unwrap();
    let order = case.office.payment(paid(&ada, "m-3", "pi_1", true)).await.unwrap();
    assert!(matches!(order, PaymentOutcome::Order(_)), "{order:?}");
    case.office.payment(paid(&ada, "m-4", "pi_3", true)).await.unwrap();
    let seen = see(&ada).await;
    let price = ada.hold.total();
    let shown: Vec<_> =
        seen.money.iter().map(|money| (money.payment_ref.as_deref(), money.amount, money.resolution.state)).collect();
    assert_eq!(shown, [(Some("pi_2"), price, MoneyState::RefundDue), (None, price, MoneyState::Stuck)]);
    assert!(!format!("{:?}", seen.money).contains(bob.hold.hold_id.as_str()), "{:?}", seen.money);
    assert_eq!((seen.resolution, see(&bob).await.money), (None, vec![]));
    // Never paid for as far as anybody said, and over: the money speaks for the hold.
    let eve = case.hold("eve", &["A-4"]).await.unwrap();
    case.clock.advance(seconds(1000));
    case.hold("dan", &["A-4"]).await.unwrap();
    case.office.payment(paid(&eve, "m-5", "pi_9", true)).await.unwrap();
    let seen = see(&eve).await;
    assert_eq!((seen.money.len(), seen.resolution), (1, Some(seen.money[0].resolution.clone())));
    case.check().await;
}

/// Goal: a payment that came short leaves the hold its time and no more: when that is over, others can have the seats
/// without a sweeper.
#[tokio::test]
async fn a_short_payment_takes_the_leases_back_with_it() {
    let case = TestOffice::open().await;
    let ada = case.hold("ada", &["A-1"]).await.unwrap();
    case.clock.advance(seconds(290));
    case.office.pay(LedgerCall::by("ada"), &ada.hold.hold_id, key(&ada), "pi_1").await.unwrap();
    let short = PaymentMessage { amount: 1, ..paid(&ada, "m-1", "pi_1", true) };
    let told = case.office.payment(short).await.unwrap();
    assert!(matches!(told, PaymentOutcome::Late(Resolution { state: MoneyState::RefundDue, .. })), "{told:?}");
    case.clock.advance(seconds(9));
    assert_eq!(case.office.hold_view(&ada.hold.hold_id, key(&ada)).await.unwrap().hold.state, HoldState::Active);
    refused(case.hold("bob", &["A-1"]).await);
    case.clock.advance(seconds(7));
    case.hold("bob", &["A-1"]).await.unwrap();
    case.check().await;
}

/// Goal: why staff takes an order back is between them; the buyer sees that money goes back.
#[tokio::test]
async fn reasons_of_staff_are_not_told_to_buyers() {
    let case = TestOffice::open().await;
    let ada = case.hold("ada", &["A-1"]).await.unwrap();
    let order = case.office.confirm(LedgerCall::by("ada"), &ada.hold.hold_id, key(&ada), "pi_1").await.unwrap();
    case.office.void(LedgerCall::by("staff"), &order.order_id, None, "stolen card").await.unwrap();
    let seen = case.office.hold_view(&ada.hold.hold_id, key(&ada)).await.unwrap();
    assert_eq!((seen.money.len(), seen.money[0].resolution.state), (1, MoneyState::RefundDue));
    assert!(!format!("{seen:?}").contains("stolen"), "{seen:?}");
    let staff = case.office.late_money(&case.event).await.unwrap();
    assert_eq!(staff[0].steps[0].note, "stolen card");
    case.check().await;
}

/// Goal: second choice: the seats are another's, so others as good are held, and the same key and payment buy them.
#[tokio::test]
async fn late_money_is_offered_an_equivalent_block() {
    let case = TestOffice::open().await;
    let ada = overdue(&case, &["A-5", "A-6"]).await;
    case.hold("bob", &["A-6"]).await.unwrap();
    let late = refused(case.office.confirm(LedgerCall::by("ada"), &ada.hold.hold_id, key(&ada), "pi_1").await);
    let Refusal::Late(resolution) = late else { panic!("{late:?}") };
    assert_eq!((resolution.state, resolution.seats.len()), (MoneyState::Offered, 2));
    let offer = resolution.offer.unwrap();
    let seen = case.office.hold_view(&ada.hold.hold_id, key(&ada)).await.unwrap().resolution.unwrap();
    assert_eq!((seen.state, seen.offer.as_ref()), (MoneyState::Offered, Some(&offer)));
    assert_eq!(case.office.hold_view(&offer, key(&ada)).await.unwrap().hold.state, HoldState::Paying);

    let order = case.office.confirm(LedgerCall::by("ada"), &offer, key(&ada), "pi_1").await.unwrap();
    assert_eq!(order.seats.iter().map(|seat| seat.id.clone()).collect::<Vec<_>>(), resolution.seats);
    let money = case.office.late_money(&case.event).await.unwrap();
    assert_eq!((money.len(), money[0].state, money[0].steps.len()), (1, MoneyState::Sold, 3));
    // The old hold finds what its money bought.
    let again = case.office.confirm(LedgerCall::by("ada"), &ada.hold.hold_id, key(&ada), "pi_1").await.unwrap();
    assert_eq!(again, order);
    case.check().await;
}

/// Goal: an offer that is not taken in time ends, and the money goes back: each step is written down.
#[tokio::test]
async fn an_offer_that_is_not_taken_becomes_a_refund() {
    let case = TestOffice::open().await;
    let ada = overdue(&case, &["A-5"]).await;
    case.hold("bob", &["A-5"]).await.unwrap();
    let outcome = case.office.payment(paid(&ada, "m-1", "pi_1", true)).await.unwrap();
    assert!(matches!(outcome, PaymentOutcome::Late(Resolution { state: MoneyState::Offered, .. })));
    case.clock.advance(seconds(601));
    case.office.sweep(2).await.unwrap();
    let due = case.office.refunds_due().await.unwrap();
    assert_eq!((due.len(), due[0].amount), (1, 4500));
    let back = case.office.record_refunded(LedgerCall::by("provider"), "pi_1", "re_1").await.unwrap();
    let states: Vec<MoneyState> = back.steps.iter().map(|step| step.state).collect();
    assert_eq!(states, [MoneyState::Received, MoneyState::Offered, MoneyState::RefundDue, MoneyState::Refunded]);
    assert!(case.office.refunds_due().await.unwrap().is_empty());
    case.check().await;
}

/// Goal: a refund: nothing as good is left.
#[tokio::test]
async fn late_money_goes_back_when_the_house_is_full() {
    let case = TestOffice::open_with(|settings| settings.per_buyer = 20).await;
    let ada = overdue(&case, &["B-1", "B-2"]).await;
    let all: Vec<String> = hall().seats.into_iter().map(|seat| seat.id).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    case.hold("bob", &all).await.unwrap();
    let late = refused(case.office.confirm(LedgerCall::by("ada"), &ada.hold.hold_id, key(&ada), "pi_1").await);
    assert!(matches!(late, Refusal::Late(Resolution { state: MoneyState::RefundDue, .. })), "{late:?}");
    assert_eq!(case.office.metrics().await.sale_conflicts_total, [0, 1]);
    case.check().await;
}

/// Goal: a decline that arrives after the success changes nothing; a second payment goes back.
#[tokio::test]
async fn messages_come_in_any_order() {
    let case = TestOffice::open().await;
    let ada = case.hold("ada", &["A-1"]).await.unwrap();
    case.office.pay(LedgerCall::by("ada"), &ada.hold.hold_id, key(&ada), "pi_1").await.unwrap();
    let sold = case.office.payment(paid(&ada, "m-2", "pi_1", true)).await.unwrap();
    assert!(matches!(sold, PaymentOutcome::Order(_)));
    let declined = case.office.payment(paid(&ada, "m-1", "pi_1", false)).await.unwrap();
    assert_eq!(declined, PaymentOutcome::Declined(HoldState::Sold));
    let twice = case.office.payment(paid(&ada, "m-3", "pi_2", true)).await.unwrap();
    assert!(matches!(twice, PaymentOutcome::Late(Resolution { state: MoneyState::RefundDue, .. })));
    case.check().await;
}

/// Goal: a second payment for a live hold leaves the leases under it.
#[tokio::test]
async fn a_second_payment_leaves_the_hold_its_lease() {
    let case = TestOffice::open().await;
    let ada = case.hold("ada", &["A-1"]).await.unwrap();
    case.office.pay(LedgerCall::by("ada"), &ada.hold.hold_id, key(&ada), "pi_1").await.unwrap();
    let twice = case.office.payment(paid(&ada, "m-1", "pi_2", true)).await.unwrap();
    assert!(matches!(twice, PaymentOutcome::Late(Resolution { state: MoneyState::RefundDue, .. })));
    assert_eq!(case.leases().await, 1);
    assert_eq!(case.office.metrics().await.sale_conflicts_total, [0, 1], "a sale that a callback lost is counted, too");
    case.check().await;
}

/// Goal: two late payments for one hold: one buys it, the other goes back, and nobody behind them waits.
#[tokio::test]
async fn of_two_late_payments_one_buys_the_hold() {
    let case = TestOffice::open().await;
    let ada = overdue(&case, &["A-1"]).await;
    let (hold_id, access) = (ada.hold.hold_id.clone(), Access::Staff);
    for payment_ref in ["pi_1", "pi_2"] {
        let (hold_id, payment_ref) = (hold_id.clone(), payment_ref.to_owned());
        let callback = Some(format!("m {payment_ref}"));
        let proof = PaymentProof::captured(&hold_id, ada.hold.total());
        let command = Confirm { hold_id, access: access.clone(), payment_ref, tokens: vec![], proof, callback };
        case.ledger.confirm(LedgerCall::by("provider"), command).await.unwrap();
    }
    case.clock.advance(seconds(11));
    case.office.sweep(2).await.unwrap();
    let money = case.office.late_money(&case.event).await.unwrap();
    let states: Vec<MoneyState> = money.iter().map(|money| money.state).collect();
    assert_eq!(states, [MoneyState::Sold, MoneyState::RefundDue]);
    case.check().await;
}

/// Goal: money for places of an area that is gone goes back.
#[tokio::test]
async fn money_for_an_area_that_is_gone_goes_back() {
    let case = TestOffice::open().await;
    let want = HoldRequest::These { seats: vec![], areas: vec![("floor".into(), 2)] };
    let ada = case.office.hold(LedgerCall::by("ada"), &case.event, "ada".into(), want).await.unwrap();
    case.office.pay(LedgerCall::by("ada"), &ada.hold.hold_id, key(&ada), "pi_1").await.unwrap();
    case.clock.advance(seconds(606));
    case.office.sweep(2).await.unwrap();
    let layout = Layout { areas: vec![], ..hall() };
    case.office.replace_layout(LedgerCall::by("staff"), &case.event, layout).await.unwrap();
    let late = refused(case.office.confirm(LedgerCall::by("ada"), &ada.hold.hold_id, key(&ada), "pi_1").await);
    assert!(matches!(late, Refusal::Late(Resolution { state: MoneyState::RefundDue, .. })), "{late:?}");
    case.check().await;
}

/// Goal: seats that are offered may cost less, and then the difference goes back when they are taken.
#[tokio::test]
async fn what_an_offer_costs_less_goes_back() {
    let case = TestOffice::open_with(|settings| settings.per_buyer = 20).await;
    let ada = overdue(&case, &["A-5"]).await;
    let row: Vec<String> = hall().seats.into_iter().map(|seat| seat.id).filter(|id| id.starts_with("A-")).collect();
    case.hold("bob", &row.iter().map(String::as_str).collect::<Vec<_>>()).await.unwrap();
    let told = case.office.payment(paid(&ada, "m-1", "pi_1", true)).await.unwrap();
    let PaymentOutcome::Late(Resolution { offer: Some(offer), .. }) = told else { panic!("{told:?}") };
    let order = case.office.confirm(LedgerCall::by("ada"), &offer, key(&ada), "pi_1").await.unwrap();
    assert_eq!((order.total, order.paid, order.back), (3000, Some(4500), 1500));
    let due = case.office.refunds_due().await.unwrap();
    assert_eq!((due.len(), due[0].amount, due[0].order_id.as_ref()), (1, 1500, Some(&order.order_id)));
    case.check().await;
}

/// Goal: money that came in the name of another hold waits for staff, who give it back or settle it by hand; a refund that
/// the provider tells of is the one that was meant, also when several of one payment are due.
#[tokio::test]
async fn staff_settles_what_nobody_can_place() {
    let case = TestOffice::open().await;
    let ada = case.hold("ada", &["A-1", "A-2"]).await.unwrap();
    case.office.pay(LedgerCall::by("ada"), &ada.hold.hold_id, key(&ada), "pi_1").await.unwrap();
    let bob = case.hold("bob", &["A-3"]).await.unwrap();
    let told = case.office.payment(paid(&bob, "m-1", "pi_1", true)).await.unwrap();
    assert!(matches!(told, PaymentOutcome::Late(Resolution { state: MoneyState::Stuck, .. })), "{told:?}");
    assert_eq!(case.leases().await, 3, "bob keeps what he holds");
    let stuck = case.office.late_money(&case.event).await.unwrap().remove(0);
    let (id, event) = (stuck.refund_id(), case.event.clone());
    let settle = async |id: &str, to| case.office.settle(LedgerCall::by("eve"), &event, id, to, "asked them").await;
    assert!(case.office.refunds_due().await.unwrap().is_empty(), "it does not go back by itself");
    assert!(matches!(refused(settle("rf_none", MoneyDecision::GoesBack).await), Refusal::NoSeat(_)));
    assert_eq!(settle(&id, MoneyDecision::GoesBack).await.unwrap().state, MoneyState::RefundDue);
    assert_eq!(refused(settle(&id, MoneyDecision::GoesBack).await), Refusal::PaymentMismatch, "once");

    let sold = case.office.payment(paid(&ada, "m-2", "pi_1", true)).await.unwrap();
    let PaymentOutcome::Order(order) = sold else { panic!("{sold:?}") };
    for seat in ["A-1", "A-2"] {
        case.office.void(LedgerCall::by("eve"), &order.order_id, Some(vec![seat.into()]), "ill").await.unwrap();
    }
    let due = case.office.refunds_due().await.unwrap();
    assert_eq!(due.iter().map(|row| row.amount).collect::<Vec<_>>(), [4500, 4500, 4500]);
    let tell = async |id: &str| case.office.record_refund_message(went_back(&format!("cb_{id}"), Some(id), 4500)).await;
    for row in &due[..2] {
        let back = tell(&row.refund_id()).await.unwrap();
        assert_eq!((back.key(), back.state), (row.key(), MoneyState::Refunded));
        assert_eq!(tell(&row.refund_id()).await.unwrap(), back, "told twice");
    }
    assert_eq!(refused(tell("rf_other").await), Refusal::PaymentMismatch);
    // The provider does not know this one: it was cash.
    let closed = settle(&due[2].refund_id(), MoneyDecision::ByHand).await.unwrap();
    assert_eq!((closed.state, closed.steps.last().unwrap().note.as_str()), (MoneyState::Closed, "asked them"));
    assert!(case.office.refunds_due().await.unwrap().is_empty());
    case.check().await;
}

/// The provider says that so much of `pi_1` went back.
fn went_back(id: &str, refund_id: Option<&str>, amount: u64) -> RefundMessage {
    let (id, refund_id) = (id.into(), refund_id.map(Into::into));
    RefundMessage { id, payment_ref: "pi_1".into(), refund_id, amount }
}

/// Goal: a message of a refund counts once by its id, and less than what is due ends nothing.
#[tokio::test]
async fn a_refund_that_is_told_twice_ends_one_refund() {
    let case = TestOffice::open().await;
    let ada = case.hold("ada", &["A-1", "A-2"]).await.unwrap();
    case.office.pay(LedgerCall::by("ada"), &ada.hold.hold_id, key(&ada), "pi_1").await.unwrap();
    let sold = case.office.payment(paid(&ada, "m-1", "pi_1", true)).await.unwrap();
    let PaymentOutcome::Order(order) = sold else { panic!("{sold:?}") };
    let void = async |seat: &str| {
        case.office.void(LedgerCall::by("eve"), &order.order_id, Some(vec![seat.into()]), "ill").await.unwrap();
    };
    let states = async || {
        let rows = case.office.late_money(&case.event).await.unwrap();
        rows.iter().map(|row| row.state).collect::<Vec<_>>()
    };
    void("A-1").await;
    let less = case.office.record_refund_message(went_back("re_0", None, 1)).await;
    assert_eq!(refused(less), Refusal::PaymentMismatch);
    assert_eq!(states().await, [MoneyState::RefundDue], "a part of it ends nothing");
    case.office.record_refund_message(went_back("re_1", None, 4500)).await.unwrap();
    // Told under another id, it is of the same; and that is remembered too.
    case.office.record_refund_message(went_back("re_2", None, 4500)).await.unwrap();
    void("A-2").await;
    for id in ["re_1", "re_2"] {
        case.office.record_refund_message(went_back(id, None, 4500)).await.unwrap();
        assert_eq!(states().await, [MoneyState::Refunded, MoneyState::RefundDue], "{id} is old news");
    }
    case.office.record_refund_message(went_back("re_3", None, 4500)).await.unwrap();
    assert_eq!(states().await, [MoneyState::Refunded, MoneyState::Refunded]);
    case.check().await;
}

/// Goal: who does not want the seats that are offered gives them back, and has the money back without waiting for the
/// deadline; a payment that is on its way still keeps its hold.
#[tokio::test]
async fn an_offer_can_be_declined() {
    let case = TestOffice::open().await;
    let ada = overdue(&case, &["A-5"]).await;
    let bob = case.hold("bob", &["A-5"]).await.unwrap();
    let told = case.office.payment(paid(&ada, "m-1", "pi_1", true)).await.unwrap();
    let PaymentOutcome::Late(Resolution { offer: Some(offer), .. }) = told else { panic!("{told:?}") };
    case.office.pay(LedgerCall::by("bob"), &bob.hold.hold_id, key(&bob), "pi_2").await.unwrap();
    let kept = case.office.release(LedgerCall::by("bob"), &bob.hold.hold_id, key(&bob)).await;
    assert_eq!(refused(kept), Refusal::Paying);
    case.office.release(LedgerCall::by("ada"), &offer, key(&ada)).await.unwrap();
    assert_eq!(case.leases().await, 1, "only bob's");
    case.office.sweep(2).await.unwrap();
    let due = case.office.refunds_due().await.unwrap();
    assert_eq!((due.len(), due[0].amount), (1, 4500));
    assert!(due[0].steps.last().unwrap().note.ends_with("were not wanted"), "{:?}", due[0].steps);
    case.check().await;
}
