//! The command line and a server: what people and scripts see.

mod common;
mod served;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Site, binary, end_of, pause, signal, text, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use served::{Server, free_port};

/// The binary, asked about this server, in this directory.
fn command(site: &Site, server: &Server, arguments: &[&str]) -> Command {
    let mut command = site.command(arguments);
    command.env("LEASEHOLD_URL", server.url());
    command
}

#[track_caller]
fn ask(site: &Site, server: &Server, arguments: &[&str], code: i32) -> common::Answer {
    end_of(site.start(&mut command(site, server, arguments))).with_code(code)
}

#[track_caller]
fn is_held(site: &Site, server: &Server, name: &str) -> bool {
    let seen = ask(site, server, &["inspect", "--json", name], 0).json();
    !seen["holders"].as_array().expect("a list of holders").is_empty()
}

/// Goal: without a server every command says so in one sentence that tells how to start one, with exit code 4.
#[test]
fn without_a_server_every_command_says_how_to_start_one() {
    let url = format!("leasehold://:hunter2@{}", free_port());
    let table: &[&[&str]] = &[
        &["acquire", "x"],
        &["acquire", "x", "--wait", "1h"],
        &["renew", "1-00"],
        &["release", "1-00"],
        &["run", "x", "--", "true"],
        &["ls"],
        &["inspect", "x"],
        &["revoke", "x", "--reason", "y"],
        &["watch"],
    ];
    for arguments in table {
        let output = binary().args(["--url", &url]).args(*arguments).output().expect("the binary starts");
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(4), "{arguments:?}: {err}");
        assert!(err.starts_with("leasehold: ") && err.lines().count() == 1, "{err}");
        assert!(err.contains("`leasehold serve`") && err.contains("no server answers at 127.0.0.1:"), "{err}");
        assert!(!err.contains("hunter2"), "a key is not repeated: {err}");
        assert_eq!(output.stdout, b"");
    }
}

/// Goal: something else at that address is told from a server.
#[test]
fn another_program_at_that_address_is_unavailable() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let at = listener.local_addr().expect("it is bound");
    let other = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("the binary comes");
        std::io::Write::write_all(&mut stream, b"220 mail.example ESMTP\r\n").expect("it is told");
    });
    let output = binary().args(["--url", &format!("leasehold://{at}"), "ls"]).output().expect("the binary starts");
    other.join().expect("no panic");
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{err}");
    assert!(err.contains(&at.to_string()) && err.lines().count() == 1, "{err}");
}

/// Goal: every command does with a server what it does with a directory.
#[test]
fn every_command_works_with_a_server() {
    let (site, server) = (Site::new(), Server::start());
    let acquire = ["acquire", "seat-14", "seat-15", "--ttl", "1h", "--holder", "ada", "--max-hold", "2h", "--json"];
    let grant = ask(&site, &server, &acquire, 0).json();
    assert!(grant["renewable_ms"].as_u64().expect("a cap is told") > 7_100_000);
    let held = ask(&site, &server, &["acquire", "seat-15"], 3);
    assert!(held.err.contains("seat-15 is held by ada"), "{held:?}");
    assert_eq!(ask(&site, &server, &["ls", "--json"], 0).out.lines().count(), 2);
    let seen = ask(&site, &server, &["inspect", "seat-14", "--json"], 0).json();
    assert_eq!(seen["holders"][0]["token"], grant["token"]);
    let id = text(&grant, "lease_id");
    let renewed = ask(&site, &server, &["renew", id, "--ttl", "10m", "--json"], 0).json();
    assert!((590_000..=600_000).contains(&renewed["remaining_ms"].as_u64().expect("a number")), "{renewed}");
    assert_eq!(ask(&site, &server, &["release", id], 0).out, "released\n");
    assert_eq!(ask(&site, &server, &["release", id], 0).out, "had been released before\n");
    ask(&site, &server, &["renew", "never-was"], 7);
    ask(&site, &server, &["acquire", "pool", "--permits", "1", "--capacity", "2"], 0);
    let revoked = ask(&site, &server, &["revoke", "pool", "--reason", "a burst pipe"], 0);
    assert_eq!(revoked.out, "revoked 1 lease on pool\n");
    ask(&site, &server, &["acquire", "x", "--ttl", "25h"], 2).says_one_sentence();
    let run = ask(&site, &server, &["run", "job", "--", "sh", "-c", "echo $LEASEHOLD_TOKEN; exit 9"], 9);
    assert!(run.out.trim().parse::<u64>().is_ok(), "{run:?}");
    assert!(!is_held(&site, &server, "job"));
}

/// Goal: of two terminals that fight for one name, one at a time has it, every token is new, and both get their turns.
#[test]
fn two_terminals_fight_for_one_name() {
    let (site, server) = (Site::new(), Server::start());
    common::fight::for_one_name(&site, |arguments| drop(ask(&site, &server, arguments, 0)));
}

/// Goal: a wait that is interrupted leaves the line and nothing behind.
#[test]
fn an_interrupted_wait_leaves_the_line() {
    let (site, server) = (Site::new(), Server::start());
    let first = ask(&site, &server, &["acquire", "seat-14", "--ttl", "1h", "--json"], 0).json();
    let waiting = site.start(&mut command(&site, &server, &["acquire", "seat-14", "--wait", "1h"]));
    let queue = || ask(&site, &server, &["inspect", "seat-14", "--json"], 0).json()["queue_len"].as_u64();
    wait_until("it stands in line", || queue() == Some(1));
    signal(i32::try_from(waiting.id()).expect("a pid"), Signal::TERM);
    end_of(waiting).with_code(128 + 15).says_one_sentence();
    wait_until("nobody stands in line", || queue() == Some(0));
    ask(&site, &server, &["release", text(&first, "lease_id")], 0);
    assert!(!is_held(&site, &server, "seat-14"));
}

/// Goal: a command under a lease outlives its server, if the server is back inside the ttl.
/// Method: kill -9 in the middle of the command, start again; the command ends by itself, and the lease was the same.
#[test]
fn run_keeps_its_lease_over_a_killed_server() {
    let (site, mut server) = (Site::new(), Server::start());
    let script = "echo $$ > begun; while [ ! -e finish ]; do sleep 0.05; done; exit 5";
    let arguments = ["run", "job", "--ttl", "12s", "--grace", "1s", "--", "sh", "-c", script];
    let running = site.start(&mut command(&site, &server, &arguments));
    site.number_in("begun");
    let token = |server: &Server| {
        let seen = ask(&site, server, &["inspect", "job", "--json"], 0).json();
        seen["holders"][0]["token"].as_str().map(str::to_owned)
    };
    let before = token(&server).expect("it is held");
    server.kill();
    pause(Duration::from_secs(2));
    server.start_again();
    let seen = || ask(&site, &server, &["inspect", "job", "--json"], 0).json()["holders"][0].clone();
    wait_until("it is older than a ttl: it lives only if it was renewed after the restart", || {
        let holder = seen();
        assert_eq!(holder["token"].as_str(), Some(before.as_str()), "the same lease");
        holder["since_ms"].as_u64().expect("its age") > 15_000
    });
    std::fs::write(site.path("finish"), "").expect("the file is written");
    end_of(running).with_code(5);
    assert!(!is_held(&site, &server, "job"));
}

/// Goal: a server that stays away costs the lease, and the command is ended in time.
#[test]
fn run_ends_its_command_when_the_server_stays_away() {
    let (site, mut server) = (Site::new(), Server::start());
    let script = "echo $$ > begun; sleep 60";
    let arguments = ["run", "job", "--ttl", "3s", "--grace", "500ms", "--", "sh", "-c", script];
    let running = site.start(&mut command(&site, &server, &arguments));
    let child = site.number_in("begun");
    server.kill();
    let answer = end_of(running).with_code(6);
    assert!(answer.err.contains("lost"), "{answer:?}");
    assert!(!common::is_alive(child));
}

/// Goal: watch prints one line per event, in order, over a prefix, and Ctrl-C ends it with code 0.
#[test]
fn watch_prints_one_line_per_event_until_ctrl_c() {
    let (site, server) = (Site::new(), Server::start());
    for json in [true, false] {
        let arguments = if json { &["watch", "seat-", "--json"][..] } else { &["watch", "seat-"] };
        let mut watching =
            command(&site, &server, arguments).stdout(Stdio::piped()).spawn().expect("the binary starts");
        let lines = BufReader::new(watching.stdout.take().expect("a pipe")).lines();
        let (to, from) = std::sync::mpsc::channel();
        let reader = std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| to.send(line)));
        // It has begun when the first event comes through.
        let mut line = None;
        wait_until("it watches", || {
            let id = ask(&site, &server, &["acquire", "seat-0", "--json"], 0).json();
            ask(&site, &server, &["release", text(&id, "lease_id")], 0);
            line = from.recv_timeout(Duration::from_millis(200)).ok();
            line.is_some()
        });
        let grant = ask(&site, &server, &["acquire", "seat-14", "--ttl", "1h", "--holder", "ada", "--json"], 0).json();
        ask(&site, &server, &["acquire", "elsewhere"], if json { 0 } else { 3 });
        ask(&site, &server, &["revoke", "seat-14", "--reason", "a burst pipe"], 0);
        let next = || {
            let is_about = |line: &String| line.contains("seat-14");
            std::iter::from_fn(|| from.recv_timeout(common::PATIENCE).ok()).find(is_about).expect("a line comes")
        };
        let (granted, revoked) = (next(), next());
        let token = text(&grant, "token");
        if json {
            let [granted, revoked]: [Value; 2] =
                [granted, revoked].map(|line| serde_json::from_str(&line).expect("a line is JSON"));
            assert_eq!(
                (text(&granted, "kind"), text(&granted, "token"), text(&granted, "holder")),
                ("granted", token, "ada")
            );
            assert_eq!((text(&revoked, "kind"), text(&revoked, "reason")), ("revoked", "a burst pipe"));
            assert_eq!(granted["resources"], serde_json::json!(["seat-14"]));
            assert!(granted.get("lease_id").is_none(), "a secret is not told");
        } else {
            assert!(granted.contains(&format!("granted     seat-14  to ada, token {token}")), "{granted}");
            assert!(
                revoked.contains("revoked     seat-14  of ada") && revoked.ends_with(": a burst pipe"),
                "{revoked}"
            );
        }
        signal(i32::try_from(watching.id()).expect("a pid"), Signal::INT);
        assert_eq!(end_of(watching).code, 0);
        let _ = reader.join();
        assert!(from.try_iter().all(|line| !line.contains("elsewhere")), "only names under the prefix");
    }
}

/// Goal: watch on a directory says that it needs a server.
#[test]
fn watch_on_a_directory_says_that_it_needs_a_server() {
    let answer = Site::new().ask(&["watch", "seat-"]).with_code(2);
    answer.says_one_sentence();
    assert!(answer.err.contains("needs a server"), "{answer:?}");
}
