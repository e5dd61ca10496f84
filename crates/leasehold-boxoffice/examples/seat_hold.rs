//! A seat hold from click to sale: two buyers want one seat, one holds it while she pays, the other is told and offered
//! another, and the seat is sold once.
//!
//! `cargo run --package leasehold-boxoffice --example seat_hold`

#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "an example shows what it does, and waits")]

use std::sync::Arc;

use leasehold::clock::{Clock, SystemClock};
use leasehold::engine::embedded::{self, Embedded};
use leasehold_boxoffice::Office;
use leasehold_boxoffice::layout::{Layout, Seat};
use leasehold_boxoffice::ledger::Sqlite;
use leasehold_boxoffice::model::{Access, EventSettings, LedgerCall};
use leasehold_boxoffice::office::{HoldRequest, OfficeOptions};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let clock: Arc<dyn Clock> = SystemClock::shared();
    let engine = Embedded::open(directory.path().join("engine"), embedded::Options::default()).await?;
    let ledger = Sqlite::open(directory.path().join("boxoffice.sqlite"), clock.clone()).await?;
    let office = Office::new(engine, ledger, OfficeOptions { clock, ..OfficeOptions::default() })?;

    let seat =
        |number| Seat { id: format!("A-{number}"), section: "Stalls".into(), row: "A".into(), number, price: 4500 };
    let layout = Layout { seats: vec![seat(1), seat(2)], areas: vec![] };
    let event = office.create_event(LedgerCall::by("staff"), EventSettings::named("Gala"), layout).await?.event_id;

    let want = |seat: &str| HoldRequest::These { seats: vec![seat.into()], areas: vec![] };
    let ada = office.hold(LedgerCall::by("ada"), &event, "ada".into(), want("A-1")).await?;
    println!("ada holds A-1, token {}, for {} ms", ada.hold.seats[0].token, ada.remaining_ms);

    let refused = office.hold(LedgerCall::by("bob"), &event, "bob".into(), want("A-1")).await;
    println!("bob: {}", refused.as_ref().err().map_or("held".into(), ToString::to_string));
    assert!(refused.is_err(), "a seat has one holder");

    // The shop has the money, and says so: all that the hold costs.
    let order = office.confirm(LedgerCall::by("shop"), &ada.hold.hold_id, Access::Staff, "payment-1").await?;
    println!("sold: {} for {}", order.order_id, order.total);
    assert_eq!(order.total, 4500);

    let checks = office.invariants(&event).await?;
    assert!(checks.iter().all(|check| check.ok), "{checks:?}");
    println!("{} invariants hold", checks.len());
    Ok(())
}
