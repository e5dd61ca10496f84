//! What the Redis engine promises under which settings, and how it refuses servers that it cannot use.
#![cfg(feature = "redis")]
#![allow(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "a real server lives in real time, and how much was tried is worth a line"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::clock::SystemClock;
use leasehold::engine::redis::{PROFILE, RedisEngine, RedisOptions};
use leasehold::engine::{Claim, Engine, Mode, Promise, Query, Want};
use leasehold::{Error, Leasehold};
use leasehold_harness::free_port;
use leasehold_harness::redis::{DURABLE, RedisServer};

async fn open(url: &str) -> Result<Arc<RedisEngine>, Error> {
    RedisEngine::open(RedisOptions::from_url(url).expect("a url")).await
}

fn claim(name: &str) -> Claim {
    Claim::new(vec![Want::exclusive(name)], Duration::from_secs(30), "ada")
}

fn all_words(error: &Error) -> String {
    let cause = std::error::Error::source(error).map_or_else(String::new, ToString::to_string);
    format!("{error}: {cause}")
}

/// Goal: the best settings give the best promises, and each weak one alone takes durability and fencing away, by name.
#[tokio::test]
async fn each_weak_setting_refuses_fencing_by_its_name() {
    let server = RedisServer::start(DURABLE);
    let engine = open(&server.url()).await.expect("it opens");
    assert_eq!(engine.promises(), PROFILE.best);
    for (setting, weak) in [
        ("appendonly", "no"),
        ("appendfsync", "everysec"),
        ("appendfsync", "no"),
        ("no-appendfsync-on-rewrite", "yes"),
        ("aof-load-truncated", "yes"),
        ("maxmemory-policy", "allkeys-lru"),
        ("maxmemory-policy", "volatile-ttl"),
    ] {
        let changed = format!("--{setting} {weak}");
        let settings: Vec<&str> = DURABLE.iter().copied().chain([changed.as_str()]).collect();
        let server = RedisServer::start(&settings);
        let engine = open(&server.url()).await.expect("it opens");
        let promises = engine.promises();
        assert!(!promises.fencing && !promises.durable && promises.fair, "{changed}");
        let leasehold = Leasehold::with_engine(engine.clone(), SystemClock::shared());
        let refused = leasehold.acquire("seat").fenced().await.expect_err("it is refused");
        assert!(matches!(&refused, Error::Invalid(sentence) if sentence.contains(setting)), "{refused}");
        let lease = leasehold.acquire("seat").await.expect("a lease for efficiency is granted");
        lease.release().await.expect("released");
        assert!(matches!(engine.raise_floor(None).await, Err(Error::Invalid(_))), "no tokens, no floor");
    }
}

/// Goal: a replica takes the promise away.
#[tokio::test]
async fn a_replica_takes_fencing_away() {
    let server = RedisServer::start(DURABLE);
    let replica = RedisServer::start_replica(&server);
    let engine = open(&server.url()).await.expect("it opens");
    assert!(!engine.promises().fencing);
    let findings = engine.examine().await.expect("examined");
    assert!(findings.iter().any(|finding| finding.setting == "connected_slaves"), "{findings:?}");
    let error = open(&replica.url()).await.expect_err("a replica does not decide");
    assert!(matches!(error, Error::Unavailable { .. }) && all_words(&error).contains("replica"), "{error:?}");
}

/// Goal: a setting that gets weaker under an open engine ends acquires by its name; leases that exist go on.
#[tokio::test]
async fn a_setting_that_gets_weaker_ends_acquires() {
    let server = RedisServer::start(DURABLE);
    let engine = open(&server.url()).await.expect("it opens");
    let grant = engine.acquire(claim("seat")).await.expect("granted");
    server.command(&["CONFIG", "SET", "appendfsync", "everysec"]);
    engine.examine().await.expect("examined");
    let error = engine.acquire(claim("row")).await.expect_err("it is refused");
    assert!(matches!(error, Error::Unavailable { .. }) && all_words(&error).contains("appendfsync"), "{error:?}");
    assert!(engine.promises().fencing, "promises do not change under a running engine");
    engine.renew(&grant.lease_id, None).await.expect("renewed");
    assert!(engine.release(&grant.lease_id).await.expect("released"));
    server.command(&["CONFIG", "SET", "appendfsync", "always"]);
    engine.examine().await.expect("examined");
    engine.acquire(claim("row")).await.expect("granted again");
}

/// Goal: permissions that are missing are named when the engine is opened; without CONFIG nothing is promised.
#[tokio::test]
async fn missing_permissions_show_at_open() {
    let server = RedisServer::start(DURABLE);
    server.command(&["ACL", "SETUSER", "noconfig", "on", ">pw", "~*", "&*", "+@all", "-config"]);
    server.command(&["ACL", "SETUSER", "nochannels", "on", ">pw", "~*", "resetchannels", "+@all"]);
    server.command(&["ACL", "SETUSER", "noincr", "on", ">pw", "~*", "&*", "+@all", "-incr"]);
    server.command(&["ACL", "SETUSER", "nokeys", "on", ">pw", "resetkeys", "~app:*", "&*", "+@all"]);
    let url = |user: &str| format!("redis://{user}:pw@127.0.0.1:{}", server.port());
    let engine = open(&url("noconfig")).await.expect("it opens");
    assert!(!engine.promises().fencing);
    let findings = engine.examine().await.expect("examined");
    assert!(
        findings.iter().any(|finding| finding.setting == "acl" && finding.wanted.contains("config")),
        "{findings:?}"
    );
    engine.acquire(claim("seat")).await.expect("granted");
    for user in ["nochannels", "noincr", "nokeys"] {
        let error = open(&url(user)).await.expect_err("it does not open");
        assert!(matches!(error, Error::Invalid(_)) && error.to_string().contains("ACL"), "{user}: {error:?}");
    }
}

/// Goal: the user that the documentation makes may do all that the engine does.
/// Method: its own line; every verb, a waiter, a list and a watch; the server denied nothing.
#[tokio::test]
async fn the_documented_permissions_are_enough() {
    let page = include_str!("../../../docs/engines/redis.md");
    let line = page.lines().find(|line| line.starts_with("ACL SETUSER app")).expect("the page has the line");
    let server = RedisServer::start(DURABLE);
    let words: Vec<&str> = line.split(' ').map(|word| if word == ">PASSWORD" { ">pw" } else { word }).collect();
    assert_eq!(server.command(&words).trim(), "OK");
    let engine = open(&format!("redis://app:pw@127.0.0.1:{}?preset=python-redis-lock", server.port())).await;
    let engine = engine.expect("it opens");
    assert!(engine.promises().fencing);
    let mut watch = engine.watch(None).await.expect("watched");
    watch.next().await.expect("a watch begins");
    let seat = engine.acquire(claim("seat")).await.expect("granted");
    let waiting = {
        let engine = engine.clone();
        tokio::spawn(async move { engine.acquire(Claim { wait: Duration::from_secs(20), ..claim("seat") }).await })
    };
    let begun = Instant::now();
    while engine.inspect("seat").await.expect("a look").is_none_or(|seen| seen.queue_len == 0) {
        assert!(begun.elapsed() < Duration::from_secs(10), "nobody waits");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    engine.renew(&seat.lease_id, Some(Duration::from_secs(20))).await.expect("renewed");
    engine.relabel(&seat.lease_id, "ada at 10.0.0.7").await.expect("relabelled");
    engine.release(&seat.lease_id).await.expect("released");
    waiting.await.expect("no panic").expect("granted");
    for mode in [Mode::Shared, Mode::Permits { count: 1, capacity: 2 }] {
        let want = Want { name: format!("{mode:?}"), mode };
        let grant = engine.acquire(Claim { wants: vec![want], ..claim("crowd") }).await.expect("granted");
        engine.release(&grant.lease_id).await.expect("released");
    }
    assert_eq!(engine.list(Query { prefix: String::new(), after: None, limit: 9 }).await.expect("listed").len(), 1);
    engine.raise_floor(None).await.expect("a floor");
    assert_eq!(engine.revoke("seat", "a drill").await.expect("revoked"), 1);
    watch.next().await.expect("events");
    let findings = engine.examine().await.expect("examined");
    assert!(!findings.iter().any(|finding| finding.found.contains("denied")), "{findings:?}");
    engine.close().await.expect("closed");
    assert_eq!(server.command(&["ACL", "LOG"]).trim(), "", "something was denied");
}

/// Goal: whatever is wrong with a server, one sentence says so in time, and no password is in it.
#[tokio::test]
async fn a_server_that_cannot_be_used_is_refused_in_one_sentence() {
    let began = Instant::now();
    let server = RedisServer::start(&["--requirepass secret"]);
    let url = format!("redis://:hunter2@127.0.0.1:{}", server.port());
    let error = open(&url).await.expect_err("a wrong password");
    assert!(matches!(error, Error::Invalid(_)) && !format!("{error:?}").contains("hunter2"), "{error:?}");
    let error = open(&server.url()).await.expect_err("no password");
    assert!(matches!(error, Error::Invalid(_)), "{error:?}");
    let right = open(&format!("redis://:secret@127.0.0.1:{}", server.port())).await.expect("the right password");
    assert!(!format!("{right:?}").contains("secret"));
    let cluster = RedisServer::start(&["--cluster-enabled yes"]);
    let error = open(&cluster.url()).await.expect_err("a cluster");
    assert!(matches!(&error, Error::Invalid(sentence) if sentence.contains("cluster")), "{error:?}");
    let error = open(&format!("redis://127.0.0.1:{}", free_port())).await.expect_err("nobody is there");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let error = open("redis://no-such-host.invalid").await.expect_err("no such host");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

/// Goal: names that others use as data are left alone, and their values are not shown.
#[tokio::test]
async fn strangers_keys_exclude_and_are_left_alone() {
    let server = RedisServer::start(&[]);
    let engine = open(&server.url()).await.expect("it opens");
    server.command(&["HSET", "redisson", "uuid:1", "1"]);
    server.command(&["SET", "plain", "hunter2", "PX", "60000"]);
    server.command(&["ZADD", "symfony", "1", "token"]);
    for name in ["redisson", "plain", "symfony"] {
        let error = engine.acquire(claim(name)).await.expect_err("it is held");
        let shown = format!("{error:?}");
        assert!(shown.contains("a Redis client") && !shown.contains("hunter2"), "{shown}");
        assert!(matches!(engine.revoke(name, "a drill").await, Err(Error::Invalid(_))), "{name}");
        let seen = engine.inspect(name).await.expect("seen").expect("held");
        assert!(!format!("{seen:?}").contains("hunter2") && seen.holders_total == 1, "{seen:?}");
    }
    assert_eq!(server.command(&["HGET", "redisson", "uuid:1"]).trim(), "1");
    assert_eq!(server.command(&["GET", "plain"]).trim(), "hunter2");
    let own = engine.acquire(claim("leasehold:t")).await.expect_err("our own keys are no names");
    assert!(matches!(own, Error::Invalid(_)));
    // Whoever waits for a stranger's key polls as head of the queue.
    let waiting = Claim { wait: Duration::from_secs(10), ..claim("plain") };
    let (asked, began) = (engine.clone(), Instant::now());
    let waiting = tokio::spawn(async move { asked.acquire(waiting).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    server.command(&["DEL", "plain"]);
    waiting.await.expect("no panic").expect("granted");
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}

/// Goal: what a wall clock may be slewed is taken off what a holder may count on.
#[tokio::test]
async fn remaining_times_are_shorter_by_the_slew() {
    let server = RedisServer::start(DURABLE);
    let engine = open(&format!("{}?slew=100000", server.url())).await.expect("it opens");
    let grant = engine.acquire(claim("seat")).await.expect("granted");
    assert_eq!(grant.remaining, Duration::from_secs(27));
    let renewal = engine.renew(&grant.lease_id, Some(Duration::from_secs(20))).await.expect("renewed");
    assert_eq!(renewal.remaining, Duration::from_secs(18));
    assert!(!engine.promises().includes(Promise::NeverEarly));
}

/// Goal: pairs of acquire and release leave nothing behind but four keys of a bounded size.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_of_many_pairs() {
    let server = RedisServer::start(&[]);
    let engine = open(&server.url()).await.expect("it opens");
    let workers: Vec<_> = (0..32)
        .map(|worker| {
            let engine = engine.clone();
            tokio::spawn(async move {
                for round in 0..625 {
                    let wants = match round % 10 {
                        0 => vec![Want::exclusive(format!("a{worker}")), Want::exclusive(format!("b{worker}"))],
                        _ => vec![Want::exclusive(format!("seat-{worker}-{}", round % 7))],
                    };
                    let grant = engine.acquire(Claim { wants, ..claim("x") }).await.expect("granted");
                    assert!(engine.release(&grant.lease_id).await.expect("released"));
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.expect("no panic");
    }
    let left: usize = server.command(&["DBSIZE"]).trim().parse().expect("a number");
    assert!(left <= 4, "{left} keys: {}", server.command(&["KEYS", "*"]));
    let ring: usize = server.command(&["HLEN", "leasehold:z"]).trim().parse().expect("a number");
    assert!((1..=65_536).contains(&ring), "{ring}");
}

/// Goal: sentinels are asked where the master is, and what they can do is not promised.
#[tokio::test]
async fn sentinels_say_where_the_master_is() {
    struct Sentinel(std::process::Child);
    impl Drop for Sentinel {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
    let master = RedisServer::start(DURABLE);
    let (dir, port) = (tempfile::tempdir().expect("a place"), free_port());
    let file = dir.path().join("sentinel.conf");
    let text = format!("port {port}\nsentinel monitor main 127.0.0.1 {} 1\n", master.port());
    std::fs::write(&file, text).expect("written");
    let mut command = std::process::Command::new("redis-server");
    let command = command.arg(&file).arg("--sentinel").stdout(std::process::Stdio::null());
    let _sentinel = Sentinel(command.spawn().expect("a sentinel"));
    let url = format!("redis://127.0.0.1:{},127.0.0.1:{port}/main?sentinel=1", free_port());
    let mut opened = open(&url).await;
    for _ in 0..100 {
        if opened.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        opened = open(&url).await;
    }
    let engine = opened.expect("it opens");
    assert!(!engine.promises().fencing && !engine.promises().durable);
    let findings = engine.examine().await.expect("examined");
    assert!(findings.iter().any(|finding| finding.setting == "sentinel"), "{findings:?}");
    let grant = engine.acquire(claim("seat")).await.expect("granted");
    assert!(engine.release(&grant.lease_id).await.expect("released"));
    let unknown = open(&url.replace("/main", "/other")).await.expect_err("no such master");
    assert!(matches!(unknown, Error::Unavailable { .. }), "{unknown:?}");
}

/// Goal: a server whose CONFIG was renamed away is used, and promises nothing that depends on it.
#[tokio::test]
async fn a_renamed_command_denies_promises_by_name() {
    let settings: Vec<&str> = DURABLE.iter().copied().chain(["--rename-command CONFIG ''"]).collect();
    let server = RedisServer::start(&settings);
    let engine = open(&server.url()).await.expect("it opens");
    assert!(!engine.promises().fencing && !engine.promises().durable);
    let findings = engine.examine().await.expect("examined");
    assert!(findings.iter().any(|finding| finding.found.contains("CONFIG")), "{findings:?}");
    let grant = engine.acquire(claim("seat")).await.expect("granted");
    assert!(engine.release(&grant.lease_id).await.expect("released"));
}
