//! What staff does, changed holds, and what is told.

use super::*;

fn blocks(case: &TestOffice, block: &[&str], unblock: &[&str]) -> SetBlocks {
    let ids = |ids: &[&str]| ids.iter().map(|id| (*id).into()).collect();
    SetBlocks {
        event_id: case.event.clone(),
        block: ids(block),
        unblock: ids(unblock),
        areas: vec![],
        reason: "camera".into(),
    }
}

/// Goal: seats change hands by staff's word, each with a reason in the audit, and the history of a seat says why.
#[tokio::test]
async fn staff_acts_and_the_audit_knows() {
    let case = TestOffice::open().await;
    let (office, event) = (&case.office, &case.event);
    office.set_blocks(LedgerCall::by("eve"), blocks(&case, &["A-1"], &[])).await.unwrap();
    assert_eq!(lost(case.hold("ada", &["A-1"]).await), [("A-1".into(), Reason::Blocked)]);
    office.set_blocks(LedgerCall::by("eve"), blocks(&case, &[], &["A-1"])).await.unwrap();
    let ada = case.hold("ada", &["A-1"]).await.unwrap();
    let ended = office.force_release(LedgerCall::by("eve"), event, "A-1", "wheelchair place").await.unwrap();
    assert_eq!(ended.hold.hold_id, ada.hold.hold_id);
    assert_eq!(case.leases().await, 0);
    let bob = case.hold("bob", &["A-1", "A-2"]).await.unwrap();
    let order = office.confirm(LedgerCall::by("bob"), &bob.hold.hold_id, key(&bob), "cash").await.unwrap();
    let moved =
        office.move_order(LedgerCall::by("eve"), &order.order_id, vec![("A-2".into(), "B-2".into())], "broken").await;
    let moved = moved.unwrap();
    assert_eq!((moved.order.total, moved.owed), (7500, 1500));
    assert_eq!(case.leases().await, 0);
    office.void(LedgerCall::by("eve"), &order.order_id, Some(vec!["A-1".into()]), "ill").await.unwrap();
    case.hold("cyd", &["A-1", "A-2"]).await.unwrap();
    assert!(matches!(office.void(LedgerCall::by("eve"), &order.order_id, None, " ").await, Err(Error::Invalid(_))));

    case.check().await;
    let query = AuditQuery { seat: Some("A-1".into()), ..AuditQuery::default() };
    let story = office.audit(event, query).await.unwrap();
    let kinds: Vec<EntryKind> = story.iter().map(|entry| entry.kind).collect();
    use EntryKind::{Blocked, ForceReleased, Held, Sold, Unblocked, Voided};
    assert_eq!(kinds, [Blocked, Unblocked, Held, ForceReleased, Held, Sold, Voided, Held]);
    assert_eq!((story[3].actor.as_str(), story[3].reason.as_deref()), ("eve", Some("wheelchair place")));
    let report = office.report(event).await.unwrap();
    assert_eq!((report.takings.revenue, report.totals.sold, report.totals.held), (3000, 1, 2));
    assert_eq!(report.sections["stalls"], report.totals);
}

/// Goal: seats are added and removed; what was given up is free at once, for the engine too; what stays is never
/// anybody else's in between.
#[tokio::test]
async fn a_hold_is_changed() {
    let case = TestOffice::open().await;
    let ada = case.hold("ada", &["A-1", "A-2"]).await.unwrap();
    let change = HoldChange { add: vec!["A-3".into()], remove: vec!["A-1".into()], ..HoldChange::default() };
    let changed = case.office.change(LedgerCall::by("ada"), &ada.hold.hold_id, key(&ada), change).await.unwrap();
    let seats: Vec<&str> = changed.hold.seats.iter().map(|seat| seat.id.as_str()).collect();
    assert_eq!((seats, changed.total), (vec!["A-2", "A-3"], 9000));
    assert_eq!(case.leases().await, 2);
    case.hold("bob", &["A-1"]).await.unwrap();
    assert_eq!(lost(case.hold("bob", &["A-2"]).await), [("A-2".into(), Reason::Taken)]);
    assert_eq!(lost(case.hold("bob", &["A-3"]).await), [("A-3".into(), Reason::Taken)]);
    case.clock.advance(seconds(200));
    case.office.renew(LedgerCall::by("ada"), &ada.hold.hold_id, key(&ada)).await.unwrap();
    case.clock.advance(seconds(200));
    assert_eq!(lost(case.hold("bob", &["A-2"]).await), [("A-2".into(), Reason::Taken)]);
    let taken = HoldChange { add: vec!["A-3".into()], ..HoldChange::default() };
    assert_eq!(lost(case.office.change(LedgerCall::by("ada"), &ada.hold.hold_id, key(&ada), taken).await).len(), 1);
    let order = case.office.confirm(LedgerCall::by("ada"), &ada.hold.hold_id, key(&ada), "pi").await.unwrap();
    assert_eq!(order.seats.len(), 2);
    case.clock.advance(seconds(110));
    case.office.sweep(2).await.unwrap();
    assert_eq!(case.leases().await, 0);
    case.check().await;
}

/// Goal: sales stop and resume; rules change for holds from then on, also for an office that knew the old ones.
#[tokio::test]
async fn rules_change_under_an_office_that_knew_others() {
    let case = TestOffice::open().await;
    let other = case.another();
    case.hold("ada", &["A-1"]).await.unwrap();
    let want = |seat: &str| HoldRequest::These { seats: vec![seat.into()], areas: vec![] };
    other.hold(LedgerCall::by("bob"), &case.event, "bob".into(), want("A-2")).await.unwrap();
    case.office.freeze(LedgerCall::by("eve"), &case.event, true, "fire drill").await.unwrap();
    let frozen = other.hold(LedgerCall::by("bob"), &case.event, "bob".into(), want("A-3")).await;
    assert_eq!(lost(frozen), [("A-3".into(), Reason::NotOnSale)]);
    case.office.freeze(LedgerCall::by("eve"), &case.event, false, "over").await.unwrap();
    let settings = EventSettings { ttl_ms: 800_000, ..EventSettings::named("Gala") };
    case.office.configure(LedgerCall::by("eve"), &case.event, settings, None).await.unwrap();
    let longer = other.hold(LedgerCall::by("bob"), &case.event, "bob".into(), want("A-3")).await.unwrap();
    assert_eq!(longer.remaining_ms, 800_000);
    // The lease is as long: at the end of the row nobody else has had the seat.
    case.clock.advance(seconds(799));
    assert_eq!(lost(case.hold("cyd", &["A-3"]).await), [("A-3".into(), Reason::Taken)]);
    case.check().await;
}

/// Goal: who follows an event is woken, and reads every number once.
#[tokio::test]
async fn followers_are_woken_with_numbers() {
    let case = TestOffice::open().await;
    let mut changes = case.office.changes(&case.event);
    case.office.cached_event(&case.event).await.unwrap();
    case.hold("ada", &["A-1"]).await.unwrap();
    case.office.sequence().await.unwrap();
    changes.changed().await.unwrap();
    assert_eq!(*changes.borrow_and_update(), 2);
    let entries = case.office.audit(&case.event, AuditQuery { since: 1, ..AuditQuery::default() }).await.unwrap();
    assert_eq!((entries.len(), entries[0].seq, entries[0].kind), (1, 2, EntryKind::Held));
    let seen = case.office.availability(&case.event).await.unwrap();
    assert_eq!((seen.seq, seen.totals.held, seen.totals.free), (2, 1, 19));
}

/// Goal: a fresh seat map refuses what is sold without asking anybody, and forgets it when the seat is free.
#[tokio::test]
async fn memory_refuses_early_and_never_grants() {
    let case = TestOffice::open().await;
    let other = case.another();
    other.cached_event(&case.event).await.unwrap();
    let ada = case.hold("ada", &["A-1"]).await.unwrap();
    let order = case.office.confirm(LedgerCall::by("ada"), &ada.hold.hold_id, key(&ada), "pi").await.unwrap();
    other.sequence().await.unwrap();
    case.engine.close().await.unwrap();
    // The engine is gone: whatever is answered now is answered from memory.
    let want = |seat: &str| HoldRequest::These { seats: vec![seat.into()], areas: vec![] };
    let sold = other.hold(LedgerCall::by("bob"), &case.event, "bob".into(), want("A-1")).await;
    assert_eq!(lost(sold), [("A-1".into(), Reason::Sold)]);
    let free = other.hold(LedgerCall::by("bob"), &case.event, "bob".into(), want("A-2")).await;
    assert_eq!(free.unwrap_err().code(), "unavailable");
    case.office.void(LedgerCall::by("eve"), &order.order_id, None, "again").await.unwrap();
    other.sequence().await.unwrap();
    let free = other.hold(LedgerCall::by("bob"), &case.event, "bob".into(), want("A-1")).await;
    assert_eq!(free.unwrap_err().code(), "unavailable");
    // A seat map that no follower updates does not refuse.
    other.cached_event(&case.event).await.unwrap().override_states(
        ["A-3"].into_iter(),
        SeatState::Sold,
        other.clock().now(),
    );
    case.clock.advance(seconds(3));
    let old = other.hold(LedgerCall::by("bob"), &case.event, "bob".into(), want("A-3")).await;
    assert_eq!(old.unwrap_err().code(), "unavailable");
}

/// Goal: the stored answer of a confirm says nothing of seats that were voided since.
#[tokio::test]
async fn a_replayed_sale_does_not_block_what_is_free_again() {
    let case = TestOffice::open().await;
    let ada = case.hold("ada", &["A-1"]).await.unwrap();
    let call = || LedgerCall { actor: "ada".into(), idem: Some(Idem::derive("ada", "k", b"confirm")) };
    let order = case.office.confirm(call(), &ada.hold.hold_id, key(&ada), "pi").await.unwrap();
    case.office.void(LedgerCall::by("staff"), &order.order_id, None, "ill").await.unwrap();
    case.office.sequence().await.unwrap();
    case.office.confirm(call(), &ada.hold.hold_id, key(&ada), "pi").await.unwrap();
    assert_eq!(case.office.metrics().await.sales_total, 1);
    case.office.follow_entries().await.unwrap();
    case.hold("bob", &["A-1"]).await.unwrap();
    case.check().await;
}

/// Goal: an area that is named twice is refused, and a hold does not grow past what one claim can have.
#[tokio::test]
async fn what_is_too_much_is_named() {
    let case = TestOffice::open_with(|settings| settings.per_buyer = 1000).await;
    let areas = vec![("floor".into(), 2), ("floor".into(), 2)];
    let (event_id, reason) = (case.event.clone(), "house".into());
    let blocks = SetBlocks { event_id, block: vec![], unblock: vec![], areas, reason };
    let twice = case.office.set_blocks(LedgerCall::by("staff"), blocks).await.unwrap_err();
    assert_eq!(twice.code(), "invalid");

    let seat = |number: u32| Seat { id: format!("C-{number}"), section: "C".into(), row: "C".into(), number, price: 1 };
    let layout = Layout { seats: (1..=70).map(seat).collect(), areas: vec![] };
    case.office.replace_layout(LedgerCall::by("staff"), &case.event, layout).await.unwrap();
    let all: Vec<String> = (1..=66).map(|number| format!("C-{number}")).collect();
    let most: Vec<&str> = all[..64].iter().map(String::as_str).collect();
    let ada = case.hold("ada", &most).await.unwrap();
    let more = |remove: &[&str]| HoldChange {
        add: all[64..].to_vec(),
        remove: remove.iter().map(|id| (*id).into()).collect(),
        ..HoldChange::default()
    };
    let change = |change| case.office.change(LedgerCall::by("ada"), &ada.hold.hold_id, key(&ada), change);
    assert_eq!(change(more(&["C-1"])).await.unwrap_err().code(), "invalid");
    change(more(&["C-1", "C-2"])).await.unwrap();
    case.check().await;
}
