//! Request ids: a retried acquire has one effect.

use std::time::Duration;

use super::Subject;
use super::law_case::{LawCase, assert_is, assert_refused, exclusive, in_time, shared};
use crate::engine::Claim;
use crate::error::{Error, Refusal};

fn asking(case: &LawCase<'_>, id: &str) -> Claim {
    Claim { request: Some(id.into()), principal: "ada".into(), ..case.claim("ada", "seat") }
}

/// Goal: a repeat gets the same lease, with the time that is left of it, renewals included.
/// Method: repeat after 4, and 3 after a renewal; once with other patience.
pub(super) async fn a_repeat_gets_the_same_lease(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let first = case.granted(asking(&case, "r1")).await;
    case.pass(case.units(4)).await;
    let repeat = case.granted(asking(&case, "r1")).await;
    assert_eq!((&repeat.lease_id, repeat.token), (&first.lease_id, first.token));
    case.assert_about("what is left", repeat.remaining, case.units(6));
    case.renew(&repeat, None).await.expect("the lease is live");
    case.pass(case.units(3)).await;
    let patient = Claim { wait: case.units(5), ..asking(&case, "r1") };
    let repeat = case.granted(patient).await;
    assert_eq!((&repeat.lease_id, repeat.token), (&first.lease_id, first.token));
    case.assert_about("what is left", repeat.remaining, case.units(7));
    assert_eq!(case.holders("seat").await, ["ada"]);
    case.end(&first).await;
    assert_eq!(case.inspect("seat").await, None);
}

/// Goal: a repeat that comes after the end gets the old lease, with nothing left of it, and takes nothing.
/// Method: repeat after a release, a lapse and a revoke, also when somebody else has the seat.
pub(super) async fn a_repeat_after_the_end_has_nothing_left(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    for (id, how) in [("r1", "release"), ("r2", "lapse"), ("r3", "revoke")] {
        let first = case.granted(asking(&case, id)).await;
        match how {
            "release" => case.end(&first).await,
            "lapse" => case.pass(case.units(10) + subject.slack()).await,
            _ => assert_is("one", in_time(case.engine.revoke("seat", "a burst pipe")).await, |ended| *ended == 1),
        }
        let repeat = case.granted(asking(&case, id)).await;
        assert_eq!((&repeat.lease_id, repeat.token), (&first.lease_id, first.token), "after a {how}");
        assert_eq!(repeat.remaining, Duration::ZERO, "after a {how}");
        assert_eq!(case.inspect("seat").await, None, "a repeat takes nothing");
        let bob = case.granted(case.claim("bob", "seat")).await;
        assert_eq!(case.granted(asking(&case, id)).await.remaining, Duration::ZERO, "after a {how}");
        assert_eq!(case.holders("seat").await, ["bob"]);
        case.end(&bob).await;
    }
}

/// Goal: the same id for another claim is a mistake, and is told so; it changes nothing.
/// Method: another ttl, cap, delay, resource, mode, and one resource more; on a live lease and an ended one.
pub(super) async fn another_body_is_a_mismatch(subject: &dyn Subject) {
    let Some(case) = LawCase::with_modes(subject).await else { return };
    let grants_delays = case.grants_delays().await;
    let first = case.granted(asking(&case, "r1")).await;
    let mut bodies = vec![
        Claim { ttl: case.units(11), ..asking(&case, "r1") },
        Claim { max_hold: Some(case.units(20)), ..asking(&case, "r1") },
        Claim { wants: vec![exclusive("other seat")], ..asking(&case, "r1") },
        Claim { wants: vec![shared("seat")], ..asking(&case, "r1") },
        Claim { wants: vec![exclusive("seat"), exclusive("other seat")], ..asking(&case, "r1") },
    ];
    if grants_delays {
        bodies.push(Claim { delay: case.units(1), ..asking(&case, "r1") });
    }
    for ended in [false, true] {
        if ended {
            case.end(&first).await;
        }
        for body in &bodies {
            let answer = in_time(case.engine.acquire(body.clone())).await;
            assert_refused("another body", answer, &Refusal::Mismatch);
        }
        assert_eq!(case.inspect("other seat").await, None);
    }
    assert_eq!(case.granted(asking(&case, "r1")).await.lease_id, first.lease_id);
}

/// Goal: one principal's request id means nothing to another, and an id means nothing beside another.
/// Method: the same id from ada and bob, for different seats; a second id from ada.
pub(super) async fn a_request_id_belongs_to_its_principal(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let ada = case.granted(asking(&case, "r1")).await;
    let bobs = Claim { request: Some("r1".into()), principal: "bob".into(), ..case.claim("bob", "seat") };
    case.held(bobs.clone()).await;
    let bob = case.granted(Claim { wants: vec![exclusive("other seat")], ..bobs }).await;
    assert_ne!(ada.lease_id, bob.lease_id);
    case.held(asking(&case, "r2")).await;
    assert_eq!(case.granted(asking(&case, "r1")).await.lease_id, ada.lease_id);
}

/// Goal: a refusal leaves nothing behind under the request id: not the answer, not the body.
/// Method: a refused request, and one whose patience ran out, come again with another body.
pub(super) async fn a_refusal_is_not_stored(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let bob = case.granted(case.claim("bob", "seat")).await;
    case.held(asking(&case, "r1")).await;
    case.held(Claim { ttl: case.units(9), ..asking(&case, "r1") }).await;
    let waiting = case.in_line(Claim { wait: case.units(2), ..asking(&case, "r1") }).await;
    case.pass(case.units(2) + subject.slack()).await;
    // At once: an engine that has not sent it home yet must not remember it either.
    case.held(Claim { ttl: case.units(8), ..asking(&case, "r1") }).await;
    assert!(case.answer(waiting).await.is_err(), "patience runs out");
    case.end(&bob).await;
    let ada = case.granted(Claim { ttl: case.units(7), ..asking(&case, "r1") }).await;
    case.assert_about("the life of a fresh lease", ada.remaining, case.units(7));
}

/// Goal: a request that is refused is a grant to nobody, also to a repeat that comes while it is being refused.
/// Method: two calls with one id at once, again and again, while bob has the seat.
pub(super) async fn a_repeat_beside_a_refusal_is_no_grant(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let bob = case.granted(case.claim("bob", "seat")).await;
    for round in 0..20 {
        let asked = asking(&case, &format!("r{round}"));
        let (first, second) = (case.start(asked.clone()), case.start(asked));
        for answer in [case.answer(first).await, case.answer(second).await] {
            // A fleet may be unable to say what became of the first.
            let error = answer.expect_err("bob has it");
            assert!(matches!(error, Error::Refused(Refusal::Held { .. }) | Error::Unavailable { .. }), "{error:?}");
        }
        case.renew(&bob, None).await.expect("the lease is live");
    }
    case.end(&bob).await;
}

/// Goal: a repeat that comes while the first still waits joins it: one place in line, one lease, one answer.
/// Method: two calls with one id behind bob; another body meanwhile is a mismatch.
pub(super) async fn a_repeat_while_waiting_joins(subject: &dyn Subject) {
    if !subject.joins_requests() {
        return;
    }
    let case = LawCase::new(subject).await;
    let bob = case.granted(case.claim("bob", "seat")).await;
    let patient = Claim { wait: case.units(100), ..asking(&case, "r1") };
    let first = case.in_line(patient.clone()).await;
    let second = case.start(patient.clone());
    if case.promises.fair {
        let other = Claim { ttl: case.units(11), ..patient };
        let answer = in_time(case.engine.acquire(other)).await;
        assert_refused("another body", answer, &Refusal::Mismatch);
        assert_eq!(case.queue("seat").await, 1, "both have one place in line");
    }
    // An engine at the other end of a wire hears of the second call a moment later.
    case.pass(subject.slack()).await;
    case.still_waits(&second).await;
    case.end(&bob).await;
    let first = case.answered_with_a_grant(first).await;
    let second = case.answered_with_a_grant(second).await;
    assert_eq!((&first.lease_id, first.token), (&second.lease_id, second.token));
    case.end(&first).await;
    assert_eq!(case.inspect("seat").await, None, "there was one grant");
}

/// Goal: when one of two joined calls goes away, the other keeps the place.
/// Method: the first call is dropped; the second is served before cy, who came between them.
pub(super) async fn a_joined_call_may_leave(subject: &dyn Subject) {
    if !subject.joins_requests() {
        return;
    }
    let case = LawCase::new(subject).await;
    if !case.promises.fair {
        return;
    }
    let bob = case.granted(case.claim("bob", "seat")).await;
    let patient = Claim { wait: case.units(100), ..asking(&case, "r1") };
    let first = case.in_line(patient.clone()).await;
    let cy = case.in_line(case.patient("cy", "seat")).await;
    let second = case.start(patient);
    // An engine at the other end of a wire hears of the second call a moment later.
    case.pass(subject.slack()).await;
    case.still_waits(&second).await;
    first.leave().await;
    assert_eq!(case.queue("seat").await, 2);
    case.end(&bob).await;
    case.answered_with_a_grant(second).await;
    assert!(!cy.is_answered());
    assert_eq!((case.holders("seat").await, case.queue("seat").await), (vec!["ada".to_owned()], 1));
}
