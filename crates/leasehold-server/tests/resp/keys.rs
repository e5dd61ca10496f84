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

/// What a lock client would do to a name, over RESP.
const TAKES: [&[&str]; 8] = [
    &["LEASE", "ACQUIRE", "60000", "RESOURCES", "NAME"],
    &["LEASE", "ACQUIRE", "60000", "WAIT", "60000", "RESOURCES", "mine", "NAME"],
    &["SET", "NAME", "v", "NX", "PX", "60000"],
    &["DEL", "NAME"],
    &["PEXPIRE", "NAME", "60000"],
    &["EVALSHA", "c3f8721cbb97f72bc19e972846bd7aaf91901658", "1", "NAME", "v"],
    &["LEASE", "ACQUIRE", "60000", "SHARED", "RESOURCES", "NAME"],
    &["LEASE", "ACQUIRE", "60000", "PERMITS", "1", "CAPACITY", "5", "RESOURCES", "NAME"],
];

fn with_name<'a>(words: &[&'a str], name: &'a str) -> Vec<&'a str> {
    words.iter().map(|word| if *word == "NAME" { name } else { word }).collect()
}

/// Goal: what the box office holds by its own names nobody else takes, pushes or frees, whatever their role, by either
/// port; all may look, and an admin may revoke. On a server without a box office these are names like any other.
/// Method: the names of a real hold, and of what the office does by itself, listed by the engine.
#[test]
fn the_names_of_the_box_office_are_its_own() {
    let site = Site::new();
    let (admin, _) = key(&site, &["--role", "admin"]);
    let (lease, _) = key(&site, &["--role", "lease"]);
    let server = Server::start(&site, &[]);
    let ask = |method: &str, path: &str, key: &str, body: &str| server.ask(method, path, Some(key), body);
    let hall = r#"{"name":"Gala","currency":"EUR","on_sale":true,"seats":[{"id":"A-1","section":"A","row":"A","number":1,
        "price":1}],"areas":[{"id":"floor","capacity":5,"price":1}]}"#;
    let (status, made) = ask("POST", "/v1/events", &admin, hall);
    assert_eq!(status, 201, "{made}");
    let event = made.split("\"event_id\":\"").nth(1).and_then(|rest| rest.split('"').next()).expect("an id").to_owned();
    let hold = r#"{"seats":["A-1"],"areas":[{"id":"floor","qty":1}],"buyer":"b"}"#;
    let (status, held) = ask("POST", &format!("/v1/events/{event}/holds"), &admin, hold);
    assert_eq!(status, 201, "{held}");
    let (mut all, mut some) = (dial(&server), dial(&server));
    assert_eq!(all.ask(&["AUTH", &admin]), "+OK\r\n");
    assert_eq!(some.ask(&["AUTH", &lease]), "+OK\r\n");
    let mut names: Vec<String> = Vec::new();
    wait_until("the office has taken what it takes", || {
        let (_, listed) = ask("GET", "/v1/resources", &admin, "");
        names =
            listed.split("\"name\":\"").skip(1).map(|rest| rest.split('"').next().expect("a name").into()).collect();
        names.len() >= 4
    });
    names.push(format!("box/{event}/seat/A-2"));
    for name in &names {
        for words in TAKES {
            for client in [&mut all, &mut some] {
                let told = client.ask(&with_name(words, name));
                assert_eq!(word(&told), "FORBIDDEN", "{words:?} {name}: {told}");
            }
        }
        for key in [&admin, &lease] {
            let body = format!(r#"{{"resources":["mine","{name}"],"ttl_ms":1000}}"#);
            let (status, told) = ask("POST", "/v1/leases", key, &body);
            assert!(status == 403 && told.contains("\"code\":\"forbidden\""), "{name}: {told}");
        }
        assert!(!some.ask(&["LEASE", "GET", name]).starts_with('-'), "{name} may be looked at");
    }
    assert_eq!(some.ask(&["EXISTS", "mine"]), ":0\r\n", "nothing was changed");
    assert_eq!(some.ask(&["SET", "boxes/1", "v", "NX", "PX", "60000"]), "+OK\r\n", "its own names, and no more");
    let seat = format!("box/{event}/seat/A-1");
    assert_eq!(word(&some.ask(&["LEASE", "REVOKE", &seat, "REASON", "mine"])), "FORBIDDEN");
    assert_eq!(all.ask(&["LEASE", "REVOKE", &seat, "REASON", "an operator may"]), ":1\r\n");
}

/// Goal: see above, without a ledger.
#[test]
fn without_a_box_office_no_name_is_reserved() {
    let site = Site::new();
    let server = Server::start(&site, &["--ledger", "none"]);
    let mut client = dial(&server);
    for (index, name) in ["box/e/seat/A-1", "boxoffice-sweeper"].into_iter().enumerate() {
        let (lease, _) = granted(&client.ask(&["LEASE", "ACQUIRE", "60000", "RESOURCES", name]));
        assert_eq!(client.ask(&["LEASE", "RELEASE", &lease]), ":1\r\n");
        assert_eq!(client.ask(&["SET", name, "v", "NX", "PX", "60000"]), "+OK\r\n");
        assert_eq!(client.ask(&["DEL", name]), ":1\r\n");
        let body = format!(r#"{{"resources":["{name}"],"ttl_ms":1000,"holder":"{index}"}}"#);
        assert_eq!(server.ask("POST", "/v1/leases", None, &body).0, 201);
    }
}
