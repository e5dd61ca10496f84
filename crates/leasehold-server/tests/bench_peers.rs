//! `leasehold bench` against somebody else's server. Needs the real one: without redis-server it fails.

#![cfg(feature = "peers")]

mod common;

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use common::figures::{FIGURES, positive};
use common::{Site, wait_until};

/// A Redis of our own, gone with the test.
struct Redis {
    child: Child,
    port: u16,
    dir: Site,
}

impl Redis {
    fn start() -> Self {
        let dir = Site::new();
        // Free a moment ago: Redis cannot be asked to choose one.
        let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port();
        let mut redis = Command::new("redis-server");
        redis.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir"]);
        redis.arg(dir.path(".")).stdin(Stdio::null()).stdout(Stdio::null());
        let child = redis.spawn().expect("redis-server is installed (apt-get install redis-server)");
        wait_until("redis-server listens", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
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
    let url = format!("redis://127.0.0.1:{}/?protocol=resp2", redis.port);
    let answer = redis.dir.ask(&["bench", "--url", &url, "--clients", "4", "--for", "1s", "--json"]).with_code(0);
    let found = answer.json();
    assert_eq!(found["url"], format!("redis://127.0.0.1:{}/", redis.port));
    assert_eq!(found["clients"], 4);
    positive(&found, FIGURES);
    assert_eq!(redis.keys(), "0", "every pair was released");
}

/// Goal: several targets of one run, ours and theirs, in one table.
#[test]
fn targets_of_all_kinds_stand_side_by_side() {
    let redis = Redis::start();
    let (ours, theirs) = (redis.dir.url(), format!("redis://127.0.0.1:{}", redis.port));
    let arguments = ["bench", "--url", &ours, "--url", &theirs, "--clients", "2", "--for", "500ms"];
    let answer = redis.dir.ask(&arguments).with_code(0);
    let rows: Vec<&str> = answer.out.lines().collect();
    assert!(rows[1].starts_with("embedded:") && rows[2].starts_with("redis://"), "{answer:?}");
}

#[test]
fn a_peer_that_is_not_there_is_unavailable() {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port();
    for scheme in ["redis", "etcd", "zk", "postgres"] {
        let url = format!("{scheme}://ada:s3cret@127.0.0.1:{port}");
        let answer = Site::new().ask(&["bench", "--url", &url, "--for", "500ms", "--clients", "1"]).with_code(4);
        answer.says_one_sentence();
        assert!(answer.err.contains(&format!("no answer from {scheme}://127.0.0.1:{port}")), "{answer:?}");
        assert!(!answer.err.contains("s3cret"), "{answer:?}");
    }
}
