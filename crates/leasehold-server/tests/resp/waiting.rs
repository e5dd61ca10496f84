//! Wait queues over RESP: order, timeouts, hanging up. How soon a hang-up is noticed, and what becomes of its lease, is in
//! `src/resp/tests/close.rs`, with a manual clock.

use std::net::Shutdown;
use std::thread;
use std::time::Duration;

use super::client::{RespClient, command};
use super::common::server::Server;
use super::common::{Site, now, wait_until};
use super::{comes_to_rest, dial, granted, lines, queue, word};

fn wait_for(client: &mut RespClient, name: &str, more: &[&str]) {
    client.send(&command(&[&["LEASE", "ACQUIRE", "600000", "WAIT", "600000"], more, &["RESOURCES", name]].concat()));
}

/// Whether the metrics have this line.
fn counts(server: &Server, line: &str) -> bool {
    server.ask("GET", "/metrics", None, "").1.lines().any(|other| other == line)
}

/// Goal: those who wait are served in the order they came, and a command that waits stops the ones after it.
#[test]
fn those_who_wait_are_served_in_order() {
    let site = Site::new();
    let server = Server::start(&site, &[]);
    let mut client = dial(&server);
    let (mut lease, mut token) = granted(&client.ask(&["LEASE", "ACQUIRE", "600000", "RESOURCES", "a"]));
    let mut line: Vec<RespClient> = Vec::new();
    for index in 0..20 {
        let mut waiter = dial(&server);
        wait_for(&mut waiter, "a", &[]);
        waiter.send(&command(&["ECHO", &index.to_string()]));
        wait_until("it stands in line", || queue(&mut client, "a") == index + 1);
        line.push(waiter);
    }
    for (index, waiter) in line.iter_mut().enumerate() {
        waiter.stream.get_ref().set_nonblocking(true).expect("a socket");
        let early = waiter.stream.get_ref().peek(&mut [0; 1]);
        assert!(early.is_err(), "nobody is answered before their turn, nor what they sent after");
        waiter.stream.get_ref().set_nonblocking(false).expect("a socket");
        assert_eq!(client.ask(&["LEASE", "RELEASE", &lease]), ":1\r\n");
        let (next, higher) = granted(&String::from_utf8(waiter.reply()).expect("text"));
        assert!(higher > token);
        assert_eq!(waiter.reply(), format!("${}\r\n{index}\r\n", index.to_string().len()).as_bytes());
        (lease, token) = (next, higher);
    }
}

/// Goal: a wait that runs out is answered, not early, and leaves the queue.
#[test]
fn patience_ends() {
    let site = Site::new();
    let server = Server::start(&site, &[]);
    let mut client = dial(&server);
    granted(&client.ask(&["LEASE", "ACQUIRE", "600000", "HOLDER", "ada", "RESOURCES", "a"]));
    let began = now();
    let told = dial(&server).ask(&["LEASE", "ACQUIRE", "1000", "WAIT", "300", "RESOURCES", "a"]);
    assert_eq!(word(&told), "HELD");
    assert!(told.contains("holder=\"ada\""), "{told}");
    let took = now() - began;
    assert!(took >= Duration::from_millis(300), "{took:?}");
    assert_eq!(queue(&mut client, "a"), 0);
}

/// Goal: a client that hangs up leaves the queue, however it hangs up, is counted, and costs nothing.
/// Method: all of them would wait for longer than the test does.
#[test]
fn who_hangs_up_leaves_the_line() {
    let site = Site::new();
    let server = Server::start(&site, &[]);
    let mut client = dial(&server);
    let (lease, _) = granted(&client.ask(&["LEASE", "ACQUIRE", "600000", "RESOURCES", "a"]));
    for way in ["close", "half-close", "reset", "full of input", "much behind, then half-close"] {
        let mut gone = dial(&server);
        wait_for(&mut gone, "a", &[]);
        wait_until("it stands in line", || queue(&mut client, "a") == 1);
        let mut next = dial(&server);
        wait_for(&mut next, "a", &[]);
        wait_until("so does the next", || queue(&mut client, "a") == 2);
        match way {
            "half-close" => gone.stream.get_ref().shutdown(Shutdown::Write).expect("a socket"),
            "reset" => rustix::net::sockopt::set_socket_linger(gone.stream.get_ref(), Some(Duration::ZERO))
                .expect("a socket takes it"),
            // More than the server reads. It must notice the hang-up without reading.
            "full of input" => {
                gone.stream.get_ref().set_nonblocking(true).expect("a socket");
                while std::io::Write::write(gone.stream.get_mut(), &[b'\n'; 65_536]).is_ok() {}
                rustix::net::sockopt::set_socket_linger(gone.stream.get_ref(), Some(Duration::ZERO))
                    .expect("a socket takes it");
            }
            // As much as the server reads while it waits, and a little more: it does not read on to where the end is.
            "much behind, then half-close" => {
                std::io::Write::write_all(gone.stream.get_mut(), &[b'\n'; (1 << 20) + (65 << 10)])
                    .expect("sockets take it");
                gone.stream.get_ref().shutdown(Shutdown::Write).expect("a socket");
            }
            _ => {}
        }
        let keep = way.contains("half-close").then_some(gone);
        wait_until("it left the line", || queue(&mut client, "a") == 1);
        drop(next);
        wait_until("so did the next", || queue(&mut client, "a") == 0);
        drop(keep);
    }
    comes_to_rest(server.pid());
    assert!(counts(&server, "leasehold_acquire_total{outcome=\"left\"} 10"), "two for each way");
    assert_eq!(client.ask(&["LEASE", "RELEASE", &lease]), ":1\r\n");
    granted(&client.ask(&["LEASE", "ACQUIRE", "1000", "RESOURCES", "a"]));
}

/// Goal: a repeat without patience that joins a wait does not hold up others, nor stay when it hangs up.
#[test]
fn a_repeat_joins_and_leaves() {
    let site = Site::new();
    let server = Server::start(&site, &[]);
    let mut client = dial(&server);
    let (lease, _) = granted(&client.ask(&["LEASE", "ACQUIRE", "600000", "RESOURCES", "a"]));
    let (mut first, mut second, mut third) = (dial(&server), dial(&server), dial(&server));
    wait_for(&mut first, "a", &["REQUEST", "r"]);
    wait_until("it stands in line", || queue(&mut client, "a") == 1);
    wait_for(&mut second, "a", &["REQUEST", "r"]);
    third.send(&command(&["LEASE", "ACQUIRE", "600000", "REQUEST", "r", "RESOURCES", "a"]));
    wait_until("all of them have asked", || counts(&server, "leasehold_calls_total{verb=\"acquire\"} 4"));
    (0..200).for_each(|_| assert_eq!(client.ask(&["PING"]), "+PONG\r\n"));
    drop(third);
    drop(first);
    wait_until("both have left", || counts(&server, "leasehold_acquire_total{outcome=\"left\"} 2"));
    assert_eq!(queue(&mut client, "a"), 1, "the second waits for the same");
    assert_eq!(client.ask(&["LEASE", "RELEASE", &lease]), ":1\r\n");
    granted(&String::from_utf8(second.reply()).expect("text"));
}

/// Goal: one who pipelines for ever does not keep others waiting.
#[test]
fn one_who_pipelines_for_ever_starves_nobody() {
    let site = Site::new();
    let server = Server::start(&site, &[]);
    let busy = dial(&server);
    let mut writer = busy.stream.get_ref().try_clone().expect("a socket");
    let reader = busy.stream.into_inner();
    let bytes = command(&["SET", "k", "v", "NX", "PX", "600000"]).repeat(500);
    let talks = thread::spawn(move || while std::io::Write::write_all(&mut writer, &bytes).is_ok() {});
    let mut listens = reader.try_clone().expect("a socket");
    let hears = thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while std::io::Read::read(&mut listens, &mut buffer).is_ok_and(|count| count > 0) {}
    });
    let mut client = dial(&server);
    let mut worst = Duration::ZERO;
    for round in 0..200 {
        let began = now();
        let reply = client.ask(&["LEASE", "ACQUIRE", "60000", "RESOURCES", &format!("n{round}")]);
        assert_eq!(lines(&reply)[0], "*3");
        worst = worst.max(now() - began);
    }
    reader.shutdown(Shutdown::Both).expect("a socket");
    let _ = (talks.join(), hears.join());
    println!("the longest answer took {worst:?}");
}
