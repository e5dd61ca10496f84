//! Rules of holds, areas, limits and lapses.

use super::*;

/// Goal: a server that was stalled between its lease and its row is overtaken, and its old token takes no free seat.
#[test]
fn a_free_seat_remembers_its_last_token() {
    let mut case = MoneyFixture::open();
    case.hold(&["A-3"]);
    let hold = case.hold(&["A-1"]);
    let release = ReleaseHold { hold_id: hold.hold_id.clone(), access: Access::Staff };
    case.decide(&release, decide::need_release, decide::release).unwrap();
    case.token -= 1;
    let late = case.opening(None, &["A-1"], "h_late");
    assert_eq!(case.decide(&late, decide::need_open_hold, decide::open_hold), Err(Refusal::StaleToken));
    let other = case.opening(None, &["A-2"], "h_other");
    assert!(case.decide(&other, decide::need_open_hold, decide::open_hold).is_ok(), "another seat had no token yet");
    case.check();
}

/// Goal: an area that is named twice is refused: each would be counted from what was blocked before.
#[test]
fn an_area_is_blocked_once_in_a_request() {
    let mut case = MoneyFixture::open();
    let areas = vec![("floor".into(), 2), ("floor".into(), 2)];
    let (event_id, reason) = (EVENT.into(), "house".into());
    let command = SetBlocks { event_id, block: vec![], unblock: vec![], areas, reason };
    let refused = case.decide(&command, decide::need_set_blocks, decide::set_blocks);
    assert!(matches!(refused, Err(Refusal::Exists(_))), "{refused:?}");
    case.check();
}

/// Goal: a limit that was lowered takes nothing away, and is no fault of those who bought before.
#[test]
fn a_lowered_limit_is_no_fault() {
    let mut case = MoneyFixture::open();
    let hold = case.hold(&["A-1", "A-2", "A-3"]);
    case.order(&hold, "pi");
    let settings = EventSettings { per_buyer: 1, ..case.ledger.event.clone().unwrap().settings };
    let command = Configure { event_id: EVENT.into(), settings, seen: None };
    case.decide(&command, decide::need_configure, decide::configure).unwrap();
    case.check();
}

/// Goal: naming a payment does not save a hold that lapses from being counted; money that came does.
#[test]
fn a_lapse_without_money_counts() {
    let mut case = MoneyFixture::open();
    let lapses = |case: &MoneyFixture| case.ledger.buyers[&"ada".into()].lapses;
    let hold = case.hold(&["A-1"]);
    case.pay(&hold, "x").unwrap();
    case.advance_time(200);
    case.sweep();
    assert_eq!(lapses(&case), 1);

    let hold = case.hold(&["A-1"]);
    case.pay(&hold, "pi").unwrap();
    case.advance_time(200);
    case.late(&hold, "pi", 100);
    assert_eq!(lapses(&case), 1, "the money came");
    let offer = case.hold_for(Some("pi"), &["A-2"]);
    case.offer("pi", &offer);
    case.advance_time(200);
    case.sweep();
    assert_eq!(lapses(&case), 1, "the money had come before");
    case.check();
}

/// Goal: sums of money are checked: what would cost more than there is cannot be held, and nothing saturates.
#[test]
fn what_no_money_can_pay_is_not_held() {
    let mut case = MoneyFixture::open();
    let priced = |case: &MoneyFixture, price: u64, seats: &[&str]| {
        let mut command = case.opening(None, seats, "h_dear");
        command.seats.iter_mut().for_each(|seat| seat.price = price);
        command
    };
    case.token += 1;
    for (price, seats) in [(u64::MAX, &["A-1", "A-2"][..]), (order::MAX_AMOUNT, &["A-1", "A-2"]), (u64::MAX, &["A-1"])]
    {
        let dear = priced(&case, price, seats);
        assert_eq!(case.decide(&dear, decide::need_open_hold, decide::open_hold), Err(Refusal::TooDear), "{price}");
    }
    let most = priced(&case, order::MAX_AMOUNT, &["A-1"]);
    let held = case.decide(&most, decide::need_open_hold, decide::open_hold).unwrap().hold;
    assert_eq!(held.total(), order::MAX_AMOUNT);
    let more = ChangeSeats {
        hold_id: held.hold_id.clone(),
        access: Access::Staff,
        layout_version: 1,
        add: vec![Priced { id: "A-2".into(), price: 1 }],
        add_areas: vec![],
        lease: Some(LeaseRef { token: case.token + 1, id: "more".into() }),
        remove: vec![],
        remove_areas: vec![],
    };
    assert_eq!(case.decide(&more, decide::need_change_seats, decide::change_seats), Err(Refusal::TooDear));
    case.check();
}
