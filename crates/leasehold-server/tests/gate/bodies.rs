//! Bodies: they stream, and what did not come whole is never passed on as whole.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use crate::common::{Site, pause, wait_until};
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

/// Reads until these bytes came.
fn read_until(stream: &mut TcpStream, end: &[u8]) -> Vec<u8> {
    let (mut seen, mut buffer) = (Vec::new(), [0; 4096]);
    while !seen.ends_with(end) {
        let read = stream.read(&mut buffer).unwrap();
        assert!(read > 0, "{}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&buffer[..read]);
    }
    seen
}

/// Goal: when a request has left, no byte of it follows, even if its client goes on sending.
/// Method: an upstream that answers early and keeps on reading.
#[test]
fn no_byte_follows_a_request_that_has_left() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (site, url) = (Site::new(), format!("http://{}", listener.local_addr().unwrap()));
    let gate = GateProcess::start(&site, &url, &[]);
    let upstream = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        read_until(&mut stream, b"the beginning");
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nearly").unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        rest.len()
    });
    let mut client = gate.connect();
    let mut headers = shown(1, &["a"]).headers();
    headers.push(("Content-Length", "1000000".into()));
    client.begin("POST", "/", &headers);
    client.write(b"the beginning");
    assert_eq!(client.read_answer().unwrap().text(), "early");
    wait_until("the request has left", || gate.metric("leasehold_gate_flying") == 0.0);
    for _ in 0..10 {
        client.try_write(&[b'x'; 1000]);
        pause(Duration::from_millis(10));
    }
    assert_eq!(upstream.join().unwrap(), 0, "bytes that followed");
}

/// Goal: a client that goes away while its body is not read leaves half a body, not a whole one.
/// Method: an upstream that reads nothing until the gate has dropped the client's connection. A client that closes is
/// noticed behind its last byte; one that is reset is noticed at once, while its body waits. Two things stand against it,
/// hyper's own error and the `CloseGuard`. Without the guard alone the test still passes.
#[test]
fn a_body_that_nobody_reads_does_not_end_well_when_its_client_goes_away() {
    for is_reset in [false, true] {
        let (all, chunk) = read_after_the_client_went_away(is_reset);
        assert!(all.len() > chunk, "{} bytes came", all.len());
        assert!(!all.ends_with(b"0\r\n\r\n"), "half a body was passed on as a whole one, reset: {is_reset}");
    }
}

/// What the upstream got, and the size of one chunk.
fn read_after_the_client_went_away(is_reset: bool) -> (Vec<u8>, usize) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (site, url) = (Site::new(), format!("http://{}", listener.local_addr().unwrap()));
    let gate = GateProcess::start(&site, &url, &[]);
    let (gone, may_read) = std::sync::mpsc::channel();
    let upstream = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        may_read.recv().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut all = Vec::new();
        let _ = stream.read_to_end(&mut all);
        all
    });
    let mut client = gate.connect();
    let mut headers = shown(1, &["a"]).headers();
    headers.push(("Transfer-Encoding", "chunked".into()));
    client.begin("POST", "/", &headers);
    let chunk = [&b"10000\r\n"[..], &[b'x'; 65_536], b"\r\n"].concat();
    // Until nothing more fits between here and the upstream.
    client.write_until_full(&chunk);
    if is_reset {
        client.reset_on_close();
    }
    drop(client);
    pause(Duration::from_millis(1500));
    gone.send(()).unwrap();
    (upstream.join().unwrap(), chunk.len())
}
