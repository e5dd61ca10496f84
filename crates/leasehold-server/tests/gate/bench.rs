//! Figures, by hand: what the gate adds to a request, and what it takes from the throughput of an upstream.
//!
//! `cargo test --profile dist --package leasehold-server --test gate -- --ignored --nocapture --test-threads=1 what_the_gate_costs`

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use axum::body::Body;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::common::{Site, now};
use crate::process::GateProcess;

const ROUNDS: usize = 7;
const ROUND_TIME: Duration = Duration::from_secs(1);
/// The last bytes of every answer.
const ANSWER_END: &[u8] = b"\r\n\r\ndone";

/// An upstream that computes for this long, and answers.
fn start_bare_upstream(work: Duration) -> (tokio::runtime::Runtime, SocketAddr) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    runtime.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let _ = stream.set_nodelay(true);
            let service = service_fn(move |_: Request<hyper::body::Incoming>| async move {
                let end = now() + work;
                while now() < end {}
                Ok::<_, std::convert::Infallible>(Response::new(Body::from("done")))
            });
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    (runtime, address)
}

/// A relay that neither parses nor decides: for each connection a thread reads a request, writes it to the upstream, and passes
/// the answer back. No gate in user space can do with fewer system calls, so what it costs is the bound of what a gate can reach.
fn start_bare_relay(upstream: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for client in listener.incoming() {
            let (client, server) = (client.unwrap(), TcpStream::connect(upstream).unwrap());
            thread::spawn(move || relay_requests(client, server));
        }
    });
    address
}

fn relay_requests(mut client: TcpStream, mut server: TcpStream) {
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = client.read(&mut buffer) {
        server.write_all(&buffer[..length]).unwrap();
        let mut length = 0;
        while !buffer[..length].ends_with(ANSWER_END) {
            length += server.read(&mut buffer[length..]).unwrap();
        }
        client.write_all(&buffer[..length]).unwrap();
    }
}

/// The same relay in the shape of the gate: two threads that wait for many connections, in place of one for each.
fn start_epoll_relay(upstream: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let pollers = [(); 2].map(|()| Arc::new(EpollRelay::default()));
    for poller in &pollers {
        let poller = poller.clone();
        thread::spawn(move || poller.run());
    }
    thread::spawn(move || {
        for (client, poller) in listener.incoming().zip(pollers.iter().cycle()) {
            poller.add(client.unwrap(), TcpStream::connect(upstream).unwrap());
        }
    });
    address
}

/// One thread of it. A socket stands beside the one that its bytes go to.
struct EpollRelay {
    epoll: OwnedFd,
    sockets: Mutex<Vec<(TcpStream, TcpStream)>>,
}

impl Default for EpollRelay {
    fn default() -> Self {
        Self { epoll: epoll::create(epoll::CreateFlags::CLOEXEC).unwrap(), sockets: Mutex::default() }
    }
}

impl EpollRelay {
    fn add(&self, client: TcpStream, server: TcpStream) {
        client.set_nodelay(true).unwrap();
        server.set_nodelay(true).unwrap();
        let mut sockets = self.sockets.lock().unwrap();
        let both = [(&client, &server), (&server, &client)]
            .map(|(from, to)| (from.try_clone().unwrap(), to.try_clone().unwrap()));
        for pair in both {
            sockets.push(pair);
            let data = epoll::EventData::new_u64(sockets.len() as u64 - 1);
            epoll::add(&self.epoll, &sockets[sockets.len() - 1].0, data, epoll::EventFlags::IN).unwrap();
        }
    }

    fn run(&self) {
        let (mut events, mut buffer) = (Vec::with_capacity(16), [0; 4096]);
        loop {
            events.clear();
            epoll::wait(&self.epoll, spare_capacity(&mut events), None).unwrap();
            let sockets = self.sockets.lock().unwrap();
            for event in &events {
                let (mut from, mut to) = {
                    let pair = &sockets[event.data.u64() as usize];
                    (&pair.0, &pair.1)
                };
                match from.read(&mut buffer) {
                    Ok(length @ 1..) => to.write_all(&buffer[..length]).unwrap(),
                    _ => {
                        // Its client has gone.
                        epoll::delete(&self.epoll, from).unwrap();
                        to.shutdown(Shutdown::Both).ok();
                    }
                }
            }
        }
    }
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
        while !buffer[..length].ends_with(ANSWER_END) {
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

/// CPU that a process has used so far, in microseconds.
fn cpu_micros(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap().split_whitespace().collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) * 10_000.0
}

/// What a round measured.
#[derive(Clone, Copy)]
struct Round {
    p50_micros: f64,
    per_second: f64,
    /// CPU of the gate for a request.
    gate_micros: f64,
    /// CPU of the load and of the upstream for a request.
    ends_micros: f64,
}

/// Goal: figures for held leases, and apart from them for a raise with every request. Rounds are interleaved: the
/// upstream alone, a bare relay, held, raising. First with an upstream that does nothing, then with one that has work to do.
#[test]
#[ignore = "a measurement: run by hand on a quiet machine, with an optimised build"]
fn what_the_gate_costs() {
    for work in [Duration::ZERO, Duration::from_micros(200)] {
        measure_gate(work);
    }
}

/// Goal: what the gate itself costs, without what it costs this machine to wake a core that sleeps: load, gate and
/// upstream share one core.
#[test]
#[ignore = "a measurement: run by hand on a quiet machine, with an optimised build"]
fn what_the_gate_costs_on_one_core() {
    let mut core = CpuSet::new();
    core.set(0);
    // Threads and processes that are started from here inherit it.
    sched_setaffinity(None, &core).expect("core 0 is there");
    measure_gate(Duration::ZERO);
}

fn measure_gate(work: Duration) {
    let site = Site::new();
    let (_runtime, upstream) = start_bare_upstream(work);
    let gate = GateProcess::start(&site, &format!("http://{upstream}"), &[]);
    let (relay, epoll_relay) = (start_bare_relay(upstream), start_epoll_relay(upstream));
    let rising = AtomicU64::new(2);
    let held = || (1 << 40) + rising.load(Ordering::Relaxed);
    let raise = || (1 << 40) + rising.fetch_add(1, Ordering::Relaxed) + 1;
    let round = |address, connections, token: &(dyn Fn() -> u64 + Sync)| {
        let used = || (cpu_micros(gate.pid()), cpu_micros(std::process::id()));
        let before = used();
        let (p50_micros, per_second) = run_round(address, connections, token);
        let (after, requests) = (used(), per_second * ROUND_TIME.as_secs_f64());
        let (gate_micros, ends_micros) = ((after.0 - before.0) / requests, (after.1 - before.1) / requests);
        Round { p50_micros, per_second, gate_micros, ends_micros }
    };
    for connections in [1, 16] {
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            let alone = round(upstream, connections, &held);
            let relayed = round(relay, connections, &held);
            let polled = round(epoll_relay, connections, &held);
            let through = round(gate.address, connections, &held);
            let raising = round(gate.address, connections, &raise);
            println!(
                "  alone {:.1} us, {:.0}/s; relay {:.1} us, {:.0}/s; by epoll {:.1} us, {:.0}/s; held {:.1} us, {:.0}/s; raising {:.1} us, {:.0}/s",
                alone.p50_micros,
                alone.per_second,
                relayed.p50_micros,
                relayed.per_second,
                polled.p50_micros,
                polled.per_second,
                through.p50_micros,
                through.per_second,
                raising.p50_micros,
                raising.per_second
            );
            rounds.push([alone, relayed, through, raising, polled]);
        }
        let of = |value: &dyn Fn(&[Round; 5]) -> f64| median(rounds.iter().map(value).collect());
        let added = |kind: usize| of(&|round| round[kind].p50_micros - round[0].p50_micros);
        let share = |kind: usize| of(&|round| round[kind].per_second / round[0].per_second);
        println!("work {work:?}, {connections} connections:");
        for (kind, name) in [(1, "a bare relay"), (4, "a bare relay by epoll"), (2, "held"), (3, "raising")] {
            println!("  {name}: p50 {:+.1} us, {:.2}x", added(kind), share(kind));
        }
        println!("  held, of the bare relay: {:.2}x", of(&|round| round[2].per_second / round[1].per_second));
        println!(
            "  CPU for a request: load and upstream {:.1} us alone, {:.1} us behind the gate; the gate {:.1} us; \
             load, upstream and relay {:.1} us",
            of(&|round| round[0].ends_micros),
            of(&|round| round[2].ends_micros),
            of(&|round| round[2].gate_micros),
            of(&|round| round[1].ends_micros),
        );
    }
}
