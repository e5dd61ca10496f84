//! What each command answers, byte by byte, in both versions.

use super::common::Site;
use super::common::server::Server;
use super::{dial, granted, lines, word};

/// Goal: every small answer is what the protocol and Redis say, in either version and either case of letters.
#[test]
fn answers_are_spoken_byte_by_byte() {
    let site = Site::new();
    let server = Server::start(&site, &[]);
    let table: &[(&str, &str, &str)] = &[
        ("ping", "+PONG\r\n", "+PONG\r\n"),
        ("PiNg hello", "$5\r\nhello\r\n", "$5\r\nhello\r\n"),
        ("ECHO a", "$1\r\na\r\n", "$1\r\na\r\n"),
        ("SELECT 0", "+OK\r\n", "+OK\r\n"),
        ("AUTH anything", "+OK\r\n", "+OK\r\n"),
        ("CLIENT GETNAME", "$-1\r\n", "_\r\n"),
        ("CLIENT SETNAME ada", "+OK\r\n", "+OK\r\n"),
        ("client getname", "$3\r\nada\r\n", "$3\r\nada\r\n"),
        ("CLIENT SETNAME", "+OK\r\n", "+OK\r\n"),
        ("CLIENT SETINFO LIB-NAME x", "+OK\r\n", "+OK\r\n"),
        ("COMMAND COUNT", ":24\r\n", ":24\r\n"),
        (
            "COMMAND INFO GET nobody",
            "*2\r\n*6\r\n$3\r\nget\r\n:2\r\n*0\r\n:1\r\n:1\r\n:1\r\n$-1\r\n",
            "*2\r\n*6\r\n$3\r\nget\r\n:2\r\n*0\r\n:1\r\n:1\r\n:1\r\n_\r\n",
        ),
        ("COMMAND DOCS", "*0\r\n", "%0\r\n"),
        ("SET k v NX PX 60000", "+OK\r\n", "+OK\r\n"),
        ("set k w nx px 60000", "$-1\r\n", "_\r\n"),
        ("SET k w EX 60 NX", "$-1\r\n", "_\r\n"),
        ("GET k", "$1\r\nv\r\n", "$1\r\nv\r\n"),
        ("EXISTS k k nobody", ":2\r\n", ":2\r\n"),
        ("TTL k", ":60\r\n", ":60\r\n"),
        ("TTL nobody", ":-2\r\n", ":-2\r\n"),
        ("PTTL nobody", ":-2\r\n", ":-2\r\n"),
        ("GET nobody", "$-1\r\n", "_\r\n"),
        ("PEXPIRE k 90000", ":1\r\n", ":1\r\n"),
        ("TTL k", ":90\r\n", ":90\r\n"),
        ("PEXPIRE nobody 90000", ":0\r\n", ":0\r\n"),
        ("EVALSHA c3f8721cbb97f72bc19e972846bd7aaf91901658 1 k wrong", ":0\r\n", ":0\r\n"),
        ("EVALSHA C3F8721CBB97F72BC19E972846BD7AAF91901658 1 k v", ":1\r\n", ":1\r\n"),
        ("EVALSHA e5a322e2634ef59a516e8ea150cb085afafee684 2 k l v 60000", ":2\r\n", ":2\r\n"),
        ("EVALSHA e5a322e2634ef59a516e8ea150cb085afafee684 2 l m v 60000", ":0\r\n", ":0\r\n"),
        ("DEL k l nobody", ":2\r\n", ":2\r\n"),
        ("PEXPIRE k -1", ":0\r\n", ":0\r\n"),
        ("SCRIPT EXISTS c3f8721cbb97f72bc19e972846bd7aaf91901658 0", "*2\r\n:1\r\n:0\r\n", "*2\r\n:1\r\n:0\r\n"),
        ("LEASE GET nobody", "$-1\r\n", "_\r\n"),
        ("LEASE LIST PREFIX nobody", "*0\r\n", "*0\r\n"),
        ("lease list limit 5 after zzz", "*0\r\n", "*0\r\n"),
        ("LEASE REVOKE nobody REASON none", ":0\r\n", ":0\r\n"),
        (
            "LEASE PROMISES",
            "*12\r\n$6\r\nengine\r\n$8\r\nembedded\r\n$7\r\ndurable\r\n:1\r\n$7\r\nfencing\r\n:1\r\n$4\r\nfair\r\n:1\r\n\
             $11\r\nnever_early\r\n:1\r\n$16\r\noutlives_process\r\n:1\r\n",
            "%6\r\n$6\r\nengine\r\n$8\r\nembedded\r\n$7\r\ndurable\r\n#t\r\n$7\r\nfencing\r\n#t\r\n$4\r\nfair\r\n#t\r\n\
             $11\r\nnever_early\r\n#t\r\n$16\r\noutlives_process\r\n#t\r\n",
        ),
        ("QUIT", "+OK\r\n", "+OK\r\n"),
    ];
    for three in [false, true] {
        let mut client = dial(&server);
        if three {
            assert!(client.ask(&["HELLO", "3"]).starts_with("%7\r\n$6\r\nserver\r\n$9\r\nleasehold\r\n"));
        }
        for (typed, two_says, three_says) in table {
            // A name is taken away by an empty one, which a typed line cannot say.
            let words: Vec<&str> = typed.split(' ').collect();
            let words = if *typed == "CLIENT SETNAME" { vec!["CLIENT", "SETNAME", ""] } else { words };
            assert_eq!(client.ask(&words), if three { *three_says } else { *two_says }, "{typed}, version 3: {three}");
        }
        assert_eq!(client.reply(), b"", "it hangs up after QUIT");
    }
}

/// Goal: "nobody holds it" is never said of a name that nobody can hold.
#[test]
fn a_name_that_cannot_be_is_not_free() {
    let site = Site::new();
    let server = Server::start(&site, &[]);
    let mut client = dial(&server);
    let long = "n".repeat(513);
    for name in ["", "a\nb", &long] {
        for command in [&["GET"][..], &["EXISTS", "fine"], &["PTTL"], &["TTL"], &["LEASE", "GET"], &["DEL"]] {
            let told = client.ask(&[command, &[name]].concat());
            assert_eq!(word(&told), "INVALID", "{command:?} {name:?}: {told}");
        }
    }
}

/// Goal: a grant has three elements and a renewal is a number, cap or no cap; only who asks for more with FULL gets it.
#[test]
fn the_form_of_an_answer_depends_on_the_question_alone() {
    let site = Site::new();
    let server = Server::start(&site, &[]);
    let mut client = dial(&server);
    let table: &[(&[&str], bool, &str, &str)] = &[
        (&[], false, "*3\r\n", ":"),
        (&["MAXHOLD", "90000"], false, "*3\r\n", ":"),
        (&[], true, "*4\r\n", "*2\r\n:"),
        (&["MAXHOLD", "90000"], true, "*4\r\n", "*2\r\n:"),
    ];
    for (cap, full, granted_as, renewed_as) in table {
        let full: &[&str] = if *full { &["full"] } else { &[] };
        let lease = client.ask(&[&["LEASE", "ACQUIRE", "60000"], *cap, full, &["RESOURCES", "a"]].concat());
        assert!(lease.starts_with(granted_as), "{cap:?} {full:?}: {lease}");
        let id = lines(&lease)[2].to_owned();
        for ttl in [&[][..], &["60000"]] {
            let renewed = client.ask(&[&["LEASE", "RENEW", &id], ttl, full].concat());
            assert!(renewed.starts_with(renewed_as), "{cap:?} {full:?}: {renewed}");
            let capless = !full.is_empty() && cap.is_empty();
            assert_eq!(renewed.ends_with("$-1\r\n"), capless, "{cap:?} {full:?}: {renewed}");
        }
        assert_eq!(client.ask(&["LEASE", "RELEASE", &id]), ":1\r\n");
    }
    for wrong in [&["LEASE", "RENEW", "1-0", "60000", "60000"][..], &["LEASE", "RENEW", "1-0", "FULL", "60000"]] {
        assert_eq!(word(&client.ask(wrong)), "INVALID", "{wrong:?}");
    }
}

/// Goal: each error begins with the word that the contract says, and nothing was done.
#[test]
fn errors_begin_with_their_word() {
    let site = Site::new();
    let server = Server::start(&site, &[]);
    let mut client = dial(&server);
    let (lease, _) = granted(&client.ask(&["LEASE", "ACQUIRE", "60000", "HOLDER", "ada", "RESOURCES", "a"]));
    let (short, _) = granted(&client.ask(&["LEASE", "ACQUIRE", "1", "RESOURCES", "short"]));
    super::common::wait_until("it lapses", || client.ask(&["EXISTS", "short"]) == ":0\r\n");
    client.ask(&["LEASE", "ACQUIRE", "60000", "REQUEST", "r", "RESOURCES", "b"]);
    let unknown = format!("{}-{}", lease.split('-').next().expect("a token"), "0".repeat(32));
    let table: &[(&str, &[&str])] = &[
        ("HELD", &["LEASE", "ACQUIRE", "1000", "RESOURCES", "a"]),
        ("HELD", &["LEASE", "ACQUIRE", "1000", "WAIT", "1", "RESOURCES", "a"]),
        ("STALE", &["LEASE", "RENEW", &short]),
        ("STALE", &["LEASE", "RELEASE", &short]),
        ("NOTHELD", &["LEASE", "RENEW", &unknown]),
        ("NOTHELD", &["LEASE", "RELEASE", &unknown]),
        ("NOTHELD", &["LEASE", "RELEASE", "nonsense"]),
        ("MISMATCH", &["LEASE", "ACQUIRE", "60000", "REQUEST", "r", "RESOURCES", "c"]),
        ("NOSCRIPT", &["EVALSHA", "0000000000000000000000000000000000000000", "0"]),
        ("NOPROTO", &["HELLO", "4"]),
        ("INVALID", &["EVAL", "return 1", "0"]),
        ("INVALID", &["SCRIPT", "LOAD", "return 1"]),
        ("INVALID", &["SCRIPT", "FLUSH"]),
        ("INVALID", &["FLUSHALL"]),
        ("INVALID", &["A-NAME-THAT-IS-FAR-TOO-LONG-FOR-A-COMMAND"]),
        ("INVALID", &[""]),
        ("INVALID", &["LEASE"]),
        ("INVALID", &["LEASE", "NONSENSE"]),
        ("INVALID", &["LEASE", "ACQUIRE"]),
        ("INVALID", &["LEASE", "ACQUIRE", "1000"]),
        ("INVALID", &["LEASE", "ACQUIRE", "1000", "RESOURCES"]),
        ("INVALID", &["LEASE", "ACQUIRE", "1000", "SHARED", "PERMITS", "1", "CAPACITY", "2", "RESOURCES", "d"]),
        ("INVALID", &["LEASE", "ACQUIRE", "1000", "PERMITS", "1", "RESOURCES", "d"]),
        ("INVALID", &["LEASE", "ACQUIRE", "1000", "PERMITS", "3", "CAPACITY", "2", "RESOURCES", "d"]),
        ("INVALID", &["LEASE", "ACQUIRE", "1000", "PERMITS", "1", "CAPACITY", "4294967296", "RESOURCES", "d"]),
        ("INVALID", &["LEASE", "ACQUIRE", "1000", "EACH", "d"]),
        ("INVALID", &["LEASE", "ACQUIRE", "1000", "EACH", "d", "Y"]),
        ("INVALID", &["LEASE", "ACQUIRE", "1000", "WAIT", "3600001", "RESOURCES", "d"]),
        ("INVALID", &["LEASE", "ACQUIRE", "1000", "RESOURCES", "d", "d"]),
        ("INVALID", &["LEASE", "RENEW"]),
        ("INVALID", &["LEASE", "RENEW", &lease, "1000", "x"]),
        ("INVALID", &["LEASE", "REVOKE", "a"]),
        ("INVALID", &["LEASE", "REVOKE", "a", "BECAUSE", "x"]),
        ("INVALID", &["LEASE", "REVOKE", "a", "REASON", ""]),
        ("INVALID", &["LEASE", "WATCH", "SINCE", "nonsense"]),
        ("INVALID", &["LEASE", "WATCH", "PREFIX"]),
        ("INVALID", &["LEASE", "PROMISES", "x"]),
        ("INVALID", &["LEASE", "ENGINE", "x"]),
        ("INVALID", &["LEASE", "FLOOR", "1", "2"]),
        ("INVALID", &["LEASE", "FLOOR", ""]),
        ("INVALID", &["LEASE", "FLOOR", "x"]),
        ("INVALID", &["LEASE", "FLOOR", "-1"]),
        ("INVALID", &["LEASE", "FLOOR", "0"]),
        ("INVALID", &["LEASE", "FLOOR", "9223372036854775807"]),
        ("INVALID", &["LEASE", "FLOOR", "9223372036854775808"]),
        ("INVALID", &["LEASE", "FLOOR", "99999999999999999999"]),
        ("INVALID", &["LEASE", "LIST", "LIMIT"]),
        ("INVALID", &["LEASE", "LIST", "LIMIT", "x"]),
        ("INVALID", &["SET", "d", "v"]),
        ("INVALID", &["SET", "d", "v", "NX"]),
        ("INVALID", &["SET", "d", "v", "PX", "1000"]),
        ("INVALID", &["SET", "d", "v", "NX", "PX"]),
        ("INVALID", &["SET", "d", "v", "NX", "PX", "1", "EX", "1"]),
        ("INVALID", &["SET", "d", "v", "NX", "GET", "PX", "1"]),
        ("INVALID", &["SET", "d", "v", "XX", "PX", "1000"]),
        ("INVALID", &["DEL", "a"]),
        ("INVALID", &["PEXPIRE", "a", "1000"]),
        ("INVALID", &["PEXPIRE", "a", "soon"]),
        ("INVALID", &["GET"]),
        ("INVALID", &["GET", "a", "b"]),
        ("INVALID", &["SELECT", "1"]),
        ("INVALID", &["ECHO", "a", "b"]),
        ("INVALID", &["PING", "a", "b"]),
        ("INVALID", &["HELLO", "3", "NONSENSE"]),
        ("INVALID", &["HELLO", "3", "AUTH", "default"]),
        ("INVALID", &["CLIENT", "SETNAME", "two words"]),
        ("INVALID", &["CLIENT", "KILL", "1"]),
    ];
    for (expected, words) in table {
        let told = client.ask(words);
        assert_eq!(word(&told), *expected, "{words:?}: {told}");
    }
    assert_eq!(client.ask(&["EXISTS", "d", "c"]), ":0\r\n");
    assert_eq!(client.ask(&["GET", "a"]), "$9\r\n(a lease)\r\n", "what SET did not make has a marker");
    assert_eq!(client.ask(&["LEASE", "RELEASE", &lease]), ":1\r\n");
    assert_eq!(client.ask(&["LEASE", "RELEASE", &lease]), ":0\r\n");
    assert_eq!(word(&client.ask(&["LEASE", "RENEW", &lease])), "STALE");
}

/// Goal: a grant, a listing and a refusal have the fields of the contract, and a holder cannot leave its quotes.
#[test]
fn grants_and_refusals_have_their_fields() {
    let site = Site::new();
    let server = Server::start(&site, &[]);
    let mut client = dial(&server);
    let holder = "a\"b\\c é";
    let reply = client.ask(&[
        "LEASE", "ACQUIRE", "60000", "MAXHOLD", "90000", "FULL", "HOLDER", holder, "EACH", "x", "X", "s", "S", "p",
        "2/5",
    ]);
    let (lease, token) = granted(&reply);
    assert!(lease.starts_with(&format!("{token}-")), "{lease}");
    let fields = lines(&reply);
    assert_eq!((fields[0], fields[4], fields[5]), ("*4", ":60000", ":90000"));
    let refused = client.ask(&["LEASE", "ACQUIRE", "1000", "RESOURCES", "x"]);
    assert!(
        refused.starts_with("-HELD holder=\"a\\\"b\\\\c é\" remaining_ms=") && refused.contains(" queue=0"),
        "{refused}"
    );
    client.ask(&["HELLO", "3"]);
    let seen = client.ask(&["LEASE", "GET", "p"]);
    let begins = "%8\r\n$4\r\nname\r\n$1\r\np\r\n$4\r\nmode\r\n$7\r\npermits\r\n$12\r\npermits_used\r\n:2\r\n\
                  $8\r\ncapacity\r\n:5\r\n$7\r\nholders\r\n*1\r\n%4\r\n$6\r\nholder\r\n$8\r\na\"b\\c é\r\n$5\r\ntoken\r\n";
    assert!(seen.starts_with(begins), "{seen}");
    assert!(seen.ends_with("$7\r\nwaiters\r\n*0\r\n$9\r\nqueue_len\r\n:0\r\n"), "{seen}");
    assert!(!seen.contains(&lease), "never a lease id");
    let listed = client.ask(&["LEASE", "LIST"]);
    assert!(listed.starts_with("*3\r\n%8\r\n$4\r\nname\r\n$1\r\np\r\n"), "in order of name: {listed}");
    let renewed = client.ask(&["LEASE", "RENEW", &lease, "80000", "FULL"]);
    assert!(renewed.starts_with("*2\r\n:80000\r\n:"), "{renewed}");
    assert_eq!(client.ask(&["LEASE", "REVOKE", "s", "REASON", "over"]), ":1\r\n");
    assert_eq!(word(&client.ask(&["LEASE", "RELEASE", &lease])), "STALE");
    for wrong in ["a\rb", "a\nb", "a\0b"] {
        let told = client.ask(&["LEASE", "ACQUIRE", "1000", "HOLDER", wrong, "RESOURCES", "y"]);
        assert_eq!(word(&told), "INVALID", "{wrong:?}");
    }
    assert_eq!(word(&client.ask(&["CLIENT", "a\r\nSET x y\r\n"])), "INVALID", "what is repeated stays on its line");
}
