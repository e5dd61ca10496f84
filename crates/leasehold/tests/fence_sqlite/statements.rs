//! The table of cases, and every statement that can write.

use leasehold::Leasehold;
use leasehold::fence::sqlite::{SqliteFence, install};
use leasehold::fence::{FenceError, FenceRefusal};
use leasehold::testkit::fence_cases::{FenceSubject, all_cases};
use rusqlite::Connection;

use crate::{ADA, BOB, fenced_seats, options, write};

struct TableSubject {
    connection: Connection,
    fence: SqliteFence,
    sql: String,
}

impl FenceSubject for TableSubject {
    async fn write(&mut self, _resource: &str, shown: Option<&str>) -> Result<(), FenceRefusal> {
        let Some(shown) = shown.filter(|text| !text.is_empty()) else {
            let error = self.connection.execute_batch(&self.sql).unwrap_err();
            assert!(error.to_string().contains("leasehold LH002"), "{error}");
            return Err(FenceRefusal::NoToken { resource: "seat".into() });
        };
        let done =
            self.fence.write_showing(shown.parse()?, &mut self.connection, |tx| Ok(tx.execute_batch(&self.sql)?));
        match done {
            Err(FenceError::Refused(refusal)) => Err(refusal),
            done => {
                done.unwrap();
                Ok(())
            }
        }
    }
}

/// Goal: fenced tables obey the table of cases, by UPDATE, by upsert, and by DELETE and INSERT.
#[tokio::test]
async fn tables_pass_the_table_of_cases() {
    let writes = [
        (14, "UPDATE seats SET owner = 'x' WHERE seat_id = 14"),
        (14, "INSERT INTO seats VALUES (14, 'x') ON CONFLICT (seat_id) DO UPDATE SET owner = 'x'"),
        (77, "INSERT INTO seats VALUES (77, 'x') ON CONFLICT (seat_id) DO UPDATE SET owner = 'x'"),
        (14, "REPLACE INTO seats VALUES (14, 'x')"),
    ];
    for (seat, sql) in writes {
        for case in all_cases() {
            let (connection, fence) = fenced_seats();
            let mut subject = TableSubject { connection, fence, sql: sql.into() };
            case.run(&format!("seat/{seat}"), &mut subject).await;
        }
    }
}

/// Goal: a function of another language may answer anything: what is no token is refused by the triggers themselves.
#[test]
fn a_malformed_answer_of_the_function_is_refused() {
    use rusqlite::functions::FunctionFlags;
    for (answer, code) in [
        (Some("0"), "LH004"),
        (Some("-1"), "LH004"),
        (Some("042"), "LH004"),
        (Some("ada"), "LH004"),
        (Some("42:"), "LH004"),
        (Some("42:BBBBBBBBBBBBBBBB"), "LH004"),
        (Some("9223372036854775808"), "LH004"),
        (Some("42.0"), "LH004"),
        (Some(""), "LH004"),
        (None, "LH002"),
    ] {
        let (connection, _) = fenced_seats();
        let text = answer.map(str::to_owned);
        connection
            .create_scalar_function("leasehold_token", 1, FunctionFlags::SQLITE_UTF8, move |_| Ok(text.clone()))
            .unwrap();
        let error = connection.execute("UPDATE seats SET owner = 'x' WHERE seat_id = 14", []).unwrap_err();
        assert!(error.to_string().contains(code), "{answer:?}: {error}");
    }
}

/// Goal: every statement needs a token that is not stale.
#[test]
fn every_statement_needs_a_token_that_is_not_stale() {
    for sql in [
        "UPDATE seats SET owner = 'x' WHERE seat_id = 14",
        "UPDATE seats SET owner = 'x'",
        "DELETE FROM seats WHERE seat_id = 14",
        "DELETE FROM seats",
        "INSERT INTO seats VALUES (99, 'x')",
        "INSERT OR REPLACE INTO seats VALUES (14, 'x')",
        // The policy of the statement is also that of the statements in a trigger: it must not silence the fence.
        "INSERT OR IGNORE INTO seats VALUES (99, 'x')",
        "INSERT OR FAIL INTO seats VALUES (99, 'x')",
        "UPDATE OR IGNORE seats SET owner = 'x' WHERE seat_id = 14",
        "UPDATE OR REPLACE seats SET owner = 'x' WHERE seat_id = 14",
        "UPDATE OR FAIL seats SET owner = 'x' WHERE seat_id = 14",
        "UPDATE OR ROLLBACK seats SET owner = 'x' WHERE seat_id = 14",
        "UPDATE seats SET seat_id = 99 WHERE seat_id = 14",
        "UPDATE some_seats SET owner = 'x' WHERE seat_id = 14",
    ] {
        let (mut connection, fence) = fenced_seats();
        connection
            .execute_batch(
                "CREATE VIEW some_seats AS SELECT * FROM seats;
                 CREATE TRIGGER through INSTEAD OF UPDATE ON some_seats BEGIN
                    UPDATE seats SET owner = NEW.owner WHERE seat_id = NEW.seat_id; END",
            )
            .unwrap();
        let bob = "UPDATE seats SET owner = 'bob'; INSERT INTO seats VALUES (99, 'bob'); DELETE FROM seats WHERE seat_id = 99";
        assert_eq!(write(&fence, &mut connection, BOB, bob), "ok");
        assert_eq!(write(&fence, &mut connection, ADA, sql), "LH001", "{sql}");
        assert_eq!(write(&fence, &mut connection, "42:cccccccccccccccc", sql), "LH003", "{sql}");
        assert_eq!(write(&fence, &mut connection, "99\tseat/1000", sql), "LH006", "{sql}");
        assert!(connection.execute_batch(sql).unwrap_err().to_string().contains("LH002"), "{sql}");
        assert_eq!(write(&fence, &mut connection, BOB, sql), "ok", "{sql}");
    }
}

/// Goal: a connection without the function cannot write at all, and can do everything else.
#[test]
fn a_connection_without_the_function_reads_only() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("shop.sqlite");
    let mut connection = Connection::open(&path).unwrap();
    connection
        .execute_batch(
            "CREATE TABLE seats (seat_id INTEGER PRIMARY KEY, owner TEXT); INSERT INTO seats VALUES (14, 'free')",
        )
        .unwrap();
    install(&mut connection, &options("seats", &["seat_id"], "seat/{}")).unwrap();
    let stranger = Connection::open(&path).unwrap();
    for sql in ["UPDATE seats SET owner = 'x'", "DELETE FROM seats", "INSERT INTO seats VALUES (1, 'x')"] {
        let error = stranger.execute(sql, []).unwrap_err();
        assert!(error.to_string().contains("no such function: leasehold_token"), "{error}");
    }
    let owner: String = stranger.query_row("SELECT owner FROM seats", [], |row| row.get(0)).unwrap();
    assert_eq!(owner, "free");
    stranger.execute_batch("ALTER TABLE seats ADD COLUMN price INTEGER; VACUUM").unwrap();
}

/// Goal: a row that INSERT OR REPLACE removes because of another unique index is asked for, too.
#[test]
fn replace_over_another_unique_index_is_fenced() {
    let (mut connection, fence) = fenced_seats();
    connection.execute_batch("CREATE UNIQUE INDEX by_owner ON seats (owner) WHERE owner <> 'free'").unwrap();
    assert_eq!(write(&fence, &mut connection, "52\tseat/2", "UPDATE seats SET owner = 'bob' WHERE seat_id = 2"), "ok");
    let replace = "INSERT OR REPLACE INTO seats VALUES (1, 'bob')";
    assert_eq!(write(&fence, &mut connection, "51", replace), "LH001");
    connection.pragma_update(None, "recursive_triggers", false).unwrap();
    assert_eq!(write(&fence, &mut connection, "51", replace), "ok", "this is the trap that the pragma closes");
}

/// Goal: a writer that reads before it writes is not thrown out by another one that commits between.
/// Method: the other one starts after the read; it waits for the end of the transaction that has begun.
#[test]
fn a_transaction_that_reads_first_keeps_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("shop.sqlite");
    let open = || {
        let connection = Connection::open(&path).unwrap();
        connection.busy_timeout(std::time::Duration::from_secs(30)).unwrap();
        connection
    };
    let mut connection = open();
    connection
        .execute_batch(
            "PRAGMA journal_mode = WAL; CREATE TABLE seats (seat_id INTEGER PRIMARY KEY, owner TEXT);
             INSERT INTO seats VALUES (14, 'free')",
        )
        .unwrap();
    install(&mut connection, &options("seats", &["seat_id"], "seat/{}")).unwrap();
    let fence = SqliteFence::attach(&connection).unwrap();
    let sell = |owner: &str| format!("UPDATE seats SET owner = owner || '{owner}' WHERE seat_id = 14");
    let mut other = None;
    let first = fence.write_showing(ADA.parse().unwrap(), &mut connection, |tx| {
        let owner: String = tx.query_row("SELECT owner FROM seats", [], |row| row.get(0))?;
        assert_eq!(owner, "free");
        let (mut connection, sql) = (open(), sell(" bob"));
        let handle = std::thread::spawn(move || {
            let fence = SqliteFence::attach(&connection).unwrap();
            write(&fence, &mut connection, BOB, &sql)
        });
        std::thread::sleep(std::time::Duration::from_millis(300));
        assert!(!handle.is_finished(), "the write lock is the order");
        other = Some(handle);
        Ok(tx.execute_batch(&sell(" ada"))?)
    });
    first.unwrap();
    assert_eq!(other.unwrap().join().unwrap(), "ok");
    let owner: String = connection.query_row("SELECT owner FROM seats", [], |row| row.get(0)).unwrap();
    assert_eq!(owner, "free ada bob");
}

/// Goal: a cascade is a write to the fenced child, and the whole statement is undone.
#[test]
fn cascades_are_fenced() {
    let (mut connection, fence) = fenced_seats();
    connection
        .execute_batch(
            "PRAGMA foreign_keys = ON; CREATE TABLE halls (hall INTEGER PRIMARY KEY); INSERT INTO halls VALUES (1);
             CREATE TABLE boxes (id INTEGER PRIMARY KEY, hall REFERENCES halls ON DELETE CASCADE); INSERT INTO boxes VALUES (7, 1)",
        )
        .unwrap();
    install(&mut connection, &options("boxes", &["id"], "box/{}")).unwrap();
    assert_eq!(write(&fence, &mut connection, BOB, "UPDATE boxes SET hall = 1"), "ok");
    assert_eq!(write(&fence, &mut connection, ADA, "DELETE FROM halls"), "LH001");
    assert_eq!(write(&fence, &mut connection, BOB, "DELETE FROM halls"), "ok");
    let left: i64 = connection.query_row("SELECT count(*) FROM boxes", [], |row| row.get(0)).unwrap();
    assert_eq!(left, 0);
}

/// Goal: the helper writes under a lease, tells a late holder both tokens, and leaves no token behind.
#[tokio::test]
async fn the_helper_writes_under_a_lease() {
    let dir = tempfile::tempdir().unwrap();
    let leasehold = Leasehold::open(&format!("embedded:{}", dir.path().display())).await.unwrap();
    let old = leasehold.acquire("seat/14").fenced().await.unwrap();
    leasehold.release(old.lease_id()).await.unwrap();
    let new = leasehold.acquire("seat/14").fenced().await.unwrap();
    let (mut connection, fence) = fenced_seats();
    let sell = "UPDATE seats SET owner = 'x' WHERE seat_id = 14";
    for lease in [&old, &new, &new] {
        assert_eq!(fence.write(lease, &mut connection, |tx| Ok(tx.execute(sell, [])?)).unwrap(), 1);
    }
    let late = fence.write(&old, &mut connection, |tx| Ok(tx.execute(sell, [])?));
    let Err(FenceError::Refused(FenceRefusal::Stale { resource, presented, highest })) = late else {
        panic!("{late:?}")
    };
    assert_eq!((resource.as_str(), presented, highest), ("seat/14", old.token(), new.token()));
    assert!(connection.execute(sell, []).unwrap_err().to_string().contains("LH002"));
    let other = fence.write(&new, &mut connection, |tx| Ok(tx.execute("UPDATE seats SET owner = 'x'", [])?));
    assert!(matches!(other, Err(FenceError::Refused(FenceRefusal::NotCovered { .. }))), "{other:?}");
    let failed: Result<(), _> = fence.write(&new, &mut connection, |tx| {
        tx.execute("UPDATE seats SET owner = 'gone' WHERE seat_id = 14", [])?;
        Err("no money".into())
    });
    assert!(matches!(failed, Err(FenceError::Work(_))));
    let owner: String =
        connection.query_row("SELECT owner FROM seats WHERE seat_id = 14", [], |row| row.get(0)).unwrap();
    assert_eq!(owner, "x", "rolled back");
    let shared = leasehold.acquire("hall").shared().fenced().await.unwrap();
    assert!(matches!(fence.write(&shared, &mut connection, |_| Ok(())), Err(FenceError::Invalid(_))));
}
