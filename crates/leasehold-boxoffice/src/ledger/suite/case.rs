//! A ledger with one event, and shortcuts for its commands.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::LedgerSubject;
use crate::error::Error;
use crate::layout::{Area, Layout, Seat};
use crate::ledger::Ledger;
use crate::model::check::invariants;
use crate::model::*;

/// See the module.
pub(super) struct LawCase<'a> {
    pub(super) subject: &'a dyn LedgerSubject,
    pub(super) ledger: Arc<dyn Ledger>,
    pub(super) event: EventId,
    pub(super) unit: u64,
    tokens: AtomicU64,
    names: AtomicU64,
}

/// Seats `A-1` to `A-9` at 100, and a floor of 5 places at 10.
pub(super) fn hall() -> Layout {
    let seat =
        |number: u32| Seat { id: format!("A-{number}"), section: "stalls".into(), row: "A".into(), number, price: 100 };
    Layout { seats: (1..=9).map(seat).collect(), areas: vec![Area { id: "floor".into(), capacity: 5, price: 10 }] }
}

impl<'a> LawCase<'a> {
    /// An event on sale: a ttl of ten units, a cap of thirty, twenty to pay, at most four per buyer.
    pub(super) async fn open(subject: &'a dyn LedgerSubject) -> Self {
        let (ledger, unit, event) = (subject.fresh().await, subject.unit_ms(), EventId::from("ev"));
        let settings = EventSettings {
            ttl_ms: 10 * unit,
            max_hold_ms: 30 * unit,
            pay_ms: 20 * unit,
            per_buyer: 4,
            ..EventSettings::named("Gala")
        };
        let command = NewEvent { event_id: event.clone(), settings, layout: hall() };
        ledger.create_event(LedgerCall::by("staff"), command).await.unwrap();
        Self { subject, ledger, event, unit, tokens: AtomicU64::new(1), names: AtomicU64::new(1) }
    }

    pub(super) fn token(&self) -> u64 {
        self.tokens.fetch_add(1, Ordering::SeqCst)
    }

    pub(super) async fn advance_time(&self, units: u64) {
        self.subject.advance_time(units * self.unit).await;
    }

    /// The command that opens a hold with a fresh token and a fresh name.
    pub(super) fn opening(&self, buyer: &str, seats: &[&str], places: u32) -> OpenHold {
        self.opening_with(buyer, seats, places, self.token())
    }

    pub(super) fn opening_with(&self, buyer: &str, seats: &[&str], places: u32, token: u64) -> OpenHold {
        let name = self.names.fetch_add(1, Ordering::SeqCst);
        let floor = PricedArea { id: "floor".into(), qty: places, price: 10 };
        OpenHold {
            event_id: self.event.clone(),
            layout_version: 1,
            hold_id: HoldId(format!("h_{name}")),
            buyer: buyer.into(),
            key_hash: format!("key of {buyer}"),
            sealed_key: "sealed".into(),
            seats: seats.iter().map(|id| Priced { id: (*id).into(), price: 100 }).collect(),
            areas: if places > 0 { vec![floor] } else { vec![] },
            lease: LeaseRef { token, id: format!("lease {token}") },
            payment_ref: None,
        }
    }

    pub(super) async fn hold(&self, buyer: &str, seats: &[&str]) -> HoldRow {
        self.try_hold(self.opening(buyer, seats, 0)).await.unwrap()
    }

    pub(super) async fn try_hold(&self, command: OpenHold) -> Result<HoldRow, Error> {
        let actor = LedgerCall::by(command.buyer.as_str());
        Ok(self.ledger.open_hold(actor, command).await?.value.hold)
    }

    pub(super) async fn renew(&self, hold: &HoldRow) -> Result<HoldRow, Error> {
        let tokens = hold.leases.iter().map(|lease| lease.token).collect();
        let command = RenewHold { hold_id: hold.hold_id.clone(), access: own(hold), tokens };
        Ok(self.ledger.renew(LedgerCall::by("ada"), command).await?.value)
    }

    pub(super) async fn release(&self, hold: &HoldRow) -> Result<HoldRow, Error> {
        let command = ReleaseHold { hold_id: hold.hold_id.clone(), access: own(hold) };
        Ok(self.ledger.release(LedgerCall::by("ada"), command).await?.value)
    }

    pub(super) async fn pay(&self, hold: &HoldRow, payment_ref: &str) -> Result<HoldRow, Error> {
        let tokens = hold.leases.iter().map(|lease| lease.token).collect();
        let (hold_id, payment_ref) = (hold.hold_id.clone(), payment_ref.into());
        let command =
            BeginPay { hold_id, access: own(hold), payment_ref, pay_url: None, total: None, paid_for: vec![], tokens };
        Ok(self.ledger.begin_pay(LedgerCall::by("ada"), command).await?.value)
    }

    pub(super) async fn decline(&self, hold: &HoldRow, payment_ref: &str) -> Result<HoldRow, Error> {
        let (hold_id, payment_ref) = (hold.hold_id.clone(), payment_ref.into());
        let command = Decline { hold_id, access: own(hold), payment_ref, given_up: false, callback: None };
        Ok(self.ledger.decline(LedgerCall::by("ada"), command).await?.value)
    }

    pub(super) fn confirming(&self, hold: &HoldRow, payment_ref: &str) -> Confirm {
        Confirm {
            hold_id: hold.hold_id.clone(),
            access: own(hold),
            payment_ref: payment_ref.into(),
            tokens: vec![],
            proof: PaymentProof::Key { amount: None },
            callback: None,
        }
    }

    /// The provider says that so much came.
    pub(super) fn provider_confirm(&self, hold: &HoldRow, payment_ref: &str, id: &str, amount: u64) -> Confirm {
        Confirm {
            proof: PaymentProof::captured(&hold.hold_id, amount),
            callback: Some(id.into()),
            access: Access::Staff,
            ..self.confirming(hold, payment_ref)
        }
    }

    pub(super) async fn confirm(&self, hold: &HoldRow, payment_ref: &str) -> Result<Confirmed, Error> {
        Ok(self.ledger.confirm(LedgerCall::by("ada"), self.confirming(hold, payment_ref)).await?.value)
    }

    /// A sale that must succeed.
    pub(super) async fn sell(&self, hold: &HoldRow, payment_ref: &str) -> OrderRow {
        match self.confirm(hold, payment_ref).await.unwrap() {
            Confirmed::Order { order, .. } => order,
            other => panic!("{other:?}"),
        }
    }

    /// The state of a seat now.
    pub(super) async fn state(&self, seat: &str) -> SeatState {
        let snapshot = self.ledger.snapshot(&self.event).await.unwrap().unwrap();
        snapshot.seats.iter().find(|now| now.id == seat).map_or(SeatState::Free, |now| now.state)
    }

    /// The law is kept; so must be the invariants.
    pub(super) async fn done(&self) {
        while !self.ledger.sequence(7).await.unwrap().is_empty() {}
        let dump = self.ledger.dump(&self.event).await.unwrap().unwrap();
        let broken: Vec<_> = invariants(&dump).into_iter().filter(|check| !check.ok).collect();
        assert!(broken.is_empty(), "{broken:#?}");
    }
}

/// What opens a hold of this suite.
pub(super) fn own(hold: &HoldRow) -> Access {
    Access::Key(hold.key_hash.clone())
}

/// The refusal; a panic for anything else.
pub(super) fn refused<T: std::fmt::Debug>(answer: Result<T, Error>) -> Refusal {
    match answer {
        Err(Error::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

/// Seats and areas lost, and why.
pub(super) fn lost<T: std::fmt::Debug>(answer: Result<T, Error>) -> Vec<(String, Reason)> {
    let Refusal::Conflict { conflicts, .. } = refused(answer) else { panic!("not a conflict") };
    conflicts.into_iter().map(|lost| (lost.seat.or(lost.area).unwrap_or_default(), lost.reason)).collect()
}
