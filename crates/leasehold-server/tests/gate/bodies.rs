//! Bodies: they stream, and what did not come whole is never passed on as whole.

use std::thread;

use crate::common::Site;
use crate::process::{GateProcess, shown};
use crate::upstream::{Entry, Upstream};

/// Goal: a large body goes both ways unchanged, in chunks and with a length.
#[test]
fn large_bodies_pass_unchanged() {
    let (site, upstream) = (Site::new(), Upstream::start());
    let gate = GateProcess::start(&site, &upstream.url(), &[]);
    let body: Vec<u8> = (0..4_000_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut client = gate.connect();
    let address = gate.address;
    for token in [1, 2] {
        // Written beside the reading: neither end keeps all of it.
        let mut client = crate::process::HttpClient::connect(address);
        let mut reader = client.second_handle();
        let answer = thread::scope(|scope| {
            let reading = scope.spawn(|| reader.read_answer().expect("an answer"));
            client.send("POST", "/echo", &shown(token, &["a"]).headers(), &body);
            reading.join().unwrap()
        });
        assert_eq!(answer.status, 200);
        assert!(answer.body == body, "{} bytes came back", answer.body.len());
    }
    assert_eq!(client.post("/", &shown(3, &["a"]), b"").status, 200);
    assert_eq!(upstream.judge(), Ok(3));
}

/// Goal: bytes are passed on as they come: the first part of the answer is here before the rest of the request is sent.
#[test]
fn bodies_stream_in_both_directions() {
    let (site, upstream) = (Site::new(), Upstream::start());
    let gate = GateProcess::start(&site, &upstream.url(), &[]);
    let mut client = gate.connect();
    let mut headers = shown(1, &["a"]).headers();
    headers.push(("Transfer-Encoding", "chunked".into()));
    client.begin("POST", "/echo", &headers);
    client.write(b"5\r\nhello\r\n");
    assert!(client.read_head().starts_with("HTTP/1.1 200"));
    assert_eq!(client.read_chunk().unwrap(), b"hello");
    client.write(b"3\r\nyou\r\n");
    assert_eq!(client.read_chunk().unwrap(), b"you");
    client.write(b"0\r\n\r\n");
    assert_eq!(client.read_chunk().unwrap(), b"");
    // The connection is good for another request.
    assert_eq!(client.post("/", &shown(1, &["a"]), b"xy").text(), "2 bytes");
}

/// Goal: a request whose client goes away in the middle of its body is never taken for a whole one, and a newer request
/// goes on after it.
#[test]
fn a_body_that_breaks_off_is_not_passed_on_as_whole() {
    let (site, upstream) = (Site::new(), Upstream::start());
    let gate = GateProcess::start(&site, &upstream.url(), &[]);
    let framings = [("Transfer-Encoding", "chunked", "5\r\nhello\r\n"), ("Content-Length", "10", "hello")];
    for (at, (name, value, part)) in framings.into_iter().cycle().take(10).enumerate() {
        let (token, id) = (at as u64 + 1, at as u64 * 2 + 1);
        let mut client = gate.connect();
        let mut headers = shown(token, &["a"]).headers();
        headers.push((name, value.into()));
        client.begin("POST", "/write", &headers);
        client.write(part.as_bytes());
        upstream.wait_for_began(id as usize);
        drop(client);
        upstream.wait_for("the upstream sees the break", |entries| {
            entries.contains(&Entry::Broken(id)) || entries.contains(&Entry::Gone(id))
        });
        assert!(!upstream.entries().contains(&Entry::Whole(id)), "{name}: {:?}", upstream.entries());
        assert_eq!(gate.post("/next", &shown(token, &["a"])).status, 200);
    }
    assert_eq!(gate.metric("leasehold_gate_flying"), 0.0);
    assert_eq!(upstream.judge(), Ok(20));
}

/// Goal: a client that hangs up after a whole request does not let a newer one overtake it: the upstream still works on
/// it.
#[test]
fn a_request_stays_until_it_is_answered_even_if_its_client_is_gone() {
    let (site, upstream) = (Site::new(), Upstream::start());
    let gate = GateProcess::start(&site, &upstream.url(), &["--drain", "1500ms"]);
    let mut client = gate.connect();
    client.send("POST", "/hold/work", &shown(1, &["a"]).headers(), b"x");
    upstream.wait_for("the request is whole", |entries| entries.contains(&Entry::Whole(1)));
    drop(client);
    assert_eq!(gate.post("/newer", &shown(2, &["a"])).verdict(), (503, "fence_busy".into()));
    assert_eq!(gate.metric("leasehold_gate_flying"), 1.0);
    upstream.release("work");
    assert_eq!(gate.post("/newer", &shown(2, &["a"])).status, 200);
    assert_eq!(upstream.judge(), Ok(2));
    assert!(!upstream.entries().contains(&Entry::Gone(1)), "{:?}", upstream.entries());
}

/// Goal: an upstream that answers before it read the whole request gets nothing more of it.
#[test]
fn the_rest_of_a_request_that_was_answered_early_is_not_sent() {
    let (site, upstream) = (Site::new(), Upstream::start());
    let gate = GateProcess::start(&site, &upstream.url(), &[]);
    let mut client = gate.connect();
    let mut headers = shown(1, &["a"]).headers();
    headers.push(("Content-Length", "1000000".into()));
    client.begin("POST", "/early", &headers);
    client.write(b"the beginning");
    let early = client.read_answer().unwrap();
    assert_eq!((early.status, early.text()), (200, "early".into()));
    assert_eq!(gate.post("/newer", &shown(2, &["a"])).status, 200);
    // Another connection was used: the first one was in the middle of a body.
    assert_eq!(upstream.connections(), 2);
    assert_eq!(upstream.judge(), Ok(2));
}

/// Goal: whoever is refused learns it, even in the middle of a large body, and a small body does not cost the connection.
#[test]
fn a_refusal_is_heard_behind_a_body() {
    let (site, upstream) = (Site::new(), Upstream::start());
    let gate = GateProcess::start(&site, &upstream.url(), &[]);
    assert_eq!(gate.post("/", &shown(2, &["a"])).status, 200);
    let mut client = gate.connect();
    for size in [0, 1, 100_000, 3_000_000] {
        let refused = client.post("/", &shown(1, &["a"]), &vec![b'x'; size]);
        assert_eq!(refused.verdict(), (409, "stale".into()), "{size} bytes");
    }
    // Whoever asks before it sends is told at once.
    let mut headers = shown(1, &["a"]).headers();
    headers.push(("Expect", "100-continue".into()));
    headers.push(("Content-Length", "1000".into()));
    client.begin("POST", "/", &headers);
    assert_eq!(client.read_answer().unwrap().verdict(), (409, "stale".into()));
    assert_eq!(upstream.began().len(), 1);
}
