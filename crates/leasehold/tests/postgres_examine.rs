//! What an operator is told of a real PostgreSQL: a clock that is off, other lock clients, and what stands before the server.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)] // a real server lives in real time

use std::sync::Arc;

use leasehold::engine::postgres::{PostgresEngine, PostgresEngineOptions};
use leasehold::engine::{Engine, Finding, FindingKind};
use leasehold_harness::pgbouncer::Pooler;
use leasehold_harness::postgres::Cluster;

async fn open(url: &str) -> Arc<PostgresEngine> {
    PostgresEngine::open(PostgresEngineOptions::from_url(url).unwrap()).await.expect("it opens")
}

fn about<'f>(findings: &'f [Finding], setting: &str) -> Option<&'f Finding> {
    findings.iter().find(|finding| finding.setting == setting)
}

/// Goal: a server whose clock is off is a warning with the difference; one whose clock is right is a note.
/// Method: the function that reads the clock for every lease is replaced by one that is three seconds ahead.
#[tokio::test]
async fn a_clock_that_is_off_is_a_warning() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    let engine = open(&cluster.url(&database)).await;
    let right = engine.examine().await.expect("examined");
    assert_eq!(about(&right, "clock of the server").map(|found| &found.kind), Some(&FindingKind::Note), "{right:?}");
    let ahead = "CREATE OR REPLACE FUNCTION leasehold_engine.now_us() RETURNS bigint LANGUAGE sql VOLATILE AS \
                 $$ SELECT (date_part('epoch', clock_timestamp()) * 1e6)::bigint + 3000000 $$";
    cluster.execute(&database, ahead).await;
    let off = engine.examine().await.expect("examined");
    let found = about(&off, "clock of the server").expect("it is compared");
    assert_eq!(found.kind, FindingKind::Warning, "{off:?}");
    let millis: f64 = found.found.trim_start_matches('+').split(' ').next().unwrap().parse().unwrap();
    assert!((2900.0..3100.0).contains(&millis), "{found:?}");
}

/// Goal: whoever holds advisory locks beside the engine is named, and the engine itself is not.
#[tokio::test]
async fn other_lock_clients_are_named() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    let engine = open(&cluster.url(&database)).await;
    let alone = engine.examine().await.expect("examined");
    assert!(about(&alone, "other lock clients").is_none(), "{alone:?}");
    let url = format!("{}?application_name=billing", cluster.url(&database));
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute("SELECT pg_advisory_lock(42), pg_advisory_lock(7, 8)").await.unwrap();
    let seen = engine.examine().await.expect("examined");
    let found = about(&seen, "other lock clients").expect("they are seen");
    assert_eq!((&found.kind, found.found.as_str()), (&FindingKind::Note, "2 advisory locks of billing"));
    assert!(about(&seen, "pooler").is_none(), "{seen:?}");
}

/// Goal: what stands between us and the server is told.
#[tokio::test]
async fn a_pooler_is_told() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    let pooler = Pooler::start(cluster.port());
    let url = cluster.url_through(pooler.port(), "postgres", &database);
    let engine = open(&format!("{url}?pooler=1&listen=127.0.0.1:{}", cluster.port())).await;
    let findings = engine.examine().await.expect("examined");
    let found = about(&findings, "pooler").expect("it is told");
    assert!(found.found.contains(&pooler.port().to_string()), "{found:?}");
    assert!(found.found.contains(&cluster.port().to_string()), "{found:?}");
}
