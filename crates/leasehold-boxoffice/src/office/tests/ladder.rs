//! Money that comes late, twice, or out of order.

use super::*;

fn paid(hold: &HoldView, id: &str, payment_ref: &str, succeeded: bool) -> PaymentMessage {
    let tokens = hold.hold.seats.iter().map(|seat| (seat.id.clone(), seat.token)).collect();
    PaymentMessage {
        id: id.into(),
        payment_ref: payment_ref.into(),
        hold_id: hold.hold.hold_id.clone(),
        succeeded,
        tokens,
        amount: Some(hold.hold.total()),
    }
}

/// A hold of ada's that was paying when its deadline passed.
async fn overdue(house: &House, seats: &[&str]) -> HoldView {
    let ada = house.hold("ada", seats).await.unwrap();
    house.office.pay(Call::by("ada"), &ada.hold.hold_id, key(&ada), "pi_1").await.unwrap();
    house.clock.advance(seconds(606));
    ada
}

/// Goal: first rung: the same seats, still free, with a newer token; buyer and provider hear the same order.
#[tokio::test]
async fn late_money_buys_the_same_seats_if_they_are_free() {
    let house = House::open().await;
    let ada = overdue(&house, &["A-1", "A-2"]).await;
    let PaymentOutcome::Order(order) = house.office.payment(paid(&ada, "m-1", "pi_1", true)).await.unwrap() else {
        panic!()
    };
    assert!(order.late && order.seats[0].token > ada.hold.seats[0].token);
    let again = house.office.confirm(Call::by("ada"), &ada.hold.hold_id, key(&ada), "pi_1").await.unwrap();
    assert_eq!(again, order);
    assert_eq!(house.office.payment(paid(&ada, "m-1", "pi_1", true)).await.unwrap(), PaymentOutcome::Ignored);
    assert_eq!(house.leases().await, 0);
    house.check().await;
}

/// Goal: second rung: the seats are another's, so others as good are held, and the same key and payment buy them.
#[tokio::test]
async fn late_money_is_offered_an_equivalent_block() {
    let house = House::open().await;
    let ada = overdue(&house, &["A-5", "A-6"]).await;
    house.hold("bob", &["A-6"]).await.unwrap();
    let late = refused(house.office.confirm(Call::by("ada"), &ada.hold.hold_id, key(&ada), "pi_1").await);
    let Refusal::Late(resolution) = late else { panic!("{late:?}") };
    assert_eq!((resolution.state, resolution.seats.len()), (MoneyState::Offered, 2));
    let offer = resolution.offer.unwrap();
    let seen = house.office.hold_view(&ada.hold.hold_id, key(&ada)).await.unwrap().resolution.unwrap();
    assert_eq!((seen.state, seen.offer.as_ref()), (MoneyState::Offered, Some(&offer)));
    assert_eq!(house.office.hold_view(&offer, key(&ada)).await.unwrap().hold.state, HoldState::Paying);

    let order = house.office.confirm(Call::by("ada"), &offer, key(&ada), "pi_1").await.unwrap();
    assert_eq!(order.seats.iter().map(|seat| seat.id.clone()).collect::<Vec<_>>(), resolution.seats);
    let money = house.office.late_money(&house.event).await.unwrap();
    assert_eq!((money.len(), money[0].state, money[0].steps.len()), (1, MoneyState::Sold, 3));
    // The old hold finds what its money bought.
    let again = house.office.confirm(Call::by("ada"), &ada.hold.hold_id, key(&ada), "pi_1").await.unwrap();
    assert_eq!(again, order);
    house.check().await;
}

/// Goal: an offer that is not taken in time ends, and the money goes back: each step is written down.
#[tokio::test]
async fn an_offer_that_is_not_taken_becomes_a_refund() {
    let house = House::open().await;
    let ada = overdue(&house, &["A-5"]).await;
    house.hold("bob", &["A-5"]).await.unwrap();
    let outcome = house.office.payment(paid(&ada, "m-1", "pi_1", true)).await.unwrap();
    assert!(matches!(outcome, PaymentOutcome::Late(Resolution { state: MoneyState::Offered, .. })));
    house.clock.advance(seconds(601));
    house.office.sweep(2).await.unwrap();
    let due = house.office.refunds_due().await.unwrap();
    assert_eq!((due.len(), due[0].amount), (1, 4500));
    let back = house.office.refunded(Call::by("provider"), "pi_1", "re_1").await.unwrap();
    let states: Vec<MoneyState> = back.steps.iter().map(|step| step.state).collect();
    assert_eq!(states, [MoneyState::Received, MoneyState::Offered, MoneyState::RefundDue, MoneyState::Refunded]);
    assert!(house.office.refunds_due().await.unwrap().is_empty());
    house.check().await;
}

/// Goal: third rung: nothing as good is left.
#[tokio::test]
async fn late_money_goes_back_when_the_house_is_full() {
    let house = House::with(|settings| settings.per_buyer = 20).await;
    let ada = overdue(&house, &["B-1", "B-2"]).await;
    let all: Vec<String> = hall().seats.into_iter().map(|seat| seat.id).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    house.hold("bob", &all).await.unwrap();
    let late = refused(house.office.confirm(Call::by("ada"), &ada.hold.hold_id, key(&ada), "pi_1").await);
    assert!(matches!(late, Refusal::Late(Resolution { state: MoneyState::RefundDue, .. })), "{late:?}");
    assert_eq!(house.office.metrics().sale_conflicts_total, [0, 1]);
    house.check().await;
}

/// Goal: a decline that arrives after the success changes nothing; a second payment goes back.
#[tokio::test]
async fn messages_come_in_any_order() {
    let house = House::open().await;
    let ada = house.hold("ada", &["A-1"]).await.unwrap();
    house.office.pay(Call::by("ada"), &ada.hold.hold_id, key(&ada), "pi_1").await.unwrap();
    let sold = house.office.payment(paid(&ada, "m-2", "pi_1", true)).await.unwrap();
    assert!(matches!(sold, PaymentOutcome::Order(_)));
    let declined = house.office.payment(paid(&ada, "m-1", "pi_1", false)).await.unwrap();
    assert_eq!(declined, PaymentOutcome::Declined(HoldState::Sold));
    let twice = house.office.payment(paid(&ada, "m-3", "pi_2", true)).await.unwrap();
    assert!(matches!(twice, PaymentOutcome::Late(Resolution { state: MoneyState::RefundDue, .. })));
    house.check().await;
}

/// Goal: a second payment for a live hold leaves the leases under it.
#[tokio::test]
async fn a_second_payment_leaves_the_hold_its_lease() {
    let house = House::open().await;
    let ada = house.hold("ada", &["A-1"]).await.unwrap();
    house.office.pay(Call::by("ada"), &ada.hold.hold_id, key(&ada), "pi_1").await.unwrap();
    let twice = house.office.payment(paid(&ada, "m-1", "pi_2", true)).await.unwrap();
    assert!(matches!(twice, PaymentOutcome::Late(Resolution { state: MoneyState::RefundDue, .. })));
    assert_eq!(house.leases().await, 1);
    house.check().await;
}

/// Goal: two late payments for one hold: one buys it, the other goes back, and nobody behind them waits.
#[tokio::test]
async fn the_ladder_goes_on_for_everybody() {
    let house = House::open().await;
    let ada = overdue(&house, &["A-1"]).await;
    let (hold_id, access) = (ada.hold.hold_id.clone(), Access::Staff);
    for payment_ref in ["pi_1", "pi_2"] {
        let (hold_id, payment_ref) = (hold_id.clone(), payment_ref.to_owned());
        let callback = Some(format!("m {payment_ref}"));
        let command = Confirm { hold_id, access: access.clone(), payment_ref, tokens: vec![], amount: None, callback };
        house.ledger.confirm(Call::by("provider"), command).await.unwrap();
    }
    house.clock.advance(seconds(11));
    house.office.sweep(2).await.unwrap();
    let money = house.office.late_money(&house.event).await.unwrap();
    let states: Vec<MoneyState> = money.iter().map(|money| money.state).collect();
    assert_eq!(states, [MoneyState::Sold, MoneyState::RefundDue]);
    house.check().await;
}

/// Goal: money for places of an area that is gone goes back.
#[tokio::test]
async fn money_for_an_area_that_is_gone_goes_back() {
    let house = House::open().await;
    let want = Want::These { seats: vec![], areas: vec![("floor".into(), 2)] };
    let ada = house.office.hold(Call::by("ada"), &house.event, "ada".into(), want).await.unwrap();
    house.office.pay(Call::by("ada"), &ada.hold.hold_id, key(&ada), "pi_1").await.unwrap();
    house.clock.advance(seconds(606));
    house.office.sweep(2).await.unwrap();
    let layout = Layout { areas: vec![], ..hall() };
    house.office.replace_layout(Call::by("staff"), &house.event, layout).await.unwrap();
    let late = refused(house.office.confirm(Call::by("ada"), &ada.hold.hold_id, key(&ada), "pi_1").await);
    assert!(matches!(late, Refusal::Late(Resolution { state: MoneyState::RefundDue, .. })), "{late:?}");
    house.check().await;
}
