//! Paid, sold, declined, late.

use super::LedgerSubject;
use super::case::{LawCase, lost, refused};
use crate::error::Error;
use crate::model::*;

pub(super) async fn a_sale_carries_its_token(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let hold = case.try_hold(case.opening("ada", &["A-1", "A-2"], 2)).await.unwrap();
    let order = case.sell(&hold, "pi").await;
    assert_eq!((order.total, order.hold_id.clone(), order.late), (220, hold.hold_id.clone(), false));
    let sold = case.ledger.dump(&case.event).await.unwrap().unwrap().sold;
    assert!(
        sold.iter().all(|(_, of, token)| *of == order.order_id && *token == hold.seats[0].token) && sold.len() == 2
    );
    assert_eq!(lost(case.try_hold(case.opening("bob", &["A-2"], 0)).await), [("A-2".into(), Reason::Sold)]);
    assert_eq!(lost(case.try_hold(case.opening("bob", &[], 4)).await), [("floor".into(), Reason::Sold)]);
    let limit = lost(case.try_hold(case.opening("ada", &["A-3"], 0)).await);
    assert_eq!(limit, [("A-3".into(), Reason::BuyerLimit)], "held and sold are counted together");
    let takings = case.ledger.takings(&case.event).await.unwrap();
    assert_eq!((takings.orders, takings.seats, takings.places, takings.revenue), (1, 2, 2, 220));
    case.done().await;
}

pub(super) async fn a_confirm_repeats(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let hold = case.hold("ada", &["A-1"]).await;
    let order = case.sell(&hold, "pi").await;
    assert_eq!(case.sell(&hold, "pi").await, order);
    case.advance_time(60).await;
    assert_eq!(case.sell(&hold, "pi").await, order, "also when the hold would be long over");
    assert_eq!(refused(case.confirm(&hold, "other").await), Refusal::PaymentMismatch);
    case.done().await;
}

pub(super) async fn a_lapsed_hold_is_not_sold(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let hold = case.hold("ada", &["A-1"]).await;
    case.advance_time(10).await;
    assert_eq!(refused(case.confirm(&hold, "pi").await), Refusal::Ended(HoldState::Lapsed));
    assert_eq!(refused(case.pay(&hold, "pi").await), Refusal::Ended(HoldState::Lapsed));
    case.ledger.lapse_due(10).await.unwrap();
    assert_eq!(refused(case.confirm(&hold, "pi").await), Refusal::Ended(HoldState::Lapsed));
    case.done().await;
}

pub(super) async fn paying_lasts_to_its_deadline(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let hold = case.hold("ada", &["A-1"]).await;
    case.advance_time(8).await;
    let paying = case.pay(&hold, "pi").await.unwrap();
    assert_eq!((paying.state, paying.seats.clone()), (HoldState::Paying, hold.seats.clone()));
    assert_eq!(case.state("A-1").await, SeatState::Paying);
    case.advance_time(16).await;
    assert!(case.ledger.lapse_due(10).await.unwrap().holds.is_empty());
    assert_eq!(lost(case.try_hold(case.opening("bob", &["A-1"], 0)).await), [("A-1".into(), Reason::Taken)]);
    assert_eq!(refused(case.release(&hold).await), Refusal::Paying);
    assert_eq!(case.pay(&hold, "pi").await.unwrap().expires_at, paying.expires_at, "again is the same");
    case.sell(&hold, "pi").await;
    case.done().await;
}

pub(super) async fn a_decline_returns(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let hold = case.hold("ada", &["A-1"]).await;
    assert_eq!(refused(case.decline(&hold, "pi").await), Refusal::NotPaying);
    case.pay(&hold, "pi").await.unwrap();
    let back = case.decline(&hold, "pi").await.unwrap();
    assert_eq!((back.state, back.expires_at), (HoldState::Active, hold.expires_at));
    case.pay(&hold, "pi_2").await.unwrap();
    case.advance_time(11).await;
    assert_eq!(case.decline(&hold, "pi_2").await.unwrap().state, HoldState::Lapsed, "no time was left");
    case.hold("bob", &["A-1"]).await;
    case.done().await;
}

pub(super) async fn another_payment_is_refused(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let hold = case.hold("ada", &["A-1"]).await;
    case.pay(&hold, "pi").await.unwrap();
    assert_eq!(refused(case.pay(&hold, "pi_2").await), Refusal::PaymentMismatch);
    assert_eq!(refused(case.confirm(&hold, "pi_2").await), Refusal::PaymentMismatch);
    assert_eq!(refused(case.decline(&hold, "pi_2").await), Refusal::PaymentMismatch);
    case.done().await;
}

/// A hold that was paying, and whose deadline has passed.
async fn late(case: &LawCase<'_>, buyer: &str, seats: &[&str], payment_ref: &str) -> (HoldRow, MoneyRow) {
    let hold = case.hold(buyer, seats).await;
    case.pay(&hold, payment_ref).await.unwrap();
    case.advance_time(20).await;
    match case.confirm(&hold, payment_ref).await.unwrap() {
        Confirmed::Late { hold, money } => (hold, money),
        other => panic!("{other:?}"),
    }
}

fn again(case: &LawCase<'_>, hold: &HoldRow, payment_ref: &str) -> SellLate {
    SellLate { hold_id: hold.hold_id.clone(), payment_ref: payment_ref.into(), token: case.token() }
}

pub(super) async fn late_money_is_written_down(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let (hold, money) = late(&case, "ada", &["A-1"], "pi").await;
    assert_eq!((money.state, money.amount, money.steps.len()), (MoneyState::Received, 100, 1));
    assert_eq!(hold.state, HoldState::Lapsed);
    let Confirmed::Late { money: same, .. } = case.confirm(&hold, "pi").await.unwrap() else { panic!() };
    assert_eq!(same, money, "again is the same");
    assert_eq!(case.ledger.money_in_states(Some(&case.event), &[MoneyState::Received]).await.unwrap(), [money]);
    case.done().await;
}

pub(super) async fn late_money_buys_the_same_seats(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let (hold, _) = late(&case, "ada", &["A-1", "A-2"], "pi").await;
    let command = again(&case, &hold, "pi");
    let order = case.ledger.sell_late(LedgerCall::by("office"), command.clone()).await.unwrap().value;
    assert_eq!((order.late, order.seats[0].token), (true, command.token));
    assert_eq!(case.ledger.money("pi").await.unwrap().unwrap().state, MoneyState::Sold);
    assert_eq!(case.ledger.sell_late(LedgerCall::by("office"), command).await.unwrap().value, order);
    assert_eq!(case.sell(&hold, "pi").await, order, "the buyer's own confirm finds it");
    case.done().await;
}

pub(super) async fn late_money_yields_to_others(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let (hold, _) = late(&case, "ada", &["A-1", "A-2"], "pi").await;
    case.hold("bob", &["A-2"]).await;
    let sold = case.ledger.sell_late(LedgerCall::by("office"), again(&case, &hold, "pi")).await;
    assert_eq!(lost(sold), [("A-2".into(), Reason::Taken)]);
    // An offer: other seats, paying from the start, which the same money buys.
    let offer = OpenHold { payment_ref: Some("pi".into()), ..case.opening("ada", &["A-5", "A-6"], 0) };
    let offer = case.try_hold(offer).await.unwrap();
    assert_eq!(offer.state, HoldState::Paying);
    let (payment_ref, from, to) = ("pi".into(), MoneyState::Received, MoneyState::Offered);
    let step =
        MoneyStep { payment_ref, from, to, offer: Some(offer.hold_id.clone()), note: "offered".into(), callback: None };
    case.ledger.money_step(LedgerCall::by("office"), step).await.unwrap();
    let order = case.sell(&offer, "pi").await;
    assert_eq!(order.seats[0].id, "A-5");
    let money = case.ledger.money("pi").await.unwrap().unwrap();
    assert_eq!((money.state, money.steps.len()), (MoneyState::Sold, 3));
    case.done().await;
}

pub(super) async fn a_message_counts_once(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let hold = case.hold("ada", &["A-1"]).await;
    case.pay(&hold, "pi").await.unwrap();
    let message = case.provider_confirm(&hold, "pi", "m-1", hold.total());
    let first = case.ledger.confirm(LedgerCall::by("provider"), message.clone()).await.unwrap().value;
    assert!(matches!(first, Confirmed::Order { .. }));
    assert_eq!(case.ledger.confirm(LedgerCall::by("provider"), message).await.unwrap().value, Confirmed::Duplicate);
    // Out of order: a decline that was overtaken changes nothing, and is no error.
    let (hold_id, payment_ref, callback) = (hold.hold_id.clone(), "pi".into(), Some("m-0".into()));
    let decline = Decline { hold_id, access: Access::Staff, payment_ref, given_up: false, callback };
    assert_eq!(case.ledger.decline(LedgerCall::by("provider"), decline).await.unwrap().value.state, HoldState::Sold);
    assert_eq!(case.state("A-1").await, SeatState::Sold);
    case.done().await;
}

pub(super) async fn money_for_other_seats_goes_back(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let hold = case.hold("ada", &["A-1"]).await;
    let message = |id: &str, reference: &str, tokens: Vec<(String, u64)>| Confirm {
        tokens,
        ..case.provider_confirm(&hold, reference, id, hold.total())
    };
    let stale = message("m-1", "pi", vec![("A-1".into(), hold.seats[0].token + 7)]);
    let Confirmed::Late { money, .. } = case.ledger.confirm(LedgerCall::by("p"), stale).await.unwrap().value else {
        panic!()
    };
    assert_eq!(money.state, MoneyState::RefundDue);
    let right = message("m-2", "pi_2", vec![("A-1".into(), hold.seats[0].token)]);
    assert!(matches!(case.ledger.confirm(LedgerCall::by("p"), right).await.unwrap().value, Confirmed::Order { .. }));
    let twice = message("m-3", "pi_3", vec![]);
    let Confirmed::Late { money, .. } = case.ledger.confirm(LedgerCall::by("p"), twice).await.unwrap().value else {
        panic!()
    };
    assert_eq!(money.state, MoneyState::RefundDue, "a second payment goes back");
    assert_eq!(case.ledger.takings(&case.event).await.unwrap().refunds_due, 200);
    case.done().await;
}

pub(super) async fn money_steps_once(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    late(&case, "ada", &["A-1"], "pi").await;
    let (from, to) = (MoneyState::Received, MoneyState::RefundDue);
    let step = MoneyStep { payment_ref: "pi".into(), from, to, offer: None, note: "gone".into(), callback: None };
    case.ledger.money_step(LedgerCall::by("a"), step.clone()).await.unwrap();
    assert_eq!(refused(case.ledger.money_step(LedgerCall::by("b"), step).await), Refusal::PaymentMismatch);
    case.done().await;
}

pub(super) async fn a_payment_is_for_one_hold(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let first = case.hold("ada", &["A-1"]).await;
    case.pay(&first, "pi").await.unwrap();
    let second = case.hold("bob", &["A-2"]).await;
    assert_eq!(refused(case.pay(&second, "pi").await), Refusal::PaymentMismatch);
    case.sell(&first, "pi").await;
    assert_eq!(refused(case.confirm(&second, "pi").await), Refusal::PaymentMismatch);
    // At once: one of them is first, and the other is told.
    let (third, both) = (case.hold("cyd", &["A-3"]).await, "pi_2");
    let (one, two) = tokio::join!(case.confirm(&second, both), case.confirm(&third, both));
    let sold = |answer: &Result<Confirmed, Error>| matches!(answer, Ok(Confirmed::Order { .. }));
    assert!(sold(&one) != sold(&two), "{one:?} {two:?}");
    assert_eq!(refused(if sold(&one) { two } else { one }), Refusal::PaymentMismatch);
    case.done().await;
}

pub(super) async fn a_seat_that_left_the_layout_is_not_sold(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let (hold, _) = late(&case, "ada", &["A-9"], "pi").await;
    let mut layout = super::case::hall();
    layout.seats.retain(|seat| seat.id != "A-9");
    let command = ReplaceLayout { event_id: case.event.clone(), layout, dry_run: false };
    case.ledger.replace_layout(LedgerCall::by("staff"), command).await.unwrap();
    let sold = case.ledger.sell_late(LedgerCall::by("office"), again(&case, &hold, "pi")).await;
    assert_eq!(lost(sold), [("A-9".into(), Reason::NoBlock)]);
    case.done().await;
}

/// What is written down of a payment: part, amount, state.
pub(super) async fn parts(case: &LawCase<'_>, payment_ref: &str) -> Vec<(String, u64, MoneyState)> {
    let rows = case.ledger.money_of_payment(payment_ref).await.unwrap();
    rows.into_iter().map(|row| (row.part, row.amount, row.state)).collect()
}

pub(super) async fn too_much_money_goes_back(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let hold = case.hold("ada", &["A-1"]).await;
    let told = |id: &str, amount| case.provider_confirm(&hold, "pi", id, amount);
    let due = MoneyState::RefundDue;
    let tell = async |id: &str, amount| match case
        .ledger
        .confirm(LedgerCall::by("provider"), told(id, amount))
        .await
        .unwrap()
        .value
    {
        Confirmed::Order { order, .. } => order,
        other => panic!("{other:?}"),
    };
    let order = tell("cb-1", 150).await;
    assert_eq!((order.total, order.paid, order.back), (100, Some(150), 50));
    assert_eq!(parts(&case, "pi").await, [("1".into(), 50, due)]);
    tell("cb-2", 150).await;
    assert_eq!(tell("cb-3", 170).await.back, 70, "more came than was known");
    assert_eq!(parts(&case, "pi").await, [("1".into(), 50, due), ("2".into(), 20, due)]);
    assert_eq!(case.ledger.takings(&case.event).await.unwrap().refunds_due, 70);
    // Money that came late is counted the same way.
    let (late, _) = late(&case, "bob", &["A-2"], "pi_2").await;
    let command = case.provider_confirm(&late, "pi_3", "cb-4", 130);
    case.ledger.confirm(LedgerCall::by("provider"), command).await.unwrap();
    let sold = case.ledger.sell_late(LedgerCall::by("office"), again(&case, &late, "pi_3")).await.unwrap().value;
    assert_eq!((sold.paid, sold.back, sold.late), (Some(130), 30, true));
    assert_eq!(parts(&case, "pi_3").await, [("".into(), 130, MoneyState::Sold), ("1".into(), 30, due)]);
    let of = async |hold: &HoldRow| case.ledger.money_of_hold(&hold.hold_id).await.unwrap();
    let amounts = |rows: &[MoneyRow]| rows.iter().map(|row| row.amount).collect::<Vec<_>>();
    assert_eq!((amounts(&of(&hold).await), amounts(&of(&late).await)), (vec![50, 20], vec![100, 130, 30]));
    // It is told, once for each part.
    while !case.ledger.sequence(100).await.unwrap().is_empty() {}
    let told = case.ledger.audit(&case.event, AuditQuery::default()).await.unwrap();
    let told = told.iter().filter(|entry| entry.kind == EntryKind::RefundDue && entry.order_id.is_some());
    assert_eq!(told.map(|entry| entry.amount.unwrap()).collect::<Vec<_>>(), [50, 20, 30]);
    case.done().await;
}

pub(super) async fn money_for_another_hold_is_kept(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let (first, second) = (case.hold("ada", &["A-1"]).await, case.hold("bob", &["A-2"]).await);
    case.pay(&first, "pi").await.unwrap();
    let told = |id: &str| case.provider_confirm(&second, "pi", id, 90);
    for id in ["cb-1", "cb-2"] {
        let answer = case.ledger.confirm(LedgerCall::by("provider"), told(id)).await.unwrap().value;
        let Confirmed::Late { hold, money } = answer else { panic!("{answer:?}") };
        assert_eq!((hold.hold_id.clone(), money.hold_id, money.amount), (second.hold_id.clone(), hold.hold_id, 90));
        assert!(money.steps[0].note.contains(first.hold_id.as_str()), "{:?}", money.steps);
    }
    let again = case.ledger.confirm(LedgerCall::by("provider"), told("cb-1")).await.unwrap().value;
    assert_eq!(again, Confirmed::Duplicate);
    // Once, however often it is told; it sold nothing, and the payment buys what it is for.
    let kept = [(second.hold_id.0.clone(), 90, MoneyState::Stuck)];
    assert_eq!(parts(&case, "pi").await, kept);
    assert_eq!(case.state("A-2").await, SeatState::Held);
    case.sell(&first, "pi").await;
    assert_eq!(parts(&case, "pi").await, kept);
    assert_eq!(case.ledger.money_of_hold(&first.hold_id).await.unwrap(), []);
    assert_eq!(case.ledger.money_of_hold(&second.hold_id).await.unwrap().len(), 1);
    assert_eq!(refused(case.confirm(&second, "pi").await), Refusal::PaymentMismatch, "a buyer's word is no money");
    case.done().await;
}

pub(super) async fn nobodys_word_sells_nothing(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let hold = case.hold("ada", &["A-1"]).await;
    let buyer = Confirm { proof: PaymentProof::Buyer, ..case.confirming(&hold, "pi") };
    let short = Confirm { proof: PaymentProof::Key { amount: Some(99) }, ..case.confirming(&hold, "pi") };
    for command in [buyer, short] {
        assert_eq!(refused(case.ledger.confirm(LedgerCall::by("ada"), command).await), Refusal::NotPaid);
    }
    let order = case.sell(&hold, "pi").await;
    assert_eq!((order.paid, order.sold_for), (Some(100), Some(100)));
    assert_eq!((order.sources[0].by, order.sources[0].amount), (PaymentWitness::Key, 100));
    // What costs nothing needs nobody's word.
    let free = OpenHold { seats: vec![Priced { id: "A-2".into(), price: 0 }], ..case.opening("bob", &[], 0) };
    let free = case.try_hold(free).await.unwrap();
    let buyer = Confirm { proof: PaymentProof::Buyer, ..case.confirming(&free, "free") };
    let sold = case.ledger.confirm(LedgerCall::by("bob"), buyer).await.unwrap().value;
    assert!(matches!(sold, Confirmed::Order { order, .. } if order.paid == Some(0)));
    case.done().await;
}

pub(super) async fn what_does_not_fit_is_stuck(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let (cheap, dear) = (case.hold("ada", &["A-1"]).await, case.hold("bob", &["A-2", "A-3"]).await);
    case.pay(&dear, "pi").await.unwrap();
    let word = |hold: &HoldRow, currency: Option<&str>| {
        let (hold_id, currency) = (hold.hold_id.clone(), currency.map(Into::into));
        PaymentProof::Provider(ProviderWord { amount: 200, currency, hold_id, authorised: false })
    };
    for (id, proof) in [("cb-1", word(&cheap, None)), ("cb-2", word(&dear, Some("USD")))] {
        let command = Confirm { proof, ..case.provider_confirm(&dear, "pi", id, 200) };
        let told = case.ledger.confirm(LedgerCall::by("provider"), command).await.unwrap().value;
        let Confirmed::Late { money, .. } = told else { panic!("{told:?}") };
        assert_eq!((money.state, money.amount), (MoneyState::Stuck, 200));
    }
    assert_eq!(parts(&case, "pi").await, [(dear.hold_id.0.clone(), 200, MoneyState::Stuck)], "once");
    assert_eq!(case.state("A-2").await, SeatState::Paying);
    case.ledger.confirm(LedgerCall::by("provider"), case.provider_confirm(&dear, "pi", "cb-3", 200)).await.unwrap();
    assert_eq!(case.state("A-2").await, SeatState::Sold);
    // Less than was recorded is stuck, too.
    case.ledger.confirm(LedgerCall::by("provider"), case.provider_confirm(&dear, "pi", "cb-4", 1)).await.unwrap();
    assert_eq!(parts(&case, "pi").await[1], ("less-1".into(), 1, MoneyState::Stuck));
    case.done().await;
}

pub(super) async fn what_is_authorised_is_captured_later(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let authorised = |hold: &HoldRow, id: &str, amount| {
        let (hold_id, currency) = (hold.hold_id.clone(), None);
        let proof = PaymentProof::Provider(ProviderWord { amount, currency, hold_id, authorised: true });
        Confirm { proof, ..case.provider_confirm(hold, id, id, amount) }
    };
    let (ada, bob) = (case.hold("ada", &["A-1"]).await, case.hold("bob", &["A-2"]).await);
    for hold in [&ada, &bob] {
        let command = authorised(hold, &format!("pi {}", hold.hold_id), 100);
        case.ledger.confirm(LedgerCall::by("provider"), command).await.unwrap();
    }
    let due = case.ledger.captures_open().await.unwrap();
    assert_eq!(due.iter().map(|order| &order.hold_id).collect::<Vec<_>>(), [&ada.hold_id, &bob.hold_id]);
    let step = |order: &OrderRow, to| CaptureStep { order_id: order.order_id.clone(), to, note: "said".into() };
    for (order, to) in [(&due[0], CaptureState::Captured), (&due[1], CaptureState::Failed)] {
        let done = case.ledger.capture_step(LedgerCall::by("settler"), step(order, to)).await.unwrap().value;
        assert_eq!(done.capture.unwrap().state, to);
    }
    let open = case.ledger.captures_open().await.unwrap();
    assert_eq!(open.iter().map(|order| &order.hold_id).collect::<Vec<_>>(), [&bob.hold_id], "what failed is staff's");
    // Too late: cancelled, and nobody's money moved.
    let (late, _) = late(&case, "cleo", &["A-3"], "pi_9").await;
    case.ledger.confirm(LedgerCall::by("provider"), authorised(&late, "pi_10", 100)).await.unwrap();
    assert_eq!(parts(&case, "pi_10").await, [("".into(), 100, MoneyState::CancelDue)]);
    case.done().await;
}
