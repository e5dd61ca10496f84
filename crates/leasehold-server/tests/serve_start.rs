//! How the real server starts, refuses to, and ends.

mod common;

use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use common::server::{Server, key, serve};
use common::{Site, end_of, wait_until};
use rustix::process::Signal;

const FREE: [&str; 4] = ["--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"];

/// Goal: what cannot be served is one sentence with the right code, and nothing is left behind.
#[test]
fn what_cannot_be_served_is_said_in_one_sentence() {
    let site = Site::new();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let taken = taken.local_addr().expect("its address").to_string();
    std::fs::write(site.path("file"), "").expect("written");
    std::fs::write(site.path("bad.toml"), "data = \"d\"\nhtpp = 1\n").expect("written");
    let other = Server::start(&site, &[]);
    let table: &[(&[&str], i32, &str)] = &[
        (&["--http", &taken, "--resp", "127.0.0.1:0"], 4, "another program has it: choose another with --http"),
        (&["--http", "127.0.0.1:0", "--resp", &taken], 4, "choose another with --resp"),
        (&["--http", "192.0.2.7:7400"], 2, "leasehold key create"),
        (&["--http", "nonsense"], 2, "127.0.0.1:7400"),
        (&[&FREE[..], &["--data", "file/x"]].concat(), 4, "file/x"),
        (&[&FREE[..], &["--data", "/proc/nothing"]].concat(), 4, "/proc/nothing"),
        (&[&FREE[..], &["--data", "data"]].concat(), 4, &format!("pid {}", other.pid())),
        (&["--config", "bad.toml"], 2, "line 2: unknown field `htpp`"),
        (&["--config", "none.toml"], 2, "none.toml cannot be read"),
        (&["--engine", "mysql://u:hunter2@h"], 2, "serves the embedded engine, another server"),
        (&["--tls-cert", "file"], 2, "--tls-key"),
        (&[&FREE[..], &["--tls-cert", "file", "--tls-key", "file"]].concat(), 2, "file holds no certificate"),
        (
            &["--otel-endpoint", "https://u:hunter2@h"],
            2,
            if cfg!(feature = "otel") { "http://" } else { "OpenTelemetry" },
        ),
    ];
    for (arguments, code, part) in table {
        let mut command = site.command(&[&["serve"], *arguments].concat());
        let answer = end_of(site.start(command.env("LEASEHOLD_DATA", site.path("new")))).with_code(*code);
        answer.says_one_sentence();
        assert!(answer.err.contains(part) && !answer.err.contains("hunter2"), "{arguments:?}: {answer:?}");
    }
    assert!(!site.path("new").exists(), "a refused start makes no directory");
}

/// Goal: on an address that others can reach it takes a key, and then TLS or the word for doing without.
#[test]
fn a_public_address_takes_keys_and_tls() {
    let site = Site::new();
    let public = ["serve", "--http", "0.0.0.0:0", "--resp", "127.0.0.1:0", "--data", "data"];
    assert!(site.ask(&public).with_code(2).err.contains("key create"));
    key(&site, &["--role", "admin"]);
    assert!(site.ask(&public).with_code(2).err.contains("allow_plain"));
    let mut command = site.command(&["serve", "--http", "0.0.0.0:0", "--resp", "127.0.0.1:0", "--data", "data"]);
    command.env("LEASEHOLD_ALLOW_PLAIN", "true").stdout(Stdio::null());
    command.stderr(std::fs::File::create(site.path("stderr")).expect("a file"));
    let server = Server::spawn(&site, &mut command);
    assert!(server.said().contains("not encrypted"), "{}", server.said());
    server.stop().with_code(0);
}

/// Goal: the printed config is a config, and the environment stands over the file.
#[test]
fn the_printed_config_starts_a_server() {
    let site = Site::new();
    let printed = site.ask(&["serve", "--print-config"]).with_code(0);
    std::fs::write(site.path("c.toml"), &printed.out).expect("written");
    let server = Server::start(&site, &["--config", "c.toml"]);
    assert!(site.path("data").exists() && !site.path("leasehold-data").exists());
    assert!(server.said().contains("redis-cli -h 127.0.0.1 -p "), "{}", server.said());
    assert!(server.said().contains("/ (box office)") && server.said().contains("/locks"), "{}", server.said());
    server.stop().with_code(0);
}

/// Goal: whatever the umask of the caller, files are for their owner alone.
#[test]
fn files_are_for_their_owner() {
    let site = Site::new();
    let program = env!("CARGO_BIN_EXE_leasehold");
    let mut command = Command::new("sh");
    command.args(["-c", "umask 000; exec \"$@\"", "sh", program, "serve"]).args(FREE);
    command.env("LEASEHOLD_DATA", site.path("data")).stdout(Stdio::null());
    command.stderr(std::fs::File::create(site.path("stderr")).expect("a file"));
    let server = Server::spawn(&site, &mut command);
    assert_eq!(server.connect().ask(&["SET", "a", "1", "NX", "PX", "60000"]), "OK");
    key(&site, &["--role", "read"]);
    let mode = |path| std::fs::metadata(path).expect("it is there").permissions().mode() & 0o077;
    assert_eq!(mode(site.path("data")), 0);
    for entry in std::fs::read_dir(site.path("data")).expect("the directory").flatten() {
        assert_eq!(mode(entry.path()), 0, "{:?}", entry.path());
    }
}

/// Goal: asked to end it ends with 0; who waits is told; what was granted is there after the next start; a service
/// manager is told of both.
#[test]
fn it_ends_in_order_and_tells_those_who_wait() {
    let site = Site::new();
    let manager = std::os::unix::net::UnixDatagram::bind(site.path("notify")).expect("a socket");
    manager.set_read_timeout(Some(common::PATIENCE)).expect("a timeout");
    let told = || {
        let mut bytes = [0; 64];
        let count = manager.recv(&mut bytes).expect("it tells");
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    };
    let server = Server::spawn(&site, serve(&site, &[]).env("NOTIFY_SOCKET", site.path("notify")));
    assert_eq!(told(), "READY=1");
    let (mut holder, mut waiter) = (server.connect(), server.connect());
    assert_eq!(holder.ask(&["SET", "seat", "ada", "NX", "PX", "60000"]), "OK");
    waiter.send(&["LEASE", "ACQUIRE", "60000", "WAIT", "60000", "RESOURCES", "seat"]);
    wait_until("it waits", || holder.ask(&["LEASE", "GET", "seat"]).contains("queue_len 1"));
    server.signal(Signal::TERM);
    assert_eq!(told(), "STOPPING=1");
    assert!(waiter.reply().starts_with("-UNAVAILABLE"), "who waits is told");
    let address = server.resp;
    let answer = server.end().with_code(0);
    assert!(answer.err.contains("SIGTERM"), "{answer:?}");
    assert!(TcpStream::connect(address).is_err(), "nobody listens");
    let server = Server::start(&site, &[]);
    assert_eq!(server.connect().ask(&["GET", "seat"]), "ada");
    server.signal(Signal::INT);
    server.end().with_code(0);
}

/// The server under strace with a fault, its pid from the directory's lock.
fn under_strace(site: &Site, fault: &str) -> Server {
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync", "-e", &format!("inject=fdatasync:{fault}")]);
    command.arg(env!("CARGO_BIN_EXE_leasehold")).arg("serve").args(FREE);
    command.env("LEASEHOLD_DATA", site.path("data")).stdout(Stdio::null());
    command.stderr(std::fs::File::create(site.path("stderr")).expect("a file"));
    Server::spawn(site, &mut command)
}

/// Goal: a disk that fails ends the server with code 4 and says why; whoever asked meanwhile is told no lie.
#[test]
fn a_disk_that_fails_ends_it_with_four() {
    let site = Site::new();
    drop(Server::start(&site, &[]).stop());
    let server = under_strace(&site, "error=EIO:when=12+");
    let mut client = server.connect();
    let mut granted = Vec::new();
    for n in 0..1000 {
        let name = format!("n{n}");
        match client.ask(&["SET", &name, "v", "NX", "PX", "3600000"]).as_str() {
            "OK" => granted.push(name),
            other => {
                assert!(other.is_empty() || other.starts_with("-UN"), "{other}");
                break;
            }
        }
    }
    let answer = server.end().with_code(4);
    assert!(answer.err.contains("the engine stopped because the disk failed"), "{answer:?}");
    let server = Server::start(&site, &[]);
    let mut client = server.connect();
    assert!(!granted.is_empty() && granted.iter().all(|name| client.ask(&["GET", name]) == "v"));
}

/// Goal: a second signal ends it at once, when the first one hangs on a slow disk.
#[test]
fn a_second_signal_ends_it_at_once() {
    let site = Site::new();
    drop(Server::start(&site, &[]).stop());
    let server = under_strace(&site, "delay_enter=15000000:when=12+");
    let lock = std::fs::read_to_string(site.path("data/LOCK")).expect("the lock");
    let pid: i32 = lock.trim().parse().expect("a pid");
    let mut client = server.connect();
    for n in 0..40 {
        client.send(&["SET", &format!("n{n}"), "v", "NX", "PX", "60000"]);
        common::pause(std::time::Duration::from_millis(5));
    }
    common::signal(pid, Signal::TERM);
    server.wait_for("once more ends it at once");
    common::signal(pid, Signal::TERM);
    // strace itself may wait for its delay; the server does not: had it waited, it would have ended well.
    wait_until("it is gone", || !common::is_alive(pid));
    assert_eq!(server.end().code, 143);
}

/// Goal: a stderr that takes nothing freezes neither answers nor the end.
/// Method: stderr is a pipe that nobody reads; audit lines fill it many times over.
#[test]
fn a_stuck_stderr_freezes_nothing() {
    let site = Site::new();
    // What it says cannot be read, so it is told its ports.
    let [http, resp] = [(); 2].map(|()| format!("127.0.0.1:{}", leasehold_harness::free_port()));
    let mut command = site.command(&["serve", "--http", &http, "--resp", &resp, "--data", "data"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut stream = None;
    wait_until("it listens", || {
        stream = TcpStream::connect(&resp).ok();
        stream.is_some()
    });
    let stream = stream.expect("connected");
    stream.set_read_timeout(Some(common::PATIENCE)).expect("a timeout");
    let mut client = common::server::Client::with(stream);
    let reason = "r".repeat(250);
    for _ in 0..4000 {
        assert_eq!(client.ask(&["LEASE", "REVOKE", "nothing", "REASON", &reason]), "0");
    }
    assert_eq!(client.ask(&["PING"]), "PONG");
    common::signal(child.id(), Signal::TERM);
    wait_until("it ends", || child.try_wait().expect("ours").is_some());
    assert_eq!(end_of(child).code, 0);
}

/// Goal: `--demo` shows holders, waiters and all three modes, and moves.
#[test]
fn the_demo_is_alive() {
    let site = Site::new();
    let server = Server::start(&site, &["--demo"]);
    let mut client = server.connect();
    for name in ["demo/seat-14", "demo/gpu-slots", "demo/price-list", "demo/leader/scheduler"] {
        wait_until(name, || client.ask(&["LEASE", "GET", name]).contains("token"));
    }
    wait_until("somebody waits", || client.ask(&["LEASE", "GET", "demo/seat-14"]).contains("waiting_ms"));
    let first = client.ask(&["LEASE", "GET", "demo/seat-14"]);
    let token = |text: &str| text.split("token ").nth(1).and_then(|rest| rest.split(' ').next()).map(str::to_owned);
    wait_until("the seat changes hands", || {
        let next = token(&client.ask(&["LEASE", "GET", "demo/seat-14"]));
        next.is_some() && next != token(&first)
    });
    server.stop().with_code(0);
}

/// Goal: logs can be read by programs: every line is one JSON object, audit lines among them.
#[test]
fn json_logs_are_json() {
    let site = Site::new();
    let mut command = serve(&site, &["--log-format", "json"]);
    let mut child = command.spawn().expect("it starts");
    let said = || std::fs::read_to_string(site.path("stderr")).expect("stderr");
    let port = || {
        let line = said().lines().next().map(str::to_owned)?;
        let json: serde_json::Value = serde_json::from_str(&line).ok()?;
        json["fields"]["resp"].as_str().map(str::to_owned)
    };
    wait_until("it says where it listens", || port().is_some());
    let stream = TcpStream::connect(port().expect("said")).expect("it listens");
    stream.set_read_timeout(Some(common::PATIENCE)).expect("a timeout");
    let mut client = common::server::Client::with(stream);
    assert_eq!(client.ask(&["LEASE", "REVOKE", "a\"b", "REASON", "because"]), "0");
    common::signal(child.id(), Signal::TERM);
    wait_until("it ends", || child.try_wait().expect("ours").is_some());
    let lines: Vec<serde_json::Value> = said().lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let audit = lines.iter().find(|line| line["target"] == "leasehold::audit").expect("an audit line");
    assert_eq!((&audit["fields"]["what"], &audit["fields"]["names"]), (&"revoke".into(), &"a\"b".into()));
}

/// Goal: clients that take every connection there is do not take the descriptors that the journal needs: whoever is
/// connected goes on writing, over many segments.
/// Method: a low limit of open files, more connections on both ports than it has room for, and values that fill segments.
#[test]
fn connections_leave_descriptors_for_the_journal() {
    let site = Site::new();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 128; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_leasehold"), "serve"]).args(FREE);
    command.env("LEASEHOLD_DATA", site.path("data")).stdout(Stdio::null());
    command.stderr(std::fs::File::create(site.path("stderr")).expect("a file"));
    let server = Server::spawn(&site, &mut command);
    server.wait_for("64 connections");
    let mut client = server.connect();
    let taken: Vec<_> = [server.http, server.resp]
        .iter()
        .flat_map(|address| (0..150).map(move |_| TcpStream::connect(address)))
        .collect();
    let value = "v".repeat(4000);
    for n in 0..3000 {
        assert_eq!(client.ask(&["SET", &format!("n{n}"), &value, "NX", "PX", "1000"]), "OK", "{}", server.said());
    }
    drop(taken);
    server.stop().with_code(0);
}
