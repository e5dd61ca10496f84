//! The etcd engine under faults: leaders killed and stopped, replies lost, history compacted, processes gone.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stderr)] // a real server lives in real time

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use leasehold::engine::etcd::{EtcdEngine, EtcdEngineOptions};
use leasehold::engine::{Claim, Engine, Grant, Query, Token, Want};
use leasehold::{Error, Refusal};
use leasehold_harness::etcd::{EtcdCluster, EtcdSettings};
use leasehold_harness::proxy::Proxy;

async fn open(url: &str) -> Arc<EtcdEngine> {
    EtcdEngine::open(EtcdEngineOptions::from_url(url).unwrap()).await.expect("it opens")
}

fn claim(who: &str, name: &str, ttl: Duration) -> Claim {
    Claim::new(vec![Want::exclusive(name)], ttl, who)
}

fn patient(who: &str, name: &str, ttl: Duration) -> Claim {
    Claim { wait: Duration::from_secs(60), ..claim(who, name, ttl) }
}

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// What workers found out together.
#[derive(Default)]
struct Witness {
    inside: AtomicUsize,
    highest: AtomicU64,
    grants: AtomicUsize,
    errors: AtomicUsize,
    stop: AtomicBool,
}

impl Witness {
    fn enter(&self, token: Token) {
        assert_eq!(self.inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
        let before = self.highest.swap(token.get(), Ordering::SeqCst);
        assert!(before < token.get(), "token {token} after {before}");
        self.grants.fetch_add(1, Ordering::SeqCst);
    }

    fn leave(&self) {
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Takes the seat and gives it back until it is told to stop. The ttl is longer than any fault, so that nobody is inside
/// beyond its lease.
async fn work(engine: Arc<EtcdEngine>, releases: Arc<EtcdEngine>, who: String, witness: Arc<Witness>) {
    while !witness.stop.load(Ordering::SeqCst) {
        let grant = match engine.acquire(patient(&who, "seat", MINUTE)).await {
            Ok(grant) => grant,
            Err(Error::Unavailable { .. } | Error::Indeterminate { .. }) => {
                witness.errors.fetch_add(1, Ordering::SeqCst);
                continue;
            }
            Err(other) => panic!("{other:?}"),
        };
        witness.enter(grant.token.expect("a token"));
        tokio::task::yield_now().await;
        witness.leave();
        loop {
            match releases.release(&grant.lease_id).await {
                Ok(_) => break,
                Err(Error::Unavailable { .. } | Error::Indeterminate { .. }) => {
                    witness.errors.fetch_add(1, Ordering::SeqCst);
                }
                Err(other) => panic!("{other:?}"),
            }
        }
    }
}

/// Runs eight workers through two engines while `fault` happens. Returns grants and errors.
async fn work_under(cluster: &EtcdCluster, fault: impl AsyncFnOnce()) -> (usize, usize) {
    let engines = [open(&cluster.url()).await, open(&cluster.url()).await];
    let witness = Arc::new(Witness::default());
    let workers: Vec<_> = (0..8)
        .map(|n| {
            let (one, other) = (engines[n % 2].clone(), engines[(n / 2) % 2].clone());
            tokio::spawn(work(one, other, format!("worker {n}"), witness.clone()))
        })
        .collect();
    fault().await;
    let before = witness.grants.load(Ordering::SeqCst);
    tokio::time::sleep(SECOND * 2).await;
    assert!(witness.grants.load(Ordering::SeqCst) > before, "it goes on after the fault");
    witness.stop.store(true, Ordering::SeqCst);
    for worker in workers {
        tokio::time::timeout(MINUTE, worker).await.expect("workers stop").expect("no worker panics");
    }
    let left = engines[0].list(Query { prefix: String::new(), after: None, limit: 10 }).await.unwrap();
    assert!(left.is_empty(), "nothing is left over: {left:?}");
    (witness.grants.load(Ordering::SeqCst), witness.errors.load(Ordering::SeqCst))
}

/// Goal: a leader that is killed costs a stall, never exclusion, order of tokens or a lease that is left over.
/// Method: three members, eight workers through two engines, half of the releases through the other engine.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_leader_costs_only_time() {
    let cluster = EtcdCluster::start(3);
    let (grants, errors) = work_under(&cluster, async || {
        for _ in 0..2 {
            tokio::time::sleep(SECOND * 2).await;
            let leader = cluster.leader();
            cluster.kill(leader);
            tokio::time::sleep(SECOND * 4).await;
            cluster.restart(leader);
        }
    })
    .await;
    eprintln!("leader killed twice: {grants} grants, {errors} errors");
}

/// Goal: the same for a leader that is stopped for seven seconds.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_leader_costs_only_time() {
    let cluster = EtcdCluster::start(3);
    let (grants, errors) = work_under(&cluster, async || {
        tokio::time::sleep(SECOND).await;
        let leader = cluster.leader();
        cluster.freeze(leader);
        tokio::time::sleep(SECOND * 7).await;
        cluster.thaw(leader);
        tokio::time::sleep(SECOND).await;
    })
    .await;
    eprintln!("leader stopped: {grants} grants, {errors} errors");
}

/// Goal: compaction under contention loses no wake and no lease.
/// Method: history is compacted to the newest revision every 150 ms.
#[tokio::test(flavor = "multi_thread")]
async fn compaction_loses_no_wake() {
    let cluster = EtcdCluster::start(1);
    let (grants, errors) = work_under(&cluster, async || {
        for _ in 0..20 {
            tokio::time::sleep(Duration::from_millis(150)).await;
            let status = cluster.etcdctl(&["get", "x", "-w", "json"]);
            let revision = status.split("\"revision\":").nth(1).unwrap();
            let digits: String = revision.chars().take_while(char::is_ascii_digit).collect();
            cluster.etcdctl(&["compact", &digits]);
        }
    })
    .await;
    assert_eq!(errors, 0);
    eprintln!("compaction: {grants} grants");
}

/// Nothing lapses early while something is wrong with the leader for nine seconds.
///
/// ttl 5 s, renewed twice a second through the other members; another engine tries to take it all the while.
async fn assert_nothing_early(cluster: &EtcdCluster, begin: impl FnOnce(usize), end: impl FnOnce(usize)) {
    let engines = [open(&cluster.url()).await, open(&cluster.url()).await];
    let ttl = SECOND * 5;
    let ada = engines[0].acquire(claim("ada", "seat", ttl)).await.expect("granted");
    let mut safe_until = Instant::now() + ttl;
    let leader = cluster.leader();
    begin(leader);
    let began = Instant::now();
    let (mut end, mut renewals) = (Some(end), 0);
    while began.elapsed() < SECOND * 14 {
        if began.elapsed() > SECOND * 9
            && let Some(end) = end.take()
        {
            assert_ne!(cluster.leader(), leader, "there is another leader");
            end(leader);
        }
        let sent = Instant::now();
        match engines[0].renew(&ada.lease_id, None).await {
            Ok(renewal) => {
                safe_until = sent + renewal.remaining;
                renewals += 1;
            }
            Err(Error::Refused(refusal)) => panic!("{refusal:?} with {:?} left", safe_until - Instant::now()),
            Err(_) => {}
        }
        let asked = Instant::now();
        if let Ok(bob) = engines[1].acquire(claim("bob", "seat", ttl)).await {
            panic!("bob has {bob:?} {:?} before ada's time is over", safe_until.saturating_duration_since(asked));
        }
        tokio::time::sleep(SECOND / 2).await;
    }
    assert!(renewals > 8, "only {renewals} renewals");
    assert!(engines[0].release(&ada.lease_id).await.expect("it is live"));
}

/// Goal: nothing lapses early while a leader is stopped. An etcd lease that is kept alive does (etcd issue 15247).
#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_leader_ends_nothing_early() {
    let cluster = EtcdCluster::start(3);
    assert_nothing_early(&cluster, |leader| cluster.freeze(leader), |leader| cluster.thaw(leader)).await;
}

/// Goal: the same for a leader that is cut off from the other members.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_cut_off_ends_nothing_early() {
    let cluster = EtcdCluster::start_with(EtcdSettings { proxied_peers: true, ..EtcdSettings::new(3) });
    assert_nothing_early(&cluster, |leader| cluster.cut_off(leader), |leader| cluster.reconnect(leader)).await;
}

/// Goal: an acquire whose reply is lost is resolved: granted, or without effect for good. Nothing is left over.
/// Method: replies are swallowed for a moment while twelve acquires are on their way; two routes to one member.
#[tokio::test(flavor = "multi_thread")]
async fn lost_replies_are_resolved() {
    let cluster = EtcdCluster::start(1);
    let port = cluster.client_ports()[0];
    let proxies = [Proxy::start(port), Proxy::start(port)];
    let url = format!("etcd://127.0.0.1:{},127.0.0.1:{}", proxies[0].port(), proxies[1].port());
    let engine = open(&url).await;
    let witness = open(&cluster.url()).await;
    let mut granted = 0;
    for round in 0..6 {
        let name = format!("seat/{round}");
        let warm = engine.acquire(claim("warm", "warm", MINUTE)).await.expect("granted");
        engine.release(&warm.lease_id).await.expect("released");
        for proxy in &proxies {
            if round % 2 == 0 { proxy.swallow_replies(true) } else { proxy.swallow_requests(true) }
        }
        let began = Instant::now();
        let task = tokio::spawn({
            let (engine, name) = (engine.clone(), name.clone());
            async move { engine.acquire(claim("ada", &name, MINUTE)).await }
        });
        tokio::time::sleep(Duration::from_millis(300)).await;
        for proxy in &proxies {
            proxy.swallow_replies(false);
            proxy.swallow_requests(false);
            proxy.cut_all();
        }
        let grant: Grant = task.await.unwrap().expect("it is resolved, and tried again where it had no effect");
        granted += 1;
        assert!(began.elapsed() < SECOND * 8, "{:?}", began.elapsed());
        let seen = witness.inspect(&name).await.unwrap().expect("it is held");
        assert_eq!((seen.holders.len(), seen.holders[0].token, seen.queue_len), (1, grant.token, 0));
        assert!(engine.release(&grant.lease_id).await.expect("released"));
        assert!(witness.inspect(&name).await.unwrap().is_none(), "nothing is left over");
    }
    assert_eq!(granted, 6);
}

/// Goal: a lease outlives the process that took it: others renew it with the same token, and release it once.
#[tokio::test(flavor = "multi_thread")]
async fn others_carry_on_when_a_process_is_gone() {
    let cluster = EtcdCluster::start(1);
    let (gone, other) = (open(&cluster.url()).await, open(&cluster.url()).await);
    let several = vec![Want::exclusive("seat"), Want::exclusive("aisle")];
    let ada = gone.acquire(Claim { wants: several, ..claim("ada", "seat", SECOND * 6) }).await.expect("granted");
    // Without close, as a process that is killed.
    drop(gone);
    for _ in 0..3 {
        tokio::time::sleep(SECOND * 2).await;
        let renewal = other.renew(&ada.lease_id, None).await.expect("renewed by another");
        assert_eq!(renewal.remaining, SECOND * 6);
        for name in ["seat", "aisle"] {
            assert_eq!(other.inspect(name).await.unwrap().unwrap().holders[0].token, ada.token);
        }
    }
    assert!(other.release(&ada.lease_id).await.expect("released by another"));
    assert!(!other.release(&ada.lease_id).await.expect("released before"));
    assert!(other.inspect("aisle").await.unwrap().is_none());
}

/// Goal: when the process that should end a lease is gone, a waiting claim of another one gets it: never early, and within
/// a second or so. So does one that waits for a lease that was renewed. When nobody wants it, etcd ends it.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_of_a_dead_process_lapses() {
    let cluster = EtcdCluster::start(1);
    let (gone, other) = (open(&cluster.url()).await, open(&cluster.url()).await);
    let ttl = SECOND * 4;
    let began = Instant::now();
    gone.acquire(claim("ada", "seat", ttl)).await.expect("granted");
    let row = gone.acquire(claim("ada", "row", SECOND)).await.expect("granted");
    gone.renew(&row.lease_id, Some(ttl)).await.expect("renewed");
    gone.acquire(claim("ada", "nobody wants it", ttl)).await.expect("granted");
    drop(gone);
    let take = async |name| {
        other.acquire(patient("bob", name, ttl)).await.expect("granted when ada's time is over");
        assert!(began.elapsed() >= ttl, "{name}: never early: {:?}", began.elapsed());
        assert!(began.elapsed() < ttl + SECOND * 2, "{name}: soon: {:?}", began.elapsed());
    };
    tokio::join!(take("seat"), take("row"));
    let key = || cluster.etcdctl(&["get", "--prefix", "nobody wants it/"]);
    while !key().is_empty() {
        assert!(began.elapsed() < ttl + SECOND * 14, "etcd ends it");
        tokio::time::sleep(SECOND / 2).await;
    }
    assert!(began.elapsed() >= ttl);
}

/// Goal: how long etcd takes to open a bucket makes no lease end early.
/// Method: the reply to the opening is held back for a second and a half. Another process counts the next lease of that length by
/// its bucket, when the process that took it is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reply_makes_nothing_early() {
    let cluster = EtcdCluster::start(1);
    let proxy = Proxy::start(cluster.client_ports()[0]);
    let (gone, other) = (open(&format!("etcd://127.0.0.1:{}", proxy.port())).await, open(&cluster.url()).await);
    let ttl = SECOND * 6;
    proxy.hold_replies(true);
    let slow = tokio::spawn({
        let gone = gone.clone();
        async move { gone.acquire(claim("ada", "row", ttl)).await }
    });
    tokio::time::sleep(SECOND * 3 / 2).await;
    proxy.hold_replies(false);
    slow.await.unwrap().expect("granted");
    let began = Instant::now();
    gone.acquire(claim("ada", "seat", ttl)).await.expect("granted");
    drop(gone);
    other.acquire(patient("bob", "seat", ttl)).await.expect("granted when ada's time is over");
    assert!(began.elapsed() >= ttl, "early: {:?}", began.elapsed());
    assert!(began.elapsed() < ttl + SECOND * 2, "soon: {:?}", began.elapsed());
}

/// Goal: a process that has lost its session notices it before it grants or renews: it opens another one. Its waiting claims
/// have lost their place, its leases stand.
/// Method: the marker is deleted, as etcd does it when a machine was frozen for longer than a session lives.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_marker_is_noticed_before_anything_is_granted() {
    let cluster = EtcdCluster::start(1);
    let engine = open(&cluster.url()).await;
    let ada = engine.acquire(claim("ada", "seat", MINUTE)).await.expect("granted");
    let markers = || cluster.etcdctl(&["get", "--prefix", "\u{1}s/", "--keys-only"]);
    let lose = || {
        let before = markers();
        cluster.etcdctl(&["del", "--prefix", "\u{1}s/"]);
        before
    };
    let before = lose();
    engine.renew(&ada.lease_id, None).await.expect("renewed in another session");
    assert!(!markers().trim().is_empty() && markers() != before, "a renewal demands a marker");
    let before = lose();
    let row = engine.acquire(claim("ada", "row", MINUTE)).await.expect("granted in another session");
    assert!(!markers().trim().is_empty() && markers() != before, "a grant demands a marker");
    let waiter = tokio::spawn({
        let engine = engine.clone();
        async move { engine.acquire(patient("bob", "row", MINUTE)).await }
    });
    while engine.inspect("row").await.unwrap().unwrap().queue_len == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    lose();
    assert!(engine.release(&row.lease_id).await.expect("a release needs no session"));
    let lost = waiter.await.unwrap();
    assert!(matches!(&lost, Err(Error::Unavailable { .. })), "a promotion demands a marker: {lost:?}");
    assert!(engine.release(&ada.lease_id).await.expect("it is live"));
}

/// Goal: with 64 waiters, each release wakes exactly one, and they come in order of arrival.
#[tokio::test(flavor = "multi_thread")]
async fn one_release_wakes_one_of_many() {
    let cluster = EtcdCluster::start(1);
    let engine = open(&cluster.url()).await;
    let mut holder = engine.acquire(claim("first", "seat", MINUTE)).await.expect("granted");
    let mut waiters = Vec::new();
    for n in 0..64_usize {
        let engine_too = engine.clone();
        waiters.push(tokio::spawn(async move { engine_too.acquire(patient(&format!("w{n}"), "seat", MINUTE)).await }));
        while engine.inspect("seat").await.unwrap().unwrap().queue_len <= n {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    let before = engine.wakes();
    for (n, waiter) in waiters.into_iter().enumerate() {
        assert!(engine.release(&holder.lease_id).await.expect("released"));
        holder = waiter.await.unwrap().expect("it is its turn");
        assert_eq!(engine.wakes() - before, n as u64 + 1, "exactly one wake for each release");
        assert_eq!(engine.inspect("seat").await.unwrap().unwrap().queue_len, 63 - n);
    }
}

/// Goal: etcd without space refuses new leases with a sentence, and a release still frees.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_etcd_still_releases() {
    let settings = EtcdSettings { flags: vec!["--quota-backend-bytes=4194304".into()], ..EtcdSettings::new(1) };
    let cluster = EtcdCluster::start_with(settings);
    let engine = open(&cluster.url()).await;
    let ada = engine.acquire(claim("ada", "seat", MINUTE)).await.expect("granted");
    let eve = engine.acquire(claim("eve", "aisle", MINUTE)).await.expect("granted");
    let gone = open(&cluster.url()).await;
    gone.acquire(claim("cy", "bench", 2 * SECOND)).await.expect("granted");
    gone.close().await.expect("closed");
    let big = "x".repeat(100_000);
    for n in 0..60 {
        if !cluster.etcdctl_command(&["put", &format!("filler/{n}"), &big]).output().unwrap().status.success() {
            break;
        }
    }
    let refused = engine.acquire(claim("bob", "row", MINUTE)).await.expect_err("there is no space");
    let Error::Unavailable { source, .. } = &refused else { panic!("{refused:?}") };
    assert!(source.to_string().contains("out of space"), "{source}");
    // A process that comes now has no session, and can look and end leases all the same.
    let late = open(&cluster.url()).await;
    assert_eq!(late.inspect("seat").await.unwrap().unwrap().holders.len(), 1);
    assert!(late.examine().await.unwrap().iter().any(|finding| finding.found == "NOSPACE"));
    let refused = late.acquire(claim("bob", "row", MINUTE)).await.expect_err("there is no space");
    assert!(
        matches!(&refused, Error::Unavailable { source, .. } if source.to_string().contains("out of space")),
        "{refused:?}"
    );
    assert!(late.release(&eve.lease_id).await.expect("a release deletes"));
    tokio::time::sleep(4 * SECOND).await;
    assert!(late.inspect("bench").await.expect("a lease that is over is no obstacle").is_none());
    late.close().await.expect("closed");
    assert!(engine.release(&ada.lease_id).await.expect("a release deletes"));
    assert!(engine.inspect("seat").await.unwrap().is_none());
    let findings = engine.examine().await.unwrap();
    assert!(findings.iter().any(|finding| finding.found == "NOSPACE"), "{findings:?}");
}

/// Goal: a claim that waits through a process that closes learns that nothing happened; one whose request is repeated
/// through another process gets one lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_waits_elsewhere_is_followed() {
    let cluster = EtcdCluster::start(1);
    let engines = [open(&cluster.url()).await, open(&cluster.url()).await];
    let bob = engines[0].acquire(claim("bob", "seat", MINUTE)).await.expect("granted");
    let asked = Claim { request: Some("r1".into()), ..patient("ada", "seat", MINUTE) };
    let both: Vec<_> = engines
        .iter()
        .map(|engine| {
            let (engine, asked) = (engine.clone(), asked.clone());
            tokio::spawn(async move { engine.acquire(asked).await })
        })
        .collect();
    tokio::time::sleep(SECOND).await;
    assert_eq!(engines[0].inspect("seat").await.unwrap().unwrap().queue_len, 1, "one place for both");
    engines[0].release(&bob.lease_id).await.expect("released");
    let mut ids = Vec::new();
    for task in both {
        ids.push(task.await.unwrap().expect("granted").lease_id);
    }
    assert_eq!(ids[0], ids[1]);
    let other = Claim { ttl: SECOND, ..asked };
    let mismatch = engines[1].acquire(other).await;
    assert!(matches!(mismatch, Err(Error::Refused(Refusal::Mismatch))), "{mismatch:?}");
}

/// Goal: a claim whose turn comes while etcd has no space is Unavailable, and does not keep others out: it leaves the queue.
#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_comes_without_space_is_given_up() {
    let settings = EtcdSettings { flags: vec!["--quota-backend-bytes=4194304".into()], ..EtcdSettings::new(1) };
    let cluster = EtcdCluster::start_with(settings);
    let engine = open(&cluster.url()).await;
    let ada = engine.acquire(claim("ada", "seat", MINUTE)).await.expect("granted");
    let waiter = tokio::spawn({
        let engine = engine.clone();
        async move { engine.acquire(patient("bob", "seat", MINUTE)).await }
    });
    while engine.inspect("seat").await.unwrap().unwrap().queue_len == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let big = "x".repeat(100_000);
    for n in 0..60 {
        if !cluster.etcdctl_command(&["put", &format!("filler/{n}"), &big]).output().unwrap().status.success() {
            break;
        }
    }
    assert!(engine.release(&ada.lease_id).await.expect("a release deletes"));
    let refused = waiter.await.unwrap().expect_err("there is no space");
    assert!(
        matches!(&refused, Error::Unavailable { source, .. } if source.to_string().contains("space")),
        "{refused:?}"
    );
    let began = Instant::now();
    while !cluster.etcdctl(&["get", "--prefix", "--keys-only", "seat/"]).trim().is_empty() {
        assert!(began.elapsed() < SECOND * 5, "bob's place stands in the way of others");
        tokio::time::sleep(SECOND / 10).await;
    }
}

/// Goal: members that take connections and do not answer do not make tasks without end: beyond a limit an acquire is turned
/// away before it is sent. When they answer again, everything goes on and nothing is left over.
#[tokio::test(flavor = "multi_thread")]
async fn silent_members_do_not_gather_tasks_without_end() {
    const MANY: usize = 600;
    let cluster = EtcdCluster::start(1);
    let proxy = Proxy::start(cluster.client_ports()[0]);
    let engine = open(&format!("etcd://127.0.0.1:{}", proxy.port())).await;
    let warm = engine.acquire(claim("ada", "warm", MINUTE)).await.expect("granted");
    engine.release(&warm.lease_id).await.expect("released");
    proxy.swallow_replies(true);
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..MANY {
        let engine = engine.clone();
        tasks.spawn(async move { engine.acquire(claim("ada", &format!("seat/{n}"), MINUTE)).await });
    }
    while let Some(answer) = tasks.join_next().await {
        let error = answer.unwrap().expect_err("nobody answers");
        assert!(matches!(error, Error::Unavailable { .. } | Error::Indeterminate { .. }), "{error:?}");
    }
    let began = Instant::now();
    let refused = engine.acquire(claim("ada", "one more", MINUTE)).await.expect_err("it is not sent");
    assert!(
        matches!(&refused, Error::Unavailable { source, .. } if source.to_string().contains("is found out first")),
        "{refused:?}"
    );
    assert!(began.elapsed() < SECOND / 2, "{:?}", began.elapsed());
    proxy.swallow_replies(false);
    proxy.cut_all();
    let began = Instant::now();
    loop {
        let left = cluster.etcdctl(&["get", "--prefix", "--keys-only", "seat/"]);
        let again = engine.acquire(claim("ada", "one more", MINUTE)).await;
        if let (Ok(grant), true) = (&again, left.trim().is_empty()) {
            assert!(engine.release(&grant.lease_id).await.expect("released"));
            break;
        }
        if let Ok(grant) = &again {
            engine.release(&grant.lease_id).await.expect("released");
        }
        assert!(began.elapsed() < MINUTE, "{again:?}, {} left", left.lines().filter(|line| !line.is_empty()).count());
        tokio::time::sleep(SECOND / 5).await;
    }
}
