//! Rows locked in a short transaction: every way to hang ends in time, with its own answer.

use std::time::{Duration, Instant};

use leasehold::recipe::row::{self, RowError};
use leasehold_harness::postgres::Cluster;
use tokio_postgres::{Client, Error as SqlError, Transaction};

const WITHIN: Duration = Duration::from_millis(400);

async fn prepared() -> (Cluster, String, Client) {
    let cluster = Cluster::start(&[]);
    let database = cluster.database().await;
    let table = "CREATE TABLE stock (item int PRIMARY KEY, left_over int NOT NULL); INSERT INTO stock VALUES (7, 40)";
    cluster.execute(&database, table).await;
    let client = cluster.client(&database).await;
    (cluster, database, client)
}

async fn take_one(tx: &Transaction<'_>) -> Result<i32, SqlError> {
    let left: i32 = tx.query_one("SELECT left_over FROM stock WHERE item = 7 FOR UPDATE", &[]).await?.get(0);
    tx.execute("UPDATE stock SET left_over = $1 WHERE item = 7", &[&(left - 1)]).await?;
    Ok(left - 1)
}

async fn left(client: &Client) -> i32 {
    client.query_one("SELECT left_over FROM stock WHERE item = 7", &[]).await.unwrap().get(0)
}

/// Goal: writers who read and then write lose nothing under the lock.
#[tokio::test]
async fn writers_of_one_row_take_turns() {
    let (cluster, database, client) = prepared().await;
    let write = async || {
        let mut client = cluster.client(&database).await;
        for _ in 0..10 {
            row::locked(&mut client, Duration::from_secs(20), take_one).await.unwrap();
        }
    };
    tokio::join!(write(), write(), write(), write());
    assert_eq!(left(&client).await, 0);
}

/// Goal: where a statement failed and the work ignored it, nothing is written, and the answer says so.
/// PostgreSQL itself answers the COMMIT of such a transaction with success, and rolls it back.
#[tokio::test]
async fn an_ignored_failure_is_no_success() {
    let (_cluster, _database, mut client) = prepared().await;
    let ignoring = async |tx: &Transaction<'_>| {
        take_one(tx).await?;
        let _ = tx.execute("INSERT INTO stock VALUES (7, 1)", &[]).await;
        Ok::<(), SqlError>(())
    };
    let done = row::locked(&mut client, Duration::from_secs(20), ignoring).await;
    assert!(matches!(done, Err(RowError::Unavailable { .. })), "{done:?}");
    assert_eq!(left(&client).await, 40);
}

/// Goal: a row that another has is *held*, in time; nothing was written, and the client is good for the next.
#[tokio::test]
async fn a_locked_row_is_held() {
    let (cluster, database, mut client) = prepared().await;
    let mut other = cluster.client(&database).await;
    let tx = other.transaction().await.unwrap();
    take_one(&tx).await.unwrap();
    let began = Instant::now();
    let held = row::locked(&mut client, WITHIN, take_one).await;
    // The server's limit and ours run out together: either may be first.
    assert!(matches!(&held, Err(RowError::Held | RowError::Unavailable { .. })), "{held:?}");
    assert!(began.elapsed() < WITHIN * 10, "{:?}", began.elapsed());
    tx.rollback().await.unwrap();
    assert_eq!(row::locked(&mut client, WITHIN * 10, take_one).await.unwrap(), 39);

    // A row that is locked while there is time left says it is held.
    let tx = other.transaction().await.unwrap();
    take_one(&tx).await.unwrap();
    let held = row::locked(&mut client, WITHIN * 20, async |inner: &Transaction<'_>| {
        inner.batch_execute("SET LOCAL lock_timeout = 100").await?;
        take_one(inner).await
    });
    assert!(matches!(held.await, Err(RowError::Held)));
    tx.rollback().await.unwrap();
}

/// Goal: a statement that takes too long, work that dawdles, and work that fails leave nothing written.
#[tokio::test]
async fn what_does_not_end_in_time_is_not_written() {
    let (cluster, database, mut client) = prepared().await;
    let slow = row::locked(&mut client, WITHIN, async |tx: &Transaction<'_>| {
        take_one(tx).await?;
        tx.batch_execute("SELECT pg_sleep(20)").await
    });
    let began = Instant::now();
    let slow = slow.await;
    assert!(matches!(&slow, Err(RowError::Unavailable { .. })), "{slow:?}");
    assert!(began.elapsed() < Duration::from_secs(10));

    let dawdling = row::locked(&mut client, WITHIN, async |tx: &Transaction<'_>| {
        take_one(tx).await?;
        tokio::time::sleep(Duration::from_secs(20)).await;
        Ok::<_, SqlError>(())
    });
    assert!(matches!(dawdling.await, Err(RowError::Unavailable { .. })));

    let failing = row::locked(&mut cluster.client(&database).await, WITHIN * 10, async |tx: &Transaction<'_>| {
        take_one(tx).await?;
        tx.batch_execute("SELECT 1 / 0").await
    })
    .await;
    assert!(matches!(failing, Err(RowError::Work(_))), "{failing:?}");
    assert_eq!(left(&cluster.client(&database).await).await, 40);
}

/// Goal: a process that is frozen between two statements does not keep the row: the server ends its session.
/// Method: the thread itself sleeps past the deadline, as a paused process does; another thread gets the row meanwhile.
#[tokio::test]
async fn a_paused_process_does_not_keep_the_row() {
    let (cluster, database, mut client) = prepared().await;
    let (locked, wait_for_lock) = std::sync::mpsc::channel();
    let second = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        wait_for_lock.recv().unwrap();
        runtime.block_on(async {
            let mut client = cluster.client(&database).await;
            let taken = row::locked(&mut client, Duration::from_secs(20), take_one).await.unwrap();
            (taken, Instant::now())
        })
    });
    let mut woke = None;
    let paused = row::locked(&mut client, WITHIN, async |tx: &Transaction<'_>| {
        take_one(tx).await?;
        locked.send(()).unwrap();
        std::thread::sleep(Duration::from_secs(8));
        woke = Some(Instant::now());
        take_one(tx).await
    })
    .await;
    assert!(matches!(&paused, Err(RowError::Unavailable { .. })), "{paused:?}");
    let (taken, at) = second.join().unwrap();
    assert_eq!(taken, 39, "nothing of the paused one was written");
    assert!(Some(at) < woke, "the row was free only when the paused one woke up");
}

/// Goal: on SQLite the lock is had before anything is read, and a busy file is *held*, in time.
#[test]
fn sqlite_has_the_lock_from_the_beginning() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("shop.db");
    let mut one = rusqlite::Connection::open(&path).unwrap();
    let mut two = rusqlite::Connection::open(&path).unwrap();
    one.execute_batch("CREATE TABLE stock (left_over); INSERT INTO stock VALUES (3)").unwrap();
    let take = "UPDATE stock SET left_over = left_over - 1";
    row::locked_sqlite(&mut one, WITHIN, |tx| {
        let held = row::locked_sqlite(&mut two, Duration::from_millis(50), |tx| tx.execute(take, []));
        assert!(matches!(&held, Err(RowError::Held)), "{held:?}");
        tx.execute(take, [])
    })
    .unwrap();
    let failed = row::locked_sqlite(&mut two, WITHIN, |tx| {
        tx.execute(take, [])?;
        tx.execute("SELECT nothing", [])
    });
    assert!(matches!(failed, Err(RowError::Work(_))));
    let left: i64 = one.query_row("SELECT left_over FROM stock", [], |row| row.get(0)).unwrap();
    assert_eq!(left, 2);
    let timeout: i64 = two.query_row("PRAGMA busy_timeout", [], |row| row.get(0)).unwrap();
    assert_eq!(timeout, 5000, "the connection has its usual patience back");
}
