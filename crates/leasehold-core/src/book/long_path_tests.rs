//! An acquire of one unused name takes a shorter path: these tests let two books decide the same, one by each path.

use std::cell::Cell;

use proptest::prelude::*;

use super::Book;
use crate::command::{Acquire, Command, Mode, Reply, RequestId, WaiterId, Want};
use crate::limits::Limits;
use crate::time::Time;
use crate::token::Secret;

thread_local! {
    static LONG: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread must not take the shorter path.
pub(super) fn forced() -> bool {
    LONG.get()
}

/// One claim: names, mode, principal, request, patience, ttl; and how much time passes before it.
type RandomClaim = (Vec<u8>, u8, u8, Option<u8>, bool, u64, u64);

fn play(claims: &[RandomClaim], long: bool) -> (Vec<Reply>, Vec<u8>, u64) {
    LONG.set(long);
    let limits = Limits { leases: 6, leases_per_principal: 4, waiters_per_principal: 2, ..Limits::default() };
    let mut book = Book::new(limits, 3);
    book.set_ceiling(40);
    let mut now = Time::from_millis(1);
    let mut replies = Vec::new();
    for (at, (names, mode, principal, request, wait, ttl_ms, pass)) in claims.iter().enumerate() {
        now = now.plus_millis(*pass);
        // What is due is ended first: the long path does so for waiters, the short path for nobody.
        while book.apply(Command::Tick { budget: 1_000 }, now).reply == Reply::Ticked(true) {}
        let mode = match mode {
            0 => Mode::Exclusive,
            1 => Mode::Shared,
            count => Mode::Permits { count: u32::from(*count) - 1, capacity: 3 },
        };
        let names: Vec<String> = names.iter().map(|name| format!("n{name}")).collect();
        let wants: Vec<Want<'_>> = names.iter().map(|name| Want { name, mode }).collect();
        let id = request.map(|request| format!("q{request}"));
        let principal = format!("p{principal}");
        let claim = Acquire {
            waiter_id: WaiterId(at as u64 + 1),
            wants: &wants,
            ttl_ms: *ttl_ms,
            wait_ms: if *wait { 50 } else { 0 },
            max_hold_ms: None,
            delay_ms: *ttl_ms % 3,
            holder: "h",
            request: id.as_deref().map(|id| RequestId { scope: "", id }),
            secret: Secret::new([at as u8; 16]),
            principal: &principal,
            value: None,
        };
        let outcome = book.apply(Command::Acquire(claim), now);
        replies.push(outcome.reply);
        replies.extend(outcome.effects.into_iter().map(|effect| effect.reply));
    }
    LONG.set(false);
    (replies, book.take_tape(Vec::new()), book.digest())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Goal: the shorter way decides what the long one decides: the same answers, the same facts to the byte.
    #[test]
    fn the_shorter_way_decides_the_same(claims in prop::collection::vec(
        (
            prop::collection::vec(0..8u8, 1..3), 0..4u8, 0..3u8, prop::option::of(0..6u8), any::<bool>(),
            1..80u64, 0..40u64,
        ),
        1..60,
    )) {
        prop_assert_eq!(play(&claims, false), play(&claims, true));
    }
}

/// Goal: the two paths are two. Method: without ticks between, only the long path refuses waiters whose wait is over.
#[test]
fn the_two_ways_are_two() {
    let dismissed = |long: bool| {
        LONG.set(long);
        let mut book = Book::new(Limits::default(), 3);
        book.set_ceiling(40);
        let mut ask = |waiter_id: u64, name: &str, now: u64| {
            let wants = [Want::exclusive(name)];
            let acquire = Acquire::new(WaiterId(waiter_id), &wants, 1_000, "h", Secret::new([0; 16]));
            let claim = Acquire { wait_ms: 5, ..acquire };
            book.apply(Command::Acquire(claim), Time::from_millis(now)).effects.len()
        };
        let count = [(1, "a", 1), (2, "a", 2), (3, "b", 100)].map(|(waiter_id, name, now)| ask(waiter_id, name, now));
        LONG.set(false);
        count
    };
    assert_eq!((dismissed(false), dismissed(true)), ([0, 0, 0], [0, 0, 1]));
}
