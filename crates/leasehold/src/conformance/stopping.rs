//! Close, and what a durable engine knows afterwards.

use std::time::Duration;

use super::Subject;
use super::law_case::{LawCase, assert_is, assert_unavailable, exclusive, in_time, permits};
use crate::engine::{Claim, Query};
use crate::error::{Error, Refusal};

/// Goal: a closed engine says that it could not be asked; it never says no.
/// Method: every verb after close.
pub(super) async fn a_closed_engine_is_unavailable(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let ada = case.granted(case.claim("ada", "seat")).await;
    let has_identity = in_time(case.engine.identity()).await.expect("an identity or none").is_some();
    in_time(case.engine.close()).await.expect("close finishes");
    assert_unavailable("acquire", in_time(case.engine.acquire(case.claim("bob", "other seat"))).await);
    assert_unavailable("acquire", in_time(case.engine.acquire(case.patient("bob", "seat"))).await);
    assert_unavailable("renew", case.renew(&ada, None).await);
    let relabelled = in_time(case.engine.relabel(&ada.lease_id, "ada at 10.0.0.7")).await;
    // An engine without this verb says so, closed or not.
    assert!(matches!(relabelled, Err(Error::Unavailable { .. } | Error::Invalid(_))), "{relabelled:?}");
    assert_unavailable("release", case.release(&ada).await);
    assert_unavailable("examine", in_time(case.engine.examine()).await);
    assert_unavailable("revoke", in_time(case.engine.revoke("seat", "a burst pipe")).await);
    assert_unavailable("inspect", in_time(case.engine.inspect("seat")).await);
    let query = Query { prefix: String::new(), after: None, limit: 10 };
    assert_unavailable("list", in_time(case.engine.list(query)).await);
    if case.promises.fencing {
        assert_unavailable("raise_floor", in_time(case.engine.raise_floor(None)).await);
    }
    if has_identity {
        assert_unavailable("identity", in_time(case.engine.identity()).await);
    }
}

/// Goal: whoever waits when the engine closes learns that nothing happened, and can come again.
/// Method: close while bob stands in line.
pub(super) async fn closing_sends_the_line_home(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    if !case.promises.fair {
        return; // those who come again now and then may do so at another server
    }
    case.granted(case.claim("ada", "seat")).await;
    let bob = case.in_line(case.patient("bob", "seat")).await;
    in_time(case.engine.close()).await.expect("close finishes");
    assert_unavailable("the waiting acquire", case.answer(bob).await);
}

/// Closes the engine and opens what it left behind. `None` where nothing is promised or the subject cannot.
pub(super) async fn reopened<'s>(case: LawCase<'s>, meanwhile: Duration) -> Option<LawCase<'s>> {
    if !case.promises.durable {
        return None;
    }
    in_time(case.engine.close()).await.expect("close finishes");
    case.pass(meanwhile).await;
    let engine = case.subject.reopen().await?;
    Some(LawCase { subject: case.subject, promises: engine.promises(), engine })
}

/// Goal: live leases are there after a restart, with their modes, the same secret, token and time left.
/// Method: two leases, one over permits; restart; their owners go on, others are kept out, tokens rise.
pub(super) async fn a_durable_engine_remembers(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    if !case.promises.durable {
        return;
    }
    let ada = case.granted(Claim { max_hold: Some(case.units(20)), ..case.claim("ada", "seat") }).await;
    let pool = |who: &str, count| Claim { wants: vec![permits("pool", count, 3)], ..case.claim(who, "pool") };
    let (bob, too_many, fits) = (case.granted(pool("bob", 2)).await, pool("cy", 2), pool("cy", 1));
    case.pass(case.units(4)).await;
    let Some(case) = reopened(case, Duration::ZERO).await else { return };
    let seen = case.inspect("seat").await.expect("it is still held");
    assert_eq!((seen.holders[0].holder.as_str(), seen.holders[0].token), ("ada", ada.token));
    case.assert_about("what is left", seen.holders[0].remaining, case.units(6));
    case.held(case.claim("bob", "seat")).await;
    case.held(too_many).await;
    let cy = case.granted(fits).await;
    assert!(!case.promises.fencing || bob.token < cy.token, "{:?} and then {:?}", bob.token, cy.token);
    let renewal = case.renew(&ada, None).await.expect("the owner goes on");
    case.assert_about("what the cap leaves", renewal.renewable.expect("a cap is told"), case.units(16));
    case.end(&ada).await;
    case.end(&bob).await;
    assert_eq!(case.inspect("seat").await, None);
}

/// Goal: a restart forgets no ending and no request id, and keeps a closed resource closed.
/// Method: one lease released, one lapsed with a delay, one revoked, one live by request; restart; repeat.
pub(super) async fn a_durable_engine_remembers_endings_and_requests(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    if !case.grants_delays().await {
        // Its leases end with their process.
        return;
    }
    let by_request = |name: &str| Claim { request: Some(name.to_owned()), ..case.claim("ada", name) };
    let lapsing = Claim { ttl: case.units(1), delay: case.units(20), ..by_request("lapsed") };
    let live = Claim { wants: vec![exclusive("live"), exclusive("and more")], ..by_request("live") };
    let released = case.granted(by_request("released")).await;
    let revoked = case.granted(by_request("revoked")).await;
    let lapsed = case.granted(lapsing.clone()).await;
    let still = case.granted(live.clone()).await;
    case.end(&released).await;
    assert_is("one", in_time(case.engine.revoke("revoked", "a burst pipe")).await, |ended| *ended == 1);
    case.pass(case.units(2)).await;
    case.held(case.claim("bob", "lapsed")).await;
    let repeats = [(by_request("released"), &released), (by_request("revoked"), &revoked), (lapsing, &lapsed)];
    let Some(case) = reopened(case, Duration::ZERO).await else { return };
    case.assert_released_before(case.release(&released).await);
    case.owner_is_told(&revoked.lease_id, &Refusal::Stale).await;
    case.owner_is_told(&lapsed.lease_id, &Refusal::Stale).await;
    case.held(case.claim("bob", "lapsed")).await;
    for (repeat, first) in repeats {
        let again = case.granted(repeat).await;
        assert_eq!((&again.lease_id, again.token, again.remaining), (&first.lease_id, first.token, Duration::ZERO));
    }
    let again = case.granted(live).await;
    assert_eq!((&again.lease_id, again.token), (&still.lease_id, still.token));
    case.assert_about("what is left", again.remaining, case.units(8));
    case.pass(case.units(19) + subject.slack()).await;
    case.granted(case.claim("bob", "lapsed")).await;
}

/// Goal: a lease runs on while the engine is closed, and is neither longer nor shorter for it.
/// Method: closed from 2 to 9 of 10; it is live then, and over at 10.
pub(super) async fn time_goes_on_while_an_engine_is_closed(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let ada = case.granted(case.claim("ada", "seat")).await;
    case.pass(case.units(2)).await;
    let seven = case.units(7);
    let Some(case) = reopened(case, seven).await else { return };
    case.held(case.claim("bob", "seat")).await;
    case.pass_nearly(case.units(1)).await;
    case.held(case.claim("bob", "seat")).await;
    case.pass_the_rest().await;
    case.owner_is_told(&ada.lease_id, &Refusal::Stale).await;
    case.granted(case.claim("bob", "seat")).await;
}
