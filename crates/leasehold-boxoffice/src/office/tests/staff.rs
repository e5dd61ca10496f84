//! What staff does, changed holds, and what is told.

use super::*;

fn blocks(house: &TestOffice, block: &[&str], unblock: &[&str]) -> SetBlocks {
    let ids = |ids: &[&str]| ids.iter().map(|id| (*id).into()).collect();
    SetBlocks {
        event_id: house.event.clone(),
        block: ids(block),
        unblock: ids(unblock),
        areas: vec![],
        reason: "camera".into(),
    }
}

/// Goal: seats change hands by staff's word, each with a reason in the audit, and the history of a seat says why.
#[tokio::test]
async fn staff_acts_and_the_audit_knows() {
    let house = TestOffice::open().await;
    let (office, event) = (&house.office, &house.event);
    office.set_blocks(LedgerCall::by("eve"), blocks(&house, &["A-1"], &[])).await.unwrap();
    assert_eq!(lost(house.hold("ada", &["A-1"]).await), [("A-1".into(), Reason::Blocked)]);
    office.set_blocks(LedgerCall::by("eve"), blocks(&house, &[], &["A-1"])).await.unwrap();
    let ada = house.hold("ada", &["A-1"]).await.unwrap();
    let ended = office.force_release(LedgerCall::by("eve"), event, "A-1", "wheelchair place").await.unwrap();
    assert_eq!(ended.hold.hold_id, ada.hold.hold_id);
    assert_eq!(house.leases().await, 0);
    let bob = house.hold("bob", &["A-1", "A-2"]).await.unwrap();
    let order = office.confirm(LedgerCall::by("bob"), &bob.hold.hold_id, key(&bob), "cash").await.unwrap();
    let moved =
        office.move_order(LedgerCall::by("eve"), &order.order_id, vec![("A-2".into(), "B-2".into())], "broken").await;
    let moved = moved.unwrap();
    assert_eq!((moved.order.total, moved.owed), (7500, 1500));
    assert_eq!(house.leases().await, 0);
    office.void(LedgerCall::by("eve"), &order.order_id, Some(vec!["A-1".into()]), "ill").await.unwrap();
    house.hold("cyd", &["A-1", "A-2"]).await.unwrap();
    assert!(matches!(office.void(LedgerCall::by("eve"), &order.order_id, None, " ").await, Err(Error::Invalid(_))));

    house.check().await;
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
    let house = TestOffice::open().await;
    let ada = house.hold("ada", &["A-1", "A-2"]).await.unwrap();
    let change = HoldChange { add: vec!["A-3".into()], remove: vec!["A-1".into()], ..HoldChange::default() };
    let changed = house.office.change(LedgerCall::by("ada"), &ada.hold.hold_id, key(&ada), change).await.unwrap();
    let seats: Vec<&str> = changed.hold.seats.iter().map(|seat| seat.id.as_str()).collect();
    assert_eq!((seats, changed.total), (vec!["A-2", "A-3"], 9000));
    assert_eq!(house.leases().await, 2);
    house.hold("bob", &["A-1"]).await.unwrap();
    assert_eq!(lost(house.hold("bob", &["A-2"]).await), [("A-2".into(), Reason::Taken)]);
    assert_eq!(lost(house.hold("bob", &["A-3"]).await), [("A-3".into(), Reason::Taken)]);
    house.clock.advance(seconds(200));
    house.office.renew(LedgerCall::by("ada"), &ada.hold.hold_id, key(&ada)).await.unwrap();
    house.clock.advance(seconds(200));
    assert_eq!(lost(house.hold("bob", &["A-2"]).await), [("A-2".into(), Reason::Taken)]);
    let taken = HoldChange { add: vec!["A-3".into()], ..HoldChange::default() };
    assert_eq!(lost(house.office.change(LedgerCall::by("ada"), &ada.hold.hold_id, key(&ada), taken).await).len(), 1);
    let order = house.office.confirm(LedgerCall::by("ada"), &ada.hold.hold_id, key(&ada), "pi").await.unwrap();
    assert_eq!(order.seats.len(), 2);
    house.clock.advance(seconds(110));
    house.office.sweep(2).await.unwrap();
    assert_eq!(house.leases().await, 0);
    house.check().await;
}

/// Goal: sales stop and resume; rules change for holds from then on, also for an office that knew the old ones.
#[tokio::test]
async fn rules_change_under_an_office_that_knew_others() {
    let house = TestOffice::open().await;
    let other = house.another();
    house.hold("ada", &["A-1"]).await.unwrap();
    let want = |seat: &str| HoldRequest::These { seats: vec![seat.into()], areas: vec![] };
    other.hold(LedgerCall::by("bob"), &house.event, "bob".into(), want("A-2")).await.unwrap();
    house.office.freeze(LedgerCall::by("eve"), &house.event, true, "fire drill").await.unwrap();
    let frozen = other.hold(LedgerCall::by("bob"), &house.event, "bob".into(), want("A-3")).await;
    assert_eq!(lost(frozen), [("A-3".into(), Reason::NotOnSale)]);
    house.office.freeze(LedgerCall::by("eve"), &house.event, false, "over").await.unwrap();
    let settings = EventSettings { ttl_ms: 800_000, ..EventSettings::named("Gala") };
    house.office.configure(LedgerCall::by("eve"), &house.event, settings, None).await.unwrap();
    let longer = other.hold(LedgerCall::by("bob"), &house.event, "bob".into(), want("A-3")).await.unwrap();
    assert_eq!(longer.remaining_ms, 800_000);
    // The lease is as long: at the end of the row nobody else has had the seat.
    house.clock.advance(seconds(799));
    assert_eq!(lost(house.hold("cyd", &["A-3"]).await), [("A-3".into(), Reason::Taken)]);
    house.check().await;
}

/// Goal: who follows an event is woken, and reads every number once.
#[tokio::test]
async fn followers_are_woken_with_numbers() {
    let house = TestOffice::open().await;
    let mut changes = house.office.changes(&house.event);
    house.office.cached_event(&house.event).await.unwrap();
    house.hold("ada", &["A-1"]).await.unwrap();
    house.office.sequence().await.unwrap();
    changes.changed().await.unwrap();
    assert_eq!(*changes.borrow_and_update(), 2);
    let entries = house.office.audit(&house.event, AuditQuery { since: 1, ..AuditQuery::default() }).await.unwrap();
    assert_eq!((entries.len(), entries[0].seq, entries[0].kind), (1, 2, EntryKind::Held));
    let seen = house.office.availability(&house.event).await.unwrap();
    assert_eq!((seen.seq, seen.totals.held, seen.totals.free), (2, 1, 19));
}

/// Goal: a picture that is fresh refuses what is sold without asking anybody, and forgets it when the seat is free.
#[tokio::test]
async fn memory_refuses_early_and_never_grants() {
    let house = TestOffice::open().await;
    let other = house.another();
    other.cached_event(&house.event).await.unwrap();
    let ada = house.hold("ada", &["A-1"]).await.unwrap();
    let order = house.office.confirm(LedgerCall::by("ada"), &ada.hold.hold_id, key(&ada), "pi").await.unwrap();
    other.sequence().await.unwrap();
    house.engine.close().await.unwrap();
    // The engine is gone: whatever is answered now is answered from memory.
    let want = |seat: &str| HoldRequest::These { seats: vec![seat.into()], areas: vec![] };
    let sold = other.hold(LedgerCall::by("bob"), &house.event, "bob".into(), want("A-1")).await;
    assert_eq!(lost(sold), [("A-1".into(), Reason::Sold)]);
    let free = other.hold(LedgerCall::by("bob"), &house.event, "bob".into(), want("A-2")).await;
    assert_eq!(free.unwrap_err().code(), "unavailable");
    house.office.void(LedgerCall::by("eve"), &order.order_id, None, "again").await.unwrap();
    other.sequence().await.unwrap();
    let free = other.hold(LedgerCall::by("bob"), &house.event, "bob".into(), want("A-1")).await;
    assert_eq!(free.unwrap_err().code(), "unavailable");
    // A picture that nobody keeps up is not believed.
    other.cached_event(&house.event).await.unwrap().note(["A-3"].into_iter(), SeatState::Sold, other.clock().now());
    house.clock.advance(seconds(3));
    let old = other.hold(LedgerCall::by("bob"), &house.event, "bob".into(), want("A-3")).await;
    assert_eq!(old.unwrap_err().code(), "unavailable");
}

/// Goal: the stored answer of a confirm says nothing of seats that were voided since.
#[tokio::test]
async fn a_replayed_sale_does_not_block_what_is_free_again() {
    let house = TestOffice::open().await;
    let ada = house.hold("ada", &["A-1"]).await.unwrap();
    let call = || LedgerCall { actor: "ada".into(), idem: Some(Idem::derive("ada", "k", b"confirm")) };
    let order = house.office.confirm(call(), &ada.hold.hold_id, key(&ada), "pi").await.unwrap();
    house.office.void(LedgerCall::by("staff"), &order.order_id, None, "ill").await.unwrap();
    house.office.sequence().await.unwrap();
    house.office.confirm(call(), &ada.hold.hold_id, key(&ada), "pi").await.unwrap();
    assert_eq!(house.office.metrics().await.sales_total, 1);
    house.office.follow_entries().await.unwrap();
    house.hold("bob", &["A-1"]).await.unwrap();
    house.check().await;
}

/// Goal: an area that is named twice is refused, and a hold does not grow past what one claim can have.
#[tokio::test]
async fn what_is_too_much_is_named() {
    let house = TestOffice::with(|settings| settings.per_buyer = 1000).await;
    let areas = vec![("floor".into(), 2), ("floor".into(), 2)];
    let (event_id, reason) = (house.event.clone(), "house".into());
    let blocks = SetBlocks { event_id, block: vec![], unblock: vec![], areas, reason };
    let twice = house.office.set_blocks(LedgerCall::by("staff"), blocks).await.unwrap_err();
    assert_eq!(twice.code(), "invalid");

    let seat = |number: u32| Seat { id: format!("C-{number}"), section: "C".into(), row: "C".into(), number, price: 1 };
    let layout = Layout { seats: (1..=70).map(seat).collect(), areas: vec![] };
    house.office.replace_layout(LedgerCall::by("staff"), &house.event, layout).await.unwrap();
    let all: Vec<String> = (1..=66).map(|number| format!("C-{number}")).collect();
    let most: Vec<&str> = all[..64].iter().map(String::as_str).collect();
    let ada = house.hold("ada", &most).await.unwrap();
    let more = |remove: &[&str]| HoldChange {
        add: all[64..].to_vec(),
        remove: remove.iter().map(|id| (*id).into()).collect(),
        ..HoldChange::default()
    };
    let change = |change| house.office.change(LedgerCall::by("ada"), &ada.hold.hold_id, key(&ada), change);
    assert_eq!(change(more(&["C-1"])).await.unwrap_err().code(), "invalid");
    change(more(&["C-1", "C-2"])).await.unwrap();
    house.check().await;
}
