//! The store of recipes: made, migrated and opened, on a real PostgreSQL and in a file of SQLite.
#![allow(clippy::unwrap_used)]

use leasehold::recipe::store::migration_sql;
use leasehold::recipe::{RecipeError, Store};
use leasehold_harness::postgres::Cluster;

const FUNCTIONS: [&str; 20] = [
    "check_nack",
    "cron_begin",
    "cron_finish",
    "job_settle",
    "lane_ack",
    "lane_claim",
    "lane_extend",
    "lane_must_be_free",
    "lane_nack",
    "once_begin",
    "once_end",
    "queue_ack",
    "queue_extend",
    "queue_finish",
    "queue_nack",
    "queue_of",
    "queue_push",
    "queue_revive",
    "queue_sweep",
    "queue_turn",
];

/// Goal: whoever opens a database makes the schema once, and whoever comes later finds it.
/// Method: four opens at once, then one more; the version and every function are there; a user's table is left alone.
#[tokio::test]
async fn the_schema_is_made_once_by_whoever_comes_first() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    let client = cluster.client(&database).await;
    client.batch_execute("CREATE TABLE job (mine int); INSERT INTO job VALUES (7)").await.unwrap();
    let url = cluster.url(&database);
    let opens: Vec<_> = (0..4)
        .map(|_| {
            tokio::spawn({
                let url = url.clone();
                async move { Store::open(&url).await }
            })
        })
        .collect();
    for open in opens {
        open.await.unwrap().unwrap();
    }
    Store::open(&url).await.unwrap().close().await;
    let version: i64 = client.query_one("SELECT version FROM leasehold.schema_version", &[]).await.unwrap().get(0);
    assert_eq!(version, 1);
    let rows = client
        .query("SELECT proname::text FROM pg_proc WHERE pronamespace = 'leasehold'::regnamespace", &[])
        .await
        .unwrap();
    let made: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    for name in FUNCTIONS {
        assert!(made.iter().any(|made| *made == name), "{name}");
    }
    let mine: i32 = client.query_one("SELECT mine FROM public.job", &[]).await.unwrap().get(0);
    assert_eq!(mine, 7);
}

/// Goal: an owner can install by hand what `migrate --print` prints, and a role with table rights alone can use it.
#[tokio::test]
async fn the_printed_sql_makes_the_same_and_a_plain_role_can_open_it() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    let client = cluster.client(&database).await;
    client.batch_execute(&migration_sql()).await.unwrap();
    client
        .batch_execute(
            "CREATE ROLE app LOGIN; GRANT USAGE ON SCHEMA leasehold TO app;
             GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA leasehold TO app;
             GRANT USAGE ON ALL SEQUENCES IN SCHEMA leasehold TO app",
        )
        .await
        .unwrap();
    Store::open(&cluster.url_through(cluster.port(), "app", &database)).await.unwrap().close().await;
}

/// Goal: tables of a newer version are not touched, on both databases.
#[tokio::test]
async fn a_newer_schema_is_left_alone() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    let url = cluster.url(&database);
    Store::open(&url).await.unwrap().close().await;
    cluster.execute(&database, "UPDATE leasehold.schema_version SET version = 99").await;
    let refused = Store::open(&url).await.unwrap_err();
    assert!(matches!(refused, RecipeError::Unavailable { .. }), "{refused:?}");

    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("recipes.db");
    let url = format!("sqlite:{}", file.display());
    Store::open(&url).await.unwrap().close().await;
    let db = rusqlite::Connection::open(&file).unwrap();
    db.execute("UPDATE leasehold_schema_version SET version = 99", []).unwrap();
    let refused = Store::open(&url).await.unwrap_err();
    assert!(matches!(refused, RecipeError::Unavailable { .. }), "{refused:?}");
}

/// Goal: a server whose settings lose acknowledged commits is refused with what to change.
#[tokio::test]
async fn a_server_that_may_lose_answers_is_refused() {
    let cluster = Cluster::start(&["fsync=off"]);
    let database = cluster.database().await;
    let refused = Store::open(&cluster.url(&database)).await.unwrap_err();
    let source = std::error::Error::source(&refused).map(ToString::to_string).unwrap_or_default();
    assert!(source.contains("set fsync = on"), "{refused}: {source}");
}

/// Goal: a user's own file keeps its tables and its version, and a new file is for its owner alone.
#[tokio::test]
async fn a_users_file_keeps_what_is_the_users() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("shop.db");
    let db = rusqlite::Connection::open(&file).unwrap();
    db.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY); PRAGMA user_version = 41").unwrap();
    let url = format!("sqlite:{}", file.display());
    for _ in 0..2 {
        Store::open(&url).await.unwrap().close().await;
    }
    let version: i64 = db.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    let mut names = db.prepare("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name").unwrap();
    let names: Vec<String> = names.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    assert_eq!(version, 41);
    assert!(names.iter().all(|name| name == "orders" || name.starts_with("leasehold_") || name.starts_with("sqlite_")));
    assert!(names.iter().any(|name| name == "leasehold_once") && names.iter().any(|name| name == "leasehold_run"));

    let new = dir.path().join("new.db");
    Store::open(&format!("sqlite:{}", new.display())).await.unwrap().close().await;
    assert_eq!(std::fs::metadata(&new).unwrap().permissions().mode() & 0o777, 0o600);
}
