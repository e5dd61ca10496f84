//! Money by itself: which payment buys what, and what goes back.

use super::shelf::Shelf;
use super::walk::hall;
use crate::model::check::invariants;
use crate::model::*;

/// One event on the shelf, and short words for what is asked of it.
struct Desk {
    shelf: Shelf,
    now: Moment,
    token: u64,
}

const EVENT: &str = "ev";

impl Desk {
    fn open() -> Self {
        let mut desk = Self { shelf: Shelf::default(), now: Moment(1000), token: 0 };
        let settings =
            EventSettings { ttl_ms: 100, max_hold_ms: 300, pay_ms: 200, per_buyer: 4, ..EventSettings::named("Gala") };
        let command = NewEvent { event_id: EVENT.into(), settings, layout: hall() };
        desk.ask(&command, decide::need_create_event, decide::create_event).unwrap();
        desk
    }

    fn ask<C, T>(
        &mut self,
        command: &C,
        need: fn(&C) -> facts::Need,
        decide: fn(&C, &facts::Facts, &str, Moment) -> decide::Decision<T>,
    ) -> Result<T, Refusal> {
        let now = self.now;
        self.shelf.transact(&need(command), now, |facts| decide(command, facts, "test", now))
    }

    fn pass(&mut self, millis: u64) {
        self.now = self.now.plus(millis);
    }

    fn hold_for(&mut self, payment_ref: Option<&str>, seats: &[&str]) -> HoldRow {
        self.token += 1;
        let command = OpenHold {
            event_id: EVENT.into(),
            layout_version: self.shelf.event.as_ref().unwrap().layout_version,
            hold_id: HoldId(format!("h_{}", self.token)),
            buyer: "ada".into(),
            key_hash: "key".into(),
            sealed_key: String::new(),
            seats: seats.iter().map(|id| Priced { id: (*id).into(), price: 100 }).collect(),
            areas: vec![],
            lease: LeaseRef { token: self.token, id: "lease".into() },
            payment_ref: payment_ref.map(Into::into),
        };
        self.ask(&command, decide::need_open_hold, decide::open_hold).unwrap().hold
    }

    fn hold(&mut self, seats: &[&str]) -> HoldRow {
        self.hold_for(None, seats)
    }

    fn pay(&mut self, hold: &HoldRow, payment_ref: &str) -> Result<HoldRow, Refusal> {
        let tokens = hold.leases.iter().map(|lease| lease.token).collect();
        let (hold_id, payment_ref) = (hold.hold_id.clone(), payment_ref.into());
        let command = BeginPay { hold_id, access: Access::Staff, payment_ref, tokens };
        self.ask(&command, decide::need_begin_pay, decide::begin_pay)
    }

    fn declined(&mut self, hold: &HoldRow, payment_ref: &str) -> HoldRow {
        let (hold_id, payment_ref) = (hold.hold_id.clone(), payment_ref.into());
        let command = Decline { hold_id, access: Access::Staff, payment_ref, callback: None };
        self.ask(&command, decide::need_decline, decide::decline).unwrap()
    }

    fn change(&mut self, hold: &HoldRow, add: &[&str], remove: &[&str]) -> HoldRow {
        self.token += 1;
        let lease = LeaseRef { token: self.token, id: "more".into() };
        let command = ChangeSeats {
            hold_id: hold.hold_id.clone(),
            access: Access::Staff,
            layout_version: 1,
            add: add.iter().map(|id| Priced { id: (*id).into(), price: 100 }).collect(),
            add_areas: vec![],
            lease: (!add.is_empty()).then_some(lease),
            remove: remove.iter().map(|id| (*id).into()).collect(),
            remove_areas: vec![],
        };
        self.ask(&command, decide::need_change_seats, decide::change_seats).unwrap()
    }

    /// The provider says that so much came for what the hold had when it looked like this.
    fn captured(&mut self, hold: &HoldRow, payment_ref: &str, amount: u64) -> Result<Confirmed, Refusal> {
        self.token += 1;
        let command = Confirm {
            hold_id: hold.hold_id.clone(),
            access: Access::Staff,
            payment_ref: payment_ref.into(),
            tokens: hold.seats.iter().map(|seat| (seat.id.clone(), seat.token)).collect(),
            amount: Some(amount),
            callback: Some(format!("m_{}", self.token)),
        };
        self.ask(&command, decide::need_confirm, decide::confirm)
    }

    fn order(&mut self, hold: &HoldRow, payment_ref: &str) -> OrderRow {
        match self.captured(hold, payment_ref, hold.total()).unwrap() {
            Confirmed::Order { order, .. } => order,
            other => panic!("{other:?}"),
        }
    }

    fn late(&mut self, hold: &HoldRow, payment_ref: &str, amount: u64) -> MoneyRow {
        match self.captured(hold, payment_ref, amount).unwrap() {
            Confirmed::Late { money, .. } => money,
            other => panic!("{other:?}"),
        }
    }

    fn sell_late(&mut self, hold: &HoldRow, payment_ref: &str) -> Result<OrderRow, Refusal> {
        self.token += 1;
        let command = SellLate { hold_id: hold.hold_id.clone(), payment_ref: payment_ref.into(), token: self.token };
        self.ask(&command, decide::need_sell_late, decide::sell_late)
    }

    fn offer(&mut self, payment_ref: &str, hold: &HoldRow) {
        let command = MoneyStep {
            payment_ref: payment_ref.into(),
            from: MoneyState::Received,
            to: MoneyState::Offered,
            offer: Some(hold.hold_id.clone()),
            note: "offered".into(),
            callback: None,
        };
        self.ask(&command, decide::need_money_step, decide::money_step).unwrap();
    }

    fn sweep(&mut self) {
        let now = self.now;
        self.shelf.transact(&decide::need_lapse_due(9), now, |facts| decide::lapse_due(9, facts, now)).unwrap();
    }

    fn check(&self) {
        let broken: Vec<_> = invariants(&self.shelf.dump(self.now)).into_iter().filter(|check| !check.ok).collect();
        assert!(broken.is_empty(), "{broken:#?}");
    }
}

/// Goal: a payment that bought one hold, or was begun for it, buys no other.
#[test]
fn one_payment_is_for_one_hold() {
    let mut desk = Desk::open();
    let first = desk.hold(&["A-1"]);
    desk.order(&first, "pi_1");
    let second = desk.hold(&["A-2"]);
    assert_eq!(desk.pay(&second, "pi_1"), Err(Refusal::PaymentMismatch));
    assert_eq!(desk.late(&second, "pi_1", 100).state, MoneyState::Stuck);
    desk.pay(&second, "pi_2").unwrap();
    let third = desk.hold(&["A-3"]);
    assert_eq!(desk.pay(&third, "pi_2"), Err(Refusal::PaymentMismatch));
    assert_eq!(desk.shelf.orders.len(), 1);
    desk.check();
}

/// Goal: what was offered for late money is bought with that very money, also after a decline that came in between.
#[test]
fn an_offer_is_bought_with_its_money() {
    let mut desk = Desk::open();
    let hold = desk.hold(&["A-1"]);
    desk.pay(&hold, "pi").unwrap();
    desk.pass(200);
    desk.late(&hold, "pi", 100);
    let offer = desk.hold_for(Some("pi"), &["A-2"]);
    desk.offer("pi", &offer);
    let offer = desk.declined(&offer, "pi");
    let offer = desk.pay(&offer, "pi").unwrap();
    assert_eq!(desk.order(&offer, "pi").seats[0].id, "A-2");
    assert_eq!(desk.shelf.money["pi"].state, MoneyState::Sold);
    desk.check();
}

/// Goal: too little money buys nothing, in time or late, and all that came goes back.
#[test]
fn too_little_money_goes_back() {
    let mut desk = Desk::open();
    let hold = desk.hold(&["A-1", "A-2"]);
    desk.pay(&hold, "pi_1").unwrap();
    let money = desk.late(&hold, "pi_1", 199);
    assert_eq!((money.state, money.amount), (MoneyState::RefundDue, 199));
    let other = desk.hold(&["A-3"]);
    desk.pay(&other, "pi_2").unwrap();
    desk.pass(200);
    let money = desk.late(&other, "pi_2", 99);
    assert_eq!((money.state, money.amount), (MoneyState::RefundDue, 99));
    assert!(desk.shelf.orders.is_empty());
    desk.check();
}

/// Goal: whose payment came short does not wait for the pay deadline: the hold is theirs again for what is left of its time,
/// to be paid otherwise or released.
#[test]
fn a_hold_whose_payment_came_short_is_active_again() {
    let mut desk = Desk::open();
    let hold = desk.hold(&["A-1"]);
    desk.pass(10);
    let paying = desk.pay(&hold, "pi_1").unwrap();
    assert_eq!(paying.expires_at, Moment(1210));
    let Confirmed::Late { hold: again, .. } = desk.captured(&hold, "pi_1", 99).unwrap() else { panic!() };
    assert_eq!((again.state, again.expires_at), (HoldState::Active, hold.expires_at));
    assert_eq!(desk.shelf.holds[&hold.hold_id], again);
    desk.check();
    desk.pay(&hold, "pi_1").expect_err("its money goes back");
    desk.pay(&hold, "pi_2").unwrap();
    assert_eq!(desk.order(&hold, "pi_2").payment_ref, "pi_2");
    // Without time left it is over, and that is not held against the buyer.
    let hold = desk.hold(&["A-2"]);
    desk.pay(&hold, "pi_3").unwrap();
    desk.pass(150);
    let Confirmed::Late { hold: over, .. } = desk.captured(&hold, "pi_3", 99).unwrap() else { panic!() };
    assert_eq!(over.state, HoldState::Lapsed);
    assert_eq!(desk.shelf.buyers.values().map(|row| row.lapses).sum::<u32>(), 0);
    // A second payment that is short leaves the first on its way.
    let hold = desk.hold(&["A-2"]);
    desk.pay(&hold, "pi_4").unwrap();
    desk.late(&hold, "pi_5", 99);
    assert_eq!(desk.shelf.holds[&hold.hold_id].state, HoldState::Paying);
    desk.check();
}

/// Goal: money that came after the first of its payment is not lost, however often it is told and wherever the first is.
#[test]
fn what_comes_later_of_a_payment_goes_back_too() {
    let mut desk = Desk::open();
    let hold = desk.hold(&["A-1"]);
    desk.pay(&hold, "pi").unwrap();
    desk.late(&hold, "pi", 1);
    for (came, rows) in [(1, 1), (100, 2), (100, 2), (40, 2), (130, 3), (130, 3)] {
        desk.late(&hold, "pi", came);
        assert_eq!(desk.shelf.money.len(), rows, "{came}");
    }
    let amounts: Vec<u64> = desk.shelf.money.values().map(|row| row.amount).collect();
    assert_eq!(amounts.iter().sum::<u64>(), 130, "{amounts:?}");
    assert!(desk.shelf.money.values().all(|row| row.state == MoneyState::RefundDue));
    desk.check();
}

/// Goal: money for a hold that was changed since buys nothing, in time or late, and goes back as it came.
#[test]
fn money_for_a_hold_that_was_changed_goes_back() {
    let mut desk = Desk::open();
    let paid = desk.hold(&["A-1"]);
    desk.pay(&paid, "pi_1").unwrap();
    let hold = desk.declined(&paid, "pi_1");
    desk.change(&hold, &["A-2", "A-3"], &[]);
    desk.pass(200);
    let money = desk.late(&paid, "pi_1", 100);
    assert_eq!((money.state, money.amount), (MoneyState::RefundDue, 100), "three seats are not sold for one");

    let paid = desk.hold(&["A-4", "A-5"]);
    desk.pay(&paid, "pi_2").unwrap();
    let hold = desk.declined(&paid, "pi_2");
    desk.change(&hold, &[], &["A-5"]);
    let money = desk.late(&paid, "pi_2", 200);
    assert_eq!((money.state, money.amount), (MoneyState::RefundDue, 200), "all of it goes back");
    desk.check();
}

/// Goal: money that goes back, or went back, does not buy the hold as well.
#[test]
fn money_that_goes_back_buys_nothing() {
    let mut desk = Desk::open();
    let hold = desk.hold(&["A-1"]);
    desk.pay(&hold, "pi_1").unwrap();
    assert_eq!(desk.late(&hold, "pi_2", 100).state, MoneyState::RefundDue, "a second payment");
    let hold = desk.declined(&hold, "pi_1");
    assert_eq!(desk.pay(&hold, "pi_2"), Err(Refusal::PaymentMismatch));
    assert_eq!(desk.late(&hold, "pi_2", 100).state, MoneyState::RefundDue);
    assert_eq!(desk.shelf.money["pi_2"].steps.len(), 1);
    assert!(desk.shelf.orders.is_empty());
    desk.check();
}

/// Goal: late money does not buy a seat that is no longer in the layout.
#[test]
fn a_seat_that_left_the_layout_is_not_sold_late() {
    let mut desk = Desk::open();
    let hold = desk.hold(&["A-6"]);
    desk.pay(&hold, "pi").unwrap();
    desk.pass(200);
    assert_eq!(desk.late(&hold, "pi", 100).state, MoneyState::Received);
    let mut layout = hall();
    layout.seats.retain(|seat| seat.id != "A-6");
    let command = ReplaceLayout { event_id: EVENT.into(), layout, dry_run: false };
    desk.ask(&command, decide::need_replace_layout, decide::replace_layout).unwrap();
    let lost = Refusal::Conflict { conflicts: vec![Conflict::seat("A-6", Reason::NoBlock)], alternative: None };
    assert_eq!(desk.sell_late(&hold, "pi"), Err(lost));
    desk.check();
}

/// Goal: an area that is named twice is refused: each would be counted from what was blocked before.
#[test]
fn an_area_is_blocked_once_in_a_request() {
    let mut desk = Desk::open();
    let areas = vec![("floor".into(), 2), ("floor".into(), 2)];
    let (event_id, reason) = (EVENT.into(), "house".into());
    let command = SetBlocks { event_id, block: vec![], unblock: vec![], areas, reason };
    let refused = desk.ask(&command, decide::need_set_blocks, decide::set_blocks);
    assert!(matches!(refused, Err(Refusal::Exists(_))), "{refused:?}");
    desk.check();
}

/// Goal: a limit that was lowered takes nothing away, and is no fault of those who bought before.
#[test]
fn a_lowered_limit_is_no_fault() {
    let mut desk = Desk::open();
    let hold = desk.hold(&["A-1", "A-2", "A-3"]);
    desk.order(&hold, "pi");
    let settings = EventSettings { per_buyer: 1, ..desk.shelf.event.clone().unwrap().settings };
    let command = Configure { event_id: EVENT.into(), settings, seen: None };
    desk.ask(&command, decide::need_configure, decide::configure).unwrap();
    desk.check();
}

/// Goal: naming a payment does not save a hold that lapses from being counted; money that came does.
#[test]
fn a_lapse_without_money_counts() {
    let mut desk = Desk::open();
    let lapses = |desk: &Desk| desk.shelf.buyers[&"ada".into()].lapses;
    let hold = desk.hold(&["A-1"]);
    desk.pay(&hold, "x").unwrap();
    desk.pass(200);
    desk.sweep();
    assert_eq!(lapses(&desk), 1);

    let hold = desk.hold(&["A-1"]);
    desk.pay(&hold, "pi").unwrap();
    desk.pass(200);
    desk.late(&hold, "pi", 100);
    assert_eq!(lapses(&desk), 1, "the money came");
    let offer = desk.hold_for(Some("pi"), &["A-2"]);
    desk.offer("pi", &offer);
    desk.pass(200);
    desk.sweep();
    assert_eq!(lapses(&desk), 1, "the money had come before");
    desk.check();
}

/// Goal: an order that was stored before it was kept what came for it is taken to have been paid as it stands: a void gives
/// back its price, once, and a message that is told again gives back nothing.
#[test]
fn an_order_that_does_not_know_what_came_owes_its_price() {
    let mut desk = Desk::open();
    let hold = desk.hold(&["A-1", "A-2"]);
    let order = desk.order(&hold, "pi");
    let mut stored = serde_json::to_value(&order).unwrap();
    for kept in ["paid", "back", "refunds"] {
        assert!(stored.as_object_mut().unwrap().remove(kept).is_some());
    }
    let old: OrderRow = serde_json::from_value(stored).unwrap();
    assert_eq!((old.came(), old.owed()), (200, 0));
    desk.shelf.orders.insert(old.order_id.clone(), old);
    assert!(matches!(desk.captured(&hold, "pi", 500), Ok(Confirmed::Order { .. })));
    assert!(desk.shelf.money.is_empty(), "nobody knows what came before");
    let void = |seats| Void { order_id: order.order_id.clone(), seats, reason: "ill".into() };
    for (seats, owed) in [(Some(vec!["A-1".into()]), 100), (None, 100), (None, 0)] {
        let amended = desk.ask(&void(seats), decide::need_void, decide::void).unwrap();
        assert_eq!(amended.owed, owed);
        desk.check();
    }
    let back: Vec<u64> = desk.shelf.money.values().map(|money| money.amount).collect();
    assert_eq!(back, [100, 100]);
}
