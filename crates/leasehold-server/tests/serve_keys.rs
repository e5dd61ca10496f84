//! API keys on the real server: made and revoked beside it, in force within a second.

mod common;

use common::server::{Server, key};
use common::{Site, wait_until};

const KEYS: &str = "data/keys.toml";

/// Goal: the first key closes an open server to everybody who is connected, and lets its bearer in.
#[test]
fn the_first_key_closes_an_open_server() {
    let site = Site::new();
    let server = Server::start(&site, &[]);
    let mut anybody = server.connect();
    assert_eq!(anybody.ask(&["SET", "a", "1", "NX", "PX", "60000"]), "OK");
    let (text, _) = key(&site, &["--role", "lease"]);
    wait_until("everybody is out", || anybody.ask(&["EXISTS", "a"]).starts_with("-NOAUTH"));
    assert_eq!(server.ask("GET", "/v1/resources/a", None, "").0, 401);
    let mut bearer = server.connect();
    assert!(bearer.ask(&["AUTH", "lh_00000000_wrong"]).starts_with('-'));
    assert_eq!(bearer.ask(&["AUTH", &text]), "OK");
    assert_eq!(bearer.ask(&["EXISTS", "a"]), "1");
    assert_eq!(server.ask("GET", "/v1/resources/a", Some(&text), "").0, 200);
    assert!(server.said().contains("keys changed"));
}

/// Goal: a revoked key loses its rights on connections that are open, in the queue too, and the others keep theirs.
#[test]
fn a_revoked_key_is_out_at_once_everywhere() {
    let site = Site::new();
    let (doomed, id) = key(&site, &["--role", "lease"]);
    let (other, _) = key(&site, &["--role", "admin"]);
    let server = Server::start(&site, &[]);
    let (mut first, mut second) = (server.connect(), server.connect());
    assert_eq!(first.ask(&["AUTH", &doomed]), "OK");
    assert_eq!(second.ask(&["AUTH", &other]), "OK");
    assert!(second.ask(&["LEASE", "ACQUIRE", "60000", "RESOURCES", "seat"]).contains(' '));
    let mut third = server.connect();
    assert_eq!(third.ask(&["AUTH", &doomed]), "OK");
    third.send(&["LEASE", "ACQUIRE", "60000", "WAIT", "60000", "RESOURCES", "seat"]);
    let waits = std::thread::scope(|scope| {
        let claim = r#"{"resources":["seat"],"ttl_ms":60000,"wait_ms":60000}"#;
        let waits = scope.spawn(|| server.ask("POST", "/v1/leases", Some(&doomed), claim));
        wait_until("it waits in line", || second.ask(&["LEASE", "GET", "seat"]).contains("queue_len 2"));
        let data = site.path("data");
        site.ask(&["key", "revoke", &id, "--data", data.to_str().expect("UTF-8")]).with_code(0);
        wait_until("it is out", || first.ask(&["EXISTS", "seat"]).starts_with("-NOAUTH"));
        waits.join().expect("it was answered")
    });
    assert_eq!(waits.0, 401, "{}", waits.1);
    assert_eq!(third.reply(), "", "who waits is cut off");
    assert!(second.ask(&["LEASE", "GET", "seat"]).contains("queue_len 0"), "both left the queue");
    assert_eq!(server.ask("GET", "/v1/resources/seat", Some(&doomed), "").0, 401);
}

/// Goal: a list that is damaged while the server runs changes nothing but the log; a start refuses it with code 8.
#[test]
fn a_damaged_list_keeps_the_old_keys_and_refuses_a_start() {
    let site = Site::new();
    let (text, _) = key(&site, &["--role", "lease"]);
    let server = Server::start(&site, &[]);
    let good = std::fs::read(site.path(KEYS)).expect("the list");
    // Put in place at once: a list that is written over is empty for a moment, and an empty list takes all keys away.
    std::fs::write(site.path("damaged"), "[[key]]\nid = \"x\"\n").expect("written");
    std::fs::rename(site.path("damaged"), site.path(KEYS)).expect("it is ours to damage");
    server.wait_for("the keys stay as they were");
    let mut client = server.connect();
    assert_eq!(client.ask(&["AUTH", &text]), "OK");
    assert!(server.connect().ask(&["EXISTS", "a"]).starts_with("-NOAUTH"));
    server.stop().with_code(0);
    let answer = site.ask(&["serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0", "--data", "data"]).with_code(8);
    answer.says_one_sentence();
    assert!(answer.err.contains("keys.toml") && answer.err.contains("line 1"), "{answer:?}");
    std::fs::write(site.path(KEYS), good).expect("put back");
    let server = Server::start(&site, &[]);
    std::fs::remove_file(site.path(KEYS)).expect("removed");
    server.wait_for("the last key is gone");
    assert!(server.connect().ask(&["EXISTS", "a"]).starts_with("-NOAUTH"), "a list that is gone opens nothing");
}

/// Goal: roles and prefixes of a key hold on both ports, and a rate slows down.
#[test]
fn a_key_does_what_it_may_and_no_more() {
    let site = Site::new();
    let (lease, _) = key(&site, &["--role", "lease", "--prefix", "a/", "--prefix", "b/"]);
    let (read, _) = key(&site, &["--role", "read"]);
    let (slow, _) = key(&site, &["--role", "read", "--rate", "1"]);
    let server = Server::start(&site, &[]);
    let mut client = server.connect();
    assert_eq!(client.ask(&["AUTH", &lease]), "OK");
    assert_eq!(client.ask(&["SET", "a/1", "x", "NX", "PX", "60000"]), "OK");
    assert!(client.ask(&["SET", "c/1", "x", "NX", "PX", "60000"]).starts_with("-FORBIDDEN"));
    assert!(client.ask(&["LEASE", "ACQUIRE", "60000", "RESOURCES", "b/1", "c/1"]).starts_with("-FORBIDDEN"));
    assert!(client.ask(&["LEASE", "REVOKE", "a/1", "REASON", "x"]).starts_with("-FORBIDDEN"));
    let claim = |name: &str| format!(r#"{{"resources":["{name}"],"ttl_ms":60000}}"#);
    assert_eq!(server.ask("POST", "/v1/leases", Some(&lease), &claim("b/2")).0, 201);
    assert_eq!(server.ask("POST", "/v1/leases", Some(&lease), &claim("c/2")).0, 403);
    assert_eq!(server.ask("POST", "/v1/leases", Some(&read), &claim("b/3")).0, 403);
    let (status, seen) = server.ask("GET", "/v1/resources", Some(&read), "");
    assert!(status == 200 && seen.contains("a/1") && seen.contains("b/2"), "{seen}");
    let mut slowed = 0;
    wait_until("it is slowed down", || {
        slowed += u32::from(server.ask("GET", "/v1/resources", Some(&slow), "").0 == 429);
        slowed > 0
    });
}

/// Goal: who tries wrong keys on and on is slowed down, and a right key still gets in from the same address.
#[test]
fn wrong_keys_are_slowed_down_and_right_ones_are_not() {
    let site = Site::new();
    let (text, _) = key(&site, &["--role", "read"]);
    let server = Server::start(&site, &[]);
    let wrong = |_| server.ask("GET", "/v1/resources", Some("lh_00000000_guess"), "").0;
    let answers: Vec<u16> = (0..30).map(wrong).collect();
    assert_eq!(answers[0], 401);
    assert!(answers.contains(&429), "{answers:?}");
    assert_eq!(server.ask("GET", "/v1/resources", Some(&text), "").0, 200);
    let lines = server.said().matches("wrong key").count();
    assert!((1..30).contains(&lines), "written down {lines} times");
    assert!(!server.said().contains("guess"), "what was shown is not");
}

/// Goal: keys are listed without secrets, and bad requests about keys get one sentence and their code.
#[test]
fn the_commands_say_what_is_wrong() {
    let site = Site::new();
    let (text, id) = key(&site, &["--role", "lease,read", "--role", "read", "--note", "shop", "--rate", "5"]);
    let listed = site.ask(&["key", "ls", "--json", "--data", "data"]).with_code(0);
    let json = listed.json();
    assert_eq!(
        (json["id"].as_str(), json["note"].as_str(), json["rate"].as_u64()),
        (Some(&*id), Some("shop"), Some(5))
    );
    assert_eq!(json["roles"], serde_json::json!(["read", "lease"]));
    let table = site.ask(&["key", "ls", "--data", "data"]).with_code(0);
    let secret = text.rsplit('_').next().expect("the secret");
    let stored = std::fs::read_to_string(site.path(KEYS)).expect("the list");
    for shown in [&listed.out, &table.out, &stored] {
        assert!(shown.contains(&id) && !shown.contains(secret));
    }
    let long = "p".repeat(513);
    let bad: &[(&[&str], i32, &str)] = &[
        (&["key", "create", "--role", "king", "--data", "data"], 2, "the roles are read, lease"),
        (&["key", "create", "--role", "read", "--prefix", "", "--data", "data"], 2, "not empty"),
        (&["key", "create", "--role", "read", "--prefix", &long, "--data", "data"], 2, "512"),
        (&["key", "create", "--role", "read", "--note", "a\nb", "--data", "data"], 2, "one line"),
        (&["key", "create", "--role", "read", "--rate", "0", "--data", "data"], 2, "--rate"),
        (&["key", "revoke", "00000000", "--data", "data"], 2, "no key 00000000"),
        (&["key", "ls", "--url", "embedded:data"], 2, "--data DIR, not --url"),
        (&["key", "revoke", "nonsense!", "--data", "data"], 2, "no id"),
        (&["key", "create", "--role", "read", "--data", "/proc/nothing"], 4, "/proc/nothing"),
    ];
    for (arguments, code, part) in bad {
        let answer = site.ask(arguments).with_code(*code);
        answer.says_one_sentence();
        assert!(answer.err.contains(part), "{answer:?}");
    }
    assert_eq!(std::fs::read_to_string(site.path(KEYS)).expect("the list"), stored, "and nothing changed");
    site.ask(&["key", "revoke", &text, "--data", "data"]).with_code(0);
    assert!(site.ask(&["key", "ls", "--data", "data"]).with_code(0).err.contains("there are no keys"));
}

/// Goal: what a key may see of recent losses is not pushed out by those it may not see.
#[test]
fn recent_losses_of_others_hide_none_of_mine() {
    let site = Site::new();
    let (admin, _) = key(&site, &["--role", "admin"]);
    let (mine, _) = key(&site, &["--role", "read", "--prefix", "mine/"]);
    let server = Server::start(&site, &[]);
    let mut client = server.connect();
    assert_eq!(client.ask(&["AUTH", &admin]), "OK");
    let mut lose = |name: &str| {
        assert_eq!(client.ask(&["SET", name, "v", "NX", "PX", "60000"]), "OK");
        assert_eq!(client.ask(&["LEASE", "REVOKE", name, "REASON", "test"]), "1");
    };
    lose("mine/seat");
    (0..120).for_each(|n| lose(&format!("others/{n}")));
    let (status, text) = server.ask("GET", "/v1/status", Some(&mine), "");
    assert_eq!(status, 200, "{text}");
    assert!(text.contains("mine/seat") && !text.contains("others/"), "{text}");
}
