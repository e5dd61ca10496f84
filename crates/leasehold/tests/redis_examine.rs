//! What an operator is told of real Redis servers: clocks that are apart, and other lock clients.
#![cfg(feature = "redis")]
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test, with real servers in real time")]

#[path = "support/redis.rs"]
mod support;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{SystemTime, UNIX_EPOCH};

use leasehold::engine::redlock::{Redlock, RedlockOptions};
use leasehold::engine::{Engine, Finding, FindingKind};
use leasehold_harness::frozen_clock::FrozenClock;
use leasehold_harness::redis::{DURABLE, RedisServer};
use leasehold_harness::redlock::RedisNodes;
use support::{claim, open};

const HEX: &str = "0f8fad5bd9cb469fa165b0a2c7a3f0d1";

fn wall_micros() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()).unwrap()
}

fn about<'f>(findings: &'f [Finding], setting: &str) -> Vec<&'f Finding> {
    findings.iter().filter(|finding| finding.setting == setting).collect()
}

fn is_warning(findings: &[Finding], setting: &str) -> bool {
    let found = about(findings, setting);
    assert_eq!(found.len(), 1, "{setting}: {findings:?}");
    found[0].kind == FindingKind::Warning
}

/// Goal: a server whose clock is off is a warning with the difference; one whose clock is right is not.
/// Method: a server whose clock the test sets: three seconds ahead, a minute behind, and right.
#[tokio::test]
async fn a_clock_that_is_off_is_a_warning() {
    let clock = FrozenClock::new(wall_micros() + 3_000_000);
    let server = RedisServer::start_frozen(&[], clock.clone());
    let engine = open(&server.url()).await;
    let setting = "clock of the server";
    for (offset, sign) in [(3_000_000_i64, '+'), (-60_000_000, '-')] {
        clock.set_micros(wall_micros().checked_add_signed(offset).unwrap());
        let findings = engine.examine().await.expect("examined");
        assert!(is_warning(&findings, setting), "{findings:?}");
        assert!(about(&findings, setting)[0].found.starts_with(sign), "{findings:?}");
    }
    // The clock stands still, so a slow machine may need several tries to find it right.
    for _ in 0..100 {
        clock.set_micros(wall_micros());
        if !is_warning(&engine.examine().await.expect("examined"), setting) {
            return;
        }
    }
    panic!("a clock that is right is called wrong");
}

/// Goal: of several nodes the two whose clocks differ most are named.
#[tokio::test]
async fn nodes_whose_clocks_differ_are_named() {
    let clock = FrozenClock::new(wall_micros() + 5_000_000);
    let mut nodes = RedisNodes::start(2, DURABLE);
    let right = RedlockOptions::from_url(&nodes.url("")).unwrap();
    let findings = Redlock::open(right).await.expect("it opens").examine().await.expect("examined");
    let between = |one: &RedisServer, other: &RedisServer| {
        format!("clocks of 127.0.0.1:{} and 127.0.0.1:{}", one.port(), other.port())
    };
    assert!(!is_warning(&findings, &between(&nodes.servers[0], &nodes.servers[1])), "{findings:?}");
    nodes.servers.push(RedisServer::start_frozen(DURABLE, clock));
    let engine = Redlock::open(RedlockOptions::from_url(&nodes.url("")).unwrap()).await.expect("it opens");
    let findings = engine.examine().await.expect("examined");
    let pairs = [0, 1].map(|at: usize| between(&nodes.servers[at], &nodes.servers[2]));
    let named: Vec<&Finding> = findings.iter().filter(|finding| pairs.contains(&finding.setting)).collect();
    assert!(matches!(&named[..], [one] if one.kind == FindingKind::Warning), "{findings:?}");
    for (at, is_off) in [(0, false), (1, false), (2, true)] {
        let setting = format!("clock of 127.0.0.1:{}", nodes.servers[at].port());
        assert_eq!(is_warning(&findings, &setting), is_off, "{findings:?}");
    }
}

/// Locks as other clients leave them, and keys that are none.
fn take_foreign_locks(server: &RedisServer) {
    server.command(&["SET", "seat", HEX, "NX", "PX", "60000"]);
    server.command(&["SET", "lock:row", "q83vEjRWeJCrze8SNFZ4kJIs", "NX", "EX", "60"]);
    server.command(&["HSET", "cart", "285475da-9152-4c83-822a-67ee2f116a79:52", "1"]);
    server.command(&["PEXPIRE", "cart", "60000"]);
    server.command(&["SET", "session", "a value of a session", "PX", "60000"]);
    server.command(&["SET", "forever", HEX]);
    server.command(&["LPUSH", "list", "1"]);
}

/// Goal: other lock clients are told by their keys and connections; what does not exclude us is a warning. Our own leases
/// and other programs' data are not taken for locks, and no value is shown.
#[tokio::test]
async fn other_lock_clients_are_seen() {
    let server = RedisServer::start(&[]);
    let mut billing = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    billing.write_all(b"CLIENT SETNAME billing\r\n").unwrap();
    billing.read_exact(&mut [0; 5]).unwrap();
    let engine = open(&server.url()).await;
    engine.acquire(claim("ours", "ada")).await.expect("granted");
    let findings = engine.examine().await.expect("examined");
    assert!(about(&findings, "other lock clients").is_empty(), "{findings:?}");
    assert_eq!(about(&findings, "other clients")[0].found, "billing (1)");
    take_foreign_locks(&server);
    let findings = engine.examine().await.expect("examined");
    let seen: Vec<(bool, &str)> = about(&findings, "other lock clients")
        .into_iter()
        .map(|finding| (finding.kind == FindingKind::Warning, finding.found.as_str()))
        .collect();
    let expected = [
        (false, "redis-py, node-redlock or the like: 1 key, seat"),
        (true, "python-redis-lock: 1 key, lock:row"),
        (true, "Redisson: 1 key, cart"),
    ];
    assert_eq!(seen, expected);
    let shown = format!("{findings:?}");
    assert!(!shown.contains(HEX) && !shown.contains("q83v") && !shown.contains("285475da"), "{shown}");
    let preset = open(&format!("{}?preset=python-redis-lock", server.url())).await;
    let findings = preset.examine().await.expect("examined");
    let warned = |part: &str| {
        let found = about(&findings, "other lock clients");
        found.iter().find(|finding| finding.found.contains(part)).map(|finding| finding.kind == FindingKind::Warning)
    };
    assert_eq!((warned("python-redis-lock"), warned("redis-py")), (Some(false), Some(true)), "{findings:?}");
}

/// Goal: among many keys of other programs the examination stays short, and the server is not read through.
#[tokio::test]
async fn a_full_server_is_only_sampled() {
    let server = RedisServer::start(&[]);
    server.command(&["EVAL", "for i = 1, 50000 do redis.call('SET', 'k' .. i, 'v', 'PX', 600000) end", "0"]);
    let engine = open(&server.url()).await;
    server.command(&["CONFIG", "RESETSTAT"]);
    engine.examine().await.expect("examined");
    let stats = server.command(&["INFO", "commandstats"]);
    let calls = |command: &str| {
        let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
        line.and_then(|rest| rest.split(',').next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    assert_eq!(calls("scan"), 5, "{stats}");
    assert!((500..=1500).contains(&calls("type")), "{stats}");
}

/// Goal: a user who may not look at others' keys is told so, and everything else is examined.
#[tokio::test]
async fn a_look_that_is_denied_is_named() {
    let server = RedisServer::start(DURABLE);
    server.command(&["ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", "-type", "-client|list"]);
    server.command(&["SET", "seat", HEX, "NX", "PX", "60000"]);
    let engine = open(&format!("redis://app:pw@127.0.0.1:{}", server.port())).await;
    assert!(engine.promises().fencing);
    let findings = engine.examine().await.expect("examined");
    assert_eq!(about(&findings, "other clients")[0].found, "TYPE, CLIENT LIST is denied");
    assert!(!is_warning(&findings, "clock of the server"), "{findings:?}");
}
