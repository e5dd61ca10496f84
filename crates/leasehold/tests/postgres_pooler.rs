//! The PostgreSQL engine behind a real PgBouncer in transaction mode: refused unless somebody says so, and then it works.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stdout)] // a real server lives in real time

use std::time::{Duration, Instant};

use leasehold::Error;
use leasehold::advisory::{AdvisoryKey, AdvisoryLocks, AdvisoryMode};
use leasehold::engine::postgres::{PostgresEngine, PostgresEngineOptions, SchemaName};
use leasehold::engine::{Claim, Engine, Want};
use leasehold_harness::pgbouncer::Pooler;
use leasehold_harness::postgres::Cluster;

fn claim(name: &str, who: &str, wait: Duration) -> Claim {
    Claim { wait, ..Claim::new(vec![Want::exclusive(name)], Duration::from_secs(30), who) }
}

/// Goal: a pooler that nobody spoke of is found out, for the engine and for advisory locks.
/// Method: open both through PgBouncer.
#[tokio::test]
async fn a_pooler_is_found_out() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    let pooler = Pooler::start(cluster.port());
    let url = cluster.url_through(pooler.port(), "postgres", &database);
    let refused = PostgresEngine::open(PostgresEngineOptions::from_url(&url).unwrap()).await.unwrap_err();
    assert!(matches!(&refused, Error::Invalid(why) if why.contains("pooler=1")), "{refused:?}");
    let locks = AdvisoryLocks::new(&url, SchemaName::new(SchemaName::DEFAULT).unwrap()).unwrap();
    let refused = locks.lock(AdvisoryKey::Single(1), AdvisoryMode::Exclusive, Duration::ZERO).await.unwrap_err();
    assert!(matches!(&refused, Error::Invalid(why) if why.contains("transaction pooler")), "{refused:?}");
}

/// Goal: with pooler=1 the engine works: pairs, a hand-over by a message where listen= is given, by checks where not.
/// Method: three engines behind one pool of three connections.
#[tokio::test]
async fn with_the_option_a_pooler_works() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    let pooler = Pooler::start(cluster.port());
    let url = cluster.url_through(pooler.port(), "postgres", &database);
    let listening = format!("{url}?pooler=1&listen=127.0.0.1:{}", cluster.port());
    for (url, longest) in [(listening, Duration::from_millis(900)), (format!("{url}?pooler=1"), Duration::from_secs(4))]
    {
        let mut engines = Vec::new();
        for _ in 0..3 {
            engines.push(PostgresEngine::open(PostgresEngineOptions::from_url(&url).unwrap()).await.expect("it opens"));
        }
        assert!(engines[0].promises().durable && engines[0].promises().fencing);
        for round in 0..50 {
            let (one, other) = (&engines[round % 3], &engines[(round + 1) % 3]);
            let grant = one.acquire(claim(&format!("seat-{}", round % 7), "ada", Duration::ZERO)).await.expect("free");
            other.renew(&grant.lease_id, None).await.expect("live");
            assert!(other.release(&grant.lease_id).await.expect("live"));
        }
        let ada = engines[0].acquire(claim("row", "ada", Duration::ZERO)).await.unwrap();
        let waiting = engines[1].clone();
        let bob = tokio::spawn(async move { waiting.acquire(claim("row", "bob", Duration::from_secs(20))).await });
        while engines[2].inspect("row").await.unwrap().is_none_or(|row| row.queue_len == 0) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let released = Instant::now();
        assert!(engines[2].release(&ada.lease_id).await.unwrap());
        let bob = bob.await.unwrap().expect("handed over");
        assert!(released.elapsed() < longest, "{:?}", released.elapsed());
        assert!(bob.token > ada.token);
        assert!(engines[0].release(&bob.lease_id).await.unwrap());
        for engine in engines {
            engine.close().await.unwrap();
        }
    }
}
