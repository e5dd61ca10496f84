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

/// Goal: a row that came while there was no fence remembers what its resource had seen before.
#[tokio::test]
async fn rows_that_came_without_a_fence_are_lifted() {
    for fenced in Fenced::ALL {
        let database = fenced.database().await;
        assert_eq!(database.write(BOB, "DELETE FROM seats WHERE seat_id = 14").await, "ok");
        remove(&mut database.client().await, "seats", false).await.unwrap();
        database.admin.batch_execute("INSERT INTO seats VALUES (14, 'free')").await.unwrap();
        database.install(&fenced.options()).await;
        assert_eq!(database.holes().await, [], "{fenced:?}");
        assert_eq!(database.write(ADA, WRITE).await, "LH001", "{fenced:?}");
        assert_eq!(database.write(BOB, WRITE).await, "ok", "{fenced:?}");
    }
}

/// Goal: a copy of a table that takes over the memory of the first one does not take it away from it.
#[tokio::test]
async fn a_copy_does_not_take_the_memory_away() {
    let database = Fenced::Row.database().await;
    assert_eq!(database.write(BOB, "DELETE FROM seats WHERE seat_id = 14").await, "ok");
    remove(&mut database.client().await, "seats", false).await.unwrap();
    database.admin.batch_execute("CREATE TABLE copies (LIKE seats INCLUDING ALL)").await.unwrap();
    database.install(&options("copies", &["seat_id"], "copy/{}", leasehold::fence::postgres::Remember::Row)).await;
    database.install(&Fenced::Row.options()).await;
    assert_eq!(database.write(ADA, "INSERT INTO seats VALUES (14, 'late')").await, "LH001");
    assert_eq!(database.write(ADA, "INSERT INTO copies VALUES (14, 'another')").await, "ok", "another resource");
    let guard = database.value("SELECT guard FROM leasehold_fence.fenced WHERE rel = 'seats'::regclass").await;
    remove(&mut database.client().await, &guard, false).await.expect_err("the guard of a table that is there");
}

/// Goal: a fence that was removed is remembered, whatever store the next one has.
#[tokio::test]
async fn a_removed_fence_is_remembered_by_another_store() {
    for (first, second) in [(Fenced::Row, Fenced::Keyed), (Fenced::Keyed, Fenced::Row)] {
        let database = first.database().await;
        bob_writes(&database).await;
        remove(&mut database.client().await, "seats", false).await.unwrap();
        database.install(&second.options()).await;
        assert_eq!(database.holes().await, []);
        ada_is_refused(&database, &format!("{first:?}, removed, {second:?}")).await;
    }
}

/// Goal: who forgets its own memory does not forget that of another table with the same names.
#[tokio::test]
async fn forgetting_leaves_what_other_tables_remember() {
    let other = "CREATE TABLE boxes (seat_id int PRIMARY KEY, owner text); INSERT INTO boxes VALUES (14, 'free')";
    for fenced in [Fenced::Keyed, Fenced::OneName] {
        let database = fenced.database().await;
        database.admin.batch_execute(other).await.unwrap();
        database.install(&InstallOptions { table: "boxes".into(), ..fenced.options() }).await;
        assert_eq!(database.write(BOB, "UPDATE boxes SET owner = 'bob' WHERE seat_id = 14").await, "ok");
        let report = remove(&mut database.client().await, "seats", true).await.unwrap();
        assert!(!report.forgotten, "{fenced:?}: it is not seats' to forget");
        assert_eq!(
            database.write(ADA, "UPDATE boxes SET owner = 'ada' WHERE seat_id = 14").await,
            "LH001",
            "{fenced:?}"
        );
        let report = remove(&mut database.client().await, "boxes", true).await.unwrap();
        assert!(report.forgotten, "{fenced:?}");
        assert_eq!(database.value("SELECT count(*)::text FROM leasehold_fence.seen").await, "0", "{fenced:?}");
    }
    // Names that cannot meet are forgotten apart.
    let database = Fenced::Keyed.database().await;
    database.admin.batch_execute(other).await.unwrap();
    database.install(&options("boxes", &["seat_id"], "box/{}", Remember::Name)).await;
    assert_eq!(database.write(BOB, "UPDATE boxes SET owner = 'bob' WHERE seat_id = 14").await, "ok");
    assert!(remove(&mut database.client().await, "seats", true).await.unwrap().forgotten);
    assert_eq!(database.write(ADA, "UPDATE boxes SET owner = 'ada' WHERE seat_id = 14").await, "LH001");
}

/// Goal: a fence on a copy of a fenced table leaves that of the first one alone.
/// Method: `LIKE … INCLUDING ALL` copies the comment that names the guard.
#[tokio::test]
async fn a_copy_of_a_table_has_a_guard_of_its_own() {
    let database = Fenced::Row.database().await;
    bob_writes(&database).await;
    let copy = "CREATE TABLE copy (LIKE seats INCLUDING ALL); INSERT INTO copy SELECT * FROM seats";
    database.admin.batch_execute(copy).await.unwrap();
    database.install(&InstallOptions { table: "copy".into(), ..Fenced::Row.options() }).await;
    assert_eq!(database.holes().await, []);
    assert_eq!(database.value("SELECT count(DISTINCT guard)::text FROM leasehold_fence.fenced").await, "2");
    ada_is_refused(&database, "the first").await;
    assert_eq!(database.write(ADA, "UPDATE copy SET owner = 'x' WHERE seat_id = 14").await, "LH001", "the copied row");
    remove(&mut database.client().await, "copy", true).await.unwrap();
    assert_eq!(database.holes().await, []);
    ada_is_refused(&database, "after the copy").await;
}

/// Goal: a column of that name that is not ours is not taken for a fence.
/// Method: with an empty text in it, an UPDATE that shows nothing would show what the row remembers.
#[tokio::test]
async fn a_column_that_holds_no_fence_is_refused() {
    let table = "CREATE TABLE seats (seat_id int PRIMARY KEY, owner text, leasehold_fence text);
        INSERT INTO seats VALUES (14, 'free', '')";
    let database = Database::new(table).await;
    let sentence = database.refuses_install(&Fenced::Row.options()).await;
    assert!(sentence.contains("--remember name"), "{sentence}");
    database.admin.batch_execute("UPDATE seats SET leasehold_fence = '42:bbbbbbbbbbbbbbbb'").await.unwrap();
    database.install(&Fenced::Row.options()).await;
    assert_eq!(database.write("", WRITE).await, "LH002");
    assert_eq!(database.write(ADA, WRITE).await, "LH001");
}

/// Goal: a removal holds up writers no longer than an install does.
#[tokio::test]
async fn a_fence_is_removed_under_traffic() {
    let database = Fenced::Keyed.database().await;
    let (holder, writer) = (database.client().await, database.client().await);
    let hold =
        "BEGIN; SELECT set_config('leasehold.token', '42', true); UPDATE seats SET owner = 'h' WHERE seat_id = 20";
    holder.batch_execute(hold).await.unwrap();
    let mut remover = database.client().await;
    let removing = tokio::spawn(async move { remove(&mut remover, "seats", false).await });
    let began = std::time::Instant::now();
    let (mut writes, mut longest) = (0, std::time::Duration::ZERO);
    while began.elapsed() < std::time::Duration::from_secs(2) {
        let one = std::time::Instant::now();
        crate::support::under_token(&writer, "42", WRITE).await.unwrap();
        (writes, longest) = (writes + 1, longest.max(one.elapsed()));
    }
    assert!(!removing.is_finished(), "the table is held");
    holder.batch_execute("COMMIT").await.unwrap();
    removing.await.unwrap().unwrap();
    println!("{writes} writes, the longest took {longest:?}");
    assert!(writes > 3, "writers stood behind the lock of the removal");
    assert_eq!(database.write("", WRITE).await, "ok", "it is removed");
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
    let others = r#"CREATE SCHEMA leasehold; CREATE TABLE leasehold.schedule (name text, token bigint);
        INSERT INTO leasehold.schedule VALUES ('nightly', 900);
        CREATE SCHEMA leasehold_boxoffice; CREATE TABLE leasehold_boxoffice.hold_seats (token bigint);
        INSERT INTO leasehold_boxoffice.hold_seats VALUES (800);
        CREATE TABLE leasehold_boxoffice.holds (live bool, body text);
        INSERT INTO leasehold_boxoffice.holds VALUES
            (true, '{"leases":[{"token":3},{"token":850}]}'), (true, '{"leases":[]}'), (false, '{"leases":[{"token":999}]}')"#;
    database.admin.batch_execute(others).await.unwrap();
    let highest = highest_token(&database.admin).await.unwrap();
    let found: Vec<_> = highest.iter().map(|source| (source.table.as_str(), source.highest.get())).collect();
    let expected = [
        ("leasehold.schedule", 900),
        ("leasehold_boxoffice.holds", 850),
        ("leasehold_boxoffice.hold_seats", 800),
        ("public.seats", 700),
        ("leasehold_fence.seen", 500),
    ];
    assert_eq!(found, expected);
}
