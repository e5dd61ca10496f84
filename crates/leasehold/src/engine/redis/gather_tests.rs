//! The script that does what several callers ask for, run directly.

use std::time::Duration;

use redis::Value;

use super::claim_text::{ClaimText, record_key, release};
use super::decode::{ClaimReply, OwnerReply, number_text, owner_reply};
use super::gather::gathered_call;
use super::node::ScriptCall;
use super::script_tests::DirectRedis;
use super::scripts::{Layout, PREFIX, Script};
use crate::engine::{Claim, Want};

fn seat(name: &str, byte: u8) -> ClaimText {
    let claim = Claim::new(vec![Want::exclusive(name)], Duration::from_secs(30), "ada");
    ClaimText::new(&claim, &Layout::default(), [byte; 32])
}

fn acquiring(text: &ClaimText) -> ScriptCall {
    let (keys, args) = text.acquire(0, "i", 10);
    ScriptCall { script: Script::Acquire, slot: 0, keys, args }
}

fn releasing(text: &ClaimText) -> ScriptCall {
    let (keys, args) = release(&text.handle, &text.secret, Some(&text.keys[0]), None);
    ScriptCall { script: Script::Release, slot: 0, keys, args }
}

fn run_gathered(direct: &mut DirectRedis, calls: &[ScriptCall]) -> Vec<Value> {
    let call = gathered_call(calls.iter());
    match direct.run(Script::Gathered, (call.keys, call.args)) {
        Value::Array(replies) => replies,
        other => panic!("{other:?}"),
    }
}

fn token(reply: &Value) -> u64 {
    number_text(reply).expect("a token")
}

/// Goal: gathered claims leave exactly what the single scripts leave, but for token and time; tokens rise one by one.
#[test]
fn gathered_claims_are_those_of_the_single_script() {
    let mut direct = DirectRedis::start();
    let (one, two, three) = (seat("one", 1), seat("two", 2), seat("three", 3));
    let ClaimReply::Granted(before) = direct.acquire(&three) else { panic!("not granted") };
    let replies = run_gathered(&mut direct, &[acquiring(&one), acquiring(&two)]);
    assert!(before.token < token(&replies[0]) && token(&replies[0]) < token(&replies[1]), "{replies:?}");
    for text in [&one, &two, &three] {
        let record: String = get(&mut direct, &record_key(&text.handle));
        let (first, tail) = record.rsplit_once('\n').expect("a tail");
        assert_eq!(format!("{first}\n"), format!("L{}", text.static_part));
        assert_eq!(tail.split(' ').count(), 3, "{tail}");
        assert_eq!(get(&mut direct, &text.keys[0]), record_key(&text.handle));
        let left: i64 = redis::cmd("PTTL").arg(&text.keys[0]).query(&mut direct.redis).expect("a ttl");
        assert!((25_000..=30_000).contains(&left), "{left}");
    }
    assert_eq!(
        run_gathered(&mut direct, &[releasing(&one), releasing(&two), releasing(&three)]),
        vec![Value::Int(1); 3]
    );
    for text in [&one, &two, &three] {
        let again = direct.run(Script::Release, release(&text.handle, &text.secret, None, None));
        assert_eq!(owner_reply(&again), Ok(OwnerReply::Done(0)), "it is remembered as released");
    }
    let left: usize = redis::cmd("DBSIZE").query(&mut direct.redis).expect("a size");
    assert_eq!(left, 2, "the counter and the ring");
    let ClaimReply::Granted(after) = direct.acquire(&seat("one", 9)) else { panic!("not granted") };
    assert!(after.token > token(&replies[1]));
}

fn get(direct: &mut DirectRedis, key: &str) -> String {
    redis::cmd("GET").arg(key).query(&mut direct.redis).expect("a value")
}

/// Goal: whatever is not plainly free or plainly ours is left for the full scripts, and nothing of it is touched.
#[test]
fn what_is_not_plain_is_left_alone() {
    let mut direct = DirectRedis::start();
    let held = seat("held", 1);
    assert!(matches!(direct.acquire(&held), ClaimReply::Granted(_)));
    let waiter = seat("held", 2);
    direct.run(Script::Acquire, waiter.acquire(60_000, "i", 10));
    let mut wrong = seat("held", 1);
    wrong.secret = "0".repeat(32);
    direct.server.command(&["SET", "foreign", "stranger"]);
    direct.server.command(&["LPUSH", "list", "stranger"]);
    let banned = seat("banned", 6);
    direct.server.command(&["SET", &record_key(&banned.handle), "X"]);
    let twice = seat("twice", 4);
    let calls = [
        acquiring(&seat("held", 3)),
        acquiring(&seat("foreign", 3)),
        acquiring(&seat("list", 3)),
        acquiring(&banned),
        releasing(&held), // somebody waits
        releasing(&wrong),
        releasing(&seat("never", 5)),
        acquiring(&twice),
        acquiring(&seat("twice", 5)),
        acquiring(&twice),
    ];
    let replies = run_gathered(&mut direct, &calls);
    for (at, reply) in replies.iter().enumerate() {
        assert_eq!(*reply == Value::Int(0), at != 7, "{at}: {reply:?}");
    }
    assert_eq!(get(&mut direct, "held"), record_key(&held.handle));
    assert_eq!(get(&mut direct, "twice"), record_key(&twice.handle));
    assert_eq!(get(&mut direct, "foreign"), "stranger");
    let replies = run_gathered(&mut direct, &[releasing(&twice), releasing(&twice)]);
    assert_eq!(replies, [Value::Int(1), Value::Int(0)], "released once");
}

/// Goal: a name that is released in the same call can be taken in it, and only once.
#[test]
fn releases_come_before_acquires() {
    let mut direct = DirectRedis::start();
    let (ada, bob, cy) = (seat("seat", 1), seat("seat", 2), seat("seat", 3));
    assert!(matches!(direct.acquire(&ada), ClaimReply::Granted(_)));
    let replies = run_gathered(&mut direct, &[acquiring(&bob), acquiring(&cy), releasing(&ada)]);
    assert!(token(&replies[0]) > 0 && replies[1..] == [Value::Int(0), Value::Int(1)], "{replies:?}");
    assert_eq!(get(&mut direct, "seat"), record_key(&bob.handle));
}

/// Goal: while somebody watches everything goes by the full scripts, which write events.
#[test]
fn nothing_is_gathered_while_somebody_watches() {
    let mut direct = DirectRedis::start();
    direct.run(Script::Observe, (Vec::new(), vec!["0123456789abcdef".into()]));
    let call = gathered_call([acquiring(&seat("seat", 1))].iter());
    assert_eq!(direct.run(Script::Gathered, (call.keys, call.args)), Value::Int(-1));
    assert_eq!(direct.server.command(&["EXISTS", "seat"]).trim(), "0");
}

/// Goal: tokens never repeat, where the counter is ahead of the clock, and where Lua cannot count any more.
#[test]
fn gathered_tokens_follow_the_counter() {
    let mut direct = DirectRedis::start();
    let ahead = 8_000_000_000_000_000_u64;
    direct.run(Script::Floor, (Vec::new(), vec![ahead.to_string()]));
    let replies = run_gathered(&mut direct, &[acquiring(&seat("one", 1)), acquiring(&seat("two", 2))]);
    assert_eq!((token(&replies[0]), token(&replies[1])), (ahead + 1, ahead + 2));
    assert_eq!(get(&mut direct, &format!("{PREFIX}t")), (ahead + 2).to_string());
    direct.run(Script::Floor, (Vec::new(), vec![9_007_199_254_740_990_u64.to_string()]));
    let replies = run_gathered(&mut direct, &[acquiring(&seat("three", 3)), releasing(&seat("one", 1))]);
    assert_eq!(replies, [Value::Int(0), Value::Int(1)], "the single script counts by Redis");
}
