//! Figures, by hand: what the gate adds to a request, and what it takes from the throughput of an upstream.
//!
//! `cargo test --profile dist --package leasehold-server --test gate -- --ignored --nocapture what_the_gate_costs`

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use axum::body::Body;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;

use crate::common::{Site, now};
use crate::process::GateProcess;

const ROUNDS: usize = 7;
const ROUND_TIME: Duration = Duration::from_secs(1);

/// An upstream that does nothing.
fn start_bare_upstream() -> (tokio::runtime::Runtime, SocketAddr) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    runtime.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let _ = stream.set_nodelay(true);
            let service = service_fn(|_: Request<hyper::body::Incoming>| async {
                Ok::<_, std::convert::Infallible>(Response::new(Body::from("done")))
            });
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    (runtime, address)
}

/// Requests of one connection for a while, each under the token that `token` gives. The times are in microseconds.
fn run_connection(address: SocketAddr, resource: usize, token: &(dyn Fn() -> u64 + Sync)) -> Vec<f64> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut times = Vec::new();
    let (end, mut buffer) = (now() + ROUND_TIME, [0; 4096]);
    while now() < end {
        let request = format!(
            "POST /write HTTP/1.1\r\nHost: a\r\nFencing-Token: {}\r\nFencing-Lease: 0123456789abcdef\r\n\
             Fencing-Resource: r{resource}\r\nContent-Length: 4\r\n\r\nbody",
            token()
        );
        let began = now();
        stream.write_all(request.as_bytes()).unwrap();
        let mut length = 0;
        while !buffer[..length].ends_with(b"\r\n\r\ndone") {
            let read = stream.read(&mut buffer[length..]).unwrap();
            assert!(read > 0, "it hung up: {}", String::from_utf8_lossy(&buffer[..length]));
            length += read;
        }
        times.push(began.elapsed().as_secs_f64() * 1e6);
        assert!(buffer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&buffer[..length]));
    }
    times
}

/// One round: the median time, and requests per second.
fn run_round(address: SocketAddr, connections: usize, token: &(dyn Fn() -> u64 + Sync)) -> (f64, f64) {
    let mut times: Vec<f64> = thread::scope(|scope| {
        let all: Vec<_> = (0..connections).map(|at| scope.spawn(move || run_connection(address, at, token))).collect();
        all.into_iter().flat_map(|one| one.join().unwrap()).collect()
    });
    times.sort_by(f64::total_cmp);
    (times[times.len() / 2], times.len() as f64 / ROUND_TIME.as_secs_f64())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Goal: figures for held leases, and apart from them for a raise with every request. Rounds are interleaved: the
/// upstream alone, held, raising.
#[test]
#[ignore = "a measurement: run by hand on a quiet machine, with an optimised build"]
fn what_the_gate_costs() {
    let site = Site::new();
    let (_runtime, upstream) = start_bare_upstream();
    let gate = GateProcess::start(&site, &format!("http://{upstream}"), &[]);
    let rising = AtomicU64::new(2);
    let held = || 1_u64 << 40;
    for connections in [1, 16] {
        let (mut added, mut ratio, mut raise_added, mut raise_ratio) = (vec![], vec![], vec![], vec![]);
        for _ in 0..ROUNDS {
            let alone = run_round(upstream, connections, &held);
            // Below the held tokens, on other resources: raises first would make the held ones stale.
            let through = run_round(gate.address, connections, &|| (1 << 40) + rising.load(Ordering::Relaxed));
            let raising =
                run_round(gate.address, connections, &|| (1 << 40) + rising.fetch_add(1, Ordering::Relaxed) + 1);
            added.push(through.0 - alone.0);
            ratio.push(through.1 / alone.1);
            raise_added.push(raising.0 - alone.0);
            raise_ratio.push(raising.1 / alone.1);
            println!(
                "{connections}: alone {alone:.1?}, held {through:.1?}, raising {raising:.1?} (p50 in us, requests/s)"
            );
        }
        println!(
            "{connections} connections: held p50 {:+.1} us, {:.2}x; raising p50 {:+.1} us, {:.2}x",
            median(added),
            median(ratio),
            median(raise_added),
            median(raise_ratio)
        );
    }
}
