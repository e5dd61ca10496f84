//! Decisions about money, on a ledger in memory. The tests are in one file for each subject.

mod captures;
mod late;
mod payments;
mod refunds;
mod rules;

use super::map_ledger::MapLedger;
use super::walk::hall;
use crate::model::check::invariants;
use crate::model::*;

/// A ledger in memory with one event, and shortcuts for its commands.
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
        case.decide(&command, decide::need_create_event, decide::create_event).unwrap();
        case
    }

    fn decide<C, T>(
        &mut self,
        command: &C,
        need: fn(&C) -> facts::Need,
        decide: fn(&C, &facts::Facts, &str, Moment) -> decide::Decision<T>,
    ) -> Result<T, Refusal> {
        let now = self.now;
        self.ledger.transact(&need(command), now, |facts| decide(command, facts, "test", now))
    }

    fn advance_time(&mut self, millis: u64) {
        self.now = self.now.plus(millis);
    }

    fn hold_for(&mut self, payment_ref: Option<&str>, seats: &[&str]) -> HoldRow {
        self.token += 1;
        let command = self.opening(payment_ref, seats, &format!("h_{}", self.token));
        self.decide(&command, decide::need_open_hold, decide::open_hold).unwrap().hold
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
        self.decide(&command, decide::need_begin_pay, decide::begin_pay)
    }

    fn declined(&mut self, hold: &HoldRow, payment_ref: &str) -> HoldRow {
        let (hold_id, payment_ref) = (hold.hold_id.clone(), payment_ref.into());
        let command = Decline { hold_id, access: Access::Staff, payment_ref, given_up: false, callback: None };
        self.decide(&command, decide::need_decline, decide::decline).unwrap()
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
        self.decide(&command, decide::need_change_seats, decide::change_seats).unwrap()
    }

    /// The provider says that so much came for what the hold had when it looked like this.
    fn captured(&mut self, hold: &HoldRow, payment_ref: &str, amount: u64) -> Result<Confirmed, Refusal> {
        let command = self.confirming(hold, payment_ref, PaymentProof::captured(&hold.hold_id, amount));
        self.decide(&command, decide::need_confirm, decide::confirm)
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
        self.decide(&command, decide::need_sell_late, decide::sell_late)
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
        self.decide(&command, decide::need_money_step, decide::money_step).unwrap();
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
