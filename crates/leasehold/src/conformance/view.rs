//! What everybody may see: who has it and who waits, in order, and no secret.

use super::Subject;
use super::law_case::{LawCase, exclusive, in_time, permits, shared};
use crate::engine::{Claim, FindingKind, Mode, Promise, Query};

fn names(prefix: &str, after: Option<&str>, limit: usize) -> Query {
    Query { prefix: prefix.into(), after: after.map(Into::into), limit }
}

/// Goal: a look shows who has it: label, token, since when and for how long, and how.
/// Method: an exclusive, a shared and a permit resource, 3 after the grant.
pub(super) async fn inspect_shows_holders(subject: &dyn Subject) {
    let Some(case) = LawCase::with_modes(subject).await else { return };
    let ada = case.granted(case.claim("ada", "seat")).await;
    let bob = case.granted(Claim { wants: vec![shared("page")], ..case.claim("bob", "page") }).await;
    let cy = case.granted(Claim { wants: vec![permits("pool", 2, 5)], ..case.claim("cy", "pool") }).await;
    case.pass(case.units(3)).await;
    let pool = Mode::Permits { count: 2, capacity: 5 };
    for (name, mode, holder, grant) in
        [("seat", Mode::Exclusive, "ada", ada), ("page", Mode::Shared, "bob", bob), ("pool", pool, "cy", cy)]
    {
        let seen = case.inspect(name).await.expect("it is held");
        assert_eq!((seen.name.as_str(), seen.mode, seen.queue_len), (name, mode, 0));
        assert!(seen.waiters.is_empty());
        let [holding] = &seen.holders[..] else { panic!("one lease is on {name}, not {:?}", seen.holders) };
        assert_eq!((holding.holder.as_str(), holding.token), (holder, grant.token));
        case.assert_about("since when", holding.since, case.units(3));
        case.assert_about("for how long", holding.remaining, case.units(7));
    }
}

/// Goal: a look shows who waits, in order, and since when; also on a resource that only waits for others.
/// Method: bob and cy wait for ada's seat, cy for another one too.
pub(super) async fn inspect_shows_the_line(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    if !case.promises.fair {
        return; // a line without an order is not shown
    }
    case.granted(case.claim("ada", "seat")).await;
    let _bob = case.in_line(case.patient("bob", "seat")).await;
    case.pass(case.units(2)).await;
    let both = vec![exclusive("seat"), exclusive("aisle")];
    let _cy = case.in_line(Claim { wants: both, ..case.patient("cy", "seat") }).await;
    case.pass(case.units(1)).await;
    let seen = case.inspect("seat").await.expect("it is held");
    assert_eq!((seen.holders.len(), seen.queue_len), (1, 2));
    let queue: Vec<&str> = seen.waiters.iter().map(|waiting| waiting.holder.as_str()).collect();
    assert_eq!(queue, ["bob", "cy"]);
    case.assert_about("how long bob waits", seen.waiters[0].waiting, case.units(3));
    case.assert_about("how long cy waits", seen.waiters[1].waiting, case.units(1));
    let seen = case.inspect("aisle").await.expect("it is awaited");
    assert_eq!((seen.mode, seen.holders.len(), seen.queue_len), (Mode::Exclusive, 0, 1));
}

/// Goal: what nobody holds or awaits is not there.
/// Method: before, after a release, after a lapse; by name and in the list.
pub(super) async fn inspect_shows_nothing_of_the_free(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    assert_eq!(case.inspect("seat").await, None);
    let ada = case.granted(case.claim("ada", "seat")).await;
    case.granted(case.claim("ada", "other seat")).await;
    case.end(&ada).await;
    assert_eq!(case.inspect("seat").await, None);
    assert_eq!(case.list(names("", None, 10)).await.len(), 1);
    case.pass(case.units(10) + subject.slack()).await;
    assert_eq!(case.inspect("other seat").await, None);
    assert_eq!(case.list(names("", None, 10)).await, []);
}

/// Goal: a list shows the resources under a prefix, in order of their names, each as a look would show it.
/// Method: names in no order, one of them outside the prefix, two of them in one claim.
pub(super) async fn list_is_in_order_of_names(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    for name in ["row/9", "row/10", "rows", "bin/1"] {
        case.granted(case.claim("ada", name)).await;
    }
    let both = vec![exclusive("row/é"), exclusive("row/B")];
    case.granted(Claim { wants: both, ..case.claim("bob", "row/B") }).await;
    let seen = case.list(names("row/", None, 100)).await;
    let order: Vec<&str> = seen.iter().map(|resource| resource.name.as_str()).collect();
    assert_eq!(order, ["row/10", "row/9", "row/B", "row/é"], "in order of bytes");
    for resource in &seen {
        let alone = case.inspect(&resource.name).await.expect("it is held");
        assert_eq!(alone.holders.len(), resource.holders.len());
        assert_eq!(alone.holders[0].holder, resource.holders[0].holder);
        assert_eq!(alone.holders[0].token, resource.holders[0].token);
    }
    assert_eq!(case.list(names("", None, 100)).await.len(), 6);
    assert_eq!(case.list(names("nothing", None, 100)).await, []);
}

/// Goal: a long list can be read page by page, without a gap and without a repeat.
/// Method: 25 names in pages of 10; also after a name that is not there.
pub(super) async fn list_goes_page_by_page(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let all: Vec<String> = (0..25).map(|n| format!("seat/{n:02}")).collect();
    for name in all.iter().rev() {
        case.granted(case.claim("ada", name)).await;
    }
    let mut read: Vec<String> = Vec::new();
    loop {
        let page = case.list(names("seat/", read.last().map(String::as_str), 10)).await;
        assert!(page.len() <= 10, "a page has at most what was asked for, not {}", page.len());
        if page.is_empty() {
            break;
        }
        read.extend(page.into_iter().map(|resource| resource.name));
        assert!(read.len() <= 25, "a page repeats: {read:?}");
    }
    assert_eq!(read, all);
    let page = case.list(names("seat/", Some("seat/07 and a half"), 1)).await;
    assert_eq!(page.into_iter().map(|r| r.name).collect::<Vec<_>>(), ["seat/08"]);
}

/// Goal: no lease id appears in anything that is shown: looks, lists, refusals, debug output.
/// Method: format all of it and search for the secret.
pub(super) async fn no_secret_is_ever_shown(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let ada = case.granted(case.claim("ada", "seat")).await;
    let bob = case.in_line(Claim { wait: case.units(2), ..case.claim("bob", "seat") }).await;
    let looked = format!("{:?}", case.inspect("seat").await);
    let listed = format!("{:?}", case.list(names("", None, 10)).await);
    let refused = case.not_granted(case.claim("cy", "seat")).await;
    case.pass(case.units(2) + subject.slack()).await;
    let gave_up = case.answer(bob).await.expect_err("patience runs out");
    let shown = format!("{looked} {listed} {refused} {refused:?} {gave_up} {gave_up:?} {ada:?}");
    let secret = ada.lease_id.expose();
    // The end of the id is secret in every engine; its beginning may be a public number.
    let tail = &secret[secret.len() - secret.len().min(16)..];
    assert!(!shown.contains(secret) && !shown.contains(tail), "a lease id is shown");
}

/// Goal: an operator who asks why a promise is not made is told, and no promise that is made is called into question.
/// Method: every promise is made, or denied by a finding with a sentence.
pub(super) async fn a_promise_that_is_not_made_is_explained(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let findings = in_time(case.engine.examine()).await.expect("an engine can be examined");
    let denied = |promise: Promise| {
        findings.iter().any(|finding| matches!(&finding.kind, FindingKind::Denies(denied) if denied.contains(&promise)))
    };
    for promise in Promise::ALL {
        assert_ne!(case.promises.includes(promise), denied(promise), "{promise}: {findings:?}");
    }
    for finding in &findings {
        assert!(!finding.setting.is_empty() && !finding.sentence.is_empty(), "{finding:?}");
    }
}
