//! Traces reach a collector: a tiny one that takes whatever is posted.
#![cfg(feature = "otel")]

mod common;

use std::io::{Read, Write};
use std::net::TcpListener;

use common::Site;
use common::server::{Server, serve};

/// Goal: a call leads to a span at the collector, sent at the latest when the server ends, and no secret in it.
#[test]
fn a_call_is_a_span_at_the_collector() {
    let site = Site::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let endpoint = format!("http://{}", listener.local_addr().expect("its address"));
    let (sender, posts) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let (mut bytes, mut part) = (Vec::new(), [0; 4096]);
            let whole = |bytes: &[u8]| {
                let text = String::from_utf8_lossy(bytes).to_lowercase();
                let head = bytes.windows(4).position(|end| end == b"\r\n\r\n")?;
                let length = text.split("content-length: ").nth(1)?.lines().next()?.trim().parse::<usize>().ok()?;
                (bytes.len() >= head + 4 + length).then_some(())
            };
            while whole(&bytes).is_none() {
                match stream.read(&mut part) {
                    Ok(count) if count > 0 => bytes.extend_from_slice(&part[..count]),
                    _ => break,
                }
            }
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            let _ = sender.send(bytes);
        }
    });
    let mut command = serve(&site, &["--otel-endpoint", &endpoint]);
    let server = Server::spawn(&site, &mut command);
    let claim = r#"{"resources":["seat"],"ttl_ms":60000}"#;
    let (status, answer) = server.ask("POST", "/v1/leases", None, claim);
    assert_eq!(status, 201);
    let lease = answer.split("\"lease_id\":\"").nth(1).and_then(|rest| rest.split('"').next()).expect("a lease id");
    server.stop().with_code(0);
    let post = posts.recv_timeout(common::PATIENCE).expect("spans were sent");
    let text = String::from_utf8_lossy(&post);
    assert!(text.starts_with("POST /v1/traces "), "{text}");
    assert!(text.contains("acquire") && text.contains("leasehold"), "{text}");
    assert!(!text.contains(lease));
}
