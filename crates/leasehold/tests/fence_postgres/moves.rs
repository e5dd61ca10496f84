//! What is remembered stays remembered: over another store, a removal, a renamed table, another install.

use leasehold::fence::HoleKind;
use leasehold::fence::postgres::{InstallOptions, Remember, highest_token, remove};

use crate::support::{ADA, BOB, Database, Fenced, SEATS, options};

const WRITE: &str = "UPDATE seats SET owner = 'x' WHERE seat_id = 14";
const INSERT: &str = "INSERT INTO seats VALUES (50, 'x')";

/// Bob writes seat 14, and makes and deletes seat 50.
async fn bob_writes(database: &Database) {
    let sql = format!("{WRITE}; {INSERT}; DELETE FROM seats WHERE seat_id = 50");
    assert_eq!(database.write(BOB, &sql).await, "ok");
}

async fn ada_is_refused(database: &Database, at: &str) {
    assert_eq!(database.write(ADA, WRITE).await, "LH001", "{at}: a row");
    assert_eq!(database.write(ADA, INSERT).await, "LH001", "{at}: a deleted row");
    assert_eq!(database.write(BOB, WRITE).await, "ok", "{at}: the newest");
    assert_eq!(database.write(ADA, "UPDATE seats SET owner = 'x' WHERE seat_id = 3").await, "ok", "{at}: another row");
}

/// Goal: a fence that is installed with another store knows what the first one knew.
#[tokio::test]
async fn another_store_takes_the_memory_along() {
    for (first, second) in [(Fenced::Row, Fenced::Keyed), (Fenced::Keyed, Fenced::Row)] {
        let database = first.database().await;
        bob_writes(&database).await;
        database.install(&second.options()).await;
        assert_eq!(database.holes().await, []);
        ada_is_refused(&database, &format!("{first:?} to {second:?}")).await;
        database.install(&first.options()).await;
        ada_is_refused(&database, &format!("{second:?} back to {first:?}")).await;
    }
}

/// Goal: a fence that was removed and installed again remembers; with `forget` it does not.
#[tokio::test]
async fn a_removed_fence_is_remembered_unless_forgotten() {
    for fenced in Fenced::ALL {
        let database = fenced.database().await;
        bob_writes(&database).await;
        let report = remove(&mut database.client().await, "seats", false).await.unwrap();
        assert_eq!((report.table.as_str(), report.forgotten), ("public.seats", false));
        assert_eq!(database.holes().await, [], "it was removed on purpose");
        database.admin.batch_execute("UPDATE seats SET owner = 'unfenced' WHERE seat_id = 14").await.unwrap();
        let leftovers = "SELECT count(*)::text FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
            WHERE n.nspname = 'leasehold_fence' AND p.proname LIKE 'g%\\_%'";
        assert_eq!(database.value(leftovers).await, "0", "{fenced:?}");
        database.install(&fenced.options()).await;
        assert_eq!(database.write(ADA, WRITE).await, "LH001", "{fenced:?}");
        assert_eq!(database.write(ADA, INSERT).await, "LH001", "{fenced:?}");

        remove(&mut database.client().await, "seats", true).await.unwrap();
        assert_eq!(database.value("SELECT count(*)::text FROM leasehold_fence.seen").await, "0", "{fenced:?}");
        database.install(&fenced.options()).await;
        assert_eq!(database.write(ADA, WRITE).await, "ok", "{fenced:?}: forgotten");
        let error = remove(&mut database.client().await, "halls", false).await.unwrap_err();
        assert_eq!(error.to_string(), "halls is not fenced");
    }
}

/// Goal: a renamed table just goes on; a renamed key fails closed, is found, and is taken up by a second install.
#[tokio::test]
async fn renamed_tables_and_keys() {
    for fenced in [Fenced::Row, Fenced::Keyed] {
        let database = fenced.database().await;
        bob_writes(&database).await;
        database
            .admin
            .batch_execute("ALTER TABLE seats RENAME TO chairs; CREATE VIEW seats AS SELECT * FROM chairs")
            .await
            .unwrap();
        assert_eq!(database.holes().await, []);
        ada_is_refused(&database, "renamed table").await;
        database
            .admin
            .batch_execute(
                "DROP VIEW seats; ALTER TABLE chairs RENAME TO seats; ALTER TABLE seats RENAME seat_id TO chair",
            )
            .await
            .unwrap();
        assert_eq!(database.holes().await, [HoleKind::KeyMissing], "{fenced:?}");
        let insert = database.write("99", "INSERT INTO seats (chair) VALUES (51)").await;
        assert_eq!(insert, "42703", "{fenced:?}: it fails closed");
        database.install(&InstallOptions { keys: vec!["chair".into()], ..fenced.options() }).await;
        assert_eq!(database.holes().await, []);
        assert_eq!(database.write(ADA, "UPDATE seats SET owner = 'x' WHERE chair = 14").await, "LH001", "{fenced:?}");
        assert_eq!(database.write(ADA, "INSERT INTO seats (chair) VALUES (50)").await, "LH001", "{fenced:?}");
    }
}

/// Goal: the highest token of a database counts every place that keeps tokens of leases.
#[tokio::test]
async fn the_highest_token_counts_every_place() {
    let database = Database::new(SEATS).await;
    assert_eq!(highest_token(&database.admin).await.unwrap(), []);
    database.install(&Fenced::Row.options()).await;
    database.admin.batch_execute("CREATE TABLE bills (n int)").await.unwrap();
    database.install(&options("bills", &[], "billing", Remember::Name)).await;
    assert_eq!(database.write("700", WRITE).await, "ok");
    assert_eq!(database.write("500", "INSERT INTO bills VALUES (1)").await, "ok");
    let highest = highest_token(&database.admin).await.unwrap();
    assert_eq!((highest[0].table.as_str(), highest[0].highest.get()), ("public.seats", 700));
    let others = "CREATE SCHEMA leasehold; CREATE TABLE leasehold.schedule (name text, token bigint);
        INSERT INTO leasehold.schedule VALUES ('nightly', 900);
        CREATE SCHEMA leasehold_boxoffice; CREATE TABLE leasehold_boxoffice.hold_seats (token bigint);
        INSERT INTO leasehold_boxoffice.hold_seats VALUES (800)";
    database.admin.batch_execute(others).await.unwrap();
    let highest = highest_token(&database.admin).await.unwrap();
    let found: Vec<_> = highest.iter().map(|source| (source.table.as_str(), source.highest.get())).collect();
    let expected = [
        ("leasehold.schedule", 900),
        ("leasehold_boxoffice.hold_seats", 800),
        ("public.seats", 700),
        ("leasehold_fence.seen", 500),
    ];
    assert_eq!(found, expected);
}
