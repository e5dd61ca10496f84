//! Many requests at once.

use std::sync::Arc;

use super::LedgerSubject;
use super::case::LawCase;
use crate::model::*;

/// Opens all of these at the same time; how many were granted.
async fn all_at_once(case: &LawCase<'_>, commands: Vec<OpenHold>) -> usize {
    let mut tasks = tokio::task::JoinSet::new();
    for command in commands {
        let ledger = case.ledger.clone();
        tasks.spawn(async move { ledger.open_hold(LedgerCall::by("crowd"), command).await });
    }
    let mut granted = 0;
    while let Some(answer) = tasks.join_next().await {
        match answer.unwrap() {
            Ok(_) => granted += 1,
            Err(error) => assert!(error.refusal().is_some(), "{error}"),
        }
    }
    granted
}

pub(super) async fn one_seat_has_one_winner(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let all: Vec<OpenHold> = (0..32).map(|buyer| case.opening(&format!("b{buyer}"), &["A-1", "A-2"], 0)).collect();
    assert_eq!(all_at_once(&case, all).await, 1);
    case.done().await;
}

pub(super) async fn a_buyer_never_exceeds_the_limit(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let all: Vec<OpenHold> = (1..=9).map(|seat| case.opening("ada", &[&format!("A-{seat}")], 0)).collect();
    assert_eq!(all_at_once(&case, all).await, 4);
    case.done().await;
}

pub(super) async fn an_area_is_never_oversold(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let all: Vec<OpenHold> = (0..16).map(|buyer| case.opening(&format!("b{buyer}"), &[], 2)).collect();
    assert_eq!(all_at_once(&case, all).await, 2);
    case.done().await;
}

pub(super) async fn one_hold_is_sold_once(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let hold = case.hold("ada", &["A-1"]).await;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let (ledger, command) = (case.ledger.clone(), case.confirming(&hold, "pi"));
        tasks.spawn(async move { ledger.confirm(LedgerCall::by("ada"), command).await.unwrap().value });
    }
    let (mut fresh, mut orders) = (0, Vec::new());
    while let Some(answer) = tasks.join_next().await {
        let Confirmed::Order { order, leases } = answer.unwrap() else { panic!() };
        fresh += usize::from(!leases.is_empty());
        orders.push(order);
    }
    assert_eq!(fresh, 1);
    assert!(orders.iter().all(|order| *order == orders[0]));
    case.done().await;
}

pub(super) async fn snapshots_conserve_seats(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (ledger, event, done) = (case.ledger.clone(), case.event.clone(), stop.clone());
    let reader = tokio::spawn(async move {
        let mut looks = 0;
        while !done.load(std::sync::atomic::Ordering::SeqCst) {
            let dump = ledger.dump(&event).await.unwrap().unwrap();
            let broken: Vec<_> = check::invariants(&dump).into_iter().filter(|check| !check.ok).collect();
            assert!(broken.is_empty(), "{broken:#?}");
            let snapshot = ledger.snapshot(&event).await.unwrap().unwrap();
            assert!(snapshot.seats.windows(2).all(|pair| pair[0].id < pair[1].id), "each seat once");
            looks += 1;
        }
        looks
    });
    for round in 0..20 {
        let hold = case.try_hold(case.opening(&format!("b{round}"), &["A-1", "A-2"], 1)).await.unwrap();
        if round == 10 {
            let order = case.sell(&hold, "pi").await;
            let void = Void { order_id: order.order_id, seats: None, reason: "again".into() };
            case.ledger.void(LedgerCall::by("staff"), void).await.unwrap();
        } else {
            case.release(&hold).await.unwrap();
        }
    }
    stop.store(true, std::sync::atomic::Ordering::SeqCst);
    assert!(reader.await.unwrap() > 0);
    case.done().await;
}

pub(super) async fn webhooks_never_exceed_the_limit(subject: &dyn LedgerSubject) {
    let case = LawCase::open(subject).await;
    let mut tasks = tokio::task::JoinSet::new();
    // Sixteen requests for eight webhooks, each of them asked for twice with another secret: three fit.
    for number in 0..16 {
        let (ledger, id, url) = (case.ledger.clone(), format!("w{}", number % 8), "https://example.org/".into());
        let hook = WebhookRow { id, event_id: None, url, secret: format!("s{number}"), active: true };
        tasks.spawn(async move { (hook.clone(), ledger.add_webhook(hook, 3).await.unwrap()) });
    }
    let (mut added, mut existing) = (Vec::new(), Vec::new());
    while let Some(answer) = tasks.join_next().await {
        match answer.unwrap() {
            (hook, WebhookAdded::Added) => added.push(hook),
            (_, WebhookAdded::Exists(hook)) => existing.push(hook),
            (_, WebhookAdded::TooMany) => {}
        }
    }
    added.sort_by(|a, b| a.id.cmp(&b.id));
    assert_eq!(added.len(), 3);
    assert_eq!(case.ledger.webhooks().await.unwrap(), added, "nobody overwrites another");
    assert!(existing.iter().all(|hook| added.contains(hook)));
    case.done().await;
}
