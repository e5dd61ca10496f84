//! The PostgreSQL engine while something is away or kept: callers are answered in time, nothing hangs, nothing leaks, and
//! whoever has nothing to do with it goes on.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stdout)] // a real server lives in real time

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::Error;
use leasehold::engine::postgres::{PostgresEngine, PostgresEngineOptions};
use leasehold::engine::{Claim, Engine, Grant, Want};
use leasehold_harness::postgres::Cluster;
use leasehold_harness::proxy::Proxy;
use leasehold_harness::{Signal, send_signal};
use tokio::task::JoinHandle;

async fn open(url: &str) -> Arc<PostgresEngine> {
    PostgresEngine::open(PostgresEngineOptions::from_url(url).unwrap()).await.expect("the engine opens")
}

async fn sleep(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}

fn claim(name: &str, who: &str, wait_ms: u64) -> Claim {
    let wait = Duration::from_millis(wait_ms);
    Claim { wait, ..Claim::new(vec![Want::exclusive(name)], Duration::from_secs(60), who) }
}

/// An acquire in a task of its own, with the time it took.
fn acquire(engine: &Arc<PostgresEngine>, claim: Claim) -> JoinHandle<(Duration, Result<Grant, Error>)> {
    let engine = engine.clone();
    tokio::spawn(async move {
        let began = Instant::now();
        let answer = engine.acquire(claim).await;
        (began.elapsed(), answer)
    })
}

/// Goal: a call that is being retried while the engine closes gets an answer.
/// Method: the server takes no connections; a renewal is in its pauses; the engine closes beside it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closing_engine_answers_every_call() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    let admin = cluster.client("postgres").await;
    for round in 0..5 {
        let engine = open(&cluster.url(&database)).await;
        let grant = engine.acquire(claim(&format!("seat-{round}"), "ada", 0)).await.unwrap();
        admin.batch_execute(&format!("ALTER DATABASE {database} ALLOW_CONNECTIONS false")).await.unwrap();
        cluster.terminate_backends(&database, "leasehold engine").await;
        sleep(50).await;
        let renewing = {
            let (engine, lease) = (engine.clone(), grant.lease_id.clone());
            tokio::spawn(async move { engine.renew(&lease, None).await })
        };
        sleep(8).await;
        let began = Instant::now();
        engine.close().await.unwrap();
        let answer = tokio::time::timeout(Duration::from_secs(12), renewing).await.expect("an answer").unwrap();
        assert!(matches!(answer, Err(Error::Unavailable { .. } | Error::Indeterminate { .. })), "{answer:?}");
        println!("closed and answered in {:?}", began.elapsed());
        assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
        admin.batch_execute(&format!("ALTER DATABASE {database} ALLOW_CONNECTIONS true")).await.unwrap();
    }
}

/// Goal: a refusal after a try of unknown outcome is the last word: the try takes nothing when it runs after all.
/// Method: the backend of the only writer is stopped with a batch in its socket; two claims are refused over another one,
/// at once and after waiting; the names are released, and the backend goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_try_takes_nothing_after_a_refusal() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    let engine = open(&format!("{}?connections=1", cluster.url(&database))).await;
    let other = open(&cluster.url(&database)).await;
    engine.acquire(claim("warm", "bob", 0)).await.unwrap();
    let admin = cluster.client(&database).await;
    let text = "SELECT pid FROM pg_stat_activity WHERE query LIKE '%batch(%' AND pid <> pg_backend_pid()";
    let pids: Vec<i32> = admin.query(text, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(pids.len(), 1);
    let signal = |signal| send_signal(u32::try_from(pids[0]).unwrap(), signal);
    let one = other.acquire(claim("one", "ada", 0)).await.unwrap();
    let two = other.acquire(claim("two", "ada", 0)).await.unwrap();
    signal(Signal::STOP);
    let (first, second) = (acquire(&engine, claim("one", "bob", 0)), acquire(&engine, claim("two", "bob", 12_000)));
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    println!("{first:?}\n{second:?}");
    assert!(first.1.is_err() && second.1.is_err());
    sleep(1500).await;
    other.release(&one.lease_id).await.unwrap();
    other.release(&two.lease_id).await.unwrap();
    signal(Signal::CONT);
    sleep(2000).await;
    for name in ["one", "two"] {
        assert_eq!(other.inspect(name).await.unwrap(), None, "nobody knows the lease that was granted");
    }
}

/// Goal: without the listening connection claims wait in their queues, by checks alone, and ask once a second.
/// Method: the listening backend is ended and the database takes no connections; four callers wait for a held name; the
/// commits of the database are counted; then the name is released, and one of them gets it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_wait_without_messages() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    let engine = open(&cluster.url(&database)).await;
    let admin = cluster.client("postgres").await;
    let held = engine.acquire(claim("seat", "ada", 0)).await.unwrap();
    engine.acquire(claim("seat", "bob", 300)).await.expect_err("held");
    admin.batch_execute(&format!("ALTER DATABASE {database} ALLOW_CONNECTIONS false")).await.unwrap();
    let text = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                WHERE query LIKE 'LISTEN \"leasehold%' OR query = 'SELECT 1'";
    assert_eq!(admin.query_one(text, &[]).await.unwrap().get::<_, i64>(0), 1);
    sleep(300).await;
    let commits = async || -> i64 {
        sleep(1200).await;
        let text = "SELECT xact_commit FROM pg_stat_database WHERE datname = $1";
        admin.query_one(text, &[&database]).await.unwrap().get(0)
    };
    let before = commits().await;
    let waiters: Vec<_> = (0..4).map(|_| acquire(&engine, claim("seat", "cy", 6000))).collect();
    sleep(2500).await;
    assert_eq!(engine.inspect("seat").await.unwrap().unwrap().queue_len, 4);
    engine.release(&held.lease_id).await.unwrap();
    let mut granted = Vec::new();
    for waiter in waiters {
        let (took, answer) = waiter.await.unwrap();
        if let Ok(grant) = answer {
            assert!(took < Duration::from_millis(4500), "the next check finds the grant: {took:?}");
            granted.push(grant);
        }
    }
    assert_eq!(granted.len(), 1);
    let asked = commits().await - before;
    println!("{asked} commits for four waiting callers in 6 s");
    assert!(asked < 100, "{asked} commits");
}

/// Keeps the lock of a name until the client is dropped or unlocks it.
async fn keep_lock(cluster: &Cluster, database: &str, name: &str) -> tokio_postgres::Client {
    let client = cluster.client(database).await;
    // The class stands in the text of the functions.
    let text =
        "SELECT (regexp_match(prosrc, 'lock\\(\\((-?\\d+)\\), h\\)'))[1] FROM pg_proc WHERE proname = 'begin_write'";
    let class: String = client.query_one(text, &[]).await.unwrap().get(0);
    client.batch_execute(&format!("SELECT pg_advisory_lock({class}, hashtext('{name}'))")).await.unwrap();
    client
}

/// Goal: a kept lock delays nobody who wants another name, and its own callers once, however many they are.
/// Method: callers of the kept name come together and one after the other; meanwhile free names are acquired and a lease
/// is renewed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kept_lock_delays_nobody_else() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    let engine = open(&cluster.url(&database)).await;
    let mine = engine.acquire(claim("mine", "ada", 0)).await.unwrap();
    let keeper = keep_lock(&cluster, &database, "kept").await;
    let mut stuck: Vec<_> = (0..20).map(|_| acquire(&engine, claim("kept", "bob", 0))).collect();
    for _ in 0..12 {
        stuck.push(acquire(&engine, claim("kept", "bob", 0)));
        sleep(15).await;
    }
    let mut slowest = Duration::ZERO;
    for number in 0..40 {
        let began = Instant::now();
        engine.acquire(claim(&format!("free-{number}"), "cy", 0)).await.expect("it is free");
        engine.renew(&mine.lease_id, None).await.expect("it is live");
        slowest = slowest.max(began.elapsed());
        stuck.push(acquire(&engine, claim("kept", "bob", 0)));
        sleep(100).await;
    }
    println!("a free name and a renewal took at most {slowest:?}");
    assert!(slowest < Duration::from_millis(1500), "{slowest:?}");
    for caller in stuck {
        let (took, answer) = caller.await.unwrap();
        assert!(matches!(answer, Err(Error::Unavailable { .. })), "{answer:?}");
        assert!(took < Duration::from_millis(4000), "{took:?}");
    }
    drop(keeper);
    sleep(200).await;
    let grant = engine.acquire(claim("kept", "bob", 2000)).await.expect("the lock is free again");
    engine.release(&grant.lease_id).await.unwrap();
}

/// Goal: what shares a batch with a kept name is answered right after that batch has failed.
/// Method: one writer only; while it waits for the kept lock, free names, a renewal and the kept name are queued.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_with_a_kept_name_is_split() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    let engine = open(&format!("{}?connections=1", cluster.url(&database))).await;
    let mine = engine.acquire(claim("mine", "ada", 0)).await.unwrap();
    let _keeper = keep_lock(&cluster, &database, "kept").await;
    let _other = keep_lock(&cluster, &database, "kept-too").await;
    let mut stuck = vec![acquire(&engine, claim("kept", "bob", 0))];
    sleep(50).await;
    let mut free = Vec::new();
    for number in 0..20 {
        free.push(acquire(&engine, claim(&format!("free-{number}"), "cy", 0)));
        stuck.push(acquire(&engine, claim("kept", "bob", 0)));
        stuck.push(acquire(&engine, claim("kept-too", "bob", 0)));
    }
    let began = Instant::now();
    engine.renew(&mine.lease_id, None).await.expect("it is live");
    println!("renewed after {:?}", began.elapsed());
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
    for caller in free {
        let (took, answer) = caller.await.unwrap();
        answer.expect("it is free");
        assert!(took < Duration::from_secs(6), "{took:?}");
    }
    for caller in stuck {
        let (took, answer) = caller.await.unwrap();
        assert!(matches!(answer, Err(Error::Unavailable { .. })), "{answer:?}");
        assert!(took < Duration::from_secs(8), "{took:?}");
    }
}

/// Goal: claims whose patience is over are answered although the lock of their name is kept, and an unrelated claim of the
/// same process keeps its place.
/// Method: eight claims wait for a name whose lock is then kept; another waits first in another queue, with a later one of
/// another process behind it; after more than 10 s that name is released.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kept_lock_costs_no_unrelated_place() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    let engine = open(&cluster.url(&database)).await;
    let other = open(&cluster.url(&database)).await;
    other.acquire(claim("kept", "ada", 0)).await.unwrap();
    let fine = other.acquire(claim("fine", "ada", 0)).await.unwrap();
    let first = acquire(&engine, claim("fine", "first", 60_000));
    sleep(300).await;
    let late = acquire(&other, claim("fine", "late", 60_000));
    let mut waiters: Vec<_> = (0..8).map(|_| acquire(&engine, claim("kept", "bob", 3000))).collect();
    sleep(700).await;
    let keeper = keep_lock(&cluster, &database, "kept").await;
    // They come while the lock is kept, and their patience ends later.
    sleep(1000).await;
    let text = "SELECT max((leasehold_engine.now_us() - p.seen) / 1000)::bigint FROM leasehold_engine.process p \
                WHERE EXISTS (SELECT FROM leasehold_engine.lease l WHERE l.label = 'first' AND p.id = ANY (l.processes))";
    let mut oldest = 0;
    for _ in 0..13 {
        sleep(1000).await;
        oldest = oldest.max(keeper.query_one(text, &[]).await.unwrap().get::<_, Option<i64>>(0).unwrap_or(0));
    }
    println!("the heartbeat was at most {oldest} ms old");
    assert!(oldest < 6000, "{oldest}");
    for waiter in waiters.drain(..) {
        let (took, answer) = waiter.await.unwrap();
        assert!(answer.is_err(), "{answer:?}");
        assert!(took < Duration::from_millis(5000), "patience 3 s, answered after {took:?}");
    }
    assert_eq!(other.inspect("fine").await.unwrap().unwrap().queue_len, 2);
    other.release(&fine.lease_id).await.unwrap();
    let (_, granted) = tokio::time::timeout(Duration::from_secs(5), first).await.expect("its turn").unwrap();
    assert!(!late.is_finished(), "the later claim is behind");
    engine.release(&granted.expect("the first in the queue").lease_id).await.unwrap();
    late.await.unwrap().1.expect("the next in the queue");
}

/// Goal: a server that takes everything and says nothing costs callers their patience and a few seconds, and no more.
/// Method: a proxy swallows all requests; every verb is called; then the proxy passes them on, and nothing is held.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_server_is_not_waited_for() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    let proxy = Proxy::start(cluster.port());
    let engine = open(&cluster.url_through(proxy.port(), "postgres", &database)).await;
    let grant = engine.acquire(claim("mine", "ada", 0)).await.unwrap();
    proxy.swallow_requests(true);
    let began = Instant::now();
    let at_once = acquire(&engine, claim("one", "bob", 0));
    let patient = acquire(&engine, claim("two", "bob", 2000));
    let renewed = async { (engine.renew(&grant.lease_id, None).await.map(drop), began.elapsed()) };
    let shown = async { (engine.inspect("mine").await.map(drop), began.elapsed()) };
    let revoked = async { (engine.revoke("two", "a test").await.map(drop), began.elapsed()) };
    let (renewed, shown, revoked) = tokio::join!(renewed, shown, revoked);
    let ((at_once, first), (patient, second)) = (at_once.await.unwrap(), patient.await.unwrap());
    println!("acquire {at_once:?}, with patience {patient:?}, renew {:?}, inspect {:?}", renewed.1, shown.1);
    let most = Duration::from_millis(8500);
    assert!(at_once < most && renewed.1 < most && shown.1 < most && revoked.1 < most);
    assert!(patient < most + Duration::from_secs(2));
    for error in [renewed.0, revoked.0, first.map(drop), second.map(drop)] {
        assert!(matches!(error, Err(Error::Indeterminate { .. } | Error::Unavailable { .. })), "{error:?}");
    }
    assert!(matches!(shown.0, Err(Error::Unavailable { .. })), "a read has no effect: {:?}", shown.0);
    proxy.swallow_requests(false);
    proxy.cut_all();
    let end = Instant::now() + Duration::from_secs(20);
    while engine.renew(&grant.lease_id, None).await.is_err() {
        assert!(Instant::now() < end, "it comes back");
    }
    sleep(1000).await;
    for name in ["one", "two"] {
        assert_eq!(engine.inspect(name).await.unwrap(), None, "nobody knows the lease");
    }
}

/// Takes locks until the server's table of locks is full, and gives back some of them.
async fn fill_lock_table(client: &tokio_postgres::Client, free: i64) {
    let mut taken: i64 = 0;
    while client.batch_execute(&format!("SELECT pg_advisory_lock({taken})")).await.is_ok() {
        taken += 1;
    }
    let unlock = "SELECT count(*) FROM generate_series($1::bigint, $2) n WHERE pg_advisory_unlock(n)";
    let row = client.query_one(unlock, &[&(taken - free), &(taken - 1)]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), free, "given back");
    println!("{taken} locks filled the table");
}

/// Goal: a batch with more locks than the server has left is sent in halves, and all of it succeeds; with none left the
/// error names the setting, and nothing happened.
/// Method: a small table of locks, filled by another session until 80 are left, and then all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_table_of_locks_halves_the_batch() {
    let cluster = Cluster::start(&["max_locks_per_transaction=10", "max_connections=20"]);
    let database = cluster.database().await;
    let engine = open(&format!("{}?connections=1", cluster.url(&database))).await;
    // Plans need locks on tables and indexes: they are made before.
    for name in ["warm", "warm-too"] {
        let grant = engine.acquire(claim(name, "ada", 0)).await.unwrap();
        assert!(engine.release(&grant.lease_id).await.unwrap());
    }
    let other = cluster.client(&database).await;
    fill_lock_table(&other, 80).await;
    let before = cluster.read_log().matches("out of shared memory").count();
    let all: Vec<_> = (0..400).map(|number| acquire(&engine, claim(&format!("seat-{number}"), "bob", 0))).collect();
    for caller in all {
        caller.await.unwrap().1.expect("granted, with fewer beside it");
    }
    let failed = cluster.read_log().matches("out of shared memory").count() - before;
    println!("{failed} lines of the log say that the server was out of locks");
    assert!(failed > 0, "the table was large enough");
    fill_lock_table(&other, 0).await;
    let (took, answer) = acquire(&engine, claim("none-left", "cy", 0)).await.unwrap();
    let Err(Error::Unavailable { source, .. }) = &answer else { panic!("{answer:?}") };
    assert!(source.to_string().contains("max_locks_per_transaction"), "{source}");
    assert!(took < Duration::from_secs(8), "{took:?}");
    other.batch_execute("SELECT pg_advisory_unlock_all()").await.unwrap();
    assert_eq!(engine.inspect("none-left").await.unwrap(), None);
}
