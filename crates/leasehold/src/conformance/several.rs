//! Claims on more than one resource: all of them, or none.

use super::Subject;
use super::law_case::{LawCase, exclusive, shared};
use crate::engine::{Claim, Want};

fn all(names: &[&str]) -> Vec<Want> {
    names.iter().map(|name| exclusive(name)).collect()
}

/// Goal: a claim that cannot have all takes nothing, and says what is in the way.
/// Method: the first, the middle or the last of three is held by another.
pub(super) async fn several_are_all_or_nothing(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let names = ["a", "b", "c"];
    for taken in names {
        let ada = case.granted(case.claim("ada", taken)).await;
        let held = case.held(Claim { wants: all(&names), ..case.claim("bob", "a") }).await;
        assert_eq!((held.resource.as_str(), held.holder.as_deref()), (taken, Some("ada")));
        for free in names.iter().filter(|name| **name != taken) {
            assert_eq!(case.inspect(free).await, None, "nothing is kept of a refused claim");
        }
        case.end(&ada).await;
    }
    case.granted(Claim { wants: all(&names), ..case.claim("bob", "a") }).await;
    for name in names {
        assert_eq!(case.holders(name).await, ["bob"]);
        case.held(case.claim("ada", name)).await;
    }
}

/// Goal: one release ends the lease on all of them; so does one lapse. Each has its own mode.
/// Method: an exclusive and a shared resource in one claim.
pub(super) async fn several_are_released_together(subject: &dyn Subject) {
    let Some(case) = LawCase::with_modes(subject).await else { return };
    let mixed = Claim { wants: vec![exclusive("a"), shared("b")], ..case.claim("ada", "a") };
    let ada = case.granted(mixed.clone()).await;
    let reader = case.granted(Claim { wants: vec![shared("b")], ..case.claim("bob", "b") }).await;
    case.held(case.claim("cy", "a")).await;
    case.end(&ada).await;
    assert_eq!((case.inspect("a").await, case.holders("b").await), (None, vec!["bob".to_owned()]));
    case.end(&reader).await;
    case.granted(mixed).await;
    case.pass(case.units(10) + subject.slack()).await;
    case.granted(Claim { wants: all(&["b", "a"]), ..case.claim("cy", "a") }).await;
}

/// Goal: a claim that waits for several resources holds none of them meanwhile.
/// Method: bob waits for a, which ada has, and b, which is free; then ada releases.
pub(super) async fn a_waiting_claim_holds_nothing(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let ada = case.granted(case.claim("ada", "a")).await;
    let bob = case.in_line(Claim { wants: all(&["a", "b"]), ..case.patient("bob", "a") }).await;
    assert_eq!(case.holders("b").await, [""; 0]);
    if case.promises.fair {
        let held = case.held(case.claim("cy", "b")).await;
        assert_eq!((held.resource.as_str(), held.holder, held.queue_len), ("b", None, 1), "only a queue is in the way");
    }
    case.still_waits(&bob).await;
    case.end(&ada).await;
    case.answered_with_a_grant(bob).await;
    assert_eq!((case.holders("a").await, case.holders("b").await), (vec!["bob".to_owned()], vec!["bob".to_owned()]));
}

/// Goal: claims that name the same resources in different orders never block each other for good.
/// Method: four workers want pairs in a circle, each way round, three times each.
pub(super) async fn opposite_orders_do_not_deadlock(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let pairs = [["a", "b"], ["b", "c"], ["c", "a"], ["b", "a"]];
    for _ in 0..3 {
        let workers: Vec<_> = pairs
            .iter()
            .enumerate()
            .map(|(n, pair)| {
                let claim = Claim { wants: all(pair), ..case.patient(&format!("worker {n}"), "a") };
                let engine = case.engine.clone();
                tokio::spawn(async move {
                    let grant = engine.acquire(claim).await.expect("everybody has its turn");
                    engine.release(&grant.lease_id).await.expect("a holder releases")
                })
            })
            .collect();
        for worker in workers {
            assert!(case.finished(worker).await, "each ends its own lease");
        }
    }
}
