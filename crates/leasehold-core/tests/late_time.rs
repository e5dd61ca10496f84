//! A book that is told the time late: what is over by time is over, whether or not a tick has said so.

use leasehold_core::{
    Acquire, Book, Command, Effect, LeaseKey, Limits, Mode, Refusal, Reply, Secret, Time, WaiterId, Want,
};
use proptest::prelude::*;

const NAMES: [&str; 3] = ["a", "b", "c"];
const PRINCIPALS: [&str; 2] = ["ada", "bob"];

fn new_book(limits: Limits) -> Book {
    let mut book = Book::new(limits, 7);
    book.set_ceiling(10_000);
    book
}

fn claim<'a>(wants: &'a [Want<'a>], ttl_ms: u64, wait_ms: u64, principal: &'a str, id: u64) -> Command<'a> {
    Command::Acquire(Acquire {
        waiter_id: WaiterId(id),
        wants,
        ttl_ms,
        wait_ms,
        max_hold_ms: None,
        delay_ms: 0,
        holder: "h",
        request: None,
        secret: Secret::new([id as u8; 16]),
        principal,
        value: None,
    })
}

fn permits(name: &str, count: u32) -> [Want<'_>; 1] {
    [Want { name, mode: Mode::Permits { count, capacity: 3 } }]
}

/// Goal: a holder whose time is over does not keep an earlier waiter from its permits, and so does not keep out a newcomer
/// that fits beside that waiter.
/// Method: ada has 2 of 3 permits until 10 ms, bob waits for 2. At 20 ms, before any tick, cy asks for 1.
#[test]
fn an_overdue_permit_holder_beside_a_waiter_keeps_nobody_out() {
    let mut book = new_book(Limits::default());
    let at = Time::from_millis;
    assert!(matches!(book.apply(claim(&permits("a", 2), 10, 0, "", 1), at(0)).reply, Reply::Granted(_)));
    assert_eq!(book.apply(claim(&permits("a", 2), 50, 1000, "", 2), at(1)).reply, Reply::Waiting);
    let outcome = book.apply(claim(&permits("a", 1), 50, 0, "", 3), at(20));
    assert!(matches!(outcome.reply, Reply::Granted(_)), "{:?}", outcome.reply);
    assert!(
        matches!(&outcome.effects[..], [Effect { waiter_id: WaiterId(2), reply: Reply::Granted(_) }]),
        "bob comes first: {:?}",
        outcome.effects
    );
    // The three permits are taken now.
    let outcome = book.apply(claim(&permits("a", 1), 50, 0, "", 4), at(20));
    assert!(matches!(outcome.reply, Reply::Refused(Refusal::Held(_))), "{:?}", outcome.reply);
}

/// Goal: a lease that is over does not count against its principal.
#[test]
fn an_overdue_lease_is_no_share_of_the_leases() {
    let mut book = new_book(Limits { leases_per_principal: 1, ..Limits::default() });
    let at = Time::from_millis;
    let want = |name| [Want { name, mode: Mode::Exclusive }];
    assert!(matches!(book.apply(claim(&want("a"), 10, 0, "ada", 1), at(0)).reply, Reply::Granted(_)));
    let full = book.apply(claim(&want("b"), 10, 0, "ada", 2), at(9)).reply;
    assert!(matches!(full, Reply::Refused(Refusal::Quota(_))), "{full:?}");
    assert!(matches!(book.apply(claim(&want("b"), 10, 0, "ada", 3), at(11)).reply, Reply::Granted(_)));
}

/// Names as bits, mode, ttl, patience or none, principal; and how much time passes before it.
type RandomClaim = (u8, u8, u64, Option<u64>, usize, u64);

fn play(claims: &[RandomClaim], tick_before_last: bool) -> Reply {
    let mut book = new_book(Limits { leases_per_principal: 4, ..Limits::default() });
    let (mut now, mut leases, mut last) = (Time::from_millis(1), Vec::<LeaseKey>::new(), Reply::Waiting);
    for (at, (bits, mode, ttl_ms, wait, principal, pass)) in claims.iter().enumerate() {
        now = now.plus_millis(*pass);
        if tick_before_last && at + 1 == claims.len() {
            while book.apply(Command::Tick { budget: 1000 }, now).reply == Reply::Ticked(true) {}
        }
        let mode = match mode {
            0 => Mode::Exclusive,
            1 => Mode::Shared,
            count => Mode::Permits { count: u32::from(*count) - 1, capacity: 3 },
        };
        let names = NAMES.iter().enumerate().filter(|(bit, _)| bits & 1 << bit != 0);
        let wants: Vec<Want<'_>> = names.map(|(_, name)| Want { name, mode }).collect();
        let command = claim(&wants, *ttl_ms, wait.unwrap_or(0), PRINCIPALS[*principal], at as u64 + 1);
        last = book.apply(command, now).reply;
        leases.extend(if let Reply::Granted(granted) = &last { Some(granted.lease) } else { None });
        // Now and then somebody gives up early.
        if at % 5 == 4
            && at + 1 < claims.len()
            && let Some(lease) = leases.pop()
        {
            book.apply(Command::Release { lease }, now);
        }
    }
    last
}

/// What was decided, without the details: a waiter that has just been granted is a holder in one and a queue in the other.
fn verdict(reply: &Reply) -> &'static str {
    match reply {
        Reply::Granted(_) => "granted",
        Reply::Waiting => "waiting",
        Reply::Invalid(_) => "invalid",
        Reply::Refused(Refusal::Held(_)) => "held",
        Reply::Refused(Refusal::Quota(_)) => "quota",
        other => panic!("{other:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// Goal: whether the timer came before a claim or not, the claim is decided the same.
    #[test]
    fn a_tick_before_a_claim_changes_no_verdict(claims in prop::collection::vec(
        (1..8u8, 0..4u8, 1..60u64, prop::option::of(1..200u64), 0..2usize, 0..30u64),
        2..30,
    )) {
        let (late, on_time) = (play(&claims, false), play(&claims, true));
        prop_assert_eq!(verdict(&late), verdict(&on_time), "{:?} {:?}", late, on_time);
    }
}
