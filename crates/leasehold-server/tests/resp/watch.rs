//! `LEASE WATCH`: everything, once, in order, also across a reconnect.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use super::client::{RespClient, command};
use super::common::server::Server;
use super::common::{Site, wait_until};
use super::{dial, lines, word};

/// One message of version 3: its kind, its id and the one before, its first resource.
struct News {
    kind: String,
    id: String,
    prev: String,
    name: String,
}

fn next(client: &mut RespClient) -> News {
    let reply = String::from_utf8(client.reply()).expect("text");
    let lines = lines(&reply);
    assert_eq!((lines[0].as_bytes()[0], lines[2]), (b'>', "lease"), "{reply}");
    let (kind, id) = (lines[4].to_owned(), lines[6].to_owned());
    if kind == "reset" {
        assert_eq!(lines[0], ">3");
        return News { kind, prev: String::new(), name: String::new(), id };
    }
    assert_eq!(lines[0], ">9", "{reply}");
    News { kind, id, prev: lines[8].to_owned(), name: lines.last().expect("a name").to_string() }
}

fn watch(server: &Server, words: &[&str]) -> RespClient {
    let mut client = dial(server);
    assert!(client.ask(&["HELLO", "3"]).starts_with('%'));
    assert_eq!(client.ask(&[&["LEASE", "WATCH"], words].concat()), "+OK\r\n");
    client
}

/// Goal: both versions tell what happened in order, with ids that follow each other; a second watch is refused.
#[test]
fn both_versions_tell_what_happened() {
    let site = Site::new();
    let server = Server::start(&site, &[]);
    let mut three = watch(&server, &["PREFIX", "a/"]);
    let begin = next(&mut three);
    assert_eq!(begin.kind, "reset");
    let mut two = dial(&server);
    assert_eq!(two.ask(&["LEASE", "WATCH", "PREFIX", "a/"]), "+OK\r\n");
    let reset = String::from_utf8(two.reply()).expect("text");
    assert!(reset.starts_with("*3\r\n$7\r\nmessage\r\n$5\r\nlease\r\n$"), "{reset}");
    assert!(reset.contains("\"kind\":\"reset\""), "{reset}");
    assert_eq!(word(&two.ask(&["LEASE", "WATCH"])), "INVALID", "one watch to a connection");
    assert_eq!(two.ask(&["PING"]), "+PONG\r\n", "and other commands go on");
    let mut client = dial(&server);
    assert_eq!(client.ask(&["SET", "b/1", "v", "NX", "PX", "60000"]), "+OK\r\n");
    assert_eq!(client.ask(&["SET", "a/1", "v", "NX", "PX", "60000"]), "+OK\r\n");
    assert_eq!(client.ask(&["DEL", "a/1"]), ":1\r\n");
    assert_eq!(client.ask(&["SET", "a/2", "v", "NX", "PX", "30"]), "+OK\r\n");
    assert_eq!(client.ask(&["SET", "a/3", "v", "NX", "PX", "60000"]), "+OK\r\n");
    assert_eq!(client.ask(&["LEASE", "REVOKE", "a/3", "REASON", "over"]), ":1\r\n");
    let mut prev = begin.id;
    let mut seen = Vec::new();
    for _ in 0..6 {
        let news = next(&mut three);
        assert_eq!(news.prev, prev);
        prev = news.id;
        seen.push((news.kind, news.name));
    }
    seen.sort();
    let told = [
        ("granted", "a/1"),
        ("granted", "a/2"),
        ("granted", "a/3"),
        ("lapsed", "a/2"),
        ("released", "a/1"),
        ("revoked", "a/3"),
    ];
    assert_eq!(seen, told.map(|(kind, name)| (kind.to_owned(), name.to_owned())));
    for _ in 0..6 {
        let message = String::from_utf8(two.reply()).expect("text");
        let json = lines(&message)[6];
        let value: serde_json::Value = serde_json::from_str(json).expect("JSON");
        assert!(value["prev"].is_string() && value["token"].is_string(), "{value}");
        assert_eq!(value["kind"] == "revoked", value["reason"] == "over", "{value}");
    }
}

/// Goal: whoever reconnects with the last id it saw gets everything after it, once, also under load.
#[test]
fn a_watch_resumes_without_gap_or_duplicate() {
    let site = Site::new();
    let server = Server::start(&site, &[]);
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let mut watcher = watch(&server, &[]);
        let mut prev = next(&mut watcher).id;
        for thread in 0..4 {
            let (server, stop, done) = (&server, &stop, &done);
            scope.spawn(move || {
                let mut client = dial(server);
                for round in 0.. {
                    if stop.load(Ordering::Relaxed) && round > 50 {
                        break;
                    }
                    let name = format!("{thread}-{round}");
                    let set = command(&["SET", &name, "v", "NX", "PX", "60000"]);
                    let free = command(&["EVALSHA", "c3f8721cbb97f72bc19e972846bd7aaf91901658", "1", &name, "v"]);
                    client.send(&[set, free].concat());
                    assert_eq!((client.reply(), client.reply()), (b"+OK\r\n".to_vec(), b":1\r\n".to_vec()));
                    done.fetch_add(2, Ordering::Relaxed);
                }
            });
        }
        let mut count = 0;
        for _ in 0..14 {
            for _ in 0..100 {
                let news = next(&mut watcher);
                assert_eq!(news.prev, prev, "no gap and no duplicate: {} {}", news.kind, news.id);
                prev = news.id;
                count += 1;
            }
            drop(watcher);
            watcher = watch(&server, &["SINCE", &prev]);
        }
        stop.store(true, Ordering::Relaxed);
        wait_until("the others have ended", || {
            stop.load(Ordering::Relaxed) && {
                let before = done.load(Ordering::Relaxed);
                super::common::pause(std::time::Duration::from_millis(100));
                before == done.load(Ordering::Relaxed)
            }
        });
        let all = done.load(Ordering::Relaxed);
        while count < all {
            let news = next(&mut watcher);
            assert_eq!(news.prev, prev);
            prev = news.id;
            count += 1;
        }
        println!("{count} events over 15 connections");
        assert!(count >= 1400);
    });
}

/// Goal: an id that is not known, or from before a restart, is answered with a reset; a shutdown ends the watch.
#[test]
fn what_is_not_known_any_more_is_reset() {
    let site = Site::new();
    let server = Server::start(&site, &[]);
    let mut watcher = watch(&server, &[]);
    let begin = next(&mut watcher).id;
    assert_eq!(dial(&server).ask(&["SET", "a", "v", "NX", "PX", "600000"]), "+OK\r\n");
    let last = next(&mut watcher).id;
    assert_eq!(next(&mut watch(&server, &["SINCE", &begin])).prev, begin);
    server.stop().with_code(0);
    assert_eq!(watcher.reply(), b"", "it ends with the server");
    let server = Server::start(&site, &[]);
    assert_eq!(next(&mut watch(&server, &["SINCE", &last])).kind, "reset");
}

/// Goal: a watch that was refused is none: the next try is not told that the connection watches already.
/// Method: the rate of requests is used up, and comes back.
#[test]
fn a_refused_watch_can_be_asked_for_again() {
    let site = Site::new();
    let (slow, _) = super::common::server::key(&site, &["--role", "read", "--rate", "2"]);
    let server = Server::start(&site, &[]);
    let mut client = dial(&server);
    assert_eq!(client.ask(&["AUTH", &slow]), "+OK\r\n");
    let mut said = Vec::new();
    // Each passes the access check, until the rate is used up; a watch then is refused for that alone.
    wait_until("the gate says no", || word_of(&client.ask(&["LEASE", "GET", "a"])) == Some("QUOTA"));
    wait_until("a watch", || {
        said.push(client.ask(&["LEASE", "WATCH"]));
        said.last().is_some_and(|reply| reply == "+OK\r\n")
    });
    assert!(said.len() > 1, "the first was refused");
    for reply in &said[..said.len() - 1] {
        assert_eq!(word(reply), "QUOTA");
    }
}

fn word_of(reply: &str) -> Option<&str> {
    reply.starts_with('-').then(|| word(reply))
}
