//! One holder, and who may be beside whom.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Subject;
use super::law_case::{HeldBy, LawCase, assert_invalid, exclusive, permits, shared};
use crate::engine::Claim;

/// Goal: an exclusive lease keeps everybody else out, and only of its own resource.
/// Method: bob asks for what ada has, and for something else.
pub(super) async fn exclusive_excludes(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let ada = case.granted(case.claim("ada", "seat")).await;
    case.assert_about("the life of a fresh lease", ada.remaining, case.units(10));
    let held = case.held(case.claim("bob", "seat")).await;
    let remaining = held.remaining.expect("a refusal says how long it can still be held");
    case.assert_about("the time it can still be held", remaining, case.units(10));
    let (resource, holder) = ("seat".into(), Some("ada".into()));
    assert_eq!(held, HeldBy { resource, holder, remaining: Some(remaining), queue_len: 0 });
    case.held(case.claim("ada", "seat")).await;
    case.granted(case.claim("bob", "other seat")).await;
    assert_eq!(case.holders("seat").await, ["ada"]);
}

/// Goal: of many who ask at the same time, one gets it.
/// Method: 24 acquires without patience, all started before any is answered.
pub(super) async fn a_crowd_gets_one_holder(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let crowd: Vec<_> = (0..24).map(|n| case.start(case.claim(&format!("buyer {n}"), "seat"))).collect();
    let mut granted = 0;
    for buyer in crowd {
        granted += usize::from(case.answer(buyer).await.is_ok());
    }
    assert_eq!(granted, 1, "one of the crowd has the seat");
    assert_eq!(case.holders("seat").await.len(), 1);
}

/// Goal: whoever waits is let in alone, and everybody is let in.
/// Method: eight tasks that take the seat three times each and count who is inside.
pub(super) async fn a_crowd_is_let_in_one_at_a_time(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    if !case.promises.fair {
        return; // without order, nobody promises that all come in within the patience of one
    }
    let inside = Arc::new(AtomicUsize::new(0));
    let mut crowd = Vec::new();
    for n in 0..8 {
        let (engine, inside) = (case.engine.clone(), inside.clone());
        let claim = case.patient(&format!("worker {n}"), "seat");
        crowd.push(tokio::spawn(async move {
            for _ in 0..3 {
                let grant = engine.acquire(claim.clone()).await.expect("everybody has its turn");
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                assert!(engine.release(&grant.lease_id).await.expect("a holder releases"));
            }
        }));
    }
    for worker in crowd {
        case.finished(worker).await;
    }
}

/// Goal: readers share, a writer is alone.
/// Method: two readers; a writer is refused until both are gone, and then keeps readers out.
pub(super) async fn readers_share_and_a_writer_waits(subject: &dyn Subject) {
    let Some(case) = LawCase::with_modes(subject).await else { return };
    let read = |who: &str| Claim { wants: vec![shared("page")], ..case.claim(who, "page") };
    let ada = case.granted(read("ada")).await;
    let bob = case.granted(read("bob")).await;
    case.held(case.claim("cy", "page")).await;
    case.end(&ada).await;
    assert_eq!(case.held(case.claim("cy", "page")).await.holder.as_deref(), Some("bob"));
    case.end(&bob).await;
    let cy = case.granted(case.claim("cy", "page")).await;
    case.held(read("ada")).await;
    case.end(&cy).await;
    case.granted(read("ada")).await;
}

/// Goal: never more permits are out than there are, and what is given back can be had again.
/// Method: take 1 and 2 of 3; a fourth is refused until two come back, and then 3 are refused.
pub(super) async fn permits_never_exceed_the_capacity(subject: &dyn Subject) {
    let Some(case) = LawCase::with_modes(subject).await else { return };
    let take = |who: &str, count| Claim { wants: vec![permits("pool", count, 3)], ..case.claim(who, "pool") };
    let ada = case.granted(take("ada", 1)).await;
    case.held(take("bob", 3)).await;
    let bob = case.granted(take("bob", 2)).await;
    case.held(take("cy", 1)).await;
    case.end(&bob).await;
    case.held(take("cy", 3)).await;
    case.granted(take("cy", 1)).await;
    case.granted(take("dan", 1)).await;
    case.held(take("eve", 1)).await;
    case.end(&ada).await;
    case.granted(take("eve", 1)).await;
}

/// Goal: the three modes keep each other out.
/// Method: each mode as holder against each other mode.
pub(super) async fn modes_exclude_each_other(subject: &dyn Subject) {
    let Some(case) = LawCase::with_modes(subject).await else { return };
    let modes = [exclusive("thing"), shared("thing"), permits("thing", 1, 3)];
    for (first, held) in modes.iter().enumerate() {
        let ada = case.granted(Claim { wants: vec![held.clone()], ..case.claim("ada", "thing") }).await;
        for (second, wanted) in modes.iter().enumerate() {
            if first != second {
                case.held(Claim { wants: vec![wanted.clone()], ..case.claim("bob", "thing") }).await;
            }
        }
        case.end(&ada).await;
    }
}

/// Goal: while permits are out, everybody agrees on how many there are.
/// Method: ask with another capacity while one is held, and once more where it would not even fit.
pub(super) async fn another_capacity_is_invalid_while_in_use(subject: &dyn Subject) {
    let Some(case) = LawCase::with_modes(subject).await else { return };
    let take = |count, all| Claim { wants: vec![permits("pool", count, all)], ..case.claim("ada", "pool") };
    case.granted(take(1, 3)).await;
    for (count, all) in [(1, 2), (1, 4), (4, 4), (1, 1)] {
        assert_invalid("another capacity", &case.not_granted(take(count, all)).await);
    }
    case.granted(take(2, 3)).await;
}

/// Goal: the capacity is forgotten with the last lease, however that ends.
/// Method: end it by release, by revoke and by lapse, and ask with another capacity each time.
pub(super) async fn the_capacity_is_forgotten_afterwards(subject: &dyn Subject) {
    let Some(case) = LawCase::with_modes(subject).await else { return };
    let take = |all| Claim { wants: vec![permits("pool", 1, all)], ..case.claim("ada", "pool") };
    let first = case.granted(take(3)).await;
    case.end(&first).await;
    case.granted(take(4)).await;
    case.engine.revoke("pool", "a new pool").await.expect("an operator revokes");
    case.granted(take(5)).await;
    case.pass_nearly(case.units(10)).await;
    assert_invalid("another capacity", &case.not_granted(take(6)).await);
    case.pass_the_rest().await;
    case.granted(take(6)).await;
}
