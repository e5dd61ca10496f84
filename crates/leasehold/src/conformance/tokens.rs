//! Tokens rise, and they stay. Where no fencing is promised there is none.

use super::Subject;
use super::law_case::{LawCase, exclusive, in_time};
use crate::engine::{Claim, LeaseId, Token};

/// Goal: every grant on a resource has a higher token than the one before, however that one ended.
/// Method: end leases by release, lapse and revoke, and also while somebody waits.
pub(super) async fn tokens_rise_over_every_ending(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    if !case.promises.fencing {
        return;
    }
    let mut tokens: Vec<Option<Token>> = Vec::new();
    let first = case.granted(case.claim("ada", "seat")).await;
    tokens.push(first.token);
    case.end(&first).await;
    tokens.push(case.granted(case.claim("ada", "seat")).await.token);
    case.pass(case.units(10) + subject.slack()).await;
    tokens.push(case.granted(case.claim("ada", "seat")).await.token);
    in_time(case.engine.revoke("seat", "a burst pipe")).await.expect("revoke answers");
    let before_the_wait = case.granted(case.claim("ada", "seat")).await;
    tokens.push(before_the_wait.token);
    let bob = case.in_line(case.patient("bob", "seat")).await;
    case.end(&before_the_wait).await;
    tokens.push(case.answered_with_a_grant(bob).await.token);
    assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "tokens do not rise: {tokens:?}");
}

/// Goal: a renewal keeps the token.
/// Method: look at the resource and repeat the request after two renewals.
pub(super) async fn tokens_stay_through_renewals(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    if !case.promises.fencing {
        return;
    }
    let claim = Claim { request: Some("r1".into()), ..case.claim("ada", "seat") };
    let ada = case.granted(claim.clone()).await;
    for _ in 0..2 {
        case.pass(case.units(5)).await;
        case.renew(&ada, None).await.expect("a live lease is renewed");
        let shown = case.inspect("seat").await.expect("it is held");
        assert_eq!(shown.holders[0].token, ada.token);
        assert_eq!(case.granted(claim.clone()).await.token, ada.token);
    }
}

/// Goal: a claim on several resources has one token, higher than any before on each of them.
/// Method: single leases on each, ended; then one over all of them.
pub(super) async fn one_token_for_several_resources(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    if !case.promises.fencing {
        return;
    }
    let mut before = Vec::new();
    for name in ["a", "b", "a"] {
        let grant = case.granted(case.claim("ada", name)).await;
        before.push(grant.token);
        case.end(&grant).await;
    }
    let both = vec![exclusive("a"), exclusive("b")];
    let ada = case.granted(Claim { wants: both, ..case.claim("ada", "a") }).await;
    assert!(before.iter().all(|earlier| *earlier < ada.token), "{before:?} and then {:?}", ada.token);
    for name in ["a", "b"] {
        assert_eq!(case.inspect(name).await.expect("it is held").holders[0].token, ada.token);
    }
}

/// Goal: an engine that cannot swear to tokens gives none, so that nobody builds on them.
/// Method: a grant, and what is shown of it.
pub(super) async fn no_token_without_the_promise(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let ada = case.granted(case.claim("ada", "seat")).await;
    let shown = case.inspect("seat").await.expect("it is held").holders[0].token;
    assert_eq!((ada.token.is_some(), shown.is_some()), (case.promises.fencing, case.promises.fencing));
}

/// Goal: a lease id travels as plain text and says nothing to anybody else; its mark tells leases apart.
/// Method: ids of several leases, also over several resources and by request.
pub(super) async fn a_lease_id_is_plain_text(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let by_request = Claim { request: Some("r1".into()), ..case.claim("bob", "row") };
    let several = Claim { wants: vec![exclusive("seat"), exclusive(&"n".repeat(512))], ..case.claim("ada", "seat") };
    let mut marks = Vec::new();
    for claim in [several, by_request, case.claim("cy", "a name with spaces, ünïcode/and-signs?")] {
        let id = case.granted(claim).await.lease_id;
        let text = id.expose();
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        assert!(
            !text.is_empty() && text.len() <= LeaseId::MAX_BYTES && text.bytes().all(plain),
            "{} bytes",
            text.len()
        );
        let mark = id.mark();
        assert!(mark.len() == 16 && mark.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')), "{mark}");
        assert!(!text.contains(&mark), "a mark shows nothing of the id");
        marks.push(mark);
    }
    marks.sort();
    marks.dedup();
    assert_eq!(marks.len(), 3, "two leases have one mark");
}
