//! The fence on a real Redis: the table of cases, what is refused, and races under kills of the server.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a real server lives in real time"
)]

mod fence_support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fence_support::race::{RaceBoard, RaceNote, RaceVerdict, RaceWriter, judge, parse_shown, race_size, refusal_only};
use fence_support::{lease_on, open_leases};
use leasehold::fence::counters::read_counts;
use leasehold::fence::redis::{RedisFence, RedisReply, RedisScript, RedisStrictness, RedisVerb};
use leasehold::fence::{FenceError, FenceKind, FenceRefusal};
use leasehold::testkit::fence_cases::{FenceSubject, all_cases};
use leasehold_harness::redis::{DURABLE, RedisServer};

struct RedisSubject<'a>(&'a RedisFence);

impl FenceSubject for RedisSubject<'_> {
    async fn write(&mut self, resource: &str, shown: Option<&str>) -> Result<(), FenceRefusal> {
        let setting = parse_shown(resource, shown)?;
        let push = RedisVerb::Rpush.on(format!("log:{resource}")).arg("x");
        refusal_only(self.0.write_shown(&setting, &[resource], push).await.map(drop))
    }
}

/// Goal: the script answers as the rule does.
/// Method: the table of cases, each on a resource of its own; what is admitted, and only that, was written.
#[tokio::test]
async fn the_table_of_cases() {
    let server = RedisServer::start(DURABLE);
    let fence = RedisFence::open(&server.url()).await.expect("it opens");
    for (at, case) in all_cases().iter().enumerate() {
        let resource = format!("seat/{at}");
        let before = read_counts(FenceKind::Redis);
        case.run(&resource, &mut RedisSubject(&fence)).await;
        let written: u64 = server.command(&["LLEN", &format!("log:{resource}")]).trim().parse().expect("a length");
        // Other tests of this process count too: no fewer than ours.
        assert!(read_counts(FenceKind::Redis).admitted - before.admitted >= written, "{}", case.name);
    }
    let key = RedisFence::fence_key("seat/0");
    let ttl = || server.command(&["TTL", &key]).trim().to_owned();
    assert_eq!(ttl(), "-1", "the memory has no expiry");
    // Somebody gave it one: the next write under the same token takes it away.
    let kept = server.command(&["GET", &key]).trim().to_owned();
    server.command(&["EXPIRE", &key, "1000"]);
    let push = RedisVerb::Rpush.on("log:seat/0").arg("x");
    fence.write_shown(&kept.parse().expect("a fence"), &["seat/0"], push).await.expect("admitted");
    assert_eq!(ttl(), "-1", "the memory has no expiry, whoever gave it one");
}

/// Goal: every command that is allowed runs, and answers what Redis answers.
#[tokio::test]
async fn every_verb_writes_under_a_lease() {
    let server = RedisServer::start(DURABLE);
    let fence = RedisFence::open(&server.url()).await.expect("it opens");
    assert_eq!(fence.strictness(), RedisStrictness::Strict);
    let (_dir, leasehold) = open_leases().await;
    let lease = lease_on(&leasehold, &["seat/14"]).await;
    let table = [
        (RedisVerb::Set.on("s").arg("1"), RedisReply::Status("OK".into())),
        (RedisVerb::Incrby.on("s").arg("41"), RedisReply::Integer(42)),
        (RedisVerb::Expire.on("s").arg("100"), RedisReply::Integer(1)),
        (RedisVerb::Del.on("s"), RedisReply::Integer(1)),
        (RedisVerb::Unlink.on("s"), RedisReply::Integer(0)),
        (RedisVerb::Hset.on("h").arg("owner").arg("ada"), RedisReply::Integer(1)),
        (RedisVerb::Hdel.on("h").arg("owner"), RedisReply::Integer(1)),
        (RedisVerb::Lpush.on("l").arg("a"), RedisReply::Integer(1)),
        (RedisVerb::Rpush.on("l").arg("b").arg(vec![0, 255]), RedisReply::Integer(3)),
        (RedisVerb::Sadd.on("m").arg("a"), RedisReply::Integer(1)),
        (RedisVerb::Srem.on("m").arg("a"), RedisReply::Integer(1)),
        (RedisVerb::Zadd.on("z").arg("1").arg("a"), RedisReply::Integer(1)),
        (RedisVerb::Zrem.on("z").arg("a"), RedisReply::Integer(1)),
    ];
    assert_eq!(table.len(), RedisVerb::ALL.len());
    for (command, expected) in table {
        let shown = format!("{command:?}");
        assert_eq!(fence.write(&lease, &["seat/14"], command).await.expect("admitted"), expected, "{shown}");
    }
    let script = RedisScript::new("return {KEYS[1], #KEYS, ARGV[1], #ARGV, redis.call('GET', KEYS[1])}");
    let reply = fence.eval(&lease, &["seat/14"], script.key("s").arg("x")).await.expect("admitted");
    let bytes = |text: &str| RedisReply::Bytes(text.into());
    let own = vec![bytes("s"), RedisReply::Integer(1), bytes("x"), RedisReply::Integer(1), RedisReply::Nil];
    assert_eq!(reply, RedisReply::List(own), "a script sees its own keys and arguments");
}

/// Goal: one refusal refuses all, and leaves no trace; a write that fails leaves a higher fence and nothing else.
#[tokio::test]
async fn several_resources_are_all_or_nothing() {
    let server = RedisServer::start(DURABLE);
    let fence = RedisFence::open(&server.url()).await.expect("it opens");
    let (_dir, leasehold) = open_leases().await;
    let late = lease_on(&leasehold, &["a", "b", "c"]).await;
    let (token, id) = (late.token(), late.lease_id().clone());
    fence.write(&late, &["a"], RedisVerb::Set.on("k").arg("1")).await.expect("admitted");
    // The lease ends elsewhere; the late holder does not know.
    leasehold.release(&id).await.expect("released");
    let newer = lease_on(&leasehold, &["b"]).await;
    fence.write(&newer, &["b"], RedisVerb::Set.on("k").arg("2")).await.expect("admitted");
    let refused = fence.write(&late, &["a", "b"], RedisVerb::Set.on("k").arg("3")).await.expect_err("refused");
    let FenceError::Refused(refusal) = refused else { panic!("{refused:?}") };
    let highest = newer.token();
    assert_eq!(refusal, FenceRefusal::Stale { resource: "b".into(), presented: token, highest });
    assert_eq!(server.command(&["GET", "k"]).trim(), "2");
    // The fence of c stands before that of b, and admits it: it must not be raised for a write that b refuses.
    let refused = fence.write(&late, &["c", "b"], RedisVerb::Set.on("k").arg("3")).await;
    assert!(matches!(refused, Err(FenceError::Refused(FenceRefusal::Stale { .. }))), "{refused:?}");
    assert_eq!(server.command(&["EXISTS", &RedisFence::fence_key("c")]).trim(), "0", "a refusal leaves no trace");
    let uncovered = fence.write(&newer, &["b", "a"], RedisVerb::Set.on("k").arg("4")).await;
    assert!(matches!(uncovered, Err(FenceError::Refused(FenceRefusal::NotCovered { .. }))), "{uncovered:?}");
    let wrong_type = fence.write(&newer, &["b"], RedisVerb::Rpush.on("k").arg("5")).await;
    assert!(matches!(wrong_type, Err(FenceError::Work(_))), "{wrong_type:?}");
    assert_eq!(server.command(&["GET", "k"]).trim(), "2");
    // The memory comes before the write: it is there although the write failed.
    let third = lease_on(&leasehold, &["d"]).await;
    let wrong_type = fence.write(&third, &["d"], RedisVerb::Rpush.on("k").arg("5")).await;
    assert!(matches!(wrong_type, Err(FenceError::Work(_))), "{wrong_type:?}");
    assert!(server.command(&["GET", &RedisFence::fence_key("d")]).starts_with(&third.token().to_string()));
    for command in [RedisVerb::Del.on("k").arg("other"), RedisVerb::Set.on("leasehold:f:b").arg("1")] {
        let invalid = fence.write(&newer, &["b"], command).await;
        assert!(matches!(invalid, Err(FenceError::Invalid(_))), "{invalid:?}");
    }
    let half =
        RedisScript::new("redis.call('SET', KEYS[1], 'half'); return redis.call('LPUSH', KEYS[1], 'x')").key("k");
    let unknown = fence.eval(&newer, &["b"], half).await;
    assert!(matches!(unknown, Err(FenceError::Indeterminate { .. })), "{unknown:?}");
    // Whatever an error that the script returns looks like: what it wrote before stays, once.
    for (said, written) in [
        ("SOLDOUT none", 1),
        ("STALE presented=1 highest=2 fence=1", 2),
        ("INVALID x", 3),
        ("CORRUPT y", 4),
        ("NOSCRIPT z", 5),
    ] {
        let text = format!("redis.call('INCRBY', KEYS[1], 1); return redis.error_reply('{said}') -- the end");
        let unknown = fence.eval(&newer, &["b"], RedisScript::new(text).key("n")).await.expect_err("it failed");
        let FenceError::Indeterminate { source, .. } = &unknown else { panic!("{said}: {unknown:?}") };
        assert!(source.to_string().contains(said), "{source}");
        assert_eq!(server.command(&["GET", "n"]).trim(), written.to_string(), "{said}");
    }
    let no_lua = fence.eval(&newer, &["b"], RedisScript::new("return (")).await;
    assert!(matches!(no_lua, Err(FenceError::Invalid(_))), "{no_lua:?}");
    let shared = leasehold.acquire("s").shared().fenced().await.expect("granted");
    let invalid = fence.write(&shared, &["s"], RedisVerb::Set.on("k").arg("1")).await;
    assert!(matches!(invalid, Err(FenceError::Invalid(_))), "{invalid:?}");
}

/// Goal: what may evict or hide the memory of the fence is refused, and what makes it weaker is named.
#[tokio::test]
async fn weak_servers_are_refused_or_named() {
    for policy in ["allkeys-lru", "allkeys-random", "allkeys-lfu"] {
        let setting = format!("--maxmemory-policy {policy}");
        let server = RedisServer::start(&[DURABLE, &[setting.as_str()]].concat());
        let refused = RedisFence::open(&server.url()).await.expect_err("refused");
        assert!(matches!(&refused, FenceError::Invalid(sentence) if sentence.contains(policy)), "{refused:?}");
    }
    let volatile = RedisServer::start(&[DURABLE, &["--maxmemory-policy volatile-lru"]].concat());
    let fence = RedisFence::open(&volatile.url()).await.expect("it opens");
    assert_eq!(fence.strictness(), RedisStrictness::Strict, "a fence has no expiry");
    for (weak, named) in [("--appendfsync everysec", "appendfsync"), ("--appendonly no", "appendonly")] {
        let server = RedisServer::start(&[DURABLE, &[weak]].concat());
        let fence = RedisFence::open(&server.url()).await.expect("it opens");
        let RedisStrictness::AmongSurvivors { reasons } = fence.strictness() else { panic!("{weak} is not strict") };
        assert!(reasons.iter().any(|reason| reason.contains(named)), "{reasons:?}");
    }
    let replica = RedisServer::start_replica(&volatile);
    let fence = RedisFence::open(&volatile.url()).await.expect("it opens");
    assert!(matches!(fence.strictness(), RedisStrictness::AmongSurvivors { .. }), "a replica may take over");
    let refused = RedisFence::open(&replica.url()).await.expect_err("a replica takes no writes");
    assert!(matches!(refused, FenceError::Unavailable { .. }), "{refused:?}");
    let cluster = RedisServer::start(&["--cluster-enabled yes"]);
    let refused = RedisFence::open(&cluster.url()).await.expect_err("refused");
    assert!(matches!(&refused, FenceError::Invalid(sentence) if sentence.contains("cluster")), "{refused:?}");
    volatile.command(&["ACL", "SETUSER", "blind", "on", ">pw", "~*", "&*", "+@all", "-config", "-info"]);
    volatile.command(&["ACL", "SETUSER", "noconfig", "on", ">pw", "~*", "&*", "+@all", "-config"]);
    let url = |user: &str| format!("redis://{user}:pw@127.0.0.1:{}", volatile.port());
    let refused = RedisFence::open(&url("blind")).await.expect_err("refused");
    assert!(matches!(&refused, FenceError::Invalid(sentence) if sentence.contains("+config|get")), "{refused:?}");
    let fence = RedisFence::open(&url("noconfig")).await.expect("INFO names the policy");
    assert!(matches!(fence.strictness(), RedisStrictness::AmongSurvivors { .. }), "nothing is promised unread");
}

/// Goal: a fence that somebody else has written is not guessed at, and a server that is away has no effect.
#[tokio::test]
async fn strange_fences_and_absent_servers() {
    let server = RedisServer::start(DURABLE);
    let fence = RedisFence::open(&server.url()).await.expect("it opens");
    let (_dir, leasehold) = open_leases().await;
    let lease = lease_on(&leasehold, &["a", "b", "c"]).await;
    server.command(&["SET", "leasehold:f:a", "42 or so"]);
    server.command(&["RPUSH", "leasehold:f:b", "42"]);
    for resource in ["a", "b"] {
        let refused = fence.write(&lease, &[resource], RedisVerb::Set.on("k").arg("1")).await.expect_err("refused");
        assert!(matches!(&refused, FenceError::Corrupt { at, .. } if at.starts_with("leasehold:f:")), "{refused:?}");
    }
    server.command(&["SCRIPT", "FLUSH"]);
    fence.write(&lease, &["c"], RedisVerb::Set.on("k").arg("1")).await.expect("the script is sent again");
    server.kill();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let away = fence.write(&lease, &["c"], RedisVerb::Set.on("k").arg("2")).await.expect_err("away");
    assert!(matches!(away, FenceError::Unavailable { .. }), "{away:?}");
    server.start_server();
    // It answers INFO while it still loads its data. Until that is done a write has no effect, and says so.
    let mut again = fence.write(&lease, &["c"], RedisVerb::Incrby.on("n").arg("1")).await;
    for _ in 0..500 {
        if !matches!(again, Err(FenceError::Unavailable { .. })) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        again = fence.write(&lease, &["c"], RedisVerb::Incrby.on("n").arg("1")).await;
    }
    assert_eq!(again.expect("connected again"), RedisReply::Integer(1));
    server.freeze();
    let unknown = fence.write(&lease, &["c"], RedisVerb::Incrby.on("k").arg("1")).await.expect_err("no answer");
    assert!(matches!(unknown, FenceError::Indeterminate { .. }), "{unknown:?}");
    server.thaw();
    fence.write(&lease, &["c"], RedisVerb::Set.on("k").arg("4")).await.expect("connected again");
}

/// Writers that push their ids, while the server is killed so many times.
async fn race(guard: Option<&str>, size: u64, kills: u32) -> RaceVerdict {
    let server = Arc::new(RedisServer::start(DURABLE));
    let board = Arc::new(RaceBoard::default());
    let over = Arc::new(AtomicBool::new(false));
    let mut writers = tokio::task::JoinSet::new();
    for at in 0..8_u64 {
        let fence = match guard {
            None => RedisFence::open(&server.url()).await.expect("it opens"),
            Some(text) => RedisFence::open_with_guard(&server.url(), text).await.expect("it opens"),
        };
        let board = board.clone();
        writers.spawn(async move {
            let mut writer = RaceWriter::new(format!("w{at}"), 0x5eed + at * 7919);
            while board.answers() < size {
                let resource = board.pick_resource(&mut writer.dice);
                let write = writer.choose(resource, || board.next_token(resource));
                if writer.dice.below(20) == 0 {
                    tokio::time::sleep(Duration::from_millis(writer.dice.below(5))).await;
                }
                board.note(RaceNote::Shown(write.clone()));
                let name = write.resource_name();
                let push = RedisVerb::Rpush.on(format!("log:{resource}")).arg(write.id.as_str());
                let answer = fence.write_shown(&write.setting(), &[&name], push).await.map(drop);
                board.note(RaceNote::from_answer(&write.id, &answer));
                if matches!(answer, Err(FenceError::Unavailable { .. })) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        });
    }
    let killer = {
        let (server, board, over) = (server.clone(), board.clone(), over.clone());
        tokio::task::spawn_blocking(move || {
            for kill in 1..=u64::from(kills) {
                while board.answers() < size * kill / (u64::from(kills) + 1) && !over.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                server.kill_and_restart();
            }
        })
    };
    while let Some(writer) = writers.join_next().await {
        writer.expect("no writer panics");
    }
    over.store(true, Ordering::Relaxed);
    killer.await.expect("killed");
    let mut histories = BTreeMap::new();
    for resource in 0..size / 1500 + 4 {
        let list = server.command(&["LRANGE", &format!("log:{resource}"), "0", "-1"]);
        histories.insert(resource, list.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect());
    }
    judge(&board.notes(), &histories)
}

/// Goal: no stale write after a newer one, no current writer refused, nothing acknowledged lost, over kills of the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_race_over_kills_of_the_server() {
    let size = race_size(3000);
    let verdict = race(None, size, 8).await;
    eprintln!("redis: {verdict:?}");
    verdict.assert_clean(size);
}

/// Goal: the judge sees a fence that does not compare.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_planted_guard_is_flagged() {
    let guard = include_str!("../src/fence/redis/guard.lua");
    let compare = "#t > #token or #t == #token and t > token";
    let remember = "redis.call('SET', KEYS[i], shown)";
    let faults = [(compare, "false"), (compare, "tonumber(t) > tonumber(token)"), (remember, "")];
    for (right, planted) in faults {
        assert!(guard.contains(right));
        let verdict = race(Some(&guard.replace(right, planted)), 1500, 0).await;
        eprintln!("redis, planted {planted}: {verdict:?}");
        assert!(verdict.stale_admitted > 0, "{planted}: {verdict:?}");
    }
}
