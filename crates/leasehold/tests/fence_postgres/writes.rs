//! The typed helper: a transaction under a lease, and the fenced table of keys and values.

use std::sync::Arc;
use std::time::Duration;

use leasehold::fence::counters::read_counts;
use leasehold::fence::postgres::{FencedWrite, Kv, connect, write};
use leasehold::fence::{FenceError, FenceKind, FenceRefusal};
use leasehold::{FencedLease, Leasehold};
use leasehold_harness::proxy::Proxy;
use tokio_postgres::IsolationLevel;

use crate::support::{Database, Fenced, cluster, outcome};

struct Site {
    _dir: tempfile::TempDir,
    leasehold: Leasehold,
    database: Database,
}

impl Site {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let leasehold = Leasehold::open(&format!("embedded:{}", dir.path().display())).await.unwrap();
        Self { _dir: dir, leasehold, database: Fenced::Row.database().await }
    }

    /// A lease that has ended at the engine, as one that lapsed, and its successor.
    async fn old_and_new(&self, resource: &str) -> (FencedLease, FencedLease) {
        let old = self.leasehold.acquire(resource).fenced().await.unwrap();
        self.leasehold.release(old.lease_id()).await.unwrap();
        (old, self.leasehold.acquire(resource).fenced().await.unwrap())
    }
}

const SELL: &str = "UPDATE seats SET owner = 'x' WHERE seat_id = 14";

/// Goal: the helper writes under its lease, and a late holder learns that it is stale, with both tokens.
#[tokio::test]
async fn a_late_holder_is_refused_with_both_tokens() {
    let site = Site::new().await;
    let (old, new) = site.old_and_new("seat/14").await;
    let mut client = connect(&site.database.url()).await.unwrap();
    let before = read_counts(FenceKind::Postgres);
    for lease in [&old, &old, &new, &new] {
        let rows = write(lease, &mut client, async |tx| Ok(tx.execute(SELL, &[]).await?)).await.unwrap();
        assert_eq!(rows, 1);
    }
    let late = write(&old, &mut client, async |tx| Ok(tx.execute(SELL, &[]).await?)).await;
    let Err(FenceError::Refused(FenceRefusal::Stale { resource, presented, highest })) = late else {
        panic!("{late:?}")
    };
    assert_eq!((resource.as_str(), presented, highest), ("seat/14", old.token(), new.token()));
    let after = read_counts(FenceKind::Postgres);
    assert!(after.admitted >= before.admitted + 4 && after.rejected > before.rejected);
    // The connection is usable, and has no token any more.
    assert_eq!(outcome(&client.batch_execute(SELL).await), "LH002");
}

/// Goal: a lease speaks for its own resources, and several leases for theirs.
#[tokio::test]
async fn a_lease_speaks_for_its_own_resources() {
    let site = Site::new().await;
    let one = site.leasehold.acquire("seat/14").fenced().await.unwrap();
    let two = site.leasehold.acquire_all(["seat/15", "seat/16"]).fenced().await.unwrap();
    let mut client = site.database.client().await;
    let all = "UPDATE seats SET owner = 'x' WHERE seat_id BETWEEN 14 AND 16";
    let refused = write(&one, &mut client, async |tx| Ok(tx.execute(all, &[]).await?)).await;
    assert!(matches!(refused, Err(FenceError::Refused(FenceRefusal::NotCovered { .. }))), "{refused:?}");
    let both = FencedWrite::under_all([&one, &two]).unwrap();
    assert_eq!(both.run(&mut client, async |tx| Ok(tx.execute(all, &[]).await?)).await.unwrap(), 3);
    let shared = site.leasehold.acquire("seat/1").shared().fenced().await.unwrap();
    let refused = write(&shared, &mut client, async |_| Ok(())).await;
    assert!(matches!(refused, Err(FenceError::Invalid(_))), "{refused:?}");
}

/// Goal: an error of the work rolls back, and work that swallows one is not taken for done.
#[tokio::test]
async fn failed_work_is_rolled_back_even_if_it_says_ok() {
    let site = Site::new().await;
    let lease = site.leasehold.acquire("seat/14").fenced().await.unwrap();
    let mut client = site.database.client().await;
    let failed: Result<(), _> = write(&lease, &mut client, async |tx| {
        tx.execute(SELL, &[]).await?;
        Err("no money".into())
    })
    .await;
    assert!(matches!(failed, Err(FenceError::Work(_))), "{failed:?}");
    let swallowed = write(&lease, &mut client, async |tx| {
        tx.execute(SELL, &[]).await?;
        let _ = tx.execute("SELECT 1 / 0", &[]).await;
        Ok(())
    })
    .await;
    assert!(matches!(swallowed, Err(FenceError::Work(_))), "{swallowed:?}");
    assert_eq!(site.database.value("SELECT owner FROM seats WHERE seat_id = 14").await, "free");
    let broken = write(&lease, &mut client, async |tx| Ok(tx.execute("UPDATE nowhere SET x = 1", &[]).await?)).await;
    assert!(matches!(broken, Err(FenceError::Work(_))), "{broken:?}");
}

/// Goal: transactions that lose against others are run again until they are done.
/// Method: tasks that count up one row at SERIALIZABLE; every one of them must count.
#[tokio::test]
async fn serialization_failures_are_run_again() {
    let site = Site::new().await;
    site.database.admin.batch_execute("CREATE TABLE counter (n int); INSERT INTO counter VALUES (0)").await.unwrap();
    let lease = Arc::new(site.leasehold.acquire("seat/14").fenced().await.unwrap());
    let tasks: Vec<_> = (0..6)
        .map(|_| {
            let (lease, url) = (lease.clone(), site.database.url());
            tokio::spawn(async move {
                let mut client = connect(&url).await.unwrap();
                let serializable =
                    FencedWrite::under(&lease).unwrap().isolation(IsolationLevel::Serializable).attempts(100);
                for _ in 0..5 {
                    serializable
                        .run(&mut client, async |tx| {
                            let n: i32 = tx.query_one("SELECT n FROM counter", &[]).await?.get(0);
                            tx.execute("UPDATE counter SET n = $1", &[&(n + 1)]).await?;
                            Ok(())
                        })
                        .await
                        .unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(site.database.value("SELECT n::text FROM counter").await, "30");
}

/// Goal: a stale holder that stopped inside its transaction keeps the next one waiting no longer than it said.
#[tokio::test]
async fn a_stopped_holder_is_waited_for_or_evicted() {
    let site = Site::new().await;
    let (old, new) = site.old_and_new("seat/14").await;
    let stopped = site.database.client().await;
    stopped.batch_execute("BEGIN").await.unwrap();
    let setting = leasehold::fence::FenceSetting::for_lease(&old).unwrap().to_string();
    stopped.execute("SELECT set_config('leasehold.token', $1, true)", &[&setting]).await.unwrap();
    stopped.batch_execute(SELL).await.unwrap();

    let mut client = site.database.client().await;
    let impatient = FencedWrite::under(&new).unwrap().lock_timeout(Duration::from_millis(50));
    let waited = impatient.run(&mut client, async |tx| Ok(tx.execute(SELL, &[]).await?)).await;
    assert!(matches!(waited, Err(FenceError::Unavailable { .. })), "{waited:?}");

    let second = site.database.client().await;
    let evicting = FencedWrite::under(&new).unwrap().evict_after(Duration::from_millis(50), &second);
    assert_eq!(evicting.run(&mut client, async |tx| Ok(tx.execute(SELL, &[]).await?)).await.unwrap(), 1);
    assert!(stopped.batch_execute("COMMIT").await.is_err(), "the stopped holder was ended");
    let late = write(&old, &mut client, async |tx| Ok(tx.execute(SELL, &[]).await?)).await;
    assert!(matches!(late, Err(FenceError::Refused(_))), "{late:?}");
}

/// Goal: a connection that is lost at COMMIT is Indeterminate, one that is lost before it is Unavailable.
#[tokio::test]
async fn a_lost_commit_is_indeterminate() {
    let site = Site::new().await;
    let lease = site.leasehold.acquire("seat/14").fenced().await.unwrap();
    let proxy = Arc::new(Proxy::start(cluster().port()));
    let url = cluster().url_through(proxy.port(), "postgres", &site.database.name);
    let cut_soon = |proxy: Arc<Proxy>| {
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(300)).await;
            proxy.cut_all();
        })
    };
    let mut client = connect(&url).await.unwrap();
    proxy.mute_after(Some("COMMIT"));
    let cut = cut_soon(proxy.clone());
    let lost = write(&lease, &mut client, async |tx| Ok(tx.execute(SELL, &[]).await?)).await;
    assert!(matches!(lost, Err(FenceError::Indeterminate { .. })), "{lost:?}");
    cut.await.unwrap();

    proxy.mute_after(None);
    let mut client = connect(&url).await.unwrap();
    proxy.mute_after(Some("UPDATE"));
    let cut = cut_soon(proxy.clone());
    let lost = write(&lease, &mut client, async |tx| Ok(tx.execute(SELL, &[]).await?)).await;
    assert!(matches!(lost, Err(FenceError::Unavailable { .. })), "{lost:?}");
    cut.await.unwrap();
}

/// Goal: keys and values are fenced from the start, and a deleted value keeps its fence.
#[tokio::test]
async fn keys_and_values_are_fenced() {
    let site = Site::new().await;
    let database = Database::new("").await;
    let opened = [Kv::open(&database.url()).await.unwrap(), Kv::open(&database.url()).await.unwrap()];
    let (old, new) = site.old_and_new("config/primary").await;
    assert_eq!(opened[1].get("config/primary").await.unwrap(), None);
    opened[0].put(&old, b"db-1").await.unwrap();
    opened[1].put(&new, b"db-2").await.unwrap();
    let late = opened[0].put(&old, b"db-1").await;
    assert!(matches!(late, Err(FenceError::Refused(FenceRefusal::Stale { .. }))), "{late:?}");
    assert_eq!(opened[0].get("config/primary").await.unwrap().as_deref(), Some(&b"db-2"[..]));
    assert!(opened[1].delete(&new).await.unwrap());
    assert!(!opened[1].delete(&new).await.unwrap());
    assert!(opened[0].put(&old, b"db-1").await.is_err(), "the fence outlives the value");
    assert_eq!(database.holes().await, []);
    let several = site.leasehold.acquire_all(["a", "b"]).fenced().await.unwrap();
    assert!(matches!(opened[0].put(&several, b"").await, Err(FenceError::Invalid(_))));
    // A connection that is lost is opened again; a write that met it had no effect, and says so.
    let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()";
    database.admin.query(sql, &[]).await.unwrap();
    let mut written = opened[1].put(&new, b"db-3").await;
    for _ in 0..100 {
        match written {
            Err(FenceError::Unavailable { .. }) => tokio::time::sleep(Duration::from_millis(20)).await,
            _ => break,
        }
        written = opened[1].put(&new, b"db-3").await;
    }
    written.unwrap();
    assert_eq!(opened[1].get("config/primary").await.unwrap().as_deref(), Some(&b"db-3"[..]));
}

/// Goal: the conditional UPDATE of people who want no triggers works as the guide says: stale writes touch no row.
#[tokio::test]
async fn the_conditional_update_of_the_guide_refuses_by_touching_nothing() {
    let database = Database::new(
        "CREATE TABLE seats (seat_id int PRIMARY KEY, state text, fence bigint NOT NULL DEFAULT 0);
        INSERT INTO seats VALUES (14, 'free')",
    )
    .await;
    let sql = "UPDATE seats SET state = 'sold', fence = $1 WHERE seat_id = $2 AND fence <= $1";
    for (token, rows) in [(41_i64, 1), (42, 1), (42, 1), (41, 0)] {
        assert_eq!(database.admin.execute(sql, &[&token, &14]).await.unwrap(), rows, "{token}");
    }
}
