//! Long queues: what one call does stays bounded, and the rest is done by later ones.

use std::time::Duration;

use redis::Value;

use super::claim_text::{ClaimText, record_key, release};
use super::decode::{ClaimReply, claim_replies, claim_reply};
use super::script_tests::DirectRedis;
use super::scripts::{Layout, PREFIX, Script};
use crate::engine::{Claim, Mode, Want};

const WAITERS: usize = 5000;
/// Longer than thousands of calls take on a busy machine: the first holder must not lapse meanwhile.
const HELD_FOR: Duration = Duration::from_secs(600);
/// Commands that one release may run. Dropping a place takes four.
const MAX_COMMANDS: u64 = 1500;

fn text_of(wants: Vec<Want>, number: usize) -> ClaimText {
    let mut bits = [7; 32];
    bits[..8].copy_from_slice(&(number as u64).to_be_bytes());
    let claim = Claim { wait: HELD_FOR, ..Claim::new(wants, HELD_FOR, "ada") };
    ClaimText::new(&claim, &Layout::default(), bits)
}

fn seat(number: usize) -> ClaimText {
    text_of(vec![Want::exclusive("seat")], number)
}

/// Commands that were run so far, those of scripts too.
fn commands_run(direct: &DirectRedis) -> u64 {
    let stats = direct.server.command(&["INFO", "commandstats"]);
    let calls = |line: &str| line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok();
    stats.lines().filter_map(calls).sum()
}

fn wait_in_queue(direct: &mut DirectRedis, text: &ClaimText) {
    let reply =
        claim_reply(&direct.run(Script::Acquire, text.acquire(text.wait_ms, "alive", 10_000))).expect("a reply");
    assert!(matches!(reply, ClaimReply::Waiting(_)), "{reply:?}");
}

/// Places whose records are gone: processes that died.
fn add_dead(direct: &mut DirectRedis, name: &str, count: usize) {
    let mut add = redis::cmd("ZADD");
    add.arg(format!("{PREFIX}q:{name}"));
    for number in 0..count {
        add.arg(number).arg(format!("{:032x} x", 1_000_000 + number));
    }
    add.query::<()>(&mut direct.redis).expect("places");
    // Those who come now come later.
    redis::cmd("SET").arg(format!("{PREFIX}a")).arg(count).query::<()>(&mut direct.redis).expect("a number");
}

fn measured<T>(direct: &mut DirectRedis, what: impl FnOnce(&mut DirectRedis) -> T) -> (T, u64) {
    let before = commands_run(direct);
    let done = what(direct);
    (done, commands_run(direct) - before)
}

/// Goal: a release in front of 5,000 who live costs what it costs in front of one.
#[test]
fn a_release_does_not_walk_those_who_wait() {
    let mut direct = DirectRedis::start_with(&Layout { waiter_ms: 600_000, ..Layout::default() });
    let ada = seat(0);
    assert!(matches!(direct.acquire(&ada), ClaimReply::Granted(_)));
    for number in 1..=WAITERS {
        wait_in_queue(&mut direct, &seat(number));
    }
    let (released, commands) = measured(&mut direct, |direct| {
        direct.run(Script::Release, release(&ada.handle, &ada.secret, Some("seat"), None))
    });
    assert_eq!(released, Value::Int(1));
    assert!(commands < 60, "{commands} commands");
    let next: String = redis::cmd("GET").arg("seat").query(&mut direct.redis).expect("a value");
    assert_eq!(next, record_key(&seat(1).handle), "the first one has it");
}

/// Goal: 5,000 dead places are dropped a part at a time; who lives is told to look, and gets the name by looking.
#[test]
fn dead_places_are_dropped_a_part_at_a_time() {
    let mut direct = DirectRedis::start();
    let (ada, bob) = (seat(0), seat(1));
    let mut listener = redis::Client::open(direct.server.url()).expect("a url").get_connection().expect("a connection");
    let mut pushes = listener.as_pubsub();
    pushes.subscribe(format!("{PREFIX}c:alive")).expect("subscribed");
    pushes.set_read_timeout(Some(Duration::from_secs(5))).expect("a limit");
    assert!(matches!(direct.acquire(&ada), ClaimReply::Granted(_)));
    wait_in_queue(&mut direct, &seat(2)); // so that a queue is there, before the dead ones
    direct.server.command(&["DEL", &format!("{PREFIX}q:seat"), &record_key(&seat(2).handle)]);
    add_dead(&mut direct, "seat", WAITERS);
    // It drops a part by itself.
    let (_, commands) = measured(&mut direct, |direct| wait_in_queue(direct, &bob));
    assert!(commands < MAX_COMMANDS, "an acquire ran {commands} commands");
    let (released, commands) = measured(&mut direct, |direct| {
        direct.run(Script::Release, release(&ada.handle, &ada.secret, Some("seat"), None))
    });
    assert_eq!(released, Value::Int(1));
    assert!(commands < MAX_COMMANDS, "a release ran {commands} commands");
    let look = format!("L {} 0", bob.handle);
    let mut looks = 0;
    loop {
        let told: String = pushes.get_message().expect("a message").get_payload().expect("text");
        if told.starts_with(&format!("G {}", bob.handle)) {
            break;
        }
        if told != look {
            continue;
        }
        looks += 1;
        let keys = (vec![record_key(&bob.handle)], vec!["-".to_owned()]);
        let (replies, commands) = measured(&mut direct, |direct| direct.run(Script::Beat, keys));
        assert!(commands < MAX_COMMANDS, "a beat ran {commands} commands");
        assert_eq!(claim_replies(&replies).expect("replies").len(), 1);
    }
    assert!((10..=WAITERS / 100).contains(&looks), "{looks} looks");
    let next: String = redis::cmd("GET").arg("seat").query(&mut direct.redis).expect("a value");
    assert_eq!(next, record_key(&bob.handle));
}

/// Goal: a release does not walk thousands who live and cannot be served because of another name.
#[test]
fn those_who_wait_for_another_name_too_are_walked_in_part() {
    let mut direct = DirectRedis::start_with(&Layout { waiter_ms: 600_000, ..Layout::default() });
    let shared = |name: &str| Want { name: name.into(), mode: Mode::Shared };
    let (hall, stage) = (text_of(vec![shared("hall")], 0), text_of(vec![Want::exclusive("stage")], 1));
    assert!(matches!(direct.acquire(&hall), ClaimReply::Granted(_)));
    assert!(matches!(direct.acquire(&stage), ClaimReply::Granted(_)));
    for number in 2..1200 {
        wait_in_queue(&mut direct, &text_of(vec![shared("hall"), shared("stage")], number));
    }
    let (released, commands) =
        measured(&mut direct, |direct| direct.run(Script::Release, release(&hall.handle, &hall.secret, None, None)));
    assert_eq!(released, Value::Int(1));
    assert!(commands < 6000, "{commands} commands");
}
