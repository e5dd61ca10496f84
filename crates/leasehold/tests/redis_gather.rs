//! Several callers of the Redis engine in one call: nothing is granted twice, lost or left behind.
#![cfg(feature = "redis")]
#![allow(clippy::disallowed_methods, reason = "a real server lives in real time")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::engine::redis::{RedisEngine, RedisOptions};
use leasehold::engine::{Claim, Engine, Grant, Want};
use leasehold::{Error, Refusal};
use leasehold_harness::proxy::Proxy;
use leasehold_harness::redis::{DURABLE, RedisServer};

const CALLERS: usize = 64;

async fn open(port: u16) -> Arc<RedisEngine> {
    let url = format!("redis://127.0.0.1:{port}");
    RedisEngine::open(RedisOptions::from_url(&url).expect("a url")).await.expect("it opens")
}

fn claim(name: &str, holder: &str) -> Claim {
    Claim::new(vec![Want::exclusive(name)], Duration::from_secs(30), holder)
}

async fn pause(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}

/// How many scripts the server ran.
fn scripts_run(server: &RedisServer) -> usize {
    let stats = server.command(&["INFO", "commandstats"]);
    let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap_or("calls=0,");
    line.split_once("calls=").and_then(|(_, rest)| rest.split(',').next()?.parse().ok()).expect("a number")
}

/// Keys that are not the engine's own four.
fn keys_left(server: &RedisServer) -> Vec<String> {
    let own = ["leasehold:t", "leasehold:a", "leasehold:e", "leasehold:z"];
    let keys = server.command(&["KEYS", "*"]);
    keys.lines().filter(|key| !key.is_empty() && !own.contains(key)).map(str::to_owned).collect()
}

async fn acquire_all(engine: &Arc<RedisEngine>, round: usize) -> Vec<Result<Grant, Error>> {
    let calls: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (asked, wanted) = (engine.clone(), claim(&format!("seat-{round}-{caller}"), &format!("c{caller}")));
            tokio::spawn(async move { asked.acquire(wanted).await })
        })
        .collect();
    let mut answers = Vec::new();
    for call in calls {
        answers.push(call.await.expect("no panic"));
    }
    answers
}

/// Goal: a caller alone pays one script for each verb; many callers share scripts, and every token is new.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_share_scripts() {
    let server = RedisServer::start(DURABLE);
    let engine = open(server.port()).await;
    let before = scripts_run(&server);
    for _ in 0..50 {
        let grant = engine.acquire(claim("seat", "ada")).await.expect("granted");
        assert!(engine.release(&grant.lease_id).await.expect("released"));
    }
    assert_eq!(scripts_run(&server) - before, 100, "one for each");
    let (before, mut tokens) = (scripts_run(&server), BTreeSet::new());
    for round in 0..20 {
        let grants: Vec<Grant> =
            acquire_all(&engine, round).await.into_iter().map(|answer| answer.expect("granted")).collect();
        tokens.extend(grants.iter().map(|grant| grant.token.expect("a token")));
        let releases = grants.iter().map(|grant| {
            let (asked, lease) = (engine.clone(), grant.lease_id.clone());
            tokio::spawn(async move { asked.release(&lease).await })
        });
        for release in releases.collect::<Vec<_>>() {
            assert!(release.await.expect("no panic").expect("released"));
        }
    }
    assert_eq!(tokens.len(), 20 * CALLERS);
    let scripts = scripts_run(&server) - before;
    assert!(scripts * 4 < 40 * CALLERS * 3, "{scripts} scripts for {} requests", 40 * CALLERS);
    assert_eq!(keys_left(&server), Vec::<String>::new());
}

/// Goal: a name that many want is held by one at a time, whoever shares a call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_contended_name_has_one_holder() {
    let server = RedisServer::start(&[]);
    let engine = open(server.port()).await;
    let inside: Arc<Vec<AtomicU32>> = Arc::new((0..4).map(|_| AtomicU32::new(0)).collect());
    let workers: Vec<_> = (0..CALLERS)
        .map(|worker| {
            let (engine, inside) = (engine.clone(), inside.clone());
            tokio::spawn(async move {
                for round in 0..40 {
                    let seat = (worker + round) % inside.len();
                    let wait = Duration::from_secs(if round % 2 == 0 { 60 } else { 0 });
                    let wanted = Claim { wait, ..claim(&format!("seat-{seat}"), "x") };
                    let grant = match engine.acquire(wanted).await {
                        Ok(grant) => grant,
                        Err(Error::Refused(Refusal::Held { .. })) if wait.is_zero() => continue,
                        Err(error) => panic!("{error:?}"),
                    };
                    assert_eq!(inside[seat].fetch_add(1, Ordering::SeqCst), 0, "two holders");
                    tokio::task::yield_now().await;
                    inside[seat].fetch_sub(1, Ordering::SeqCst);
                    assert!(engine.release(&grant.lease_id).await.expect("released"));
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.expect("no panic");
    }
    assert_eq!(keys_left(&server), Vec::<String>::new());
}

/// Goal: when the reply to a shared call is lost, each of its callers gets the lease that it was granted, and gives it back.
/// Method: a proxy throws replies away while 64 acquire, then cuts; the same while they release.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_reply_is_everybodys() {
    let server = RedisServer::start(DURABLE);
    let proxy = Proxy::start(server.port());
    let (engine, direct) = (open(proxy.port()).await, open(server.port()).await);
    for round in 0..4 {
        proxy.swallow_replies(true);
        let asked = engine.clone();
        let acquiring = tokio::spawn(async move { acquire_all(&asked, round).await });
        pause(200).await;
        proxy.swallow_replies(false);
        proxy.cut_all();
        let grants = acquiring.await.expect("no panic");
        let mut leases = Vec::new();
        for (caller, grant) in grants.into_iter().enumerate() {
            let grant = grant.unwrap_or_else(|error| panic!("round {round}, caller {caller}: {error:?}"));
            let seen = direct.inspect(&format!("seat-{round}-{caller}")).await.expect("seen").expect("held");
            assert_eq!((seen.holders[0].token, seen.holders[0].holder.clone()), (grant.token, format!("c{caller}")));
            leases.push(grant.lease_id);
        }
        proxy.swallow_replies(true);
        let calls: Vec<_> = leases
            .into_iter()
            .map(|lease| {
                let asked = engine.clone();
                tokio::spawn(async move { asked.release(&lease).await })
            })
            .collect();
        pause(200).await;
        proxy.swallow_replies(false);
        proxy.cut_all();
        for call in calls {
            let answer = call.await.expect("no panic");
            // Two endings may share a place in the ring: of the first nobody knows any more whether it was this try's.
            assert!(matches!(answer, Ok(_) | Err(Error::Indeterminate { .. })), "{answer:?}");
        }
        for caller in 0..CALLERS {
            assert!(direct.inspect(&format!("seat-{round}-{caller}")).await.expect("seen").is_none());
        }
    }
}

/// Goal: a shared call that arrives after its requests were asked again and given back takes nothing.
/// Method: the connections of now stand still while 64 callers go on over new ones; then what was stuck arrives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_call_takes_nothing() {
    let server = RedisServer::start(&[]);
    let proxy = Proxy::start(server.port());
    let engine = open(proxy.port()).await;
    for round in 0..2 {
        let stop = Arc::new(AtomicU32::new(0));
        let workers: Vec<_> = (0..CALLERS)
            .map(|caller| {
                let (engine, stop) = (engine.clone(), stop.clone());
                tokio::spawn(async move {
                    for turn in 0.. {
                        if stop.load(Ordering::SeqCst) == 1 {
                            return;
                        }
                        let wanted = claim(&format!("seat-{round}-{caller}-{turn}"), "x");
                        let grant = engine.acquire(wanted).await.expect("granted, by this try or the next");
                        engine.release(&grant.lease_id).await.expect("released, by this try or the next");
                    }
                })
            })
            .collect();
        pause(200).await;
        proxy.stall_current(true);
        pause(3000).await;
        stop.store(1, Ordering::SeqCst);
        for worker in workers {
            worker.await.expect("no panic");
        }
        proxy.stall_current(false);
        pause(500).await;
        let mut left = keys_left(&server);
        left.retain(|key| !key.starts_with("leasehold:l:"));
        assert_eq!(left, Vec::<String>::new(), "round {round}");
    }
}

/// Goal: acquires that are given up while they are queued or under way leave no lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_given_up_leaves_no_lease() {
    let server = RedisServer::start(&[]);
    let proxy = Proxy::start(server.port());
    let engine = open(proxy.port()).await;
    for round in 0..3 {
        proxy.black_hole(true);
        let calls: Vec<_> = (0..CALLERS)
            .map(|caller| {
                let (asked, wanted) = (engine.clone(), claim(&format!("seat-{round}-{caller}"), "x"));
                tokio::spawn(async move { asked.acquire(wanted).await })
            })
            .collect();
        pause(150).await;
        calls.iter().for_each(tokio::task::JoinHandle::abort);
        pause(50).await;
        proxy.black_hole(false);
    }
    let mut left = keys_left(&server);
    for _ in 0..100 {
        pause(100).await;
        left = keys_left(&server);
        // What stays are bans, of which no name is kept.
        left.retain(|key| !key.starts_with("leasehold:l:"));
        if left.is_empty() {
            return;
        }
    }
    panic!("{left:?}");
}

/// Goal: a full memory keeps nobody from giving back, although acquires share the call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_memory_lets_leases_go() {
    let server = RedisServer::start(&[]);
    let engine = open(server.port()).await;
    let grants = acquire_all(&engine, 0).await;
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let (asked, other) = (engine.clone(), engine.clone());
    let acquiring = tokio::spawn(async move { acquire_all(&asked, 1).await });
    let calls: Vec<_> = grants
        .into_iter()
        .map(|grant| {
            let (asked, lease) = (other.clone(), grant.expect("granted").lease_id);
            tokio::spawn(async move { asked.release(&lease).await })
        })
        .collect();
    for call in calls {
        assert!(call.await.expect("no panic").expect("released"));
    }
    for answer in acquiring.await.expect("no panic") {
        assert!(matches!(answer, Err(Error::Unavailable { .. })), "{answer:?}");
    }
}
