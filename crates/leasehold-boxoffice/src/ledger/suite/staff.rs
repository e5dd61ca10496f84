//! Events, blocks, voids, moves.

use super::LedgerSubject;
use super::case::{LawCase, hall, lost, refused};
use super::sales::parts;
use crate::model::*;

pub(super) async fn what_is_frozen_is_not_held(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let ada = case.hold("ada", &["A-1"]).await;
    let freeze = |frozen| Freeze { event_id: case.event.clone(), frozen, reason: "fire drill".into() };
    assert!(case.ledger.freeze(LedgerCall::by("staff"), freeze(true)).await.unwrap().value.frozen);
    let bob = case.try_hold(case.opening("bob", &["A-2"], 1)).await;
    assert_eq!(lost(bob), [("A-2".into(), Reason::NotOnSale), ("floor".into(), Reason::NotOnSale)]);
    case.sell(&ada, "pi").await;
    case.ledger.freeze(LedgerCall::by("staff"), freeze(false)).await.unwrap();
    case.hold("bob", &["A-2"]).await;
    case.done().await;
}

fn blocks(case: &LawCase<'_>, block: &[&str], unblock: &[&str], places: Option<u32>) -> SetBlocks {
    SetBlocks {
        event_id: case.event.clone(),
        block: block.iter().map(|id| (*id).into()).collect(),
        unblock: unblock.iter().map(|id| (*id).into()).collect(),
        areas: places.map(|places| ("floor".into(), places)).into_iter().collect(),
        reason: "camera".into(),
    }
}

pub(super) async fn blocks_keep_seats_back(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    case.hold("ada", &["A-1"]).await;
    let set = |command| case.ledger.set_blocks(LedgerCall::by("staff"), command);
    assert_eq!(lost(set(blocks(&case, &["A-1", "A-2"], &[], None)).await), [("A-1".into(), Reason::Taken)]);
    let done = set(blocks(&case, &["A-2", "A-3"], &[], Some(4))).await.unwrap().value;
    assert_eq!(done.blocked, ["A-2", "A-3"]);
    assert_eq!(lost(case.try_hold(case.opening("bob", &["A-2"], 0)).await), [("A-2".into(), Reason::Blocked)]);
    assert_eq!(lost(case.try_hold(case.opening("bob", &[], 2)).await), [("floor".into(), Reason::Blocked)]);
    let done = set(blocks(&case, &["A-3"], &["A-2", "A-9"], Some(0))).await.unwrap().value;
    assert_eq!((done.blocked, done.unblocked), (vec![], vec!["A-2".into()]));
    case.try_hold(case.opening("bob", &["A-2"], 2)).await.unwrap();
    // A hold that is over gives way to the house.
    case.advance_time(10).await;
    set(blocks(&case, &["A-1"], &[], Some(5))).await.unwrap();
    case.done().await;
}

pub(super) async fn a_forced_release_ends_the_hold(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let hold = case.hold("ada", &["A-1", "A-2"]).await;
    case.pay(&hold, "pi").await.unwrap();
    let force = |seat: &str| {
        let (event_id, seat, reason) = (case.event.clone(), seat.into(), "wheelchair place".into());
        case.ledger.force_release(LedgerCall::by("staff"), ForceRelease { event_id, seat, reason })
    };
    assert_eq!(refused(force("A-9").await), Refusal::NotHeld("A-9".into()));
    let ended = force("A-2").await.unwrap().value;
    assert_eq!((ended.state, ended.hold_id.clone()), (HoldState::Released, hold.hold_id.clone()));
    case.hold("bob", &["A-1"]).await;
    // Money that still comes goes back.
    let Confirmed::Late { money, .. } = case.confirm(&hold, "pi").await.unwrap() else { panic!() };
    assert_eq!(money.state, MoneyState::RefundDue);
    case.done().await;
}

pub(super) async fn a_void_frees(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let hold = case.try_hold(case.opening("ada", &["A-1"], 3)).await.unwrap();
    let order = case.sell(&hold, "pi").await;
    let void = Void { order_id: order.order_id.clone(), seats: None, reason: "cancelled".into() };
    let amended = case.ledger.void(LedgerCall::by("staff"), void.clone()).await.unwrap().value;
    assert_eq!((amended.order.state, amended.owed), (OrderState::Voided, 130));
    assert_eq!(case.ledger.void(LedgerCall::by("staff"), void).await.unwrap().value.owed, 0, "again owes nothing");
    case.try_hold(case.opening("ada", &["A-1"], 3)).await.unwrap();
    let none = Void { order_id: "o_none".into(), seats: None, reason: "x".into() };
    assert_eq!(refused(case.ledger.void(LedgerCall::by("staff"), none).await), Refusal::NoOrder("o_none".into()));
    case.done().await;
}

pub(super) async fn a_void_of_some_seats(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let order = case.sell(&case.hold("ada", &["A-1", "A-2", "A-3"]).await, "pi").await;
    let void =
        |seat: &str| Void { order_id: order.order_id.clone(), seats: Some(vec![seat.into()]), reason: "ill".into() };
    let amended = case.ledger.void(LedgerCall::by("staff"), void("A-2")).await.unwrap().value;
    assert_eq!((amended.order.state, amended.order.total, amended.owed), (OrderState::Sold, 200, 100));
    assert_eq!(refused(case.ledger.void(LedgerCall::by("staff"), void("A-2")).await), Refusal::NoSeat("A-2".into()));
    case.hold("bob", &["A-2"]).await;
    assert_eq!(case.state("A-1").await, SeatState::Sold);
    case.done().await;
}

pub(super) async fn a_move_keeps_the_order(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let order = case.sell(&case.hold("ada", &["A-1", "A-2"]).await, "pi").await;
    case.hold("bob", &["A-5"]).await;
    let to = |from: &str, to: &str, token| MoveOrder {
        order_id: order.order_id.clone(),
        moves: vec![(from.into(), Priced { id: to.into(), price: 150 })],
        layout_version: 1,
        token,
        reason: "broken seat".into(),
    };
    let taken = case.ledger.move_order(LedgerCall::by("staff"), to("A-1", "A-5", case.token())).await;
    assert_eq!(lost(taken), [("A-5".into(), Reason::Taken)]);
    let own = case.ledger.move_order(LedgerCall::by("staff"), to("A-1", "A-2", case.token())).await;
    assert_eq!(lost(own), [("A-2".into(), Reason::Sold)]);
    let token = case.token();
    let moved = case.ledger.move_order(LedgerCall::by("staff"), to("A-1", "A-6", token)).await.unwrap().value;
    assert_eq!((moved.order.total, moved.owed), (250, -50));
    assert_eq!(moved.order.seats.iter().find(|seat| seat.id == "A-6").unwrap().token, token);
    assert_eq!((case.state("A-1").await, case.state("A-6").await), (SeatState::Free, SeatState::Sold));
    case.done().await;
}

pub(super) async fn a_layout_keeps_what_is_in_use(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    case.try_hold(case.opening("ada", &["A-9"], 2)).await.unwrap();
    let mut layout = hall();
    layout.seats.truncate(8);
    layout.areas[0].capacity = 1;
    let replace = |layout| {
        case.ledger.replace_layout(
            LedgerCall::by("staff"),
            ReplaceLayout { event_id: case.event.clone(), layout, dry_run: false },
        )
    };
    let conflicts = lost(replace(layout).await);
    assert_eq!(conflicts, [("A-9".into(), Reason::Taken), ("floor".into(), Reason::Taken)]);
    let mut layout = hall();
    layout.seats.remove(0);
    layout.areas[0].capacity = 50;
    let row = replace(layout.clone()).await.unwrap().value;
    assert_eq!((row.layout_version, row.seats), (2, 8));
    assert_eq!(case.ledger.layout(&case.event).await.unwrap(), Some((2, layout)));
    let old = case.opening("bob", &["A-2"], 0);
    assert_eq!(refused(case.try_hold(old).await), Refusal::LayoutChanged);
    let snapshot = case.ledger.snapshot(&case.event).await.unwrap().unwrap();
    assert_eq!(snapshot.areas[0].free(), 48);
    case.done().await;
}

pub(super) async fn events_are_listed(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let new = |id: &str| NewEvent { event_id: id.into(), settings: EventSettings::named(id), layout: hall() };
    case.ledger.create_event(LedgerCall::by("staff"), new("aa")).await.unwrap();
    let twice = case.ledger.create_event(LedgerCall::by("staff"), new("aa")).await;
    assert!(matches!(refused(twice), Refusal::Exists(_)));
    let names: Vec<String> = case.ledger.events().await.unwrap().into_iter().map(|row| row.event_id.0).collect();
    assert_eq!(names, ["ev", "aa"], "in the order they were made");
    let settings = EventSettings { on_sale: false, ..EventSettings::named("later") };
    let row = case.ledger.configure(
        LedgerCall::by("staff"),
        Configure { event_id: case.event.clone(), settings: settings.clone(), seen: None },
    );
    assert_eq!(row.await.unwrap().value.settings, settings);
    let held = OpenHold { layout_version: 2, ..case.opening("ada", &["A-1"], 0) };
    assert_eq!(lost(case.try_hold(held).await), [("A-1".into(), Reason::NotOnSale)]);
    // Events do not meet: the same seat of another event is another seat.
    let other = OpenHold { event_id: "aa".into(), ..case.opening("ada", &["A-1"], 0) };
    case.try_hold(other).await.unwrap();
    assert_eq!(case.state("A-1").await, SeatState::Free);
    assert_eq!(case.ledger.event(&"none".into()).await.unwrap(), None);
    case.done().await;
}

pub(super) async fn a_hold_of_places_is_released_by_its_id(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let hold = case.try_hold(case.opening("ada", &[], 3)).await.unwrap();
    let command = |event: &str| ForceRelease {
        event_id: event.into(),
        seat: hold.hold_id.0.clone(),
        reason: "lost in the queue".into(),
    };
    case.ledger.force_release(LedgerCall::by("staff"), command("other")).await.unwrap_err();
    let row = case.ledger.force_release(LedgerCall::by("staff"), command("ev")).await.unwrap().value;
    assert_eq!(row.state, HoldState::Released);
    let free = case.ledger.snapshot(&case.event).await.unwrap().unwrap().areas[0].free();
    assert_eq!(free, 5);
    case.done().await;
}

pub(super) async fn a_void_gives_back(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let hold = case.try_hold(case.opening("ada", &["A-1", "A-2"], 1)).await.unwrap();
    let order = case.sell(&hold, "pi").await;
    let void = |seats: Option<&str>| Void {
        order_id: order.order_id.clone(),
        seats: seats.map(|seat| vec![seat.into()]),
        reason: "ill".into(),
    };
    let amended = case.ledger.void(LedgerCall::by("staff"), void(Some("A-2"))).await.unwrap().value;
    assert_eq!((amended.owed, amended.order.owed()), (100, 0), "it is on its way");
    let amended = case.ledger.void(LedgerCall::by("staff"), void(None)).await.unwrap().value;
    assert_eq!((amended.owed, amended.order.back), (110, 210));
    let due = MoneyState::RefundDue;
    assert_eq!(parts(&case, "pi").await, [("1".into(), 100, due), ("2".into(), 110, due)]);
    let rows = case.ledger.money_of_payment("pi").await.unwrap();
    assert_eq!(rows[0].steps[0].note, "ill");
    assert_ne!(rows[0].refund_id(), rows[1].refund_id());
    // A free ticket owes nothing.
    let free = OpenHold { seats: vec![Priced { id: "A-5".into(), price: 0 }], ..case.opening("bob", &[], 0) };
    let free = case.sell(&case.try_hold(free).await.unwrap(), "free").await;
    let void = Void { order_id: free.order_id, seats: None, reason: "ill".into() };
    assert_eq!(case.ledger.void(LedgerCall::by("staff"), void).await.unwrap().value.owed, 0);
    assert_eq!(parts(&case, "free").await, []);
    case.done().await;
}

pub(super) async fn a_move_settles_the_difference(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let order = case.sell(&case.hold("ada", &["A-1"]).await, "pi").await;
    let moved = async |from: &str, to: &str, price| {
        let moves = vec![(from.into(), Priced { id: to.into(), price })];
        let (order_id, token, reason) = (order.order_id.clone(), case.token(), "broken seat".into());
        let command = MoveOrder { order_id, moves, layout_version: 1, token, reason };
        case.ledger.move_order(LedgerCall::by("staff"), command).await.unwrap().value
    };
    let dearer = moved("A-1", "A-2", 150).await;
    assert_eq!((dearer.owed, dearer.order.owed()), (-50, -50), "the buyer owes it, and goes on owing it");
    assert_eq!(moved("A-2", "A-3", 100).await.owed, 0, "what never came does not go back");
    assert_eq!(parts(&case, "pi").await, []);
    let cheaper = moved("A-3", "A-4", 40).await;
    assert_eq!((cheaper.owed, cheaper.order.owed()), (60, 0));
    assert_eq!(parts(&case, "pi").await, [("1".into(), 60, MoneyState::RefundDue)]);
    let void = Void { order_id: order.order_id.clone(), seats: None, reason: "ill".into() };
    assert_eq!(case.ledger.void(LedgerCall::by("staff"), void).await.unwrap().value.owed, 40, "never more than came");
    case.done().await;
}

pub(super) async fn rules_are_changed_by_one_at_a_time(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let event = case.ledger.event(&case.event).await.unwrap().unwrap();
    let change = |name: &str, seen| Configure {
        event_id: case.event.clone(),
        settings: EventSettings { name: name.into(), ..event.settings.clone() },
        seen,
    };
    let seen = Some(event.layout_version);
    let (one, two) = tokio::join!(
        case.ledger.configure(LedgerCall::by("eve"), change("Eve's", seen)),
        case.ledger.configure(LedgerCall::by("max"), change("Max's", seen))
    );
    assert!(one.is_ok() != two.is_ok(), "{one:?} {two:?}");
    let (won, lost) = if one.is_ok() { (one, two) } else { (two, one) };
    assert_eq!(refused(lost), Refusal::Changed);
    let now = case.ledger.event(&case.event).await.unwrap().unwrap();
    assert_eq!(now, won.unwrap().value, "what was refused left no trace");
    case.ledger.configure(LedgerCall::by("max"), change("Max's", Some(now.layout_version))).await.unwrap();
    case.ledger.configure(LedgerCall::by("max"), change("Anybody's", None)).await.unwrap();
    case.done().await;
}
