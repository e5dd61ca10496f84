//! Names as Redis keys: whoever shows the value owns the key. Asked only of engines that have `Engine::keys`.

use super::Subject;
use super::law_case::{LawCase, assert_invalid, exclusive, held_by, in_time, shared};
use crate::engine::{Claim, Grant, Key, Keys, Push};

/// The keys of the engine, or the law passes.
macro_rules! keys {
    ($case:expr) => {
        match $case.engine.keys() {
            Some(keys) => keys,
            None => return,
        }
    };
}

async fn set(keys: &dyn Keys, claim: Claim, value: &[u8]) -> Grant {
    in_time(keys.set(claim, value)).await.expect("the key is taken")
}

async fn get(keys: &dyn Keys, name: &str) -> Option<Key> {
    in_time(keys.get(name)).await.expect("a look at a key is answered")
}

async fn free(keys: &dyn Keys, names: &[&str], value: Option<&[u8]>) -> usize {
    in_time(keys.free(names, value)).await.expect("a free is answered")
}

async fn extend(keys: &dyn Keys, names: &[&str], value: Option<&[u8]>, push: Push) -> usize {
    in_time(keys.extend(names, value, push)).await.expect("a push is answered")
}

fn millis(span: std::time::Duration) -> u64 {
    u64::try_from(span.as_millis()).expect("a span of a law is short")
}

fn both(case: &LawCase<'_>, holder: &str) -> Claim {
    Claim { wants: vec![exclusive("seat"), exclusive("aisle")], ..case.claim(holder, "seat") }
}

/// Goal: a key is a lease like any other, and shows its value.
/// Method: any bytes for a value; look; another key and another lease are refused; what nobody has is not there.
pub(super) async fn a_key_shows_its_value_and_excludes(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let keys = keys!(case);
    assert!(get(keys, "seat").await.is_none());
    let value = [0, 255, b'\r', b'\n', 7];
    let ada = set(keys, case.claim("ada", "seat"), &value).await;
    case.pass(case.units(3)).await;
    let key = get(keys, "seat").await.expect("it is held");
    assert_eq!((key.value.as_deref(), key.token), (Some(&value[..]), ada.token));
    case.assert_about("life left", key.remaining, case.units(7));
    assert!(!format!("{key:?}").contains("255"), "the value proves ownership and is not shown");
    let refused = in_time(keys.set(case.claim("bob", "seat"), &value)).await.expect_err("it is held");
    assert_eq!(held_by(refused).resource, "seat");
    case.held(case.claim("bob", "seat")).await;
    assert_eq!(case.holders("seat").await, ["ada"]);
    case.end(&ada).await;
    assert!(get(keys, "seat").await.is_none(), "a key also ends by its lease id");
}

/// Goal: whoever shows another value changes nothing; whoever shows the value, or asks for no proof, frees the key.
/// Method: values that begin alike, an empty one, one of another key.
pub(super) async fn a_key_is_freed_by_its_value(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let keys = keys!(case);
    let ada = set(keys, case.claim("ada", "seat"), b"secret").await;
    set(keys, case.claim("bob", "aisle"), b"other").await;
    for wrong in [&b""[..], b"secre", b"secret ", b"Secret", b"other"] {
        assert_eq!(free(keys, &["seat"], Some(wrong)).await, 0, "{wrong:?}");
        assert_eq!(extend(keys, &["seat"], Some(wrong), Push::Set(1)).await, 0, "{wrong:?}");
    }
    assert_eq!(get(keys, "seat").await.expect("still held").token, ada.token);
    assert_eq!(free(keys, &["seat", "aisle", "nothing"], Some(b"secret")).await, 1, "only what shows it");
    assert!(get(keys, "seat").await.is_none());
    assert_eq!(case.holders("aisle").await, ["bob"]);
    assert_eq!(free(keys, &["seat", "aisle"], None).await, 1, "an operator needs no value");
    assert!(get(keys, "aisle").await.is_none());
    set(keys, case.claim("cy", "seat"), b"").await;
    assert_eq!(free(keys, &["seat"], Some(b"")).await, 1, "an empty value is a value");
}

/// Goal: a lease that was not taken as a key is nobody's to free or push by name.
pub(super) async fn a_plain_lease_is_no_key(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let keys = keys!(case);
    case.granted(case.claim("ada", "seat")).await;
    set(keys, case.claim("bob", "aisle"), b"v").await;
    assert_eq!(get(keys, "seat").await.expect("it is held").value, None);
    assert_eq!(free(keys, &["seat"], Some(b"")).await, 0);
    assert_eq!(extend(keys, &["seat"], Some(b""), Push::Set(1)).await, 0);
    let error = in_time(keys.free(&["aisle", "seat"], None)).await.expect_err("it is no key");
    assert_invalid("a free of a lease that is no key", &error);
    let error = in_time(keys.extend(&["aisle", "seat"], None, Push::Set(1))).await.expect_err("it is no key");
    assert_invalid("a push of a lease that is no key", &error);
    assert_eq!((case.holders("seat").await, case.holders("aisle").await), (vec!["ada".into()], vec!["bob".into()]));
    case.assert_about("life left", get(keys, "aisle").await.expect("held").remaining, case.units(10));
}

/// Goal: freeing one key of several frees that one; the lease goes on with the rest.
pub(super) async fn freeing_one_of_several_frees_that_one(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let keys = keys!(case);
    let ada = set(keys, both(&case, "ada"), b"v").await;
    assert_eq!(free(keys, &["seat"], Some(b"v")).await, 1);
    assert_eq!(free(keys, &["seat"], Some(b"v")).await, 0);
    let bob = case.granted(case.claim("bob", "seat")).await;
    case.held(case.claim("cy", "aisle")).await;
    assert_eq!(get(keys, "aisle").await.expect("still held").token, ada.token);
    case.renew(&ada, None).await.expect("the lease goes on");
    assert_eq!(free(keys, &["aisle"], Some(b"v")).await, 1);
    case.granted(case.claim("cy", "aisle")).await;
    case.end(&bob).await;
}

/// Goal: keys are pushed all or none, to a moment or by a span; none is shortened for another's sake.
pub(super) async fn keys_are_pushed_all_or_none(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let keys = keys!(case);
    let left = async |name: &str| get(keys, name).await.expect("it is held").remaining;
    set(keys, both(&case, "ada"), b"v").await;
    set(keys, case.claim("bob", "row"), b"w").await;
    let twenty = Push::Set(millis(case.units(20)));
    for others in [["seat", "row"], ["seat", "nothing"], ["nothing", "seat"]] {
        assert_eq!(extend(keys, &others, Some(b"v"), twenty).await, 0, "{others:?}");
    }
    case.assert_about("what was not pushed", left("seat").await, case.units(10));
    assert_eq!(extend(keys, &["seat"], Some(b"v"), twenty).await, 1);
    case.assert_about("what was held with it", left("aisle").await, case.units(20));
    let more = Push::Add(millis(case.units(5)));
    let error = in_time(keys.extend(&["row", "seat"], None, more)).await.expect_err("aisle was not named");
    assert_invalid("to push without the value what another key needs", &error);
    assert_eq!(extend(keys, &["row", "seat", "aisle"], None, more).await, 3);
    case.assert_about("what was added to", left("row").await, case.units(15));
    let five = Push::Set(millis(case.units(5)));
    let error = in_time(keys.extend(&["seat"], Some(b"v"), five)).await.expect_err("aisle was not named");
    assert_invalid("to shorten what another key needs", &error);
    case.assert_about("what was not shortened", left("seat").await, case.units(25));
    assert_eq!(extend(keys, &["seat", "aisle"], Some(b"v"), five).await, 2);
    case.assert_about("what was shortened", left("aisle").await, case.units(5));
}

/// Goal: a key that has lapsed is gone: it cannot be pushed, freed or seen, and its value is nobody's.
pub(super) async fn a_lapsed_key_is_gone(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let keys = keys!(case);
    set(keys, case.claim("ada", "seat"), b"v").await;
    case.pass_nearly(case.units(10)).await;
    assert!(get(keys, "seat").await.is_some(), "it lapsed early");
    case.pass_the_rest().await;
    assert_eq!(extend(keys, &["seat"], Some(b"v"), Push::Set(60_000)).await, 0);
    assert_eq!(free(keys, &["seat"], Some(b"v")).await, 0);
    assert!(get(keys, "seat").await.is_none());
    set(keys, case.claim("bob", "seat"), b"w").await;
    assert_eq!(free(keys, &["seat"], Some(b"v")).await, 0, "the value of before opens nothing");
}

/// Goal: whoever waits for a key gets it when it is freed.
pub(super) async fn a_freed_key_serves_the_line(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let keys = keys!(case);
    set(keys, both(&case, "ada"), b"v").await;
    let bob = case.in_line(case.patient("bob", "seat")).await;
    assert_eq!(free(keys, &["seat"], Some(b"v")).await, 1);
    case.answered_with_a_grant(bob).await;
    assert_eq!(case.holders("aisle").await, ["ada"]);
}

/// Goal: what cannot be a key is invalid, and takes nothing.
pub(super) async fn a_bad_key_is_invalid(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let keys = keys!(case);
    let bad = [
        (case.patient("ada", "seat"), vec![b'v']),
        (Claim { wants: vec![shared("seat")], ..case.claim("ada", "seat") }, vec![b'v']),
        (case.claim("ada", "seat"), vec![b'v'; 4097]),
    ];
    for (claim, value) in bad {
        let error = in_time(keys.set(claim.clone(), &value)).await.expect_err("it can be no key");
        assert_invalid(&format!("{claim:?} with {} bytes", value.len()), &error);
    }
    let error = in_time(keys.free(&[""], None)).await.expect_err("it is no name");
    assert_invalid("a free of no name", &error);
    assert!(case.inspect("seat").await.is_none());
    set(keys, case.claim("ada", "seat"), &[b'v'; 4096]).await;
    let error = in_time(keys.extend(&["seat"], None, Push::Set(0))).await.expect_err("it is no life");
    assert_invalid("a push to now", &error);
}

/// Goal: a durable engine knows values, and what was freed, after it was closed and opened.
pub(super) async fn a_durable_engine_remembers_keys(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let keys = keys!(case);
    set(keys, both(&case, "ada"), b"v\xff").await;
    set(keys, case.claim("bob", "row"), b"w").await;
    assert_eq!(free(keys, &["seat", "row"], None).await, 2);
    in_time(case.engine.close()).await.expect("it closes");
    if !case.promises.durable {
        return;
    }
    let Some(again) = subject.reopen().await else { return };
    let Some(keys) = again.keys() else { panic!("the engine has no keys any more") };
    assert!(get(keys, "seat").await.is_none() && get(keys, "row").await.is_none());
    assert_eq!(get(keys, "aisle").await.expect("still held").value.as_deref(), Some(&b"v\xff"[..]));
    assert_eq!(free(keys, &["aisle"], Some(b"v")).await, 0);
    assert_eq!(free(keys, &["aisle"], Some(b"v\xff")).await, 1);
}
