//! Clients that mean harm, or are broken: too many, too slow, of another protocol.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::client::{RespClient, command};
use super::common::server::{Server, serve};
use super::common::{PATIENCE, Site, pause, wait_until};
use super::{comes_to_rest, configured, dial, word};

fn raw(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.resp).expect("RESP listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket takes a timeout");
    stream
}

/// Everything until the server hangs up.
fn rest(mut stream: &TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Err(error) = stream.read_to_end(&mut bytes) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "it hangs up");
    }
    bytes
}

/// Whether the server has closed its end, read or not: the kernel says so in the state of its socket.
fn is_cut(stream: &TcpStream) -> bool {
    let ours = format!(":{:04X}", stream.local_addr().expect("a socket").port());
    let table = std::fs::read_to_string("/proc/self/net/tcp").expect("the sockets of this machine");
    // Of each socket: a number, its own end, the other end, its state; 01 is established.
    !table.lines().any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields.len() > 3 && fields[2].ends_with(&ours) && fields[3] == "01"
    })
}

/// Whether one more connection is let in and served.
fn answers(server: &Server) -> bool {
    let mut stream = raw(server);
    let mut bytes = [0; 7];
    stream.write_all(b"PING\r\n").is_ok() && stream.read_exact(&mut bytes).is_ok() && bytes.starts_with(b"+PONG")
}

/// Goal: HTTP on this port is cut off, and nothing that its body says is done.
#[test]
fn http_is_cut_off_and_does_nothing() {
    let site = Site::new();
    let server = Server::start(&site, &[]);
    let evil = "*6\r\n$3\r\nSET\r\n$4\r\nevil\r\n$1\r\nv\r\n$2\r\nNX\r\n$2\r\nPX\r\n$6\r\n600000\r\n";
    let typed = "SET evil v NX PX 600000\r\n";
    for head in [
        "POST / HTTP/1.1\r\nHost: localhost:7401\r\nContent-Length: 99\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "PUT /a HTTP/1.0\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\n\r\n",
        "post /\r\nhost: x\r\n\r\n",
        "POST /\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        for body in [evil, typed] {
            for cut in [true, false] {
                let mut stream = raw(&server);
                if cut {
                    // In two pieces, the second when the server has seen the first.
                    let _ = stream.write_all(head.as_bytes());
                    pause(Duration::from_millis(20));
                    let _ = stream.write_all(body.as_bytes());
                } else {
                    let _ = stream.write_all(format!("{head}{body}").as_bytes());
                }
                let told = rest(&stream);
                assert!(!told.starts_with(b"+OK") && told.len() < 400, "{head:?}: {}", String::from_utf8_lossy(&told));
            }
        }
    }
    let mut client = dial(&server);
    assert_eq!(client.ask(&["EXISTS", "evil"]), ":0\r\n");
    let mut hello = raw(&server);
    // The beginning of a TLS handshake.
    hello.write_all(b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00\n").expect("it reads");
    assert_eq!(
        word(&String::from_utf8_lossy(&RespClient::reply(&mut RespClient { stream: std::io::BufReader::new(hello) }))),
        "INVALID"
    );
}

/// Goal: those over the limit are told so and sent away, and there is room again when somebody leaves.
#[test]
fn too_many_connections_are_sent_away() {
    let site = Site::new();
    let server = configured(&site, "[limits]\nconnections = 5\n");
    let mut inside: Vec<RespClient> = (0..5).map(|_| dial(&server)).collect();
    inside.iter_mut().for_each(|client| assert_eq!(client.ask(&["PING"]), "+PONG\r\n"));
    let told = rest(&raw(&server));
    assert_eq!(word(&String::from_utf8_lossy(&told)), "QUOTA");
    inside.pop();
    wait_until("there is room again", || answers(&server));
}

/// Goal: with no file left for one more connection the server neither spins nor fills its log, and goes on later.
#[test]
fn no_files_left_costs_no_time() {
    let site = Site::new();
    let plain = serve(&site, &[]);
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "ulimit -n 160; exec \"$0\" \"$@\""]).arg(plain.get_program()).args(plain.get_args());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.current_dir(site.path("")).stdout(std::process::Stdio::null());
    command.stderr(std::fs::File::create(site.path("stderr")).expect("a file for stderr"));
    let server = Server::spawn(&site, &mut command);
    let mut crowd: Vec<RespClient> = (0..300).map(|_| dial(&server)).collect();
    comes_to_rest(server.pid());
    let said = server.said().lines().count();
    pause(Duration::from_secs(1));
    let more = server.said().lines().count() - said;
    assert!(more < 10 && said < 100, "{said} lines, then {more} in a second: {}", server.said());
    assert_eq!(crowd[0].ask(&["PING"]), "+PONG\r\n", "those who are in go on");
    crowd.truncate(1);
    wait_until("there is room again", || answers(&server));
}

/// Goal: who says nothing at all is cut off by the limit for the first byte, and by no other.
/// Method: every other limit is an hour. When it is exact: `src/resp/tests/limits.rs`.
#[test]
fn who_says_nothing_is_cut_off() {
    let site = Site::new();
    let server = configured(&site, "[limits]\nfirst_byte = \"500ms\"\nbody = \"1h\"\n");
    let (mut idle, mut half) = (dial(&server), raw(&server));
    assert_eq!(idle.ask(&["PING"]), "+PONG\r\n");
    half.write_all(b"PIN").expect("it reads");
    assert_eq!(rest(&raw(&server)), b"");
    assert_eq!(idle.ask(&["PING"]), "+PONG\r\n");
    half.write_all(b"G\r\n").expect("it reads");
    half.read_exact(&mut [0; 7]).expect("who had begun goes on");
}

/// Goal: who begins a command and does not end it is cut off in time, who is merely idle is not.
#[test]
fn half_a_command_is_cut_off() {
    let site = Site::new();
    let server = configured(&site, "[limits]\nfirst_byte = \"1h\"\nbody = \"500ms\"\n");
    let mut idle = dial(&server);
    assert_eq!(idle.ask(&["PING"]), "+PONG\r\n");
    for bytes in [&b"*2\r\n$4\r\nECHO\r\n"[..], b"PIN", b"*1\r\n$4\r\nPING\r\n*1\r\n$4"] {
        let mut stream = raw(&server);
        stream.write_all(bytes).expect("it reads");
        let told = rest(&stream);
        assert!(told.is_empty() || told == b"+PONG\r\n");
    }
    // A byte now and then does not help.
    let mut drip = raw(&server);
    wait_until("the drip is cut off", || {
        pause(Duration::from_millis(100));
        drip.write_all(b"x").is_err()
    });
    assert_eq!(idle.ask(&["PING"]), "+PONG\r\n");
}

/// Goal: who does not take its answers, or what it watches, is cut off; others go on.
#[test]
fn who_does_not_read_is_cut_off() {
    let site = Site::new();
    let server = configured(&site, "[limits]\nwrite_stall = \"500ms\"\n");
    let mut watcher = dial(&server);
    assert_eq!(watcher.ask(&["LEASE", "WATCH"]), "+OK\r\n");
    let mut slow = raw(&server);
    slow.set_write_timeout(Some(PATIENCE)).expect("a socket takes a timeout");
    let bytes = command(&["ECHO", &"x".repeat(60_000)]);
    let end = (0..2000).find_map(|_| slow.write_all(&bytes).err()).expect("it is cut off");
    assert_ne!(end.kind(), std::io::ErrorKind::WouldBlock, "it was left to wait");
    let mut client = dial(&server);
    let name = "n".repeat(500);
    for round in 0..60 {
        let many: Vec<u8> = (0..500)
            .flat_map(|at| command(&["SET", &format!("{name}{round}-{at}"), "v", "NX", "PX", "600000"]))
            .collect();
        client.send(&many);
        (0..500).for_each(|_| assert_eq!(client.reply(), b"+OK\r\n"));
    }
    wait_until("the watcher is cut off", || is_cut(watcher.stream.get_ref()));
    let mut heard = Vec::new();
    let _ = watcher.stream.read_to_end(&mut heard);
    assert!(heard.len() < 30_000 * 500, "the watcher was cut off after {} bytes", heard.len());
}

/// Goal: what is announced and not sent takes no memory, and odd farewells take no processor time.
#[test]
fn announcements_take_no_memory() {
    let site = Site::new();
    let server = Server::start(&site, &[]);
    let rss = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("it runs");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("its size");
        line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("KiB")
    };
    let before = rss();
    let crowd: Vec<TcpStream> = (0..1000)
        .map(|_| {
            let mut stream = raw(&server);
            stream.write_all(b"*1024\r\n$65536\r\n1234567890").expect("it reads");
            stream
        })
        .collect();
    assert_eq!(dial(&server).ask(&["PING"]), "+PONG\r\n");
    let grown = rss().saturating_sub(before);
    println!("{grown} KiB for 1,000 announcements of 64 MiB");
    assert!(grown < 20_000, "{grown} KiB");
    for (index, stream) in crowd.iter().enumerate() {
        if index % 2 == 0 {
            stream.shutdown(std::net::Shutdown::Write).expect("a socket");
        }
    }
    comes_to_rest(server.pid());
}
