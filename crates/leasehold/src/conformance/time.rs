//! When a lease ends, and what renewing does to that.

use super::Subject;
use super::law_case::LawCase;
use crate::engine::Claim;
use crate::error::{Error, Refusal};

/// Goal: nothing lapses before its time.
/// Method: bob asks again and again until the last moment; ada's own renewal still works then.
pub(super) async fn a_lease_never_lapses_early(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    if !case.promises.never_early {
        return;
    }
    let ada = case.granted(case.claim("ada", "seat")).await;
    for _ in 0..9 {
        case.pass(case.units(1)).await;
        case.held(case.claim("bob", "seat")).await;
    }
    case.pass_nearly(case.units(1)).await;
    let held = case.held(case.claim("bob", "seat")).await;
    assert_eq!(held.holder.as_deref(), Some("ada"));
    case.renew(&ada, None).await.expect("a lease is live until its deadline");
}

/// Goal: at its deadline a lease is over: the span is half open.
/// Method: at that very moment bob acquires, and ada's renewal and release are stale.
pub(super) async fn a_lease_lapses_at_its_deadline(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let ada = case.granted(case.claim("ada", "seat")).await;
    let cy = case.granted(case.claim("cy", "other seat")).await;
    case.pass_nearly(case.units(10)).await;
    case.pass_the_rest().await;
    case.granted(case.claim("bob", "seat")).await;
    case.owner_is_told(&ada.lease_id, &Refusal::Stale).await;
    case.owner_is_told(&cy.lease_id, &Refusal::Stale).await;
    assert_eq!(case.holders("seat").await, ["bob"]);
    assert_eq!(case.inspect("other seat").await, None);
}

/// Goal: renewing sets the end to now + ttl, and doing it twice is doing it once.
/// Method: renew twice at 4 of 10; the lease is live just before 14, and over at 14.
pub(super) async fn renewing_sets_the_end(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let ada = case.granted(case.claim("ada", "seat")).await;
    case.pass(case.units(4)).await;
    for _ in 0..2 {
        let renewal = case.renew(&ada, None).await.expect("a live lease is renewed");
        case.assert_about("the life of a renewed lease", renewal.remaining, case.units(10));
        assert_eq!(renewal.renewable, None, "without a cap there is no limit on renewals");
    }
    case.pass_nearly(case.units(10)).await;
    case.held(case.claim("bob", "seat")).await;
    case.pass_the_rest().await;
    case.granted(case.claim("bob", "seat")).await;
}

/// Goal: a renewal may ask for less, and that ttl is the one that later renewals repeat.
/// Method: renew 10 down to 2, then without a ttl; the end comes 2 after that.
pub(super) async fn renewing_can_shorten(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let ada = case.granted(case.claim("ada", "seat")).await;
    let renewal = case.renew(&ada, Some(case.units(2))).await.expect("a live lease is renewed");
    case.assert_about("the life of a shortened lease", renewal.remaining, case.units(2));
    case.pass(case.units(1)).await;
    let renewal = case.renew(&ada, None).await.expect("a live lease is renewed");
    case.assert_about("the life by the last ttl", renewal.remaining, case.units(2));
    case.pass_nearly(case.units(2)).await;
    case.held(case.claim("bob", "seat")).await;
    case.pass_the_rest().await;
    case.granted(case.claim("bob", "seat")).await;
}

/// Goal: however often it is renewed, a lease ends at grant + max_hold.
/// Method: ttl 10, cap 15; renew at 8 and, asking for much more, at 12; it is over at 15.
pub(super) async fn renewing_never_passes_max_hold(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let ada = case.granted(Claim { max_hold: Some(case.units(15)), ..case.claim("ada", "seat") }).await;
    case.assert_about("the life of a fresh lease", ada.remaining, case.units(10));
    case.assert_about("how far it can be renewed", ada.renewable.expect("a cap is told"), case.units(15));
    for (pass, ttl, left) in [(8, None, 7), (4, Some(case.units(1000)), 3)] {
        case.pass(case.units(pass)).await;
        let renewal = case.renew(&ada, ttl).await.expect("a live lease is renewed");
        case.assert_about("the life up to the cap", renewal.remaining, case.units(left));
        case.assert_about("what the cap leaves", renewal.renewable.expect("a cap is told"), case.units(left));
    }
    case.pass_nearly(case.units(3)).await;
    case.held(case.claim("bob", "seat")).await;
    case.pass_the_rest().await;
    case.owner_is_told(&ada.lease_id, &Refusal::Stale).await;
    case.granted(case.claim("bob", "seat")).await;
}

/// Goal: the cap holds from the beginning.
/// Method: a ttl of 10 with a cap of 4.
pub(super) async fn max_hold_cuts_the_first_ttl_too(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let ada = case.granted(Claim { max_hold: Some(case.units(4)), ..case.claim("ada", "seat") }).await;
    case.assert_about("the life of the lease", ada.remaining, case.units(4));
    case.pass(case.units(4) + subject.slack()).await;
    case.assert_stale("renew", case.renew(&ada, None).await);
    case.granted(case.claim("bob", "seat")).await;
}

/// Goal: a lease that ended stays ended, also when nobody else wants the resource.
/// Method: renew after a lapse, twice; and after a release.
pub(super) async fn renewing_never_revives(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let ada = case.granted(case.claim("ada", "seat")).await;
    case.pass(case.units(10) + subject.slack()).await;
    for ttl in [None, Some(case.units(100))] {
        case.assert_stale("renew", case.renew(&ada, ttl).await);
        assert_eq!(case.inspect("seat").await, None);
    }
    let bob = case.granted(case.claim("bob", "seat")).await;
    case.end(&bob).await;
    let renewed = case.renew(&bob, None).await;
    let refused = matches!(renewed, Err(Error::Refused(Refusal::Stale | Refusal::NotHeld)));
    assert!(refused, "expected that a released lease is not renewed, got {renewed:?}");
    assert_eq!(case.inspect("seat").await, None);
}
