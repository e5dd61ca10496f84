//! What is refused because of its size or shape, before anything is kept.

use std::time::Duration;

use super::Subject;
use super::law_case::{LawCase, assert_invalid, exclusive, in_time, permits};
use crate::engine::{Claim, Query};
use crate::error::Refusal;

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Goal: a claim that can never succeed as written is Invalid, and nothing is held afterwards.
/// Method: each limit of the public contract, one over; beside a name that would be fine.
pub(super) async fn a_bad_claim_is_invalid_and_takes_nothing(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let seat = || case.claim("ada", "seat");
    let wants = |names: &[&str]| Claim { wants: names.iter().map(|name| exclusive(name)).collect(), ..seat() };
    let counted = |count, all| Claim { wants: vec![exclusive("fine"), permits("pool", count, all)], ..seat() };
    let (long, many) = ("n".repeat(513), (0..65).map(|n| format!("seat {n}")).collect::<Vec<_>>());
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let millisecond = Duration::from_millis(1);
    for (what, claim) in [
        ("a claim on nothing", wants(&[])),
        ("an empty name", wants(&["fine", ""])),
        ("a name of 513 bytes", wants(&["fine", &long])),
        ("a name with a line feed", wants(&["fine", "a\nb"])),
        ("a name with a zero", wants(&["fine", "a\0b"])),
        ("a name with a C1 control character", wants(&["fine", "a\u{85}b"])),
        ("a name that comes twice", wants(&["fine", "seat", "seat"])),
        ("65 resources", wants(&many)),
        ("no ttl", Claim { ttl: Duration::ZERO, ..seat() }),
        ("a ttl over a day", Claim { ttl: DAY + millisecond, ..seat() }),
        ("a ttl of all time", Claim { ttl: Duration::MAX, ..seat() }),
        ("a wait over an hour", Claim { wait: HOUR + millisecond, ..seat() }),
        ("a wait of all time", Claim { wait: Duration::MAX, ..seat() }),
        ("a delay of all time", Claim { delay: Duration::MAX, ..seat() }),
        ("a cap of nothing", Claim { max_hold: Some(Duration::ZERO), ..seat() }),
        ("a cap of all time", Claim { max_hold: Some(Duration::MAX), ..seat() }),
        ("a holder of 257 bytes", Claim { holder: "h".repeat(257), ..seat() }),
        ("a holder with a control character", Claim { holder: "a\rb".into(), ..seat() }),
        ("an empty request id", Claim { request: Some("".into()), ..seat() }),
        ("a request id of 129 bytes", Claim { request: Some("r".repeat(129)), ..seat() }),
        ("no permits", counted(0, 3)),
        ("more permits than there are", counted(4, 3)),
        ("permits of nothing", counted(0, 0)),
    ] {
        assert_invalid(what, &case.not_granted(claim).await);
    }
    assert_eq!(case.list(Query { prefix: String::new(), after: None, limit: 10 }).await, []);
    case.granted(wants(&["fine", "seat"])).await;
}

/// Goal: a name that nothing can have is Invalid to look at, too: "free" would be taken for an answer.
/// Method: names one over each bound of the public contract.
pub(super) async fn a_name_that_cannot_be_is_invalid_to_look_at(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let long = "n".repeat(513);
    for name in ["", &long, "a\nb", "a\0b", "a\u{85}b"] {
        let answer = in_time(case.engine.inspect(name)).await;
        assert_invalid(&format!("a look at {name:?}"), &answer.expect_err("nothing can have this name"));
    }
    assert_eq!(case.inspect(&long[1..]).await, None);
}

/// Goal: what is just within bounds is granted.
/// Method: each limit of the public contract, exactly; all of them in one claim where that goes.
pub(super) async fn what_is_just_within_bounds_is_granted(subject: &dyn Subject) {
    let Some(case) = LawCase::with_modes(subject).await else { return };
    let names: Vec<String> = (0..64).map(|n| format!("{n:0512}")).collect();
    let longest = subject.longest_ttl();
    let claim = Claim {
        wait: HOUR,
        max_hold: Some(longest),
        request: Some("r".repeat(128)),
        ..Claim::new(names.iter().map(|name| exclusive(name)).collect(), longest, "h".repeat(256))
    };
    let ada = case.granted(claim.clone()).await;
    case.assert_about("the longest ttl", ada.remaining, longest);
    assert_eq!(case.granted(claim).await.lease_id, ada.lease_id);
    assert_eq!(case.holders(&names[63]).await, ["h".repeat(256)]);
    case.granted(Claim { wants: vec![permits("pool", 3, 3)], ..case.claim("bob", "pool") }).await;
    case.granted(case.claim("bob", "a name with spaces, ünïcode/and-signs?")).await;
    case.granted(case.claim("", "a holder without a name")).await;
}

/// Goal: a renewal that is Invalid leaves the lease as it was.
/// Method: no ttl, and one over a day; the end stays where it was.
pub(super) async fn a_bad_renewal_changes_nothing(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let ada = case.granted(case.claim("ada", "seat")).await;
    case.pass(case.units(4)).await;
    for ttl in [Duration::ZERO, DAY + Duration::from_millis(1), Duration::MAX] {
        let answer = case.renew(&ada, Some(ttl)).await;
        assert_invalid("a renewal out of bounds", &answer.expect_err("it is refused"));
    }
    let left = case.inspect("seat").await.expect("it is held").holders[0].remaining;
    case.assert_about("what is left", left, case.units(6));
    case.pass(case.units(6) + subject.slack()).await;
    case.owner_is_told(&ada.lease_id, &Refusal::Stale).await;
}

/// Goal: a span that is no whole number of milliseconds is never cut short.
/// Method: a ttl of a nanosecond is granted; one of a unit and a nanosecond is live after the unit.
pub(super) async fn spans_round_up_to_a_millisecond(subject: &dyn Subject) {
    let case = LawCase::new(subject).await;
    let ttl = Duration::from_nanos(1);
    in_time(case.engine.acquire(Claim { ttl, ..case.claim("ada", "blink") })).await.expect("it is granted");
    if case.promises.never_early && subject.slack().is_zero() {
        case.granted(Claim { ttl: case.units(1) + ttl, ..case.claim("ada", "seat") }).await;
        case.pass(case.units(1)).await;
        case.held(case.claim("bob", "seat")).await;
        case.pass(Duration::from_millis(1)).await;
        case.granted(case.claim("bob", "seat")).await;
    }
}
