//! Order in time: who waits for whom, and who is refused, at every isolation level and in every store.

use crate::support::{ADA, BOB, Database, Fenced, begin, outcome, run_until_blocked, under_token};

const LEVELS: [&str; 3] = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];

const WRITE: &str = "UPDATE seats SET owner = 'x' WHERE seat_id = 14";

/// Runs a schedule for every store and level, each in a database of its own.
async fn everywhere(schedule: impl AsyncFn(&Database, Fenced, &'static str)) {
    for fenced in Fenced::ALL {
        for level in LEVELS {
            schedule(&fenced.database().await, fenced, level).await;
        }
    }
}

fn old_snapshot(level: &str) -> &'static str {
    if level == "READ COMMITTED" { "LH001" } else { "40001" }
}

/// Goal: a newer holder waits for the write of an older one that is not committed, and is then admitted.
#[tokio::test]
async fn a_newer_writer_waits_for_an_open_older_write() {
    everywhere(async |database, fenced, level| {
        let (older, newer) = (database.client().await, database.client().await);
        begin(&older, level, ADA).await;
        older.batch_execute(WRITE).await.unwrap();
        begin(&newer, level, BOB).await;
        let waiting = run_until_blocked(newer, WRITE).await;
        older.batch_execute("COMMIT").await.unwrap();
        let (newer, written) = waiting.await.unwrap();
        let ended = newer.batch_execute("COMMIT").await;
        let at = format!("{fenced:?} {level}");
        if level == "READ COMMITTED" {
            assert_eq!((written.as_str(), outcome(&ended).as_str()), ("ok", "ok"), "{at}");
        } else {
            assert!(written == "40001" || written == "ok" && fenced == Fenced::OneName, "{at}: {written}");
        }
        assert_eq!(database.write(BOB, WRITE).await, "ok", "{at}: the same again");
        assert_eq!(database.write(ADA, WRITE).await, "LH001", "{at}");
    })
    .await;
}

/// Goal: a transaction that began before the newer write committed does not write after it.
/// Method: its snapshot is from before; at READ COMMITTED it sees the fence, at the others it fails and learns at its retry.
#[tokio::test]
async fn an_old_snapshot_does_not_write_after_a_newer_commit() {
    everywhere(async |database, fenced, level| {
        let older = database.client().await;
        begin(&older, level, ADA).await;
        assert_eq!(database.write(BOB, WRITE).await, "ok");
        let late = outcome(&older.batch_execute(WRITE).await);
        assert_eq!(late, old_snapshot(level), "{fenced:?} {level}");
        older.batch_execute("ROLLBACK").await.unwrap();
        assert_eq!(database.write(ADA, WRITE).await, "LH001", "{fenced:?} {level}");
    })
    .await;
}

/// One resource of two rows, in the stores that remember by name: no lock on a row keeps its writers in order.
async fn resource_of_two_rows(fenced: Fenced) -> Database {
    let sql = "CREATE TABLE seats (seat_id int, part int, owner text, PRIMARY KEY (seat_id, part));
        INSERT INTO seats VALUES (14, 0, 'free'), (14, 1, 'free')";
    let database = Database::new(sql).await;
    database.install(&fenced.options()).await;
    database
}

const FIRST_ROW: &str = "UPDATE seats SET owner = 'x' WHERE part = 0";
const OTHER_ROW: &str = "UPDATE seats SET owner = 'y' WHERE part = 1";

/// Goal: a newer holder waits for an open write of the older one even if that one changed nothing in the fence, because its
/// token was remembered before.
#[tokio::test]
async fn a_newer_writer_waits_for_an_open_write_under_the_remembered_token() {
    for fenced in [Fenced::Keyed, Fenced::OneName] {
        for level in LEVELS {
            let database = resource_of_two_rows(fenced).await;
            let at = format!("{fenced:?} {level}");
            assert_eq!(database.write(ADA, FIRST_ROW).await, "ok", "{at}");
            let (older, newer) = (database.client().await, database.client().await);
            begin(&older, level, ADA).await;
            older.batch_execute(FIRST_ROW).await.unwrap();
            begin(&newer, level, BOB).await;
            let waiting = run_until_blocked(newer, OTHER_ROW).await;
            older.batch_execute("COMMIT").await.unwrap();
            let (newer, written) = waiting.await.unwrap();
            let ended = newer.batch_execute("COMMIT").await;
            let (written, ended) = (written.as_str(), outcome(&ended));
            // SERIALIZABLE may take it for a conflict: then it is run again.
            assert!(
                written == "ok" && ended == "ok" || level == "SERIALIZABLE" && written == "40001",
                "{at}: {written}"
            );
            assert_eq!(database.write(BOB, OTHER_ROW).await, "ok", "{at}: the same again");
            assert_eq!(database.write(ADA, FIRST_ROW).await, "LH001", "{at}");
        }
    }
}

/// Goal: an old snapshot in which its own token is the newest does not deceive a writer.
#[tokio::test]
async fn an_old_snapshot_with_the_own_token_does_not_write_after_a_newer_commit() {
    for fenced in [Fenced::Keyed, Fenced::OneName] {
        for level in LEVELS {
            let database = resource_of_two_rows(fenced).await;
            assert_eq!(database.write(ADA, FIRST_ROW).await, "ok");
            let older = database.client().await;
            begin(&older, level, ADA).await;
            assert_eq!(database.write(BOB, FIRST_ROW).await, "ok");
            let late = outcome(&older.batch_execute(OTHER_ROW).await);
            assert_eq!(late, old_snapshot(level), "{fenced:?} {level}");
        }
    }
}

/// Goal: an older writer that waited for an open newer write looks again, and is refused.
/// Method: its own token is remembered, or one before it; it speaks for everything, or for this resource only.
#[tokio::test]
async fn an_older_writer_that_waited_for_a_newer_one_is_refused() {
    for (fenced, name) in [(Fenced::Keyed, "seat/14"), (Fenced::OneName, "billing")] {
        for level in LEVELS {
            for remembered in [ADA, "40:cccccccccccccccc"] {
                for shown in [ADA.to_owned(), format!("{ADA}\t{name}")] {
                    let database = resource_of_two_rows(fenced).await;
                    let at = format!("{fenced:?} {level}, {remembered} is remembered, shown {shown:?}");
                    assert_eq!(database.write(remembered, FIRST_ROW).await, "ok", "{at}");
                    let (older, newer) = (database.client().await, database.client().await);
                    begin(&newer, level, BOB).await;
                    newer.batch_execute(FIRST_ROW).await.unwrap();
                    begin(&older, level, &shown).await;
                    let waiting = run_until_blocked(older, OTHER_ROW).await;
                    newer.batch_execute("COMMIT").await.unwrap();
                    let (_, late) = waiting.await.unwrap();
                    assert_eq!(late, old_snapshot(level), "{at}");
                }
            }
        }
    }
}

/// Goal: what a connection was admitted with in one transaction is not believed in the next.
#[tokio::test]
async fn every_transaction_of_a_connection_is_checked_anew() {
    for fenced in Fenced::ALL {
        let database = fenced.database().await;
        let connection = database.client().await;
        assert_eq!(outcome(&under_token(&connection, ADA, WRITE).await), "ok", "{fenced:?}");
        assert_eq!(database.write(BOB, WRITE).await, "ok", "{fenced:?}");
        assert_eq!(outcome(&under_token(&connection, ADA, WRITE).await), "LH001", "{fenced:?}");
        assert_eq!(outcome(&connection.batch_execute(WRITE).await), "LH002", "{fenced:?}: no token is left behind");
    }
}

/// Goal: where one name fences the table, this holds for rows that the newer one did not touch.
#[tokio::test]
async fn one_name_fences_other_rows_too() {
    for level in LEVELS {
        let database = Fenced::OneName.database().await;
        let older = database.client().await;
        begin(&older, level, ADA).await;
        assert_eq!(database.write(BOB, WRITE).await, "ok");
        let late = outcome(&older.batch_execute("UPDATE seats SET owner = 'y' WHERE seat_id = 3").await);
        assert_eq!(late, old_snapshot(level), "{level}");
    }
}

/// Goal: what a newer holder deleted, an older one does not bring back.
/// Method: re-insert from a snapshot of before, and from a new transaction.
#[tokio::test]
async fn a_deleted_row_keeps_its_fence() {
    everywhere(async |database, fenced, level| {
        let older = database.client().await;
        begin(&older, level, ADA).await;
        assert_eq!(database.write(BOB, "DELETE FROM seats WHERE seat_id = 14").await, "ok");
        let insert = "INSERT INTO seats VALUES (14, 'ada')";
        let late = outcome(&older.batch_execute(insert).await);
        assert_eq!(late, old_snapshot(level), "{fenced:?} {level}");
        older.batch_execute("ROLLBACK").await.unwrap();
        assert_eq!(database.write(ADA, insert).await, "LH001", "{fenced:?} {level}");
        assert_eq!(database.write(BOB, insert).await, "ok", "{fenced:?} {level}");
    })
    .await;
}

/// Goal: an older INSERT waits for the open DELETE of a newer holder, and is then refused.
#[tokio::test]
async fn an_older_insert_waits_for_an_open_delete() {
    everywhere(async |database, fenced, level| {
        let (older, newer) = (database.client().await, database.client().await);
        begin(&older, level, ADA).await;
        begin(&newer, level, BOB).await;
        newer.batch_execute("DELETE FROM seats WHERE seat_id = 14").await.unwrap();
        let waiting = run_until_blocked(older, "INSERT INTO seats VALUES (14, 'ada')").await;
        newer.batch_execute("COMMIT").await.unwrap();
        let (_, late) = waiting.await.unwrap();
        assert_eq!(late, old_snapshot(level), "{fenced:?} {level}");
    })
    .await;
}

/// Goal: what is rolled back was never seen.
#[tokio::test]
async fn a_rolled_back_write_raises_no_fence() {
    everywhere(async |database, fenced, level| {
        for write in [WRITE, "DELETE FROM seats WHERE seat_id = 14", "INSERT INTO seats VALUES (99, 'bob')"] {
            let newer = database.client().await;
            begin(&newer, level, BOB).await;
            newer.batch_execute(write).await.unwrap();
            newer.batch_execute("ROLLBACK").await.unwrap();
        }
        assert_eq!(database.write(ADA, WRITE).await, "ok", "{fenced:?} {level}");
        assert_eq!(database.write(ADA, "INSERT INTO seats VALUES (99, 'ada')").await, "ok", "{fenced:?} {level}");
    })
    .await;
}

/// Goal: a savepoint that is rolled back takes its fence and its lock along, and the rest of the transaction keeps its order.
#[tokio::test]
async fn a_rolled_back_savepoint_raises_no_fence() {
    for fenced in Fenced::ALL {
        let database = fenced.database().await;
        let steps = format!("SAVEPOINT s; {WRITE}; ROLLBACK TO s; UPDATE seats SET owner = 'y' WHERE seat_id = 3");
        assert_eq!(database.write(BOB, &steps).await, "ok");
        let expected = if fenced == Fenced::OneName { "LH001" } else { "ok" };
        assert_eq!(database.write(ADA, WRITE).await, expected, "{fenced:?}");
        assert_eq!(database.write(ADA, "UPDATE seats SET owner = 'z' WHERE seat_id = 3").await, "LH001", "{fenced:?}");
    }
}

/// Goal: a prepared transaction keeps its order until it is committed, without any session.
#[tokio::test]
async fn a_prepared_transaction_keeps_its_order() {
    for fenced in Fenced::ALL {
        let database = fenced.database().await;
        let (older, newer) = (database.client().await, database.client().await);
        begin(&older, LEVELS[0], "50:aaaaaaaaaaaaaaaa").await;
        older.batch_execute(WRITE).await.unwrap();
        let name = format!("prepared_{}", database.name);
        older.batch_execute(&format!("PREPARE TRANSACTION '{name}'")).await.unwrap();
        drop(older);
        begin(&newer, LEVELS[0], "51:bbbbbbbbbbbbbbbb").await;
        let waiting = run_until_blocked(newer, WRITE).await;
        database.admin.batch_execute(&format!("COMMIT PREPARED '{name}'")).await.unwrap();
        let (newer, written) = waiting.await.unwrap();
        assert_eq!(written, "ok", "{fenced:?}");
        newer.batch_execute("COMMIT").await.unwrap();
        assert_eq!(database.write("49:cccccccccccccccc", WRITE).await, "LH001", "{fenced:?}");
    }
}

/// Goal: writers of one lease do not wait for each other, but for the rows that they both write.
#[tokio::test]
async fn transactions_of_one_lease_do_not_wait_for_each_other() {
    for fenced in Fenced::ALL {
        let database = fenced.database().await;
        assert_eq!(database.write(ADA, WRITE).await, "ok");
        let (one, two) = (database.client().await, database.client().await);
        begin(&one, LEVELS[0], ADA).await;
        begin(&two, LEVELS[0], ADA).await;
        one.batch_execute("UPDATE seats SET owner = 'x' WHERE seat_id = 3").await.unwrap();
        let other = two.batch_execute("SET LOCAL lock_timeout = '5s'; UPDATE seats SET owner = 'y' WHERE seat_id = 4");
        assert_eq!(outcome(&other.await), "ok", "{fenced:?}");
    }
}
