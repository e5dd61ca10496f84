//! Late money, and the seats offered for it.

use super::*;

/// Goal: what was offered for late money is bought with that very money, also after a decline that came in between.
#[test]
fn an_offer_is_bought_with_its_money() {
    let mut case = MoneyFixture::open();
    let hold = case.hold(&["A-1"]);
    case.pay(&hold, "pi").unwrap();
    case.advance_time(200);
    case.late(&hold, "pi", 100);
    let offer = case.hold_for(Some("pi"), &["A-2"]);
    case.offer("pi", &offer);
    assert_eq!(case.order(&offer, "pi").seats[0].id, "A-2");
    assert_eq!(case.ledger.money["pi"].state, MoneyState::Sold);
    case.check();
}

/// Goal: an offer cannot be declined, enlarged and bought with the old money.
/// Method: the provider's decline names the offered hold, and so does a key's; then seats are added, and it is confirmed.
#[test]
fn an_offer_stands_whatever_is_declined() {
    let mut case = MoneyFixture::open();
    let hold = case.hold(&["A-1"]);
    case.pay(&hold, "pi").unwrap();
    case.advance_time(200);
    case.late(&hold, "pi", 100);
    let offer = case.hold_for(Some("pi"), &["A-2"]);
    case.offer("pi", &offer);
    let decline = |callback: Option<&str>| Decline {
        hold_id: offer.hold_id.clone(),
        access: Access::Staff,
        payment_ref: "pi".into(),
        given_up: true,
        callback: callback.map(Into::into),
    };
    let refused = case.decide(&decline(None), decide::need_decline, decide::decline);
    assert_eq!(refused, Err(Refusal::OfferStands));
    let told = case.decide(&decline(Some("cb")), decide::need_decline, decide::decline).unwrap();
    assert_eq!((told.state, told.expires_at), (HoldState::Paying, offer.expires_at), "it changes nothing");
    let add = ChangeSeats {
        hold_id: offer.hold_id.clone(),
        access: Access::Staff,
        layout_version: 1,
        add: vec![Priced { id: "A-3".into(), price: 100 }],
        add_areas: vec![],
        lease: Some(LeaseRef { token: 900, id: "more".into() }),
        remove: vec![],
        remove_areas: vec![],
    };
    assert_eq!(case.decide(&add, decide::need_change_seats, decide::change_seats), Err(Refusal::Paying));
    // Whatever brought it about: an offer that costs more than its money is not sold for it.
    let mut grown = offer.clone();
    grown.seats.iter_mut().for_each(|seat| seat.price = 101);
    case.ledger.holds.insert(offer.hold_id.clone(), grown);
    let confirm = Confirm { tokens: vec![], ..case.confirming(&offer, "pi", PaymentProof::Buyer) };
    assert_eq!(case.decide(&confirm, decide::need_confirm, decide::confirm), Err(Refusal::NotPaid));
    case.ledger.holds.insert(offer.hold_id.clone(), offer.clone());
    assert!(case.decide(&confirm, decide::need_confirm, decide::confirm).is_ok());
    case.check();
}

/// Goal: late money does not buy a seat that is no longer in the layout.
#[test]
fn a_seat_that_left_the_layout_is_not_sold_late() {
    let mut case = MoneyFixture::open();
    let hold = case.hold(&["A-6"]);
    case.pay(&hold, "pi").unwrap();
    case.advance_time(200);
    assert_eq!(case.late(&hold, "pi", 100).state, MoneyState::Received);
    let mut layout = hall();
    layout.seats.retain(|seat| seat.id != "A-6");
    let command = ReplaceLayout { event_id: EVENT.into(), layout, dry_run: false };
    case.decide(&command, decide::need_replace_layout, decide::replace_layout).unwrap();
    let lost = Refusal::Conflict { conflicts: vec![Conflict::seat("A-6", Reason::NoBlock)], alternative: None };
    assert_eq!(case.sell_late(&hold, "pi"), Err(lost));
    case.check();
}
