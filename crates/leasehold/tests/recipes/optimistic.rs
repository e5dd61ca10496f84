//! Optimistic writers on real databases: nothing is lost, and the report says when to stop.

use std::sync::{Arc, Mutex};

use leasehold::recipe::optimistic::{Optimistic, Update, is_sql_conflict};
use leasehold_harness::postgres::Cluster;
use tokio::sync::Barrier;

const WRITERS: usize = 8;

/// Writers that each add one so often, over this many rows, and how much came of it. On one row every write begins
/// together: all have read before anybody writes, so that at most one of the first tries succeeds.
async fn add_on_postgres(rows: i32, each: i32) -> (Optimistic, i64) {
    let cluster = Arc::new(Cluster::start(&[]));
    let database = cluster.database().await;
    let table = format!(
        "CREATE TABLE stock (item int PRIMARY KEY, taken bigint NOT NULL DEFAULT 0, version bigint NOT NULL DEFAULT 0); \
         INSERT INTO stock (item) SELECT generate_series(0, {})",
        rows - 1
    );
    cluster.execute(&database, &table).await;
    let writers = Optimistic::up_to(200);
    let here = tokio::task::LocalSet::new();
    let all_have_read = Arc::new(Barrier::new(WRITERS));
    for number in 0..WRITERS as i32 {
        let (cluster, database, writers) = (cluster.clone(), database.clone(), writers.clone());
        let all_have_read = all_have_read.clone();
        here.spawn_local(async move {
            let client = cluster.client(&database).await;
            for round in 0..each {
                // Every writer walks over the rows by another step.
                let item = (number * 37 + round * (2 * number + 1)) % rows;
                let add = async |attempt: u32| {
                    let read = "SELECT taken, version FROM stock WHERE item = $1";
                    let row = client.query_one(read, &[&item]).await?;
                    let (taken, version): (i64, i64) = (row.get(0), row.get(1));
                    if rows == 1 && attempt == 1 {
                        all_have_read.wait().await;
                    }
                    let write = "UPDATE stock SET taken = $2, version = version + 1 WHERE item = $1 AND version = $3";
                    let changed = client.execute(write, &[&item, &(taken + 1), &version]).await?;
                    Ok::<_, tokio_postgres::Error>(Update::by_rows(changed, ()))
                };
                writers.write(add).await.unwrap();
            }
        });
    }
    here.await;
    let client = cluster.client(&database).await;
    let sum = client.query_one("SELECT sum(taken)::bigint FROM stock", &[]).await.unwrap().get(0);
    (writers, sum)
}

/// Goal: no write is lost on one hot row, and the report says to lock the row; over many rows it says nothing.
#[tokio::test]
async fn no_write_is_lost_and_the_report_knows_hot_rows() {
    let (hot, sum) = add_on_postgres(1, 60).await;
    assert_eq!(sum, (WRITERS * 60) as i64);
    let report = hot.report();
    println!("one row: {report:?}");
    assert!(report.advice().is_some_and(|advice| advice.contains("lock the row")), "{report:?}");
    assert_eq!(report.attempts - report.conflicts, (WRITERS * 60) as u64);

    let (cool, sum) = add_on_postgres(997, 100).await;
    assert_eq!(sum, (WRITERS * 100) as i64);
    println!("997 rows: {:?}", cool.report());
    assert_eq!(cool.report().advice(), None, "{:?}", cool.report());
}

/// Goal: an error of PostgreSQL that means "another was first" is known as a conflict, and no other is.
#[tokio::test]
async fn serialization_failures_are_conflicts() {
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    cluster.execute(&database, "CREATE TABLE t (n int); INSERT INTO t VALUES (1)").await;
    let (mut one, two) = (cluster.client(&database).await, cluster.client(&database).await);
    let tx = one.transaction().await.unwrap();
    tx.batch_execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT n FROM t").await.unwrap();
    two.batch_execute("UPDATE t SET n = 2").await.unwrap();
    let conflict = tx.execute("UPDATE t SET n = 3", &[]).await.unwrap_err();
    assert!(is_sql_conflict(&conflict), "{conflict}");
    let other = two.execute("UPDATE nothing SET n = 3", &[]).await.unwrap_err();
    assert!(!is_sql_conflict(&other), "{other}");
}

/// Goal: the same on SQLite: several connections to one file, no write lost.
#[test]
fn no_write_is_lost_on_sqlite() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("shop.db");
    let open = || rusqlite::Connection::open(&path).unwrap();
    open()
        .execute_batch(
            "PRAGMA journal_mode = WAL; CREATE TABLE stock (taken, version); INSERT INTO stock VALUES (0, 0)",
        )
        .unwrap();
    let writers = Optimistic::up_to(1000);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let (connection, writers) = (Mutex::new(open()), writers.clone());
            scope.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    for _ in 0..50 {
                        let add = async |_try| {
                            let connection = connection.lock().unwrap();
                            let (taken, version): (i64, i64) =
                                connection
                                    .query_row("SELECT * FROM stock", [], |row| Ok((row.get(0)?, row.get(1)?)))?;
                            let write = "UPDATE stock SET taken = ?1, version = version + 1 WHERE version = ?2";
                            let changed = connection.execute(write, (taken + 1, version))?;
                            Ok::<_, rusqlite::Error>(Update::by_rows(changed, ()))
                        };
                        writers.write(add).await.unwrap();
                    }
                });
            });
        }
    });
    let taken: i64 = open().query_row("SELECT taken FROM stock", [], |row| row.get(0)).unwrap();
    assert_eq!(taken, 200);
    assert_eq!(writers.report().attempts - writers.report().conflicts, 200);
}
