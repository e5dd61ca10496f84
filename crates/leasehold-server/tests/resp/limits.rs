//! Limits: sizes, times, and what is between them.

use super::client::command;
use super::common::Site;
use super::common::server::Server;
use super::{dial, granted, word};

/// Goal: a ttl is a whole number of milliseconds from 1 to 24 hours, in every command that takes one.
#[test]
fn a_ttl_is_from_one_millisecond_to_a_day() {
    let site = Site::new();
    let server = Server::start(&site, &[]);
    let mut client = dial(&server);
    let (lease, _) = granted(&client.ask(&["LEASE", "ACQUIRE", "600000", "RESOURCES", "held"]));
    for (index, ttl) in ["1", "86400000", "00086400000"].iter().enumerate() {
        granted(&client.ask(&["LEASE", "ACQUIRE", ttl, "RESOURCES", &format!("a{index}")]));
        assert_eq!(client.ask(&["SET", &format!("b{index}"), "v", "NX", "PX", ttl]), "+OK\r\n", "{ttl}");
    }
    assert_eq!(client.ask(&["SET", "day", "v", "NX", "EX", "86400"]), "+OK\r\n");
    assert_eq!(word(&client.ask(&["SET", "c", "v", "NX", "EX", "86401"])), "INVALID");
    let wrong = [
        "0",
        "86400001",
        "1073741824",
        "2147483647",
        "2147483648",
        "4294967296",
        "68719476736",
        "9007199254740991",
        "9007199254740993",
        "9223372036854775807",
        "9223372036854775808",
        "18446744073709551615",
        "18446744073709551616",
        "99999999999999999999999",
        "-1",
        "-9223372036854775808",
        "1.5",
        "1e3",
        "1e300",
        "NaN",
        "inf",
        "",
        " 1",
        "+1",
        "0x10",
        "١",
    ];
    for ttl in wrong {
        for words in [
            &["LEASE", "ACQUIRE", ttl, "RESOURCES", "c"][..],
            &["LEASE", "RENEW", &lease, ttl],
            &["SET", "c", "v", "NX", "PX", ttl],
            &["SET", "c", "v", "NX", "EX", ttl],
            &["LEASE", "ACQUIRE", "1000", "MAXHOLD", ttl, "RESOURCES", "c"],
            &["LEASE", "ACQUIRE", "1000", "DELAY", ttl, "RESOURCES", "c"],
            &["EVALSHA", "e5a322e2634ef59a516e8ea150cb085afafee684", "1", "c", "v", ttl],
        ] {
            // A cap may be longer than a ttl, a delay may be nothing, and a second is longer than a millisecond.
            let fine = match words {
                [.., "MAXHOLD", _, _, _] => ttl.parse::<u64>().is_ok_and(|ms| ms > 0 && ms < 30 * 86_400_001),
                [.., "DELAY", _, _, _] => ttl == "0",
                _ => false,
            };
            if !fine {
                let told = client.ask(words);
                assert_eq!(word(&told), "INVALID", "{words:?}: {told}");
            }
        }
    }
    assert_eq!(client.ask(&["EXISTS", "c"]), ":0\r\n", "nothing was taken");
    assert_eq!(client.ask(&["LEASE", "RELEASE", &lease]), ":1\r\n", "and nothing was ended");
}

/// Goal: names, holders, request ids, arguments and bulks are as long as the contract says, and not longer.
#[test]
fn sizes_end_where_they_say() {
    let site = Site::new();
    let server = Server::start(&site, &[]);
    let mut client = dial(&server);
    let long = |count: usize| "é".repeat(count / 2) + &"a".repeat(count % 2);
    for (name, fits) in [(long(512), true), (long(513), false), (String::new(), false), ("a\u{7f}".into(), false)] {
        let told = client.ask(&["LEASE", "ACQUIRE", "60000", "RESOURCES", &name]);
        assert_eq!(told.starts_with("*3"), fits, "{} bytes: {told}", name.len());
        let told = client.ask(&["SET", &format!("{name}x")[usize::from(fits) * 2..], "v", "NX", "PX", "60000"]);
        assert_eq!(told.starts_with('-'), !(fits || name.is_empty()), "{} bytes: {told}", name.len());
    }
    for (holder, request, fits) in [(256, 128, true), (257, 128, false), (256, 129, false)] {
        let (holder, request) = (long(holder), long(request));
        let words = ["LEASE", "ACQUIRE", "60000", "HOLDER", &holder, "REQUEST", &request, "RESOURCES", "h"];
        assert_eq!(client.ask(&words).starts_with("*3"), fits);
    }
    let names: Vec<String> = (0..1100).map(|index| format!("n{index}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let many = |count: usize| [&["EXISTS"][..], &names[..count]].concat();
    assert_eq!(client.ask(&many(1023)), ":0\r\n", "1,024 arguments");
    let wants = |count: usize| [&["LEASE", "ACQUIRE", "60000", "RESOURCES"][..], &names[..count]].concat();
    assert!(client.ask(&wants(64)).starts_with("*3"));
    assert_eq!(word(&client.ask(&wants(65))), "INVALID");
    assert_eq!(client.ask(&["ECHO", &"x".repeat(65_536)]).len(), 65_536 + 10);
    let mut bad = b"*2\r\n$4\r\nECHO\r\n$2\r\n".to_vec();
    bad.extend_from_slice(&[0xff, 0xfe, b'\r', b'\n']);
    client.send(&bad);
    assert_eq!(client.reply(), b"$2\r\n\xff\xfe\r\n", "bytes are bytes");
    client.send(b"*2\r\n$3\r\nGET\r\n$2\r\n\xff\xfe\r\n");
    assert!(client.reply().starts_with(b"-INVALID "), "a key is text");

    let big = "x".repeat(60_000);
    let over = command(&[&["EXISTS"][..], &[big.as_str(); 20]].concat());
    let inline = [vec![b'a'; 70_000], b"\r\n".to_vec()].concat();
    for (what, bytes) in [
        ("1,025 arguments", command(&many(1024))),
        ("a bulk of 64 KiB and one", b"*2\r\n$4\r\nECHO\r\n$65537\r\n".to_vec()),
        ("a command over 1 MiB", over),
        ("a line without end", inline),
        ("a negative count", b"*-1\r\n".to_vec()),
        ("no count", b"*\r\n".to_vec()),
        ("a count that is none", b"*1\n$4\nPING\n".to_vec()),
        ("an integer for an argument", b"*1\r\n:1\r\n".to_vec()),
        ("a bulk that ends elsewhere", b"*1\r\n$4\r\nPINGXX*1\r\n$4\r\nPING\r\n".to_vec()),
        ("a number beyond all", b"*1\r\n$99999999999999999999\r\n".to_vec()),
    ] {
        let mut client = dial(&server);
        // The server may hang up before it has all of it.
        let _ = std::io::Write::write_all(client.stream.get_mut(), &bytes);
        let mut told = Vec::new();
        let _ = std::io::BufRead::read_until(&mut client.stream, b'\n', &mut told);
        let told = String::from_utf8_lossy(&told);
        assert!(told.is_empty() || told.starts_with("-INVALID protocol error: "), "{what}: {told}");
        let mut rest = Vec::new();
        let _ = std::io::Read::read_to_end(&mut client.stream, &mut rest);
        assert_eq!(rest, b"", "{what}: nothing more, and it hung up");
    }
    assert_eq!(client.ask(&["PING"]), "+PONG\r\n", "others go on");
}
