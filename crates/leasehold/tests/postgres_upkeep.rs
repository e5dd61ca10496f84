//! What keeps the PostgreSQL engine going for long: sweeps, tokens that are raised beside open transactions, processes that
//! come back after an outage, commits that no standby has.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stdout)] // a real server lives in real time

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::engine::postgres::{PostgresEngine, PostgresEngineOptions};
use leasehold::engine::{Claim, Engine, Mode, Token, Want};
use leasehold_harness::postgres::Cluster;
use tokio_postgres::Client;

const TTL: Duration = Duration::from_secs(30);

async fn open(url: &str) -> Arc<PostgresEngine> {
    PostgresEngine::open(PostgresEngineOptions::from_url(url).unwrap()).await.expect("the engine opens")
}

async fn sleep(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}

fn claim(name: &str, wait: Duration) -> Claim {
    Claim { wait, ..Claim::new(vec![Want::exclusive(name)], TTL, "ada") }
}

fn spawn_acquire(
    engine: &Arc<PostgresEngine>,
    claim: Claim,
) -> tokio::task::JoinHandle<Result<leasehold::engine::Grant, leasehold::Error>> {
    let engine = engine.clone();
    tokio::spawn(async move { engine.acquire(claim).await })
}

async fn count(client: &Client, what: &str) -> i64 {
    client.query_one(&format!("SELECT count(*) FROM leasehold_engine.{what}"), &[]).await.unwrap().get(0)
}

/// Goal: what is over is forgotten, what is not stays, and a sweep that fails is found by `examine`.
/// Method: leases of all kinds, waiters and bans; their times are moved back by hours; a sweep; then a sweep without rights.
#[tokio::test]
async fn a_sweep_forgets_what_is_over() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    let engine = open(&cluster.url(&database)).await;
    let client = cluster.client(&database).await;
    for number in 0..700 {
        let mode = [Mode::Exclusive, Mode::Shared, Mode::Permits { count: 1, capacity: 3 }][number % 3];
        let wants = vec![Want { name: format!("old-{number}"), mode }];
        let grant = engine.acquire(Claim::new(wants, TTL, "ada")).await.unwrap();
        if number % 2 == 0 {
            engine.release(&grant.lease_id).await.unwrap();
        }
    }
    client
        .batch_execute(
            "UPDATE leasehold_engine.lease SET granted = granted - 7200000000, ends = ends - 7200000000,
                ended = ended - 7200000000;
             UPDATE leasehold_engine.resource SET used = used - 7200000000;
             INSERT INTO leasehold_engine.lease (handle, secret, state, single, ended, ttl, delay, label, names, counts,
                capacities) SELECT gen_random_uuid(), gen_random_uuid(), 'X', false,
                leasehold_engine.now_us() + 3600000000 * (i % 2 * 2 - 1), 0, 0, '', '{}', '{}', '{}'
                FROM generate_series(1, 4) i",
        )
        .await
        .unwrap();
    let live = engine.acquire(claim("live", Duration::ZERO)).await.unwrap();
    let released = engine.acquire(claim("released", Duration::ZERO)).await.unwrap();
    engine.release(&released.lease_id).await.unwrap();
    let waiting = spawn_acquire(&engine, claim("live", TTL));
    while count(&client, "queue").await == 0 {
        sleep(10).await;
    }
    // A claim that its process forgot.
    client
        .batch_execute(
            "INSERT INTO leasehold_engine.lease (handle, secret, state, single, ttl, delay, label, names, counts, capacities,
                arrival, since, patience, processes) SELECT gen_random_uuid(), secret, state, single, ttl, delay, 'gone', names,
                counts, capacities, -1, since, since - 7200000000, processes FROM leasehold_engine.lease WHERE state = 'W';
             INSERT INTO leasehold_engine.queue SELECT 'live', -1, handle, 0, 0 FROM leasehold_engine.lease WHERE label = 'gone';
             UPDATE leasehold_engine.resource SET queue = 2 WHERE name = 'live'",
        )
        .await
        .unwrap();
    assert!(count(&client, "lease").await > 700 && count(&client, "resource").await > 700);
    engine.sweep_now().await;
    // The live lease, the claim that waits for it, the ending a moment ago and two bans.
    assert_eq!(count(&client, "lease").await, 5);
    assert_eq!(count(&client, "resource WHERE name IN ('live', 'released')").await, 2);
    assert_eq!(count(&client, "resource").await, 2);
    assert_eq!(count(&client, "shared_holder").await, 0);
    assert_eq!(count(&client, "queue").await, 1);
    engine.renew(&live.lease_id, None).await.expect("a live lease stays");
    assert!(!engine.release(&released.lease_id).await.unwrap(), "an ending of a moment ago is remembered");
    engine.release(&live.lease_id).await.unwrap();
    waiting.await.unwrap().expect("the queue goes on");
    let warned = async || engine.examine().await.unwrap().into_iter().find(|finding| finding.setting == "sweep");
    assert!(warned().await.is_none());
    let again = "UPDATE leasehold_engine.meta SET swept = 0";
    client.batch_execute(again).await.unwrap();
    client.batch_execute("ALTER TABLE leasehold_engine.event RENAME TO event_away").await.unwrap();
    engine.sweep_now().await;
    assert!(warned().await.is_some_and(|finding| finding.found.contains("failed")));
    client.batch_execute("ALTER TABLE leasehold_engine.event_away RENAME TO event").await.unwrap();
    client.batch_execute(again).await.unwrap();
    engine.sweep_now().await;
    assert!(warned().await.is_none(), "a sweep that succeeds ends the warning");
}

/// Goal: whoever raises the tokens stops nobody, however long its transaction stays open.
/// Method: the sequence is far behind; a token for an advisory lock, a floor and a batch in transactions that stay open.
#[tokio::test]
async fn an_open_transaction_that_raised_tokens_stops_nobody() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    let engine = open(&cluster.url(&database)).await;
    let kept = engine.acquire(claim("kept", Duration::ZERO)).await.unwrap();
    let mut last = kept.token;
    let batch = "SELECT * FROM leasehold_engine.batch(ARRAY['f']::\"char\"[], \
        ARRAY['00000000-0000-0000-0000-000000000001']::uuid[], ARRAY['00000000-0000-0000-0000-000000000002']::uuid[], \
        ARRAY['other'], ARRAY[30000]::bigint[], ARRAY[0]::bigint[], ARRAY[NULL]::bigint[], ARRAY[0]::bigint[], \
        ARRAY[NULL]::bigint[], ARRAY['ada'], '{}', '{}', '{}', '{}', '{}', '{}', 1, 100)";
    for open_call in ["SELECT leasehold_engine.advisory_token()", "SELECT leasehold_engine.raise_floor(7)", batch] {
        let other = cluster.client(&database).await;
        // An idle second: the clock is ahead of the sequence by more than a million.
        sleep(1200).await;
        other.batch_execute(&format!("BEGIN; {open_call}")).await.unwrap();
        sleep(1200).await;
        let began = Instant::now();
        engine.renew(&kept.lease_id, None).await.expect("renewed");
        let grant = engine.acquire(claim("free", Duration::ZERO)).await.expect("granted");
        engine.release(&grant.lease_id).await.expect("released");
        assert!(began.elapsed() < Duration::from_millis(900), "{open_call}: {:?}", began.elapsed());
        assert!(grant.token > last, "tokens rise");
        last = grant.token;
        other.batch_execute("ROLLBACK").await.unwrap();
        let grant = engine.acquire(claim("free", Duration::ZERO)).await.expect("granted");
        assert!(grant.token > last, "what was raised is not taken back");
        last = grant.token;
        engine.release(&grant.lease_id).await.unwrap();
    }
}

/// Goal: tokens and floors that were told survive a crash, whoever asks; a session that would lose them is refused.
/// Method: a transaction has logged the sequence ahead and is not committed; a token and a floor; the server crashes.
#[tokio::test]
async fn told_floors_survive_crashes() {
    let cluster = Arc::new(Cluster::start(&["wal_writer_delay=10000", "checkpoint_timeout=3600"]));
    let database = cluster.database().await;
    let engine = open(&cluster.url(&database)).await;
    for sql in ["SELECT leasehold_engine.advisory_token()", "SELECT leasehold_engine.raise_floor(7)"] {
        for weak in ["off", "local"] {
            let client = cluster.client(&database).await;
            client.batch_execute(&format!("SET synchronous_commit = {weak}")).await.unwrap();
            let refused = client.query_one(sql, &[]).await.unwrap_err();
            assert_eq!(refused.code().map(|code| code.code().to_owned()), Some("LH102".into()), "{sql} {weak}");
        }
    }
    sleep(1200).await;
    // Raises the sequence and logs it, and nobody has flushed that.
    let ahead = cluster.client(&database).await;
    ahead.batch_execute("BEGIN; SELECT leasehold_engine.advisory_token()").await.unwrap();
    let floor = engine.raise_floor(None).await.expect("a floor is told");
    let crashing = cluster.clone();
    tokio::task::spawn_blocking(move || {
        crashing.crash();
        crashing.start_server();
    })
    .await
    .unwrap();
    let client = cluster.client(&database).await;
    let sql = "SELECT last_value FROM leasehold_engine.token";
    let after: i64 = client.query_one(sql, &[]).await.unwrap().get(0);
    assert!(Token::new(after.cast_unsigned()) >= floor, "{after} after {floor:?}");
}
