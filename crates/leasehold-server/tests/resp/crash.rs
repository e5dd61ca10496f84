//! Endings: asked for, by kill, and by a disk that fails.

use std::collections::BTreeMap;
use std::io::{BufRead, Read};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::process::Signal;

use super::client::command;
use super::common::server::{Server, serve};
use super::common::{Site, wait_until};
use super::{dial, granted, lines, queue, word};

/// Goal: a server that is asked to end tells those who wait, answers what it did, lets nobody in, and keeps all of it.
#[test]
fn an_ending_that_was_asked_for_loses_nothing() {
    let site = Site::new();
    let server = Server::start(&site, &[]);
    let mut client = dial(&server);
    granted(&client.ask(&["LEASE", "ACQUIRE", "600000", "RESOURCES", "a"]));
    let mut waiters: Vec<_> = (0..3).map(|_| dial(&server)).collect();
    for waiter in &mut waiters {
        waiter.send(&command(&["LEASE", "ACQUIRE", "1000", "WAIT", "60000", "RESOURCES", "a"]));
    }
    wait_until("they stand in line", || queue(&mut client, "a") == 3);
    let all: Vec<u8> =
        (0..2000).flat_map(|at| command(&["SET", &format!("k{at}"), "v", "NX", "PX", "600000"])).collect();
    client.send(&all);
    assert_eq!(client.reply(), b"+OK\r\n");
    let address = server.resp;
    server.signal(Signal::TERM);
    for waiter in &mut waiters {
        let told = String::from_utf8(waiter.reply()).expect("text");
        assert_eq!(word(&told), "UNAVAILABLE", "{told}");
        assert_eq!(waiter.reply(), b"");
    }
    let mut heard = Vec::new();
    let _ = client.stream.read_to_end(&mut heard);
    assert!(heard.len() % 5 == 0, "whole answers: {}", String::from_utf8_lossy(&heard));
    let acknowledged = 1 + heard.len() / 5;
    server.end().with_code(0);
    assert!(std::net::TcpStream::connect(address).is_err(), "nobody is let in");
    let server = Server::start(&site, &[]);
    let mut client = dial(&server);
    for at in 0..acknowledged {
        assert_eq!(client.ask(&["EXISTS", &format!("k{at}")]), ":1\r\n", "k{at} of {acknowledged}");
    }
}

/// Goal: whatever was acknowledged is there after a kill in the middle of it, and tokens rise.
/// Method: 64 connections write down what they were told until the server is gone.
#[test]
fn what_was_acknowledged_survives_a_kill() {
    let site = Site::new();
    let mut highest = 0;
    for round in 0..3 {
        let server = Server::start(&site, &[]);
        let told: Mutex<BTreeMap<String, u64>> = Mutex::default();
        // All before the first of them works: a slow machine would kill the server before the last one is connected.
        let clients: Vec<_> = (0..64).map(|_| dial(&server)).collect();
        thread::scope(|scope| {
            for (connection, client) in clients.into_iter().enumerate() {
                let told = &told;
                scope.spawn(move || {
                    let mut stream = client.stream;
                    for number in 0.. {
                        let name = format!("{round}-{connection}-{number}");
                        let set = number % 2 == 0;
                        let words: &[&str] = if set {
                            &["SET", &name, "v", "NX", "PX", "3600000"]
                        } else {
                            &["LEASE", "ACQUIRE", "3600000", "RESOURCES", &name]
                        };
                        if std::io::Write::write_all(stream.get_mut(), &command(words)).is_err() {
                            return;
                        }
                        let mut reply = String::new();
                        for _ in 0..if set { 1 } else { 5 } {
                            if stream.read_line(&mut reply).map_or(true, |count| count == 0) {
                                return;
                            }
                        }
                        let token = if set { 0 } else { granted(&reply).1 };
                        assert!(!set || reply == "+OK\r\n", "{reply}");
                        told.lock().expect("nobody panicked").insert(name, token);
                    }
                });
            }
            wait_until("many were acknowledged", || told.lock().expect("nobody panicked").len() >= 500);
            server.signal(Signal::KILL);
        });
        assert_eq!(server.end().code, -1);
        let told = told.into_inner().expect("nobody panicked");
        let server = Server::start(&site, &[]);
        let mut client = dial(&server);
        for (name, token) in &told {
            let seen = client.ask(&["LEASE", "GET", name]);
            let there =
                lines(&seen).iter().position(|line| *line == "token").map(|at| lines(&seen)[at + 1][1..].parse());
            let Some(Ok(found)) = there else { panic!("{name} was acknowledged and is not there: {seen}") };
            assert!(*token == 0 || found == *token, "{name}: told {token}, found {found}");
            highest = highest.max(found);
        }
        let (_, next) = granted(&client.ask(&["LEASE", "ACQUIRE", "1", "RESOURCES", "next"]));
        assert!(next > highest, "token {next} after {highest}");
        println!("round {round}: {} acknowledged, all there", told.len());
        server.stop().with_code(0);
    }
}

/// Goal: a disk that fails is told as it is: unknown for what was on its way, unavailable after, and the end is 4.
/// Method: strace fails a sync of the thread that speaks RESP, under load; each connection sees what it sees.
#[test]
fn a_disk_that_fails_is_told_as_it_is() {
    let site = Site::new();
    Server::start(&site, &[]).stop().with_code(0);
    let plain = serve(&site, &[]);
    let mut traced = Command::new("strace");
    traced
        .args(["-f", "-qq", "-o", site.path("trace").to_str().expect("UTF-8"), "-e", "trace=fdatasync"])
        .args(["-e", "inject=fdatasync:error=EIO:when=60+"])
        .arg(plain.get_program())
        .args(plain.get_args())
        .current_dir(site.path(""))
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(site.path("stderr")).expect("a file for stderr"));
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => traced.env(name, value),
            None => traced.env_remove(name),
        };
    }
    let server = Server::spawn(&site, &mut traced);
    let (acknowledged, words) = (Mutex::new(Vec::new()), Mutex::new(BTreeMap::<String, usize>::new()));
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for connection in 0..16 {
            let (server, acknowledged, words, over) = (&server, &acknowledged, &words, &over);
            scope.spawn(move || {
                let mut stream = dial(server).stream;
                for number in 0.. {
                    let name = format!("{connection}-{number}");
                    let bytes = command(&["SET", &name, "v", "NX", "PX", "3600000"]);
                    let mut reply = String::new();
                    // An OK from before may be read after another has heard of the failure: what counts is when it was
                    // asked for.
                    let late = over.load(Ordering::SeqCst);
                    if std::io::Write::write_all(stream.get_mut(), &bytes).is_err()
                        || stream.read_line(&mut reply).map_or(true, |count| count == 0)
                    {
                        return;
                    }
                    if reply == "+OK\r\n" {
                        assert!(!late, "an OK after the disk failed");
                        acknowledged.lock().expect("nobody panicked").push(name);
                        continue;
                    }
                    let word = word(&reply).to_owned();
                    if word == "UNAVAILABLE" {
                        over.store(true, Ordering::SeqCst);
                    }
                    *words.lock().expect("nobody panicked").entry(word).or_default() += 1;
                }
            });
        }
    });
    let answer = server.end().with_code(4);
    assert!(answer.err.contains("the disk failed") || answer.err.contains("Input/output error"), "{}", answer.err);
    let words = words.into_inner().expect("nobody panicked");
    let acknowledged = acknowledged.into_inner().expect("nobody panicked");
    println!("{} acknowledged, then {words:?}", acknowledged.len());
    assert!(words.get("UNKNOWN").is_some_and(|count| *count >= 1), "{words:?}");
    assert!(words.keys().all(|word| word == "UNKNOWN" || word == "UNAVAILABLE"), "{words:?}");
    let server = Server::start(&site, &[]);
    let mut client = dial(&server);
    for name in &acknowledged {
        assert_eq!(client.ask(&["EXISTS", name]), ":1\r\n", "{name} was acknowledged");
    }
}
