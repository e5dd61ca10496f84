//! Release, lapse and revoke: three ways to end, and what is left of a lease afterwards.

use super::Subject;
use super::law_case::{LawCase, assert_invalid, exclusive, in_time, shared};
use crate::engine::{Claim, Grant, LeaseId};
use crate::error::Refusal;

/// Goal: what is released can be had at once.
/// Method: ada releases, bob acquires in the same moment.
pub(super) async fn release_frees(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let ada = case.granted(case.claim("ada", "seat")).await;
    case.end(&ada).await;
    assert_eq!(case.holders("seat").await, [""; 0]);
    case.granted(case.claim("bob", "seat")).await;
}

/// Goal: repeating a release is harmless, and tells that it was one.
/// Method: release twice; then once more when somebody else has the seat.
pub(super) async fn a_second_release_answers_false(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let ada = case.granted(case.claim("ada", "seat")).await;
    case.end(&ada).await;
    case.assert_released_before(case.release(&ada).await);
    case.granted(case.claim("bob", "seat")).await;
    case.assert_released_before(case.release(&ada).await);
    assert_eq!(case.holders("seat").await, ["bob"]);
}

/// Goal: a paused owner cannot end the lease that replaced its own.
/// Method: let ada's lease lapse, let bob take the seat, then deliver ada's late release.
pub(super) async fn a_late_release_leaves_the_successor_alone(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let ada = case.granted(case.claim("ada", "seat")).await;
    case.pass(case.units(10) + subject.slack()).await;
    let bob = case.granted(case.claim("bob", "seat")).await;
    case.owner_is_told(&ada.lease_id, &Refusal::Stale).await;
    assert_eq!(case.holders("seat").await, ["bob"]);
    case.end(&bob).await;
    case.owner_is_told(&ada.lease_id, &Refusal::Stale).await;
}

/// Goal: an id that never was is not held, whatever it looks like.
/// Method: text that is no id, and ids of the right shape.
pub(super) async fn an_unknown_id_is_not_held(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let zeros = "0".repeat(32);
    for text in ["".into(), "never was".into(), "\u{0}".into(), zeros.clone(), format!("1-{zeros}"), "9".repeat(500)] {
        case.owner_is_told(&LeaseId::new(text), &Refusal::NotHeld).await;
    }
}

/// Goal: who does not know the secret is nobody, and learns nothing: not whether the lease is live.
/// Method: change one digit of the id, at either end; try it on a live lease and on one that ended.
pub(super) async fn a_wrong_secret_is_not_held(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let ada = case.granted(case.claim("ada", "seat")).await;
    let first_of_secret = ada.lease_id.expose().find('-').map_or(0, |dash| dash + 1);
    let forged: Vec<LeaseId> =
        [first_of_secret, ada.lease_id.expose().len() - 1].map(|at| with_another_digit(&ada, at)).into();
    for id in &forged {
        case.owner_is_told(id, &Refusal::NotHeld).await;
    }
    assert_eq!(case.holders("seat").await, ["ada"]);
    case.renew(&ada, None).await.expect("the owner still renews");
    case.end(&ada).await;
    for id in &forged {
        case.owner_is_told(id, &Refusal::NotHeld).await;
    }
}

fn with_another_digit(grant: &Grant, at: usize) -> LeaseId {
    let mut text = grant.lease_id.expose().to_owned();
    let other = if text.as_bytes()[at] == b'0' { "1" } else { "0" };
    text.replace_range(at..=at, other);
    LeaseId::new(text)
}

/// Goal: a revoke ends every lease on the resource, says how many, and their owners learn it.
/// Method: two readers, one of them with a second resource; revoke; look at everything.
pub(super) async fn revoke_ends_every_lease_and_counts(subject: &dyn Subject) {
    let Some(case) = LawCase::with_modes(subject).await else { return };
    let revoke = async |name| in_time(case.engine.revoke(name, "a burst pipe")).await.expect("revoke answers");
    assert_eq!(revoke("page").await, 0, "nothing is held yet");
    let ada = case.granted(Claim { wants: vec![shared("page")], ..case.claim("ada", "page") }).await;
    let both = vec![shared("page"), exclusive("margin")];
    let bob = case.granted(Claim { wants: both, ..case.claim("bob", "page") }).await;
    let cy = case.granted(case.claim("cy", "another page")).await;
    assert_eq!(revoke("page").await, 2);
    for grant in [&ada, &bob] {
        case.owner_is_told(&grant.lease_id, &Refusal::Stale).await;
    }
    assert_eq!(revoke("page").await, 0, "they have ended");
    case.granted(case.claim("dan", "page")).await;
    case.granted(case.claim("dan", "margin")).await;
    case.end(&cy).await;
}

/// Goal: a revoke takes nothing from those who wait: the first of them is served.
/// Method: bob waits while ada's lease is revoked.
pub(super) async fn revoke_serves_the_line(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    case.granted(case.claim("ada", "seat")).await;
    let bob = case.in_line(case.patient("bob", "seat")).await;
    let ended = in_time(case.engine.revoke("seat", "a burst pipe")).await.expect("revoke answers");
    assert_eq!(ended, 1);
    case.answered_with_a_grant(bob).await;
    assert_eq!(case.holders("seat").await, ["bob"]);
}

/// Goal: an operator says why, and about what.
/// Method: no reason, a blank one, and no name.
pub(super) async fn revoke_wants_a_reason(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    case.granted(case.claim("ada", "seat")).await;
    for (name, reason) in [("seat", ""), ("seat", "  "), ("", "a burst pipe")] {
        let answer = in_time(case.engine.revoke(name, reason)).await;
        assert_invalid("a revoke without a reason or a name", &answer.expect_err("it is refused"));
    }
    assert_eq!(case.holders("seat").await, ["ada"]);
}

/// Goal: after a lapse the resource stays closed for the delay, for the old owner too, and no longer.
/// Method: look at the lapse, a moment before the delay is over, and when it is over.
pub(super) async fn a_delay_keeps_closed_after_a_lapse(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    if !case.grants_delays().await {
        return;
    }
    let delayed = Claim { delay: case.units(5), ..case.claim("ada", "seat") };
    let ada = case.granted(delayed).await;
    case.pass(case.units(10) + subject.slack()).await;
    let held = case.held(case.claim("bob", "seat")).await;
    assert_eq!((held.holder, held.queue_len), (None, 0), "nobody has it, it is only closed");
    case.owner_is_told(&ada.lease_id, &Refusal::Stale).await;
    case.pass_nearly(case.units(5) - subject.slack()).await;
    case.held(case.claim("bob", "seat")).await;
    case.pass_the_rest().await;
    case.granted(case.claim("bob", "seat")).await;
}

/// Goal: only a lapse closes: an owner or an operator who ended the lease meant it.
/// Method: release one and revoke the other, and acquire at once.
pub(super) async fn a_delay_does_not_follow_a_release_or_a_revoke(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    if !case.grants_delays().await {
        return;
    }
    let delayed = Claim { delay: case.units(5), ..case.claim("ada", "seat") };
    let ada = case.granted(delayed.clone()).await;
    case.end(&ada).await;
    case.granted(delayed).await;
    in_time(case.engine.revoke("seat", "a burst pipe")).await.expect("revoke answers");
    case.granted(case.claim("bob", "seat")).await;
}
