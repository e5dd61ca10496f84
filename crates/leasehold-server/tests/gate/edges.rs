//! What goes wrong around a request: framing, an upstream that is not there, an end in good order.

use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use crate::common::{Answer, Site, now, pause, signal, wait_until};
use crate::process::{GateProcess, HttpClient, gate_command, shown};
use crate::upstream::{Entry, Upstream};

/// Goal: a head with two lengths, an upgrade and CONNECT are refused, and nothing of them reaches the upstream.
#[test]
fn ambiguous_heads_and_upgrades_are_refused() {
    let (site, upstream) = (Site::new(), Upstream::start());
    let gate = GateProcess::start(&site, &upstream.url(), &[]);
    let fenced = "Host: a\r\nFencing-Token: 1\r\nFencing-Resource: a\r\n";
    for lengths in
        ["Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "Transfer-Encoding: chunked\r\ncontent-length:5\r\n"]
    {
        // On a fresh connection, and after another request on the same one.
        for before in [0, 1] {
            let mut client = gate.connect();
            for _ in 0..before {
                assert_eq!(client.ask("GET", "/", &[], b"").status, 200);
            }
            client.write(format!("POST / HTTP/1.1\r\n{fenced}{lengths}\r\n0\r\n\r\n").as_bytes());
            assert_eq!(client.read_answer().unwrap().verdict(), (400, "invalid".into()), "{lengths:?} {before}");
        }
    }
    // One length is fine.
    let mut client = gate.connect();
    client
        .write(format!("POST / HTTP/1.1\r\n{fenced}Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n").as_bytes());
    assert_eq!(client.read_answer().unwrap().text(), "1 bytes");
    for head in ["POST /chat HTTP/1.1", "CONNECT a.example:443 HTTP/1.1"] {
        let mut client = gate.connect();
        client.write(format!("{head}\r\n{fenced}Connection: upgrade\r\nUpgrade: websocket\r\n\r\n").as_bytes());
        assert_eq!(client.read_answer().unwrap().status, 501, "{head}");
    }
    assert_eq!(upstream.began().len(), 3);
}

/// Goal: an upgrade passes where the method is not fenced, and lives longer than the limits of a request.
#[test]
fn an_upgrade_passes_without_a_fence() {
    let (site, upstream) = (Site::new(), Upstream::start());
    let gate = GateProcess::start(&site, &upstream.url(), &[]);
    let mut client = gate.connect();
    client.write(b"GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n");
    let head = client.read_head().to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 101") && head.contains("upgrade: echo"), "{head}");
    for line in ["hello\n", "once more\n"] {
        client.write(line.as_bytes());
        assert_eq!(client.read_line(), line);
    }
    // An open one does not keep the gate from its end.
    gate.stop().with_code(0);
    assert_eq!(client.read_line(), "");
}

/// Goal: "nothing was sent" and "it may have taken effect" are told apart, and nothing is sent twice.
#[test]
fn a_failing_upstream_is_told_from_a_silent_one() {
    let (site, upstream) = (Site::new(), Upstream::start());
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let gate = GateProcess::start(&site, &format!("http://{nobody}"), &[]);
    let away = gate.post("/", &shown(1, &["a"]));
    assert_eq!(away.verdict(), (503, "unavailable".into()));
    assert!(away.text().contains("nothing was sent"), "{}", away.text());
    // It was admitted, and its token is remembered; it has left.
    assert_eq!(gate.post("/", &shown(2, &["a"])).status, 503);
    assert_eq!(gate.metric("leasehold_gate_flying"), 0.0);
    gate.stop().with_code(0);

    let gate = GateProcess::start(&site, &upstream.url(), &[]);
    // The first request leaves an idle connection; the second one dies on it.
    let mut client = gate.connect();
    assert_eq!(client.post("/", &shown(3, &["a"]), b"x").status, 200);
    assert_eq!(client.post("/die", &shown(3, &["a"]), b"x").verdict(), (504, "unknown_outcome".into()));
    assert_eq!(upstream.began().iter().filter(|seen| seen.path == "/die").count(), 1, "it was sent twice");
    assert_eq!(client.post("/", &shown(4, &["a"]), b"x").status, 200);
    assert_eq!(upstream.connections(), 2, "the first connection was kept alive, the broken one was not");
    assert_eq!(gate.metric("leasehold_gate_unanswered_total"), 1.0);
}

/// Goal: after a signal, requests under way are answered, new ones are not taken, and the gate ends with 0.
#[test]
fn a_gate_ends_in_good_order() {
    let (site, upstream) = (Site::new(), Upstream::start());
    let gate = GateProcess::start(&site, &upstream.url(), &[]);
    let address = gate.address;
    thread::scope(|scope| {
        let open = scope.spawn(|| gate.connect().post("/hold/last", &shown(1, &["a"]), b"x"));
        upstream.wait_for_began(1);
        signal(gate.pid(), Signal::TERM);
        crate::common::wait_until("the port is closed", || std::net::TcpStream::connect(address).is_err());
        upstream.release("last");
        assert_eq!(open.join().unwrap().status, 200);
    });
    let ended = gate.stop_quietly();
    assert_eq!((ended.code, ended.err.contains("cut off")), (0, false), "{ended:?}");
}

/// Goal: no second gate takes the memory over while requests of the first one are still with the service.
#[test]
fn a_gate_that_ends_keeps_its_directory_until_the_last_answer() {
    let (site, upstream) = (Site::new(), Upstream::start());
    let gate = GateProcess::start(&site, &upstream.url(), &[]);
    let mut client = gate.connect();
    client.send("POST", "/hold/last", &shown(1, &["a"]).headers(), b"x");
    upstream.wait_for_began(1);
    // Without its client the request has no connection that the gate would wait for.
    drop(client);
    let address = gate.address;
    signal(gate.pid(), Signal::TERM);
    wait_until("the port is closed", || std::net::TcpStream::connect(address).is_err());
    for _ in 0..5 {
        pause(Duration::from_millis(100));
        let mut second = gate_command(&site, &upstream.url(), &[]);
        let log = std::fs::File::create(site.path("second")).unwrap();
        let mut second = second.stderr(log).spawn().unwrap();
        let until = now() + Duration::from_secs(5);
        while second.try_wait().unwrap().is_none() && now() < until {
            pause(Duration::from_millis(5));
        }
        let _ = second.kill();
        let said = std::fs::read_to_string(site.path("second")).unwrap();
        assert_eq!(second.wait().unwrap().code(), Some(4), "a second gate has the directory: {said}");
    }
    upstream.release("last");
    assert_eq!(gate.stop_quietly().code, 0);
    assert!(!upstream.entries().contains(&Entry::Gone(1)), "{:?}", upstream.entries());
    let gate = GateProcess::start(&site, &upstream.url(), &[]);
    assert_eq!(gate.post("/", &shown(2, &["a"])).status, 200);
    assert_eq!(upstream.judge(), Ok(2));
}

/// Goal: connections have a limit below that of open files; whoever is over it is told so, those who are in are served,
/// and the metrics can still be read.
#[test]
fn connections_over_the_limit_are_told_so() {
    let (site, upstream) = (Site::new(), Upstream::start());
    let plain = gate_command(&site, &upstream.url(), &[]);
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "ulimit -n 104; exec \"$0\" \"$@\""]).arg(plain.get_program()).args(plain.get_args());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.stdout(std::process::Stdio::null()).stderr(std::fs::File::create(site.path("stderr")).unwrap());
    let gate = GateProcess::spawn(&site, &mut command);
    let mut open: Vec<_> = (0..60).map(|_| gate.connect()).collect();
    let statuses: Vec<u16> = open
        .iter_mut()
        .map(|client| {
            client.try_write(
                b"POST / HTTP/1.1\r\nHost: a\r\nFencing-Token: 1\r\nFencing-Resource: a\r\nContent-Length: 0\r\n\r\n",
            );
            client.read_answer().map_or(0, |answer| answer.status)
        })
        .collect();
    let count = |status: u16| statuses.iter().filter(|seen| **seen == status).count();
    assert!((10..=20).contains(&count(200)), "{statuses:?}");
    assert!(count(429) >= 10 && count(429) + count(0) + count(200) == 60, "{statuses:?}");
    assert_eq!(gate.metric("leasehold_fence_admitted_total{kind=\"gate\"}"), count(200) as f64);
    drop(open);
    wait_until("there is room again", || gate.connect().try_status() == 200);
}

impl HttpClient {
    /// The status of a request that may not be taken; 0 without an answer.
    fn try_status(&mut self) -> u16 {
        self.try_write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        self.read_answer().map_or(0, |answer| answer.status)
    }
}

/// Goal: bad usage is one sentence and exit code 2, without the URL.
#[test]
fn bad_usage_is_one_sentence() {
    let site = Site::new();
    let ask = |upstream: &str, arguments: &[&str]| {
        let mut command = gate_command(&site, upstream, arguments);
        Answer::of(&command.stderr(std::process::Stdio::piped()).output().unwrap())
    };
    for (upstream, arguments, part) in [
        ("ftp://u:hunter2@a", vec![], "http://"),
        ("http://u:hunter2@a", vec![], "credentials"),
        ("http://a", vec!["--drain", "0s"], "--drain"),
        ("http://a", vec!["--unfenced", "get"], "capitals"),
        ("http://a", vec!["--listen", "8080"], "127.0.0.1:8080"),
        ("http://a", vec!["--tls-cert", "/nowhere", "--tls-key", "/nowhere"], "/nowhere"),
    ] {
        let answer = ask(upstream, &arguments).with_code(2);
        assert!(answer.err.contains(part) && !answer.err.contains("hunter2"), "{answer:?}");
        assert_eq!(answer.err.lines().count(), 1, "{answer:?}");
    }
}
