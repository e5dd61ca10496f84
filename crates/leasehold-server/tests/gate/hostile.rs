//! Requests that try to get around the fence: two readings of one request, tokens that are no numbers, upgrades.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;

use crate::common::{Site, wait_until};
use crate::process::{GateProcess, HttpClient, shown};
use crate::upstream::{Entry, Upstream};

const FENCED: &str = "Host: a\r\nFencing-Token: 1\r\nFencing-Resource: a\r\n";
/// What a second reader might find behind a request. It has no token.
const SMUGGLED: &str = "POST /smuggled HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";

/// Everything that comes back until the gate closes, or until it is silent.
fn read_all(client: &mut HttpClient) -> String {
    let mut text = String::new();
    while let Some(answer) = client.read_answer() {
        text.push_str(&format!("{} ", answer.status));
        if answer.head.to_ascii_lowercase().contains("connection: close") {
            break;
        }
        // The last request of each case is the smuggled one, or an error came before.
        if answer.status == 428 {
            break;
        }
    }
    text
}

/// Goal: no head is read in two ways, and nothing that stands behind a request reaches the service as another one.
/// Method: each head is followed by a request without a token, alone and pipelined behind another request.
#[test]
fn nothing_is_smuggled_behind_a_request() {
    let (site, upstream) = (Site::new(), Upstream::start());
    let gate = GateProcess::start(&site, &upstream.url(), &[]);
    let chunks = "0\r\n\r\n";
    let heads = [
        ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", chunks),
        ("Transfer-Encoding: chunked\r\nContent-Length: 80\r\n", chunks),
        ("Content-Length: 0\r\nContent-Length: 64\r\n", ""),
        ("Content-Length: 64, 0\r\n", ""),
        ("Content-Length: +0\r\n", ""),
        ("Content-Length: -1\r\n", ""),
        ("Content-Length: 0x10\r\n", ""),
        ("Content-Length: 18446744073709551616\r\n", ""),
        ("Content-Length : 64\r\n", ""),
        (" Content-Length: 64\r\n", ""),
        ("X: y\r\n Content-Length: 64\r\n", ""),
        ("Transfer-Encoding: xchunked\r\n", chunks),
        ("Transfer-Encoding: chunked, identity\r\n", chunks),
        ("Transfer-Encoding: identity\r\n", chunks),
        ("Transfer-Encoding: gzip, chunked\r\n", chunks),
        ("Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n", chunks),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", chunks),
        ("Transfer-Encoding : chunked\r\n", chunks),
        ("Transfer-Encoding: \u{b}chunked\r\n", chunks),
        ("Transfer-Encoding: chunked\r\n", "fffffffffffffffff\r\n\r\n"),
        ("Transfer-Encoding: chunked\r\n", "-1\r\n\r\n"),
        ("Transfer-Encoding: chunked\r\n", "0x0\r\n\r\n"),
    ];
    for (at, (lengths, body)) in heads.iter().enumerate() {
        for before in ["", "GET /before HTTP/1.1\r\nHost: a\r\n\r\n"] {
            let path = format!("/first-{at}-{}", before.len());
            let mut client = gate.connect();
            client.write(format!("{before}POST {path} HTTP/1.1\r\n{FENCED}{lengths}\r\n{body}{SMUGGLED}").as_bytes());
            let answers = read_all(&mut client);
            assert!(!answers.is_empty(), "case {at}: no answer");
            let seen = upstream.began();
            assert!(seen.iter().all(|seen| seen.path != "/smuggled"), "case {at}, {lengths:?}: {answers}: {seen:?}");
            // Alone, none of them is good: nothing of it goes on as a whole request.
            let ids: Vec<u64> = seen.iter().filter(|seen| seen.path == path).map(|seen| seen.id).collect();
            let is_whole = upstream.entries().iter().any(|entry| matches!(entry, Entry::Whole(id) if ids.contains(id)));
            assert!(!before.is_empty() || !is_whole, "case {at}, {lengths:?}: {answers}");
        }
    }
    assert_eq!(gate.post("/after", &shown(1, &["a"])).status, 200);
}

/// Goal: a token is a plain number in one header. Signs, spaces inside, zeros in front, lists and other digits are none.
#[test]
fn tokens_are_plain_numbers_in_one_header() {
    let (site, upstream) = (Site::new(), Upstream::start());
    let gate = GateProcess::start(&site, &upstream.url(), &[]);
    let ask = |tokens: &str| {
        let mut client = gate.connect();
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\n{tokens}Fencing-Resource: a\r\nContent-Length: 0\r\n\r\n");
        client.write(head.as_bytes());
        client.read_answer().map_or(0, |answer| answer.status)
    };
    for token in [
        "+5",
        "-5",
        "05",
        "5,5",
        "5, 6",
        "5 6",
        "5;",
        "0x5",
        "5e0",
        "5.0",
        "\u{ff15}",
        "٥",
        "18446744073709551617",
        "5:",
    ] {
        assert_eq!(ask(&format!("Fencing-Token: {token}\r\n")), 400, "{token:?}");
    }
    assert_eq!(ask("Fencing-Token: 5\r\nFencing-Token: 5\r\n"), 400);
    assert_eq!(ask("Fencing-Token: 5\r\nfencing-token: 6\r\n"), 400);
    assert_eq!(ask("Fencing-Token: 5\r\n 6\r\n"), 400);
    assert_eq!(ask("Fencing-Token: 5\r\nConnection: Fencing-Token\r\nFencing-Lease: 5\r\n"), 400);
    for none in ["Fencing-Token:\r\n", "Fencing_Token: 5\r\n", "X-Fencing-Token: 5\r\n"] {
        assert_eq!(ask(none), 428, "{none:?}");
    }
    assert!(upstream.began().is_empty(), "{:?}", upstream.began());
    // Spaces around a value are no part of it.
    assert_eq!(ask("Fencing-Token: \t 7 \t\r\n"), 200);
    assert_eq!(ask("fencing-TOKEN:6\r\n"), 409);
    assert_eq!(upstream.headers_of(0)["fencing-token"], "7");
}

/// Goal: an upgrade to another HTTP is refused, with every method: its requests would go around the fence.
#[test]
fn an_upgrade_does_not_carry_requests_around_the_fence() {
    let (site, upstream) = (Site::new(), Upstream::start());
    let gate = GateProcess::start(&site, &upstream.url(), &[]);
    for upgrade in [
        "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n",
        "Connection: Upgrade\r\nUpgrade: websocket, H2C\r\n",
        "Connection: Upgrade\r\nUpgrade: websocket\r\nUpgrade: h2c\r\n",
        "Connection: Upgrade\r\nUpgrade: HTTP/2.0\r\n",
        "Connection: Upgrade\r\nUpgrade: TLS/1.3\r\n",
    ] {
        for method in ["GET", "HEAD", "OPTIONS", "POST"] {
            let mut client = gate.connect();
            client.write(format!("{method} /chat HTTP/1.1\r\n{FENCED}{upgrade}\r\n").as_bytes());
            assert!(client.read_head().starts_with("HTTP/1.1 501"), "{method} {upgrade:?}");
        }
    }
    // Nor is HTTP/2 spoken from the beginning.
    let mut client = gate.connect();
    client.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    assert!(client.read_answer().is_none_or(|answer| answer.status >= 400));
    assert!(upstream.began().is_empty(), "{:?}", upstream.began());
}

/// Goal: requests that come in one packet are answered in their order, each judged on its own.
#[test]
fn pipelined_requests_are_judged_one_by_one() {
    let (site, upstream) = (Site::new(), Upstream::start());
    let gate = GateProcess::start(&site, &upstream.url(), &[]);
    let mut client = gate.connect();
    let tokens = [3_u64, 2, 3, 4, 3, 4];
    let requests: String = tokens
        .iter()
        .map(|token| {
            format!(
                "POST /{token} HTTP/1.1\r\nHost: a\r\nFencing-Token: {token}\r\nFencing-Resource: a\r\n\
                 Content-Length: 2\r\n\r\nxy"
            )
        })
        .collect();
    client.write(requests.as_bytes());
    let statuses: Vec<u16> = tokens.iter().map(|_| client.read_answer().unwrap().status).collect();
    assert_eq!(statuses, [200, 409, 200, 200, 409, 200]);
    assert_eq!(upstream.judge(), Ok(4));
}

/// Goal: a client of HTTP/1.0 gets an answer that it can read: no chunks, and the end of the connection is its end.
#[test]
fn old_clients_are_served() {
    let (site, upstream) = (Site::new(), Upstream::start());
    let gate = GateProcess::start(&site, &upstream.url(), &[]);
    for path in ["/write", "/echo"] {
        let mut stream = std::net::TcpStream::connect(gate.address).unwrap();
        stream.set_read_timeout(Some(crate::common::PATIENCE)).unwrap();
        let head = format!(
            "POST {path} HTTP/1.0\r\nFencing-Token: 1\r\nFencing-Resource: a\r\nContent-Length: 5\r\n\r\nhello"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.0 200"), "{text}");
        assert!(!head.to_ascii_lowercase().contains("transfer-encoding"), "{text}");
        assert_eq!(body, if path == "/echo" { "hello" } else { "5 bytes" });
    }
    // Chunks are not of HTTP/1.0: nobody can say where such a request ends.
    let mut client = gate.connect();
    client.write(
        format!("POST /first HTTP/1.0\r\n{FENCED}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n{SMUGGLED}").as_bytes(),
    );
    let _ = read_all(&mut client);
    assert!(upstream.began().iter().all(|seen| seen.path != "/smuggled"));
    assert_eq!(upstream.judge(), Ok(upstream.began().len()));
}

/// Goal: whoever asks before it sends is told to go on when the service reads, and not before it is admitted.
#[test]
fn an_admitted_client_is_told_to_send() {
    let (site, upstream) = (Site::new(), Upstream::start());
    let gate = GateProcess::start(&site, &upstream.url(), &[]);
    let mut client = gate.connect();
    let mut headers = shown(1, &["a"]).headers();
    headers.push(("Expect", "100-continue".into()));
    headers.push(("Content-Length", "5".into()));
    client.begin("POST", "/write", &headers);
    assert!(client.read_head().starts_with("HTTP/1.1 100"));
    client.write(b"hello");
    assert_eq!(client.read_answer().unwrap().text(), "5 bytes");
    assert!(upstream.headers_of(0).get("expect").is_none());
}

/// Goal: sizes have limits, and what is just below them passes.
#[test]
fn sizes_of_heads_and_names_are_limited() {
    let (site, upstream) = (Site::new(), Upstream::start());
    let gate = GateProcess::start(&site, &upstream.url(), &[]);
    // 64 names of 512 bytes are the most that a request can show.
    let names: Vec<String> = (0..64).map(|at| format!("{at:0512}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(gate.post("/", &shown(1, &names)).status, 200);
    assert_eq!(gate.metric("leasehold_gate_resources"), 64.0);
    let long = "a".repeat(513);
    assert_eq!(gate.post("/", &shown(1, &[&long])).verdict(), (400, "invalid".into()));
    // Encoded three times as long, decoded just right.
    let encoded = "%61".repeat(512);
    assert_eq!(gate.post("/", &shown(1, &[&encoded])).status, 200);
    for (bytes, status) in [(30_000, 200), (140_000, 431), (1_000_000, 431)] {
        let mut client = gate.connect();
        let head = format!("POST / HTTP/1.1\r\n{FENCED}X: {}\r\nContent-Length: 0\r\n\r\n", "x".repeat(bytes));
        client.try_write(head.as_bytes());
        // A refusal may be lost with the connection: what counts is that it does not pass.
        let answer = client.read_answer().map_or(status, |answer| answer.status);
        assert_eq!(answer, status, "{bytes}");
    }
    assert_eq!(upstream.began().len(), 3);
}

/// A service that gives this answer to each connection, and then closes it.
fn start_raw_upstream(answers: Vec<&'static [u8]>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let (mut seen, mut buffer) = (Vec::new(), [0; 4096]);
            while !seen.ends_with(b"\r\n\r\nx") {
                let read = stream.read(&mut buffer).unwrap();
                seen.extend_from_slice(&buffer[..read]);
            }
            stream.write_all(answer).unwrap();
        }
    });
    url
}

/// Goal: an answer that breaks off is not passed on as a whole one, garbage is an unknown outcome, and after each the
/// request has left.
#[test]
fn broken_answers_are_not_whole_ones() {
    let answers: Vec<&'static [u8]> = vec![
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfive\r\nhello\r\n",
        b"HTTP/1.1 200",
        b"",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    ];
    let count = answers.len();
    let site = Site::new();
    let gate = GateProcess::start(&site, &start_raw_upstream(answers), &[]);
    for at in 0..count {
        let answer = gate.connect().read_post(at as u64 + 1);
        match &answer {
            None => assert!(at < 3, "case {at}"),
            Some(answer) => assert_eq!(answer.verdict(), (504, "unknown_outcome".into()), "case {at}: {answer:?}"),
        }
        wait_until("it has left", || gate.metric("leasehold_gate_flying") == 0.0);
    }
    assert_eq!(gate.metric("leasehold_gate_unanswered_total"), count as f64);
}

/// Goal: an answer with two lengths has one when it goes on, and one that ends with its connection comes whole.
#[test]
fn lengths_of_answers_are_made_one() {
    let site = Site::new();
    let url = start_raw_upstream(vec![
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\nhello",
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    ]);
    let gate = GateProcess::start(&site, &url, &[]);
    for at in 0..3 {
        let answer = gate.connect().read_post(at + 1).unwrap();
        assert_eq!((answer.status, answer.text()), (200, "hello".into()), "case {at}: {answer:?}");
        let head = answer.head.to_ascii_lowercase();
        assert!(!(head.contains("content-length") && head.contains("transfer-encoding")), "{head}");
    }
}

impl HttpClient {
    /// One request; none if its answer broke off.
    fn read_post(&mut self, token: u64) -> Option<crate::process::HttpAnswer> {
        self.send("POST", "/", &shown(token, &["a"]).headers(), b"x");
        self.read_answer()
    }
}
