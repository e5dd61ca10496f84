//! Scripts run directly, in orders that only a lost or late message brings about.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold_harness::redis::RedisServer;
use redis::{Connection, Value};

use super::claim_text::{ClaimText, record_key, release};
use super::decode::{ClaimReply, OwnerReply, claim_reply, number_text, owner_reply};
use super::scripts::{Layout, PREFIX, Script};
use crate::engine::{Claim, Want};

/// A server of its own, and its scripts.
pub(super) struct DirectRedis {
    pub server: RedisServer,
    pub redis: Connection,
    shas: BTreeMap<&'static str, String>,
}

impl DirectRedis {
    pub fn start() -> Self {
        Self::start_with(&Layout::default())
    }

    pub fn start_with(layout: &Layout) -> Self {
        let server = RedisServer::start(&[]);
        let mut redis = redis::Client::open(server.url()).expect("a url").get_connection().expect("a connection");
        let mut shas = BTreeMap::new();
        for script in Script::ALL {
            let text = script.text(layout);
            let sha: String = redis::cmd("SCRIPT").arg("LOAD").arg(text).query(&mut redis).expect("it loads");
            shas.insert(script.name(), sha);
        }
        Self { server, redis, shas }
    }

    pub fn run(&mut self, script: Script, (keys, args): (Vec<String>, Vec<String>)) -> Value {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.shas[script.name()]).arg(keys.len());
        keys.iter().chain(&args).for_each(|arg| {
            command.arg(arg);
        });
        command.query(&mut self.redis).expect("it runs")
    }

    pub fn acquire(&mut self, text: &ClaimText) -> ClaimReply {
        claim_reply(&self.run(Script::Acquire, text.acquire(0, "i", 10))).expect("an answer")
    }
}

fn seat(byte: u8) -> ClaimText {
    let claim = Claim::new(vec![Want::exclusive("seat")], Duration::from_secs(30), "ada");
    ClaimText::new(&claim, &Layout::default(), [byte; 32])
}

#[test]
fn a_script_is_found_at_its_number() {
    for (number, script) in Script::ALL.into_iter().enumerate() {
        assert_eq!(script as usize, number);
    }
}

/// Goal: a copy of an acquire that arrives after the release takes nothing.
/// Method: acquire, release with a ban, the same acquire again; and a copy of the release.
#[test]
fn a_late_copy_of_an_acquire_takes_nothing() {
    let mut direct = DirectRedis::start();
    let ada = seat(1);
    assert!(matches!(direct.acquire(&ada), ClaimReply::Granted(granted) if granted.fresh));
    assert!(matches!(direct.acquire(&ada), ClaimReply::Granted(granted) if !granted.fresh), "a retry finds its own");
    let gone = direct.run(Script::Release, release(&ada.handle, &ada.secret, None, Some(5000)));
    assert_eq!(owner_reply(&gone), Ok(OwnerReply::Done(1)));
    let late = direct.acquire(&ada);
    assert!(matches!(&late, ClaimReply::Granted(granted) if granted.remaining_ms == Some(0)), "{late:?}");
    let again = direct.run(Script::Release, release(&ada.handle, &ada.secret, None, Some(5000)));
    assert_eq!(owner_reply(&again), Ok(OwnerReply::Done(0)));
    assert!(matches!(direct.acquire(&seat(2)), ClaimReply::Granted(granted) if granted.fresh), "the seat is free");
}

/// Goal: a cancel that overtakes its own acquire keeps that acquire from taking anything.
#[test]
fn a_cancel_that_comes_first_bans_its_acquire() {
    let mut direct = DirectRedis::start();
    let ada = seat(1);
    let words = ["i", "cancel", "-", "seat", &ada.secret, "5000"].map(str::to_owned);
    let left = direct.run(Script::Leave, (vec![record_key(&ada.handle)], words.to_vec()));
    assert!(matches!(claim_reply(&left), Ok(ClaimReply::Held(_))), "{left:?}");
    assert_eq!(direct.acquire(&ada), ClaimReply::Banned);
    assert!(matches!(direct.acquire(&seat(2)), ClaimReply::Granted(_)), "nobody else is banned");
    assert!(matches!(direct.acquire(&seat(1)), ClaimReply::Banned));
}

/// Goal: two leases never share a handle: the second draws another.
#[test]
fn a_handle_that_is_taken_is_a_collision() {
    let mut direct = DirectRedis::start();
    let ada = seat(1);
    assert!(matches!(direct.acquire(&ada), ClaimReply::Granted(_)));
    let mut bits = [1; 32];
    bits[31] = 9;
    let claim = Claim::new(vec![Want::exclusive("row")], Duration::from_secs(30), "bob");
    assert_eq!(direct.acquire(&ClaimText::new(&claim, &Layout::default(), bits)), ClaimReply::Collision);
}

/// Goal: tokens rise one by one where Lua cannot count any more.
#[test]
fn tokens_rise_beyond_what_lua_can_count() {
    let mut direct = DirectRedis::start();
    let floor = 9_223_372_032_559_808_511_u64;
    let raised = direct.run(Script::Floor, (Vec::new(), vec![floor.to_string()]));
    assert_eq!(number_text(&raised), Ok(floor));
    for byte in 1..4 {
        let text = seat(byte);
        let ClaimReply::Granted(granted) = direct.acquire(&text) else { panic!("not granted") };
        assert_eq!(granted.token, floor + u64::from(byte));
        direct.run(Script::Release, release(&text.handle, &text.secret, Some("seat"), None));
    }
}

/// Goal: dead waiters keep nobody out of a queue that is full of them.
#[test]
#[allow(clippy::disallowed_methods, reason = "a waiter dies in real time")]
fn a_queue_full_of_dead_waiters_takes_another() {
    let mut direct = DirectRedis::start_with(&Layout { waiter_ms: 200, ..Layout::default() });
    assert!(matches!(direct.acquire(&seat(1)), ClaimReply::Granted(_)));
    let wait = |direct: &mut DirectRedis, byte| {
        claim_reply(&direct.run(Script::Acquire, seat(byte).acquire(60_000, "i", 5))).expect("an answer")
    };
    for byte in 2..7 {
        assert!(matches!(wait(&mut direct, byte), ClaimReply::Waiting(_)), "{byte}");
    }
    assert!(matches!(wait(&mut direct, 7), ClaimReply::QueueFull { .. }), "five are alive");
    // The head lives on: a dead head is dropped anyway.
    for _ in 0..10 {
        std::thread::sleep(Duration::from_millis(50));
        direct.run(Script::Beat, (vec![record_key(&seat(2).handle)], vec!["-".to_owned()]));
    }
    let answer = wait(&mut direct, 7);
    assert!(matches!(answer, ClaimReply::Waiting(_)), "{answer:?}");
    let queue: usize = redis::cmd("ZCARD").arg(format!("{PREFIX}q:seat")).query(&mut direct.redis).expect("a length");
    assert_eq!(queue, 2);
}
