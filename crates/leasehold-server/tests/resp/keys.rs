//! Keys on the RESP port: who nobody is, who somebody is, and what a prefix hides.

use super::common::server::{Server, key};
use super::common::{Site, wait_until};
use super::{dial, granted, queue, word};

/// Goal: without a key nothing is to be had; a wrong one takes away what a right one gave; a revoked one ends at once.
#[test]
fn a_key_is_shown_and_taken_away() {
    let site = Site::new();
    let (admin, _) = key(&site, &["--role", "admin"]);
    let (lease, id) = key(&site, &["--role", "lease"]);
    let server = Server::start(&site, &[]);
    let mut client = dial(&server);
    for words in [&["PING"][..], &["LEASE", "GET", "a"], &["NONSENSE"], &["HELLO", "3"], &["INFO"]] {
        assert_eq!(word(&client.ask(words)), "NOAUTH", "{words:?}");
    }
    assert_eq!(word(&client.ask(&["AUTH", "wrong"])), "WRONGPASS");
    assert_eq!(word(&client.ask(&["HELLO", "3", "AUTH", "default", "wrong"])), "WRONGPASS");
    assert!(client.ask(&["HELLO", "3", "AUTH", "default", &admin, "SETNAME", "ada"]).starts_with("%7\r\n"));
    assert_eq!(client.ask(&["CLIENT", "GETNAME"]), "$3\r\nada\r\n");
    granted(&client.ask(&["LEASE", "ACQUIRE", "600000", "RESOURCES", "a"]));
    assert_eq!(word(&client.ask(&["AUTH", "wrong"])), "WRONGPASS");
    assert_eq!(word(&client.ask(&["LEASE", "GET", "a"])), "NOAUTH", "nobody goes on as somebody else");
    assert_eq!(client.ask(&["AUTH", "default", &admin]), "+OK\r\n");

    let (mut holder, mut waiter) = (dial(&server), dial(&server));
    assert_eq!(holder.ask(&["AUTH", &lease]), "+OK\r\n");
    assert_eq!(waiter.ask(&["AUTH", &lease]), "+OK\r\n");
    waiter.send(&super::client::command(&["LEASE", "ACQUIRE", "60000", "WAIT", "60000", "RESOURCES", "a"]));
    wait_until("it stands in line", || queue(&mut client, "a") == 1);
    let data = site.path("data");
    site.ask(&["key", "revoke", &id, "--data", data.to_str().expect("UTF-8")]).with_code(0);
    wait_until("the server hears of it", || holder.ask(&["LEASE", "GET", "a"]).starts_with("-NOAUTH"));
    assert_eq!(word(&holder.ask(&["SET", "b", "v", "NX", "PX", "1000"])), "NOAUTH");
    wait_until("who waited is out of the line", || queue(&mut client, "a") == 0);
    let told = String::from_utf8(waiter.reply()).expect("text");
    assert!(told.is_empty() || told.starts_with("-NOAUTH"), "{told}");
}

/// Goal: what is outside a key's prefix is refused in the same words whether it is there or not, and never shown.
#[test]
fn a_prefix_says_the_same_of_what_is_there_and_what_is_not() {
    let site = Site::new();
    let (admin, _) = key(&site, &["--role", "admin"]);
    let (mine, _) = key(&site, &["--role", "lease", "--prefix", "mine/"]);
    let server = Server::start(&site, &[]);
    let (mut all, mut some) = (dial(&server), dial(&server));
    assert_eq!(all.ask(&["AUTH", &admin]), "+OK\r\n");
    assert_eq!(some.ask(&["AUTH", &mine]), "+OK\r\n");
    assert_eq!(all.ask(&["SET", "other/held", "v", "NX", "PX", "600000"]), "+OK\r\n");
    assert_eq!(all.ask(&["SET", "mine/held", "v", "NX", "PX", "600000"]), "+OK\r\n");
    let release = "c3f8721cbb97f72bc19e972846bd7aaf91901658";
    for words in [
        &["LEASE", "ACQUIRE", "1000", "RESOURCES", "NAME"][..],
        &["LEASE", "ACQUIRE", "1000", "RESOURCES", "mine/1", "NAME"],
        &["LEASE", "GET", "NAME"],
        &["SET", "NAME", "v", "NX", "PX", "1000"],
        &["GET", "NAME"],
        &["EXISTS", "mine/1", "NAME"],
        &["PTTL", "NAME"],
        &["DEL", "NAME"],
        &["PEXPIRE", "NAME", "1000"],
        &["EVALSHA", release, "1", "NAME", "v"],
    ] {
        let with = |name| words.iter().map(|word| if *word == "NAME" { name } else { *word }).collect::<Vec<_>>();
        let there = some.ask(&with("other/held"));
        assert_eq!(word(&there), "FORBIDDEN", "{words:?}: {there}");
        assert_eq!(there, some.ask(&with("other/free")), "{words:?}");
    }
    assert_eq!(some.ask(&["GET", "mine/held"]), "$1\r\nv\r\n");
    let listed = some.ask(&["LEASE", "LIST"]);
    assert!(listed.contains("mine/held") && !listed.contains("other/"), "{listed}");
    assert_eq!(all.ask(&["EXISTS", "other/held", "mine/1"]), ":1\r\n", "nothing was changed");
}

/// Goal: who has shown no key can send only what it takes to show one.
#[test]
fn a_stranger_may_send_little() {
    let site = Site::new();
    let (admin, _) = key(&site, &["--role", "admin"]);
    let server = Server::start(&site, &[]);
    for bytes in [&b"*11\r\n"[..], b"*1\r\n$4097\r\n"] {
        let mut client = dial(&server);
        client.send(bytes);
        let told = String::from_utf8(client.reply()).expect("text");
        assert_eq!(word(&told), "INVALID");
        assert_eq!(client.reply(), b"");
    }
    let mut client = dial(&server);
    let long = "x".repeat(60_000);
    // All at once: what follows the key is looked at as somebody's.
    client.send(&[super::client::command(&["AUTH", &admin]), super::client::command(&["ECHO", &long])].concat());
    assert_eq!(client.reply(), b"+OK\r\n");
    assert_eq!(client.reply().len(), long.len() + 10);
}
