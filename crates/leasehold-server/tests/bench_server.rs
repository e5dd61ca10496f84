//! `leasehold bench` against a server over RESP: what it sends, what it makes of the answers, and what it says of
//! a server that does not behave.
//!
//! The bench is what is tested here, so that the other side is a few scripted lines that can also misbehave.

mod common;

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use common::figures::positive;
use common::{Answer, Site, end_of, signal, wait_until};
use rustix::process::Signal;

/// What the scripted server answers to a command; nothing means that it hangs up.
type Script = dyn Fn(&[String]) -> Option<String> + Send + Sync;

/// Listens on a free port and answers every connection by the script. Ends with the test.
fn listen(script: impl Fn(&[String]) -> Option<String> + Send + Sync + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    let script: Arc<Script> = Arc::new(script);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let script = script.clone();
            std::thread::spawn(move || serve(stream, &*script));
        }
    });
    port
}

/// Answers one connection until either side hangs up.
fn serve(stream: TcpStream, script: &Script) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut writer = stream;
    loop {
        let count = number(&mut reader, '*')?;
        let mut command = Vec::new();
        for _ in 0..count {
            let mut text = vec![0; number(&mut reader, '$')? + 2];
            reader.read_exact(&mut text).ok()?;
            command.push(String::from_utf8(text).ok()?.trim_end().to_owned());
        }
        writer.write_all(script(&command)?.as_bytes()).ok()?;
    }
}

fn number(reader: &mut impl BufRead, kind: char) -> Option<usize> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    line.trim_end().strip_prefix(kind)?.parse().ok()
}

fn grant(number: usize) -> String {
    let lease_id = format!("{number}-s3cret");
    format!("*3\r\n${}\r\n{lease_id}\r\n:{number}\r\n:30000\r\n", lease_id.len())
}

/// One name that many want: grants in order of arrival, one at a time.
#[derive(Default)]
struct Baton {
    /// How many asked, and how many were given back.
    turns: Mutex<(usize, usize)>,
    passed: Condvar,
}

impl Baton {
    fn answer(&self, command: &[String]) -> Option<String> {
        let mut turns = self.turns.lock().expect("nobody panics");
        match words(command).as_slice() {
            ["PING"] => Some("+PONG\r\n".into()),
            ["LEASE", "ACQUIRE", _, "WAIT", _, "RESOURCES", _] => {
                let mine = turns.0;
                turns.0 += 1;
                drop(self.passed.wait_while(turns, |turns| turns.1 < mine).expect("nobody panics"));
                Some(grant(mine))
            }
            ["LEASE", "RELEASE", _] => {
                turns.1 += 1;
                self.passed.notify_all();
                Some(":1\r\n".into())
            }
            _ => None,
        }
    }
}

fn words(command: &[String]) -> Vec<&str> {
    command.iter().map(String::as_str).collect()
}

/// Grants every name at once, and answers PING.
fn generous(command: &[String]) -> Option<String> {
    match words(command).as_slice() {
        ["PING"] => Some("+PONG\r\n".into()),
        ["AUTH", "s3cret"] => Some("+OK\r\n".into()),
        ["AUTH", _] => Some("-NOAUTH this key is not known\r\n".into()),
        ["LEASE", "ACQUIRE", ..] => Some(grant(7)),
        ["LEASE", "RELEASE", _] => Some(":1\r\n".into()),
        _ => None,
    }
}

fn bench(port: u16, arguments: &[&str]) -> Answer {
    let url = format!("leasehold://127.0.0.1:{port}");
    Site::new().ask(&[&["bench", "--url", &url, "--for", "200ms"], arguments].concat())
}

/// Goal: pairs over RESP are what they say: each name new, each lease released once, on as many connections as
/// asked for, each with the key; and the figures have the keys of the contract.
#[test]
fn pairs_are_asked_for_as_documented() {
    let seen = Arc::new(Mutex::new((HashSet::new(), 0_usize, 0_usize)));
    let seeing = seen.clone();
    let port = listen(move |command| {
        let mut seen = seeing.lock().expect("nobody panics");
        match words(command).as_slice() {
            ["AUTH", "s3cret"] => {
                seen.1 += 1;
                Some("+OK\r\n".into())
            }
            ["LEASE", "ACQUIRE", "30000", "RESOURCES", name] => seen.0.insert((*name).to_owned()).then(|| grant(7)),
            ["LEASE", "RELEASE", "7-s3cret"] => {
                seen.2 += 1;
                Some(":1\r\n".into())
            }
            _ => None,
        }
    });
    let url = format!("leasehold://me:s3cret@127.0.0.1:{port}");
    let answer = Site::new().ask(&["bench", "--url", &url, "--clients", "4", "--for", "200ms", "--json"]).with_code(0);
    assert!(!format!("{answer:?}").contains("s3cret"), "{answer:?}");
    let found = answer.json();
    assert_eq!(found["url"], format!("leasehold://127.0.0.1:{port}"));
    assert_eq!(found["clients"], 4);
    positive(&found, &["/seconds", "/pairs", "/pairs_per_s", "/fdatasync_us/p50", "/fdatasync_us/p99"]);
    positive(&found, &["/acquire_us/p50", "/acquire_us/p99", "/acquire_us/max", "/pair_us/p50", "/pair_us/p99"]);
    let (names, connections, released) = &*seen.lock().expect("nobody panics");
    assert_eq!(*connections, 4);
    assert_eq!(names.len(), *released, "what was granted was given back, to the last");
    assert!(names.len() as u64 >= found["pairs"].as_u64().expect("a count"), "{found}");
}

/// Goal: a handoff is counted from a release to the next grant, and compared with one sync and one trip.
#[test]
fn handoffs_are_timed_from_release_to_next_grant() {
    let baton = Arc::new(Baton::default());
    let passing = baton.clone();
    let port = listen(move |command| passing.answer(command));
    let found = bench(port, &["--handoff", "8", "--json"]).with_code(0).json();
    assert_eq!(found["waiters"], 8);
    positive(&found, &["/seconds", "/handoffs", "/handoff_us/p50", "/handoff_us/p99", "/round_trip_us/p50"]);
    positive(&found, &["/round_trip_us/p99", "/fdatasync_us/p50", "/fdatasync_us/p99"]);
    for at in ["p50", "p99"] {
        let of = |what: &str| found[what][at].as_f64().expect("a number");
        let ratio = of("handoff_us") / (of("fdatasync_us") + of("round_trip_us"));
        let told = found[format!("ratio_{at}")].as_f64().expect("a number");
        assert!((ratio - told).abs() < 0.01, "{at} in {found}");
    }
    let (asked, passed) = *baton.turns.lock().expect("nobody panics");
    assert_eq!(asked, passed, "nobody is left in line, and nobody holds");
    assert!(passed as u64 >= found["handoffs"].as_u64().expect("a count"), "{found}");
    let table = bench(port_of(Baton::default()), &["--handoff", "2"]).with_code(0);
    assert!(table.out.contains("release to next grant") && table.out.contains(" x"), "{table:?}");
}

fn port_of(baton: Baton) -> u16 {
    listen(move |command| baton.answer(command))
}

/// Goal: a server that lets two have the name at once gets no figure.
#[test]
fn two_holders_at_once_are_noticed() {
    let answer = bench(listen(generous), &["--handoff", "8"]).with_code(1);
    answer.says_one_sentence();
    assert!(answer.err.contains("two were granted at once"), "{answer:?}");
}

#[test]
fn idle_connections_are_weighed_and_others_timed() {
    let pid = std::process::id().to_string();
    let found = bench(listen(generous), &["--idle", "50", "--pid", &pid, "--json"]).with_code(0).json();
    assert_eq!(found["idle"], 50);
    positive(&found, &["/resident_bytes_before", "/resident_bytes_with", "/pair_us_before/p99", "/pair_us_with/p99"]);
    positive(&found, &["/ratio_p99", "/pairs_per_s_before", "/pairs_per_s_with"]);
    // Each connection is a thread of this very process.
    positive(&found, &["/resident_bytes_per_connection"]);
    let table = bench(listen(generous), &["--idle", "5", "--pid", &pid]).with_code(0);
    assert!(table.out.contains("5 idle connections") && table.out.contains("p99 of the others"), "{table:?}");
}

/// Goal: idle connections that the server cut off are not taken for cheap ones.
/// Method: a server that hangs up on who is silent for a second, as only the idle ones are.
#[test]
fn idle_connections_that_were_closed_are_noticed() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                stream.set_read_timeout(Some(Duration::from_secs(1))).expect("a socket takes it");
                serve(stream, &generous);
            });
        }
    });
    let pid = std::process::id().to_string();
    let url = format!("leasehold://127.0.0.1:{port}");
    let arguments = ["bench", "--url", &url, "--for", "3s", "--idle", "3", "--pid", &pid];
    let answer = Site::new().ask(&arguments).with_code(1);
    answer.says_one_sentence();
    assert!(answer.err.contains("closed 3 of 3 idle connections"), "{answer:?}");
}

/// Goal: a server that falls silent in the middle of the load does not keep the bench for ever.
#[test]
fn a_server_that_falls_silent_is_given_up() {
    let answered = Mutex::new(0);
    let port = listen(move |command| {
        let mut answered = answered.lock().expect("nobody panics");
        *answered += 1;
        if *answered > 100 { Some(String::new()) } else { generous(command) }
    });
    let answer = bench(port, &["--clients", "2"]).with_code(1);
    answer.says_one_sentence();
    assert!(answer.err.contains("left 2 clients without an answer"), "{answer:?}");
}

/// Goal: a server that refuses, hangs up, speaks something else or is not there is told in one sentence.
#[test]
fn a_server_that_does_not_answer_is_told_in_one_sentence() {
    type Case = (u16, i32, &'static str);
    let closed = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port();
    let table: [Case; 5] = [
        (closed, 4, "no answer from leasehold://"),
        (listen(|_| Some("-HELD holder=\"x\" remaining_ms=1 queue=0\r\n".into())), 1, "refused: HELD"),
        (listen(|_| Some("HTTP/1.1 400 Bad Request\r\n\r\n".into())), 1, "does not speak RESP"),
        (listen(|_| Some(":1\r\n".into())), 1, "something else than was asked for"),
        (listen(|_| None), 1, "closed the connection"),
    ];
    for (port, code, part) in table {
        for mode in [&["--clients", "2"][..], &["--handoff", "2"]] {
            let answer = bench(port, mode);
            answer.says_one_sentence();
            // Which of two failures of --handoff is met first (PING or the line) decides its words.
            if mode[0] == "--clients" {
                assert_eq!(answer.code, code, "{answer:?}");
                assert!(answer.err.contains(part), "{part}: {answer:?}");
            }
        }
    }
}

#[test]
fn a_key_that_does_not_fit_is_bad_usage_and_not_repeated() {
    let url = format!("leasehold://wr0ng@127.0.0.1:{}", listen(generous));
    let answer = Site::new().ask(&["bench", "--url", &url]).with_code(2);
    answer.says_one_sentence();
    assert!(answer.err.contains("does not take the key") && !answer.err.contains("wr0ng"), "{answer:?}");
}

#[test]
fn an_interrupted_load_releases_what_it_holds_and_says_what_it_has() {
    let counts = Arc::new(Mutex::new((0, 0)));
    let counting = counts.clone();
    let port = listen(move |command| {
        let mut counts = counting.lock().expect("nobody panics");
        match command.get(1).map(String::as_str) {
            Some("ACQUIRE") => counts.0 += 1,
            Some("RELEASE") => counts.1 += 1,
            _ => {}
        }
        generous(command)
    });
    let site = Site::new();
    let url = format!("leasehold://127.0.0.1:{port}");
    let bench = site.start(&mut site.command(&["bench", "--url", &url, "--for", "10m", "--clients", "2", "--json"]));
    wait_until("it is at work", || counts.lock().expect("nobody panics").1 > 10);
    signal(bench.id(), Signal::INT);
    let answer = end_of(bench).with_code(130);
    assert_eq!(answer.json()["clients"], 2);
    let (acquired, released) = *counts.lock().expect("nobody panics");
    assert_eq!(acquired, released);
}
