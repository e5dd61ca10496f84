//! Money by itself: which payment buys what, and what goes back.

use super::map_ledger::MapLedger;
use super::walk::hall;
use crate::model::check::invariants;
use crate::model::*;

/// One event on the shelf, and short words for what is asked of it.
struct MoneyFixture {
    ledger: MapLedger,
    now: Moment,
    token: u64,
}

const EVENT: &str = "ev";

impl MoneyFixture {
    fn open() -> Self {
        let mut case = Self { ledger: MapLedger::default(), now: Moment(1000), token: 0 };
        let settings =
            EventSettings { ttl_ms: 100, max_hold_ms: 300, pay_ms: 200, per_buyer: 4, ..EventSettings::named("Gala") };
        let command = NewEvent { event_id: EVENT.into(), settings, layout: hall() };
        case.ask(&command, decide::need_create_event, decide::create_event).unwrap();
        case
    }

    fn ask<C, T>(
        &mut self,
        command: &C,
        need: fn(&C) -> facts::Need,
        decide: fn(&C, &facts::Facts, &str, Moment) -> decide::Decision<T>,
    ) -> Result<T, Refusal> {
        let now = self.now;
        self.ledger.transact(&need(command), now, |facts| decide(command, facts, "test", now))
    }

    fn pass(&mut self, millis: u64) {
        self.now = self.now.plus(millis);
    }

    fn hold_for(&mut self, payment_ref: Option<&str>, seats: &[&str]) -> HoldRow {
        self.token += 1;
        let command = self.opening(payment_ref, seats, &format!("h_{}", self.token));
        self.ask(&command, decide::need_open_hold, decide::open_hold).unwrap().hold
    }

    fn opening(&self, payment_ref: Option<&str>, seats: &[&str], hold: &str) -> OpenHold {
        OpenHold {
            event_id: EVENT.into(),
            layout_version: self.ledger.event.as_ref().unwrap().layout_version,
            hold_id: hold.into(),
            buyer: "ada".into(),
            key_hash: "key".into(),
            sealed_key: String::new(),
            seats: seats.iter().map(|id| Priced { id: (*id).into(), price: 100 }).collect(),
            areas: vec![],
            lease: LeaseRef { token: self.token, id: "lease".into() },
            payment_ref: payment_ref.map(Into::into),
        }
    }

    /// Somebody confirms what the hold has.
    fn confirming(&mut self, hold: &HoldRow, payment_ref: &str, proof: PaymentProof) -> Confirm {
        self.token += 1;
        Confirm {
            hold_id: hold.hold_id.clone(),
            access: Access::Staff,
            payment_ref: payment_ref.into(),
            tokens: hold.seats.iter().map(|seat| (seat.id.clone(), seat.token)).collect(),
            callback: matches!(proof, PaymentProof::Provider(_)).then(|| format!("m_{}", self.token)),
            proof,
        }
    }

    fn hold(&mut self, seats: &[&str]) -> HoldRow {
        self.hold_for(None, seats)
    }

    fn pay(&mut self, hold: &HoldRow, payment_ref: &str) -> Result<HoldRow, Refusal> {
        let tokens = hold.leases.iter().map(|lease| lease.token).collect();
        let (hold_id, payment_ref) = (hold.hold_id.clone(), payment_ref.into());
        let command = BeginPay {
            hold_id,
            access: Access::Staff,
            payment_ref,
            pay_url: None,
            total: None,
            paid_for: vec![],
            tokens,
        };
        self.ask(&command, decide::need_begin_pay, decide::begin_pay)
    }

    fn declined(&mut self, hold: &HoldRow, payment_ref: &str) -> HoldRow {
        let (hold_id, payment_ref) = (hold.hold_id.clone(), payment_ref.into());
        let command = Decline { hold_id, access: Access::Staff, payment_ref, given_up: false, callback: None };
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
        let command = self.confirming(hold, payment_ref, PaymentProof::captured(&hold.hold_id, amount));
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
        self.ledger.transact(&decide::need_lapse_due(9), now, |facts| decide::lapse_due(9, facts, now)).unwrap();
    }

    fn check(&self) {
        let broken: Vec<_> = invariants(&self.ledger.dump(self.now)).into_iter().filter(|check| !check.ok).collect();
        assert!(broken.is_empty(), "{broken:#?}");
    }
}

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

/// Goal: what was offered for late money is bought with that very money, also after a decline that came in between.
#[test]
fn an_offer_is_bought_with_its_money() {
    let mut case = MoneyFixture::open();
    let hold = case.hold(&["A-1"]);
    case.pay(&hold, "pi").unwrap();
    case.pass(200);
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
    case.pass(200);
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
    let refused = case.ask(&decline(None), decide::need_decline, decide::decline);
    assert_eq!(refused, Err(Refusal::OfferStands));
    let told = case.ask(&decline(Some("cb")), decide::need_decline, decide::decline).unwrap();
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
    assert_eq!(case.ask(&add, decide::need_change_seats, decide::change_seats), Err(Refusal::Paying));
    // Whatever brought it about: an offer that costs more than its money is not sold for it.
    let mut grown = offer.clone();
    grown.seats.iter_mut().for_each(|seat| seat.price = 101);
    case.ledger.holds.insert(offer.hold_id.clone(), grown);
    let confirm = Confirm { tokens: vec![], ..case.confirming(&offer, "pi", PaymentProof::Buyer) };
    assert_eq!(case.ask(&confirm, decide::need_confirm, decide::confirm), Err(Refusal::NotPaid));
    case.ledger.holds.insert(offer.hold_id.clone(), offer.clone());
    assert!(case.ask(&confirm, decide::need_confirm, decide::confirm).is_ok());
    case.check();
}

/// Goal: a buyer's own word sells what costs nothing, and nothing else; the price is looked at inside the sale.
#[test]
fn a_buyers_word_is_no_money() {
    let mut case = MoneyFixture::open();
    let hold = case.hold(&["A-1"]);
    let confirm = case.confirming(&hold, "pi", PaymentProof::Buyer);
    assert_eq!(case.ask(&confirm, decide::need_confirm, decide::confirm), Err(Refusal::NotPaid));
    case.pay(&hold, "pi").unwrap();
    assert_eq!(case.ask(&confirm, decide::need_confirm, decide::confirm), Err(Refusal::NotPaid));
    case.pass(200);
    let over = case.ask(&confirm, decide::need_confirm, decide::confirm);
    assert_eq!(over, Err(Refusal::Ended(HoldState::Lapsed)), "nor does it come late");
    assert!(case.ledger.money.is_empty() && case.ledger.orders.is_empty());
    let mut free = case.hold(&["A-2"]);
    free.seats.iter_mut().for_each(|seat| seat.price = 0);
    case.ledger.holds.insert(free.hold_id.clone(), free.clone());
    let confirm = case.confirming(&free, "free", PaymentProof::Buyer);
    let sold = case.ask(&confirm, decide::need_confirm, decide::confirm).unwrap();
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
        let told = case.ask(&command, decide::need_confirm, decide::confirm).unwrap();
        let Confirmed::Late { money, .. } = told else { panic!("{told:?}") };
        assert_eq!((money.state, money.amount), (MoneyState::Stuck, 200));
    }
    assert_eq!((case.ledger.money.len(), case.ledger.orders.len()), (1, 0), "one payment, one row");
    let right = case.confirming(&dear, "pi_1", word(200, Some("eur"), &dear));
    assert!(
        case.ask(&right, decide::need_confirm, decide::confirm)
            .is_ok_and(|sold| matches!(sold, Confirmed::Order { .. }))
    );
    case.check();
}

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
    let Confirmed::Order { order, .. } = case.ask(&command, decide::need_confirm, decide::confirm).unwrap() else {
        panic!()
    };
    assert_eq!((order.paid, capture(&order)), (Some(100), Some((CaptureState::Due, 100))));
    assert!(case.ledger.money.is_empty());
    let step = |to| CaptureStep { order_id: order.order_id.clone(), to, note: "said".into() };
    let failed = case.ask(&step(CaptureState::Failed), decide::need_capture_step, decide::capture_step).unwrap();
    assert_eq!(capture(&failed), Some((CaptureState::Failed, 100)));
    case.captured(&hold, "pi_1", 100).unwrap();
    assert_eq!(capture(&case.ledger.orders[&order.order_id]), Some((CaptureState::Captured, 100)));
    let late = case.ask(&step(CaptureState::Cancelled), decide::need_capture_step, decide::capture_step);
    assert_eq!(late, Err(Refusal::PaymentMismatch), "what is captured is not cancelled");

    // Short, or too late: cancelled. Captured all the same: it goes back.
    let hold = case.hold(&["A-2"]);
    case.pay(&hold, "pi_2").unwrap();
    let command = case.confirming(&hold, "pi_2", authorised(&hold, 99));
    case.ask(&command, decide::need_confirm, decide::confirm).unwrap();
    assert_eq!(case.ledger.money["pi_2"].state, MoneyState::CancelDue);
    case.captured(&hold, "pi_2", 99).unwrap();
    assert_eq!(case.ledger.money["pi_2"].state, MoneyState::RefundDue);
    let hold = case.hold(&["A-3"]);
    case.pay(&hold, "pi_3").unwrap();
    case.pass(300);
    let command = case.confirming(&hold, "pi_3", authorised(&hold, 100));
    case.ask(&command, decide::need_confirm, decide::confirm).unwrap();
    assert_eq!(case.ledger.money["pi_3"].state, MoneyState::CancelDue, "nobody's money moved");

    // Voided before the capture: nothing goes back, since nothing came.
    let hold = case.hold(&["A-4"]);
    let command = case.confirming(&hold, "pi_4", authorised(&hold, 100));
    let Confirmed::Order { order, .. } = case.ask(&command, decide::need_confirm, decide::confirm).unwrap() else {
        panic!()
    };
    let void = Void { order_id: order.order_id.clone(), seats: None, reason: "cancelled show".into() };
    let voided = case.ask(&void, decide::need_void, decide::void).unwrap();
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

/// Goal: a server that was stalled between its lease and its row is overtaken, and its old token takes no free seat.
#[test]
fn a_free_seat_remembers_its_last_token() {
    let mut case = MoneyFixture::open();
    case.hold(&["A-3"]);
    let hold = case.hold(&["A-1"]);
    let release = ReleaseHold { hold_id: hold.hold_id.clone(), access: Access::Staff };
    case.ask(&release, decide::need_release, decide::release).unwrap();
    case.token -= 1;
    let late = case.opening(None, &["A-1"], "h_late");
    assert_eq!(case.ask(&late, decide::need_open_hold, decide::open_hold), Err(Refusal::StaleToken));
    let other = case.opening(None, &["A-2"], "h_other");
    assert!(case.ask(&other, decide::need_open_hold, decide::open_hold).is_ok(), "another seat had no token yet");
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
    case.pass(200);
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
    case.pass(10);
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
    case.pass(150);
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
    case.pass(200);
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

/// Goal: late money does not buy a seat that is no longer in the layout.
#[test]
fn a_seat_that_left_the_layout_is_not_sold_late() {
    let mut case = MoneyFixture::open();
    let hold = case.hold(&["A-6"]);
    case.pay(&hold, "pi").unwrap();
    case.pass(200);
    assert_eq!(case.late(&hold, "pi", 100).state, MoneyState::Received);
    let mut layout = hall();
    layout.seats.retain(|seat| seat.id != "A-6");
    let command = ReplaceLayout { event_id: EVENT.into(), layout, dry_run: false };
    case.ask(&command, decide::need_replace_layout, decide::replace_layout).unwrap();
    let lost = Refusal::Conflict { conflicts: vec![Conflict::seat("A-6", Reason::NoBlock)], alternative: None };
    assert_eq!(case.sell_late(&hold, "pi"), Err(lost));
    case.check();
}

/// Goal: an area that is named twice is refused: each would be counted from what was blocked before.
#[test]
fn an_area_is_blocked_once_in_a_request() {
    let mut case = MoneyFixture::open();
    let areas = vec![("floor".into(), 2), ("floor".into(), 2)];
    let (event_id, reason) = (EVENT.into(), "house".into());
    let command = SetBlocks { event_id, block: vec![], unblock: vec![], areas, reason };
    let refused = case.ask(&command, decide::need_set_blocks, decide::set_blocks);
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
    case.ask(&command, decide::need_configure, decide::configure).unwrap();
    case.check();
}

/// Goal: naming a payment does not save a hold that lapses from being counted; money that came does.
#[test]
fn a_lapse_without_money_counts() {
    let mut case = MoneyFixture::open();
    let lapses = |case: &MoneyFixture| case.ledger.buyers[&"ada".into()].lapses;
    let hold = case.hold(&["A-1"]);
    case.pay(&hold, "x").unwrap();
    case.pass(200);
    case.sweep();
    assert_eq!(lapses(&case), 1);

    let hold = case.hold(&["A-1"]);
    case.pay(&hold, "pi").unwrap();
    case.pass(200);
    case.late(&hold, "pi", 100);
    assert_eq!(lapses(&case), 1, "the money came");
    let offer = case.hold_for(Some("pi"), &["A-2"]);
    case.offer("pi", &offer);
    case.pass(200);
    case.sweep();
    assert_eq!(lapses(&case), 1, "the money had come before");
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
        let amended = case.ask(&void(seats), decide::need_void, decide::void).unwrap();
        assert_eq!(amended.owed, owed);
        case.check();
    }
    let back: Vec<u64> = case.ledger.money.values().map(|money| money.amount).collect();
    assert_eq!(back, [100, 100]);
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
        assert_eq!(case.ask(&dear, decide::need_open_hold, decide::open_hold), Err(Refusal::TooDear), "{price}");
    }
    let most = priced(&case, order::MAX_AMOUNT, &["A-1"]);
    let held = case.ask(&most, decide::need_open_hold, decide::open_hold).unwrap().hold;
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
    assert_eq!(case.ask(&more, decide::need_change_seats, decide::change_seats), Err(Refusal::TooDear));
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
    let back = case.ask(&command, decide::need_decline, decide::decline).unwrap();
    assert_eq!((back.state, &back.given_up[..]), (HoldState::Active, &["pi".to_owned()][..]));
    let word = ProviderWord { amount: 100, currency: None, hold_id: hold.hold_id.clone(), authorised: true };
    let late = case.confirming(&hold, "pi", PaymentProof::Provider(word));
    let told = case.ask(&late, decide::need_confirm, decide::confirm).unwrap();
    let Confirmed::Late { money, hold: row } = told else { panic!("{told:?}") };
    assert_eq!((money.state, row.state), (MoneyState::CancelDue, HoldState::Active));
    // Another payment buys it.
    case.pay(&hold, "pi_2").unwrap();
    assert_eq!(case.order(&hold, "pi_2").payment_ref, "pi_2");
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
    case.ask(&confirm, decide::need_confirm, decide::confirm).unwrap();
    let victim = case.hold(&["A-2"]);
    case.pay(&victim, "ORD-1002").unwrap();
    assert_eq!(case.order(&victim, "ORD-1002").paid, Some(100));
    case.check();
}

/// Goal: what is taken back of an order before its capture is not captured, instead of going back.
#[test]
fn a_void_in_part_before_the_capture_captures_less() {
    let mut case = MoneyFixture::open();
    let hold = case.hold(&["A-1", "A-2"]);
    let word = ProviderWord { amount: 200, currency: None, hold_id: hold.hold_id.clone(), authorised: true };
    let confirm = case.confirming(&hold, "pi", PaymentProof::Provider(word));
    case.ask(&confirm, decide::need_confirm, decide::confirm).unwrap();
    let order_id = OrderId::for_hold(&hold.hold_id);
    let void = |seats: Option<Vec<String>>| Void { order_id: order_id.clone(), seats, reason: "ill".into() };
    let part = case.ask(&void(Some(vec!["A-1".into()])), decide::need_void, decide::void).unwrap().order;
    assert_eq!((part.paid, part.capture.as_ref().unwrap().amount, part.owed()), (Some(100), 100, 0));
    assert!(case.ledger.money.is_empty(), "nothing came, so nothing goes back");
    case.check();
    // More was captured than was asked for by then: the rest goes back.
    case.captured(&hold, "pi", 200).unwrap();
    let order = case.ledger.orders[&order_id].clone();
    assert_eq!((order.paid, order.back, order.capture.unwrap().state), (Some(200), 100, CaptureState::Captured));
    case.check();
}
