//! Many clients at once on few names: nothing lapses early, nobody shares, tokens rise.

use std::collections::HashSet;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use super::common::server::Server;
use super::common::{Site, now, pause};
use super::{Dice, dial, granted, word};

/// A lease as its holder saw it.
#[derive(Clone, Debug)]
struct Held {
    name: u64,
    token: u64,
    asked: Instant,
    heard: Instant,
    ttl: Duration,
    released: Option<Instant>,
}

/// Goal: whoever is granted a name after another heard of it only after the other's time was over or given back.
/// Method: connections that hold, give back, let lapse and wait, by dice; then every pair of grants in order of token.
#[test]
fn nothing_lapses_early_and_tokens_rise() {
    let site = Site::new();
    let server = Server::start(&site, &[]);
    let all: Mutex<Vec<Held>> = Mutex::default();
    thread::scope(|scope| {
        for connection in 0..16 {
            let (server, all) = (&server, &all);
            scope.spawn(move || {
                let (mut client, mut dice) = (dial(server), Dice(connection));
                let end = now() + Duration::from_secs(4);
                while now() < end {
                    let (name, ttl) = (dice.roll(4), 20 + dice.roll(60));
                    let (wait, asked) = (dice.roll(3) * 100, now());
                    let [ms, patience, resource] = [ttl.to_string(), wait.to_string(), format!("n{name}")];
                    let reply = client.ask(&["LEASE", "ACQUIRE", &ms, "WAIT", &patience, "RESOURCES", &resource]);
                    let heard = now();
                    if reply.starts_with('-') {
                        assert_eq!(word(&reply), "HELD");
                        pause(Duration::from_millis(dice.roll(10)));
                        continue;
                    }
                    let (lease, token) = granted(&reply);
                    let mut released = None;
                    if dice.roll(2) == 0 {
                        pause(Duration::from_millis(dice.roll(20)));
                        let sent = now();
                        let answer = client.ask(&["LEASE", "RELEASE", &lease]);
                        if answer == ":1\r\n" {
                            released = Some(sent);
                        } else {
                            assert_eq!(word(&answer), "STALE");
                        }
                    }
                    let ttl = Duration::from_millis(ttl);
                    all.lock().expect("nobody panicked").push(Held { name, token, asked, heard, ttl, released });
                }
            });
        }
    });
    let mut all = all.into_inner().expect("nobody panicked");
    all.sort_by_key(|held| held.token);
    assert_eq!(all.iter().map(|held| held.token).collect::<HashSet<_>>().len(), all.len(), "no token twice");
    let (mut lapsed, mut given) = (0, 0);
    for name in 0..4 {
        let mine: Vec<&Held> = all.iter().filter(|held| held.name == name).collect();
        for pair in mine.windows(2) {
            let (first, second) = (pair[0], pair[1]);
            let free = first.released.unwrap_or(first.asked + first.ttl);
            assert!(second.heard >= free, "granted too early: {first:?} then {second:?}");
            if first.released.is_some() { given += 1 } else { lapsed += 1 }
        }
    }
    println!("{} grants, {given} given back, {lapsed} lapsed", all.len());
    assert!(given >= 50 && lapsed >= 50, "too little happened: {given} given back, {lapsed} lapsed");
}
