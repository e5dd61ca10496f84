//! The RESP port of the real binary, over raw sockets.

#[path = "../common/mod.rs"]
mod common;

mod bytes;
#[path = "../../src/resp/tests/client.rs"]
mod client;
mod crash;
mod engine;
mod hostile;
mod keys;
mod limits;
mod truth;
mod waiting;
mod watch;

use client::RespClient;
use common::Site;
use common::server::Server;

/// A connection to the server's RESP port.
fn dial(server: &Server) -> RespClient {
    RespClient::to(server.resp)
}

/// A server with these lines in its config file.
fn configured(site: &Site, lines: &str) -> Server {
    let path = site.path("leasehold.toml");
    std::fs::write(&path, lines).expect("a config file");
    Server::start(site, &["--config", path.to_str().expect("UTF-8")])
}

/// The first word of an error.
#[track_caller]
fn word(reply: &str) -> &str {
    let text = reply.strip_prefix('-').unwrap_or_else(|| panic!("an error, not {reply:?}"));
    assert!(reply.ends_with("\r\n") && reply.matches('\n').count() == 1, "one line: {reply:?}");
    text.split([' ', '\r']).next().expect("a word")
}

/// The lines of a reply.
fn lines(reply: &str) -> Vec<&str> {
    reply.trim_end().split("\r\n").collect()
}

/// The lease id and the token of a grant.
#[track_caller]
fn granted(reply: &str) -> (String, u64) {
    let lines = lines(reply);
    assert!(lines[0] == "*3" || lines[0] == "*4", "a grant, not {reply:?}");
    (lines[2].to_owned(), lines[3][1..].parse().expect("a token"))
}

/// How many wait for a name.
fn queue(client: &mut RespClient, name: &str) -> u64 {
    let reply = client.ask(&["LEASE", "GET", name]);
    lines(&reply).last().and_then(|last| last.strip_prefix(':')?.parse().ok()).unwrap_or(0)
}

/// Milliseconds of processor time that a process has used.
fn cpu_ms(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let fields: Vec<&str> = stat.rsplit_once(')').expect("a name").1.split_whitespace().collect();
    (fields[11].parse::<u64>().expect("ticks") + fields[12].parse::<u64>().expect("ticks")) * 10
}

/// Waits until a process does next to nothing for a second: an idle server sleeps, a broken one never comes to it.
#[track_caller]
fn comes_to_rest(pid: u32) {
    common::wait_until("the server comes to rest", || {
        let before = cpu_ms(pid);
        common::pause(std::time::Duration::from_secs(1));
        cpu_ms(pid) - before < 200
    });
}

/// A stream of numbers that is the same every time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}
