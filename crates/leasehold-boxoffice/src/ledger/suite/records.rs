//! Idempotency, numbers, audit, webhooks, and what is stored over a restart.

use super::LedgerSubject;
use super::case::{LawCase, refused};
use crate::error::Error;
use crate::ledger::Ledger;
use crate::model::*;

fn call(key: &str, body: &str) -> LedgerCall {
    LedgerCall { actor: "ada".into(), idem: Some(Idem::derive("ada", key, body.as_bytes())) }
}

pub(super) async fn a_retry_gets_the_stored_answer(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let first = case.ledger.open_hold(call("k", "b"), case.opening("ada", &["A-1"], 0)).await.unwrap();
    let again = case.ledger.open_hold(call("k", "b"), case.opening("ada", &["A-1"], 0)).await.unwrap();
    assert_eq!((first.replayed, again.replayed), (false, true));
    assert_eq!(first.value, again.value);
    let recalled = case.ledger.stored_answer(&call("k", "b").idem.unwrap()).await.unwrap().unwrap();
    assert_eq!(serde_json::from_value::<OpenedHold>(recalled).unwrap(), first.value);
    assert_eq!(case.ledger.stored_answer(&call("other", "b").idem.unwrap()).await.unwrap(), None);
    // The stored answer is returned even after the hold is over and the seat is another's.
    case.advance_time(10).await;
    case.hold("bob", &["A-1"]).await;
    let late = case.ledger.open_hold(call("k", "b"), case.opening("ada", &["A-1"], 0)).await.unwrap();
    assert_eq!(late.value, first.value);
    case.done().await;
}

pub(super) async fn another_body_is_refused(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    case.ledger.open_hold(call("k", "b"), case.opening("ada", &["A-1"], 0)).await.unwrap();
    let other = case.ledger.open_hold(call("k", "c"), case.opening("ada", &["A-2"], 0)).await;
    assert_eq!(refused(other), Refusal::Mismatch);
    assert_eq!(refused(case.ledger.stored_answer(&call("k", "c").idem.unwrap()).await), Refusal::Mismatch);
    assert_eq!(case.state("A-2").await, SeatState::Free);
    case.done().await;
}

pub(super) async fn a_refusal_is_not_stored(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let bob = case.hold("bob", &["A-1"]).await;
    refused(case.ledger.open_hold(call("k", "b"), case.opening("ada", &["A-1"], 0)).await);
    case.release(&bob).await.unwrap();
    let second = case.ledger.open_hold(call("k", "b"), case.opening("ada", &["A-1"], 0)).await.unwrap();
    assert!(!second.replayed);
    case.done().await;
}

pub(super) async fn numbers_have_no_gap(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let hold = case.hold("ada", &["A-1"]).await;
    refused(case.try_hold(case.opening("bob", &["A-1"], 0)).await);
    case.renew(&hold).await.unwrap();
    case.sell(&hold, "pi").await;
    let first: Vec<u64> = case.ledger.sequence(2).await.unwrap().iter().map(|entry| entry.seq).collect();
    assert_eq!(first, [1, 2]);
    case.hold("bob", &["A-2"]).await;
    let rest: Vec<u64> = case.ledger.sequence(100).await.unwrap().iter().map(|entry| entry.seq).collect();
    assert_eq!(rest, [3, 4, 5]);
    assert!(case.ledger.sequence(100).await.unwrap().is_empty());
    let all = case.ledger.audit(&case.event, AuditQuery::default()).await.unwrap();
    let kinds: Vec<EntryKind> = all.iter().map(|entry| entry.kind).collect();
    assert_eq!(kinds, [EntryKind::EventCreated, EntryKind::Held, EntryKind::Renewed, EntryKind::Sold, EntryKind::Held]);
    assert_eq!(case.ledger.heads().await.unwrap(), [(case.event.clone(), 5)]);
    assert_eq!(case.ledger.snapshot(&case.event).await.unwrap().unwrap().seq, 5);
    let since = AuditQuery { since: 3, limit: 1, ..AuditQuery::default() };
    assert_eq!(case.ledger.audit(&case.event, since).await.unwrap(), all[3..4]);
    case.done().await;
}

pub(super) async fn the_audit_knows_a_seat(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let ada = case.try_hold(case.opening("ada", &["A-1", "A-2"], 2)).await.unwrap();
    case.release(&ada).await.unwrap();
    case.hold("bob", &["A-2"]).await;
    case.ledger.sequence(100).await.unwrap();
    let of = |seat: &str| AuditQuery { seat: Some(seat.into()), ..AuditQuery::default() };
    let story = case.ledger.audit(&case.event, of("A-2")).await.unwrap();
    let told: Vec<(EntryKind, &str)> = story.iter().map(|entry| (entry.kind, entry.actor.as_str())).collect();
    assert_eq!(told, [(EntryKind::Held, "ada"), (EntryKind::Released, "ada"), (EntryKind::Held, "bob")]);
    assert_eq!(story[0].areas, [AreaFree { id: "floor".into(), free: 3, delta: 2 }]);
    assert_eq!(
        story[0].seats[0],
        SeatChange { id: "A-1".into(), state: SeatState::Held, token: Some(ada.seats[0].token) }
    );
    assert!(case.ledger.audit(&case.event, of("A-3")).await.unwrap().is_empty());
    case.done().await;
}

fn webhook(id: &str, event: Option<&EventId>) -> WebhookRow {
    let (url, secret) = ("https://example.org/hook".into(), "s".into());
    WebhookRow { id: id.into(), event_id: event.cloned(), url, secret, active: true }
}

pub(super) async fn webhooks_go_on_where_they_were(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let hook = webhook("w1", None);
    assert_eq!(case.ledger.add_webhook(hook.clone(), 9).await.unwrap(), WebhookAdded::Added);
    assert_eq!(case.ledger.webhooks().await.unwrap(), std::slice::from_ref(&hook));
    assert_eq!(case.ledger.webhook_cursor("w1", &case.event).await.unwrap(), 0);
    case.ledger.advance_webhook("w1", &case.event, 5).await.unwrap();
    case.ledger.advance_webhook("w1", &case.event, 3).await.unwrap();
    assert_eq!(case.ledger.webhook_cursor("w1", &case.event).await.unwrap(), 5, "never back");
    // Another under the same id changes nothing: neither the row nor the cursor.
    let other = WebhookRow { url: "https://example.com/".into(), ..hook.clone() };
    assert_eq!(case.ledger.add_webhook(other, 9).await.unwrap(), WebhookAdded::Exists(hook.clone()));
    assert_eq!(case.ledger.webhooks().await.unwrap(), std::slice::from_ref(&hook));
    assert_eq!(case.ledger.webhook_cursor("w1", &case.event).await.unwrap(), 5);
    assert!(case.ledger.remove_webhook(&hook).await.unwrap());
    assert!(!case.ledger.remove_webhook(&hook).await.unwrap());
    case.done().await;
}

pub(super) async fn a_new_webhook_hears_what_comes(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    case.hold("ada", &["A-1"]).await;
    while !case.ledger.sequence(7).await.unwrap().is_empty() {}
    let other = EventId::from("elsewhere");
    for hook in [webhook("all", None), webhook("own", Some(&case.event)), webhook("other", Some(&other))] {
        assert_eq!(case.ledger.add_webhook(hook, 9).await.unwrap(), WebhookAdded::Added);
    }
    let cursor = async |id: &str| case.ledger.webhook_cursor(id, &case.event).await.unwrap();
    assert_eq!((cursor("all").await, cursor("own").await, cursor("other").await), (2, 2, 0));
    case.done().await;
}

pub(super) async fn a_removed_webhook_stays_removed(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let hook = webhook("w1", Some(&case.event));
    case.ledger.add_webhook(hook.clone(), 9).await.unwrap();
    assert!(case.ledger.deactivate_webhook("w1").await.unwrap());
    let off = WebhookRow { active: false, ..hook.clone() };
    assert_eq!(case.ledger.webhooks().await.unwrap(), std::slice::from_ref(&off));
    // Who saw one of another event does not remove this one.
    assert!(!case.ledger.remove_webhook(&webhook("w1", None)).await.unwrap());
    assert!(case.ledger.remove_webhook(&hook).await.unwrap());
    // What was on its way when it was removed leaves nothing behind.
    assert!(!case.ledger.deactivate_webhook("w1").await.unwrap());
    case.ledger.advance_webhook("w1", &case.event, 5).await.unwrap();
    assert_eq!(case.ledger.webhooks().await.unwrap(), []);
    assert_eq!(case.ledger.webhook_cursor("w1", &case.event).await.unwrap(), 0);
    case.done().await;
}

pub(super) async fn all_of_it_survives_a_restart(subject: &dyn LedgerSubject) {
    let mut case = LawCase::open(subject).await;
    let sold = case.hold("ada", &["A-1"]).await;
    let order = case.sell(&sold, "pi").await;
    let stored = case.ledger.open_hold(call("k", "b"), case.opening("ada", &["A-2"], 1)).await.unwrap().value;
    case.ledger.sequence(100).await.unwrap();
    case.ledger.close().await.unwrap();
    case.ledger = subject.reopen().await;
    assert_eq!(case.ledger.order(&order.order_id).await.unwrap(), Some(order.clone()));
    assert_eq!(case.ledger.orders(&case.event, None, 10).await.unwrap(), std::slice::from_ref(&order));
    assert!(case.ledger.orders(&case.event, Some(&order.order_id), 10).await.unwrap().is_empty());
    let again = case.ledger.open_hold(call("k", "b"), case.opening("ada", &["A-2"], 1)).await.unwrap();
    assert_eq!((again.value, again.replayed), (stored.clone(), true));
    assert_eq!(case.sell(&sold, "pi").await, order);
    case.renew(&stored.hold).await.unwrap();
    let next: Vec<u64> = case.ledger.sequence(100).await.unwrap().iter().map(|entry| entry.seq).collect();
    assert_eq!(next, [5], "the numbers go on");
    case.done().await;
}

pub(super) async fn time_never_goes_back(subject: &dyn LedgerSubject) {
    let mut case = LawCase::open(subject).await;
    let hold = case.hold("ada", &["A-1"]).await;
    case.advance_time(3).await;
    let before = case.ledger.now().await.unwrap();
    assert!(before >= hold.opened_at.plus(3 * case.unit));
    case.hold("bob", &["A-2"]).await;
    case.ledger.close().await.unwrap();
    case.ledger = subject.reopen().await;
    assert!(case.ledger.now().await.unwrap() >= before);
    case.advance_time(7).await;
    assert_eq!(refused(case.confirm(&hold, "pi").await), Refusal::Ended(HoldState::Lapsed));
    case.done().await;
}

pub(super) async fn what_is_old_is_forgotten(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let hold = case.ledger.open_hold(call("k", "b"), case.opening("ada", &["A-1"], 0)).await.unwrap().value.hold;
    case.release(&hold).await.unwrap();
    let paid = case.hold("bob", &["A-2"]).await;
    case.pay(&paid, "pi").await.unwrap();
    // Money that was never begun here came for a hold that was given up.
    let given_up = case.hold("cyd", &["A-3"]).await;
    case.release(&given_up).await.unwrap();
    let (access, callback) = (Access::Staff, Some("m".into()));
    let came = Confirm { access, callback, ..case.confirming(&given_up, "pi_2") };
    case.ledger.confirm(LedgerCall::by("provider"), came).await.unwrap();
    case.advance_time(40).await;
    case.ledger.lapse_due(10).await.unwrap();
    assert_eq!(case.ledger.forget_older_than(1000 * case.unit).await.unwrap(), 0);
    assert_eq!(case.ledger.forget_older_than(case.unit).await.unwrap(), 2);
    assert_eq!(case.ledger.hold(&hold.hold_id).await.unwrap().0, None);
    assert!(case.ledger.hold(&paid.hold_id).await.unwrap().0.is_some(), "money may still come for it");
    assert!(case.ledger.hold(&given_up.hold_id).await.unwrap().0.is_some(), "money has come for it");
    case.done().await;
}

pub(super) async fn a_closed_ledger_is_unavailable(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    case.ledger.close().await.unwrap();
    let late = case.try_hold(case.opening("ada", &["A-1"], 0)).await;
    assert!(matches!(late, Err(Error::Unavailable { .. })), "{late:?}");
    let ledger: &dyn Ledger = &*case.ledger;
    ledger.close().await.unwrap();
}

pub(super) async fn the_engine_is_remembered(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let ledger = &case.ledger;
    assert_eq!((ledger.engine().await.unwrap(), ledger.highest_token().await.unwrap()), (None, 0));
    assert!(ledger.put_engine(Some("one".into()), None).await.unwrap());
    // Only from what was seen: of two who come at once, one is told to look again.
    assert!(!ledger.put_engine(Some("two".into()), None).await.unwrap());
    assert_eq!(ledger.engine().await.unwrap().as_deref(), Some("one"));
    // Places have no row of their own: the leases of live holds are counted.
    let places = case.opening("ada", &[], 2);
    let token = places.lease.token;
    case.try_hold(places).await.unwrap();
    assert_eq!(ledger.highest_token().await.unwrap(), token);
    ledger.close().await.unwrap();
    let again = subject.reopen().await;
    assert_eq!(again.engine().await.unwrap().as_deref(), Some("one"));
    assert!(again.put_engine(Some("two".into()), Some("one".into())).await.unwrap());
    assert_eq!(again.engine().await.unwrap().as_deref(), Some("two"));
    again.close().await.unwrap();
}
