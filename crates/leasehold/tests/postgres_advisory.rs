//! Advisory locks against those who use them already: psql, and sessions with the keys of other libraries.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stdout)] // a real server lives in real time

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use leasehold::advisory::{AdvisoryKey, AdvisoryLocks, AdvisoryMode, lock_in_transaction, token_in_transaction};
use leasehold::engine::postgres::{PostgresEngine, PostgresEngineOptions, SchemaName};
use leasehold::{Error, Refusal};
use leasehold_harness::postgres::Cluster;
use tokio_postgres::Client;

const WAIT: Duration = Duration::from_secs(20);

fn schema() -> SchemaName {
    SchemaName::new(SchemaName::DEFAULT).unwrap()
}

async fn prepared() -> (Arc<Cluster>, String, AdvisoryLocks) {
    let cluster = Arc::new(Cluster::start(&[]));
    let database = cluster.database().await;
    PostgresEngine::migrate(&PostgresEngineOptions::from_url(&cluster.url(&database)).unwrap()).await.unwrap();
    let locks = AdvisoryLocks::new(&cluster.url(&database), schema()).unwrap();
    let tables = "CREATE TABLE seen (who text, came timestamptz, went timestamptz)";
    cluster.execute(&database, tables).await;
    (cluster, database, locks)
}

/// What everybody does under the lock: be inside for a moment, and write down from when to when by the server's clock.
const INSIDE: &str = "INSERT INTO seen SELECT 'WHO', s.came, clock_timestamp() \
                      FROM (SELECT clock_timestamp() AS came, pg_sleep(0.001) AS slept) s;";

async fn count_overlaps(client: &Client, rounds: i64) {
    let sql = "SELECT (SELECT count(*) FROM seen), count(*) FROM seen a JOIN seen b \
               ON a.ctid < b.ctid AND a.came < b.went AND b.came < a.went";
    let row = client.query_one(sql, &[]).await.unwrap();
    assert_eq!(
        (row.get::<_, i64>(0), row.get::<_, i64>(1)),
        (rounds, 0),
        "rounds, and pairs that were inside together"
    );
}

/// Goal: ours and psql's exclude each other, in both directions, and tokens rise.
/// Method: psql runs a script of session and transaction locks; two of ours beside it; sqlx's key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn psql_and_ours_exclude_each_other() {
    let (cluster, database, locks) = prepared().await;
    let rounds: i64 =
        std::env::var("LEASEHOLD_ADVISORY_ROUNDS").ok().map_or(700, |text| text.parse().expect("a number"));
    let key = AdvisoryKey::sqlx("my first Postgres advisory lock!");
    let AdvisoryKey::Single(number) = key else { panic!("one number") };
    let inside = INSIDE.replace("WHO", "psql");
    let mut script = String::from("\\set ON_ERROR_STOP on\n");
    for round in 0..rounds {
        script += &if round % 2 == 0 {
            format!("SELECT pg_advisory_lock({number});{inside}SELECT pg_advisory_unlock({number});\n")
        } else {
            format!("BEGIN;SELECT pg_advisory_xact_lock({number});{inside}COMMIT;\n")
        };
    }
    let mut psql = Command::new("psql")
        .args(["-q", "-X", "-o", "/dev/null", "-d", &cluster.url(&database)])
        .stdin(Stdio::piped())
        .spawn()
        .expect("psql is not installed, and this test needs it: apt-get install postgresql-client-15");
    let mut input = psql.stdin.take().unwrap();
    let feeding = std::thread::spawn(move || input.write_all(script.as_bytes()).unwrap());
    let racers: Vec<_> = (0..2)
        .map(|_| {
            let (cluster, database, locks, key) = (cluster.clone(), database.clone(), locks.clone(), key.clone());
            tokio::spawn(async move {
                let client = cluster.client(&database).await;
                let inside = INSIDE.replace("WHO", "ours");
                let mut tokens = Vec::new();
                for _ in 0..rounds {
                    let lock = locks.lock(key.clone(), AdvisoryMode::Exclusive, WAIT).await.expect("it is had in time");
                    tokens.push(lock.token().await.expect("a token"));
                    client.batch_execute(&inside).await.unwrap();
                    lock.release().await.expect("it was held");
                }
                tokens
            })
        })
        .collect();
    let mut all = Vec::new();
    for racer in racers {
        let tokens = racer.await.unwrap();
        assert!(tokens.is_sorted_by(|one, other| one < other), "tokens rise for each");
        all.extend(tokens);
    }
    feeding.join().unwrap();
    assert!(psql.wait().unwrap().success(), "psql came to its end");
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count, "no token came twice");
    count_overlaps(&cluster.client(&database).await, 3 * rounds).await;
    println!("{} rounds, 0 overlaps", 3 * rounds);
}

/// Goal: every kind of key is the one that plain SQL locks, and modes are PostgreSQL's.
/// Method: a session locks by plain SQL; ours is refused; a pair is not a single number; readers share.
#[tokio::test]
async fn keys_are_those_of_plain_sql() {
    let (cluster, database, locks) = prepared().await;
    let other = cluster.client(&database).await;
    let try_lock = async |key: &AdvisoryKey, mode| locks.lock(key.clone(), mode, Duration::ZERO).await;
    for (sql, key) in [
        ("4711", AdvisoryKey::Single(4711)),
        ("47, -11", AdvisoryKey::Pair(47, -11)),
        ("hashtext('nightly')", AdvisoryKey::Hashtext("nightly".into())),
        ("hashtextextended('nightly', 0)", AdvisoryKey::HashtextExtended("nightly".into())),
        ("1274296614, 0", AdvisoryKey::with_advisory_lock("123456789")),
    ] {
        other.batch_execute(&format!("SELECT pg_advisory_lock({sql})")).await.unwrap();
        let refused = try_lock(&key, AdvisoryMode::Shared).await.unwrap_err();
        assert!(matches!(refused, Error::Refused(Refusal::Held { .. })), "{sql}: {refused:?}");
        let short = locks.lock(key.clone(), AdvisoryMode::Exclusive, Duration::from_millis(50)).await.unwrap_err();
        assert!(matches!(short, Error::Refused(Refusal::Held { .. })), "{sql}: {short:?}");
        other.batch_execute(&format!("SELECT pg_advisory_unlock({sql})")).await.unwrap();
        let lock = try_lock(&key, AdvisoryMode::Exclusive).await.expect("it is free");
        let row = other.query_one(&format!("SELECT pg_try_advisory_lock({sql})"), &[]).await.unwrap();
        assert!(!row.get::<_, bool>(0), "{sql}");
        lock.release().await.unwrap();
    }
    let one = try_lock(&AdvisoryKey::Single(9), AdvisoryMode::Shared).await.unwrap();
    let two = try_lock(&AdvisoryKey::Single(9), AdvisoryMode::Shared).await.expect("readers share");
    assert!(try_lock(&AdvisoryKey::Single(9), AdvisoryMode::Exclusive).await.is_err());
    try_lock(&AdvisoryKey::Pair(0, 9), AdvisoryMode::Exclusive).await.expect("pairs are another space");
    drop((one, two));
}

/// Goal: a holder learns that its connection has ended, and the key is free then; a dropped guard frees it.
/// Method: pg_terminate_backend; drop.
#[tokio::test]
async fn a_lost_connection_is_noticed() {
    let (cluster, database, locks) = prepared().await;
    let lock = locks.lock(AdvisoryKey::Single(1), AdvisoryMode::Exclusive, Duration::ZERO).await.unwrap();
    assert!(!lock.is_lost());
    assert_eq!(cluster.terminate_backends(&database, "leasehold advisory").await, 1);
    tokio::time::timeout(Duration::from_secs(5), lock.lost()).await.expect("it is noticed");
    assert!(lock.is_lost() && lock.token().await.is_err());
    assert!(matches!(lock.release().await, Err(Error::Unavailable { .. })));
    let lock = locks.lock(AdvisoryKey::Single(1), AdvisoryMode::Exclusive, WAIT).await.expect("the key is free");
    drop(lock);
    locks.lock(AdvisoryKey::Single(1), AdvisoryMode::Exclusive, WAIT).await.expect("the key is free again");
}

/// Goal: in a transaction the lock goes with it, a refusal leaves the transaction alive, and tokens rise.
/// Method: two transactions; the second is refused, goes on, and takes it after the first one's commit.
#[tokio::test]
async fn a_lock_of_a_transaction_ends_with_it() {
    let (cluster, database, locks) = prepared().await;
    let (mut first, mut second) = (cluster.client(&database).await, cluster.client(&database).await);
    let key = AdvisoryKey::with_advisory_lock("nightly");
    let one = first.transaction().await.unwrap();
    lock_in_transaction(&one, &key, AdvisoryMode::Exclusive, Duration::ZERO).await.unwrap();
    let early = token_in_transaction(&one, &schema()).await.unwrap();
    let two = second.transaction().await.unwrap();
    for wait in [Duration::ZERO, Duration::from_millis(50)] {
        let refused = lock_in_transaction(&two, &key, AdvisoryMode::Exclusive, wait).await.unwrap_err();
        assert!(matches!(refused, Error::Refused(Refusal::Held { .. })), "{refused:?}");
    }
    two.batch_execute("INSERT INTO seen VALUES ('still alive', now(), now())").await.unwrap();
    one.commit().await.unwrap();
    lock_in_transaction(&two, &key, AdvisoryMode::Exclusive, WAIT).await.unwrap();
    assert!(token_in_transaction(&two, &schema()).await.unwrap() > early);
    two.commit().await.unwrap();
    locks.lock(key, AdvisoryMode::Exclusive, Duration::ZERO).await.expect("it ended with the transaction");
}

/// Goal: nobody takes the engine's own locks by accident.
#[tokio::test]
async fn the_keys_of_the_engine_are_refused() {
    let (cluster, database, locks) = prepared().await;
    let client = cluster.client(&database).await;
    let sql = "SELECT (regexp_match(prosrc, 'lock\\(\\((-?\\d+)\\), h\\)'))[1]::int FROM pg_proc WHERE proname = 'begin_write'";
    let class: i32 = client.query_one(sql, &[]).await.unwrap().get(0);
    for class in [class, class ^ 1] {
        let refused =
            locks.lock(AdvisoryKey::Pair(class, 0), AdvisoryMode::Exclusive, Duration::ZERO).await.unwrap_err();
        assert!(matches!(refused, Error::Invalid(_)), "{refused:?}");
    }
}
