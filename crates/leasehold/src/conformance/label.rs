//! The holder label: it can be changed, and nothing else of the lease with it.

use super::Subject;
use super::law_case::{LawCase, assert_invalid, exclusive, in_time};
use super::stopping::reopened;
use super::watching::{events, reset, watch};
use crate::engine::{Claim, EventKind, Grant};
use crate::error::{Error, Refusal};

/// A case with a lease that got a new label; none from an engine that cannot change labels, which must say Invalid.
async fn relabelled<'s>(
    subject: &'s dyn Subject,
    claim: impl Fn(&LawCase<'s>) -> Claim,
) -> Option<(LawCase<'s>, Grant)> {
    let case = LawCase::new(subject).await;
    let grant = case.granted(claim(&case)).await;
    match in_time(case.engine.relabel(&grant.lease_id, "ada at 10.0.0.7")).await {
        Ok(()) => Some((case, grant)),
        Err(Error::Invalid(_)) => None,
        other => panic!("a label is changed, or the engine cannot, not {other:?}"),
    }
}

/// Goal: the new label is shown; end, token, cap and place in line are as they were.
/// Method: relabel after 4 of 10 with a waiter behind; look; renew to the cap; hand over.
pub(super) async fn a_new_label_changes_nothing_else(subject: &dyn Subject) {
    let capped = |case: &LawCase<'_>| Claim { max_hold: Some(case.units(20)), ..case.claim("ada", "seat") };
    let Some((case, ada)) = relabelled(subject, capped).await else { return };
    case.pass(case.units(4)).await;
    let bob = case.in_line(case.patient("bob", "seat")).await;
    in_time(case.engine.relabel(&ada.lease_id, "ada, once more")).await.expect("the lease is live");
    let seen = case.inspect("seat").await.expect("it is held");
    assert_eq!((seen.holders[0].holder.as_str(), seen.holders[0].token), ("ada, once more", ada.token));
    case.assert_about("since when", seen.holders[0].since, case.units(4));
    case.assert_about("what is left", seen.holders[0].remaining, case.units(6));
    assert_eq!(case.held(case.claim("cy", "seat")).await.holder.as_deref(), Some("ada, once more"));
    let renewal = case.renew(&ada, None).await.expect("the lease is live");
    case.assert_about("what is left", renewal.remaining, case.units(10));
    case.assert_about("what the cap leaves", renewal.renewable.expect("a cap is told"), case.units(16));
    assert_eq!(case.holders("seat").await, ["ada, once more"], "a renewal keeps the label");
    case.end(&ada).await;
    case.answered_with_a_grant(bob).await;
    assert_eq!(case.holders("seat").await, ["bob"]);
}

/// Goal: a lease over several resources shows its new label on each of them, and another lease keeps its own.
/// Method: two names in one claim, a third lease beside it.
pub(super) async fn a_new_label_is_shown_on_every_resource(subject: &dyn Subject) {
    let both = |case: &LawCase<'_>| {
        let wants = ["seat", "aisle"].map(exclusive).into();
        Claim { wants, ..case.claim("ada", "seat") }
    };
    let Some((case, _)) = relabelled(subject, both).await else { return };
    case.granted(case.claim("bob", "row")).await;
    for name in ["seat", "aisle"] {
        assert_eq!(case.holders(name).await, ["ada at 10.0.0.7"]);
    }
    assert_eq!(case.holders("row").await, ["bob"]);
}

/// Goal: a label is the owner's to change, while the lease lives, and within bounds.
/// Method: too long, with a control character; after a lapse and a release. (A wrong secret is another law's.)
pub(super) async fn a_label_is_refused_as_a_renewal_is(subject: &dyn Subject) {
    let Some((case, ada)) = relabelled(subject, |case| case.claim("ada", "seat")).await else { return };
    for label in ["h".repeat(257), "a\rb".to_owned()] {
        let answer = in_time(case.engine.relabel(&ada.lease_id, &label)).await;
        assert_invalid("a label out of bounds", &answer.expect_err("it is refused"));
    }
    assert_eq!(case.holders("seat").await, ["ada at 10.0.0.7"]);
    let longest = "h".repeat(256);
    in_time(case.engine.relabel(&ada.lease_id, &longest)).await.expect("it is within bounds");
    assert_eq!(case.holders("seat").await, [longest]);
    case.pass(case.units(10) + subject.slack()).await;
    case.owner_is_told(&ada.lease_id, &Refusal::Stale).await;
    let bob = case.granted(case.claim("bob", "seat")).await;
    case.owner_is_told(&ada.lease_id, &Refusal::Stale).await;
    assert_eq!(case.holders("seat").await, ["bob"]);
    case.end(&bob).await;
}

/// Goal: those who watch are told the new label.
/// Method: grant, relabel, release.
pub(super) async fn a_new_label_is_told(subject: &dyn Subject) {
    let Some((case, _)) = relabelled(subject, |case| case.claim("ada", "other seat")).await else { return };
    let Some(mut watch) = watch(case.engine.as_ref(), None).await else { return };
    reset(&mut watch).await;
    let bob = case.granted(case.claim("bob", "seat")).await;
    in_time(case.engine.relabel(&bob.lease_id, "robert")).await.expect("the lease is live");
    case.end(&bob).await;
    let told = events(&mut watch, 3).await;
    let seen: Vec<_> = told.iter().map(|event| (event.kind, event.token, event.holder.as_str())).collect();
    let (token, kinds) = (bob.token, [EventKind::Granted, EventKind::Relabelled, EventKind::Released]);
    assert_eq!(seen, [(kinds[0], token, "bob"), (kinds[1], token, "robert"), (kinds[2], token, "robert")]);
    assert!(told.iter().all(|event| event.resources == ["seat"]), "{told:?}");
}

/// Goal: a durable engine keeps the new label over a restart.
pub(super) async fn a_new_label_outlives_the_engine(subject: &dyn Subject) {
    let Some((case, ada)) = relabelled(subject, |case| case.claim("ada", "seat")).await else { return };
    let Some(case) = reopened(case, std::time::Duration::ZERO).await else { return };
    assert_eq!(case.holders("seat").await, ["ada at 10.0.0.7"]);
    case.end(&ada).await;
}
