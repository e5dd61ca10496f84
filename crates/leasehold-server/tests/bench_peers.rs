//! `leasehold bench` against somebody else's server. Needs the real ones: without redis-server and etcd it fails.

#![cfg(feature = "peers")]

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use common::figures::{FIGURES, positive};
use common::{Site, wait_until};
use leasehold_harness::free_port;

/// A Redis of our own, gone with the test.
struct Redis {
    child: Child,
    port: u16,
    dir: Site,
}

impl Redis {
    fn start() -> Self {
        let dir = Site::new();
        let port = free_port();
        let mut redis = Command::new("redis-server");
        redis.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir"]);
        redis.arg(dir.path(".")).stdin(Stdio::null()).stdout(Stdio::null());
        let child = redis.spawn().expect("redis-server is installed (apt-get install redis-server)");
        wait_until("redis-server listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Self { child, port, dir }
    }

    fn keys(&self) -> String {
        let mut cli = Command::new("redis-cli");
        let answer = cli.args(["-p", &self.port.to_string(), "dbsize"]).output().expect("redis-cli is installed");
        String::from_utf8_lossy(&answer.stdout).trim().to_owned()
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Goal: a peer gets the object of the contract, no secret of its URL is shown, and nothing stays there.
#[test]
fn redis_is_driven_by_its_own_client() {
    let redis = Redis::start();
    // Redis without a password takes any for its default user only with a warning: so none is set, none is sent.
    let url = format!("bare+redis://127.0.0.1:{}/?protocol=resp2", redis.port);
    let answer = redis.dir.ask(&["bench", "--url", &url, "--clients", "4", "--for", "1s", "--json"]).with_code(0);
    let found = answer.json();
    assert_eq!(found["url"], format!("bare+redis://127.0.0.1:{}/", redis.port));
    assert_eq!(found["clients"], 4);
    positive(&found, FIGURES);
    assert_eq!(redis.keys(), "0", "every pair was released");
}

/// Goal: several targets of one run, ours and theirs, in one table.
#[test]
fn targets_of_all_kinds_stand_side_by_side() {
    let redis = Redis::start();
    let (ours, theirs) = (redis.dir.url(), format!("bare+redis://127.0.0.1:{}", redis.port));
    let arguments = ["bench", "--url", &ours, "--url", &theirs, "--clients", "2", "--for", "500ms"];
    let answer = redis.dir.ask(&arguments).with_code(0);
    let rows: Vec<&str> = answer.out.lines().collect();
    assert!(rows[1].starts_with("embedded:") && rows[2].starts_with("bare+redis://"), "{answer:?}");
}

/// An etcd of our own, gone with the test.
struct Etcd {
    child: Child,
    port: u16,
    dir: Site,
}

impl Etcd {
    fn start() -> Self {
        let dir = Site::new();
        let (port, peer_port) = (free_port(), free_port());
        let (client, peer) = (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{peer_port}"));
        let mut etcd = Command::new("etcd");
        etcd.arg("--data-dir").arg(dir.path("etcd"));
        etcd.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        etcd.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        etcd.args(["--initial-cluster", &format!("default={peer}")]);
        etcd.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = etcd.spawn().expect("etcd is installed (apt-get install etcd-server)");
        let etcd = Self { child, port, dir };
        wait_until("etcd has a leader", || {
            TcpStream::connect(("127.0.0.1", port)).is_ok() && etcd.get("/health").contains(r#""health":"true""#)
        });
        etcd
    }

    fn get(&self, path: &str) -> String {
        self.request(&format!("GET {path} HTTP/1.0\r\n\r\n"))
    }

    /// A call by etcd's JSON gateway, which is none of our code.
    fn post(&self, path: &str, body: &str) -> String {
        let answer = self.request(&format!("POST {path} HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
        assert!(answer.starts_with("HTTP/1.0 200"), "{path}: {answer}");
        answer
    }

    fn request(&self, text: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("etcd listens");
        stream.write_all(text.as_bytes()).expect("etcd reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("etcd answers");
        answer
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Goal: the messages that we wrote by hand are etcd's; nothing stays there; a user of the URL is logged in.
/// Method: a real etcd, once over one endpoint and once over two, then once more with authentication switched on.
#[test]
fn etcd_is_driven_by_messages_of_our_own() {
    let etcd = Etcd::start();
    let place = format!("127.0.0.1:{}", etcd.port);
    let bench = |url: &str| etcd.dir.ask(&["bench", "--url", url, "--clients", "3", "--for", "500ms", "--json"]);
    for url in [format!("bare+etcd://{place}"), format!("bare+etcd://{place},{place}")] {
        let found = bench(&url).with_code(0).json();
        assert_eq!((&found["url"], &found["clients"]), (&url.clone().into(), &3.into()));
        positive(&found, FIGURES);
    }
    // Of all keys, from "\0" on.
    let keys = etcd.post("/v3/kv/range", r#"{"key":"AA==","range_end":"AA==","count_only":true}"#);
    assert!(!keys.contains("count"), "every pair was released: {keys}");
    let leases = etcd.post("/v3/lease/leases", "{}");
    assert!(!leases.contains(r#""leases""#), "every lease was revoked: {leases}");

    etcd.post("/v3/auth/user/add", r#"{"name":"root","password":"s3cret"}"#);
    etcd.post("/v3/auth/role/add", r#"{"name":"root"}"#);
    etcd.post("/v3/auth/user/grant", r#"{"user":"root","role":"root"}"#);
    etcd.post("/v3/auth/enable", "{}");
    bench(&format!("bare+etcd://root:s3cret@{place}")).with_code(0);
    let stranger = bench(&format!("bare+etcd://root:wr0ng@{place}")).with_code(4);
    stranger.says_one_sentence();
    assert!(!stranger.err.contains("wr0ng"), "{stranger:?}");
}

#[test]
fn a_peer_that_is_not_there_is_unavailable() {
    let port = free_port();
    for scheme in ["bare+redis", "bare+etcd", "bare+zk", "bare+postgres"] {
        let url = format!("{scheme}://ada:s3cret@127.0.0.1:{port}");
        let answer = Site::new().ask(&["bench", "--url", &url, "--for", "500ms", "--clients", "1"]).with_code(4);
        answer.says_one_sentence();
        assert!(answer.err.contains(&format!("no answer from {scheme}://127.0.0.1:{port}")), "{answer:?}");
        assert!(!answer.err.contains("s3cret"), "{answer:?}");
    }
}
