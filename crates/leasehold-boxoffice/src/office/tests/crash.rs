//! Somebody dies between lease and row, between row and answer, between commit and release.
//!
//! A server that dies is a ledger whose answer never comes to its office; another office over the same engine and
//! ledger goes on.

use super::*;
use crate::ledger::testkit::{FlakyLedger, LedgerFault};

/// An office whose ledger fails on order, beside the house's own.
fn doomed(case: &TestOffice) -> (Office, Arc<FlakyLedger>) {
    let flaky = FlakyLedger::new(case.ledger.clone());
    let ledger: Arc<dyn Ledger> = flaky.clone();
    (office(&case.engine, &ledger, &case.clock), flaky)
}

fn want(seat: &str) -> HoldRequest {
    HoldRequest::These { seats: vec![seat.into()], areas: vec![] }
}

/// Starts a hold that never comes back, and waits until it has got as far as the fault.
async fn dies(case: &TestOffice, fault: LedgerFault) {
    let (office, flaky) = doomed(case);
    flaky.spoil("open_hold", fault);
    let event = case.event.clone();
    let asked =
        tokio::spawn(async move { office.hold(LedgerCall::by("ada"), &event, "ada".into(), want("A-1")).await });
    while case.leases().await == 0 {
        tokio::task::yield_now().await;
    }
    if fault == LedgerFault::DiesAfter {
        while case.office.holds(&case.event).await.unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
    }
    asked.abort();
}

/// Goal: a lease without a row is revoked after ten seconds, not before, and the seat is free long before its ttl.
#[tokio::test]
async fn death_between_lease_and_row_costs_ten_seconds() {
    let case = TestOffice::open().await;
    dies(&case, LedgerFault::DiesBefore).await;
    case.clock.advance(seconds(9));
    case.office.revoke_orphans().await.unwrap();
    assert_eq!(lost(case.hold("bob", &["A-1"]).await), [("A-1".into(), Reason::Taken)]);
    case.clock.advance(seconds(1));
    case.office.revoke_orphans().await.unwrap();
    case.hold("bob", &["A-1"]).await.unwrap();
    assert_eq!(case.office.metrics().await.orphan_leases_total, 1);
    case.clock.advance(seconds(60));
    case.office.revoke_orphans().await.unwrap();
    assert_eq!(case.leases().await, 1, "a lease with a row stays");
    case.check().await;
}

/// Goal: without any sweeper such a lease lapses by itself.
#[tokio::test]
async fn a_lease_without_a_row_lapses_by_itself() {
    let case = TestOffice::open().await;
    dies(&case, LedgerFault::DiesBefore).await;
    case.clock.advance(seconds(305));
    case.hold("bob", &["A-1"]).await.unwrap();
    case.check().await;
}

/// Goal: a row whose answer was never given is a hold like any other: nobody knows its key, and it lapses.
#[tokio::test]
async fn death_between_row_and_answer_leaves_a_hold_that_lapses() {
    let case = TestOffice::open().await;
    dies(&case, LedgerFault::DiesAfter).await;
    case.office.revoke_orphans().await.unwrap();
    assert_eq!(lost(case.hold("bob", &["A-1"]).await), [("A-1".into(), Reason::Taken)]);
    case.clock.advance(seconds(300));
    case.office.sweep(2).await.unwrap();
    case.hold("bob", &["A-1"]).await.unwrap();
    case.check().await;
}

/// Goal: a buyer who retries with the same idempotency key gets the hold whose answer was lost, key and all.
#[tokio::test]
async fn a_lost_answer_is_had_again_by_its_idempotency_key() {
    let case = TestOffice::open().await;
    let (office, flaky) = doomed(&case);
    flaky.spoil("open_hold", LedgerFault::Indeterminate);
    let call = || LedgerCall { actor: "ada".into(), idem: Some(Idem::derive("ada", "k", b"A-1")) };
    let lost = office.hold(call(), &case.event, "ada".into(), want("A-1")).await.unwrap_err();
    assert_eq!(lost.code(), "unknown_outcome");
    let again = case.office.hold(call(), &case.event, "ada".into(), want("A-1")).await.unwrap();
    case.office.confirm(LedgerCall::by("ada"), &again.hold.hold_id, key(&again), "pi").await.unwrap();
    case.check().await;
}

/// Goal: a transaction that fails for certain gives the lease back.
#[tokio::test]
async fn a_failed_row_releases_the_lease() {
    let case = TestOffice::open().await;
    let (office, flaky) = doomed(&case);
    flaky.spoil("open_hold", LedgerFault::Unavailable);
    let failed = office.hold(LedgerCall::by("ada"), &case.event, "ada".into(), want("A-1")).await.unwrap_err();
    assert_eq!((failed.code(), case.leases().await), ("unavailable", 0));
    case.check().await;
}

/// Goal: after the commit of a sale the lease is of no importance: the seat stays sold, the order is found again.
#[tokio::test]
async fn death_between_commit_and_release_costs_nothing() {
    let case = TestOffice::open().await;
    let ada = case.hold("ada", &["A-1"]).await.unwrap();
    let (office, flaky) = doomed(&case);
    flaky.spoil("confirm", LedgerFault::DiesAfter);
    let (id, access) = (ada.hold.hold_id.clone(), key(&ada));
    let asked = tokio::spawn(async move { office.confirm(LedgerCall::by("ada"), &id, access, "pi").await });
    while case.ledger.order(&OrderId::for_hold(&ada.hold.hold_id)).await.unwrap().is_none() {
        tokio::task::yield_now().await;
    }
    asked.abort();
    assert_eq!(case.leases().await, 1, "nobody released it");
    assert_eq!(lost(case.hold("bob", &["A-1"]).await), [("A-1".into(), Reason::Taken)]);
    let again = case.office.confirm(LedgerCall::by("ada"), &ada.hold.hold_id, key(&ada), "pi").await.unwrap();
    assert_eq!(again.seats.len(), 1);
    case.clock.advance(seconds(11));
    case.office.revoke_orphans().await.unwrap();
    assert_eq!(lost(case.hold("bob", &["A-1"]).await), [("A-1".into(), Reason::Sold)]);
    case.check().await;
}

/// Goal: late money whose server died between two steps is continued by the sweeper of another.
#[tokio::test]
async fn late_money_of_a_dead_server_is_continued_by_the_sweeper() {
    let case = TestOffice::open().await;
    let ada = case.hold("ada", &["A-1"]).await.unwrap();
    case.office.pay(LedgerCall::by("ada"), &ada.hold.hold_id, key(&ada), "pi").await.unwrap();
    case.clock.advance(seconds(606));
    let (office, flaky) = doomed(&case);
    flaky.spoil("sell_late", LedgerFault::DiesBefore);
    let (id, access) = (ada.hold.hold_id.clone(), key(&ada));
    let asked = tokio::spawn(async move { office.confirm(LedgerCall::by("ada"), &id, access, "pi").await });
    while case.leases().await == 0 {
        tokio::task::yield_now().await;
    }
    asked.abort();
    case.clock.advance(seconds(31));
    case.office.sweep(2).await.unwrap();
    let order = case.office.order(&OrderId::for_hold(&ada.hold.hold_id)).await.unwrap();
    assert!(order.late);
    case.check().await;
}

/// Goal: a caller who hangs up strands nothing: the request runs to its end.
#[tokio::test]
async fn a_hang_up_does_not_cancel() {
    let case = TestOffice::open().await;
    let (office, event) = (case.office.clone(), case.event.clone());
    let mut asked =
        Box::pin(async move { office.hold(LedgerCall::by("ada"), &event, "ada".into(), want("A-1")).await });
    // Polled once, so that it has begun; then dropped.
    std::future::poll_fn(|cx| {
        let _ = asked.as_mut().poll(cx);
        std::task::Poll::Ready(())
    })
    .await;
    drop(asked);
    while case.office.holds(&case.event).await.unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    case.check().await;
}

/// Goal: a row that was written slowly does not outlive its lease: the lease is pushed once more.
#[tokio::test]
async fn a_slow_row_does_not_outlive_its_lease() {
    let case = TestOffice::open().await;
    let (office, flaky) = doomed(&case);
    let ada = case.hold("ada", &["A-1"]).await.unwrap();
    let slow = case.clock.clone();
    flaky.meanwhile(move || slow.advance(seconds(60)));
    for transaction in ["renew", "begin_pay"] {
        flaky.spoil(transaction, LedgerFault::Slow);
        let (id, access) = (&ada.hold.hold_id, key(&ada));
        let view = match transaction {
            "renew" => office.renew(LedgerCall::by("ada"), id, access).await.unwrap(),
            _ => office.pay(LedgerCall::by("ada"), id, access, "pi").await.unwrap(),
        };
        let query = leasehold::engine::Query { prefix: lease::LEASE_PREFIX.into(), after: None, limit: 10 };
        let left = case.engine.list(query).await.unwrap()[0].holders[0].remaining;
        let now = case.ledger.now().await.unwrap();
        let row = Duration::from_millis(view.hold.expires_at.since(now));
        assert!(left >= row, "{transaction}: the lease has {left:?}, the row {row:?}");
    }
    case.check().await;
}

/// Goal: a lease that a row may stand under is not let go.
#[tokio::test]
async fn a_lease_under_a_row_that_may_be_there_stays() {
    let case = TestOffice::open().await;
    let (office, flaky) = doomed(&case);
    let ada = case.hold("ada", &["A-1"]).await.unwrap();
    // The lease is gone, so a renewal takes another; whether the row is under it nobody knows.
    case.office.release_leases(&ada.hold.leases).await;
    flaky.spoil("replace_lease", LedgerFault::Indeterminate);
    let failed = office.renew(LedgerCall::by("ada"), &ada.hold.hold_id, key(&ada)).await.unwrap_err();
    assert_eq!((failed.code(), case.leases().await), ("unknown_outcome", 1));
    case.check().await;
}

/// Goal: a crowd that loses at once, in an office whose follower does not get to run, reads the hall a few times and not
/// once for each of them: otherwise nobody is answered for seconds, and the follower never gets its turn.
#[tokio::test]
async fn a_crowd_of_losers_looks_once_together() {
    let case = TestOffice::open().await;
    case.hold("ada", &["A-5", "A-6"]).await.unwrap();
    let (office, flaky) = doomed(&case);
    let loser = |number: u32| {
        let (office, event) = (office.clone(), case.event.clone());
        let want = HoldRequest::These { seats: vec!["A-5".into(), "A-6".into()], areas: vec![] };
        let buyer = format!("loser-{number}");
        tokio::spawn(async move { office.hold(LedgerCall::by(&buyer), &event, buyer.as_str().into(), want).await })
    };
    let losers: Vec<_> = (0..400).map(loser).collect();
    for lost in losers {
        let Refusal::Conflict { alternative, .. } = refused(lost.await.unwrap()) else { panic!() };
        assert!(alternative.is_some_and(|seats| seats.len() == 2 && !seats.contains(&"A-5".into())));
    }
    let snapshots = flaky.snapshots();
    assert!((1..100).contains(&snapshots), "{snapshots} snapshots for 400 losers");
}

/// Goal: an office that numbers entries itself need not read them, and one that missed some reads what it missed.
#[tokio::test]
async fn what_was_numbered_here_is_not_read_again() {
    let case = TestOffice::open().await;
    let (office, flaky) = doomed(&case);
    let known = office.cached_event(&case.event).await.unwrap();
    let now = || office.clock().now();
    let seen = |seat: &str| known.is_fresh(now()).then(|| known.state_hint(seat, now()));
    case.hold("ada", &["A-1", "A-2"]).await.unwrap();
    office.sequence().await.unwrap();
    assert_eq!((seen("A-2"), flaky.audits()), (Some(SeatState::Held), 0));
    // This one is numbered by another office.
    let bob = case.hold("bob", &["B-1"]).await.unwrap();
    case.office.sequence().await.unwrap();
    assert_eq!(seen("B-1"), Some(SeatState::Free));
    case.office.release(LedgerCall::by("bob"), &bob.hold.hold_id, key(&bob)).await.unwrap();
    case.hold("cyd", &["B-2"]).await.unwrap();
    office.sequence().await.unwrap();
    assert_eq!((seen("B-1"), seen("B-2"), flaky.audits()), (Some(SeatState::Free), Some(SeatState::Held), 1));
}
